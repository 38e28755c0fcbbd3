"""Deep learning recommendation models (Naumov et al., arXiv:1906.00091): tables of categories beside dense features.

As the reference implementation has it: the sums of the rows that a sample looks up in each table, and what a perceptron
makes of its dense features, are multiplied pair by pair, and a second perceptron scores the products.  Module names are
the reference's.  Gradients of tables are sparse, one row for each that was looked up, and are added to those rows by
plain gradient descent, whatever optimizer the rest has: tables have no states.
"""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.sources.models._family import Family, Sizes
from triosim.sources.models._losses import binary_cross_entropy
from triosim.sources.models._net import Net
from triosim.sources.models._tape import Dim, Tensor
from triosim.sources.models._weights import Weights
from triosim.trace.tables import Category


@registered
@dataclass(frozen=True)
class DLRM(Family):
    """Configuration.

    Attributes:
        tables: rows of each table.
        embedding_dim: width of a row.
        bottom, top: widths of the perceptrons' layers, of dense features and of products.
        dense_features: of a sample.
        lookups: rows that a sample looks up in each table.
    """

    tables: Sizes
    embedding_dim: int
    bottom: Sizes
    top: Sizes
    dense_features: int = 13
    lookups: int = 1

    precision: ClassVar = "float32"
    optimizer: ClassVar = "sgd"
    reads: ClassVar = "dense features and categories"

    def problem(self) -> str:
        if self.bottom[-1] != self.embedding_dim:
            return f"bottom ends in {self.bottom[-1]}, not in embedding_dim {self.embedding_dim}"
        return "" if self.top[-1] == 1 else f"top ends in {self.top[-1]}, not in the one score"

    @property
    def _pairs(self) -> int:
        return len(self.tables) * (len(self.tables) + 1) // 2

    def weights(self) -> Weights:
        w = Weights()
        for at, rows in enumerate(self.tables):
            w.embedding(f"emb_l.{at}", rows, self.embedding_dim)
        for name, first, widths in (
            ("bot_l", self.dense_features, self.bottom),
            ("top_l", self.embedding_dim + self._pairs, self.top),
        ):
            for at, (inputs, outputs) in enumerate(zip((first, *widths), widths, strict=False)):
                w.linear(f"{name}.{2 * at}", inputs, outputs)
        return w

    def inputs(self, net: Net, batch: Dim, size: int | None) -> tuple[Tensor, Tensor]:
        dense = net.tensor((batch, self.dense_features), net.precision, Category.INPUT)
        return dense, net.tensor((batch, 1), "float32", Category.LABEL)

    def loss(self, net: Net, scores: Tensor, labels: Tensor) -> Tensor:
        return binary_cross_entropy(net, scores, labels)

    def forward(self, net: Net, x: Tensor) -> Tensor:
        batch = x.shape[0]
        x = _perceptron(net, "bot_l", x, len(self.bottom))
        looked_up = [net.tensor((batch * self.lookups,), "int64", Category.INPUT) for _ in self.tables]
        sums = [_bag(net, f"emb_l.{at}", rows, batch) for at, rows in enumerate(looked_up)]
        products = self._products(net, (x, *sums))
        return _perceptron(net, "top_l", net.cat((x, products), 1), len(self.top), last="Sigmoid")

    def _products(self, net: Net, vectors: tuple[Tensor, ...]) -> Tensor:
        """Each with each other, [batch, pairs]."""
        batch, width = vectors[0].shape
        stacked = net.view(net.cat(vectors, 1), (batch, len(vectors), width))
        return _below_diagonal(net, net.bmm(stacked, net.transpose(stacked, 1, 2)), self._pairs)


def _perceptron(net: Net, name: str, x: Tensor, depth: int, last: str = "ReLU") -> Tensor:
    with net.module(name, "Sequential"):
        for at in range(depth):
            x = net.linear(str(2 * at), x)
            kind = last if at + 1 == depth else "ReLU"
            with net.module(str(2 * at + 1), kind):
                x = net.relu(x) if kind == "ReLU" else net.sigmoid(x)
    return x


def _bag(net: Net, name: str, rows: Tensor, batch: int) -> Tensor:
    """Sums [batch, width] of the rows of a table, as many for each sample."""
    starts = net.tensor((batch,), "int64", Category.INPUT)
    with net.module(name, "EmbeddingBag"):
        table = net.parameter("weight")
        y = net.tensor((batch, table.shape[1]), table.dtype, needs_grad=net.training)
        sample_of, size, largest = (net.tensor(shape, "int64") for shape in (rows.shape, (batch,), (batch,)))
        row = net.operator(
            "aten::_embedding_bag", ("weight", "indices", "offsets"), (table, rows, starts),
            (y, sample_of, size, largest), {"mode": 0, "sparse": True},
        )  # fmt: skip

    def rule(g: Tensor) -> None:  # the gradient of a sum is that of each row in it
        gradient = net.tensor((rows.shape[0], g.shape[1]), g.dtype)
        net.operator("aten::index_select", ("self", "index"), (g, sample_of), (gradient,), {"dim": 0})
        net.looked_up[table.storage] = rows
        net.give(table, gradient)

    net.derivative(row, (y,), rule)
    return y


def _below_diagonal(net: Net, x: Tensor, pairs: int) -> Tensor:
    """The elements [batch, pairs] of matrices [batch, n, n] below their diagonals."""
    y = net.tensor((x.shape[0], pairs), x.dtype, needs_grad=x.needs_grad)
    places = [net.tensor((pairs,), "int64") for _ in range(2)]
    for place in places:
        net.operator("aten::arange", (), (), (place,))
    row = net.operator("aten::index", ("self", "indices", "indices"), (x, *places), (y,))

    def rule(g: Tensor) -> None:
        empty = net.tensor(x.shape, x.dtype)
        net.operator("aten::new_zeros", (), (), (empty,))
        whole = net.tensor(x.shape, x.dtype)
        roles = ("self", "indices", "indices", "values")
        net.operator("aten::index_put", roles, (empty, *places, g), (whole,), {"accumulate": True})
        net.give(x, whole)

    net.derivative(row, (y,), rule)
    return y
