"""Ministral 3: Mistral whose queries are scaled by their position (Mistral AI, model card, December 2025)."""

from __future__ import annotations

from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._llama_like import Windowed
from triosim.sources.models._net import Net
from triosim.sources.models._parts import Rotation, SelfAttention, rotate
from triosim.sources.models._tape import Tensor


@registered
@dataclass(frozen=True)
class Ministral3(Windowed):
    """Configuration, named as in Hugging Face's ``config.json``."""

    head_dim: int = 128

    layout: ClassVar = Layout("Ministral3")
    model_types: ClassVar = ("ministral3",)
    fixed: ClassVar = {"hidden_act": "silu"}

    def attention(self, layer: int) -> Any:
        return TemperedAttention(**vars(super().attention(layer)))


@dataclass(frozen=True)
class TemperedAttention(SelfAttention):
    """Attention whose queries, rotated, are scaled by the logarithm of their place in the context."""

    def __call__(self, net: Net, x: Tensor, rotation: Rotation | None) -> Tensor:
        q, k, v = self._apart(net, x)
        assert rotation is not None
        cos, sin = (net.unsqueeze(angle, 1) for angle in rotation)
        q, k = rotate(net, (q, k), cos, sin)
        q = net.mul(q, net.to(_temperatures(net, x), x.dtype))
        y = net.transpose(net.attention(q, k, v, causal=True, window=self.window), 1, 2)
        return net.linear(self.last, net.view(y, (*x.shape[:2], self.heads * self.size)))


def _temperatures(net: Net, x: Tensor) -> Tensor:
    """What the queries of each of the tokens ``x`` [batch, sequence, width] are multiplied by, [1, 1, sequence, 1]."""
    y = net.tensor(x.shape[1:2], "int64")
    net.operator("aten::arange", (), (), (y,))
    y = net.unary("aten::floor", net.to(net.scaled(y, "aten::div"), "float32"))
    y = net.shifted(net.scaled(net.unary("aten::log", net.shifted(y))))
    return net.view(y, (1, 1, x.shape[1], 1))
