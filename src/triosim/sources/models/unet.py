"""The UNet of Stable Diffusion (Rombach et al., arXiv:2112.10752; XL: Podell et al., arXiv:2307.01952): convolutions
that attend to a text.

Latents are halved level by level and doubled again beside what was there before; some levels attend, to themselves and
to the states of the text encoders, which are inputs: of Stable Diffusion 1 and 2 all but the last, of XL all but the
first.  Module names are those of ``diffusers``' ``UNet2DConditionModel``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.registry import registered
from triosim.sources.models._diffusion import (
    doubled,
    embedded,
    group_norm,
    residual,
    residual_weights,
    sinusoids,
    times,
)
from triosim.sources.models._family import PIXELS, Blocks, Noise, Sizes
from triosim.sources.models._net import Net
from triosim.sources.models._spatial import SpatialTransformer
from triosim.sources.models._tape import Dim, Tensor
from triosim.sources.models._weights import Weights
from triosim.trace.tables import Category

MICRO_CONDITIONS = 6  # height and width, of the image and of what is cut out of it, and where
KINDS = {"down": ("DownBlock2D", "CrossAttnDownBlock2D"), "up": ("UpBlock2D", "CrossAttnUpBlock2D")}
"""Classes of blocks that do not attend, and of those that do."""
USUAL = [1, 1, 1, 0]
"""Levels that attend in the models of files that leave it out."""


def _kinds(table: dict[str, Any], way: str) -> list[int]:
    """0 or 1 for each block of a way that attends or not; empty where there is another kind among them."""
    usual = [KINDS[way][attends] for attends in (USUAL if way == "down" else USUAL[::-1])]
    listed = table.get(f"{way}_block_types", usual)
    if not isinstance(listed, list) or not all(kind in KINDS[way] for kind in listed):
        return []
    return [KINDS[way].index(kind) for kind in listed]


@registered
@dataclass(frozen=True)
class UNet(Noise):
    """Configuration, named as in ``diffusers``' ``config.json``; ``attention_head_dim`` are heads, as there.

    Attributes:
        attends: 0 or 1 for each level, in place of the kinds of blocks; without it all but the first attend.
        micro_conditions: whether sizes and one vector of the text are added to the time (``text_time``).
    """

    attends: Blocks = ()
    micro_conditions: bool = True
    use_linear_projection: bool = True
    block_out_channels: Sizes = (320, 640, 1280)
    transformer_layers_per_block: Sizes = (1, 2, 10)
    attention_head_dim: Sizes = (5, 10, 20)
    layers_per_block: int = 2
    cross_attention_dim: int = 2048
    addition_time_embed_dim: int = 256
    projection_class_embeddings_input_dim: int = 2816
    norm_num_groups: int = 32
    in_channels: int = 4
    sample_size: int = 128
    text_length: int = 77

    reads: ClassVar = "latents of images and text"
    model_types: ClassVar = ("UNet2DConditionModel",)
    fixed: ClassVar = {
        "down_block_types": "lists of DownBlock2D and CrossAttnDownBlock2D",
        "up_block_types": "the same in the order of up: UpBlock2D and CrossAttnUpBlock2D",
        "mid_block_type": ("UNetMidBlock2DCrossAttn",), "addition_embed_type": "text_time", "out_channels": 4,
        "only_cross_attention": False, "dual_cross_attention": False,
    }  # fmt: skip

    @classmethod
    def reworded(cls, table: dict[str, Any]) -> dict[str, Any]:
        """Kinds of blocks as the levels that attend, sizes of all levels as lists; what is null is left out."""
        table = {key: value for key, value in table.items() if value is not None}
        channels = table.get("block_out_channels", cls.block_out_channels)
        down, up = (_kinds(table, way) for way in KINDS)
        if down and down == up[::-1]:  # what is neither stays, and is refused
            table["attends"] = down
            table = {key: value for key, value in table.items() if not key.endswith("_block_types")}
        table["micro_conditions"] = table.get("addition_embed_type") == "text_time"
        heads = table.pop("num_attention_heads", table.get("attention_head_dim", 8))
        depth = table.get("transformer_layers_per_block", 1)
        for name, value in (("attention_head_dim", heads), ("transformer_layers_per_block", depth)):
            table[name] = [value for _ in channels] if isinstance(value, int) else value
        table.setdefault("use_linear_projection", False)
        return {key: value for key, value in table.items() if key != "upcast_attention"}  # kernels do not heed it

    def problem(self) -> str:
        if self.attends and len(self.attends) != len(self.block_out_channels):
            return "attends and block_out_channels differ in their levels"
        levels = {len(self.block_out_channels), len(self.transformer_layers_per_block), len(self.attention_head_dim)}
        if len(levels) > 1:
            return "block_out_channels, transformer_layers_per_block and attention_head_dim differ in their levels"
        for channels, heads in zip(self.block_out_channels, self.attention_head_dim, strict=True):
            if channels % heads or channels % self.norm_num_groups:
                return f"{channels} channels are not divided by {heads} heads and {self.norm_num_groups} groups"
        if not self.micro_conditions:
            return ""
        pooled = self.projection_class_embeddings_input_dim - MICRO_CONDITIONS * self.addition_time_embed_dim
        return "" if pooled > 0 else "projection_class_embeddings_input_dim holds six conditions and no text"

    def inputs(self, net: Net, batch: Dim, size: int | None) -> tuple[Tensor, Tensor]:
        least = PIXELS << (len(self.block_out_channels) - 1)
        if size is not None and size % least:
            raise InputError(f"image_size {size} is not a multiple of {least}: give one that is")
        return super().inputs(net, batch, size)

    def _transformer(self, level: int) -> SpatialTransformer:
        return SpatialTransformer(
            self.block_out_channels[level], self.attention_head_dim[level], self.transformer_layers_per_block[level],
            self.cross_attention_dim, self.norm_num_groups, self.use_linear_projection,
        )  # fmt: skip

    def _attending(self, level: int) -> bool:
        return bool(self.attends[level]) if self.attends else level > 0

    @property
    def _levels(self) -> range:
        return range(len(self.block_out_channels))

    def _going_up(self) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
        """Place and level of each block that doubles, and channels that its residual blocks read and make."""
        channels = self.block_out_channels
        before = channels[-1]
        for at, level in enumerate(reversed(self._levels)):
            out, skipped = channels[level], channels[max(level - 1, 0)]
            skips = [out] * self.layers_per_block + [skipped]
            reads = [before] + [out] * self.layers_per_block
            yield at, level, [(read + skip, out) for read, skip in zip(reads, skips, strict=True)]
            before = out

    # --- weights ------------------------------------------------------------------------------------------------------

    def weights(self) -> Weights:
        w, channels = Weights(), self.block_out_channels
        embedding, first, last = 4 * channels[0], channels[0], self._levels[-1]
        w.conv2d("conv_in", self.in_channels, first, 3, bias=True)
        sizes = {"time_embedding": first}
        if self.micro_conditions:
            sizes["add_embedding"] = self.projection_class_embeddings_input_dim
        for name, size in sizes.items():
            w.linear(f"{name}.linear_1", size, embedding)
            w.linear(f"{name}.linear_2", embedding, embedding)
        for level in self._levels:
            before, out = channels[max(level - 1, 0)], channels[level]
            pairs = [(before, out)] + [(out, out)] * (self.layers_per_block - 1)
            self._block_weights(w, f"down_blocks.{level}", level, pairs, self._attending(level))
            if level < last:
                w.conv2d(f"down_blocks.{level}.downsamplers.0.conv", out, out, 3, bias=True)
        for at, level, pairs in self._going_up():
            self._block_weights(w, f"up_blocks.{at}", level, pairs, self._attending(level))
            if level > 0:
                w.conv2d(f"up_blocks.{at}.upsamplers.0.conv", channels[level], channels[level], 3, bias=True)
        self._block_weights(w, "mid_block", last, [(channels[-1], channels[-1])] * 2, True, attentions=1)
        w.norm("conv_norm_out", first)
        w.conv2d("conv_out", first, self.in_channels, 3, bias=True)
        return w

    def _block_weights(
        self, w: Weights, at: str, level: int, pairs: list[tuple[int, int]], attends: bool, attentions: int = 0
    ) -> None:
        for i in range((attentions or len(pairs)) * attends):
            self._transformer(level).weights(w, f"{at}.attentions.{i}")
        for i, (inputs, outputs) in enumerate(pairs):
            residual_weights(w, f"{at}.resnets.{i}", inputs, outputs, 4 * self.block_out_channels[0])

    # --- operators ----------------------------------------------------------------------------------------------------

    def forward(self, net: Net, x: Tensor) -> Tensor:
        batch, last = x.shape[0], self._levels[-1]
        condition = self._condition(net, batch)
        text = net.tensor((batch, self.text_length, self.cross_attention_dim), net.precision, Category.INPUT)
        x = net.conv2d("conv_in", x, 1, 1)
        skips = [x]
        for level in self._levels:
            with net.module(f"down_blocks.{level}", KINDS["down"][self._attending(level)]):
                for i in range(self.layers_per_block):
                    x = self._layer(net, i, x, condition, text, level, self._attending(level))
                    skips.append(x)
                if level < last:
                    x = net.conv2d("downsamplers.0.conv", x, 2, 1)
                    skips.append(x)
        with net.module("mid_block", "UNetMidBlock2DCrossAttn"):
            x = self._layer(net, 0, x, condition, text, last, True)
            x = residual(net, "resnets.1", x, self.norm_num_groups, condition)
        for at, level, pairs in self._going_up():
            with net.module(f"up_blocks.{at}", KINDS["up"][self._attending(level)]):
                for i in range(len(pairs)):
                    y = net.cat((x, skips.pop()), 1)
                    x = self._layer(net, i, y, condition, text, level, self._attending(level))
                if level > 0:
                    x = net.conv2d("upsamplers.0.conv", doubled(net, x), 1, 1)
        x = net.silu(group_norm(net, "conv_norm_out", x, self.norm_num_groups))
        return net.conv2d("conv_out", x, 1, 1)

    def _condition(self, net: Net, batch: int) -> Tensor:
        """Time, with micro-conditions and the one vector of the text where there are any, [batch, width]."""
        waves = sinusoids(net, times(net, batch), self.block_out_channels[0], flipped=True)
        time = embedded(net, "time_embedding", "TimestepEmbedding", net.to(waves, net.precision))
        if not self.micro_conditions:
            return time
        size, rest = self.addition_time_embed_dim, MICRO_CONDITIONS * self.addition_time_embed_dim
        pooled_size = self.projection_class_embeddings_input_dim - rest
        pooled = net.tensor((batch, pooled_size), net.precision, Category.INPUT)
        conditions = sinusoids(net, times(net, batch * MICRO_CONDITIONS), size, flipped=True)
        both = net.cat((pooled, net.view(conditions, (batch, rest))), 1)
        return net.add(time, embedded(net, "add_embedding", "TimestepEmbedding", net.to(both, net.precision)))

    def _layer(self, net: Net, i: int, x: Tensor, condition: Tensor, text: Tensor, level: int, attends: bool) -> Tensor:
        x = residual(net, f"resnets.{i}", x, self.norm_num_groups, condition)
        if not attends:
            return x
        with net.module(f"attentions.{i}", "Transformer2DModel"):
            return self._transformer(level)(net, x, text)
