"""Cohere's mixture of experts: Command A's blocks, experts in place of the feed-forward part (Cohere, 2026).

The first blocks may be dense; with ``prefix_dense_sliding_window_pattern`` 1 they see all tokens and know positions,
which of the others only those with a window do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._deepseek import with_dense_first
from triosim.sources.models._experts import ExpertRouter, Experts
from triosim.sources.models._family import Count
from triosim.sources.models._llama_like import BiasedAttention, MostlyWindowed
from triosim.sources.models._net import Net
from triosim.sources.models._parts import FeedForward, Norm, SelfAttention
from triosim.sources.models._tape import Tensor


@registered
@dataclass(frozen=True)
class Cohere2MoE(BiasedAttention, MostlyWindowed):
    """Configuration, named as in Hugging Face's ``config.json``; ``rms_norm``: norms have no mean, which files say by
    an ``rms_norm_eps``."""

    head_dim: int = 128
    sliding_window: int = 4096
    tie_word_embeddings: bool = True
    num_experts: int = 8
    num_experts_per_tok: int = 2
    num_shared_experts: Count = 0
    shared_expert_combination_strategy: str = "average"
    expert_selection_fn: str = "softmax"
    norm_topk_prob: bool = True
    first_k_dense_replace: Count = 0
    prefix_dense_intermediate_size: int = 0
    prefix_dense_sliding_window_pattern: int = 1
    rms_norm: bool = False

    layout: ClassVar = Layout("Cohere2Moe", norms=("input_layernorm",), residual="parallel")
    model_types: ClassVar = ("cohere2_moe",)
    fixed: ClassVar = {"hidden_act": "silu", "attention_dropout": (0.0, 0)}

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        return with_dense_first({"rms_norm": table.get("rms_norm_eps") is not None, **table})

    def problem(self) -> str:
        named = {
            "shared_expert_combination_strategy": ("sum", "average"),
            "expert_selection_fn": ("softmax", "sigmoid"),
        }
        wrong = [f"{key} is {' or '.join(one)}" for key, one in named.items() if getattr(self, key) not in one]
        return super().problem() or self._router.problem() or "".join(wrong[:1])

    @property
    def norm(self) -> Norm:
        return Norm(self.hidden_size, "Cohere2MoeRMSNorm" if self.rms_norm else "Cohere2MoeLayerNorm", bias=False)

    @property
    def _router(self) -> ExpertRouter:
        of_sigmoid = self.expert_selection_fn == "sigmoid"
        return ExpertRouter(
            self.hidden_size, self.num_experts, self.num_experts_per_tok, "Cohere2MoeTopKRouter",
            score="chosen sigmoid" if of_sigmoid else "chosen", narrow=True, rounded=not of_sigmoid,
            normalised=self.norm_topk_prob,
        )  # fmt: skip

    def usual_window(self, layer: int) -> bool:
        if layer < self.first_k_dense_replace:
            return (layer + 1) % self.prefix_dense_sliding_window_pattern != 0
        return super().usual_window(layer - self.first_k_dense_replace)

    def attention(self, layer: int) -> SelfAttention:
        own: SelfAttention = super().attention(layer)
        forced = layer < self.first_k_dense_replace and self.prefix_dense_sliding_window_pattern == 1
        return replace(own, rotated=own.window > 0 or forced)

    def feed_forward(self, layer: int) -> FeedForward | Experts:
        kind = "Cohere2MoeMLP"
        if layer < self.first_k_dense_replace:
            return FeedForward(self.hidden_size, self.prefix_dense_intermediate_size or self.intermediate_size, kind)
        shared = FeedForward(self.hidden_size, self.intermediate_size * self.num_shared_experts, kind)
        some = self.num_shared_experts > 0
        return Experts(
            self._router, self.intermediate_size, "Cohere2MoeSparseMoeBlock", "Cohere2MoeExperts",
            shared=shared if some else None, shared_name="shared_experts",
            averaged=some and self.shared_expert_combination_strategy == "average",
        )  # fmt: skip

    def score(self, net: Net, x: Tensor) -> Tensor:
        return net.scaled(super().score(net, x))
