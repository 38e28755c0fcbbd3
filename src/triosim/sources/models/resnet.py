"""Residual networks (He et al., arXiv:1512.03385), with ResNeXt and wide variants.

Module names and details are torchvision's: in a bottleneck the 3 x 3 convolution strides ("v1.5").
"""

from __future__ import annotations

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._family import Images
from triosim.sources.models._net import Net
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights


@registered
@dataclass(frozen=True)
class ResNet(Images):
    """Configuration: blocks per stage, and whether they are bottlenecks (1 x 1, 3 x 3, 1 x 1) or basic (3 x 3, 3 x 3).

    ``groups`` and ``width_per_group`` are those of the bottleneck's 3 x 3 convolution.
    """

    layers: tuple[int, ...]
    bottleneck: bool
    groups: int = 1
    width_per_group: int = 64
    num_classes: int = 1000

    def problem(self) -> str:
        if not self.bottleneck and (self.groups, self.width_per_group) != (1, 64):
            return "groups and width_per_group belong to bottleneck = true"
        return ""

    def _blocks(self) -> list[tuple[int, str, int, int, int, int]]:
        """Stage, name, input channels, inner channels, output channels and stride of every block."""
        blocks, channels = [], 64
        for stage, count in enumerate(self.layers, 1):
            width = 64 * 2 ** (stage - 1)
            inner = width * self.width_per_group // 64 * self.groups
            out = width * (4 if self.bottleneck else 1)
            for i in range(count):
                stride = 2 if stage > 1 and i == 0 else 1
                blocks.append((stage, f"layer{stage}.{i}", channels, inner, out, stride))
                channels = out
        return blocks

    def weights(self) -> Weights:
        w = Weights()
        w.conv2d("conv1", 3, 64, 7)
        w.batch_norm("bn1", 64)
        out = 64
        for _, at, channels, inner, out, stride in self._blocks():
            sizes: tuple[tuple[int, int, int, int], ...]
            if self.bottleneck:
                sizes = ((channels, inner, 1, 1), (inner, inner, 3, self.groups), (inner, out, 1, 1))
            else:
                sizes = ((channels, out, 3, 1), (out, out, 3, 1))
            for n, (a, b, kernel, groups) in enumerate(sizes, 1):
                w.conv2d(f"{at}.conv{n}", a, b, kernel, groups)
                w.batch_norm(f"{at}.bn{n}", b)
            if stride > 1 or channels != out:
                w.conv2d(f"{at}.downsample.0", channels, out, 1)
                w.batch_norm(f"{at}.downsample.1", out)
        w.linear("fc", out, self.num_classes)
        return w

    def forward(self, net: Net, x: Tensor) -> Tensor:
        x = _relu(net, "relu", net.batch_norm("bn1", net.conv2d("conv1", x, 2, 3)))
        x = net.max_pool2d("maxpool", x, 3, 2, 1)
        for _, at, channels, _, out, stride in self._blocks():
            with net.module(at, "Bottleneck" if self.bottleneck else "BasicBlock"):
                skip = x
                if self.bottleneck:
                    y = _relu(net, "relu", net.batch_norm("bn1", net.conv2d("conv1", x)))
                    y = net.conv2d("conv2", y, stride, 1, self.groups)
                    y = _relu(net, "relu", net.batch_norm("bn2", y))
                    y = net.batch_norm("bn3", net.conv2d("conv3", y))
                else:
                    y = _relu(net, "relu", net.batch_norm("bn1", net.conv2d("conv1", x, stride, 1)))
                    y = net.batch_norm("bn2", net.conv2d("conv2", y, 1, 1))
                if stride > 1 or channels != out:
                    with net.module("downsample", "Sequential"):
                        skip = net.batch_norm("1", net.conv2d("0", x, stride))
                x = _relu(net, "relu", net.add_(y, skip))
        x = net.adaptive_avg_pool2d("avgpool", x, 1)
        return net.linear("fc", net.view(x, x.shape[:2]))


def _relu(net: Net, name: str, x: Tensor) -> Tensor:
    with net.module(name, "ReLU"):
        return net.relu_(x)
