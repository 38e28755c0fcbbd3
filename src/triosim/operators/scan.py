"""Scans along a sequence that keep a state of fixed size: state-space models and linear attention, chunk by chunk.

Each head has a state of ``state`` x ``head`` elements that every token decays and adds to (Mamba-2, Dao & Gu,
arXiv:2405.21060; lightning attention, whose decays are constants of its heads, arXiv:2405.17381), or first corrects
(gated delta rule, Yang et al., arXiv:2412.06464; Kimi Delta Attention, whose decays are of each element of a key,
arXiv:2510.26692).  Kernels multiply within chunks of ``chunk`` tokens as attention does, and pass states from chunk to
chunk (section 6 of the first, 3.3 of the third).
"""

from __future__ import annotations

from typing import Any

from triosim.core.registry import registered
from triosim.operators._call import Call, CallResult
from triosim.operators._dims import GRADIENT_ROLES, NO_LABEL, Dims, Output, Row, bounded, in_gradient, number
from triosim.operators._kind import Kind, Need, unmet
from triosim.operators._work import MovedBytes, ScanWork

_DELTA = "chunk_gated_delta_rule"
_KIMI = "chunk_kda"
_LIGHTNING = "chunk_lightning_attn"
_MAMBA = "split_conv1d_scan_combined"
_READS = {
    _MAMBA: ("zxbcdt", "conv1d_weight", "conv1d_bias", "dt_bias", "A_log", "D", "rmsnorm_weight"),
    _DELTA: ("query", "key", "value", "g", "beta"),
    _KIMI: ("query", "key", "value", "g", "beta"),
    _LIGHTNING: ("query", "key", "value"),
}
"""Roles in the order of the gradients."""
KERNELS = {
    (_MAMBA, False): 9.0, (_MAMBA, True): 27.0, (_DELTA, False): 8.0, (_DELTA, True): 12.0, (_KIMI, False): 8.0,
    (_KIMI, True): 12.0, (_LIGHTNING, False): 2.0, (_LIGHTNING, True): 4.0,
}  # fmt: skip
"""Kernels of a call, with a norm, by its name and whether it is a backward."""


