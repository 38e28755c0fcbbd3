"""Mamba's block: a product in, a short convolution, a selective scan whose steps, B and C it makes, a product out.

They are stated as training stacks run them, by the fused kernels of ``mamba_ssm`` and ``causal_conv1d``.  Sources: Gu &
Dao, arXiv:2312.00752; ``mamba_ssm/ops/selective_scan_interface.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from triosim.core.dataclass import dataclass
from triosim.operators.selective_scan import CHUNK
from triosim.sources.models._net import Net
from triosim.sources.models._parts import Norm, Rotation
from triosim.sources.models._scan import RemadeProduct, convolution
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights


@dataclass(frozen=True)
class MambaMixer:
    """Mamba's block.

    Where it is one function (``MambaInnerFn``) that keeps gates and inputs, the small product, the scan's result and
    its states; what the convolution and the product of steps gave, and what the last product read, are made again.

    Attributes:
        width, inner: of the residual stream, and channels that are scanned.
        rank: of what steps are made of.
        state: elements of a channel's state.
        convolved: places of the convolution.
        kind: class of the module.
        norm: class of the norms of steps, B and C before they are used; ``""`` for none.
        weightless: those norms have no parameters.
        bias, conv_bias: of the products in and out, and of the convolution.
        remade: it is one function; else each part keeps what its gradient reads.
    """

    width: int
    inner: int
    rank: int
    state: int
    convolved: int
    kind: str
    norm: str = ""
    weightless: bool = False
    bias: bool = False
    conv_bias: bool = True
    remade: bool = True

    @property
    def _sizes(self) -> dict[str, int]:
        """Steps, B and C, and how wide what they are made of is."""
        return {"dt": self.rank, "b": self.state, "c": self.state}

    def weights(self, w: Weights, at: str) -> None:
        """Declare its parameters."""
        w.add(f"{at}.A_log", self.inner, self.state)
        w.add(f"{at}.D", self.inner)
        w.add(f"{at}.conv1d.weight", self.inner, 1, self.convolved)
        if self.conv_bias:
            w.add(f"{at}.conv1d.bias", self.inner)
        w.linear(f"{at}.in_proj", self.width, 2 * self.inner, bias=self.bias)
        w.linear(f"{at}.x_proj", self.inner, sum(self._sizes.values()), bias=False)
        w.linear(f"{at}.dt_proj", self.rank, self.inner)
        w.linear(f"{at}.out_proj", self.inner, self.width, bias=self.bias)
        for name, size in self._sizes.items() if self.norm else ():
            Norm(size, self.norm, weight=not self.weightless).weights(w, f"{at}.{name}_layernorm")

    def __call__(self, net: Net, x: Tensor, rotation: Rotation | None) -> Tensor:
        """The part of ``x`` [batch, tokens, width]."""
        inputs, gate = net.split(net.linear("in_proj", x), [self.inner] * 2)
        one = self.remade and net.training and net.lora is None  # with adapters weights have no gradients
        small, last = RemadeProduct(), RemadeProduct()
        u = convolution(net, "conv1d", inputs)
        steps, *shared = net.split(
            small(net, "x_proj", u) if one else net.linear("x_proj", u), list(self._sizes.values())
        )
        if self.norm:
            names = [f"{name}_layernorm" for name in self._sizes]
            steps, *shared = (
                net.rms_norm(name, part, self.norm) for name, part in zip(names, (steps, *shared), strict=True)
            )
        with net.module("dt_proj", "Linear"):
            turned, bias = net.t(net.parameter("weight")), net.parameter("bias")
            delta = _product(net, steps, turned)
        parameters = net.parameter("A_log"), net.parameter("D"), bias
        if not one:
            return net.linear("out_proj", selective_scan(net, u, delta, shared, gate, parameters))
        with net.module("conv1d", "Conv1d"):
            filters = net.parameter("weight"), net.optional("bias")

        def again() -> tuple[Tensor, Tensor]:
            """What the convolution gave, and the steps."""
            made = net.tensor(u.shape, u.dtype)
            read = [t for t in (inputs, *filters) if t is not None]
            roles, args = ("input", "weight", "bias")[: len(read)], {"activation": "silu"}
            net.operator("causal_conv1d::causal_conv1d", roles, read, (made,), args)
            small.again = made
            return made, _product(net, steps, turned)

        return last(net, "out_proj", selective_scan(net, u, delta, shared, gate, parameters, again, last))


# --- operators that only it calls -------------------------------------------------------------------------------------


def _product(net: Net, x: Tensor, turned: Tensor) -> Tensor:
    """``x`` [batch, tokens, inputs] times a transposed weight."""
    flat = net.view(x, (math.prod(x.shape[:-1]), x.shape[-1]))
    return net.view(net.mm(flat, turned, column_major=True), (*x.shape[:-1], turned.shape[1]))


def selective_scan(
    net: Net, u: Tensor, delta: Tensor, shared: Sequence[Tensor], gate: Tensor, parameters: tuple[Tensor, ...],
    again: Callable[[], tuple[Tensor, Tensor]] | None = None, last: RemadeProduct | None = None,
) -> Tensor:  # fmt: skip
    """The scan of ``u`` [batch, tokens, channels] with its steps, B and C, times silu of the gate.

    Args:
        net: the step.
        u, delta, shared, gate: what is scanned, steps, B and C, gates.
        parameters: logarithms of -A, D, and the bias of the steps.
        again: makes what was scanned and the steps again.
        last: reads the result; its weight has its gradient once the result has been made again.
    """
    a, d, bias = parameters
    roles = ("u", "delta", "A_log", "B", "C", "D", "z", "delta_bias")
    read = (u, delta, a, *shared, d, gate, bias)
    chunks = math.ceil(u.shape[1] / CHUNK)
    y = net.tensor(u.shape, u.dtype, needs_grad=any(t.needs_grad for t in read))
    ungated = net.tensor(u.shape, u.dtype)
    states = net.tensor((u.shape[0], u.shape[2], chunks, 2 * a.shape[1]), "float32")
    name = "mamba_ssm::selective_scan"
    row = net.operator(name, roles, read, (y, ungated, states))

    def rule(g: Tensor) -> None:
        first = read[:2] if again is None else again()
        gradients = [net.tensor(t.shape, t.dtype) for t in read]
        more = [] if last is None else [net.tensor(u.shape, u.dtype)]
        kept = (g, *first, *read[2:], ungated, states)
        args = {"recompute_output": True} if more else {}
        net.operator(f"{name}_backward", ("grad_output", *roles, "out_x", "states"), kept, (*gradients, *more), args)
        if last is not None:
            with net.differentiating(last.row):
                last.differentiate(net, more[0])
        for t, gradient in zip(read, gradients, strict=True):
            net.give(t, gradient)

    net.derivative(row, (y,), rule)
    return y
