"""Mamba's selective scan (Gu & Dao, arXiv:2312.00752): each channel has a state that every token decays and adds to.

``h[l] = exp(delta[l] A) h[l - 1] + delta[l] u[l] B[l]`` and ``y[l] = C[l] h[l] + D u[l]``, with ``state`` elements in
h, A, B and C; decays differ by channel and element, so that nothing of it is a matrix product as in Mamba-2
(:mod:`triosim.operators.scan`).
"""

from __future__ import annotations

from typing import Any

from triosim.core.registry import registered
from triosim.operators._call import Call, CallResult
from triosim.operators._dims import GRADIENT_ROLES, Dims, Output, Row, bounded, in_gradient
from triosim.operators._kind import Kind, Need, unmet
from triosim.operators._work import MovedBytes, ScanWork

_READS = ("u", "delta", "A_log", "B", "C", "D", "z", "delta_bias")
"""Roles in the order of the gradients."""
CHUNK = 2048
"""Tokens between the states that are kept for the backward (``SelectiveScanFn``, ``n_chunks``)."""
KERNELS = {False: 8.0, True: 12.0}
"""Kernels of a call by whether it is a backward: the scan; A of its logarithm (copied to float32, exp, neg), B and C
put in order, D and the bias copied to float32; in the backward gradients of all these, and four that are zeroed."""


@registered
class SelectiveScan(Kind):
    """``mamba_ssm::selective_scan`` of u, delta, z [b, l, d], A_log [d, n], B, C [b, l, n], D, delta_bias [d].

    What has no z is not gated.  ``delta`` passes through a softplus after its bias.  With ``recompute_output`` the
    backward gives the result again.  Sources: ``mamba_ssm/ops/selective_scan_interface.py``,
    ``csrc/selective_scan/selective_scan_fwd_kernel.cuh`` and ``selective_scan_bwd_kernel.cuh``.
    """

    names = f"""
        selective_scan selective_scan_fn: {" ".join(_READS)}
        """
    gradients = f"""
        selective_scan_backward: grad_output {" ".join(_READS)} out_x states recompute_output
        """
    weights = ("A_log", "D", "delta_bias")
    kernels = "scan"

    def problem(self, call: Call) -> str:
        wide, narrow = Need(("u",), 3, 3), Need(("B",), 3, 3)
        found = unmet(call, wide, Need(("delta",), 3, 3), Need(("A_log",), 2, 2), narrow, Need(("C",), 3, 3))
        if found:
            return found
        u, a, b = (call.shape(role) or () for role in ("u", "A_log", "B"))
        if u[-1] == a[0] and a[1] == b[-1]:
            return ""
        return f"{call.full_name or call.name}: A_log {list(a)} is not of the {u[-1]} channels and the state of {b[-1]}"

    def results(self, call: Call) -> tuple[CallResult, ...] | None:
        """Beside the result what its gradient reads: the result before the gate, where there is one, and float32 decays
        and states at the ends of chunks."""
        at = call.find("u")
        one = CallResult(call.inputs[at], call.dtype(at))
        if call.backward:
            found = [at for at in map(call.find, _READS) if at >= 0]
            again = [one] if call.args.get("recompute_output") else []
            return (*(CallResult(call.inputs[at], call.dtype(at)) for at in found), *again)
        batch, length, channels = call.inputs[at]
        state = (call.shape("A_log") or (0, 0))[1]
        states = CallResult((batch, channels, -(-length // CHUNK), 2 * state), "float32", saved=True)
        return (one, *((one._replace(saved=True),) if call.find("z") >= 0 else ()), states)

    def flop(self, call: Call) -> float:
        """Products and sums, without exponentials; twice those in the backward, where each has two gradients, and what
        it computes again."""
        one = self.work(call)
        return forward_flop(one) * (2.0 if call.backward else 1.0) + self.repeated(call)

    def repeated(self, call: Call) -> float:
        """States, which the forward did not keep."""
        return repeated_flop(self.work(call)) if call.backward else 0.0

    def traffic(self, call: Call, counted: MovedBytes) -> MovedBytes:
        return counted._replace(kernels=KERNELS[call.backward])

    def work(self, call: Call) -> ScanWork:
        batch, length, channels = call.shape("u") or (0, 0, 0)
        state = (call.shape("A_log") or (0, 1))[1]
        sizes = [batch, length, channels, 1, state, 1, min(CHUNK, max(length, 1)), 0]
        flags: list[bool] = [False, call.backward, False, True, False]
        row: list[Any] = [*map(float, sizes), *flags]
        return ScanWork(*row)

    def dims(self, call: Call) -> Dims:
        """Labels b l d n; the sequence and the state are needed at once."""
        b, l, d, n = range(4)
        wide, narrow, one = (b, l, d), (b, l, n), (d,)
        given: dict[str, Row] = {
            **dict.fromkeys(("u", "delta", "z", "out_x", *GRADIENT_ROLES), wide), "A_log": (d, n),
            **dict.fromkeys(("B", "C"), narrow), "D": one, "delta_bias": one, "states": (b, d, -1, -1),
        }  # fmt: skip
        if call.backward:
            made = [*(given[role] for role in _READS if role in call.roles), wide]
        else:
            made = [wide, *([wide] if call.find("z") >= 0 else []), given["states"]]
        reads = {at: given[role] for at, role in enumerate(call.roles) if role in given}
        ins, outs = bounded(call, reads, dict(enumerate(made[: len(call.outputs)])))
        whole, names = frozenset((l, n)), ("b", "l", "d", "n")
        return Dims(tuple(ins), tuple(map(Output, outs)), whole, linear=in_gradient(call), names=names)


def forward_flop(one: ScanWork) -> float:
    """FLOP of a forward scan: of each element of a state its decay, what is added (u delta times B), both steps of the
    recurrence and of the result; of each channel delta u and D u, which is added."""
    return one.sequences * one.length * one.heads * (6 * one.state + 3)


def repeated_flop(one: ScanWork) -> float:
    """FLOP that a backward spends on states that the forward had."""
    return one.sequences * one.length * one.heads * (4 * one.state + 1)
