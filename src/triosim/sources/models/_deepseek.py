"""DeepSeek-V2 and V3: latent attention, dense first blocks, many small experts beside shared ones.

Sources: Liu et al., arXiv:2405.04434 (V2) and arXiv:2412.19437 (V3).  What predicts a second token (MTP) is not one
of the model's own blocks and is left out.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from triosim.sources.models._decoder import LlamaLike
from triosim.sources.models._experts import ExpertRouter, Experts
from triosim.sources.models._latent import LatentAttention
from triosim.sources.models._parts import FeedForward, Rotary


@dataclass(frozen=True)
class DeepSeek(LlamaLike):
    """What both generations have."""

    kv_lora_rank: int = 512
    q_lora_rank: int = 0
    qk_nope_head_dim: int = 128
    qk_rope_head_dim: int = 64
    v_head_dim: int = 128
    n_routed_experts: int = 256
    n_shared_experts: int = 1
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 2048
    first_k_dense_replace: int = 1
    n_group: int = 1
    topk_group: int = 1

    def problem(self) -> str:
        return super().problem() or self._router.problem()

    @property
    @abstractmethod
    def _router(self) -> ExpertRouter:
        """What chooses the experts."""

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        return (Rotary(self.qk_rope_head_dim, f"{self.layout.kind}RotaryEmbedding"),)

    def attention(self, layer: int) -> Any:
        return LatentAttention(
            self.hidden_size, self.num_attention_heads, self.kv_lora_rank, self.q_lora_rank, self.qk_nope_head_dim,
            self.qk_rope_head_dim, self.v_head_dim, f"{self.layout.kind}Attention", f"{self.layout.kind}RMSNorm",
        )  # fmt: skip

    def feed_forward(self, layer: int) -> Any:
        if layer < self.first_k_dense_replace:
            return super().feed_forward(layer)
        kind, shared = self.layout.kind, self.moe_intermediate_size * self.n_shared_experts
        return Experts(
            self._router, self.moe_intermediate_size, f"{kind}MoE", f"{kind}Experts", router_first=False,
            shared=FeedForward(self.hidden_size, shared, f"{kind}MLP"), shared_name="shared_experts",
        )  # fmt: skip