@registered
class Scan(Kind):
    """``mamba_ssm::split_conv1d_scan_combined``, and of ``fla`` ``chunk_gated_delta_rule``, ``chunk_kda`` and
    ``chunk_lightning_attn``.

    The first is all of a Mamba-2 block between its products: it reads gates, inputs, B, C and steps side by side,
    zxbcdt [b, l, h p + h p + 2 g n + h], convolves inputs, B and C, scans, and gates the result, which is normed in g
    groups where there is a weight for it.  ``head_size`` is p, ``state_size`` n.  With ``recompute_output`` its
    backward gives the result again.  The second reads queries and keys [b, l, g, n], values [b, l, h, p], decays g and
    rates beta [b, l, h]; h is a multiple of g.  The third's decays are [b, l, h, n]; the fourth has none to read.
    """

    names = f"""
        {_MAMBA}: {" ".join(_READS[_MAMBA])} chunk_size head_size state_size
        {_DELTA} {_KIMI}: {" ".join(_READS[_DELTA])} chunk_size
        {_LIGHTNING}: {" ".join(_READS[_LIGHTNING])} chunk_size
        """
    gradients = f"""
        {_MAMBA}_backward: grad_output {" ".join(_READS[_MAMBA])} out_x rstd chunk_size head_size state_size
          recompute_output
        {_DELTA}_backward: grad_output {" ".join(_READS[_DELTA])} A chunk_size
        {_KIMI}_backward: grad_output {" ".join(_READS[_KIMI])} A Aqk chunk_size
        {_LIGHTNING}_backward: grad_output {" ".join(_READS[_LIGHTNING])} chunk_size
        """
    weights = ("conv1d_weight", "conv1d_bias", "dt_bias", "A_log", "D", "rmsnorm_weight")
    kernels = "scan"

    def problem(self, call: Call) -> str:
        name = call.full_name or call.name
        if (number(call, "chunk_size") or 0) < 1:
            return f"{name} does not say how long its chunks are (chunk_size)"
        if call.name != _MAMBA:
            return unmet(call, Need(("key",), 4, 4), Need(("value",), 4, 4))
        found = unmet(call, Need(("zxbcdt",), 3, 3), Need(("A_log",), 1, 1), Need(("conv1d_weight",), 3, 3))
        sizes = number(call, "head_size") or 0, number(call, "state_size") or 0
        if found or (min(sizes) > 0 and _channels_of_groups(call) % (2 * sizes[1]) == 0 < _channels_of_groups(call)):
            return found
        shape = list(call.shape("zxbcdt") or ())
        return f"{name}: {shape} are no channels of heads of {sizes[0]} and groups of {sizes[1]}"

    def results(self, call: Call) -> tuple[CallResult, ...] | None:
        """Beside the result what its gradient reads: of Mamba-2 the result before the gate and deviations; of the delta
        rules normed queries and keys, sums of decays, inverses of chunks and perhaps products of their pairs."""
        if call.backward:
            found = [at for at in map(call.find, _READS[call.name]) if at >= 0]
            again = [call.find(*GRADIENT_ROLES)] if call.args.get("recompute_output") else []
            return tuple(CallResult(call.inputs[at], call.dtype(at)) for at in (*found, *again))
        at = call.find("zxbcdt", "value")
        dtype = call.dtype(at)
        if call.name == _MAMBA:
            batch, length, _ = call.inputs[at]
            one = CallResult((batch, length, _inner(call)), dtype)
            rstd = CallResult((batch, length, _groups(call)), "float32", saved=True)
            return (one, one._replace(saved=True), *((rstd,) if call.find("rmsnorm_weight") >= 0 else ()))
        if call.name == _LIGHTNING:
            return (CallResult(call.inputs[at], dtype),)
        key, rows = call.find("key"), call.inputs[at][:3]
        normed = CallResult(call.inputs[key], call.dtype(key), saved=True)
        inverses = CallResult((*rows, number(call, "chunk_size") or 1), dtype, saved=True)
        sums = CallResult(call.shape("g") or rows, "float32", saved=True)
        of_chunks = (inverses,) * (2 if call.name == _KIMI else 1)
        return (CallResult(call.inputs[at], dtype), normed, normed, sums, *of_chunks)

    def flop(self, call: Call) -> float:
        """Products with states and of pairs within a chunk that the mask leaves, and the convolution; twice that and
        what is computed again in the backward, where each product has two gradients."""
        one = self.work(call)
        return forward_flop(one) * (2.0 if call.backward else 1.0) + self.repeated(call)

    def repeated(self, call: Call) -> float:
        """What the forward did not keep: the convolution, states, products of pairs, what corrects the values."""
        return repeated_flop(self.work(call)) if call.backward else 0.0

    def traffic(self, call: Call, counted: MovedBytes) -> MovedBytes:
        """A scan is many kernels: those that :mod:`triosim.kernels.physical.scan` lists."""
        return counted._replace(kernels=KERNELS[call.name, call.backward])

    def work(self, call: Call) -> ScanWork:
        chunk = number(call, "chunk_size") or 1
        if call.name == _MAMBA:
            batch, length, _ = call.shape("zxbcdt") or (0, 0, 0)
            sizes = [
                batch, length, _heads(call), _groups(call), number(call, "state_size") or 1,
                number(call, "head_size") or 1, min(chunk, max(length, 1)), (call.shape("conv1d_weight") or (0,))[-1],
            ]  # fmt: skip
        else:
            batch, length, groups, state = call.shape("key") or (0, 0, 0, 0)
            heads, head = (call.shape("value") or (0, 0))[-2:]
            sizes = [batch, length, heads, groups, state, head, min(chunk, max(length, 1)), 0]
        corrected = call.name in (_DELTA, _KIMI)
        flags: list[bool] = [corrected, call.backward, call.find("rmsnorm_weight") >= 0, False, call.name == _KIMI]
        row: list[Any] = [*map(float, sizes), *flags]
        return ScanWork(*row)

    def dims(self, call: Call) -> Dims:
        """Labels b l h and of all but Mamba-2 n p: all channels of Mamba-2 follow the heads, and so do groups, whose
        heads stay together, so that heads of one group alone are needed at once, as is the sequence."""
        b, l, h, n, p = range(5)
        rows, whole = (b, l, h), {l}
        given: dict[str, Row] = {
            **dict.fromkeys(("zxbcdt", "out_x", "rstd"), rows), "conv1d_weight": (h, NO_LABEL, NO_LABEL),
            **dict.fromkeys(("conv1d_bias", "dt_bias", "A_log", "D", "rmsnorm_weight"), (h,)),
            **dict.fromkeys(GRADIENT_ROLES, rows),
        }  # fmt: skip
        made: list[Row] = [rows] * 3
        if call.name != _MAMBA:
            wide, key = (b, l, h, p), (b, l, h, n)
            given = {
                **dict.fromkeys(("value", *GRADIENT_ROLES), wide), **dict.fromkeys(("query", "key"), key),
                "g": key if call.name == _KIMI else rows, "beta": rows,
                **dict.fromkeys(("A", "Aqk"), (*rows, NO_LABEL)),
            }  # fmt: skip
            made, whole = [wide, key, key, given["g"], given["A"], given["A"]], {l, n, p}
        if (call.shape("key") or (0, 0, 2))[2] == 1 or (call.name == _MAMBA and _groups(call) == 1):
            whole.add(h)
        if call.backward:
            made = [given[role] for role in _READS[call.name] if role in call.roles] + [rows]
        reads = {at: given[role] for at, role in enumerate(call.roles) if role in given}
        ins, outs = bounded(call, reads, dict(enumerate(made[: len(call.outputs)])))
        names = ("b", "l", "h", "n", "p")
        return Dims(tuple(ins), tuple(map(Output, outs)), frozenset(whole), linear=in_gradient(call), names=names)


