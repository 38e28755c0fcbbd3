"""Rows of tokens copied to the experts that they choose, sorted by expert, and added up again, in one kernel each."""

from __future__ import annotations

from triosim.core.registry import registered
from triosim.operators._call import Call, CallResult
from triosim.operators._dims import NO_LABEL, Dims, Output, blank, in_each
from triosim.operators._kind import Kind


@registered
class Permutation(Kind):
    """``moe_permute`` writes each row [tokens, width] as often as its token takes experts, and where the copies are;
    ``moe_unpermute`` adds the copies up.  The backward of either is the other (Transformer Engine, ``permutation.py``).
    """

    names = """
        moe_permute: self indices weights
        moe_unpermute: self row_id_map
        """
    gradients = """
        moe_permute_backward: grad_output row_id_map grad_weights
        moe_unpermute_backward: grad_output row_id_map
        """
    stream = "index"

    def results(self, call: Call) -> tuple[CallResult, ...] | None:
        """Those of ``moe_permute``; how many copies others add up or make their tensors do not tell."""
        indices = call.shape("indices")
        if call.name != "moe_permute" or call.backward or indices is None or len(call.inputs[0]) != 2:
            return None
        rows = indices[0] * indices[1] if len(indices) == 2 else indices[0] if indices else 0
        made = CallResult((rows, call.inputs[0][1]), call.dtype(0))
        weights = call.find("weights")
        weighed = (CallResult((rows, 1), call.dtype(weights)),) if weights >= 0 else ()
        return (made, CallResult((rows,), "int32"), *weighed)

    def dims(self, call: Call) -> Dims:
        """The width passes; rows follow nothing and are needed whole."""
        if not call.inputs or len(call.inputs[0]) != 2 or not call.outputs or len(call.outputs[0]) != 2:
            return super().dims(call)
        others = tuple(Output((NO_LABEL,) * len(shape)) for shape in call.outputs[1:])
        passed = Output((NO_LABEL, 1))
        return Dims(((0, 1), *blank(call.inputs[1:])), (passed, *others), frozenset((0,)), linear=in_each(0))
