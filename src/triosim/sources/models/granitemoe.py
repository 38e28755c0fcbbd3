"""Granite 3 with experts: many small ones instead of the feed-forward part (IBM, Granite 3.0, October 2024)."""

from __future__ import annotations

from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._experts import ExpertRouter, Experts
from triosim.sources.models._granite import GraniteLike
from triosim.sources.models._llama_like import BiasedAttention


@registered
@dataclass(frozen=True)
class GraniteMoe(BiasedAttention, GraniteLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    num_local_experts: int = 8
    num_experts_per_tok: int = 2

    layout: ClassVar = Layout(
        "GraniteMoe", feed_forward="block_sparse_moe", scaled=True,
        order=("attention", "input_layernorm", "post_attention_layernorm", "feed_forward"),
    )  # fmt: skip
    model_types: ClassVar = ("granitemoe",)
    fixed: ClassVar = {"hidden_act": "silu"}

    def problem(self) -> str:
        return super().problem() or self._router.problem()

    @property
    def _router(self) -> ExpertRouter:
        return ExpertRouter(
            self.hidden_size, self.num_local_experts, self.num_experts_per_tok, f"{self.layout.kind}TopKRouter",
            name="router", score="chosen", rounded=True,
        )  # fmt: skip

    def feed_forward(self, layer: int) -> Any:
        kind = self.layout.kind
        return Experts(self._router, self.intermediate_size, f"{kind}MoE", f"{kind}Experts")
