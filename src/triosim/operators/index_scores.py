"""Scores by which each token chooses whom to attend to: small heads against one key of a token, summed by weights.

``fp8_mqa_logits`` of DeepGEMM (DeepSeek-AI, DeepSeek-V3.2-Exp, 2025): result[b, s, t] = sum over h of weights[b, s, h]
relu(query[b, s, h] . key[b, t]).  Scores of heads are summed up on the chip.  Later tokens are not scored.
"""

from __future__ import annotations

from triosim.core.registry import registered
from triosim.operators._call import Call, CallResult
from triosim.operators._dims import Dims, Output, bounded, in_each
from triosim.operators._kind import Kind, Need, unmet
from triosim.operators._work import ProductWork


@registered
class IndexScores(Kind):
    """``deep_gemm::mqa_logits`` of queries [b, s, h, d], keys [b, t, d] and weights [b, s, h]; scores are float32."""

    names = "mqa_logits: query key weights"
    kernels = "matrix"

    def problem(self, call: Call) -> str:
        return unmet(call, Need(("query",), 4, 4), Need(("key",), 3, 3), Need(("weights",), 3, 3))

    def results(self, call: Call) -> tuple[CallResult, ...]:
        batch, tokens = (call.shape("query") or (0, 0))[:2]
        return (CallResult((batch, tokens, (call.shape("key") or (0, 0))[1]), "float32"),)

    def work(self, call: Call) -> ProductWork:
        batch, tokens, heads, size = call.shape("query") or (0, 0, 0, 0)
        seen = ((call.shape("key") or (0, 0))[1] + 1) / 2
        return ProductWork(float(tokens * heads), seen, float(size), float(batch), 1.0)

    def flop(self, call: Call) -> float:
        one = self.work(call)
        return 2.0 * one.batch * one.m * one.n * one.k

    def dims(self, call: Call) -> Dims:
        query, key, weights = (call.find(role) for role in ("query", "key", "weights"))
        ins, outs = bounded(call, {query: (0, 1, 2, 3), key: (0, 4, 3), weights: (0, 1, 2)}, {0: (0, 1, 4)})
        return Dims(
            tuple(ins), tuple(map(Output, outs)), frozenset({3, 4}), linear=in_each(weights),
            names=("b", "s", "h", "d", "t"),
        )  # fmt: skip
