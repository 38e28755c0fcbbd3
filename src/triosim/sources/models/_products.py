"""Linear layers and matrix products."""

from __future__ import annotations

import math

from triosim.sources.models._lora import adapted, frozen_product, widened
from triosim.sources.models._pointwise import PointwiseLayers
from triosim.sources.models._tape import Tensor


class ProductLayers(PointwiseLayers):
    """Matrix products, and the linear layers made of them."""

    def linear(self, name: str, x: Tensor, tied: str = "", bias: str = "", strided_gradient: bool = False) -> Tensor:
        """``torch.nn.Linear`` over the last dimension of ``x``.

        Args:
            name: the layer's name in the module that is being called.
            x: [..., inputs].
            tied, bias: qualified names of a weight [outputs, inputs] and a bias to use instead of its own.
            strided_gradient: as of :meth:`view`.
        """
        with self.module(name, "Linear"):
            weight = self.parameters[tied] if tied else self.parameter("weight")
            added = self.parameters[bias] if bias else self.optional("bias")
            if self.path in self.narrow:
                return self._in_four_bits(self.lowered(x)[0], weight, added)
            x, weight, added = self.operands(x, weight, added)
            if len(x.shape) == 2:
                y = self.mm(x, self.t(weight), added, column_major=True)
                return adapted(self, x, y, lambda: weight, added)
            apart = added if self.kernels.added_biases else None
            y = self._product_of(x, weight, None if apart else added, strided_gradient)
            return adapted(self, x, self._with_bias(y, apart) if apart else y, lambda: weight, added)

    def _product_of(self, x: Tensor, weight: Tensor, bias: Tensor | None, strided_gradient: bool) -> Tensor:
        """``x`` [..., inputs] times a weight [outputs, inputs], plus a bias that the product adds."""
        flat_shape = (math.prod(x.shape[:-1]), x.shape[-1])
        if bias is None:
            transposed = self.t(weight)
            flat = self.view(x, flat_shape)
        else:
            flat = self.view(x, flat_shape)
            transposed = self.t(weight)
        y = self.mm(flat, transposed, bias, column_major=True)
        shape = (*x.shape[:-1], weight.shape[0])
        return self.view(y, shape, "aten::view" if bias else "aten::_unsafe_view", strided_gradient)

    def _with_bias(self, x: Tensor, bias: Tensor) -> Tensor:
        """A bias [outputs] added in place to what a product made."""
        y = self.overwritten(x, x.needs_grad or bias.needs_grad)
        row = self.operator("aten::add_", ("self", "other"), (x, bias), (y,))

        def rule(g: Tensor) -> None:
            if bias.needs_grad:
                flat = self.view(g, (math.prod(g.shape[:-1]), g.shape[-1]))
                self.give(bias, self.view(self._sum(flat, 0, (1, *bias.shape), keepdim=True), bias.shape))
            self.give(x, g)

        self.derivative(row, (y,), rule)
        return y

    def _in_four_bits(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """A linear layer whose frozen weight lies in 4 bits, with its adapter."""
        flat = self.view(x, (math.prod(x.shape[:-1]), x.shape[-1]))
        y = frozen_product(self, flat, weight)
        y = self.view(y, (*x.shape[:-1], weight.shape[0]), "aten::_unsafe_view")
        return adapted(self, x, y if bias is None else self.add(y, bias), lambda: widened(self, weight), bias)

    def conv1d(self, name: str, x: Tensor) -> Tensor:
        """The ``Conv1D`` of GPT-2: a linear layer whose weight [inputs, outputs] is stored transposed."""
        with self.module(name, "Conv1D"):
            weight, bias = self.parameter("weight"), self.optional("bias")
            flat = self.view(x, (math.prod(x.shape[:-1]), x.shape[-1]))
            flat, weight, bias = self.operands(flat, weight, bias, bias_first=True)
            y = self.mm(flat, weight, bias)
            return adapted(self, x, self.view(y, (*x.shape[:-1], weight.shape[1])), lambda: self.t(weight), bias)

    def mm(self, a: Tensor, b: Tensor, bias: Tensor | None = None, column_major: bool = False) -> Tensor:
        """a b (+ bias) for matrices [m, k] and [k, n]; ``column_major`` says that ``b`` is a transposed view."""
        a, b = self.lowered(a, b)
        y = self.tensor((a.shape[0], b.shape[1]), a.dtype, needs_grad=a.needs_grad or b.needs_grad)
        if bias is None:
            row = self.operator("aten::mm", ("self", "mat2"), (a, b), (y,))
        else:
            row = self.operator("aten::addmm", ("self", "mat1", "mat2"), (bias, a, b), (y,))

        def rule(g: Tensor) -> None:
            def of_a() -> Tensor | None:
                return self.mm(g, self.t(b)) if a.needs_grad else None

            def of_b() -> Tensor | None:
                if not b.needs_grad:
                    return None
                if column_major:  # comes out in the layout of b
                    return self.t(self.mm(self.t(g), a))
                return self.mm(self.t(a), g)

            if bias is None:
                db, da = of_b(), of_a()
            else:
                da, db = of_a(), of_b()
                if bias.needs_grad:
                    self.give(bias, self.view(self._sum(g, 0, (1, *bias.shape), keepdim=True), bias.shape))
            for x, gradient in ((a, da), (b, db)):
                if gradient is not None:
                    self.give(x, gradient)

        self.derivative(row, (y,), rule)
        return y

    def bmm(self, a: Tensor, b: Tensor) -> Tensor:
        """Products of pairs of matrices, [n, i, k] and [n, k, j]."""
        a, b = self.lowered(a, b)
        y = self.tensor((a.shape[0], a.shape[1], b.shape[2]), a.dtype, needs_grad=a.needs_grad or b.needs_grad)
        row = self.operator("aten::bmm", ("self", "mat2"), (a, b), (y,))

        def rule(g: Tensor) -> None:
            db = self.bmm(self.transpose(a, 1, 2), g) if b.needs_grad else None
            if a.needs_grad:
                self.give(a, self.bmm(g, self.transpose(b, 1, 2)))
            if db is not None:
                self.give(b, db)

        self.derivative(row, (y,), rule)
        return y
