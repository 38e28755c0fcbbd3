"""ERNIE 4.5 with experts, its text models: shared ones beside those chosen by a corrected softmax (Baidu 2025)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._experts import ExpertRouter, Experts
from triosim.sources.models._family import Count
from triosim.sources.models._llama_like import LlamaLike
from triosim.sources.models._parts import Rotary, SelfAttention


@registered
@dataclass(frozen=True)
class ERNIE45MoE(LlamaLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    moe_num_experts: int = 64
    moe_k: int = 6
    moe_intermediate_size: int = 1536
    moe_num_shared_experts: Count = 2
    moe_layer_interval: int = 1
    moe_layer_start_index: Count = 1
    moe_layer_end_index: int = -1
    """The last block with experts; by default that of the model."""
    use_bias: bool = False
    tie_word_embeddings: bool = True

    model_types: ClassVar = ("ernie4_5_moe",)
    fixed: ClassVar = {"hidden_act": "silu"}

    @property
    def layout(self) -> Layout:  # type: ignore[override]
        """The head has a bias where everything has."""
        return Layout("Ernie4_5_Moe", last_bias=self.use_bias)

    def problem(self) -> str:
        tied = self.use_bias and self.tie_word_embeddings
        return (
            super().problem()
            or self._router.problem()
            or (
                "use_bias gives the head a bias, which is not supported where tie_word_embeddings ties it"
                if tied
                else ""
            )
        )

    @property
    def _router(self) -> ExpertRouter:
        return ExpertRouter(
            self.hidden_size, self.moe_num_experts, self.moe_k, "Ernie4_5_MoeTopKRouter", full_precision=True,
            correction=True, rounded=True, bounded="clamp",
        )  # fmt: skip

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        return (Rotary(self.head_size, "Ernie4_5_MoeRotaryEmbedding", full_precision=True),)

    def attention(self, layer: int) -> SelfAttention:
        return replace(super().attention(layer), bias=self.use_bias, last_bias=self.use_bias)

    def feed_forward(self, layer: int) -> Any:
        last = self.moe_layer_end_index if self.moe_layer_end_index >= 0 else self.num_hidden_layers - 1
        dense = replace(super().feed_forward(layer), bias=self.use_bias)
        if (layer + 1) % self.moe_layer_interval or not self.moe_layer_start_index <= layer <= last:
            return dense
        shared = self.moe_intermediate_size * self.moe_num_shared_experts
        return Experts(
            self._router, self.moe_intermediate_size, "Ernie4_5_MoeSparseMoeBlock", "Ernie4_5_MoeExperts",
            shared=replace(dense, inner=shared) if shared else None, shared_name="shared_experts", shared_first=True,
        )  # fmt: skip
