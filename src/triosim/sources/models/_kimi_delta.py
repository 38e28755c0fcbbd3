"""Kimi Delta Attention: a delta rule whose decays are of each element of a key (Kimi Team, arXiv:2510.26692)."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.sources.models._net import Net
from triosim.sources.models._parts import Rotation
from triosim.sources.models._scan import convolution, decays, delta_rule, gated_norm
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights


@dataclass(frozen=True)
class KimiDeltaAttention:
    """Queries, keys and values are convolved side by side; decays and gates are made through a narrow product each.

    Attributes:
        width: of the residual stream.
        heads, size: how many, and width of a key and of a value.
        kernel: places of the convolution.
        kind: class of the module.
    """

    width: int
    heads: int
    size: int
    kernel: int
    kind: str = "KimiLinearDeltaAttention"

    linear: ClassVar[bool] = True

    def weights(self, w: Weights, at: str) -> None:
        """Declare its parameters."""
        channels = self.heads * self.size
        for name in "qkv":
            w.linear(f"{at}.{name}_proj", self.width, channels, bias=False)
        w.add(f"{at}.conv1d.weight", 3 * channels, 1, self.kernel)
        w.add(f"{at}.forget_gate.dt_bias", channels)
        w.add(f"{at}.forget_gate.A_log", 1, 1, self.heads, 1)
        w.linear(f"{at}.forget_gate.f_a_proj", self.width, self.size, bias=False)
        w.linear(f"{at}.forget_gate.f_b_proj", self.size, channels, bias=False)
        w.linear(f"{at}.b_proj", self.width, self.heads, bias=False)
        w.linear(f"{at}.g_a_proj", self.width, self.size, bias=False)
        w.linear(f"{at}.g_b_proj", self.size, channels, bias=False)
        w.norm(f"{at}.o_norm", self.size, bias=False)
        w.linear(f"{at}.o_proj", channels, self.width, bias=False)

    def __call__(self, net: Net, x: Tensor, rotation: Rotation | None) -> Tensor:
        """The part of ``x`` [batch, tokens, width]."""
        channels, shape = self.heads * self.size, (*x.shape[:2], self.heads, self.size)
        mixed = convolution(net, "conv1d", net.cat(tuple(net.linear(f"{name}_proj", x) for name in "qkv"), 2))
        q, k, v = (net.view(part, shape) for part in net.split(mixed, [channels] * 3))
        with net.module("forget_gate", "KimiLinearForgetGate"):
            steps = net.view(net.linear("f_b_proj", net.linear("f_a_proj", x)), shape)
            g = decays(net, steps, "fla::kda_gate")
        y = delta_rule(net, q, k, v, g, net.sigmoid(net.linear("b_proj", x)), "fla::chunk_kda", ("A", "Aqk"))
        gate = net.view(net.linear("g_b_proj", net.linear("g_a_proj", x)), shape)
        y = gated_norm(net, "o_norm", y, gate, "KimiLinearRMSNormGated", "fla", self.size)
        return net.linear("o_proj", net.view(y, (*x.shape[:2], channels)))
