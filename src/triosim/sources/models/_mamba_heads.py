"""Mamba's block in heads, each of which makes steps, B and C of its own channels alone (Zamba).

Stated as :mod:`triosim.sources.models._mamba` is: one product in, a convolution, a selective scan of each head.
"""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.sources.models._mamba import selective_scan
from triosim.sources.models._net import Net
from triosim.sources.models._parts import Rotation
from triosim.sources.models._scan import convolution
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights


@dataclass(frozen=True)
class MambaHeads:
    """Mamba's block in heads.

    Attributes:
        width, heads, inner: of the residual stream, how many heads, and channels of all of them.
        rank, state, convolved: as of :class:`triosim.sources.models._mamba.MambaMixer`.
        kind: class of the module.
        bias, conv_bias: of the products in and out, and of the convolution.
    """

    width: int
    heads: int
    inner: int
    rank: int
    state: int
    convolved: int
    kind: str
    bias: bool = False
    conv_bias: bool = True

    linear: ClassVar[bool] = True

    @property
    def size(self) -> int:
        """Channels of a head."""
        return self.inner // self.heads

    def problem(self) -> str:
        """What is wrong with the sizes, or ``""``."""
        return f"{self.heads} heads do not divide {self.inner} channels of Mamba" if self.inner % self.heads else ""

    def weights(self, w: Weights, at: str) -> None:
        """Declare its parameters."""
        w.add(f"{at}.x_proj_weight", self.heads, self.rank + 2 * self.state, self.size)
        w.add(f"{at}.dt_proj_weight", self.heads, self.size, self.rank)
        w.add(f"{at}.dt_proj_bias", self.heads, self.size)
        w.add(f"{at}.A_log", self.heads, self.size, self.state)
        w.add(f"{at}.D", self.heads, self.size)
        w.add(f"{at}.conv1d.weight", self.inner, 1, self.convolved)
        if self.conv_bias:
            w.add(f"{at}.conv1d.bias", self.inner)
        w.linear(f"{at}.in_proj", self.width, 2 * self.inner, bias=self.bias)
        w.linear(f"{at}.out_proj", self.inner, self.width, bias=self.bias)

    def __call__(self, net: Net, x: Tensor, rotation: Rotation | None) -> Tensor:
        """The part of ``x`` [batch, tokens, width]."""
        inputs, gate = net.split(net.linear("in_proj", x), [self.inner] * 2)
        u = convolution(net, "conv1d", inputs)
        of_heads = (*u.shape[:2], self.heads, self.size)
        columns = net.permute(net.view(u, of_heads), (2, 0, 3, 1))  # heads, batch, channels, tokens
        small = self._product(net, "x_proj_weight", columns)
        steps, *shared = net.split(small, [self.rank, self.state, self.state], 2)
        delta = self._product(net, "dt_proj_weight", steps)
        u, gate = (net.view(t, of_heads) for t in (u, gate))
        a, d, bias = (net.parameter(name) for name in ("A_log", "D", "dt_proj_bias"))
        made = []
        for head in range(self.heads):
            own = (net.select(t, 0, head) for t in (delta, *shared))
            steps, *rest = (net.transpose(t, 1, 2) for t in own)
            parameters = net.select(a, 0, head), net.select(d, 0, head), net.select(bias, 0, head)
            made.append(selective_scan(net, net.select(u, 2, head), steps, rest, net.select(gate, 2, head), parameters))
        return net.linear("out_proj", net.cat(made, 2))

    def _product(self, net: Net, name: str, columns: Tensor) -> Tensor:
        """The weight of each head times its columns [heads, batch, channels, tokens]."""
        heads, batch, channels, tokens = columns.shape
        weight = net.expanded(net.unsqueeze(net.parameter(name), 1), 1, batch)
        rows = weight.shape[2]
        made = net.bmm(
            net.view(weight, (heads * batch, rows, channels)), net.view(columns, (heads * batch, channels, tokens))
        )
        return net.view(made, (heads, batch, rows, tokens))
