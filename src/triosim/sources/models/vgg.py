"""VGG without batch normalization (Simonyan and Zisserman, arXiv:1409.1556), under torchvision's module names."""

from __future__ import annotations

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._family import Images
from triosim.sources.models._net import Net
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights

CHANNELS = (64, 128, 256, 512, 512)
"""Of the convolutions in the five stages; each stage ends in a maximum over 2 x 2."""


@registered
@dataclass(frozen=True)
class VGG(Images):
    """Configuration: convolutions in each of the five stages."""

    layers: tuple[int, ...]
    num_classes: int = 1000
    dropout: float = 0.5

    def problem(self) -> str:
        stages = len(self.layers)
        return "" if stages == 5 else f"layers must count the convolutions of 5 stages, not of {stages}"

    def weights(self) -> Weights:
        w = Weights()
        at, channels = 0, 3
        for count, out in zip(self.layers, CHANNELS, strict=True):
            for _ in range(count):
                w.conv2d(f"features.{at}", channels, out, 3, bias=True)
                at, channels = at + 2, out
            at += 1
        for name, inputs, outputs in self._classifier():
            w.linear(name, inputs, outputs)
        return w

    def _classifier(self) -> list[tuple[str, int, int]]:
        sizes = (CHANNELS[-1] * 7 * 7, 4096, 4096, self.num_classes)
        return [(f"classifier.{3 * i}", sizes[i], sizes[i + 1]) for i in range(3)]

    def forward(self, net: Net, x: Tensor) -> Tensor:
        at = 0
        for count in self.layers:
            for _ in range(count):
                x = net.conv2d(f"features.{at}", x, 1, 1)
                with net.module(f"features.{at + 1}", "ReLU"):
                    x = net.relu_(x)
                at += 2
            x = net.max_pool2d(f"features.{at}", x, 2, 2)
            at += 1
        x = net.adaptive_avg_pool2d("avgpool", x, 7)
        x = net.view(x, (x.shape[0], CHANNELS[-1] * 7 * 7))
        for i, (name, _, _) in enumerate(self._classifier()):
            x = net.linear(name, x)
            if i < 2:
                with net.module(f"classifier.{3 * i + 1}", "ReLU"):
                    x = net.relu_(x)
                with net.module(f"classifier.{3 * i + 2}", "Dropout"):
                    x = net.dropout(x, self.dropout)
        return x
