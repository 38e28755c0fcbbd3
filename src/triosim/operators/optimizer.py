"""Updates of many parameters in one call, as optimizers and gradient scalers make them."""

from __future__ import annotations

import math

from triosim.core.registry import registered
from triosim.operators._call import Call, CallResult, Shape
from triosim.operators._dims import NO_LABEL, Dims, Output, Row, unknown
from triosim.operators._kind import Kind
from triosim.operators._work import MovedBytes

_LISTS = {"_fused_adam": 4, "_fused_adamw": 4, "_fused_sgd": 3, "_fused_adagrad": 3, "_fused_lion": 3}
"""Tensors that an optimizer reads for each parameter; ``_foreach`` operators tell by their inputs."""
_TENSORS = (110, 64, 48, 36, 30)
_BLOCKS, _CHUNK = 320, 65536
"""Tensors (by lists) and blocks of one kernel, and elements of a block, in PyTorch's ``MultiTensorApply.cuh``."""


@registered
class Optimizer(Kind):
    """Lists of tensors, element by element; each result belongs to the tensor of the first list at its place."""

    names = """
        _foreach_lerp: self tensors1 weight
        _foreach_addcmul _foreach_addcdiv: self tensor1 tensor2 value
        _foreach_add _foreach_sub: self other alpha
        _foreach_mul _foreach_div: self other
        _foreach_copy: self src non_blocking
        _foreach_*
        _fused_adam _fused_adamw: self grads exp_avgs exp_avg_sqs max_exp_avg_sqs state_steps
        _fused_sgd: self grads momentum_buffer_list
        _fused_adagrad: self grads state_sums state_steps
        _fused_lion: self grads exp_avgs
        _fused_adam8bit: self grads exp_avgs exp_avg_sqs absmax1 absmax2
        _amp_foreach_non_finite_check_and_unscale: self found_inf inv_scale
        _amp_update_scale: self growth_tracker found_inf
        """
    stream = "optimizer"

    def traffic(self, call: Call, counted: MovedBytes) -> MovedBytes:
        """Many tensors in as few kernels as their arguments allow."""
        if not call.inputs or not call.outputs:
            return counted
        lists = _LISTS.get(call.name, max(round(len(call.inputs) / len(call.outputs)), 1))
        count = max(len(call.inputs) // lists, 1)
        blocks = sum(math.ceil(math.prod(shape) / _CHUNK) for shape in call.inputs[:count])
        kernels = max(math.ceil(count / _TENSORS[min(lists, 5) - 1]), math.ceil(blocks / _BLOCKS), 1)
        return counted._replace(kernels=float(kernels))

    def written(self, name: str) -> frozenset[str]:
        return frozenset(_UPDATED.get(name, ("self",)))

    def results(self, call: Call) -> tuple[CallResult, ...] | None:
        """New tensors like the first list; in place the tensors of all lists that are written."""
        written = self.written(call.name) if call.full_name.split(".")[0].endswith("_") else frozenset()
        if written:
            found = tuple(
                CallResult(shape, call.dtype(at), at, 0, True)
                for at, (shape, role) in enumerate(zip(call.inputs, call.roles, strict=True))
                if role in written
            )
            return found or None
        first = call.roles.count(call.roles[0]) if call.roles else 0
        return tuple(CallResult(shape, call.dtype(at)) for at, shape in enumerate(call.inputs[:first])) or None

    def dims(self, call: Call) -> Dims:
        """Every tensor of the first list has labels of its own, which the others at its place and its result share."""
        lists = [at for at, role in enumerate(call.roles) if at == 0 or role != call.roles[at - 1]]
        count = lists[1] if len(lists) > 1 else len(call.inputs)
        starts = [0]
        for shape in call.inputs[:count]:
            starts.append(starts[-1] + len(shape))

        def rows(shapes: tuple[Shape, ...], places: list[int]) -> list[Row]:
            """Labels of tensors by their place in the first list, where they have its shape."""
            return [
                tuple(range(starts[place], starts[place + 1]))
                if shape == call.inputs[place]
                else (NO_LABEL,) * len(shape)
                for shape, place in zip(shapes, places, strict=True)
            ]

        if not count:
            return unknown(call)
        of_input = [at - max(start for start in lists if start <= at) for at in range(len(call.inputs))]
        if any(place >= count for place in of_input):  # lists of another length: step counters, or one for all
            of_input = [place % count for place in of_input]
        outs = rows(call.outputs, [at % count for at in range(len(call.outputs))])
        return Dims(tuple(rows(call.inputs, of_input)), tuple(map(Output, outs)))


_UPDATED = {
    "_fused_adam": ("self", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "state_steps"),
    "_fused_adamw": ("self", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "state_steps"),
    "_fused_sgd": ("self", "momentum_buffer_list"),
    "_fused_adagrad": ("self", "state_sums", "state_steps"),
    "_fused_lion": ("self", "exp_avgs"),
    "_fused_adam8bit": ("self", "exp_avgs", "exp_avg_sqs", "absmax1", "absmax2"),
}
