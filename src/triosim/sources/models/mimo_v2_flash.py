"""MiMo-V2-Flash: windows with sinks in five blocks of six, narrow values, experts as in DeepSeek-V3 (Xiaomi, 2025).

Blocks with a window have twice the heads of keys and values.  Values are multiplied by a number.  What predicts further
tokens is not built.
"""

from __future__ import annotations

from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._deepseek import SigmoidExperts, with_dense_first
from triosim.sources.models._experts import Experts
from triosim.sources.models._family import Share
from triosim.sources.models._llama_like import MostlyWindowed, PartlyRotated
from triosim.sources.models._net import Net
from triosim.sources.models._parts import SelfAttention
from triosim.sources.models._tape import Tensor


@dataclass(frozen=True)
class NarrowValues(SelfAttention):
    """Attention whose values have another size than queries and keys, and are multiplied by a number.

    Attributes:
        value: size of one.
    """

    value: int = 128

    @property
    def _widths(self) -> dict[str, int]:
        return {**super()._widths, "v": self._heads_of["v"] * self.value}

    @property
    def _found(self) -> int:
        return self.heads * self.value

    def _heads(self, net: Net, name: str, x: Tensor) -> Tensor:
        if name[0] != "v":
            return super()._heads(net, name, x)
        shape = (*x.shape[:2], self._heads_of["v"], self.value)
        return net.scaled(net.transpose(net.view(net.linear(name, x), shape), 1, 2))


@registered
@dataclass(frozen=True)
class MiMoV2Flash(PartlyRotated, MostlyWindowed, SigmoidExperts):
    """Configuration, named as in Hugging Face's ``config.json``; every sixth block and the first see all tokens."""

    head_dim: int = 192
    v_head_dim: int = 128
    attention_bias: bool = False
    partial_rotary_factor: Share = 0.334
    sliding_window: int = 129
    sliding_window_pattern: int = 6

    layout: ClassVar = Layout("MiMoV2Flash")
    model_types: ClassVar = ("mimo_v2_flash",)
    other_names: ClassVar = {"num_local_experts": "n_routed_experts"}
    fixed: ClassVar = {"hidden_act": "silu", "attention_dropout": (0.0, 0)}

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        return with_dense_first(table)

    def usual_window(self, layer: int) -> bool:
        return layer > 0 and super().usual_window(layer)

    def attention(self, layer: int) -> NarrowValues:
        own = vars(super().attention(layer))
        seen = own["window"] > 0
        groups = self.key_value_heads * (2 if seen else 1)
        return NarrowValues(
            **{**own, "groups": groups, "bias": self.attention_bias, "sinks": seen}, value=self.v_head_dim
        )

    def feed_forward(self, layer: int) -> Any:
        own = super().feed_forward(layer)
        return Experts(**{**vars(own), "shared": None}) if isinstance(own, Experts) else own
