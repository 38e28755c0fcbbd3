"""Writing networks down: operators one after another, their shapes worked out.

    net = GraphDraft()
    x = net.input("x", 1, 3, 224, 224)
    y = net.convolution(x, 64, taps=7, stride=2)
    graph = net.graph(net.relu(y))

Weights are named and have no values; :mod:`~triosim.sources.runtimes.onnx_file` draws some.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from triosim.core.dataclass import dataclass
from triosim.sources.readers._graph import GraphOperator, GraphTensor, NetworkGraph


@dataclass(frozen=True)
class WrittenGraph:
    """A network with the values of what is no weight.

    Attributes:
        network: operators and shapes.
        values: of constants that say sizes, places or bounds, by name.
    """

    network: NetworkGraph
    values: Mapping[str, Sequence[float]] = field(default_factory=dict)


class GraphDraft:
    """A network while it is written."""

    def __init__(self) -> None:
        self.operators: list[GraphOperator] = []
        self.tensors: dict[str, GraphTensor] = {}
        self.inputs: list[str] = []
        self.values: dict[str, Sequence[float]] = {}

    def input(self, name: str, *shape: int, dtype: str = "float32") -> str:
        """A tensor that the caller gives."""
        self.tensors[name] = GraphTensor(shape, dtype)
        self.inputs.append(name)
        return name

    def weight(self, *shape: int) -> str:
        """A constant whose values do not matter."""
        name = f"w{len(self.tensors)}"
        self.tensors[name] = GraphTensor(shape, constant=True)
        return name

    def constant(self, *values: float, dtype: str = "int64", shape: tuple[int, ...] | None = None) -> str:
        """A constant whose values matter: whole numbers are sizes and places."""
        name = f"c{len(self.tensors)}"
        self.tensors[name] = GraphTensor((len(values),) if shape is None else shape, dtype, constant=True)
        self.values[name] = values
        return name

    def node(self, type_: str, inputs: Sequence[str], shape: Sequence[int], **attributes: Any) -> str:
        """One operator of one output of this shape, of its first input's element type."""
        name = f"n{len(self.tensors)}"
        self.tensors[name] = GraphTensor(tuple(shape), self.tensors[inputs[0]].dtype)
        self.operators.append(
            GraphOperator(f"{type_}_{len(self.operators)}", type_, tuple(inputs), (name,), attributes)
        )
        return name

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a tensor."""
        return tuple(int(side) for side in self.tensors[name].shape)

    def graph(self, *outputs: str) -> WrittenGraph:
        """The network with these results."""
        made = NetworkGraph(tuple(self.operators), dict(self.tensors), tuple(self.inputs), outputs)
        return WrittenGraph(made, dict(self.values))

    # --- operators ----------------------------------------------------------------------------------------------------

    def convolution(
        self, x: str, channels: int, taps: int = 1, stride: int = 1, groups: int = 1, bias: bool = True
    ) -> str:
        """With as much padding as keeps positions, but for the stride; NCHW."""
        images, deep, *sides = self.shape(x)
        given = [x, self.weight(channels, deep // groups, taps, taps), *([self.weight(channels)] if bias else [])]
        out = (images, channels, *(-(-side // stride) for side in sides))
        pads = [taps // 2] * 4
        return self.node(
            "Conv", given, out, kernel_shape=[taps] * 2, strides=[stride] * 2, pads=pads, group=groups
        )  # fmt: skip

    def patches(self, x: str, channels: int, taps: int) -> str:
        """A convolution that sees each position once; what is left at the sides is not seen."""
        images, deep, *sides = self.shape(x)
        given = [x, self.weight(channels, deep, taps, taps), self.weight(channels)]
        out = (images, channels, *(side // taps for side in sides))
        return self.node("Conv", given, out, kernel_shape=[taps] * 2, strides=[taps] * 2, pads=[0] * 4, group=1)

    def pool(self, x: str, how: str, taps: int, stride: int, padding: int | None = None) -> str:
        """``how``: ``MaxPool`` or ``AveragePool``; padded as :meth:`convolution` where nothing else is said."""
        images, channels, *sides = self.shape(x)
        pad = taps // 2 if padding is None else padding
        out = (images, channels, *((side + 2 * pad - taps) // stride + 1 for side in sides))
        return self.node(how, [x], out, kernel_shape=[taps] * 2, strides=[stride] * 2, pads=[pad] * 4)

    def global_pool(self, x: str) -> str:
        """Mean over positions, kept as 1 x 1."""
        return self.node("GlobalAveragePool", [x], (*self.shape(x)[:2], 1, 1))

    def same(self, type_: str, x: str, *others: str, **attributes: Any) -> str:
        """An operator whose result is as large as its largest input."""
        shapes = [self.shape(name) for name in (x, *others) if name]
        shape = max(shapes, key=lambda s: (math.prod(s), len(s)))
        return self.node(type_, [x, *others], shape, **attributes)

    def relu(self, x: str) -> str:
        return self.same("Relu", x)

    def clip(self, x: str, low: float = 0.0, high: float = 6.0) -> str:
        """Bounds: ReLU6 where none are given."""
        bounds = [self.constant(bound, dtype="float32", shape=()) for bound in (low, high)]
        return self.node("Clip", [x, *bounds], self.shape(x))

    def batch_norm(self, x: str) -> str:
        """Of channels, with known statistics."""
        return self.node("BatchNormalization", [x, *(self.weight(self.shape(x)[1]) for _ in range(4))], self.shape(x))

    def layer_norm(self, x: str) -> str:
        """Over the last dimension."""
        width = self.shape(x)[-1]
        return self.node("LayerNormalization", [x, self.weight(width), self.weight(width)], self.shape(x), axis=-1)

    def gelu(self, x: str) -> str:
        """By the error function, in the five operators that exporters write."""
        root, one, half = (self.constant(v, dtype="float32", shape=()) for v in (math.sqrt(2), 1.0, 0.5))
        raised = self.same("Add", self.same("Erf", self.same("Div", x, root)), one)
        return self.same("Mul", self.same("Mul", x, raised), half)

    def linear(self, x: str, width: int, bias: bool = True) -> str:
        """A layer: ``Gemm`` for matrices, else ``MatMul`` and ``Add``, as exporters write them."""
        *rows, deep = self.shape(x)
        if len(rows) == 1:
            given = [x, self.weight(width, deep), *([self.weight(width)] if bias else [])]
            return self.node("Gemm", given, (*rows, width), transB=1)
        y = self.node("MatMul", [x, self.weight(deep, width)], (*rows, width))
        return self.same("Add", y, self.weight(width)) if bias else y

    def product(self, a: str, b: str) -> str:
        """Of matrices, in a batch."""
        return self.node("MatMul", [a, b], (*self.shape(a)[:-1], self.shape(b)[-1]))

    def reshape(self, x: str, *shape: int) -> str:
        """Of as many elements."""
        return self.node("Reshape", [x, self.constant(*shape)], shape)

    def transpose(self, x: str, *order: int) -> str:
        """Dimensions in this order."""
        return self.node("Transpose", [x], [self.shape(x)[at] for at in order], perm=list(order))

    def concat(self, axis: int, *parts: str) -> str:
        """One after another along ``axis``."""
        shape = list(self.shape(parts[0]))
        shape[axis] = sum(self.shape(part)[axis] for part in parts)
        return self.node("Concat", parts, shape, axis=axis)

    def cut(self, x: str, axis: int, start: int, stop: int) -> str:
        """A slice along one dimension."""
        shape = list(self.shape(x))
        shape[axis] = stop - start
        return self.node("Slice", [x, self.constant(start), self.constant(stop), self.constant(axis)], shape)

    def mean(self, x: str, axis: int) -> str:
        """Over one dimension, which goes."""
        shape = [side for at, side in enumerate(self.shape(x)) if at != axis % len(self.shape(x))]
        return self.node("ReduceMean", [x], shape, axes=[axis], keepdims=0)

    def gather(self, rows: int, width: int, indices: str) -> str:
        """Rows of a table."""
        table = self.weight(rows, width)
        return self.node("Gather", [table, indices], (*self.shape(indices), width), axis=0)
