"""Autoencoders of images (Rombach et al., arXiv:2112.10752): what latent diffusion models read and write.

An encoder halves an image level by level and says mean and spread of its latents; one draw of these is what a decoder
makes an image of.  Module names are those of ``diffusers``' ``AutoencoderKL``.  Trained by itself it is by the squared
error of the pixels; its perceptual and adversarial losses are other networks, and the bound on the spread is small.
Copies that change the layout of a convolution's operands are left out: which there are depends on the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.registry import registered
from triosim.sources.models._diffusion import doubled, group_norm, residual, residual_weights
from triosim.sources.models._family import Images, Sizes
from triosim.sources.models._losses import squared_error
from triosim.sources.models._net import Net
from triosim.sources.models._spatial import strided_linear
from triosim.sources.models._tape import Dim, Tensor
from triosim.sources.models._weights import Weights
from triosim.trace.tables import Category

MIDDLE = 2
"""Residual blocks around the attention between levels."""


@registered
@dataclass(frozen=True)
class Autoencoder(Images):
    """Configuration, named as in ``diffusers``' ``config.json``; ``sample_size`` are pixels of a side.

    ``decoder_only`` is the decoder alone, which makes images of latents that it reads.
    """

    block_out_channels: Sizes = (128, 256, 512, 512)
    layers_per_block: int = 2
    latent_channels: int = 4
    norm_num_groups: int = 32
    in_channels: int = 3
    sample_size: int = 1024
    use_quant_conv: bool = True
    use_post_quant_conv: bool = True
    decoder_only: bool = False

    precision = "bfloat16"
    optimizer = "adamw"
    model_types: ClassVar = ("AutoencoderKL",)
    fixed: ClassVar = {
        "down_block_types": tuple(["DownEncoderBlock2D"] * n for n in (4, 3, 2)),
        "up_block_types": tuple(["UpDecoderBlock2D"] * n for n in (4, 3, 2)),
        "act_fn": "silu", "out_channels": 3, "mid_block_add_attention": True,
    }  # fmt: skip

    def problem(self) -> str:
        for channels in self.block_out_channels:
            if channels % self.norm_num_groups:
                return f"{channels} channels are not divided by {self.norm_num_groups} groups"
        return ""

    def inputs(self, net: Net, batch: Dim, size: int | None) -> tuple[Tensor, Tensor]:
        least = 1 << (len(self.block_out_channels) - 1)
        side = size or self.sample_size
        if side % least:
            raise InputError(f"image_size {side} is not a multiple of {least}: give one that is")
        image = (batch, self.in_channels, side, side)
        latents = (batch, self.latent_channels, side // least, side // least)
        read = net.tensor(latents if self.decoder_only else image, net.precision, Category.INPUT)
        return read, net.tensor(image, net.precision, Category.LABEL)

    def loss(self, net: Net, scores: Tensor, labels: Tensor) -> Tensor:
        return squared_error(net, scores, labels)

    def _halving(self) -> Iterator[tuple[str, list[tuple[int, int]], bool]]:
        """Path of each block of the encoder, channels that its residual blocks read and make, and whether it halves."""
        channels = self.block_out_channels
        for level, out in enumerate(channels):
            reads = [channels[max(level - 1, 0)]] + [out] * (self.layers_per_block - 1)
            yield f"encoder.down_blocks.{level}", [(read, out) for read in reads], level + 1 < len(channels)

    def _doubling(self) -> Iterator[tuple[str, list[tuple[int, int]], bool]]:
        """The same of the decoder, whose blocks have one residual block more."""
        channels = self.block_out_channels[::-1]
        for level, out in enumerate(channels):
            reads = [channels[max(level - 1, 0)]] + [out] * self.layers_per_block
            yield f"decoder.up_blocks.{level}", [(read, out) for read in reads], level + 1 < len(channels)

    # --- weights ------------------------------------------------------------------------------------------------------

    def weights(self) -> Weights:
        w, first, last = Weights(), self.block_out_channels[0], self.block_out_channels[-1]
        if not self.decoder_only:
            w.conv2d("encoder.conv_in", self.in_channels, first, 3, bias=True)
            self._levels_weights(w, self._halving(), "downsamplers")
            self._middle_weights(w, "encoder.mid_block")
            w.norm("encoder.conv_norm_out", last)
            w.conv2d("encoder.conv_out", last, 2 * self.latent_channels, 3, bias=True)
        w.conv2d("decoder.conv_in", self.latent_channels, last, 3, bias=True)
        self._levels_weights(w, self._doubling(), "upsamplers")
        self._middle_weights(w, "decoder.mid_block")
        w.norm("decoder.conv_norm_out", first)
        w.conv2d("decoder.conv_out", first, self.in_channels, 3, bias=True)
        if self.use_quant_conv and not self.decoder_only:
            w.conv2d("quant_conv", 2 * self.latent_channels, 2 * self.latent_channels, 1, bias=True)
        if self.use_post_quant_conv:
            w.conv2d("post_quant_conv", self.latent_channels, self.latent_channels, 1, bias=True)
        return w

    @staticmethod
    def _levels_weights(w: Weights, levels: Iterator[tuple[str, list[tuple[int, int]], bool]], sampler: str) -> None:
        for path, pairs, resized in levels:
            for i, (inputs, outputs) in enumerate(pairs):
                residual_weights(w, f"{path}.resnets.{i}", inputs, outputs)
            if resized:
                w.conv2d(f"{path}.{sampler}.0.conv", pairs[-1][1], pairs[-1][1], 3, bias=True)

    def _middle_weights(self, w: Weights, path: str) -> None:
        width = self.block_out_channels[-1]
        w.norm(f"{path}.attentions.0.group_norm", width)
        for name in ("to_q", "to_k", "to_v", "to_out.0"):
            w.linear(f"{path}.attentions.0.{name}", width, width)
        for i in range(MIDDLE):
            residual_weights(w, f"{path}.resnets.{i}", width, width)

    # --- operators ----------------------------------------------------------------------------------------------------

    def forward(self, net: Net, x: Tensor) -> Tensor:
        return self._image(net, x if self.decoder_only else self._latents(net, x))

    def _latents(self, net: Net, x: Tensor) -> Tensor:
        """Drawn from what the encoder makes of an image."""
        groups = self.norm_num_groups
        x = net.conv2d("encoder.conv_in", x, 1, 1)
        for path, pairs, halves in self._halving():
            with net.module(path, "DownEncoderBlock2D"):
                for i in range(len(pairs)):
                    x = residual(net, f"resnets.{i}", x, groups)
                if halves:
                    x = net.conv2d("downsamplers.0.conv", _padded(net, x), 2)
        x = self._middle(net, "encoder.mid_block", x)
        x = net.conv2d("encoder.conv_out", net.silu(group_norm(net, "encoder.conv_norm_out", x, groups)), 1, 1)
        if self.use_quant_conv:
            x = net.conv2d("quant_conv", x)
        return _drawn(net, x)

    def _image(self, net: Net, x: Tensor) -> Tensor:
        """What the decoder makes of latents."""
        groups = self.norm_num_groups
        if self.use_post_quant_conv:
            x = net.conv2d("post_quant_conv", x)
        x = self._middle(net, "decoder.mid_block", net.conv2d("decoder.conv_in", x, 1, 1))
        for path, pairs, doubles in self._doubling():
            with net.module(path, "UpDecoderBlock2D"):
                for i in range(len(pairs)):
                    x = residual(net, f"resnets.{i}", x, groups)
                if doubles:
                    x = net.conv2d("upsamplers.0.conv", doubled(net, x), 1, 1)
        x = net.silu(group_norm(net, "decoder.conv_norm_out", x, groups))
        return net.conv2d("decoder.conv_out", x, 1, 1)

    def _middle(self, net: Net, path: str, x: Tensor) -> Tensor:
        with net.module(path, "UNetMidBlock2D"):
            x = residual(net, "resnets.0", x, self.norm_num_groups)
            with net.module("attentions.0", "Attention"):
                x = self._attention(net, x)
            return residual(net, "resnets.1", x, self.norm_num_groups)

    def _attention(self, net: Net, x: Tensor) -> Tensor:
        """Of one head, each place to all."""
        batch, width, rows, columns = x.shape
        places = rows * columns
        flat = group_norm(net, "group_norm", net.view(x, (batch, width, places)), self.norm_num_groups)
        flat = net.transpose(flat, 1, 2)
        made = [strided_linear(net, name, flat) for name in ("to_q", "to_k", "to_v")]
        q, k, v = (net.transpose(net.view(y, (batch, places, 1, width)), 1, 2) for y in made)
        y = net.view(net.transpose(net.attention(q, k, v, causal=False), 1, 2), (batch, places, width))
        y = net.view(net.transpose(net.linear("to_out.0", y), 1, 2), x.shape)
        return net.scaled(net.add(y, x), "aten::div")


def _padded(net: Net, x: Tensor) -> Tensor:
    """An image with a row and a column of zeros after the last ones."""
    y = net.tensor((*x.shape[:2], x.shape[2] + 1, x.shape[3] + 1), x.dtype, needs_grad=x.needs_grad)
    row = net.operator("aten::constant_pad_nd", ("self",), (x,), (y,), {"pad": [0, 1, 0, 1]})

    def rule(g: Tensor) -> None:
        dx = net.tensor(x.shape, x.dtype)
        net.operator("aten::constant_pad_nd", ("self",), (g,), (dx,), {"pad": [0, -1, 0, -1]})
        net.give(x, dx)

    net.derivative(row, (y,), rule)
    return y


def _drawn(net: Net, moments: Tensor) -> Tensor:
    """Latents drawn from what an encoder says: mean and logarithm of the variance, one after the other."""
    channels = moments.shape[1] // 2
    mean, spread = net.split(moments, [channels] * 2, 1)
    bounded = net.tensor(spread.shape, spread.dtype, needs_grad=spread.needs_grad)
    row = net.operator("aten::clamp", ("self",), (spread,), (bounded,), {"min": -30.0, "max": 20.0})

    def within(g: Tensor) -> None:
        low, high, both = (net.tensor(spread.shape, "bool") for _ in range(3))
        net.operator("aten::ge", ("self",), (spread,), (low,))
        net.operator("aten::le", ("self",), (spread,), (high,))
        net.operator("aten::logical_and", ("self", "other"), (low, high), (both,))
        dx = net.tensor(spread.shape, spread.dtype)
        net.operator("aten::where", ("condition", "self"), (both, g), (dx,))
        net.give(spread, dx)

    net.derivative(row, (bounded,), within)
    deviation = _exponential(net, net.scaled(bounded))
    net.unary("aten::exp", bounded)
    noise = net.tensor(mean.shape, mean.dtype)
    net.operator("aten::randn", (), (), (noise,))
    return net.add(mean, net.mul(deviation, noise))


def _exponential(net: Net, x: Tensor) -> Tensor:
    """e^x, whose gradient is itself."""
    y = net.tensor(x.shape, x.dtype, needs_grad=x.needs_grad)
    row = net.operator("aten::exp", ("self",), (x,), (y,))

    def rule(g: Tensor) -> None:
        dx = net.tensor(x.shape, x.dtype)
        net.operator("aten::mul", ("self", "other"), (g, y), (dx,))
        net.give(x, dx)

    net.derivative(row, (y,), rule)
    return y
