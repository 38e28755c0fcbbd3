"""FLUX.1: a transformer of two streams, image and text, that attend to each other, then of both as one.

Black Forest Labs, 2024; multimodal diffusion transformers are Esser et al.'s, arXiv:2403.03206.  Four neighbouring
latents are one token.  Text comes as states of a T5 encoder and one vector of CLIP, which are models of their own.
Module names are those of ``diffusers``' ``FluxTransformer2DModel``.
"""

from __future__ import annotations

import math
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.registry import registered
from triosim.sources.models._broadcast import plus, times_each
from triosim.sources.models._diffusion import embedded, modulated, sinusoids, turned, turns_of
from triosim.sources.models._family import PIXELS, Noise
from triosim.sources.models._net import Net
from triosim.sources.models._parts import FeedForward
from triosim.sources.models._tape import Dim, Tensor
from triosim.sources.models._weights import Weights
from triosim.trace.tables import Category

FREQUENCIES = 256
TOKEN = 2 * PIXELS  # pixels along each side of what a token stands for
_ATTENTION = ("to_q", "to_k", "to_v")
_ADDED = ("add_q_proj", "add_k_proj", "add_v_proj")


@registered
@dataclass(frozen=True)
class Flux(Noise):
    """Configuration, named as in ``diffusers``' ``config.json``, with ``text_length`` tokens of text."""

    num_layers: int = 19
    num_single_layers: int = 38
    num_attention_heads: int = 24
    attention_head_dim: int = 128
    in_channels: int = 64
    joint_attention_dim: int = 4096
    pooled_projection_dim: int = 768
    guidance_embeds: bool = False
    axes_dims_rope: tuple[int, ...] = (16, 56, 56)
    sample_size: int = 128
    text_length: int = 512

    reads: ClassVar = "latents of images and text"
    model_types: ClassVar = ("FluxTransformer2DModel",)
    fixed: ClassVar = {"patch_size": 1}

    def problem(self) -> str:
        turned, size = sum(self.axes_dims_rope), self.attention_head_dim
        return "" if turned == size else f"axes_dims_rope add up to {turned}, not to attention_head_dim {size}"

    @property
    def _width(self) -> int:
        return self.num_attention_heads * self.attention_head_dim

    @property
    def _feed_forward(self) -> FeedForward:
        names = ("net.0.proj", "net.2")
        return FeedForward(self._width, 4 * self._width, "FeedForward", "gelu_pytorch_tanh", names, bias=True)

    def extent(self, x: Tensor) -> str:
        return f"{TOKEN * math.isqrt(x.shape[1])} pixels"

    def inputs(self, net: Net, batch: Dim, size: int | None) -> tuple[Tensor, Tensor]:
        size = size or PIXELS * self.sample_size
        if size % TOKEN:
            raise InputError(f"image_size {size} is not a multiple of {TOKEN}: give one that is")
        shape = (batch, (size // TOKEN) ** 2, self.in_channels)
        return net.tensor(shape, net.precision, Category.INPUT), net.tensor(shape, net.precision, Category.LABEL)

    # --- weights ------------------------------------------------------------------------------------------------------

    def weights(self) -> Weights:
        w, width = Weights(), self._width
        guidance = ("guidance_embedder",) if self.guidance_embeds else ()
        for name in ("timestep_embedder", *guidance, "text_embedder"):
            size = self.pooled_projection_dim if name == "text_embedder" else FREQUENCIES
            w.linear(f"time_text_embed.{name}.linear_1", size, width)
            w.linear(f"time_text_embed.{name}.linear_2", width, width)
        w.linear("context_embedder", self.joint_attention_dim, width)
        w.linear("x_embedder", self.in_channels, width)
        for i in range(self.num_layers):
            at = f"transformer_blocks.{i}"
            for name in ("norm1", "norm1_context"):
                w.linear(f"{at}.{name}.linear", width, 6 * width)
            self._attention_weights(w, f"{at}.attn", "", (*_ATTENTION, "to_out.0"))
            self._attention_weights(w, f"{at}.attn", "added_", (*_ADDED, "to_add_out"))
            for name in ("ff", "ff_context"):
                self._feed_forward.weights(w, f"{at}.{name}")
        for i in range(self.num_single_layers):
            at = f"single_transformer_blocks.{i}"
            w.linear(f"{at}.norm.linear", width, 3 * width)
            w.linear(f"{at}.proj_mlp", width, 4 * width)
            w.linear(f"{at}.proj_out", 5 * width, width)
            self._attention_weights(w, f"{at}.attn", "", _ATTENTION)
        w.linear("norm_out.linear", width, 2 * width)
        w.linear("proj_out", width, self.in_channels)
        return w

    def _attention_weights(self, w: Weights, at: str, kind: str, products: tuple[str, ...]) -> None:
        for part in "qk":
            w.norm(f"{at}.norm_{kind}{part}", self.attention_head_dim, bias=False)
        for name in products:
            w.linear(f"{at}.{name}", self._width, self._width)

    # --- operators ----------------------------------------------------------------------------------------------------

    def forward(self, net: Net, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        x = net.linear("x_embedder", x)
        condition = self._condition(net, batch)
        text = net.tensor((batch, self.text_length, self.joint_attention_dim), net.precision, Category.INPUT)
        text = net.linear("context_embedder", text)
        turns = turns_of(net, self.text_length + tokens, self.axes_dims_rope)
        for i in range(self.num_layers):
            with net.module(f"transformer_blocks.{i}", "FluxTransformerBlock"):
                text, x = self._double(net, text, x, condition, turns)
        for i in range(self.num_single_layers):
            with net.module(f"single_transformer_blocks.{i}", "FluxSingleTransformerBlock"):
                text, x = self._single(net, net.cat((text, x), 1), condition, turns)
        with net.module("norm_out", "AdaLayerNormContinuous"):
            scale, shift = net.split(net.linear("linear", net.silu(condition)), [self._width] * 2)
            y = times_each(net, net.layer_norm("norm", x), net.unsqueeze(net.shifted(scale), 1))
            x = plus(net, y, net.unsqueeze(shift, 1))
        return net.linear("proj_out", x)

    def _condition(self, net: Net, batch: int) -> Tensor:
        """Time, guidance and the one vector of the text, [batch, width]."""
        names = ("timestep_embedder", "guidance_embedder")[: 1 + self.guidance_embeds]
        given = [net.scaled(net.tensor((batch,), net.precision, Category.INPUT)) for _ in names]
        pooled = net.tensor((batch, self.pooled_projection_dim), net.precision, Category.INPUT)
        with net.module("time_text_embed", "CombinedTimestepGuidanceTextProjEmbeddings"):
            made = []
            for name, at in zip(names, given, strict=True):
                waves = net.to(sinusoids(net, at, FREQUENCIES, flipped=True), net.precision)
                made.append(embedded(net, name, "TimestepEmbedding", waves))
            y = made[0] if len(made) == 1 else net.add(*made)
            return net.add(y, embedded(net, "text_embedder", "PixArtAlphaTextProjection", pooled))

    def _modulation(self, net: Net, name: str, kind: str, condition: Tensor, x: Tensor, parts: int) -> list[Tensor]:
        """``x`` normed, shifted and scaled, and what of the condition comes after that."""
        with net.module(name, kind):
            made = net.split(net.linear("linear", net.silu(condition)), [self._width] * parts)
            return [modulated(net, net.layer_norm("norm", x), made[0], made[1]), *made[2:]]

    def _double(
        self, net: Net, text: Tensor, x: Tensor, condition: Tensor, turns: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        y, *of_x = self._modulation(net, "norm1", "AdaLayerNormZero", condition, x, 6)
        z, *of_text = self._modulation(net, "norm1_context", "AdaLayerNormZero", condition, text, 6)
        with net.module("attn", "FluxAttention"):
            own, added = (self._heads(net, names, x, cut=True) for names, x in ((_ATTENTION, y), (_ADDED, z)))
            own[:2] = [net.rms_norm(f"norm_{part}", own[at], "RMSNorm") for at, part in enumerate("qk")]
            added[:2] = [net.rms_norm(f"norm_added_{part}", added[at], "RMSNorm") for at, part in enumerate("qk")]
            q, k, v = (net.cat((first, second), 1) for first, second in zip(added, own, strict=True))
            z, y = net.split(self._attention(net, q, k, v, turns), [text.shape[1], x.shape[1]], 1)
            y, z = net.linear("to_out.0", net.clone(y)), net.linear("to_add_out", net.clone(z))
        x = self._fed(net, "", x, y, of_x)
        return self._fed(net, "_context", text, z, of_text), x

    def _fed(self, net: Net, which: str, x: Tensor, attended: Tensor, condition: list[Tensor]) -> Tensor:
        """A stream with what it attended to, and its feed-forward part."""
        gate, shift, scale, last = condition
        x = plus(net, x, times_each(net, net.unsqueeze(gate, 1), attended))
        y = modulated(net, net.layer_norm(f"norm2{which}", x), shift, scale)
        with net.module(f"ff{which}", "FeedForward"):
            y = self._feed_forward(net, y)
        return plus(net, x, times_each(net, net.unsqueeze(last, 1), y))

    def _single(self, net: Net, x: Tensor, condition: Tensor, turns: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        y, gate = self._modulation(net, "norm", "AdaLayerNormZeroSingle", condition, x, 3)
        inner = net.gelu(net.linear("proj_mlp", y), "tanh")
        with net.module("attn", "FluxAttention"):
            q, k, v = self._heads(net, _ATTENTION, y)
            q, k = net.rms_norm("norm_q", q, "RMSNorm"), net.rms_norm("norm_k", k, "RMSNorm")
            y = self._attention(net, q, k, v, turns)
        y = net.linear("proj_out", net.cat((y, inner), 2))
        x = plus(net, x, times_each(net, net.unsqueeze(gate, 1), y))
        return net.slice(x, 1, 0, self.text_length), net.slice(x, 1, self.text_length, x.shape[1])

    def _heads(self, net: Net, names: tuple[str, ...], x: Tensor, cut: bool = False) -> list[Tensor]:
        """Queries, keys and values, [batch, tokens, heads, size]; of ``cut`` tokens, values' gradients are copied."""
        shape = (*x.shape[:2], self.num_attention_heads, self.attention_head_dim)
        made = [net.linear(name, x, strided_gradient=cut and name == names[2]) for name in names]
        return [net.view(y, shape) for y in made]

    def _attention(self, net: Net, q: Tensor, k: Tensor, v: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = (net.transpose(x, 1, 2) for x in (turned(net, q, *turns), turned(net, k, *turns), v))
        y = net.attention(q, k, v, causal=False)
        return net.view(net.transpose(y, 1, 2), (q.shape[0], q.shape[2], self._width))
