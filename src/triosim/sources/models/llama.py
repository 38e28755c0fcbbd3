"""Llama and its relatives: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

Module names are those of Hugging Face's ``LlamaForCausalLM``.  Sources: Touvron et al., arXiv:2302.13971 and
2307.09288; Grattafiori et al., arXiv:2407.21783.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from triosim.core.registry import registered
from triosim.sources.models._family import Text, divides
from triosim.sources.models._net import Net, Weights
from triosim.sources.models._tape import Tensor


@registered
@dataclass(frozen=True)
class Llama(Text):
    """Configuration, named as in Hugging Face's ``config.json``."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int
    num_key_value_heads: int = 0
    head_dim: int = 0
    max_position_embeddings: int = 4096
    tie_word_embeddings: bool = False

    model_types: ClassVar = ("llama", "mistral")
    fixed: ClassVar = {
        "attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "sliding_window": None,
    }  # fmt: skip

    @property
    def longest(self) -> int:
        return self.max_position_embeddings

    @property
    def key_value_heads(self) -> int:
        """Heads of keys and values; as many as of queries unless the configuration says otherwise."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_size(self) -> int:
        """Width of one head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def problem(self) -> str:
        return (
            ("" if self.head_dim else divides(self, "num_attention_heads", "hidden_size"))
            or divides(self, "num_key_value_heads", "num_attention_heads")
            or ("" if self.head_size % 2 == 0 else f"a head of {self.head_size} has no halves to rotate")
        )

    def weights(self) -> Weights:
        w = Weights()
        width, inner = self.hidden_size, self.intermediate_size
        queries, keys = self.num_attention_heads * self.head_size, self.key_value_heads * self.head_size
        w.embedding("model.embed_tokens", self.vocabulary, width)
        for i in range(self.num_hidden_layers):
            at = f"model.layers.{i}"
            w.linear(f"{at}.self_attn.q_proj", width, queries, bias=False)
            w.linear(f"{at}.self_attn.k_proj", width, keys, bias=False)
            w.linear(f"{at}.self_attn.v_proj", width, keys, bias=False)
            w.linear(f"{at}.self_attn.o_proj", queries, width, bias=False)
            w.linear(f"{at}.mlp.gate_proj", width, inner, bias=False)
            w.linear(f"{at}.mlp.up_proj", width, inner, bias=False)
            w.linear(f"{at}.mlp.down_proj", inner, width, bias=False)
            w.norm(f"{at}.input_layernorm", width, bias=False)
            w.norm(f"{at}.post_attention_layernorm", width, bias=False)
        w.norm("model.norm", width, bias=False)
        if not self.tie_word_embeddings:
            w.linear("lm_head", width, self.vocabulary, bias=False)
        w.buffers["model.rotary_emb.inv_freq"] = ((self.head_size // 2,), "float32")
        return w

    def forward(self, net: Net, tokens: Tensor) -> Tensor:
        with net.module("model", "LlamaModel"):
            x = net.embedding("embed_tokens", tokens)
            rotation = self._rotation(net, tokens)
            for i in range(self.num_hidden_layers):
                with net.module(f"layers.{i}", "LlamaDecoderLayer"):
                    y = net.rms_norm("input_layernorm", x, "LlamaRMSNorm")
                    with net.module("self_attn", "LlamaAttention"):
                        y = self._attention(net, y, rotation)
                    x = net.add(x, y)
                    y = net.rms_norm("post_attention_layernorm", x, "LlamaRMSNorm")
                    with net.module("mlp", "LlamaMLP"):
                        y = self._feed_forward(net, y)
                    x = net.add(x, y)
            x = net.rms_norm("norm", x, "LlamaRMSNorm")
        return net.linear("lm_head", x, tied="model.embed_tokens.weight" if self.tie_word_embeddings else "")

    def _attention(self, net: Net, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        batch, length, _ = x.shape

        def heads(name: str, count: int, rotated: bool) -> Tensor:
            shape = (batch, length, count, self.head_size)
            return net.transpose(net.view(net.linear(name, x), shape, strided_gradient=rotated and not net.fused), 1, 2)

        q = heads("q_proj", self.num_attention_heads, rotated=True)
        k = heads("k_proj", self.key_value_heads, rotated=True)
        v = heads("v_proj", self.key_value_heads, rotated=False)
        cos, sin = (net.unsqueeze(r, 1) for r in rotation)
        q, k = (_rotate(net, part, cos, sin) for part in (q, k))
        y = net.transpose(net.attention(q, k, v, causal=True), 1, 2)
        return net.linear("o_proj", net.view(y, (batch, length, self.num_attention_heads * self.head_size)))

    def _feed_forward(self, net: Net, x: Tensor) -> Tensor:
        """SwiGLU (Shazeer, arXiv:2002.05202)."""
        if net.fused:
            y = net.swiglu(net.linear("gate_proj", x), net.linear("up_proj", x))
        else:
            y = net.mul(net.silu(net.linear("gate_proj", x)), net.linear("up_proj", x))
        return net.linear("down_proj", y)

    def _rotation(self, net: Net, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of every position and frequency, [1, sequence, head size] each."""
        with net.module("rotary_emb", "LlamaRotaryEmbedding"):
            frequencies = net.unsqueeze(net.unsqueeze(net.buffers["model.rotary_emb.inv_freq"], 0), 2)
            positions = net.to(net.unsqueeze(net.unsqueeze(net.positions(tokens), 0), 0), "float32")
            angles = net.transpose(net.bmm(frequencies, positions), 1, 2)
            angles = net.cat((angles, angles), 2)
            cos, sin = (net.to(net.unary(f"aten::{f}", angles), net.precision) for f in ("cos", "sin"))
            return cos, sin


def _rotate(net: Net, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions (Su et al., arXiv:2104.09864) with the halves of a head as pairs."""
    if net.fused:
        return net.rotary(x, cos, sin)
    size = x.shape[3]
    straight = net.mul(x, cos)
    first, second = net.slice(x, 3, 0, size // 2), net.slice(x, 3, size // 2, size)
    return net.add(straight, net.mul(net.cat((net.neg(second), first), 3), sin))
