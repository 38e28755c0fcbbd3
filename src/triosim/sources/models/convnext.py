"""ConvNeXt (Liu et al., arXiv:2201.03545): depthwise convolutions, and what a transformer does to each pixel.

Module names are those of Hugging Face's ``ConvNextForImageClassification``; no block is dropped (its ``drop_path_rate``
is 0 by default).
"""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._family import Images
from triosim.sources.models._net import Net
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights


@registered
@dataclass(frozen=True)
class ConvNeXt(Images):
    """Configuration, named as in Hugging Face's ``config.json``; ``num_labels`` are the classes."""

    depths: tuple[int, ...]
    hidden_sizes: tuple[int, ...]
    patch_size: int = 4
    num_labels: int = 1000

    optimizer: ClassVar = "adamw"
    model_types: ClassVar = ("convnext",)
    fixed: ClassVar = {"hidden_act": "gelu", "num_channels": 3, "drop_path_rate": (0.0, 0)}

    def problem(self) -> str:
        if len(self.depths) == len(self.hidden_sizes):
            return ""
        return f"depths are of {len(self.depths)} stages, hidden_sizes of {len(self.hidden_sizes)}"

    def weights(self) -> Weights:
        w, before = Weights(), self.hidden_sizes[0]
        w.conv2d("convnext.embeddings.patch_embeddings", 3, before, self.patch_size, bias=True)
        w.norm("convnext.embeddings.layernorm", before)
        for n, (depth, width) in enumerate(zip(self.depths, self.hidden_sizes, strict=True)):
            at = f"convnext.encoder.stages.{n}"
            if n:
                w.norm(f"{at}.downsampling_layer.0", before)
                w.conv2d(f"{at}.downsampling_layer.1", before, width, 2, bias=True)
            for i in range(depth):
                layer = f"{at}.layers.{i}"
                w.add(f"{layer}.layer_scale_parameter", width)
                w.conv2d(f"{layer}.dwconv", width, width, 7, groups=width, bias=True)
                w.norm(f"{layer}.layernorm", width)
                w.linear(f"{layer}.pwconv1", width, 4 * width)
                w.linear(f"{layer}.pwconv2", 4 * width, width)
            before = width
        w.norm("convnext.layernorm", before)
        w.linear("classifier", before, self.num_labels)
        return w

    def forward(self, net: Net, x: Tensor) -> Tensor:
        with net.module("convnext", "ConvNextModel"):
            with net.module("embeddings", "ConvNextEmbeddings"):
                x = _channels_normed(net, "layernorm", net.conv2d("patch_embeddings", x, self.patch_size))
            for n, (depth, width) in enumerate(zip(self.depths, self.hidden_sizes, strict=True)):
                with net.module(f"encoder.stages.{n}", "ConvNextStage"):
                    if n:
                        x = _channels_normed(net, "downsampling_layer.0", x)
                        x = net.conv2d("downsampling_layer.1", x, 2, channels_last=True)
                    for i in range(depth):
                        with net.module(f"layers.{i}", "ConvNextLayer"):
                            x = _layer(net, x, width, copied=n + 1 == len(self.depths))
            x = net.layer_norm("layernorm", net.mean_of_pixels(x))
        return net.linear("classifier", x)


def _layer(net: Net, x: Tensor, width: int, copied: bool) -> Tensor:
    """A block on [batch, channels, height, width], its products on channels as the last dimension.

    ``copied`` says that the gradient comes with channels apart, from the mean behind the last stage.
    """
    y = net.permute(net.conv2d("dwconv", x, 1, 3, width), (0, 2, 3, 1))
    y = net.gelu(net.linear("pwconv1", net.layer_norm("layernorm", y)))
    y = net.linear("pwconv2", y, strided_gradient=copied)
    y = net.permute(net.scaled_by(y, net.parameter("layer_scale_parameter")), (0, 3, 1, 2))
    return net.add(x, y)


def _channels_normed(net: Net, name: str, x: Tensor) -> Tensor:
    """A layer norm over the channels of [batch, channels, height, width]."""
    return net.permute(net.layer_norm(name, net.permute(x, (0, 2, 3, 1))), (0, 3, 1, 2))
