"""The language models of the kit, from transformers' configurations where it is installed, else written out here."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from triosim.core.dataclass import dataclass


@dataclass(frozen=True)
class ModelSizes:
    """What distinguishes the models.

    Attributes:
        layers, width, heads, kv_heads, inner, vocabulary: of the network; ``kv_heads`` heads of keys and values.
        causal: whether a token sees only those before it.
        rotary: rotary positions, RMSNorm and gated layers without biases (Llama); else learned positions, LayerNorm and
            GELU.
        post_norm: norms after the residual sums (BERT) instead of before the layers.
        encoder: layers of an encoder that the decoder looks at (T5), 0 for none.
        positions: learned positions, 0 for none.
        head: width of one head.
    """

    layers: int
    width: int
    heads: int
    inner: int
    vocabulary: int
    kv_heads: int = 0
    causal: bool = True
    rotary: bool = False
    post_norm: bool = False
    encoder: int = 0
    positions: int = 0
    head: int = 64

    @property
    def keys(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads


SIZES = {
    "gpt2": ModelSizes(12, 768, 12, 3072, 50257, positions=1024),
    "bert-base": ModelSizes(12, 768, 12, 3072, 30522, causal=False, post_norm=True, positions=512),
    "t5-small": ModelSizes(6, 512, 8, 2048, 32128, encoder=6),
    "llama-3.2-1b": ModelSizes(16, 2048, 32, 8192, 128256, kv_heads=8, rotary=True),
}
TINY = ModelSizes(2, 64, 2, 128, 256, head=32, positions=64)


class RMSNorm(nn.Module):
    """Root-mean-square norm (Zhang and Sennrich, arXiv:1910.07467), in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normed rows."""
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class MultiHeadAttention(nn.Module):
    """Attention on itself, or on ``other`` where it is given."""

    def __init__(self, s: ModelSizes, causal: bool) -> None:
        super().__init__()
        self.s, self.causal = s, causal
        plain = not s.rotary and not s.encoder
        self.q = nn.Linear(s.width, s.heads * s.head, bias=plain)
        self.k, self.v = (nn.Linear(s.width, s.keys * s.head, bias=plain) for _ in range(2))
        self.out = nn.Linear(s.heads * s.head, s.width, bias=plain)

    def forward(
        self, x: Tensor, positions: Tensor | None, other: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """``positions``: cosines and sines of rotary positions; ``bias``: added to the scores (T5)."""
        seen = x if other is None else other
        q, k, v = (
            layer(y).unflatten(-1, (-1, self.s.head)).transpose(1, 2)
            for layer, y in ((self.q, x), (self.k, seen), (self.v, seen))
        )
        if positions is not None:
            q, k = _rotated(q, positions), _rotated(k, positions)
        causal = self.causal and bias is None
        y = scaled_dot_product_attention(
            q, k, v, attn_mask=bias, is_causal=causal, enable_gqa=self.s.keys != self.s.heads
        )
        return self.out(y.transpose(1, 2).flatten(-2))


def _rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary positions (Su et al., arXiv:2104.09864): halves of a head turned against each other."""
    a, b = x.chunk(2, -1)
    return x * positions[0] + torch.cat((-b, a), -1) * positions[1]


class TransformerLayer(nn.Module):
    """Attention (and attention on the encoder) and two or three projections, around residual sums."""

    def __init__(self, s: ModelSizes, causal: bool, looks: bool) -> None:
        super().__init__()
        norm: Callable[[int], nn.Module] = RMSNorm if s.rotary or s.encoder else nn.LayerNorm
        self.s = s
        self.attention, self.norm1, self.norm2 = MultiHeadAttention(s, causal), norm(s.width), norm(s.width)
        self.look = MultiHeadAttention(s, False) if looks else None
        self.norm3 = norm(s.width) if looks else None
        plain = not s.rotary and not s.encoder
        self.up, self.down = nn.Linear(s.width, s.inner, bias=plain), nn.Linear(s.inner, s.width, bias=plain)
        self.gate = nn.Linear(s.width, s.inner, bias=False) if s.rotary else None

    def forward(self, x: Tensor, positions: Tensor | None, other: Tensor | None, bias: Tensor | None) -> Tensor:
        """The next hidden state."""
        if self.s.post_norm:
            x = self.norm1(x + self.attention(x, positions))
            return self.norm2(x + self._inner(x))
        x = x + self.attention(self.norm1(x), positions, None, bias)
        if self.look is not None and self.norm3 is not None:
            x = x + self.look(self.norm3(x), None, other)
        return x + self._inner(self.norm2(x))

    def _inner(self, x: Tensor) -> Tensor:
        if self.gate is not None:
            return self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        return self.down(nn.functional.relu(self.up(x)) if self.s.encoder else nn.functional.gelu(self.up(x)))


