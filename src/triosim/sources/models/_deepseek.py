"""DeepSeek-V2 and V3: latent attention, dense first blocks, many small experts beside shared ones.

Sources: Liu et al., arXiv:2405.04434 (V2) and arXiv:2412.19437 (V3).  What predicts further tokens in training (MTP,
section 2.2 of the latter) is a block each that reads the state before it beside the embedding of the token before; the
embedding and the head are the model's own.  Names are those of the published weights, where they are the last blocks.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any

from triosim.core.dataclass import dataclass
from triosim.sources.models._experts import ExpertRouter, Experts
from triosim.sources.models._family import Count
from triosim.sources.models._latent import LatentAttention
from triosim.sources.models._llama_like import LlamaLike
from triosim.sources.models._net import Net
from triosim.sources.models._parts import FeedForward, Rotary
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights
from triosim.trace.tables import Category


def with_dense_first(table: dict[str, Any]) -> dict[str, Any]:
    """A configuration that lists dense blocks and behind them sparse ones, with their number in place of the list."""
    kinds = table.get("mlp_layer_types")
    if isinstance(kinds, list) and kinds:
        first = kinds.index("sparse") if "sparse" in kinds else len(kinds)
        if kinds == ["dense"] * first + ["sparse"] * (len(kinds) - first):
            rest = {key: value for key, value in table.items() if key != "mlp_layer_types"}
            return {**rest, "first_k_dense_replace": first}
    return table


@dataclass(frozen=True)
class DeepSeekExperts(LlamaLike):
    """Dense first blocks, routed experts beside shared ones, and blocks that predict further tokens."""

    n_routed_experts: int = 256
    n_shared_experts: int = 1
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 2048
    first_k_dense_replace: Count = 1
    n_group: int = 1
    topk_group: int = 1
    num_nextn_predict_layers: int = 0

    def problem(self) -> str:
        return super().problem() or self._router.problem()

    @property
    @abstractmethod
    def _router(self) -> ExpertRouter:
        """What chooses the experts."""

    def feed_forward(self, layer: int) -> Any:
        if layer < self.first_k_dense_replace:
            return super().feed_forward(layer)
        kind, shared = self.layout.kind, self.moe_intermediate_size * self.n_shared_experts
        return Experts(
            self._router, self.moe_intermediate_size, f"{kind}MoE", f"{kind}Experts", router_first=False,
            shared=FeedForward(self.hidden_size, shared, f"{kind}MLP"), shared_name="shared_experts",
        )  # fmt: skip

    def untrained(self) -> DeepSeekExperts:
        return replace(self, num_nextn_predict_layers=0)

    def weights(self) -> Weights:
        w, body = super().weights(), self.layout.body
        for i in range(self.depth, self.depth + self.num_nextn_predict_layers):
            at = f"{body}.{self.layout.blocks}.{i}"
            for name in ("enorm", "hnorm"):
                self.norm.weights(w, f"{at}.{name}")
            w.linear(f"{at}.eh_proj", 2 * self.width, self.width, bias=False)
            self.attention(i).weights(w, f"{at}.{self.layout.attention}")
            self.feed_forward(i).weights(w, f"{at}.{self.layout.feed_forward}")
            for name in (*self.layout.norms, "shared_head.norm"):
                self.norm.weights(w, f"{at}.{name}")
        return w

    def score(self, net: Net, x: Tensor) -> Tensor:
        scores = super().score(net, x)
        for i in range(self.depth, self.depth + self.num_nextn_predict_layers):
            x, further = self._further(net, x, i)
            net.further.append(further)
        return scores

    def _further(self, net: Net, x: Tensor, i: int) -> tuple[Tensor, Tensor]:
        """The state of block ``i``, whose tokens are read one place further on, and its scores."""
        kind, body = self.layout.kind, self.layout.body
        tokens = net.tensor(x.shape[:2], "int64", Category.INPUT)
        with net.module(body, f"{kind}{self.layout.model}"):
            rotation = self.rotaries[0](net, tokens)
            with net.module(f"{self.layout.blocks}.{i}", f"{kind}{self.layout.block}"):
                y = net.embedding("embed_tokens", tokens, tied=f"{body}.{self.layout.embedding}.weight")
                y = net.cat((self.norm(net, "enorm", y), self.norm(net, "hnorm", x)), 2)
                x = self._block(net, net.linear("eh_proj", y), i, rotation)
                y = self.norm(net, "shared_head.norm", x)
        return x, super().score(net, y)

    def loss(self, net: Net, scores: Tensor, labels: Tensor) -> Tensor:
        total = super().loss(net, scores, labels)
        for further in net.further:
            own = net.tensor(labels.shape, labels.dtype, Category.LABEL)
            total = net.add(total, net.scaled(super().loss(net, further, own)))
        return total


@dataclass(frozen=True)
class SigmoidExperts(DeepSeekExperts):
    """Experts as DeepSeek-V3 chooses them: scored by a sigmoid, corrected, from the best groups."""

    norm_topk_prob: bool = True

    @property
    def _router(self) -> ExpertRouter:
        return ExpertRouter(
            self.hidden_size, self.n_routed_experts, self.num_experts_per_tok, f"{self.layout.kind}TopkRouter",
            score="sigmoid", normalised=self.norm_topk_prob, full_precision=True, groups=self.n_group,
            best_groups=self.topk_group, correction=True, scaled=True,
        )  # fmt: skip


@dataclass(frozen=True)
class LatentLlama(LlamaLike):
    """A Llama with latent attention."""

    kv_lora_rank: int = 512
    q_lora_rank: int = 0
    qk_nope_head_dim: int = 128
    qk_rope_head_dim: int = 64
    v_head_dim: int = 128

    def heads_problem(self) -> str:
        turned = self.qk_rope_head_dim
        return "" if turned % 2 == 0 else f"qk_rope_head_dim {turned} has no halves to rotate"

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        return (Rotary(self.qk_rope_head_dim, f"{self.layout.kind}RotaryEmbedding"),)

    def attention(self, layer: int) -> Any:
        return LatentAttention(
            self.hidden_size, self.num_attention_heads, self.kv_lora_rank, self.q_lora_rank, self.qk_nope_head_dim,
            self.qk_rope_head_dim, self.v_head_dim, f"{self.layout.kind}Attention", f"{self.layout.kind}RMSNorm",
        )  # fmt: skip
