"""LFM2: blocks of gated short convolutions, some of attention, each with a feed-forward part (Liquid AI, 2025)."""

from __future__ import annotations

from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._family import Blocks
from triosim.sources.models._llama_like import LlamaLike
from triosim.sources.models._net import Net
from triosim.sources.models._parts import FeedForward, Norm, Rotation, SelfAttention
from triosim.sources.models._scan import convolution
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights

CONVOLVED = ("conv", "short_conv", "linear_attention")
"""What configurations call a block that convolves; all others attend."""


@dataclass(frozen=True)
class ShortConvolution:
    """One product in, three parts of which two gate what a short convolution reads and gives, one product out.

    Attributes:
        width: of the residual stream.
        kernel: places of the convolution.
        bias: of the products and of the convolution.
        kind: class of the module.
    """

    width: int
    kernel: int
    bias: bool
    kind: str

    def weights(self, w: Weights, at: str) -> None:
        """Declare its parameters."""
        w.add(f"{at}.conv.weight", self.width, 1, self.kernel)
        if self.bias:
            w.add(f"{at}.conv.bias", self.width)
        w.linear(f"{at}.in_proj", self.width, 3 * self.width, bias=self.bias)
        w.linear(f"{at}.out_proj", self.width, self.width, bias=self.bias)

    def __call__(self, net: Net, x: Tensor, rotation: Rotation | None) -> Tensor:
        """The part of ``x`` [batch, tokens, width]."""
        before, after, y = net.split(net.linear("in_proj", x), [self.width] * 3)
        return net.linear("out_proj", net.mul(after, convolution(net, "conv", net.mul(before, y), activation="")))


@registered
@dataclass(frozen=True)
class Lfm2(LlamaLike):
    """Configuration, named as in Hugging Face's ``config.json``; ``full_attn_idxs`` are the blocks that attend, all
    where the file names none of either kind (``convolves``)."""

    full_attn_idxs: Blocks = ()
    convolves: bool = False
    conv_L_cache: int = 3
    conv_bias: bool = False

    layout: ClassVar = Layout(
        "Lfm2", feed_forward="feed_forward", last_norm="embedding_norm", norms=("operator_norm", "ffn_norm")
    )
    model_types: ClassVar = ("lfm2",)
    other_names: ClassVar = {"tie_embedding": "tie_word_embeddings"}
    left_out: ClassVar = {"tie_word_embeddings": True}

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        """Numbers of the blocks that attend, and the width between the products of a feed-forward part, which is a
        rounded part of what the file says."""
        table = dict(table)
        listed = table.pop("layer_types", None)
        if isinstance(listed, list):
            table["full_attn_idxs"] = [at for at, name in enumerate(listed) if name not in CONVOLVED]
        if isinstance(table.get("full_attn_idxs"), list):
            table["convolves"] = True
        inner = table.pop("block_ff_dim", table.get("intermediate_size"))
        adjust, factor = table.pop("block_auto_adjust_ff_dim", True), table.pop("block_ffn_dim_multiplier", 1.0)
        multiple = table.pop("block_multiple_of", 256)
        if (
            adjust
            and type(inner) is int
            and type(multiple) is int
            and multiple > 0
            and isinstance(factor, (int, float))
        ):
            inner = -(-int(factor * int(2 * inner / 3)) // multiple) * multiple
        return {**table, "intermediate_size": inner} if inner is not None else table

    def problem(self) -> str:
        wrong = [layer for layer in self.full_attn_idxs if layer >= self.num_hidden_layers]
        return f"full_attn_idxs has block {wrong[0]} of {self.num_hidden_layers}" if wrong else super().problem()

    def attends(self, layer: int) -> bool:
        """Whether a block attends, not convolves."""
        return not self.convolves or layer in self.full_attn_idxs

    @property
    def norm(self) -> Norm:
        return Norm(self.hidden_size, f"{self.layout.kind}RMSNorm")

    def attention_name(self, layer: int) -> str:
        return "self_attn" if self.attends(layer) else "conv"

    def attention(self, layer: int) -> Any:
        if not self.attends(layer):
            return ShortConvolution(self.hidden_size, self.conv_L_cache, self.conv_bias, f"{self.layout.kind}ShortConv")
        return SelfAttention(
            self.hidden_size, self.num_attention_heads, self.key_value_heads, self.head_size,
            f"{self.layout.kind}Attention", last="out_proj", norm=Norm(self.head_size, f"{self.layout.kind}RMSNorm"),
            norms=("q_layernorm", "k_layernorm"),
        )  # fmt: skip

    def feed_forward(self, layer: int) -> Any:
        return FeedForward(self.hidden_size, self.intermediate_size, f"{self.layout.kind}MLP", names=("w1", "w3", "w2"))