class Model(nn.Module):
    """A language model with the weight of its embedding in its head.

    With norms after the residual sums (BERT) there is one after the embeddings instead of at the end, and another layer
    before the head.
    """

    def __init__(self, s: ModelSizes) -> None:
        super().__init__()
        self.s = s
        norm: Callable[[int], nn.Module] = RMSNorm if s.rotary or s.encoder else nn.LayerNorm
        self.embed, self.norm = nn.Embedding(s.vocabulary, s.width), norm(s.width)
        self.positions = nn.Embedding(s.positions, s.width) if s.positions else None
        self.encoder = nn.ModuleList(TransformerLayer(s, False, False) for _ in range(s.encoder))
        self.encoded = norm(s.width) if s.encoder else None
        self.layers = nn.ModuleList(TransformerLayer(s, s.causal, s.encoder > 0) for _ in range(s.layers))
        self.biases = nn.ModuleList(nn.Embedding(32, s.heads) for _ in range(2 if s.encoder else 0))
        self.kinds = nn.Embedding(2, s.width) if s.post_norm else None
        self.mask = nn.Sequential(nn.Linear(s.width, s.width), nn.GELU(), norm(s.width)) if s.post_norm else None
        self.bias = nn.Parameter(torch.zeros(s.vocabulary)) if s.post_norm else None
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of every token; an encoder reads the same tokens."""
        s, place = self.s, torch.arange(tokens.shape[1], device=tokens.device)
        x: Tensor = self.embed(tokens)
        other = self._encode(x, place)
        if self.positions is not None:
            x = x + self.positions(place)
        if self.kinds is not None:
            x = self.norm(x + self.kinds(torch.zeros_like(tokens)))
        turns = self._turns(place, x.dtype) if s.rotary else None
        bias = self._bias(place, 1) if s.encoder else None
        for layer in self.layers:
            x = layer(x, turns, other, bias)
        x = self.norm(x) if self.mask is None else self.mask(x)
        return nn.functional.linear(x, self.embed.weight, self.bias)

    def _encode(self, x: Tensor, place: Tensor) -> Tensor | None:
        """What the decoder looks at."""
        if self.encoded is None:
            return None
        bias = self._bias(place, 0)
        for layer in self.encoder:
            x = layer(x, None, None, bias)
        found: Tensor = self.encoded(x)
        return found

    def _turns(self, place: Tensor, dtype: torch.dtype) -> Tensor:
        head = self.s.head
        rates = 500_000.0 ** (-torch.arange(0, head, 2, device=place.device).float() / head)
        angles = torch.outer(place.float(), rates).repeat(1, 2)
        return torch.stack((angles.cos(), angles.sin())).to(dtype)

    def _bias(self, place: Tensor, which: int) -> Tensor:
        """Relative position bias (Raffel et al., arXiv:1910.10683, section 2.1): 32 buckets, logarithmic from 16 on."""
        away = place[:, None] - place[None, :]
        far = away.abs().clamp(min=1).float()
        near = torch.where(far < 16, far, 16 + (far / 16).log2() * 16 / 3).clamp(max=31).long()
        bias = self.biases[which](near).permute(2, 0, 1)
        return bias.masked_fill(away < 0, float("-inf")) if which else bias


def source() -> str:
    """Where the models come from: ``"transformers 5.2"``, or ``"triosim"``."""
    if find_spec("transformers") is None:
        return "triosim"
    return f"transformers {import_module('transformers').__version__}"


def loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Loss of predicting the tokens themselves, whatever kind of model it is."""
    if isinstance(model, Model):
        return cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
    found: Tensor = model(input_ids=tokens, labels=tokens).loss
    return found


def build(name: str, tiny: bool = False) -> nn.Module:
    """A model by name; ``tiny`` has two layers of width 64 instead."""
    if tiny:
        return Model(TINY)
    if find_spec("transformers") is None:
        return Model(SIZES[name])
    return _of_transformers(name)


def _of_transformers(name: str) -> nn.Module:
    """The same sizes from transformers' own configurations, with random weights."""
    library: Any = import_module("transformers")
    s = SIZES[name]
    kind, config = {
        "gpt2": ("AutoModelForCausalLM", lambda: library.GPT2Config(use_cache=False)),
        "bert-base": ("AutoModelForMaskedLM", lambda: library.BertConfig()),
        "t5-small": (
            "AutoModelForSeq2SeqLM",
            lambda: library.T5Config(use_cache=False, decoder_start_token_id=0, pad_token_id=0),
        ),
        "llama-3.2-1b": (
            "AutoModelForCausalLM",
            lambda: library.LlamaConfig(
                vocab_size=s.vocabulary, hidden_size=s.width, intermediate_size=s.inner, num_hidden_layers=s.layers,
                num_attention_heads=s.heads, num_key_value_heads=s.keys, tie_word_embeddings=True, use_cache=False,
            ),
        ),
    }[name]  # fmt: skip
    made: nn.Module = getattr(library, kind).from_config(config())
    return made
