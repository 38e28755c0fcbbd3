"""Networks as graphs of ONNX's operators, and how one becomes a trace.

Readers of exchange formats make a :class:`NetworkGraph`; :class:`Lowering` turns it into a trace without times,
operator by operator as :mod:`triosim.sources.readers._onnx_operators` says.  As a converter would, it leaves out
operators whose output does not reach a result, and those that constants alone go into.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted
from triosim.core.limits import check_memory
from triosim.sources.models._tape import Dim, Shape, Tape, Tensor
from triosim.trace.tables import BATCH, Category, Meta, Trace

NODE_BYTES = 4_000
"""Memory of an operator while a trace is made, an upper bound."""


@dataclass(frozen=True)
class GraphTensor:
    """A tensor of a graph.

    Attributes:
        shape: dimensions; :class:`~triosim.sources.models._tape.Dim` where they follow the batch.
        dtype: element type.
        constant: whether its values are known before anything runs: weights and what is computed from them.
        values: of a small constant of whole numbers (axes, sizes), in order; empty where they are not known.
    """

    shape: Shape
    dtype: str = "float32"
    constant: bool = False
    values: tuple[int, ...] = ()


@dataclass(frozen=True)
class GraphOperator:
    """An operator of a graph.

    Attributes:
        name: of the node, for people.
        type: in ONNX's words.
        inputs: names of tensors, ``""`` for one that is left out.
        outputs: names of tensors.
        attributes: by ONNX's names.
    """

    name: str
    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NetworkGraph:
    """A network.

    Attributes:
        operators: each after those whose output it reads.
        tensors: by name.
        inputs, outputs: names of tensors.
        opset: version of ONNX's operators, which changed what some of them do when nothing is said.
    """

    operators: Sequence[GraphOperator]
    tensors: Mapping[str, GraphTensor]
    inputs: Sequence[str]
    outputs: Sequence[str]
    opset: int = 17


FOLDED = ("Constant", "ConstantOfShape", "EyeLike", "Range", "Shape", "Size")
"""Operators whose results are known when shapes are."""


CHOOSING = ("If", "Loop", "Scan")
"""Operators that run others, which read more than their inputs say: nothing of them is known before they run."""


class Lowering:
    """A graph on its way to a trace.

    Args:
        graph: the network.
        rules: how each type of operator is run.
        where: the file, for messages.
        unused: whether operators whose output reaches no result run too, as they do under some runtimes.
    """

    def __init__(self, graph: NetworkGraph, rules: Mapping[str, Rule], where: str, unused: bool) -> None:
        self.graph, self.rules, self.where, self.unused = graph, rules, where, unused
        self.tape = Tape(training=False)
        self.made: dict[str, Tensor] = {}
        self.constant = {name for name, tensor in graph.tensors.items() if tensor.constant}

    def trace(self, meta: Meta) -> Trace:
        """All of it.

        Raises:
            InputError: an operator that nobody knows, one that lacks what it needs, or more than memory holds.
        """
        operators = len(self.graph.operators)
        check_memory(NODE_BYTES * operators, f"{self.where}: {operators} operators", "give a smaller one")
        wanted = self._reaching()
        for name in self.graph.inputs:
            if name in self.graph.tensors and name not in self.constant:
                known = self.graph.tensors[name]
                self.made[name] = self.tape.tensor(known.shape, known.dtype, Category.INPUT, name=name)
        for number, node in enumerate(self.graph.operators):
            settled = node.type not in CHOOSING and all(name in self.constant for name in node.inputs if name)
            if node.type in FOLDED or (settled and not self._follows(node)):
                self.constant.update(node.outputs)
            elif number in wanted:
                self._lower(node)
        if not len(self.tape.builder):
            raise InputError(f"{self.where} runs nothing: no operator leads from an input to a result")
        return self.tape.builder.build(meta)

    def _follows(self, node: GraphOperator) -> bool:
        """Whether what a node makes grows with the batch: then it runs, though its inputs are known."""
        made = [self.graph.tensors[name].shape for name in node.outputs if name in self.graph.tensors]
        return any(isinstance(side, Dim) for shape in made for side in shape)

    def _reaching(self) -> set[int]:
        """Operators that run: those whose output reaches a result, or all."""
        if self.unused:
            return set(range(len(self.graph.operators)))
        needed, found = set(self.graph.outputs), set()
        for number in range(len(self.graph.operators) - 1, -1, -1):
            node = self.graph.operators[number]
            if needed.intersection(node.outputs):
                found.add(number)
                needed.update(name for name in node.inputs if name)
        return found

    def _lower(self, node: GraphOperator) -> None:
        rule = self.rules.get(node.type)
        if rule is None:
            raise InputError(
                f"{self.where}: node {quoted(node.name)} is of type {quoted(node.type)}, which is not known: "
                "export the network without it"
            )
        path = ".".join(part for part in node.name.replace("/", ".").split(".") if part) or node.type
        try:
            with self.tape.module(path, node.type):
                rule(self, node)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            if isinstance(error, InputError):
                raise
            raise self.problem(node, f"makes no sense ({quoted(str(error))})") from None

    # --- what rules ask -----------------------------------------------------------------------------------------------

    def problem(self, node: GraphOperator, what: str) -> InputError:
        return InputError(f"{self.where}: node {quoted(node.name)} ({node.type}) {what}: export the network again")

    def given(self, node: GraphOperator, at: int) -> Tensor | None:
        """The input at this place, None where it is left out; weights are made when first read."""
        name = node.inputs[at] if at < len(node.inputs) else ""
        if not name:
            return None
        if name not in self.made:
            known = self.graph.tensors.get(name)
            if known is None or name not in self.constant:
                raise self.problem(node, f"reads {quoted(name)}, of which no shape is known")
            self.made[name] = self.tape.tensor(known.shape, known.dtype, Category.WEIGHT, name=name)
        return self.made[name]

    def input(self, node: GraphOperator, at: int = 0) -> Tensor:
        found = self.given(node, at)
        if found is None:
            raise self.problem(node, f"has no input {at + 1}")
        return found

    def values(self, node: GraphOperator, at: int) -> tuple[int, ...]:
        """Whole numbers that the input at this place holds; empty where it is left out or no constant."""
        name = node.inputs[at] if at < len(node.inputs) else ""
        return self.graph.tensors[name].values if name in self.graph.tensors else ()

    def result(self, node: GraphOperator, at: int = 0) -> GraphTensor:
        """What is known of the output at this place."""
        name = node.outputs[at] if at < len(node.outputs) else ""
        if name not in self.graph.tensors:
            raise self.problem(node, f"makes {quoted(name)}, of which no shape is known")
        return self.graph.tensors[name]

    def output(self, node: GraphOperator, at: int = 0) -> Tensor:
        """A new tensor for the output at this place."""
        known = self.result(node, at)
        self.made[node.outputs[at]] = self.tape.tensor(known.shape, known.dtype)
        return self.made[node.outputs[at]]

    def call(
        self, node: GraphOperator, name: str, roles: Sequence[str], inputs: Sequence[Tensor | None], **args: Any
    ) -> None:
        """One operator that makes all outputs of the node."""
        pairs = [(role, x) for role, x in zip(roles, inputs, strict=False) if x is not None]
        outputs = [self.output(node, at) for at, name_ in enumerate(node.outputs) if name_]
        self.tape.operator(
            f"aten::{name}", [role for role, _ in pairs], [x for _, x in pairs], outputs, args or None
        )  # fmt: skip

    def check(self, node: GraphOperator, count: int) -> None:
        """Complain before a node becomes more operators than memory holds."""
        check_memory(NODE_BYTES * count, f"{self.where}: {count} steps of {quoted(node.name)}", "give shorter ones")

    def view(self, node: GraphOperator, x: Tensor, shape: Shape) -> Tensor:
        """``x`` under other dimensions."""
        y = self.tape.alias(x, shape)
        self.tape.operator("aten::view", ("self",), (x,), (y,), view=True)
        return y


Rule = Callable[[Lowering, GraphOperator], None]
"""Appends to the trace what an operator of a graph runs."""


def batched(shape: Sequence[int], batch: int) -> Shape:
    """A shape whose first dimension follows the batch where it is as large."""
    rest = tuple(int(s) for s in shape)
    return (Dim(batch, BATCH), *rest[1:]) if rest and rest[0] == batch else rest
