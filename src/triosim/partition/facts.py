"""What rules read of a step: its layers, which operators multiply by a weight, how the weight lies in the product."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from triosim.core.dataclass import dataclass
from triosim.operators import NO_LABEL, Call, Dims
from triosim.operators.view import PERMUTES
from triosim.trace.calls import calls_of
from triosim.trace.tables import Category, Phase, Trace
from triosim.transform.quantization import GATHERED_FIRST

Shape = tuple[int, ...]
_WEIGHTED = ("linear", "matmul", "convolution", "embedding", "experts")
FOLLOWS = (int(Category.WEIGHT), int(Category.BUFFER))
"""What is Shard for good when a Shard value meets it: biases, the weights of norms, running statistics."""
_CASTS = ("to", "_to_copy", "clone", "detach", "alias", "contiguous", "quantize", "dequantize_4bit")
_WITH_SCALES = ("dequantize_4bit",)
"""Casts that also read the scales of blocks, before what they cast."""


@dataclass(frozen=True)
class WeightUse:
    """One weight in use by one forward operator.

    Attributes:
        row: the operator.
        weight: value id of the parameter.
        out_dim: the parameter's dimension along the layer's output.
        in_dim: its dimension along the layer's input, ``NO_LABEL`` for none.
        source: value id of the layer's input, -1 if it has none.
        path: module path.
        embedding: whether it looks rows up instead of multiplying.
    """

    row: int
    weight: int
    out_dim: int
    in_dim: int
    source: int
    path: str
    embedding: bool


class Facts:
    """A trace's columns as lists, with dimensions found once and parameters told from what is made of them.

    Args:
        trace: the step, or one rank's share of it on another axis.
        origin: of a share, the value that each of the last values is a copy of.
    """

    def __init__(self, trace: Trace, origin: Sequence[int] = ()) -> None:
        self.trace = trace
        self.copy_of = dict(enumerate(origin, len(trace.values) - len(origin)))
        """Value that transfers along another axis have made -> what it is a copy of."""
        values, operators = trace.values, trace.operators
        self.shapes: list[Shape] = [tuple(s) for s in values.shape.lists()]
        self.storage: list[int] = values.storage.tolist()
        self.category: list[int] = values.category.tolist()
        self.of: list[int] = values.of.tolist()
        self.calls = calls_of(trace)
        self.inputs: list[list[int]] = operators.inputs.lists()
        self.outputs: list[list[int]] = operators.outputs.lists()
        self.phase: list[int] = operators.phase.tolist()
        self.parameter_of: dict[int, tuple[int, tuple[int, ...]]] = {}
        """Value that is a parameter, a cast or a transpose of one -> (parameter, its dimension at each of mine)."""
        self._find_parameters()

    @cached_property
    def on_storage(self) -> dict[int, list[int]]:
        """Storage -> the values on it."""
        return _inverse(enumerate(self.storage))

    @cached_property
    def made_of(self) -> dict[int, list[int]]:
        """Parameter -> the values that are it, a cast or a transpose of it."""
        return _inverse((value, parameter) for value, (parameter, _) in self.parameter_of.items())

    @cached_property
    def layers(self) -> list[WeightUse]:
        """The forward operators that read a weight each."""
        forward = (row for row, phase in enumerate(self.phase) if phase == Phase.FORWARD)
        return [layer for row in forward if (layer := self._layer(row, self.calls[row]))]

    @cached_property
    def layer_of(self) -> dict[int, WeightUse]:
        """Row -> the layer that it runs, runs again or differentiates."""
        return self._layers_of_rows()

    def home(self, value: int) -> int:
        """The storage that a value is on, or that of what it is a copy of."""
        while value in self.copy_of:
            value = self.copy_of[value]
        return self.storage[value]

    def dims(self, row: int) -> Dims:
        """Dimensions of an operator."""
        return self.calls.dims(row)

    def parameter(self, value: int) -> int:
        """The parameter that a value is (a view of), or the value itself."""
        return self.parameter_of[value][0] if value in self.parameter_of else value

    def weight_input(self, row: int, layer: WeightUse) -> int:
        """Position among the operator's inputs at which it reads the layer's weight."""
        return max(i for i, v in enumerate(self.inputs[row]) if self.parameter(v) == layer.weight)

    def dim_of(self, value: int, parameter_dim: int) -> int:
        """Where a parameter's dimension is in a value made of it."""
        return self.parameter_of[value][1].index(parameter_dim) if value in self.parameter_of else parameter_dim

    def _find_parameters(self) -> None:
        """Parameters, then what operators make of them; last, views of which no operator tells, by their shape."""
        first: dict[int, int] = {}
        made = {v for row, writes in enumerate(self.outputs) if self.phase[row] != Phase.OPTIMIZER for v in writes}
        for value, category in enumerate(self.category):
            if category == Category.WEIGHT and value not in made and self.storage[value] not in first:
                first[self.storage[value]] = value
                self.parameter_of[value] = (value, tuple(range(len(self.shapes[value]))))
        for row, (reads, writes) in enumerate(zip(self.inputs, self.outputs, strict=True)):
            if self.phase[row] == Phase.OPTIMIZER or len(writes) != 1 or not reads:
                continue
            source, target = reads[-1], writes[0]
            if target in self.parameter_of or source not in self.parameter_of:
                continue
            parameter, dims = self.parameter_of[source]
            name = self.calls[row].name
            if name in PERMUTES:
                order = self.dims(row).outputs[0].labels
                if NO_LABEL not in order:
                    self.parameter_of[target] = (parameter, tuple(dims[d] for d in order))
            elif name in _CASTS and (len(reads) == 1 or name in _WITH_SCALES):
                self.parameter_of[target] = (parameter, dims)
        for value, category in enumerate(self.category):
            if category == Category.WEIGHT and value not in self.parameter_of and self.storage[value] in first:
                parameter = first[self.storage[value]]
                found = _matching_dims(self.shapes[value], self.shapes[parameter])
                if found is not None:
                    self.parameter_of[value] = (parameter, found)

    def gathered_first(self, row: int) -> bool:
        """Whether an operator casts what a layer reads after it was gathered, not the part of each rank before."""
        return self.trace.operators.name[row] in GATHERED_FIRST

    def multiplies(self, row: int) -> bool:
        """Whether an operator reads the weight of a layer or makes the gradient of one."""
        layer = self.layer_of.get(row)
        if layer is None:
            return False
        if any(self.parameter(value) == layer.weight for value in self.inputs[row]):
            return True
        shape = sorted(self.shapes[layer.weight])
        return self.phase[row] == Phase.BACKWARD and any(sorted(self.shapes[v]) == shape for v in self.outputs[row])

    def _layers_of_rows(self) -> dict[int, WeightUse]:
        """The layers by operator; a backward operator belongs to that of the forward operator it differentiates."""
        found = {layer.row: layer for layer in self.layers}
        by_weight = {layer.weight: layer for layer in self.layers}
        for row, forward in enumerate(self.trace.operators.forward.tolist()):
            phase = self.phase[row]
            if phase == Phase.BACKWARD and forward in found:
                found[row] = found[forward]
            elif phase == Phase.RECOMPUTE and (again := self._layer(row, self.calls[row])) is not None:
                found[row] = by_weight.get(again.weight, again)
            elif phase == Phase.BACKWARD:
                made = [self.of[v] for v in self.outputs[row] if self.category[v] == Category.GRADIENT]
                if made and made[0] in by_weight:
                    found[row] = by_weight[made[0]]
        return found

    def _layer(self, row: int, call: Call) -> WeightUse | None:
        if call.kind not in _WEIGHTED or call.backward:
            return None
        bias = 0 if call.name in ("addmm", "baddbmm", "_addmm_activation") else -1
        reads = self.inputs[row]
        weights = [i for i, v in enumerate(reads) if v in self.parameter_of and len(self.shapes[v]) >= 2 and i != bias]
        rule = self.dims(row)
        if not weights or not rule.known or not rule.outputs:
            return None
        at = weights[0] if call.kind == "embedding" else weights[-1]
        produced = set(rule.outputs[0].labels)
        out = [d for d, label in enumerate(rule.inputs[at]) if label != NO_LABEL and label in produced]
        read = {label for i, row in enumerate(rule.inputs) if i != at for label in row}
        inner = [
            d for d, label in enumerate(rule.inputs[at])
            if label != NO_LABEL and label not in produced and (label in read or call.kind == "embedding")
        ]  # fmt: skip
        if not out:
            return None
        parameter, dims = self.parameter_of[reads[at]]
        source = next((v for i, v in enumerate(reads) if i not in (at, bias) and v not in self.parameter_of), -1)
        module = int(self.trace.operators.module[row])
        path = self.trace.modules.path[module] if module >= 0 else self.trace.values.name[parameter].rpartition(".")[0]
        in_dim = dims[inner[0]] if inner else NO_LABEL
        return WeightUse(row, parameter, dims[out[-1]], in_dim, source, path, call.kind == "embedding")


def _inverse(pairs: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    """The first of pairs by the second."""
    found: dict[int, list[int]] = {}
    for one, other in pairs:
        found.setdefault(other, []).append(one)
    return found


def _matching_dims(shape: Shape, parameter: Shape) -> tuple[int, ...] | None:
    """Which dimension of the parameter each dimension of a view of it is (same shape, or transposed)."""
    if shape == parameter:
        return tuple(range(len(shape)))
    if len(shape) == 2 and shape == parameter[::-1]:
        return (1, 0)
    return None