def forward_flop(one: ScanWork) -> float:
    """FLOP of a forward scan.

    Mamba-2: the convolution, B C' of each group and its product with x for the pairs of a chunk, states from x and B,
    results from states and C.  Delta rule: keys with keys, the inverse by forward substitution, corrected keys and
    values, queries with keys, results; states are read twice and written once.
    """
    tokens, pairs = one.sequences * one.length, (one.chunk + 1) / 2
    if not one.delta:
        products = one.groups * one.state * pairs + one.heads * one.head * (pairs + 2 * one.state)
        return 2 * tokens * (products + _of_window(one))
    within = pairs * (3 * one.state + 2 * one.head) + one.chunk**2 / 6
    return 2 * tokens * one.heads * (3 * one.state * one.head + within)


def repeated_flop(one: ScanWork) -> float:
    """FLOP that a backward spends on what the forward had."""
    tokens, pairs = one.sequences * one.length, (one.chunk + 1) / 2
    if not one.delta:
        products = one.groups * one.state * pairs + one.heads * one.head * (pairs + one.state)
        return 2 * tokens * (products + _of_window(one))
    return 2 * tokens * one.heads * (2 * one.state * one.head + pairs * (2 * one.state + one.head))


def _of_window(one: ScanWork) -> float:
    return one.window * (one.heads * one.head + 2 * one.groups * one.state)


def grouped_channels(call: Call) -> dict[str, tuple[int, int]]:
    """Roles of what a scan of Mamba or Mamba-2 reads that has B and C among its channels: how many channels, of how
    many groups."""
    if call.kind == "selective-scan":
        return {role: ((call.shape(role) or (0,))[-1], 1) for role in ("B", "C")}
    if call.name != _MAMBA:
        return {}
    return dict.fromkeys(("zxbcdt", "conv1d_weight", "conv1d_bias"), (_channels_of_groups(call), _groups(call)))


def _heads(call: Call) -> int:
    return (call.shape("A_log") or (0,))[0]


def _inner(call: Call) -> int:
    return _heads(call) * (number(call, "head_size") or 0)


def _channels_of_groups(call: Call) -> int:
    """Channels of B and C."""
    return (call.shape("zxbcdt") or (0,))[-1] - 2 * _inner(call) - _heads(call)


def _groups(call: Call) -> int:
    return _channels_of_groups(call) // (2 * max(number(call, "state_size") or 1, 1))
