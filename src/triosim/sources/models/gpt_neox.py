"""GPT-NeoX and Pythia: both parts of the same input, normed apart; part of each head rotated (arXiv:2204.06745)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._decoder import Layout
from triosim.sources.models._family import Share
from triosim.sources.models._llama_like import LlamaLike
from triosim.sources.models._parts import FeedForward, Norm, Rotary, SelfAttention

_NORMS = ("input_layernorm", "post_attention_layernorm")


@registered
@dataclass(frozen=True)
class GPTNeoX(LlamaLike):
    """Configuration, named as in Hugging Face's ``config.json``."""

    hidden_act: str = "gelu"
    rotary_pct: Share = 0.25
    attention_bias: bool = True

    layout: ClassVar = Layout(
        "GPTNeoX", body="gpt_neox", embedding="embed_in", last_norm="final_layer_norm",
        attention="attention", norms=_NORMS, order=(*_NORMS, "attention", "feed_forward"), block="Layer",
        residual="parallel",
    )  # fmt: skip
    model_types: ClassVar = ("gpt_neox",)
    fixed: ClassVar = {"use_parallel_residual": True, "hidden_dropout": 0.0, "attention_dropout": 0.0}

    @property
    def norm(self) -> Norm:
        return Norm(self.hidden_size, "LayerNorm")

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        return (Rotary(int(self.head_size * self.rotary_pct), "GPTNeoXRotaryEmbedding"),)

    def attention(self, layer: int) -> SelfAttention:
        bias = self.attention_bias
        return replace(
            super().attention(layer),
            names=("query_key_value",),
            last="dense",
            interleaved=True,
            bias=bias,
            last_bias=bias,
        )

    def feed_forward(self, layer: int) -> FeedForward:
        names = ("dense_h_to_4h", "dense_4h_to_h")
        return FeedForward(self.hidden_size, self.intermediate_size, "GPTNeoXMLP", self.hidden_act, names, bias=True)
