"""Decoders with three blocks of gated linear attention to one of gated attention: Qwen3-Next and Qwen3.5."""

from __future__ import annotations

from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.sources.models._family import Share
from triosim.sources.models._gated_attention import GatedAttention
from triosim.sources.models._llama_like import FULL, PartlyRotated
from triosim.sources.models._parts import Norm, Rotary
from triosim.sources.models._qwen import SharedExpert
from triosim.sources.models._scan import GatedDeltaNet, state_type_problem


@dataclass(frozen=True)
class GatedDeltaLike(PartlyRotated):
    """What they have in common.

    Class attributes:
        rotary_kind: what the name of the class of rotary positions ends in.
        apart: what linear attention reads is made by products of their own, not group by group in one.
    """

    head_dim: int = 256
    partial_rotary_factor: Share = 0.25
    full_attention_interval: int = 4
    linear_conv_kernel_dim: int = 4
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 32
    mamba_ssm_dtype: str = ""
    """Type in which servers keep the states, where it is said."""

    rotary_kind: ClassVar[str] = "RotaryEmbedding"
    apart: ClassVar[bool] = False

    def problem(self) -> str:
        return (
            super().problem() or self._linear.problem() or state_type_problem("mamba_ssm_dtype", self.mamba_ssm_dtype)
        )

    @property
    def state_type(self) -> str:
        """Of the states of a server; ``""``: as it does."""
        return self.mamba_ssm_dtype

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        kind = f"{self.layout.kind}{self.rotary_kind}"
        return (Rotary(int(self.head_size * self.partial_rotary_factor), kind),)

    @property
    def _linear(self) -> GatedDeltaNet:
        kind = self.layout.kind
        return GatedDeltaNet(
            self.hidden_size, self.linear_num_value_heads, self.linear_num_key_heads, self.linear_value_head_dim,
            self.linear_key_head_dim, self.linear_conv_kernel_dim, f"{kind}GatedDeltaNet", f"{kind}RMSNormGated",
            self.apart,
        )  # fmt: skip

    def attention_name(self, layer: int) -> str:
        return "self_attn" if self._sees_all(layer) else "linear_attn"

    def _sees_all(self, layer: int) -> bool:
        return self.of_kind(layer, FULL, (layer + 1) % self.full_attention_interval == 0)

    def attention(self, layer: int) -> Any:
        if not self._sees_all(layer):
            return self._linear
        kind = self.layout.kind
        return GatedAttention(
            self.hidden_size, self.num_attention_heads, self.key_value_heads, self.head_size, f"{kind}Attention",
            norm=Norm(self.head_size, f"{kind}RMSNorm"),
        )  # fmt: skip


@dataclass(frozen=True)
class GatedDeltaExperts(SharedExpert, GatedDeltaLike):
    """Those with experts beside a shared one."""

    num_experts: int = 256
    moe_intermediate_size: int = 512
    norm_topk_prob: bool = True
