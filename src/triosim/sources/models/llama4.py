"""Llama 4, its text model: experts beside a shared one, positions in three of four blocks, attention within chunks.

Source: Meta AI, the model card of Llama 4 (April 2025), and Hugging Face's ``Llama4ForCausalLM``.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._experts import ExpertRouter, Experts
from triosim.sources.models._family import Blocks
from triosim.sources.models._llama_like import CHUNKED, LlamaLike, listed_for_each
from triosim.sources.models._net import Net
from triosim.sources.models._parts import FeedForward, Rotation, SelfAttention, rotate
from triosim.sources.models._tape import Tensor


@registered
@dataclass(frozen=True)
class Llama4(LlamaLike):
    """Configuration, named as in the ``text_config`` of Hugging Face's ``config.json``."""

    intermediate_size_mlp: int = 16384
    num_local_experts: int = 16
    num_experts_per_tok: int = 1
    interleave_moe_layer_step: int = 1
    moe_layers: Blocks = ()
    """Those with experts; empty: every :attr:`interleave_moe_layer_step`-th."""
    no_rope_layer_interval: int = 4
    no_rope_layers: Blocks = ()
    """For each block whether it knows positions; empty: all but every :attr:`no_rope_layer_interval`-th."""
    attention_chunk_size: int = 8192
    use_qk_norm: bool = True
    attn_temperature_tuning: bool = True

    layout: ClassVar = Layout("Llama4Text", feed_forward="feed_forward")
    model_types: ClassVar = ("llama4_text",)
    fixed: ClassVar = {"hidden_act": "silu", "attention_bias": False, "attention_dropout": (0.0, 0)}

    def problem(self) -> str:
        return super().problem() or listed_for_each(self, "no_rope_layers") or self._router.problem()

    @property
    def _router(self) -> ExpertRouter:
        return ExpertRouter(
            self.hidden_size, self.num_local_experts, self.num_experts_per_tok, "Llama4Router", name="router",
            score="chosen sigmoid", narrow=True, rounded=True, normalised=False,
        )  # fmt: skip

    def attention(self, layer: int) -> Any:
        rotated = (layer + 1) % self.no_rope_layer_interval != 0
        if self.no_rope_layers:
            rotated = self.no_rope_layers[layer] != 0
        chunk = self.attention_chunk_size if self.of_kind(layer, CHUNKED, rotated) else 0
        return Llama4Attention(
            self.hidden_size, self.num_attention_heads, self.key_value_heads, self.head_size, "Llama4TextAttention",
            rotated=rotated, chunk=chunk, normed=self.use_qk_norm and rotated,
            tempered=self.attn_temperature_tuning and not rotated,
        )  # fmt: skip

    def feed_forward(self, layer: int) -> Any:
        sparse = (layer + 1) % self.interleave_moe_layer_step == 0
        if not (layer in self.moe_layers if self.moe_layers else sparse):
            return FeedForward(self.hidden_size, self.intermediate_size_mlp, "Llama4TextMLP")
        return Experts(
            self._router, self.intermediate_size, "Llama4TextMoe", "Llama4TextExperts", inputs_first=True,
            weighed_first=True, shared=FeedForward(self.hidden_size, self.intermediate_size, "Llama4TextMLP"),
            router_first=False,
        )  # fmt: skip


@dataclass(frozen=True)
class Llama4Attention(SelfAttention):
    """Attention of one block.

    Attributes:
        chunk: tokens see those before them in their own chunk of so many; 0 for all.  In longer sequences it is a
            sliding window with as many pairs of tokens.
        normed: queries and keys are normed, without weights, when they have been rotated.
        tempered: queries are scaled by their position.
    """

    chunk: int = 0
    normed: bool = False
    tempered: bool = False

    def __call__(self, net: Net, x: Tensor, rotation: Rotation | None) -> Tensor:
        q, k, v = self._apart(net, x)
        if rotation is not None and self.rotated:
            cos, sin = (net.unsqueeze(angle, 1) for angle in rotation)
            q, k = rotate(net, (q, k), cos, sin)
        if self.normed:
            q, k = (net.rms_norm("qk_norm", heads, "Llama4TextL2Norm") for heads in (q, k))
        if self.tempered:
            q = net.to(net.mul(q, _temperatures(net, x)), x.dtype)
        y = net.attention(q, k, v, causal=True, window=chunk_window(int(x.shape[1]), self.chunk))
        y = net.view(net.transpose(y, 1, 2), (*x.shape[:2], self.heads * self.size))
        return net.linear(self.last, y)


def chunk_window(length: int, chunk: int) -> int:
    """The sliding window w of as many pairs as chunks of c have: w n - w (w - 1) / 2 = n (c + 1) / 2; 0 for all."""
    if not 0 < chunk < length:
        return 0
    b = 2 * length + 1
    return round((b - math.sqrt(b * b - 4 * length * (chunk + 1))) / 2)


def _temperatures(net: Net, x: Tensor) -> Tensor:
    """What the queries of each of the tokens ``x`` [batch, sequence, width] are multiplied by, [1, 1, sequence, 1]."""
    y = net.tensor(x.shape[1:2], "int64")
    net.operator("aten::arange", (), (), (y,))
    y = net.scaled(net.shifted(net.to(y, "float32")), "aten::div")
    for name in ("aten::floor", "aten::log1p"):
        y = net.unary(name, y)
    return net.view(net.shifted(net.scaled(y)), (1, 1, x.shape[1], 1))
