"""RMS norms of groups of channels with a gate, as state-space models and linear attention have them."""

from __future__ import annotations

import math

from triosim.core.registry import registered
from triosim.operators._call import Call, CallResult
from triosim.operators._dims import GRADIENT_ROLES, Dims, Output, Row, bounded, in_gradient, number
from triosim.operators._kind import Kind, Need, like, unmet
from triosim.operators._work import MovedBytes


@registered
class GatedNorm(Kind):
    """``result = norm(input silu(gate)) weight`` or ``norm(input) weight silu(gate)``; the gate may be left out.

    ``group_size`` channels are normed together, all of the last dimension where it is not said.  Kernels keep a row in
    registers and read it once (``mamba_ssm/ops/triton/layernorm_gated.py``, ``fla/modules/fused_norm_gate.py``).
    """

    names = """
        rms_norm_gated: input gate weight group_size
        """
    gradients = """
        rms_norm_gated_backward: grad_output input gate rstd weight group_size
        """
    weights = ("weight",)
    kernels = "rowwise"
    stream = "register_norm"

    def problem(self, call: Call) -> str:
        found = unmet(call, Need(("input",), 1, 5), Need(("weight",), 1, 1))
        x = call.shape("input") or (1,)
        if found or x[-1] % _group(call) == 0:
            return found
        return f"{call.full_name or call.name}: {_group(call)} channels of a group do not divide the {x[-1]} of a row"

    def results(self, call: Call) -> tuple[CallResult, ...] | None:
        at = call.find("input")
        x, dtype = call.inputs[at], call.dtype(at)
        if not call.backward:
            rows = (*x[:-1], x[-1] // _group(call))
            return (CallResult(x, dtype), CallResult(rows, "float32", saved=True))
        weight = call.find("weight")
        gate = like(call, "gate") or ()
        return (CallResult(x, dtype), *gate, CallResult(call.inputs[weight], call.dtype(weight)))

    def traffic(self, call: Call, counted: MovedBytes) -> MovedBytes:
        """Gradients of the weight are added up by a second kernel."""
        x = call.shape("input") or ()
        found = counted.by_rows(float(math.prod(x)), float(_group(call)), call.item(call.find("input")))
        return found._replace(kernels=2.0 if call.backward else 1.0)

    def dims(self, call: Call) -> Dims:
        """Labels of the rows and of the channels, whose groups follow them; one group alone is needed at once."""
        x = call.shape("input") or ()
        full: Row = tuple(range(len(x)))
        given = {"input": full, "gate": full, "rstd": full, "weight": full[-1:], **dict.fromkeys(GRADIENT_ROLES, full)}
        reads = {at: given[role] for at, role in enumerate(call.roles) if role in given}
        if call.backward:
            order = ["input", *(["gate"] if call.find("gate") >= 0 else []), "weight"]
        else:
            order = ["input", "rstd"]
        made = {at: given[role] for at, role in enumerate(order) if at < len(call.outputs)}
        ins, outs = bounded(call, reads, made)
        whole = frozenset(full[-1:]) if not x or x[-1] == _group(call) else frozenset[int]()
        return Dims(tuple(ins), tuple(map(Output, outs)), whole, linear=in_gradient(call))


def _group(call: Call) -> int:
    x = call.shape("input") or (1,)
    return max(number(call, "group_size", x[-1]) or 1, 1)
