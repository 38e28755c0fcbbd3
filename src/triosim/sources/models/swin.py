"""Swin: attention within windows of an image, every other time shifted (Liu et al., arXiv:2103.14030).

Positions are numbers added to the scores, learned by distance, so that scores are tensors of their own, whatever
kernels of attention are asked for.  Module names and operators are those of Hugging Face's
``SwinForImageClassification`` with its ``eager`` attention: the mask of shifted windows is made anew in every block,
and each stage's result is copied though nobody reads the copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.registry import registered
from triosim.sources.models._diffusion import plus
from triosim.sources.models._family import Images
from triosim.sources.models._net import Net
from triosim.sources.models._tape import Tensor
from triosim.sources.models._unfused import softmax
from triosim.sources.models._weights import Weights
from triosim.sources.models._windows import dropped, in_windows, mask_of, merged, of_each, padded, rolled, together


@registered
@dataclass(frozen=True)
class Swin(Images):
    """Configuration, named as in Hugging Face's ``config.json``; ``num_labels`` are the classes."""

    embed_dim: int
    depths: tuple[int, ...]
    num_heads: tuple[int, ...]
    window_size: int = 7
    patch_size: int = 4
    image_size: int = 224
    qkv_bias: bool = True
    num_labels: int = 1000
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    drop_path_rate: float = 0.1

    optimizer: ClassVar = "adamw"
    model_types: ClassVar = ("swin",)
    left_out: ClassVar = {"embed_dim": 96, "depths": [2, 2, 6, 2], "num_heads": [3, 6, 12, 24]}
    fixed: ClassVar = {"hidden_act": "gelu", "num_channels": 3, "mlp_ratio": (4.0, 4), "use_absolute_embeddings": False}

    def problem(self) -> str:
        if len(self.depths) != len(self.num_heads):
            return f"depths are of {len(self.depths)} stages, num_heads of {len(self.num_heads)}"
        wrong = [heads for stage, heads in enumerate(self.num_heads) if self._width(stage) % heads]
        return f"num_heads {wrong[0]} does not divide the width of its stage" if wrong else ""

    def _width(self, stage: int) -> int:
        return self.embed_dim * int(2**stage)

    def weights(self) -> Weights:
        w, last = Weights(), len(self.depths) - 1
        w.conv2d("swin.embeddings.patch_embeddings.projection", 3, self.embed_dim, self.patch_size, bias=True)
        w.norm("swin.embeddings.norm", self.embed_dim)
        for stage, (depth, heads) in enumerate(zip(self.depths, self.num_heads, strict=True)):
            width, layer = self._width(stage), f"swin.encoder.layers.{stage}"
            for i in range(depth):
                at = f"{layer}.blocks.{i}"
                for name in "qkvo":
                    w.linear(f"{at}.attention.{name}_proj", width, width, bias=self.qkv_bias or name == "o")
                w.add(f"{at}.attention.{_BIAS}.relative_position_bias_table", (2 * self.window_size - 1) ** 2, heads)
                w.buffers[f"{at}.attention.{_BIAS}.relative_position_index"] = ((self.window_size**4,), "int64")
                w.norm(f"{at}.layernorm_before", width)
                w.norm(f"{at}.layernorm_after", width)
                w.linear(f"{at}.mlp.fc1", width, 4 * width)
                w.linear(f"{at}.mlp.fc2", 4 * width, width)
            if stage < last:
                w.linear(f"{layer}.downsample.reduction", 4 * width, 2 * width, bias=False)
                w.norm(f"{layer}.downsample.norm", 4 * width)
        w.norm("swin.layernorm", self._width(last))
        w.linear("classifier", self._width(last), self.num_labels)
        return w

    def forward(self, net: Net, x: Tensor) -> Tensor:
        last, rates = len(self.depths) - 1, self._rates()
        with net.module("swin", "SwinModel"):
            with net.module("embeddings", "SwinEmbeddings"):
                if x.shape[2] % self.patch_size:
                    x = padded(net, x, self.patch_size, 2)
                x = net.conv2d("patch_embeddings.projection", x, self.patch_size)
                batch, width, *sides = x.shape
                x = net.transpose(net.view(x, (batch, width, sides[0] * sides[1])), 1, 2)
                x = net.dropout(net.layer_norm("norm", x), self.hidden_dropout_prob)
            for stage, depth in enumerate(self.depths):
                self._check(min(sides), stage)
                with net.module(f"encoder.layers.{stage}", "SwinStage"):
                    for i in range(depth):
                        shift = i % 2 == 1 and min(sides) > self.window_size
                        with net.module(f"blocks.{i}", "SwinLayer"):
                            x = self._block(net, x, sides, self.num_heads[stage], shift, next(rates), stage == last)
                    if stage < last:
                        with net.module("downsample", "SwinPatchMerging"):
                            x, sides = merged(net, x, sides, strided=stage + 1 == last)
                    with net.undifferentiated():
                        net.clone(net.permute(net.view(x, (batch, *sides, x.shape[2])), (0, 3, 1, 2)))
            x = net.unsqueeze(net.transpose(net.layer_norm("layernorm", x), 1, 2), 2)
            x = net.adaptive_avg_pool2d("", x, 1)
        return net.linear("classifier", net.view(x, x.shape[:2]))

    def _rates(self) -> Iterator[float]:
        """With what probability each block is dropped."""
        blocks = sum(self.depths)
        return (self.drop_path_rate * at / max(blocks - 1, 1) for at in range(blocks))

    def _check(self, places: int, stage: int) -> None:
        if places < self.window_size:
            raise InputError(
                f"the image is too small: a window of {self.window_size} is wider than the {places} places of stage "
                f"{stage + 1}: give a larger image_size"
            )

    def _block(
        self, net: Net, x: Tensor, sides: list[int], heads: int, shift: bool, rate: float, strided: bool
    ) -> Tensor:
        """``x`` [batch, places, width]; ``strided`` as of :meth:`Net.linear`, from the mean behind the last stage."""
        batch, width = x.shape[0], x.shape[2]
        y = net.view(net.layer_norm("layernorm_before", x), (batch, *sides, width))
        y = padded(net, y, self.window_size, 1)
        whole = y.shape
        y = in_windows(net, rolled(net, y) if shift else y, self.window_size)
        mask = mask_of(net, y, whole, self.window_size) if shift else None
        with net.module("attention", "SwinAttention"):
            y = net.dropout(self._attention(net, y, heads, mask, batch), self.hidden_dropout_prob)
        y = together(net, y, whole, self.window_size)
        y = rolled(net, y) if shift else y
        if list(whole[1:3]) != sides:
            y = net.clone(net.slice(net.slice(y, 1, 0, sides[0]), 2, 0, sides[1]))
        x = net.add(x, dropped(net, net.view(y, x.shape), rate))
        y = net.layer_norm("layernorm_after", x)
        with net.module("mlp", "SwinMLP"):
            y = net.linear("fc2", net.gelu(net.linear("fc1", y)), strided_gradient=strided)
        return net.add(net.dropout(y, self.hidden_dropout_prob), x)

    def _attention(self, net: Net, x: Tensor, heads: int, mask: Tensor | None, batch: int) -> Tensor:
        """Of windows ``x`` [windows, places, width]."""
        count, places, width = x.shape
        shape, flat = (count, places, heads, width // heads), (count * heads, places, width // heads)
        made = []
        for name in "qkv":  # gradients come by head, that of keys by place
            y = net.linear(f"{name}_proj", x, strided_gradient=name == "k")
            made.append(net.transpose(net.view(y, shape, strided_gradient=name != "k"), 1, 2))
        q, k, v = made
        with net.module(_BIAS, "SwinRelativePositionBias"):
            index = net.buffers[f"{net.path}.relative_position_index"]
            bias = net.indexed(net.parameter("relative_position_bias_table"), index)
            bias = net.permute(net.view(bias, (places, places, heads)), (2, 0, 1))
            bias = net.unsqueeze(net.clone(bias), 0)
        if mask is not None:
            bias = plus(net, bias, of_each(net, mask, batch))
        q = net.view(net.clone(q), flat)
        scores = net.bmm(q, net.view(net.clone(net.transpose(k, 2, 3)), (flat[0], flat[2], places)))
        scores = plus(net, net.scaled(net.view(scores, (count, heads, places, places))), bias)
        weights = net.to(softmax(net, net.to(scores, "float32")), x.dtype)
        weights = net.view(net.dropout(weights, self.attention_probs_dropout_prob), (flat[0], places, places))
        y = net.view(net.bmm(weights, net.view(net.clone(v), flat)), (count, heads, *flat[1:]), strided_gradient=True)
        return net.linear("o_proj", net.view(net.clone(net.transpose(y, 1, 2)), x.shape))


_BIAS = "relative_position_bias"
