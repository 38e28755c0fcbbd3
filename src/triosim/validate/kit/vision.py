"""The convolutional networks of the TrioSim paper: ResNet, DenseNet and VGG, layer by layer as in their papers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn


def _norm_relu(channels: int) -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(inplace=True))


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)


class Residual(nn.Module):
    """A block of ResNet (He et al., arXiv:1512.03385): two 3x3 convolutions, or 1x1, 3x3, 1x1 (``bottleneck``)."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        if bottleneck:
            convs = [_conv(inputs, width, 1), _conv(width, width, 3, stride), _conv(width, outputs, 1)]
        else:
            convs = [_conv(inputs, width, 3, stride), _conv(width, outputs, 3)]
        layers: list[nn.Module] = []
        for conv in convs:
            layers += [conv, nn.BatchNorm2d(conv.out_channels), nn.ReLU(inplace=True)]
        self.body, self.relu = nn.Sequential(*layers[:-1]), nn.ReLU(inplace=True)
        same = stride == 1 and inputs == outputs
        self.short = None if same else nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """The body's output added to the input."""
        return self.relu(self.body(x) + (x if self.short is None else self.short(x)))


def resnet(blocks: tuple[int, ...], bottleneck: bool) -> nn.Module:
    """ResNet with so many blocks in each of its four parts."""
    layers: list[nn.Module] = [_conv(3, 64, 7, 2), _norm_relu(64), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for number, count in enumerate(blocks):
        width = 64 << number
        for place in range(count):
            layers.append(Residual(inputs, width, 2 if number and not place else 1, bottleneck))
            inputs = 4 * width if bottleneck else width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


class Dense(nn.Module):
    """A layer of DenseNet (Huang et al., arXiv:1608.06993), which sees what all before it made."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _norm_relu(inputs), _conv(inputs, 4 * growth, 1), _norm_relu(4 * growth), _conv(4 * growth, growth, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        """The input with its own channels after it."""
        return torch.cat((x, self.body(x)), 1)


def densenet(blocks: tuple[int, ...], growth: int = 32) -> nn.Module:
    """DenseNet-BC with so many layers in each of its four parts."""
    channels = 2 * growth
    layers: list[nn.Module] = [_conv(3, channels, 7, 2), _norm_relu(channels), nn.MaxPool2d(3, 2, 1)]
    for number, count in enumerate(blocks):
        for _ in range(count):
            layers.append(Dense(channels, growth))
            channels += growth
        if number + 1 < len(blocks):
            layers += [_norm_relu(channels), _conv(channels, channels // 2, 1), nn.AvgPool2d(2)]
            channels //= 2
    return nn.Sequential(
        *layers, _norm_relu(channels), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)
    )


def vgg(convolutions: tuple[int, ...], image: int = 224) -> nn.Module:
    """VGG (Simonyan and Zisserman, arXiv:1409.1556) with so many convolutions in each of its five parts."""
    layers: list[nn.Module] = []
    inputs = 3
    for number, count in enumerate(convolutions):
        for _ in range(count):
            outputs = min(64 << number, 512)
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True)]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    side = max(image // 32, 1)
    head: list[nn.Module] = [nn.Flatten()]
    for wide in (inputs * side * side, 4096):
        head += [nn.Linear(wide, 4096), nn.ReLU(inplace=True), nn.Dropout()]
    return nn.Sequential(*layers, *head, nn.Linear(4096, 1000))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "resnet18": partial(resnet, (2, 2, 2, 2), False),
    "resnet50": partial(resnet, (3, 4, 6, 3), True),
    "resnet152": partial(resnet, (3, 8, 36, 3), True),
    "densenet121": partial(densenet, (6, 12, 24, 16)),
    "densenet201": partial(densenet, (6, 12, 48, 32)),
    "vgg11": partial(vgg, (1, 1, 2, 2, 2)),
    "vgg19": partial(vgg, (2, 2, 4, 4, 4)),
}
"""By name, for 224 x 224 images and 1,000 classes."""
