"""The update of a part of a matrix, by an optimizer that multiplies whole ones: each rank takes its part for a matrix.

Megatron-LM's Muon does so by default (``--muon-tp-mode blockwise``), and any optimizer that knows nothing of other
ranks does.  Nothing is sent; the products are those of the parts, which are smaller than a share of the whole matrix's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from triosim.core.caching import kept
from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPES
from triosim.core.errors import PlanError
from triosim.trace.calls import count_work
from triosim.trace.ownership import updates_of_one
from triosim.trace.repeated import ROOM
from triosim.trace.tables import NONE, Category, Trace
from triosim.transform.optimizing import (
    OPTIMIZERS,
    OptimizerRule,
    Shape,
    append,
    found_in,
    gradients_of,
    optimizer,
    row_updates,
)  # fmt: skip


@kept(16, room=ROOM, size=len)
def updated_in_parts(trace: Trace, text: str, cut: frozenset[int]) -> Trace:
    """One rank's step in which what it has of each parameter is updated as a matrix of that shape.

    Args:
        trace: the step, parameters with the shapes that the rank has, all that belongs to the optimizer with those of
            the undivided step.
        text: the optimizer, as of :func:`triosim.transform.optimizing.optimizer`; ``""`` where it is the step's own.
        cut: parameters of which the rank has a part, value ids.

    Raises:
        PlanError: the step's own optimizer is none of :data:`~triosim.transform.optimizing.OPTIMIZERS`.
    """
    parameter = {int(trace.values.storage[weight]): int(weight) for weight in trace.weights()}
    rows: dict[int, list[int]] = {}
    for row, storage in updates_of_one(trace).items():
        rows.setdefault(parameter.get(storage, NONE), []).append(row)
    gradient = dict(gradients_of(trace))
    masters = found_in(trace).masters
    rules = [optimizer(name) for name in ([text] if text else OPTIMIZERS.names())]
    shapes: dict[int, Shape] = {}
    for weight in sorted((cut & rows.keys() & gradient.keys()) - row_updates(trace).keys()):
        found = _shapes(trace, rules, weight, gradient[weight], rows[weight], masters)
        if found is None:
            raise PlanError(
                f"the optimizer multiplies whole matrices, and what a rank does that has a part of "
                f"{trace.values.name[weight] or 'a parameter'!r} is not known: name one with --optimizer"
            )
        shapes.update(found)
    values = trace.values
    own = [shapes.get(value, shape) for value, shape in enumerate(values.shape.lists())]
    return count_work(replace(trace, values=replace(values, shape=Ragged.of(own))))


def _shapes(
    trace: Trace, rules: Sequence[OptimizerRule], weight: int, gradient: int, rows: list[int], masters: bool
) -> dict[int, Shape] | None:
    """Shapes of the values that the update of one parameter touches, None where no rule runs these operators."""
    values = trace.values
    # gradients that are added up in float32 were of the parameter's type when the optimizer was written
    types = dict.fromkeys(DTYPES[values.dtype[value]] for value in (gradient, weight))
    for rule, fused, dtype in product(rules, (True, False), types):
        replay = _UpdateReplay(trace, rows)
        shape = tuple(values.shape.lists()[weight])
        parameter, of = _LocalTensor(weight, shape, DTYPES[values.dtype[weight]]), _LocalTensor(gradient, shape, dtype)
        try:
            append(replay, rule, [values.name[weight]], [parameter], [of], fused, masters)
        except _OtherOperators:
            continue
        if replay.left <= 0:
            return replay.shapes
    return None


class _OtherOperators(Exception):
    """The operators of a step are not those that a rule appends."""


@dataclass(eq=False)
class _LocalTensor:
    """A tensor of the rank."""

    value: int
    shape: Shape
    dtype: str


class _UpdateReplay:
    """A step that is there already: operators that are appended are those of some of its rows, in order.

    Attributes:
        shapes: of the values that they touch, as they are appended.
    """

    def __init__(self, trace: Trace, rows: Sequence[int]) -> None:
        self.trace, self.shapes = trace, dict[int, Shape]()
        self.left = len(rows)
        self._rows: Iterator[int] = iter(rows)

    def tensor(
        self, shape: Shape, dtype: str, category: Category = Category.TEMPORARY, *, of: int = NONE
    ) -> _LocalTensor:
        """See :class:`~triosim.transform.optimizing.StepBuilder`."""
        return _LocalTensor(NONE, tuple(shape), dtype)

    def overwritten(self, base: _LocalTensor) -> _LocalTensor:
        """See :class:`~triosim.transform.optimizing.StepBuilder`."""
        return _LocalTensor(base.value, base.shape, base.dtype)

    def alias(self, base: _LocalTensor, shape: Shape) -> _LocalTensor:
        """See :class:`~triosim.transform.optimizing.StepBuilder`."""
        return _LocalTensor(base.value, tuple(shape), base.dtype)

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
        if row == NONE and self.left == -1 and name == "aten::_foreach_copy_":
            return row  # copies of all parameters are copied at once
        operators = self.trace.operators
        if row == NONE or operators.name[row] != name:
            raise _OtherOperators
        for table, tensors in ((operators.inputs, inputs), (operators.outputs, outputs)):
            values = table.values[table.offsets[row] : table.offsets[row + 1]].tolist()
            if len(values) != len(tensors):
                raise _OtherOperators
            self.shapes.update((value, tensor.shape) for value, tensor in zip(values, tensors, strict=True))
        return row
