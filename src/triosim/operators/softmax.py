"""Softmax and its logarithm over one dimension."""

from __future__ import annotations

import math
from dataclasses import replace

from triosim.core.registry import registered
from triosim.operators._call import Call, CallResult
from triosim.operators._dims import GRADIENT_ROLES, Dims, aligned, in_gradient, listed
from triosim.operators._kind import Kind, like
from triosim.operators._work import MovedBytes


@registered
class Softmax(Kind):
    """``result = exp(self) / sum of exp(self)`` over the dimension ``dim``, or its logarithm."""

    names = """
        softmax log_softmax: self dim dtype
        _softmax _log_softmax: self dim half_to_float
        _safe_softmax special_softmax special_log_softmax: self dim dtype
        masked_softmax _masked_softmax: self mask dim mask_type
        _sparse_softmax _sparse_log_softmax: self dim half_to_float
        """
    gradients = """
        _softmax_backward_data _log_softmax_backward_data: grad_output output dim input_dtype
        """
    words = "softmax"
    kernels = "rowwise"
    stream = "softmax"

    def results(self, call: Call) -> tuple[CallResult, ...] | None:
        made = like(call, *GRADIENT_ROLES) if call.backward else like(call, "self", "input")
        if made and call.args.get("half_to_float") is True:
            return (made[0]._replace(dtype="float32"),)
        return made

    def traffic(self, call: Call, counted: MovedBytes) -> MovedBytes:
        shape = call.shape("input", "self") or (call.inputs[0] if call.inputs else ())
        dim = listed(call, "dim", len(shape), -1)
        if not shape or not dim:
            return counted
        return counted.by_rows(math.prod(shape), shape[dim[0]], call.item(0))

    def dims(self, call: Call) -> Dims:
        base = aligned(call)
        rank = max((len(s) for s in call.inputs), default=0)
        dim = listed(call, "dim", rank, -1)
        return replace(base, whole=frozenset(dim or ()), linear=in_gradient(call))
