"""Views of tensors, and the copies and sums that their derivatives take."""

from __future__ import annotations

import math
from collections.abc import Sequence

from triosim.sources.models._call import ModelCall
from triosim.sources.models._tape import Shape, Tensor


class ShapeLayers(ModelCall):
    """What changes shapes or types and computes nothing."""

    def view(self, x: Tensor, shape: Shape, name: str = "aten::view", strided_gradient: bool = False) -> Tensor:
        """The same elements in the same order with other dimensions.

        ``strided_gradient`` says that the gradient comes in a layout that has to be copied before it is reshaped.
        """
        y = self.alias(x, shape)
        row = self.operator(name, ("self",), (x,), (y,), view=True)

        def rule(g: Tensor) -> None:
            dx = self.view(self.clone(g), x.shape, "aten::_unsafe_view") if strided_gradient else self.view(g, x.shape)
            self.give(x, dx)

        self.derivative(row, (y,), rule)
        return y

    def t(self, x: Tensor) -> Tensor:
        """A matrix transposed."""
        y = self.alias(x, x.shape[::-1])
        row = self.operator("aten::t", ("self",), (x,), (y,), view=True)
        self.derivative(row, (y,), lambda g: self.give(x, self.t(g)))
        return y

    def transpose(self, x: Tensor, dim0: int, dim1: int) -> Tensor:
        """Two dimensions exchanged."""
        shape = list(x.shape)
        shape[dim0], shape[dim1] = shape[dim1], shape[dim0]
        y = self.alias(x, tuple(shape))
        row = self.operator("aten::transpose", ("self",), (x,), (y,), {"dim0": dim0, "dim1": dim1}, view=True)
        self.derivative(row, (y,), lambda g: self.give(x, self.transpose(g, dim0, dim1)))
        return y

    def permute(self, x: Tensor, dims: Sequence[int]) -> Tensor:
        """The dimensions of ``x`` in another order."""
        y = self.alias(x, tuple(x.shape[d] for d in dims))
        row = self.operator("aten::permute", ("self",), (x,), (y,), {"dims": list(dims)}, view=True)
        back = [list(dims).index(d) for d in range(len(dims))]
        self.derivative(row, (y,), lambda g: self.give(x, self.permute(g, back)))
        return y

    def select(self, x: Tensor, dim: int, index: int) -> Tensor:
        """What is at ``index`` of one dimension."""
        y = self.alias(x, (*x.shape[:dim], *x.shape[dim + 1 :]), index * math.prod(x.shape[dim + 1 :]))
        args = {"dim": dim, "index": index}
        row = self.operator("aten::select", ("self",), (x,), (y,), args, view=True)

        def rule(g: Tensor) -> None:
            whole = self.tensor(x.shape, x.dtype)
            self.operator("aten::select_backward", ("grad_output",), (g,), (whole,), args)
            self.give(x, whole)

        self.derivative(row, (y,), rule)
        return y

    def unsqueeze(self, x: Tensor, dim: int) -> Tensor:
        """A dimension of size one put in."""
        y = self.alias(x, (*x.shape[:dim], 1, *x.shape[dim:]))
        row = self.operator("aten::unsqueeze", ("self",), (x,), (y,), {"dim": dim}, view=True)
        self.derivative(row, (y,), lambda g: self.give(x, self.squeeze(g, dim)))
        return y

    def squeeze(self, x: Tensor, dim: int) -> Tensor:
        """A dimension of size one left out; for tensors that need no gradient."""
        y = self.alias(x, (*x.shape[:dim], *x.shape[dim + 1 :]))
        self.operator("aten::squeeze", ("self",), (x,), (y,), {"dim": dim}, view=True)
        return y

    def expanded(self, x: Tensor, dim: int, size: int) -> Tensor:
        """A dimension of one repeated ``size`` times without a copy."""
        y = self.alias(x, (*x.shape[:dim], size, *x.shape[dim + 1 :]))
        row = self.operator("aten::expand", ("self",), (x,), (y,), view=True)
        self.derivative(row, (y,), lambda g: self.give(x, self._sum(g, dim, x.shape, keepdim=True)))
        return y

    def repeated(self, x: Tensor, dim: int, times: int) -> Tensor:
        """A dimension of one repeated in a copy."""
        y = self.tensor((*x.shape[:dim], times, *x.shape[dim + 1 :]), x.dtype, needs_grad=x.needs_grad)
        row = self.operator("aten::repeat", ("self",), (x,), (y,), {"repeats": [1] * dim + [times]})
        self.derivative(row, (y,), lambda g: self.give(x, self._sum(g, dim, x.shape, keepdim=True)))
        return y

    def slice(self, x: Tensor, dim: int, start: int, end: int) -> Tensor:
        """Elements ``start`` to ``end`` of one dimension."""
        size = end - start if start else end  # a dimension that follows something still does
        y = self.alias(x, (*x.shape[:dim], size, *x.shape[dim + 1 :]), start * math.prod(x.shape[dim + 1 :]))
        args = {"dim": dim, "start": start, "end": end}
        row = self.operator("aten::slice", ("self",), (x,), (y,), args, view=True)

        def rule(g: Tensor) -> None:
            whole = self.tensor(x.shape, x.dtype)
            self.operator("aten::slice_backward", ("grad_output",), (g,), (whole,), args)
            self.give(x, whole)

        self.derivative(row, (y,), rule)
        return y

    def unbind(self, x: Tensor, dim: int = 0) -> list[Tensor]:
        """What is along one dimension, one by one."""
        shape, size = (*x.shape[:dim], *x.shape[dim + 1 :]), math.prod(x.shape[dim + 1 :])
        parts = [self.alias(x, shape, at * size) for at in range(x.shape[dim])]
        row = self.operator("aten::unbind", ("self",), (x,), parts, {"dim": dim}, view=True)
        self.derivative(row, parts, lambda *gradients: self.give(x, self.stack(gradients, dim)))
        return parts

    def stack(self, parts: Sequence[Tensor], dim: int) -> Tensor:
        """Tensors of one shape put side by side along a new dimension."""
        first = parts[0]
        shape = (*first.shape[:dim], len(parts), *first.shape[dim:])
        y = self.tensor(shape, first.dtype, needs_grad=any(p.needs_grad for p in parts))
        row = self.operator("aten::stack", ("tensors",) * len(parts), parts, (y,), {"dim": dim})

        def rule(g: Tensor) -> None:
            for part, gradient in zip(parts, self.unbind(g, dim), strict=True):
                self.give(part, gradient)

        self.derivative(row, (y,), rule)
        return y

    def split(self, x: Tensor, sizes: Sequence[int], dim: int = -1) -> list[Tensor]:
        """One dimension, by default the last, cut into parts."""
        dim %= len(x.shape)
        starts = [sum(sizes[:i]) * math.prod(x.shape[dim + 1 :]) for i in range(len(sizes))]
        shapes = [(*x.shape[:dim], size, *x.shape[dim + 1 :]) for size in sizes]
        parts = [self.alias(x, shape, at) for shape, at in zip(shapes, starts, strict=True)]
        args = {"split_sizes": list(sizes), "dim": dim}
        row = self.operator("aten::split_with_sizes", ("self",), (x,), parts, args, view=True)
        self.derivative(row, parts, lambda *gradients: self.give(x, self.cat(gradients, dim, x.shape[dim])))
        return parts

    def cat(self, parts: Sequence[Tensor], dim: int, size: int | None = None) -> Tensor:
        """Tensors put one behind the other along one dimension, in the widest of their types; ``size`` says what that
        dimension follows."""
        parts = tuple(parts)  # the caller's list may grow before the derivative is taken
        first = parts[0]
        size = sum(p.shape[dim] for p in parts) if size is None else size
        shape = (*first.shape[:dim], size, *first.shape[dim + 1 :])
        dtype = "float32" if any(p.dtype == "float32" for p in parts) else first.dtype
        y = self.tensor(shape, dtype, needs_grad=any(p.needs_grad for p in parts))
        row = self.operator("aten::cat", ("tensors",) * len(parts), parts, (y,), {"dim": dim})

        def rule(g: Tensor) -> None:
            start, gradients = 0, []
            for part in parts:
                gradients.append((part, self.slice(g, dim, start, start + part.shape[dim])))
                start += part.shape[dim]
            for part, gradient in gradients:
                self.give(part, gradient)

        self.derivative(row, (y,), rule)
        return y

    def clone(self, x: Tensor) -> Tensor:
        """A contiguous copy."""
        y = self._like(x)
        row = self.operator("aten::clone", ("self",), (x,), (y,))
        self.derivative(row, (y,), lambda g: self.give(x, g))
        return y

    def to(self, x: Tensor, dtype: str) -> Tensor:
        """A copy in another element type; ``x`` itself if it has that type already."""
        if x.dtype == dtype:
            return x
        y = self.tensor(x.shape, dtype, needs_grad=x.needs_grad)
        row = self.operator("aten::_to_copy", ("self",), (x,), (y,), {"dtype": dtype})
        self.derivative(row, (y,), lambda g: self.give(x, self.to(g, x.dtype)))
        return y

    def _sum(self, x: Tensor, dim: int, shape: Shape, keepdim: bool) -> Tensor:
        y = self.tensor(shape, x.dtype)
        self.operator("aten::sum", ("self",), (x,), (y,), {"dim": [dim], "keepdim": keepdim})
        return y
