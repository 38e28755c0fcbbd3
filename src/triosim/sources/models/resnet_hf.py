"""Residual networks under the module names of Hugging Face's ``ResNetForImageClassification``.

The networks of ``resnet`` (He et al., arXiv:1512.03385) with widths stage by stage; activations are not written over
what they read.
"""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._family import Images
from triosim.sources.models._net import Net
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights

Convolutions = list[tuple[int, int, int, int]]
"""Inputs, outputs, side of the window and stride of each."""


@registered
@dataclass(frozen=True)
class HuggingFaceResNet(Images):
    """Configuration, named as in Hugging Face's ``config.json``; ``num_labels`` are the classes."""

    depths: tuple[int, ...]
    hidden_sizes: tuple[int, ...]
    embedding_size: int = 64
    layer_type: str = "bottleneck"
    downsample_in_first_stage: bool = False
    downsample_in_bottleneck: bool = False
    num_labels: int = 1000

    model_types: ClassVar = ("resnet",)
    left_out: ClassVar = {"depths": [3, 4, 6, 3], "hidden_sizes": [256, 512, 1024, 2048]}
    fixed: ClassVar = {"hidden_act": "relu", "num_channels": 3}

    def problem(self) -> str:
        if len(self.depths) != len(self.hidden_sizes):
            return f"depths are of {len(self.depths)} stages, hidden_sizes of {len(self.hidden_sizes)}"
        if self.layer_type not in ("basic", "bottleneck"):
            return "layer_type must be basic or bottleneck"
        return "" if min(self.hidden_sizes) >= 4 else "hidden_sizes must be at least 4"

    def _blocks(self) -> list[tuple[str, int, int, int, Convolutions]]:
        """Path, input channels, output channels, stride and convolutions of every block."""
        blocks, channels = [], self.embedding_size
        for stage, (depth, out) in enumerate(zip(self.depths, self.hidden_sizes, strict=True)):
            for i in range(depth):
                stride = 2 if i == 0 and (stage or self.downsample_in_first_stage) else 1
                if self.layer_type == "basic":
                    inside = [(channels, out, 3, stride), (out, out, 3, 1)]
                else:
                    first, then = (stride, 1) if self.downsample_in_bottleneck else (1, stride)
                    inner = out // 4
                    inside = [(channels, inner, 1, first), (inner, inner, 3, then), (inner, out, 1, 1)]
                blocks.append((f"stages.{stage}.layers.{i}", channels, out, stride, inside))
                channels = out
        return blocks

    def weights(self) -> Weights:
        w = Weights()
        w.conv2d("resnet.embedder.embedder.convolution", 3, self.embedding_size, 7)
        w.batch_norm("resnet.embedder.embedder.normalization", self.embedding_size)
        for at, channels, out, stride, inside in self._blocks():
            path = f"resnet.encoder.{at}"
            if channels != out or stride != 1:
                w.conv2d(f"{path}.shortcut.convolution", channels, out, 1)
                w.batch_norm(f"{path}.shortcut.normalization", out)
            for n, (inputs, outputs, side, _) in enumerate(inside):
                w.conv2d(f"{path}.layer.{n}.convolution", inputs, outputs, side)
                w.batch_norm(f"{path}.layer.{n}.normalization", outputs)
        w.linear("classifier.1", self.hidden_sizes[-1], self.num_labels)
        return w

    def forward(self, net: Net, x: Tensor) -> Tensor:
        with net.module("resnet", "ResNetModel"):
            with net.module("embedder", "ResNetEmbeddings"):
                x = net.relu(_normed(net, "embedder", "ResNetConvLayer", x, 7, 2))
                x = net.max_pool2d("pooler", x, 3, 2, 1)
            for at, channels, out, stride, inside in self._blocks():
                with net.module(f"encoder.{at}", "ResNetLayer"):
                    y = x
                    for n, (_, _, side, step) in enumerate(inside):
                        y = _normed(net, f"layer.{n}", "ResNetConvLayer", y, side, step)
                        y = net.relu(y) if n + 1 < len(inside) else y
                    if channels != out or stride != 1:
                        x = _normed(net, "shortcut", "ResNetShortCut", x, 1, stride)
                    x = net.relu(net.add_(y, x))
            x = net.adaptive_avg_pool2d("pooler", x, 1)
        return net.linear("classifier.1", net.view(x, x.shape[:2]))


def _normed(net: Net, name: str, kind: str, x: Tensor, side: int, stride: int) -> Tensor:
    """A convolution and its batch norm."""
    with net.module(name, kind):
        return net.batch_norm("normalization", net.conv2d("convolution", x, stride, side // 2))
