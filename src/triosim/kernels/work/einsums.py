"""Matrix products, convolutions, attention and experts as einsums: the loops that a design runs for one call."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from triosim.accelerator.problem import Problem, convolution, einsum
from triosim.accelerator.problem import gemm as product
from triosim.kernels.work.attention import AttentionCalls
from triosim.kernels.work.convolution import ConvolutionCalls
from triosim.kernels.work.gemm import Gemm
from triosim.kernels.work.moe import ExpertCalls
from triosim.kernels.work.scan import ScanCalls

Einsums = list[tuple[Problem, float]]
"""Einsums of one call, and how often each runs."""

_AFTER_SCORES = "Outputs[B,H,J,Q,D] += Scores[B,H,J,Q,K] * Values[B,H,K,D]"
_SCORES = "Scores[B,H,J,Q,K] += Queries[B,H,J,Q,D] * Keys[B,H,K,D]"
_TO_KEYS = "Gradient[B,H,K,D] += Scores[B,H,J,Q,K] * Outputs[B,H,J,Q,D]"
"""Gradients of keys and of values: products with scores or their gradient, summed over queries."""


def _whole(value: float) -> int:
    return max(math.ceil(value - 1e-9), 1)


def of_gemm(work: Gemm, times: NDArray[np.float64]) -> list[Einsums]:
    """Products, one row each.

    Args:
        work: the products.
        times: how many of that size each call is.
    """
    rows = zip(work.m.tolist(), work.n.tolist(), work.k.tolist(), work.batch.tolist(), times.tolist(), strict=True)
    return [
        [(product(m=_whole(m), n=_whole(n), k=_whole(k), batch=_whole(batch)), count)]
        for m, n, k, batch, count in rows
    ]  # fmt: skip


def of_convolution(work: ConvolutionCalls) -> list[Einsums]:
    """The passes of each call: forward, gradient of the input, gradient of the weight.

    The stride of all dimensions together is taken to be the same in each of two.
    """
    found = []
    for row in range(len(work)):
        groups = _whole(work.groups[row])
        flat = work.out_rows[row] == 1 and work.kernel_rows[row] == 1
        stride = float(work.stride[row])
        each = max(round(stride if flat else math.sqrt(stride)), 1)
        passes = (("", work.forward[row]), ("input", work.data_gradient[row]), ("weight", work.weight_gradient[row]))
        found.append([
            (convolution(
                f"convolution {gradient}".strip(), n=_whole(work.images[row]), c=groups * _whole(work.in_channels[row]),
                m=groups * _whole(work.out_channels[row]), p=_whole(work.out_rows[row]),
                q=_whole(work.out_columns[row]), r=_whole(work.kernel_rows[row]), s=_whole(work.kernel_columns[row]),
                stride=(1 if flat else each, each), groups=groups, gradient=gradient,
            ), 1.0)
            for gradient, there in passes if there
        ])  # fmt: skip
    return found


def of_attention(work: AttentionCalls) -> list[Einsums]:
    """The products of each call over as many keys as a query sees on average: two forward, five backward."""
    seen = work.seen()
    found = []
    for row in range(len(work)):
        kv_heads = _whole(work.kv_heads[row])
        sizes = {
            "B": _whole(work.batch[row]), "H": kv_heads, "J": _whole(work.heads[row] / kv_heads),
            "Q": _whole(work.queries[row]), "K": _whole(seen[row]),
        }  # fmt: skip
        key, value = ({**sizes, "D": _whole(width[row])} for width in (work.head, work.head_v))
        if work.backward[row]:
            # scores again and the gradient of the scores; of queries; of keys; of values
            passes = [(_SCORES, key), (_SCORES, value), (_AFTER_SCORES, key), (_TO_KEYS, key), (_TO_KEYS, value)]
        else:
            passes = [(_SCORES, key), (_AFTER_SCORES, value)]
        found.append([(einsum(text, bounds, "attention"), 1.0) for text, bounds in passes])
    return found


def of_experts(work: ExpertCalls, times: NDArray[np.float64]) -> list[Einsums]:
    """The products of the experts of one device, each with as many tokens as the mean.

    Args:
        work: the experts.
        times: how often each call runs.
    """
    found = []
    local, pairs = work.local(), work.pairs() * work.share()
    for row in range(len(work)):
        experts = _whole(local[row])
        tokens = _whole(pairs[row] / experts)
        hidden, inner, count = _whole(work.hidden[row]), _whole(work.inner[row]), float(times[row])
        into = product(m=tokens, n=inner, k=hidden, batch=experts)
        out = product(m=tokens, n=hidden, k=inner, batch=experts)
        found.append([(into, count * (2.0 if work.gated[row] else 1.0)), (out, count)])
    return found


def of_scans(work: ScanCalls) -> list[Einsums]:
    """Each call as products of a chunk with its state, as often as their FLOP go into those of the call.

    All chunks are side by side, though their states wait for each other.
    """
    found = []
    flop, of_states = work.flop(), 2 * work.tokens() * work.heads * work.head * work.state
    for row in range(len(work)):
        length, state = _whole(work.chunk[row]), _whole(work.state[row])
        batch = _whole(work.sequences[row] * work.chunks()[row] * work.heads[row])
        one = product(m=length, n=_whole(work.head[row]), k=state, batch=batch)
        if work.selective[row]:  # each channel by itself: an operation for each token and channel at once
            one = product(m=_whole(work.tokens()[row]), n=_whole(work.heads[row]), k=1)
        found.append([(one, float(flop[row] / of_states[row]) * (state if work.selective[row] else 1))])
    return found


def einsums_of(name: str, work: object, times: NDArray[np.float64]) -> list[Einsums]:
    """Einsums of operators of one kind, one row each."""
    if isinstance(work, Gemm):
        return of_gemm(work, times)
    if isinstance(work, ConvolutionCalls):
        return of_convolution(work)
    if isinstance(work, AttentionCalls):
        return of_attention(work)
    if isinstance(work, ScanCalls):
        return of_scans(work)
    assert isinstance(work, ExpertCalls), name
    return of_experts(work, times)
