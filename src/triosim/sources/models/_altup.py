"""Alternating updates: several residual streams of which each block works on one (Baykal et al., arXiv:2301.13310).

A block predicts all streams from what they are, by coefficients that the one it works on makes, and corrects all by
what it found of that one.  As Gemma 3n has it; its ``x[1:] += y`` is stated for all streams, which is one kernel too.
"""

from __future__ import annotations

from triosim.core.dataclass import dataclass
from triosim.sources.models._broadcast import over_each, plus, times_each
from triosim.sources.models._net import Net
from triosim.sources.models._norms import mean
from triosim.sources.models._parts import Norm
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights


@dataclass(frozen=True)
class AltUp:
    """The part of a block.

    Attributes:
        width: of a stream.
        streams, active: how many, and which of them the block works on.
        norm: class of the norm before coefficients are made.
        clipped: coefficients of the correction are kept within limits in training.
        scaled: what is taken out of the corrected streams is multiplied by a number for each element.
    """

    width: int
    streams: int
    active: int
    norm: str
    clipped: bool = True
    scaled: bool = True

    def weights(self, w: Weights, at: str) -> None:
        """Declare its parameters."""
        w.add(f"{at}.correct_output_scale", self.width)
        w.linear(f"{at}.correction_coefs", self.streams, self.streams, bias=False)
        w.linear(f"{at}.prediction_coefs", self.streams, self.streams**2, bias=False)
        w.linear(f"{at}.modality_router", self.width, self.streams, bias=False)
        Norm(self.width, self.norm).weights(w, f"{at}.router_norm")

    def predicted(self, net: Net, x: Tensor) -> Tensor:
        """All streams ``x`` [streams, batch, tokens, width] as the block expects them."""
        n, batch, length, width = x.shape
        made = net.linear("prediction_coefs", self._modalities(net, net.select(x, 0, self.active)))
        square = net.transpose(net.view(made, (batch * length, n, n)), 1, 2)
        flat = net.view(net.permute(x, (1, 2, 3, 0)), (batch * length, width, n))
        y = net.permute(net.view(net.bmm(flat, square), (batch, length, width, n)), (3, 0, 1, 2))
        return net.clone(net.add_(y, x))

    def corrected(self, net: Net, x: Tensor, active: Tensor) -> Tensor:
        """Streams that were predicted, moved by what the block found of the one it works on."""
        innovation = net.sub(active, net.select(x, 0, self.active))
        innovation = net.repeated(net.unsqueeze(innovation, 0), 0, self.streams)
        modalities = self._modalities(net, active)
        if net.training and self.clipped:
            with net.module("correction_coefs", "Linear"):
                turned = net.t(net.clamp(net.parameter("weight")))
            flat = net.view(modalities, (active.shape[0] * active.shape[1], self.streams))
            made = net.view(net.mm(flat, turned, column_major=True), modalities.shape)
        else:
            made = net.linear("correction_coefs", modalities)
        shares = net.unsqueeze(net.permute(net.shifted(made), (2, 0, 1)), 3)
        return net.add_(times_each(net, innovation, shares), x)

    def output(self, net: Net, x: Tensor) -> Tensor:
        """The stream that the block works on, out of all that were corrected."""
        y = net.clone(net.select(x, 0, self.active))
        return net.scaled_by(y, net.parameter("correct_output_scale")) if self.scaled else y

    def _modalities(self, net: Net, x: Tensor) -> Tensor:
        y = net.linear("modality_router", net.scaled(net.rms_norm("router_norm", x, self.norm)))
        return net.to(net.tanh(net.to(y, "float32")), x.dtype)


def spread(net: Net, x: Tensor, streams: int) -> Tensor:
    """``x`` [batch, tokens, width] as the first of several streams; the others are products of it, as long as it."""
    length = magnitude(net, x)
    parts = [x, *(_as_long(net, net.linear(f"altup_projections.{n}", x), length) for n in range(streams - 1))]
    return net.stack(parts, 0)


def gathered(net: Net, x: Tensor) -> Tensor:
    """The mean of streams, each of the others multiplied and made as long as the first."""
    first = net.select(x, 0, 0)
    length = magnitude(net, first)
    parts = [first]
    for n in range(1, x.shape[0]):
        made = net.linear(f"altup_unembed_projections.{n - 1}", net.select(x, 0, n))
        parts.append(_as_long(net, made, length))
    return net.view(mean(net, net.stack(parts, 0), 0), first.shape)


def magnitude(net: Net, x: Tensor) -> Tensor:
    """The root of the mean square of each vector, [..., 1]."""
    return net.root(mean(net, net.squared(x)))


def _as_long(net: Net, x: Tensor, length: Tensor) -> Tensor:
    own = net.root(net.clamp(mean(net, net.squared(x))))
    return over_each(net, times_each(net, x, length), own)


def deviating(net: Net, x: Tensor) -> Tensor:
    """``x`` less its mean and a multiple of its standard deviation, what is below zero left out."""
    middle = mean(net, x)
    return net.relu(plus(net, x, net.neg(net.add(middle, net.scaled(_deviation(net, x))))))


def _deviation(net: Net, x: Tensor) -> Tensor:
    """Standard deviation over the last dimension, which is kept."""
    y = net.tensor((*x.shape[:-1], 1), x.dtype, needs_grad=x.needs_grad)
    row = net.operator("aten::std", ("self",), (x,), (y,), {"dim": [-1], "keepdim": True})

    def rule(g: Tensor) -> None:  # g / (n std) (x - mean)
        share = over_each(net, net.scaled(g, "aten::div"), y)
        net.give(x, times_each(net, plus(net, x, net.neg(mean(net, x))), share))

    net.derivative(row, (y,), rule)
    return y
