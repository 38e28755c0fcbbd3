"""Densely connected networks (Huang et al., arXiv:1608.06993), under torchvision's module names.

Every layer reads the concatenation of all layers before it in its block, which is made anew for each.
"""

from __future__ import annotations

from triosim.core.dataclass import dataclass
from triosim.core.limits import check_memory
from triosim.core.registry import registered
from triosim.sources.models._family import Images
from triosim.sources.models._net import Net
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights

PAIR_BYTES = 4000
"""Memory of a layer's reading of another of its block, and of the gradient; 3,600 were measured with 300 layers."""


@registered
@dataclass(frozen=True)
class DenseNet(Images):
    """Configuration: layers per block, channels that each layer adds, and channels of the first convolution."""

    block_config: tuple[int, ...]
    growth_rate: int = 32
    num_init_features: int = 64
    bn_size: int = 4
    num_classes: int = 1000

    def _blocks(self) -> list[tuple[int, str, int, int]]:
        """Number, name, layers and input channels of every block."""
        blocks, channels = [], self.num_init_features
        for n, layers in enumerate(self.block_config, 1):
            blocks.append((n, f"features.denseblock{n}", layers, channels))
            channels = (channels + layers * self.growth_rate) // 2
        return blocks

    def weights(self) -> Weights:
        pairs = sum(layers * layers / 2 for layers in self.block_config)
        check_memory(pairs * PAIR_BYTES, f"dense blocks of {list(self.block_config)[:8]} layers", "use fewer layers")
        w = Weights()
        w.conv2d("features.conv0", 3, self.num_init_features, 7)
        w.batch_norm("features.norm0", self.num_init_features)
        between = self.bn_size * self.growth_rate
        total = self.num_init_features
        for n, at, layers, channels in self._blocks():
            for i in range(layers):
                layer = f"{at}.denselayer{i + 1}"
                w.batch_norm(f"{layer}.norm1", channels + i * self.growth_rate)
                w.conv2d(f"{layer}.conv1", channels + i * self.growth_rate, between, 1)
                w.batch_norm(f"{layer}.norm2", between)
                w.conv2d(f"{layer}.conv2", between, self.growth_rate, 3)
            total = channels + layers * self.growth_rate
            if n < len(self.block_config):
                w.batch_norm(f"features.transition{n}.norm", total)
                w.conv2d(f"features.transition{n}.conv", total, total // 2, 1)
        w.batch_norm("features.norm5", total)
        w.linear("classifier", total, self.num_classes)
        return w

    def forward(self, net: Net, x: Tensor) -> Tensor:
        with net.module("features", "Sequential"):
            x = _norm_relu(net, "norm0", "relu0", net.conv2d("conv0", x, 2, 3))
            x = net.max_pool2d("pool0", x, 3, 2, 1)
            for n, _, layers, _ in self._blocks():
                with net.module(f"denseblock{n}", "_DenseBlock"):
                    x = self._block(net, x, layers)
                if n < len(self.block_config):
                    with net.module(f"transition{n}", "_Transition"):
                        x = net.conv2d("conv", _norm_relu(net, "norm", "relu", x))
                        x = net.avg_pool2d("pool", x, 2, 2)
            x = net.batch_norm("norm5", x)
        x = net.adaptive_avg_pool2d("", net.relu_(x), 1)
        return net.linear("classifier", net.view(x, x.shape[:2]))

    def _block(self, net: Net, x: Tensor, layers: int) -> Tensor:
        features = [x]
        for i in range(layers):
            with net.module(f"denselayer{i + 1}", "_DenseLayer"):
                y = net.conv2d("conv1", _norm_relu(net, "norm1", "relu1", net.cat(features, 1)))
                features.append(net.conv2d("conv2", _norm_relu(net, "norm2", "relu2", y), 1, 1))
        return net.cat(features, 1)


def _norm_relu(net: Net, norm: str, relu: str, x: Tensor) -> Tensor:
    y = net.batch_norm(norm, x)
    with net.module(relu, "ReLU"):
        return net.relu_(y)
