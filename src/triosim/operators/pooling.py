"""Windows that are averaged or searched for their largest element, and their gradients; resampling of images."""

from __future__ import annotations

import math

from triosim.core.registry import registered
from triosim.operators._call import Call, CallResult
from triosim.operators._dims import (
    GRADIENT_ROLES,
    Dims,
    Output,
    Row,
    Window,
    bounded,
    given_sizes,
    in_each,
    in_gradient,
    numbers,
    positions,
    sizes,
    unknown,
)
from triosim.operators._kind import Kind, like
from triosim.operators._work import INDEX, MovedBytes


@registered
class Pooling(Kind):
    """[b, c, window...] to [b, c, window...]: batch and channel stay, positions mix."""

    names = """
        max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices
          mkldnn_max_pool2d mkldnn_max_pool3d quantized_max_pool1d quantized_max_pool2d quantized_max_pool3d:
          self kernel_size stride padding dilation ceil_mode
        avg_pool1d: self kernel_size stride padding ceil_mode count_include_pad
        avg_pool2d avg_pool3d: self kernel_size stride padding ceil_mode count_include_pad divisor_override
        adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d
          mkldnn_adaptive_avg_pool2d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d: self output_size
        fractional_max_pool2d fractional_max_pool3d: self kernel_size output_size random_samples
        max_unpool2d max_unpool3d: self indices output_size
        upsample_nearest1d upsample_nearest2d upsample_nearest3d: input output_size scale_factors
        upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d _upsample_bilinear2d_aa
          _upsample_bicubic2d_aa: input output_size align_corners scale_factors
        """
    gradients = """
        max_pool2d_with_indices_backward max_pool3d_with_indices_backward: grad_output self kernel_size stride padding
          dilation ceil_mode indices
        avg_pool2d_backward avg_pool3d_backward: grad_output self kernel_size stride padding ceil_mode
          count_include_pad divisor_override
        _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward adaptive_avg_pool2d_backward: grad_output self
        """
    words = "pool"
    stream = "pooling"

    def results(self, call: Call) -> tuple[CallResult, ...] | None:
        source = call.find("self", "input")
        if call.backward:
            return like(call, "self", "input")
        if source < 0 or len(call.inputs[source]) < 2:
            return None
        x, dtype = call.inputs[source], call.dtype(source)
        size = numbers(call, "output_size")
        n = len(size) if size else len(x) - 2
        if size is None:
            kernel, padding = given_sizes(call, "kernel_size", n), sizes(call, "padding", n, 0)
            stride = given_sizes(call, "stride", n) or kernel
            if kernel is None or stride is None or call.name.startswith("upsample"):
                return None
            up = call.args.get("ceil_mode") is True
            size = positions(x[len(x) - n :], kernel, stride, padding, sizes(call, "dilation", n, 1), up)
        if min(size, default=1) < 1:
            return None
        shape = (*x[: len(x) - n], *size)
        indices = (CallResult(shape, "int64", saved=True),) if "with_indices" in call.name else ()
        return (CallResult(shape, dtype), *indices)

    def traffic(self, call: Call, counted: MovedBytes) -> MovedBytes:
        """Every element that is produced walks over its windows, whose overlap the caches serve.

        The largest of a window is kept with its index, and the backward reads indices instead of the input.  A window
        over everything is a sum.
        """
        item = call.item(0)
        grad = call.shape("grad_output", "grad") if call.backward else None
        made = call.outputs[0] if call.outputs else ()
        windows = grad if grad is not None else made
        size = float(math.prod(made))
        largest = "max" in call.name
        found = counted
        if grad is not None:
            found = MovedBytes(counted.stream, math.prod(grad) * (item + INDEX * largest), size * item)
        elif largest and len(call.outputs) == 1:
            found = counted._replace(written=counted.written + INDEX * size)
        if size and len(windows) > 2 and math.prod(windows[2:]) > 1:
            return found._replace(rows=size, row_bytes=item)
        return found

    def dims(self, call: Call) -> Dims:
        """Labels b c, positions that are read, places in the window, positions that are made."""
        source, grad = call.find("self", "input"), call.find(*GRADIENT_ROLES) if call.backward else -1
        at = source if source >= 0 else grad
        rank = len(call.inputs[at]) if at >= 0 else 0
        if rank < 3:
            return unknown(call)
        n = rank - 2
        read, window, made = (tuple(range(2 + i * n, 2 + (i + 1) * n)) for i in range(3))
        x, y = (0, 1, *read), (0, 1, *made)
        reads: dict[int, Row] = {source: x, grad: y, call.find("indices"): y if call.backward else x}
        results = {0: x} if call.backward else dict.fromkeys(range(len(call.outputs)), y)
        ins, outs = bounded(call, reads, results)
        names = ("b", "c", *(f"{what}{d}" for what in ("x", "r", "p") for d in range(n)))
        linear = in_gradient(call) if call.backward or "max" in call.name else in_each(source)
        return Dims(
            tuple(ins), tuple(map(Output, outs)), frozenset((*read, *made)), linear=linear,
            windows=self._windows(call, read, made, window), names=names,
        )  # fmt: skip

    @staticmethod
    def _windows(call: Call, read: Row, made: Row, window: Row) -> tuple[Window, ...]:
        """The windows, where the call says how large they are."""
        n = len(read)
        kernel = sizes(call, "kernel_size", n, 0)
        if 0 in kernel:
            return ()
        stride, padding, dilation = (sizes(call, name, n, 0) for name in ("stride", "padding", "dilation"))
        return tuple(
            Window(read[d], made[d], window[d], kernel[d], stride[d] or kernel[d], max(dilation[d], 1), padding[d])
            for d in range(n)
        )
