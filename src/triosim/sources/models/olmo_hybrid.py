"""OLMo Hybrid: three blocks of a gated delta network to one of OLMo 3's attention (Ai2, model card, 2026).

Blocks of linear attention have their norms before each part, those of attention after.  Published models know no
positions (``rope_parameters`` without a ``rope_theta``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import LINEAR, LlamaLike
from triosim.sources.models._net import Net
from triosim.sources.models._parts import Norm, Rotary
from triosim.sources.models._scan import GatedDeltaNet
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights

BEFORE = Layout(
    "OlmoHybrid", order=("feed_forward", "input_layernorm", "post_attention_layernorm", "attention"),
    block="LinearAttentionDecoderLayer",
)  # fmt: skip
AFTER = Layout(
    "OlmoHybrid", norms=("post_attention_layernorm", "post_feedforward_layernorm"), residual="post",
    block="AttentionDecoderLayer",
)  # fmt: skip


@registered
@dataclass(frozen=True)
class OLMoHybrid(LlamaLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    linear_num_key_heads: int = 0
    linear_num_value_heads: int = 0
    linear_key_head_dim: int = 0
    linear_value_head_dim: int = 0
    linear_conv_kernel_dim: int = 4
    linear_allow_neg_eigval: bool = True
    rotated: bool = False

    layout: ClassVar = AFTER
    model_types: ClassVar = ("olmo_hybrid",)
    fixed: ClassVar = {"attention_bias": False, "hidden_act": "silu"}

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        """Whether it knows positions, which is said by the base of their frequencies."""
        rotary = table.get("rope_parameters")
        known = isinstance(rotary, dict) and rotary.get("rope_theta") is not None
        return {"rotated": known or table.get("rope_theta") is not None, **table}

    def problem(self) -> str:
        return super().problem() or self._linear.problem()

    def _sees_all(self, layer: int) -> bool:
        last = layer == self.num_hidden_layers - 1 < 3
        return not self.of_kind(layer, LINEAR, layer % 4 != 3 and not last)

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        return (Rotary(self.head_size, "OlmoHybridRotaryEmbedding", full_precision=True),) if self.rotated else ()

    @property
    def _linear(self) -> GatedDeltaNet:
        groups, heads = self.linear_num_key_heads, self.linear_num_value_heads or self.num_attention_heads
        groups = groups or self.num_attention_heads
        state = self.linear_key_head_dim or 3 * self.hidden_size // (4 * groups)
        return DoubledDeltaNet(
            self.hidden_size, heads, groups, self.linear_value_head_dim or 2 * state, state,
            self.linear_conv_kernel_dim, "OlmoHybridGatedDeltaNet", "OlmoHybridRMSNormGated", True, "o_proj", "o_norm",
            self.linear_allow_neg_eigval,
        )  # fmt: skip

    def layout_of(self, layer: int) -> Layout:
        return AFTER if self._sees_all(layer) else BEFORE

    def attention_name(self, layer: int) -> str:
        return "self_attn" if self._sees_all(layer) else "linear_attn"

    def attention(self, layer: int) -> Any:
        if not self._sees_all(layer):
            return self._linear
        norm = Norm(self.num_attention_heads * self.head_size, "OlmoHybridRMSNorm")
        return replace(super().attention(layer), norm=norm)


@dataclass(frozen=True)
class DoubledDeltaNet(GatedDeltaNet):
    """All it reads is made by products of its own, and rates may be ``doubled``, so that a state may change sign."""

    doubled: bool = True

    def weights(self, w: Weights, at: str) -> None:
        """Declare its parameters."""
        keys, values = self.groups * self.state, self.heads * self.size
        for name in ("A_log", "dt_bias"):
            w.add(f"{at}.{name}", self.heads)
        for name, outputs in (("q", keys), ("k", keys), ("v", values), ("a", self.heads), ("b", self.heads)):
            w.linear(f"{at}.{name}_proj", self.width, outputs, bias=False)
        w.linear(f"{at}.g_proj", self.width, values, bias=False)
        w.linear(f"{at}.{self.last}", values, self.width, bias=False)
        w.add(f"{at}.conv1d.weight", 2 * keys + values, 1, self.kernel)
        w.norm(f"{at}.{self.norm_name}", self.size, bias=False)

    def rates(self, net: Net, beta: Tensor) -> Tensor:
        """Up to 2 where they are doubled."""
        y = super().rates(net, beta)
        return net.scaled(y) if self.doubled else y

    def _apart(self, net: Net, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mixed = net.cat(tuple(net.linear(f"{name}_proj", x) for name in "qkv"), 2)
        beta, steps, gate = (net.linear(f"{name}_proj", x) for name in "bag")
        return mixed, net.view(gate, (*x.shape[:2], self.heads, self.size)), beta, steps
