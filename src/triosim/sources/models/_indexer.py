"""Attention to tokens that an indexer chooses: small heads score all, the best are attended to (DeepSeek-V3.2-Exp).

Its scores are one kernel, as in ``deep_gemm``; ``transformers`` has small operators and a mask of all scores in its
place.  What it chooses has no gradient; its own loss, by which DeepSeek trained it, is not part of the step.
"""

from __future__ import annotations

from typing import Any

from triosim.core.dataclass import dataclass
from triosim.sources.models._deepseek import LatentLlama
from triosim.sources.models._latent import LatentAttention
from triosim.sources.models._net import Net
from triosim.sources.models._parts import Rotation, rotate
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights


@dataclass(frozen=True)
class IndexedLatentAttention(LatentAttention):
    """Latent attention to the best ``chosen`` tokens.

    Attributes:
        chosen: how many tokens a token attends to.
        index_heads, index_size: of the indexer; no heads where an earlier block's choice is taken.
        indexer_kind: class of its module.
    """

    chosen: int = 2048
    index_heads: int = 64
    index_size: int = 128
    indexer_kind: str = "DeepseekV32Indexer"

    def weights(self, w: Weights, at: str) -> None:
        """Declare its parameters."""
        super().weights(w, at)
        if self.index_heads:
            w.linear(f"{at}.indexer.wq_b", self.query_rank, self.index_heads * self.index_size, bias=False)
            w.linear(f"{at}.indexer.wk", self.width, self.index_size, bias=False)
            w.norm(f"{at}.indexer.k_norm", self.index_size, bias=True)
            w.linear(f"{at}.indexer.weights_proj", self.width, self.index_heads, bias=False)

    def seen(self, net: Net, x: Tensor, latent: Tensor, rotation: Rotation | None) -> int:
        """How many tokens are attended to, chosen by the latent queries; 0 for all."""
        if self.index_heads:
            assert rotation is not None
            with net.module("indexer", self.indexer_kind):
                self._choose(net, x, latent, rotation)
        return self.chosen

    def _choose(self, net: Net, x: Tensor, latent: Tensor, rotation: Rotation) -> None:
        shape, rest = x.shape[:2], self.index_size - self.rotated
        q = net.view(net.linear("wq_b", latent), (*shape, self.index_heads, self.index_size))
        k = net.unsqueeze(net.layer_norm("k_norm", net.linear("wk", x)), 2)
        (q_turn, q_pass), (k_turn, k_pass) = (net.split(part, [self.rotated, rest]) for part in (q, k))
        cos, sin = (net.unsqueeze(angle, 2) for angle in rotation)
        q_turn, k_turn = rotate(net, (q_turn, k_turn), cos, sin)
        q, k = net.cat((q_turn, q_pass), 3), net.cat((k_turn, k_pass), 3)
        weights = net.scaled(net.to(net.linear("weights_proj", x), "float32"))
        scores, count = net.tensor((*shape, shape[1]), "float32"), min(self.chosen, int(shape[1]))
        roles = ("query", "key", "weights")
        k = net.view(k, (*shape, self.index_size))
        net.operator("deep_gemm::mqa_logits", roles, (q, k, weights), (scores,))
        best, places = net.tensor((*shape, count), "float32"), net.tensor((*shape, count), "int64")
        net.operator("aten::topk", ("self",), (scores,), (best, places), {"k": count, "dim": -1})


@dataclass(frozen=True)
class IndexedLlama(LatentLlama):
    """Whose latent attention is to tokens that an indexer chooses."""

    q_lora_rank: int = 1536
    index_topk: int = 2048
    index_head_dim: int = 128
    index_n_heads: int = 64

    def problem(self) -> str:
        wide = self.qk_rope_head_dim > self.index_head_dim
        wrong = f"qk_rope_head_dim {self.qk_rope_head_dim} is more than the {self.index_head_dim} of index_head_dim"
        return super().problem() or (wrong if wide else "")

    def indexes(self, layer: int) -> bool:
        """Whether a block chooses by itself."""
        return True

    def attention(self, layer: int) -> Any:
        heads = self.index_n_heads if self.indexes(layer) else 0
        return IndexedLatentAttention(
            **vars(super().attention(layer)), chosen=self.index_topk, index_heads=heads,
            index_size=self.index_head_dim, indexer_kind=f"{self.layout.kind}Indexer",
        )  # fmt: skip
