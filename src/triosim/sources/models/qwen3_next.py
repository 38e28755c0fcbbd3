"""Qwen3-Next: three blocks of gated linear attention to one of gated attention, many small experts beside a shared one.

Source: Qwen team, Qwen3-Next-80B-A3B (2025); gated DeltaNet: Yang et al., arXiv:2412.06464.
"""

from __future__ import annotations

from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout, LlamaLike
from triosim.sources.models._experts import ExpertRouter, Experts
from triosim.sources.models._family import Share
from triosim.sources.models._gated_attention import GatedAttention
from triosim.sources.models._parts import FeedForward, Norm, Rotary
from triosim.sources.models._scan import GatedDeltaNet


@registered
@dataclass(frozen=True)
class Qwen3Next(LlamaLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    head_dim: int = 256
    partial_rotary_factor: Share = 0.25
    full_attention_interval: int = 4
    linear_conv_kernel_dim: int = 4
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 32
    num_experts: int = 512
    num_experts_per_tok: int = 10
    moe_intermediate_size: int = 512
    shared_expert_intermediate_size: int = 512
    decoder_sparse_step: int = 1
    norm_topk_prob: bool = True

    layout: ClassVar = Layout("Qwen3Next")
    model_types: ClassVar = ("qwen3_next",)
    fixed: ClassVar = {"hidden_act": "silu", "attention_bias": False, "mlp_only_layers": ([], None)}

    def problem(self) -> str:
        return super().problem() or self._linear.problem() or self._router.problem()

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        return (Rotary(int(self.head_size * self.partial_rotary_factor), "Qwen3NextRotaryEmbedding"),)

    @property
    def _router(self) -> ExpertRouter:
        return ExpertRouter(
            self.hidden_size, self.num_experts, self.num_experts_per_tok, "Qwen3NextTopKRouter",
            normalised=self.norm_topk_prob, rounded=True,
        )  # fmt: skip

    @property
    def _linear(self) -> GatedDeltaNet:
        return GatedDeltaNet(
            self.hidden_size, self.linear_num_value_heads, self.linear_num_key_heads, self.linear_value_head_dim,
            self.linear_key_head_dim, self.linear_conv_kernel_dim, "Qwen3NextGatedDeltaNet", "Qwen3NextRMSNormGated",
        )  # fmt: skip

    def attention_name(self, layer: int) -> str:
        return "self_attn" if self._sees_all(layer) else "linear_attn"

    def _sees_all(self, layer: int) -> bool:
        return (layer + 1) % self.full_attention_interval == 0

    def attention(self, layer: int) -> Any:
        if not self._sees_all(layer):
            return self._linear
        return GatedAttention(
            self.hidden_size, self.num_attention_heads, self.key_value_heads, self.head_size, "Qwen3NextAttention",
            norm=Norm(self.head_size, "Qwen3NextRMSNorm"),
        )  # fmt: skip

    def feed_forward(self, layer: int) -> Any:
        if (layer + 1) % self.decoder_sparse_step:
            return super().feed_forward(layer)
        return Experts(
            self._router, self.moe_intermediate_size, "Qwen3NextSparseMoeBlock", "Qwen3NextExperts",
            shared=FeedForward(self.hidden_size, self.shared_expert_intermediate_size, "Qwen3NextMLP"),
            shared_gate=True,
        )  # fmt: skip
