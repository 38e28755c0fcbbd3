"""Diffusion transformers as ``diffusers`` has them: every block embeds time and class by weights of its own.

The networks of ``dit`` (Peebles and Xie, arXiv:2212.09748) under the module names of ``DiTTransformer2DModel``.  Where
one also learns how uncertain its prediction is, that part of the loss is left out, as there.
"""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._broadcast import times_each
from triosim.sources.models._diffusion import check_positions, embedded, modulated, sinusoids, times
from triosim.sources.models._family import Noise, divides
from triosim.sources.models._losses import squared_error
from triosim.sources.models._net import Net
from triosim.sources.models._tape import Dim, Tensor
from triosim.sources.models._weights import Weights
from triosim.trace.tables import Category

FREQUENCIES = 256
_BLOCKS = "transformer_blocks"


@registered
@dataclass(frozen=True)
class DiffusersDiT(Noise):
    """Configuration, named as in the ``config.json`` of ``diffusers``."""

    num_attention_heads: int = 16
    attention_head_dim: int = 72
    num_layers: int = 28
    patch_size: int = 2
    sample_size: int = 32
    in_channels: int = 4
    out_channels: int = 0
    num_embeds_ada_norm: int = 1000
    attention_bias: bool = True

    model_types: ClassVar = ("DiTTransformer2DModel", "Transformer2DModel")
    fixed: ClassVar = {
        "norm_type": "ada_norm_zero", "activation_fn": "gelu-approximate", "norm_elementwise_affine": False,
        "dropout": (0.0, 0), "upcast_attention": False, "cross_attention_dim": None, "num_vector_embeds": None,
        "only_cross_attention": False, "double_self_attention": False,
    }  # fmt: skip
    reads: ClassVar = "latents of images and classes"

    @property
    def width(self) -> int:
        """Of the residual stream."""
        return self.num_attention_heads * self.attention_head_dim

    @property
    def made(self) -> int:
        """Channels that it makes."""
        return self.out_channels or self.in_channels

    def problem(self) -> str:
        few = self.made < self.in_channels
        return divides(self, "patch_size", "sample_size") or ("out_channels are fewer than in_channels" if few else "")

    def inputs(self, net: Net, batch: Dim, size: int | None) -> tuple[Tensor, Tensor]:
        check_positions(size, self.sample_size)
        return super().inputs(net, batch, None)

    def weights(self) -> Weights:
        w, width = Weights(), self.width
        w.buffers["pos_embed.pos_embed"] = ((1, (self.sample_size // self.patch_size) ** 2, width), "float32")
        w.conv2d("pos_embed.proj", self.in_channels, width, self.patch_size, bias=True)
        for i in range(self.num_layers):
            at = f"{_BLOCKS}.{i}"
            w.linear(f"{at}.norm1.emb.timestep_embedder.linear_1", FREQUENCIES, width)
            w.linear(f"{at}.norm1.emb.timestep_embedder.linear_2", width, width)
            w.embedding(f"{at}.norm1.emb.class_embedder.embedding_table", self.num_embeds_ada_norm + 1, width)
            w.linear(f"{at}.norm1.linear", width, 6 * width)
            for name in ("to_q", "to_k", "to_v"):
                w.linear(f"{at}.attn1.{name}", width, width, bias=self.attention_bias)
            w.linear(f"{at}.attn1.to_out.0", width, width)
            w.linear(f"{at}.ff.net.0.proj", width, 4 * width)
            w.linear(f"{at}.ff.net.2", 4 * width, width)
        w.linear("proj_out_1", width, 2 * width)
        w.linear("proj_out_2", width, self.patch_size**2 * self.made)
        return w

    def loss(self, net: Net, scores: Tensor, labels: Tensor) -> Tensor:
        more = self.made > self.in_channels
        return squared_error(net, net.slice(scores, 1, 0, self.in_channels) if more else scores, labels)

    def forward(self, net: Net, x: Tensor) -> Tensor:
        batch, side = x.shape[0], x.shape[2]
        at, labels = times(net, batch), net.tensor((batch,), "int64", Category.INPUT)
        with net.module("pos_embed", "PatchEmbed"):
            x = self._patches(net, x)
        for i in range(self.num_layers):
            with net.module(f"{_BLOCKS}.{i}", "BasicTransformerBlock"):
                x = self._block(net, x, at, labels)
        with net.module(f"{_BLOCKS}.0.norm1", "AdaLayerNormZero"):
            condition = self._condition(net, at, labels)
        shift, scale = net.split(net.linear("proj_out_1", net.silu(condition)), [self.width] * 2)
        x = net.linear("proj_out_2", modulated(net, net.layer_norm("norm_out", x), shift, scale))
        patch, rows = self.patch_size, side // self.patch_size
        apart = net.view(x, (batch, rows, rows, patch, patch, self.made), strided_gradient=True)
        x = net.clone(net.permute(apart, (0, 5, 1, 3, 2, 4)))
        return net.view(x, (batch, self.made, side, side), "aten::_unsafe_view")

    def _patches(self, net: Net, x: Tensor) -> Tensor:
        x = net.conv2d("proj", x, self.patch_size)
        batch, width, rows, columns = x.shape
        x = net.transpose(net.view(x, (batch, width, rows * columns)), 1, 2)
        y = net.tensor(x.shape, "float32", needs_grad=x.needs_grad)
        row = net.operator("aten::add", ("self", "other"), (x, net.buffers[f"{net.path}.pos_embed"]), (y,))
        net.derivative(row, (y,), lambda g: net.give(x, net.to(g, x.dtype)))
        return net.to(y, net.precision)

    def _condition(self, net: Net, at: Tensor, labels: Tensor) -> Tensor:
        """Vectors [batch, width] of time and class; a tenth of the classes is not told in training."""
        with net.module("emb", "CombinedTimestepLabelEmbeddings"):
            time = net.to(sinusoids(net, at, FREQUENCIES, flipped=True), net.precision)
            time = embedded(net, "timestep_embedder", "TimestepEmbedding", time)
            with net.module("class_embedder", "LabelEmbedding"):
                if net.training:
                    drawn, dropped = net.tensor(labels.shape, "float32"), net.tensor(labels.shape, "bool")
                    kept = net.tensor(labels.shape, "int64")
                    net.operator("aten::rand", (), (), (drawn,))
                    net.operator("aten::lt", ("self",), (drawn,), (dropped,))
                    net.operator("aten::where", ("condition", "other"), (dropped, labels), (kept,))
                    labels = kept
                return net.add(time, net.embedding("embedding_table", labels))

    def _block(self, net: Net, x: Tensor, at: Tensor, labels: Tensor) -> Tensor:
        with net.module("norm1", "AdaLayerNormZero"):
            made = net.linear("linear", net.silu(self._condition(net, at, labels)))
            shift, scale, gate, *of_rest = net.split(made, [self.width] * 6)
            y = modulated(net, net.layer_norm("norm", x), shift, scale)
        with net.module("attn1", "Attention"):
            y = self._attention(net, y)
        x = net.add(times_each(net, net.unsqueeze(gate, 1), y), x)
        y = modulated(net, net.layer_norm("norm3", x), of_rest[0], of_rest[1])
        with net.module("ff", "FeedForward"):
            y = net.linear("net.2", net.gelu(net.linear("net.0.proj", y), "tanh"))
        return net.add(times_each(net, net.unsqueeze(of_rest[2], 1), y), x)

    def _attention(self, net: Net, x: Tensor) -> Tensor:
        made = [net.linear(name, x) for name in ("to_q", "to_k", "to_v")]
        shape = (*x.shape[:2], self.num_attention_heads, self.attention_head_dim)
        q, k, v = (net.transpose(net.view(y, shape), 1, 2) for y in made)
        y = net.view(net.transpose(net.attention(q, k, v, causal=False), 1, 2), x.shape)
        return net.scaled(net.linear("to_out.0", y), "aten::div")
