"""Operators that work element by element: sums, products, activations, dropout."""

from __future__ import annotations

from triosim.sources.models._autocast import AutocastLayers
from triosim.sources.models._tape import Tensor, symbols


class PointwiseLayers(AutocastLayers):
    """What works element by element."""

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """a + b in the wider of their types; ``b`` may have a leading dimension of one where ``a`` has the batch.

        Its gradient is then summed over the batch, even of one, so that a step has the same operators at every batch.
        """
        y = self.tensor(a.shape, wider(a, b), needs_grad=a.needs_grad or b.needs_grad)
        row = self.operator("aten::add", ("self", "other"), (a, b), (y,))
        broadcast = symbols(a.shape) != symbols(b.shape)

        def rule(g: Tensor) -> None:
            self.give(a, self.to(g, a.dtype))
            if b.needs_grad:
                self.give(b, self._sum(g, 0, b.shape, keepdim=True) if broadcast else self.to(g, b.dtype))

        self.derivative(row, (y,), rule)
        return y

    def add_(self, a: Tensor, b: Tensor) -> Tensor:
        """a + b, written into a."""
        y = self.overwritten(a, a.needs_grad or b.needs_grad)
        row = self.operator("aten::add_", ("self", "other"), (a, b), (y,))

        def rule(g: Tensor) -> None:
            self.give(a, g)
            self.give(b, g)

        self.derivative(row, (y,), rule)
        return y

    def sub(self, a: Tensor, b: Tensor) -> Tensor:
        """a - b, of one shape and type."""
        y = self._like(a, a.needs_grad or b.needs_grad)
        row = self.operator("aten::sub", ("self", "other"), (a, b), (y,))

        def rule(g: Tensor) -> None:
            self.give(a, g)
            if b.needs_grad:
                self.give(b, self.neg(g))

        self.derivative(row, (y,), rule)
        return y

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        """a x b in the wider of their types; only ``a`` may need a gradient if the shapes differ."""
        y = self.tensor(a.shape, wider(a, b), needs_grad=a.needs_grad or b.needs_grad)
        row = self.operator("aten::mul", ("self", "other"), (a, b), (y,))

        def rule(g: Tensor) -> None:
            gradients = [(x, self.to(self.mul(g, other), x.dtype)) for x, other in ((a, b), (b, a)) if x.needs_grad]
            for x, gradient in gradients:
                self.give(x, gradient)

        self.derivative(row, (y,), rule)
        return y

    def scaled_by(self, x: Tensor, weight: Tensor) -> Tensor:
        """``x`` [..., heads, width] times a parameter [width], or [heads, width]."""
        y = self.tensor(x.shape, wider(x, weight), needs_grad=x.needs_grad)
        row = self.operator("aten::mul", ("self", "other"), (weight, x), (y,))

        def rule(g: Tensor) -> None:
            dx, parts = self.to(self.mul(g, weight), x.dtype), self.mul(g, x)
            ones = (1,) * (len(x.shape) - len(weight.shape))
            dw = self.tensor((*ones, *weight.shape), parts.dtype)
            self.operator("aten::sum", ("self",), (parts,), (dw,), {"dim": list(range(len(ones))), "keepdim": True})
            self.give(weight, self.view(dw, weight.shape))
            self.give(x, dx)

        self.derivative(row, (y,), rule)
        return y

    def neg(self, x: Tensor) -> Tensor:
        """-x."""
        y = self._like(x)
        row = self.operator("aten::neg", ("self",), (x,), (y,))
        self.derivative(row, (y,), lambda g: self.give(x, self.neg(g)))
        return y

    def squared(self, x: Tensor) -> Tensor:
        """x ** 2."""
        y = self._like(x)
        row = self.operator("aten::pow", ("self",), (x,), (y,), {"exponent": 2})

        def rule(g: Tensor) -> None:  # of a power: g * (2 * x ** 1)
            power = self._like(x, False)
            self.operator("aten::pow", ("self",), (x,), (power,), {"exponent": 1})
            self.give(x, self.mul(g, self.scaled(power)))

        self.derivative(row, (y,), rule)
        return y

    def root(self, x: Tensor) -> Tensor:
        """The square root."""
        y = self._like(x)
        row = self.operator("aten::sqrt", ("self",), (x,), (y,))

        def rule(g: Tensor) -> None:  # g / (2 y)
            dx = self._like(x, False)
            self.operator("aten::div", ("self", "other"), (g, self.scaled(y)), (dx,))
            self.give(x, dx)

        self.derivative(row, (y,), rule)
        return y

    def scaled(self, x: Tensor, name: str = "aten::mul") -> Tensor:
        """``x`` times (or over) a number."""
        y = self._like(x)
        row = self.operator(name, ("self",), (x,), (y,))
        self.derivative(row, (y,), lambda g: self.give(x, self.scaled(g, name)))
        return y

    def shifted(self, x: Tensor) -> Tensor:
        """``x`` plus a number."""
        y = self._like(x)
        row = self.operator("aten::add", ("self",), (x,), (y,))
        self.derivative(row, (y,), lambda g: self.give(x, g))
        return y

    def clamp(self, x: Tensor) -> Tensor:
        """``x`` kept within limits."""
        y = self._like(x)
        row = self.operator("aten::clamp", ("self",), (x,), (y,))

        def rule(g: Tensor) -> None:
            within, dx = self._like(x, False), self._like(x, False)
            self.operator("aten::le", ("self",), (x,), (within,))
            self.operator("aten::where", ("self", "other"), (within, g), (dx,))
            self.give(x, dx)

        self.derivative(row, (y,), rule)
        return y

    def tanh(self, x: Tensor) -> Tensor:
        """The hyperbolic tangent."""
        return self._of_result(x, "tanh")

    def sigmoid(self, x: Tensor) -> Tensor:
        """1 / (1 + exp(-x))."""
        return self._of_result(x, "sigmoid")

    def _of_result(self, x: Tensor, name: str) -> Tensor:
        """A pointwise function whose derivative is one of its result."""
        y = self._like(x)
        row = self.operator(f"aten::{name}", ("self",), (x,), (y,))

        def rule(g: Tensor) -> None:
            dx = self._like(x, False)
            self.operator(f"aten::{name}_backward", ("grad_output", "output"), (g, y), (dx,))
            self.give(x, dx)

        self.derivative(row, (y,), rule)
        return y

    def unary(self, name: str, x: Tensor) -> Tensor:
        """A pointwise function of a tensor that needs no gradient (``aten::cos``)."""
        y = self._like(x, False)
        self.operator(name, ("self",), (x,), (y,))
        return y

    def gelu(self, x: Tensor, approximate: str = "none") -> Tensor:
        """Gaussian error linear unit, exact or by ``"tanh"``."""
        return self._activation(x, "gelu", {"approximate": approximate})

    def composed_gelu(self, x: Tensor) -> Tensor:
        """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), as Hugging Face's ``NewGELUActivation`` spells it out."""
        y = self.scaled(self.add(x, self.scaled(self.cubed(x))))
        return self.mul(self.scaled(x), self.shifted(self.tanh(y)))

    def cubed(self, x: Tensor) -> Tensor:
        """x^3, a power, whose derivative takes a power and two products."""
        y = self._like(x)
        row = self.operator("aten::pow", ("self",), (x,), (y,))

        def rule(g: Tensor) -> None:
            square = self.unary("aten::mul", self.unary("aten::pow", x))
            self.give(x, self.mul(g, square))

        self.derivative(row, (y,), rule)
        return y

    def silu(self, x: Tensor) -> Tensor:
        """x * sigmoid(x)."""
        return self._activation(x, "silu", {})

    def softplus(self, x: Tensor) -> Tensor:
        """log(1 + exp(x))."""
        return self._activation(x, "softplus", {})

    def _activation(self, x: Tensor, name: str, args: dict[str, str]) -> Tensor:
        y = self._like(x)
        row = self.operator(f"aten::{name}", ("self",), (x,), (y,), args)

        def rule(g: Tensor) -> None:
            dx = self._like(x, False)
            self.operator(f"aten::{name}_backward", ("grad_output", "self"), (g, x), (dx,), args)
            self.give(x, dx)

        self.derivative(row, (y,), rule)
        return y

    def swiglu(self, gate: Tensor, up: Tensor, weight: Tensor | None = None, clamped: bool = False) -> Tensor:
        """silu(gate) x up, and perhaps times a weight of each row [rows, 1], in one kernel; GPT-OSS's is clamped."""
        y = self._like(gate)
        name = f"transformer_engine::{'clamped_' * clamped}swiglu"
        read = (gate, up) if weight is None else (gate, up, weight)
        roles = ("gate", "up", "weight")[: len(read)]
        row = self.operator(name, roles, read, (y,))
        narrow = bool(self.kernels.stored_gate) and self.training
        kept = [self._copied(x, self.kernels.stored_gate) if narrow else x for x in (gate, up)]

        def rule(g: Tensor) -> None:
            gradients = [self._like(x, False) for x in read]
            again = [self._copied(x, gate.dtype) if narrow else x for x in kept]
            self.operator(f"{name}_backward", ("grad_output", *roles), (g, *again, *read[2:]), gradients)
            for x, gradient in zip(read, gradients, strict=True):
                self.give(x, gradient)

        self.derivative(row, (y,), rule)
        return y

    def packed_swiglu(self, x: Tensor, weight: Tensor | None = None, clamped: bool = False) -> Tensor:
        """silu(first half) x second half of the last dimension, perhaps times a weight of each row [rows, 1], in one
        kernel, as its gradient is written by one; GPT-OSS's is ``clamped``."""
        name, dim = f"transformer_engine::{'clamped_' * clamped}swiglu", len(x.shape) - 1
        read, by = self._halves(x), () if weight is None else (weight,)
        y = self.tensor(read[0].shape, x.dtype, needs_grad=x.needs_grad)
        roles = ("gate", "up", "weight")[: 2 + len(by)]
        row = self.operator(name, roles, (*read, *by), (y,))
        narrow = bool(self.kernels.stored_gate) and self.training
        kept = self._copied(x, self.kernels.stored_gate) if narrow else x

        def rule(g: Tensor) -> None:
            again = self._halves(self._copied(kept, x.dtype)) if narrow else read
            whole = self._like(x, False)
            parts = [self.alias(whole, part.shape, at * int(part.shape[-1])) for at, part in enumerate(again)]
            of_weight = [self._like(one, False) for one in by]
            self.operator(f"{name}_backward", ("grad_output", *roles), (g, *again, *by), [*parts, *of_weight])
            self.operator("aten::cat", ("tensors", "tensors"), parts, (whole,), {"dim": dim}, view=True)
            self.give(x, whole)
            for one, gradient in zip(by, of_weight, strict=True):
                self.give(one, gradient)

        self.derivative(row, (y,), rule)
        return y

    def _halves(self, x: Tensor) -> list[Tensor]:
        """Views of both halves of the last dimension, of which there is no derivative."""
        half = int(x.shape[-1]) // 2
        parts = [self.alias(x, (*x.shape[:-1], half), start) for start in (0, half)]
        args = {"split_sizes": [half, half], "dim": len(x.shape) - 1}
        self.operator("aten::split_with_sizes", ("self",), (x,), parts, args, view=True)
        return parts

    def _copied(self, x: Tensor, dtype: str) -> Tensor:
        """A copy in another element type, of which there is no derivative."""
        y = self.tensor(x.shape, dtype)
        self.operator("aten::_to_copy", ("self",), (x,), (y,), {"dtype": dtype})
        return y

    def squared_relu(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """max(x, 0)^2, and perhaps times a weight of each row [rows, 1], in one kernel."""
        y, name = self._like(x), "transformer_engine::squared_relu"
        read = (x,) if weight is None else (x, weight)
        roles = ("gate", "weight")[: len(read)]
        row = self.operator(name, roles, read, (y,))

        def rule(g: Tensor) -> None:
            gradients = [self._like(one, False) for one in read]
            self.operator(f"{name}_backward", ("grad_output", *roles), (g, *read), gradients)
            for one, gradient in zip(read, gradients, strict=True):
                self.give(one, gradient)

        self.derivative(row, (y,), rule)
        return y

    def rotary(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotary positions in one kernel; see :mod:`triosim.sources.models.llama` for the unfused one."""
        y = self._like(x)
        name = "transformer_engine::fused_rope"
        row = self.operator(name, ("input", "cos", "sin"), (x, cos, sin), (y,))

        def rule(g: Tensor) -> None:
            dx = self._like(x, False)
            self.operator(f"{name}_backward", ("grad_output", "cos", "sin"), (g, cos, sin), (dx,))
            self.give(x, dx)

        self.derivative(row, (y,), rule)
        return y

    def relu(self, x: Tensor) -> Tensor:
        """max(x, 0)."""
        y = self._like(x)
        row = self.operator("aten::relu", ("self",), (x,), (y,))
        self.derivative(row, (y,), lambda g: self.give(x, self._threshold(g, y)))
        return y

    def relu_(self, x: Tensor) -> Tensor:
        """max(x, 0), written into x."""
        y = self.overwritten(x)
        row = self.operator("aten::relu_", ("self",), (x,), (y,))
        self.derivative(row, (y,), lambda g: self.give(x, self._threshold(g, y)))
        return y

    def _threshold(self, g: Tensor, y: Tensor) -> Tensor:
        dx = self._like(y, False)
        self.operator("aten::threshold_backward", ("grad_output", "self"), (g, y), (dx,), {"threshold": 0})
        return dx

    def dropout(self, x: Tensor, p: float) -> Tensor:
        """Elements set to zero with probability ``p``; ``x`` itself where nothing is dropped."""
        if not self.training or p == 0:
            return x
        y, mask = self._like(x), self.tensor(x.shape, "bool")
        row = self.operator("aten::native_dropout", ("input",), (x,), (y, mask), {"p": p, "train": True})

        def rule(g: Tensor) -> None:
            dx = self._like(x, False)
            args = {"scale": 1 / (1 - p)}
            self.operator("aten::native_dropout_backward", ("grad_output", "mask"), (g, mask), (dx,), args)
            self.give(x, dx)

        self.derivative(row, (y,), rule)
        return y


def wider(a: Tensor, b: Tensor) -> str:
    """The type of what is made of two tensors, of which one may be float32."""
    return "float32" if "float32" in (a.dtype, b.dtype) else a.dtype
