"""What takes the place of attention in hybrid decoders: Mamba-2 and gated delta networks, with their convolutions.

They are stated as training stacks run them, by the fused kernels of ``mamba_ssm``, ``causal_conv1d`` and ``fla``: what
PyTorch alone runs where those are not installed takes many times as long and is meant for tests.  Sources: Dao & Gu,
arXiv:2405.21060; Yang et al., arXiv:2412.06464.
"""

from __future__ import annotations

import math
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.errors import quoted
from triosim.sources.models._net import Net
from triosim.sources.models._parts import Rotation
from triosim.sources.models._tape import Tensor
from triosim.sources.models._weights import Weights

DELTA_CHUNK = 64
"""Tokens of a chunk of the delta rule (``fla/ops/gated_delta_rule/chunk.py``)."""


STATE_DTYPES = ("float32", "bfloat16", "float16")
"""Types in which configurations ask servers to keep states."""


def state_type_problem(key: str, value: str) -> str:
    """What is wrong with what a configuration says of the type of states, or ``""``."""
    return f"{key} is one of {', '.join(STATE_DTYPES)}, not {quoted(value)}" if value not in ("", *STATE_DTYPES) else ""


@dataclass(frozen=True)
class Mamba2Mixer:
    """Mamba-2's block: one product in, a short convolution, a scan, a gated norm, one product out.

    What is between the products is one function, which keeps what it reads and the result of the scan; its backward
    also makes again what the last product reads.  Megatron-Core (``mamba_mixer.py``) has the norm apart and keeps what
    that and the last product read.

    Attributes:
        width: of the residual stream.
        heads, size: how many, and width of one.
        groups, state: of B and C, and width of one.
        kernel: places of the convolution.
        chunk: tokens of a chunk.
        kind, norm: classes of the module and of its norm.
        bias, conv_bias: of the products, and of the convolution.
        normed: what is gated is normed.
        scaled: what the first product reads and makes is multiplied, by a number and by one for each channel.
    """

    width: int
    heads: int
    size: int
    groups: int
    state: int
    kernel: int
    chunk: int
    kind: str
    norm: str
    bias: bool = False
    conv_bias: bool = True
    normed: bool = True
    scaled: bool = False

    linear: ClassVar[bool] = True

    @property
    def inner(self) -> int:
        """Channels of all heads."""
        return self.heads * self.size

    @property
    def convolved(self) -> int:
        """Channels of heads, B and C."""
        return self.inner + 2 * self.groups * self.state

    def problem(self) -> str:
        """What is wrong with the sizes, or ``""``."""
        if self.heads % self.groups:
            return f"{self.groups} groups of the state do not divide {self.heads} heads"
        return ""

    def weights(self, w: Weights, at: str) -> None:
        """Declare its parameters."""
        for name in ("dt_bias", "A_log", "D"):
            w.add(f"{at}.{name}", self.heads)
        w.add(f"{at}.conv1d.weight", self.convolved, 1, self.kernel)
        if self.conv_bias:
            w.add(f"{at}.conv1d.bias", self.convolved)
        w.linear(f"{at}.in_proj", self.width, self.inner + self.convolved + self.heads, bias=self.bias)
        if self.normed:
            w.norm(f"{at}.norm", self.inner, bias=False)
        w.linear(f"{at}.out_proj", self.inner, self.width, bias=self.bias)

    def __call__(self, net: Net, x: Tensor, rotation: Rotation | None) -> Tensor:
        """The part of ``x`` [batch, tokens, width]."""
        made = net.scaled(net.linear("in_proj", net.scaled(x))) if self.scaled else net.linear("in_proj", x)
        with net.module("norm", self.norm):
            norm = net.optional("weight")
        if net.kernels.fused:
            y = _mamba(net, self, made, None, None)
            if self.normed:
                y = gated_norm(net, "norm", y, None, self.norm, "mamba_ssm", self.inner // self.groups)
            return net.linear("out_proj", y)
        if net.lora is not None or not net.training:  # no gradient of the last weight, or one that an adapter has
            return net.linear("out_proj", _mamba(net, self, made, norm, None))
        last = RemadeProduct()
        return last(net, "out_proj", _mamba(net, self, made, norm, last))


@dataclass(frozen=True)
class GatedDeltaNet:
    """Linear attention by the gated delta rule, with a convolution of queries, keys and values before.

    Attributes:
        width: of the residual stream.
        heads, groups: of values, and of queries and keys.
        size, state: of a value, and of a query or key.
        kernel: places of the convolution.
        kind, norm: classes of the module and of its norm.
        apart: queries, keys and values, gates, rates and steps have a product each, not two group by group.
        last, norm_name: what the last product and the norm before it are called.
    """

    width: int
    heads: int
    groups: int
    size: int
    state: int
    kernel: int
    kind: str
    norm: str
    apart: bool = False
    last: str = "out_proj"
    norm_name: str = "norm"

    linear: ClassVar[bool] = True

    def problem(self) -> str:
        """What is wrong with the sizes, or ``""``."""
        if self.heads % self.groups:
            return f"{self.groups} heads of keys do not divide {self.heads} heads of values in linear attention"
        return ""

    def weights(self, w: Weights, at: str) -> None:
        """Declare its parameters."""
        keys, values = self.groups * self.state, self.heads * self.size
        for name in ("dt_bias", "A_log"):
            w.add(f"{at}.{name}", self.heads)
        w.add(f"{at}.conv1d.weight", 2 * keys + values, 1, self.kernel)
        made = {"qkvz": 2 * keys + 2 * values, "ba": 2 * self.heads}
        after = {"qkv": 2 * keys + values, "z": values, "b": self.heads, "a": self.heads}
        for name, outputs in () if self.apart else made.items():
            w.linear(f"{at}.in_proj_{name}", self.width, outputs, bias=False)
        w.norm(f"{at}.norm", self.size, bias=False)
        w.linear(f"{at}.out_proj", values, self.width, bias=False)
        for name, outputs in after.items() if self.apart else ():
            w.linear(f"{at}.in_proj_{name}", self.width, outputs, bias=False)

    def __call__(self, net: Net, x: Tensor, rotation: Rotation | None) -> Tensor:
        """The part of ``x`` [batch, tokens, width]."""
        shape, keys, values = x.shape[:2], self.groups * self.state, self.heads * self.size
        mixed, gate, beta, steps = self._apart(net, x) if self.apart else self._by_group(net, x)
        q, k, v = net.split(convolution(net, "conv1d", mixed), [keys, keys, values])
        q, k = (net.view(part, (*shape, self.groups, self.state)) for part in (q, k))
        v = net.view(v, (*shape, self.heads, self.size))
        y = delta_rule(net, q, k, v, decays(net, steps), self.rates(net, beta))
        y = gated_norm(net, self.norm_name, y, gate, self.norm, "fla", self.size)
        return net.linear(self.last, net.view(y, (*shape, values)))

    def rates(self, net: Net, beta: Tensor) -> Tensor:
        """How much of what a state holds at a key is replaced, made of one number for each token and head."""
        return net.sigmoid(beta)

    def _apart(self, net: Net, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys and values side by side; gates by head; rates and steps."""
        mixed, gate, beta, steps = (net.linear(f"in_proj_{name}", x) for name in ("qkv", "z", "b", "a"))
        return mixed, net.view(gate, (*x.shape[:2], self.heads, self.size)), beta, steps

    def _by_group(self, net: Net, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The same, taken out of what two products make for one head of keys after the other."""
        shape, each = x.shape[:2], self.heads // self.groups
        made = net.view(net.linear("in_proj_qkvz", x), (*shape, self.groups, 2 * (self.state + each * self.size)))
        rates = net.view(net.linear("in_proj_ba", x), (*shape, self.groups, 2 * each))
        *parts, gate = net.split(made, [self.state, self.state, each * self.size, each * self.size])
        beta, steps = (net.view(net.clone(part), (*shape, self.heads)) for part in net.split(rates, [each, each]))
        flat = [net.view(net.clone(part), (*shape, math.prod(part.shape[2:]))) for part in parts]
        return net.cat(flat, 2), net.view(net.clone(gate), (*shape, self.heads, self.size)), beta, steps


# --- operators that only these call -----------------------------------------------------------------------------------


class RemadeProduct:
    """A linear layer that keeps no input: the gradient of its weight is that of an input which is made again.

    Attributes:
        again: that input, where it has been made when the gradient of the result comes; else whoever makes it calls
            :meth:`differentiate`.
    """

    again: Tensor | None = None

    def __call__(self, net: Net, name: str, x: Tensor) -> Tensor:
        """The layer ``name`` of ``x`` [batch, tokens, inputs]."""
        with net.module(name, "Linear"):
            self.weight, self.bias = net.parameter("weight"), net.optional("bias")
            flat = net.view(x, (math.prod(x.shape[:-1]), x.shape[-1]))
            turned = net.t(self.weight)
            y = net.tensor((flat.shape[0], turned.shape[1]), x.dtype, needs_grad=True)
            if self.bias is None:
                row = net.operator("aten::mm", ("self", "mat2"), (flat, turned), (y,))
            else:
                row = net.operator("aten::addmm", ("self", "mat1", "mat2"), (self.bias, flat, turned), (y,))

        self.row = row

        def rule(g: Tensor) -> None:
            self.gradient = g
            dx = net.tensor(flat.shape, flat.dtype)
            net.operator("aten::mm", ("self", "mat2"), (g, net.t(turned)), (dx,))
            if self.again is not None:
                self.differentiate(net, self.again)
            net.give(flat, dx)

        net.derivative(row, (y,), rule)
        return net.view(y, (*x.shape[:-1], y.shape[1]), "aten::view" if self.bias else "aten::_unsafe_view")

    def differentiate(self, net: Net, again: Tensor) -> None:
        """Give weight and bias their gradients; ``again`` is what the layer read."""
        g, flat = self.gradient, net.view(again, (math.prod(again.shape[:-1]), again.shape[-1]))
        dw = net.tensor(self.weight.shape, self.weight.dtype)
        net.operator("aten::mm", ("self", "mat2"), (net.t(g), flat), (dw,))
        net.give(self.weight, dw)
        if self.bias is not None:
            db = net.tensor((1, *self.bias.shape), g.dtype)
            net.operator("aten::sum", ("self",), (g,), (db,), {"dim": [0], "keepdim": True})
            net.give(self.bias, net.view(db, self.bias.shape))


def _mamba(net: Net, mixer: Mamba2Mixer, made: Tensor, norm: Tensor | None, last: RemadeProduct | None) -> Tensor:
    """What is between the products of a Mamba-2 block, [batch, tokens, inner]."""
    with net.module("conv1d", "Conv1d"):
        filters = [net.parameter("weight"), *([net.parameter("bias")] if mixer.conv_bias else [])]
    read = (made, *filters, *(net.parameter(name) for name in ("dt_bias", "A_log", "D")), *([norm] if norm else []))
    roles = ("zxbcdt", "conv1d_weight", *(["conv1d_bias"] if mixer.conv_bias else []), "dt_bias", "A_log", "D",
             *(["rmsnorm_weight"] if norm else []))  # fmt: skip
    shape = (*made.shape[:2], mixer.inner)
    y, ungated = (
        net.tensor(shape, made.dtype, needs_grad=any(t.needs_grad for t in read)),
        net.tensor(shape, made.dtype),
    )
    saved = [ungated, *([net.tensor((*shape[:2], mixer.groups), "float32")] if norm else [])]
    name = "mamba_ssm::split_conv1d_scan_combined"
    args = {"chunk_size": mixer.chunk, "head_size": mixer.size, "state_size": mixer.state}
    row = net.operator(name, roles, read, (y, *saved), args)

    def rule(g: Tensor) -> None:
        gradients = [net.tensor(t.shape, t.dtype) for t in read]
        again = [] if last is None else [net.tensor(shape, made.dtype)]
        kept = ("grad_output", *roles, "out_x", *(["rstd"] if norm else []))
        more = {"recompute_output": True} if again else {}
        net.operator(f"{name}_backward", kept, (g, *read, *saved), (*gradients, *again), {**args, **more})
        if last is not None:
            with net.differentiating(last.row):
                last.differentiate(net, again[0])
        for t, gradient in zip(read, gradients, strict=True):
            net.give(t, gradient)

    net.derivative(row, (y,), rule)
    return y


def gated_norm(net: Net, name: str, x: Tensor, gate: Tensor | None, kind: str, package: str, group: int) -> Tensor:
    """The RMS norm of groups of the last dimension, times silu of the gate where there is one."""
    with net.module(name, kind):
        weight = net.parameter("weight")
        read = (x, *([] if gate is None else [gate]), weight)
        roles = ("input", *([] if gate is None else ["gate"]), "weight")
        y = net.tensor(x.shape, x.dtype, needs_grad=any(t.needs_grad for t in read))
        rstd = net.tensor((*x.shape[:-1], x.shape[-1] // group), "float32")
        operator, args = f"{package}::rms_norm_gated", {"group_size": group}
        row = net.operator(operator, roles, read, (y, rstd), args)

    def rule(g: Tensor) -> None:
        gradients = [net.tensor(t.shape, t.dtype) for t in read]
        kept = ("grad_output", *roles[:-1], "rstd", "weight")
        net.operator(f"{operator}_backward", kept, (g, *read[:-1], rstd, weight), gradients, args)
        for t, gradient in zip(read, gradients, strict=True):
            net.give(t, gradient)

    net.derivative(row, (y,), rule)
    return y


def convolution(net: Net, name: str, x: Tensor, activation: str = "silu") -> Tensor:
    """Each channel of ``x`` [batch, tokens, channels] with those before it, and an activation if there is one."""
    operator, args = "causal_conv1d::causal_conv1d", {"activation": activation} if activation else {}
    with net.module(name, "Conv1d"):
        bias = net.optional("bias")
        read = (x, net.parameter("weight"), *([] if bias is None else [bias]))
        roles = ("input", "weight", "bias")[: len(read)]
        y = net.tensor(x.shape, x.dtype, needs_grad=any(t.needs_grad for t in read))
        row = net.operator(operator, roles, read, (y,), args)

    def rule(g: Tensor) -> None:
        gradients = [net.tensor(t.shape, t.dtype) for t in read]
        net.operator(f"{operator}_backward", ("grad_output", *roles), (g, *read), gradients, args)
        for t, gradient in zip(read, gradients, strict=True):
            net.give(t, gradient)

    net.derivative(row, (y,), rule)
    return y


def decays(net: Net, steps: Tensor, name: str = "fla::gdn_gate") -> Tensor:
    """Logarithms of the decays in float32, ``-exp(A_log) softplus(steps + dt_bias)``, in the shape of the steps: those
    of heads [batch, tokens, heads], or of their elements [batch, tokens, heads, state]."""
    bias = net.parameter("dt_bias")
    bias = net.view(bias, steps.shape[2:]) if len(steps.shape) == 4 else bias
    read = (steps, net.parameter("A_log"), bias)
    y = net.tensor(steps.shape, "float32", needs_grad=any(t.needs_grad for t in read))
    row = net.operator(name, ("gate", "A_log", "dt_bias"), read, (y,))

    def rule(g: Tensor) -> None:
        gradients = [net.tensor(t.shape, t.dtype) for t in read]
        net.operator(f"{name}_backward", ("grad_output", "gate", "A_log", "dt_bias"), (g, *read), gradients)
        for t, gradient in zip(read, gradients, strict=True):
            net.give(t, gradient)

    net.derivative(row, (y,), rule)
    return y


def delta_rule(
    net: Net, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, name: str = "fla::chunk_gated_delta_rule",
    of_chunks: tuple[str, ...] = ("A",),
) -> Tensor:  # fmt: skip
    """The gated delta rule of queries, keys [batch, tokens, groups, state] and values [batch, tokens, heads, size].

    Args:
        net: the step.
        q, k, v: queries, keys, values.
        g, beta: logarithms of decays and rates.
        name: of the operator.
        of_chunks: what is kept of the pairs of chunks, by role.
    """
    read = (q, k, v, g, beta)
    roles, args = ("query", "key", "value", "g", "beta"), {"chunk_size": DELTA_CHUNK}
    y = net.tensor(v.shape, v.dtype, needs_grad=any(t.needs_grad for t in read))
    normed = [net.tensor(t.shape, t.dtype) for t in (q, k)]
    sums = net.tensor(g.shape, "float32")
    pairs = [net.tensor((*v.shape[:3], DELTA_CHUNK), v.dtype) for _ in of_chunks]
    row = net.operator(name, roles, read, (y, *normed, sums, *pairs), args)

    def rule(gradient: Tensor) -> None:
        gradients = [net.tensor(t.shape, t.dtype) for t in read]
        kept = (gradient, *normed, v, sums, beta, *pairs)
        net.operator(f"{name}_backward", ("grad_output", *roles, *of_chunks), kept, gradients, args)
        for t, own in zip(read, gradients, strict=True):
            net.give(t, own)

    net.derivative(row, (y,), rule)
    return y
