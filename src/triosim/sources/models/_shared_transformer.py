"""A transformer that runs several times with the same weights, each time with adapters of its own (Zamba2)."""

from __future__ import annotations

from collections.abc import Iterable

from triosim.core.dataclass import dataclass
from triosim.sources.models._net import Net
from triosim.sources.models._parts import Norm, Rotation, rotate
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights

NORM = "Zamba2RMSNorm"


@dataclass(frozen=True)
class SharedTransformer:
    """Attention that reads two vectors of each token side by side, and a gated feed-forward part; nothing is added up.

    Attributes:
        width, inner: of the residual stream, and within the feed-forward part.
        heads, groups: of queries, and of keys and values; together queries are as wide as two vectors.
        attention_rank, rank: of the adapters of attention, 0 for none, and of the feed-forward part.
        bias: whether the products of the feed-forward part have one.
    """

    width: int
    heads: int
    groups: int
    inner: int
    attention_rank: int
    rank: int
    bias: bool = False

    @property
    def size(self) -> int:
        """Of a head."""
        return 2 * self.width // self.heads

    def weights(self, w: Weights, at: str, turns: Iterable[int]) -> None:
        """Declare its parameters, and those of the adapters of each of the ``turns`` in which it runs."""
        whole, turns = 2 * self.width, tuple(turns)
        for name, heads in (("q", self.heads), ("k", self.groups), ("v", self.groups)):
            w.linear(f"{at}.self_attn.{name}_proj", whole, heads * self.size, bias=False)
        w.linear(f"{at}.self_attn.o_proj", self.heads * self.size, self.width, bias=False)
        for name in "qkv" if self.attention_rank else "":
            for turn in turns:
                _adapter_weights(
                    w, f"{at}.self_attn.linear_{name}_adapter_list.{turn}", whole, self.attention_rank, whole
                )
        w.linear(f"{at}.feed_forward.gate_up_proj", self.width, 2 * self.inner, bias=self.bias)
        w.linear(f"{at}.feed_forward.down_proj", self.inner, self.width, bias=self.bias)
        for turn in turns:
            name = f"{at}.feed_forward.gate_up_proj_adapter_list.{turn}"
            _adapter_weights(w, name, self.width, self.rank, 2 * self.inner)
        Norm(whole, NORM).weights(w, f"{at}.input_layernorm")
        Norm(self.width, NORM).weights(w, f"{at}.pre_ff_layernorm")

    def __call__(self, net: Net, x: Tensor, rotation: Rotation | None, turn: int) -> Tensor:
        """What it makes of ``x`` [batch, tokens, two widths] when it runs for the ``turn``-th time."""
        x = net.rms_norm("input_layernorm", x, NORM)
        with net.module("self_attn", "Zamba2Attention"):
            q, k, v = (self._heads(net, x, name, heads, turn) for name, heads in zip("qkv", self._counts, strict=True))
            if rotation is not None:
                cos, sin = (net.unsqueeze(angle, 1) for angle in rotation)
                q, k = rotate(net, (q, k), cos, sin)
            y = net.transpose(net.attention(q, k, v, causal=True), 1, 2)
            y = net.linear("o_proj", net.view(y, (*x.shape[:2], self.heads * self.size)))
        y = net.rms_norm("pre_ff_layernorm", y, NORM)
        with net.module("feed_forward", "Zamba2MLP"):
            made = net.add(net.linear("gate_up_proj", y), _adapted(net, f"gate_up_proj_adapter_list.{turn}", y))
            gate, up = net.split(made, [self.inner] * 2)
            return net.linear("down_proj", net.mul(net.gelu(gate), up))

    @property
    def _counts(self) -> tuple[int, int, int]:
        return self.heads, self.groups, self.groups

    def _heads(self, net: Net, x: Tensor, name: str, heads: int, turn: int) -> Tensor:
        y = net.linear(f"{name}_proj", x)
        if self.attention_rank:
            y = net.add(y, _adapted(net, f"linear_{name}_adapter_list.{turn}", x))
        return net.transpose(net.view(y, (*x.shape[:2], heads, self.size)), 1, 2)


def _adapter_weights(w: Weights, at: str, inputs: int, rank: int, outputs: int) -> None:
    w.linear(f"{at}.0", inputs, rank, bias=False)
    w.linear(f"{at}.1", rank, outputs, bias=False)


def _adapted(net: Net, name: str, x: Tensor) -> Tensor:
    return net.linear(f"{name}.1", net.linear(f"{name}.0", x))
