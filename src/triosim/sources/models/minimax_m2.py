"""MiniMax-M2: many small experts scored by a sigmoid, norms of all queries and keys (MiniMax, model card, 2025)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._experts import ExpertRouter, Experts
from triosim.sources.models._llama_like import LlamaLike
from triosim.sources.models._parts import Norm, Rotary, SelfAttention


@registered
@dataclass(frozen=True)
class MiniMaxM2(LlamaLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    head_dim: int = 128
    rotary_dim: int = 64
    num_local_experts: int = 256
    num_experts_per_tok: int = 8

    layout: ClassVar = Layout("MiniMaxM2")
    model_types: ClassVar = ("minimax_m2",)
    fixed: ClassVar = {"hidden_act": "silu", "attention_dropout": (0.0, 0), "router_jitter_noise": (0.0, 0)}

    def problem(self) -> str:
        wide = self.rotary_dim > self.head_size
        return (
            super().problem()
            or self._router.problem()
            or (f"rotary_dim {self.rotary_dim} is more than the {self.head_size} of a head" if wide else "")
        )

    @property
    def _router(self) -> ExpertRouter:
        return ExpertRouter(
            self.hidden_size, self.num_local_experts, self.num_experts_per_tok, "MiniMaxM2TopKRouter",
            score="sigmoid", correction=True,
        )  # fmt: skip

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        return (Rotary(self.rotary_dim, "MiniMaxM2RotaryEmbedding"),)

    def attention(self, layer: int) -> SelfAttention:
        return replace(
            super().attention(layer), norm=Norm(self.num_attention_heads * self.head_size, "MiniMaxM2RMSNorm")
        )

    def feed_forward(self, layer: int) -> Experts:
        return Experts(self._router, self.intermediate_size, "MiniMaxM2SparseMoeBlock", "MiniMaxM2Experts")
