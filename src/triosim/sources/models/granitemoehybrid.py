"""Granite 4 hybrids: nine blocks of Mamba-2 to one of attention, experts beside what all tokens pass (IBM, 2025)."""

from __future__ import annotations

from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._experts import ExpertRouter, Experts
from triosim.sources.models._granite import GraniteFeedForward, GraniteLike
from triosim.sources.models._mamba_like import Mamba2Blocks
from triosim.sources.models._parts import FeedForward, Rotary, SelfAttention
from triosim.sources.models._scan import Mamba2Mixer

LETTERS = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*"}


@registered
@dataclass(frozen=True)
class GraniteMoeHybrid(GraniteLike, Mamba2Blocks):
    """Configuration, named as in Hugging Face's ``config.json``, whose ``layer_types`` are letters of a pattern here:
    ``M`` for Mamba-2, ``*`` for attention."""

    hybrid_override_pattern: str = ""
    shared_intermediate_size: int = 1024
    num_local_experts: int = 0
    num_experts_per_tok: int = 2
    position_embedding_type: str = "nope"
    mamba_d_head: int = 64

    layout: ClassVar = Layout(
        "GraniteMoeHybrid", feed_forward="", scaled=True,
        order=("input_layernorm", "post_attention_layernorm", "feed_forward", "attention"),
    )  # fmt: skip
    model_types: ClassVar = ("granitemoehybrid",)
    fixed: ClassVar = {"attention_bias": False, "hidden_act": "silu", "normalization_function": "rmsnorm"}

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        listed = table.get("layer_types", table.get("layers_block_type"))
        if isinstance(listed, list) and all(isinstance(name, str) for name in listed):
            pattern = "".join(LETTERS.get(name, "?") for name in listed)
            table = {"hybrid_override_pattern": pattern, **table}
        if table.get("mamba_d_head") == "auto":
            table = {key: value for key, value in table.items() if key != "mamba_d_head"}
        return {key: value for key, value in table.items() if key not in ("layer_types", "layers_block_type")}

    @property
    def pattern(self) -> str:
        """A letter for each block."""
        return self.hybrid_override_pattern or "M" * self.num_hidden_layers

    def problem(self) -> str:
        if len(self.pattern) != self.num_hidden_layers or set(self.pattern) - set("M*"):
            return f"its blocks are {self.pattern}, not {self.num_hidden_layers} of M and *"
        if self.position_embedding_type not in ("nope", "rope"):
            return f"position_embedding_type is nope or rope, not {self.position_embedding_type}"
        router = self._experts.router.problem() if self._experts else ""
        return super().problem() or self._mixer.problem() or router

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        return super().rotaries if self.position_embedding_type == "rope" else ()

    @property
    def _mixer(self) -> Mamba2Mixer:
        return self.mixer(self.mamba_d_head, "MambaLayer")

    @property
    def _experts(self) -> Experts | None:
        if not self.num_local_experts:
            return None
        router = ExpertRouter(
            self.hidden_size, self.num_local_experts, self.num_experts_per_tok, "GraniteMoeHybridTopKRouter",
            name="router", score="chosen", rounded=True,
        )  # fmt: skip
        return Experts(router, self.intermediate_size, "GraniteMoeHybridMoE", "GraniteMoeHybridExperts")

    def attention_name(self, layer: int) -> str:
        return "mamba" if self.pattern[layer] == "M" else "self_attn"

    def attention(self, layer: int) -> Any:
        if self.pattern[layer] == "M":
            return self._mixer
        return SelfAttention(
            self.hidden_size, self.num_attention_heads, self.key_value_heads, self.head_size,
            "GraniteMoeHybridAttention", rotated=self.position_embedding_type == "rope",
        )  # fmt: skip

    def feed_forward(self, layer: int) -> GraniteFeedForward:
        names = ("input_linear", "output_linear")
        shared = FeedForward(
            self.hidden_size, self.shared_intermediate_size, "GraniteMoeHybridMLP", names=names, packed=True
        )
        return GraniteFeedForward(shared, self._experts)
