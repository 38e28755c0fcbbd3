"""Rows of tables by number: embeddings, indexing, positions."""

from __future__ import annotations

from triosim.sources.models._pointwise import PointwiseLayers
from triosim.sources.models._tape import Tensor


class LookupLayers(PointwiseLayers):
    """Rows of tables by number."""

    def positions(self, tokens: Tensor) -> Tensor:
        """0, 1, ... [sequence] for tokens [batch, sequence]."""
        y = self.tensor(tokens.shape[1:], "int64")
        self.operator("aten::arange", (), (), (y,))
        return y

    def zeros(self, tokens: Tensor) -> Tensor:
        """Zero for every token."""
        y = self._like(tokens)
        self.operator("aten::zeros", (), (), (y,))
        return y

    def embedding(self, name: str, indices: Tensor, tied: str = "") -> Tensor:
        """Rows of a table, its own or the one of the qualified name ``tied``."""
        with self.module(name, "Embedding"):
            table = self.parameters[tied] if tied else self.parameter("weight")
            y = self.tensor((*indices.shape, table.shape[1]), table.dtype, needs_grad=table.needs_grad)
            row = self.operator("aten::embedding", ("weight", "indices"), (table, indices), (y,))

        def rule(g: Tensor) -> None:
            gradient = self._like(table, False)
            args = {"num_weights": table.shape[0]}
            self.operator("aten::embedding_dense_backward", ("grad_output", "indices"), (g, indices), (gradient,), args)
            self.give(table, gradient)

        self.derivative(row, (y,), rule)
        return y

    def indexed(self, x: Tensor, numbers: Tensor) -> Tensor:
        """Rows of ``x`` by their numbers, as indexing takes them."""
        y = self.tensor((*numbers.shape, *x.shape[1:]), x.dtype, needs_grad=x.needs_grad)
        row = self.operator("aten::index", ("self", "indices"), (x, numbers), (y,))

        def rule(g: Tensor) -> None:
            zeros, dx = self._like(x, False), self._like(x, False)
            self.operator("aten::new_zeros", ("self",), (g,), (zeros,))
            roles = ("self", "indices", "values")
            self.operator("aten::index_put", roles, (zeros, numbers, g), (dx,), {"accumulate": True})
            self.give(x, dx)

        self.derivative(row, (y,), rule)
        return y
