"""The update of one parameter, replayed from the operators of a step: what its tensors are where a rank has a part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Generic, TypeVar

from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPES
from triosim.core.errors import PlanError
from triosim.trace.ownership import updates_of_one
from triosim.trace.tables import NONE, Category, Trace
from triosim.transform.optimizing import OPTIMIZERS, Shape, append, found_in, gradients_of, optimizer, row_updates

R = TypeVar("R", bound="UpdateReplay")


class UpdatesOfOne(Generic[R]):
    """The parameters of a step that its optimizer updates one by one.

    Args:
        trace: one rank's step.
        text: the optimizer, as of :func:`triosim.transform.optimizing.optimizer`; ``""`` where it is the step's own.

    Attributes:
        rows: operators of the update of each, by its value id.
    """

    def __init__(self, trace: Trace, text: str) -> None:
        self.trace = trace
        parameter = {int(trace.values.storage[weight]): int(weight) for weight in trace.weights()}
        self.rows: dict[int, list[int]] = {}
        for row, storage in updates_of_one(trace).items():
            self.rows.setdefault(parameter.get(storage, NONE), []).append(row)
        self._gradient = dict(gradients_of(trace))
        self._masters = found_in(trace).masters
        self._rules = [optimizer(name) for name in ([text] if text else OPTIMIZERS.names())]
        apart = row_updates(trace).keys()
        self.parameters = sorted(w for w in self.rows if w in self._gradient and w not in apart)

    def replay(self, weight: int, shape: Shape, made: Callable[[Trace, Sequence[int]], R]) -> R:
        """The update of a parameter that has another shape.

        Args:
            weight: value id.
            shape: what a rank has of it.
            made: makes the step in which it is replayed.

        Raises:
            PlanError: the step's own optimizer is none of :data:`~triosim.transform.optimizing.OPTIMIZERS`.
        """
        values, gradient = self.trace.values, self._gradient[weight]
        # gradients that are added up in float32 were of the parameter's type when the optimizer was written
        types = dict.fromkeys(DTYPES[values.dtype[value]] for value in (gradient, weight))
        for rule, fused, dtype in product(self._rules, (True, False), types):
            replay = made(self.trace, self.rows[weight])
            parameter = LocalTensor(weight, shape, DTYPES[values.dtype[weight]])
            of = LocalTensor(gradient, shape, dtype)
            try:
                append(replay, rule, [values.name[weight]], [parameter], [of], fused, self._masters)
            except _OtherOperators:
                continue
            if replay.left <= 0:
                return replay
        raise PlanError(
            f"the optimizer multiplies whole matrices, and what a rank does that has a part of "
            f"{values.name[weight] or 'a parameter'!r} is not known: name one with --optimizer"
        )


class _OtherOperators(Exception):
    """The operators of a step are not those that a rule appends."""


@dataclass(eq=False)
class LocalTensor:
    """A tensor of the rank."""

    value: int
    shape: Shape
    dtype: str


class UpdateReplay:
    """A step that is there already: operators that are appended are those of some of its rows, in order.

    Attributes:
        shapes: of the values that they touch, as they are appended.
        row: the last of those rows, -1 before the first.
    """

    def __init__(self, trace: Trace, rows: Sequence[int]) -> None:
        self.trace, self.shapes = trace, dict[int, Shape]()
        self.left, self.row = len(rows), NONE
        self._rows: Iterator[int] = iter(rows)

    def tensor(
        self, shape: Shape, dtype: str, category: Category = Category.TEMPORARY, *, of: int = NONE
    ) -> LocalTensor:
        """See :class:`~triosim.transform.optimizing.StepBuilder`."""
        return LocalTensor(NONE, tuple(shape), dtype)

    def overwritten(self, base: LocalTensor) -> LocalTensor:
        """See :class:`~triosim.transform.optimizing.StepBuilder`."""
        return LocalTensor(base.value, base.shape, base.dtype)

    def alias(self, base: LocalTensor, shape: Shape) -> LocalTensor:
        """See :class:`~triosim.transform.optimizing.StepBuilder`."""
        return LocalTensor(base.value, tuple(shape), base.dtype)

    def operator(
        self, name: str, roles: Sequence[str], inputs: Sequence[Any], outputs: Sequence[Any],
        args: Mapping[str, Any] | None = None,
    ) -> int:  # fmt: skip
        """The next row is this operator.

        Raises:
            _OtherOperators: it is not.
        """
        row = next(self._rows, NONE)
        self.left -= 1
        self.row = row if row != NONE else self.row
        if row == NONE and self.left == -1 and name == "aten::_foreach_copy_":
            return row  # copies of all parameters are copied at once
        operators = self.trace.operators
        if row == NONE or operators.name[row] != name:
            raise _OtherOperators
        for table, tensors in ((operators.inputs, inputs), (operators.outputs, outputs)):
            values = table.lists()[row]
            if len(values) != len(tensors):
                raise _OtherOperators
            self.shapes.update((value, tensor.shape) for value, tensor in zip(values, tensors, strict=True))
        return row
