"""Short causal convolutions of each channel along the sequence, with their activation (``causal_conv1d``)."""

from __future__ import annotations

import math

from triosim.core.registry import registered
from triosim.operators._call import Call, CallResult
from triosim.operators._dims import GRADIENT_ROLES, NO_LABEL, Dims, Output, Row, bounded, in_gradient
from triosim.operators._kind import Kind, Need, gradients_of, like, unmet
from triosim.operators._work import MovedBytes


@registered
class CausalConvolution(Kind):
    """``result[b, l, c] = silu(bias[c] + sum_w weight[c, 1, w] input[b, l - w, c])``: nothing is padded or cut off."""

    names = """
        causal_conv1d: input weight bias activation
        """
    gradients = """
        causal_conv1d_backward: grad_output input weight bias activation
        """
    weights = ("weight", "bias")
    kernels = "elementwise"
    stream = "elementwise"

    def problem(self, call: Call) -> str:
        return unmet(call, Need(("input",), 3, 3), Need(("weight",), 3, 3))

    def results(self, call: Call) -> tuple[CallResult, ...] | None:
        return gradients_of(call, ("input",), ("weight",), ("bias",)) if call.backward else like(call, "input")

    def flop(self, call: Call) -> float:
        """A multiply-add for each place of the window; the backward computes the result of the window again, for the
        activation's derivative, and has two gradients."""
        once = 2.0 * math.prod(call.shape("input") or ()) * (call.shape("weight") or (1,))[-1]
        return once * (3.0 if call.backward else 1.0)

    def repeated(self, call: Call) -> float:
        return self.flop(call) / 3.0 if call.backward else 0.0

    def traffic(self, call: Call, counted: MovedBytes) -> MovedBytes:
        return counted

    def dims(self, call: Call) -> Dims:
        """Labels b l c; the sequence is needed at once."""
        b, l, c = range(3)
        wide: Row = (b, l, c)
        weight: Row = (c, NO_LABEL, NO_LABEL)
        given = {"input": wide, "weight": weight, "bias": (c,), **dict.fromkeys(GRADIENT_ROLES, wide)}
        reads = {at: given[role] for at, role in enumerate(call.roles) if role in given}
        made = {0: wide, 1: weight, 2: (c,)} if call.backward else {0: wide}
        made = {at: row for at, row in made.items() if at < len(call.outputs)}
        ins, outs = bounded(call, reads, made)
        whole = frozenset((l,))
        return Dims(tuple(ins), tuple(map(Output, outs)), whole, linear=in_gradient(call), names=("b", "l", "c"))
