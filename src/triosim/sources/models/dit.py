"""Diffusion transformers (Peebles and Xie, arXiv:2212.09748): latents of an image as patches, told class and time.

Module names are those of the reference implementation (facebookresearch/DiT).  It also learns how uncertain its
prediction is, whose bound on the likelihood, a thousandth of the loss, is left out here.
"""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._broadcast import plus, times_each
from triosim.sources.models._diffusion import check_positions, modulated, sinusoids, times
from triosim.sources.models._family import Noise, divides
from triosim.sources.models._losses import squared_error
from triosim.sources.models._net import Net
from triosim.sources.models._parts import FeedForward
from triosim.sources.models._tape import Dim, Tensor
from triosim.sources.models._weights import Weights
from triosim.trace.tables import Category

FREQUENCIES = 256


@registered
@dataclass(frozen=True)
class DiT(Noise):
    """Configuration, named as the arguments of the reference; ``sample_size`` are elements of a side of the latents."""

    hidden_size: int
    depth: int
    num_heads: int
    patch_size: int
    sample_size: int = 32
    in_channels: int = 4
    num_classes: int = 1000
    class_dropout_prob: float = 0.1

    reads: ClassVar = "latents of images and classes"

    def problem(self) -> str:
        return divides(self, "num_heads", "hidden_size") or divides(self, "patch_size", "sample_size")

    @property
    def _feed_forward(self) -> FeedForward:
        names = ("fc1", "fc2")
        return FeedForward(self.hidden_size, 4 * self.hidden_size, "Mlp", "gelu_pytorch_tanh", names, bias=True)

    def inputs(self, net: Net, batch: Dim, size: int | None) -> tuple[Tensor, Tensor]:
        check_positions(size, self.sample_size)
        return super().inputs(net, batch, None)

    def weights(self) -> Weights:
        w, width = Weights(), self.hidden_size
        w.buffers["pos_embed"] = ((1, (self.sample_size // self.patch_size) ** 2, width), "float32")
        w.conv2d("x_embedder.proj", self.in_channels, width, self.patch_size, bias=True)
        w.linear("t_embedder.mlp.0", FREQUENCIES, width)
        w.linear("t_embedder.mlp.2", width, width)
        w.embedding("y_embedder.embedding_table", self.num_classes + (self.class_dropout_prob > 0), width)
        for i in range(self.depth):
            w.linear(f"blocks.{i}.attn.qkv", width, 3 * width)
            w.linear(f"blocks.{i}.attn.proj", width, width)
            self._feed_forward.weights(w, f"blocks.{i}.mlp")
            w.linear(f"blocks.{i}.adaLN_modulation.1", width, 6 * width)
        w.linear("final_layer.linear", width, self.patch_size**2 * 2 * self.in_channels)
        w.linear("final_layer.adaLN_modulation.1", width, 2 * width)
        return w

    def loss(self, net: Net, scores: Tensor, labels: Tensor) -> Tensor:
        return squared_error(net, net.slice(scores, 1, 0, self.in_channels), labels)

    def forward(self, net: Net, x: Tensor) -> Tensor:
        batch, side = x.shape[0], x.shape[2]
        x = net.add(self._patches(net, x), net.to(net.buffers["pos_embed"], net.precision))
        condition = net.add(self._time(net, batch), self._class(net, batch))
        for i in range(self.depth):
            with net.module(f"blocks.{i}", "DiTBlock"):
                x = self._block(net, x, condition)
        with net.module("final_layer", "FinalLayer"):
            shift, scale = self._modulation(net, condition, 2)
            x = net.linear("linear", modulated(net, net.layer_norm("norm_final", x), shift, scale))
        return self._image(net, x, side)

    def _patches(self, net: Net, x: Tensor) -> Tensor:
        with net.module("x_embedder", "PatchEmbed"):
            x = net.conv2d("proj", x, self.patch_size)
            batch, width, rows, columns = x.shape
            return net.transpose(net.view(x, (batch, width, rows * columns)), 1, 2)

    def _time(self, net: Net, batch: int) -> Tensor:
        with net.module("t_embedder", "TimestepEmbedder"):
            x = net.to(sinusoids(net, times(net, batch), FREQUENCIES), net.precision)
            with net.module("mlp", "Sequential"):
                x = net.linear("0", x)
                with net.module("1", "SiLU"):
                    x = net.silu(x)
                return net.linear("2", x)

    def _class(self, net: Net, batch: int) -> Tensor:
        labels = net.tensor((batch,), "int64", Category.INPUT)
        with net.module("y_embedder", "LabelEmbedder"):
            if self.class_dropout_prob and net.training:
                drawn, dropped, kept = (net.tensor((batch,), kind) for kind in ("float32", "bool", "int64"))
                net.operator("aten::rand", (), (), (drawn,))
                net.operator("aten::lt", ("self",), (drawn,), (dropped,))
                net.operator("aten::where", ("condition", "other"), (dropped, labels), (kept,))
                labels = kept
            return net.embedding("embedding_table", labels)

    def _modulation(self, net: Net, condition: Tensor, parts: int) -> list[Tensor]:
        """Vectors [batch, width] made of the condition."""
        with net.module("adaLN_modulation", "Sequential"):
            with net.module("0", "SiLU"):
                x = net.silu(condition)
            return net.split(net.linear("1", x), [self.hidden_size] * parts)

    def _block(self, net: Net, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale, gate, *of_mlp = self._modulation(net, condition, 6)
        y = modulated(net, net.layer_norm("norm1", x), shift, scale)
        with net.module("attn", "Attention"):
            y = self._attention(net, y)
        x = plus(net, x, times_each(net, net.unsqueeze(gate, 1), y))
        y = modulated(net, net.layer_norm("norm2", x), of_mlp[0], of_mlp[1])
        with net.module("mlp", "Mlp"):
            y = self._feed_forward(net, y)
        return plus(net, x, times_each(net, net.unsqueeze(of_mlp[2], 1), y))

    def _attention(self, net: Net, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, 3, self.num_heads, width // self.num_heads)
        packed = net.permute(net.view(net.linear("qkv", x), shape, strided_gradient=True), (2, 0, 3, 1, 4))
        q, k, v = net.unbind(packed)
        y = net.attention(q, k, v, causal=False)
        return net.linear("proj", net.view(net.transpose(y, 1, 2), x.shape))

    def _image(self, net: Net, x: Tensor, side: int) -> Tensor:
        """Patches [batch, tokens, elements] put side by side."""
        batch, patch, channels = x.shape[0], self.patch_size, 2 * self.in_channels
        rows = side // patch
        apart = net.view(x, (batch, rows, rows, patch, patch, channels), strided_gradient=True)
        x = net.permute(apart, (0, 5, 1, 3, 2, 4))
        return net.view(net.clone(x), (batch, channels, side, side), "aten::_unsafe_view")
