"""Walking a symbol through a trace: which dimensions follow the batch (or the sequence).

The walk starts at the inputs of the step, where the symbol's dimension is known, and goes from operator to
operator by the rules of :mod:`triosim.operators`.  A dimension may hold the symbol times other factors (``B * S``
rows of a flattened tensor), so each follower is a :class:`Segment` of a dimension.  Where a rule is missing, or two
inputs that must agree do not, the outputs are *undecided*: they are listed and widen the prediction's interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from triosim.core.caching import kept
from triosim.core.dataclass import dataclass
from triosim.operators import NO_LABEL, Dims, regrouped
from triosim.trace.calls import Calls, calls_of
from triosim.trace.tables import PERSISTENT, Category, Phase, Trace

Shape = tuple[int, ...]


class Segment(NamedTuple):
    """The part ``size`` of dimension ``dim`` whose extent is ``outer * size * inner``."""

    dim: int
    outer: int
    size: int
    inner: int

    @staticmethod
    def whole(dim: int, extent: int) -> Segment:
        """The whole of a dimension."""
        return Segment(dim, 1, extent, 1)

    def moved(self, dim: int, extent: int) -> Segment | None:
        """The same part of another dimension, None if it does not fit there.

        Dimensions with the same label may differ in extent when one is a part of the other (a split) or is
        proportional to it (heads of keys to heads of queries); the whole of the one is then the whole of the other.
        """
        if extent == self.outer * self.size * self.inner:
            return Segment(dim, self.outer, self.size, self.inner)
        if self.outer == 1 and self.inner == 1:
            return Segment.whole(dim, extent)
        if self.outer == 1 and extent % self.inner == 0:
            return Segment(dim, 1, extent // self.inner, self.inner)
        if extent % (self.size * self.inner) == 0:
            return Segment(dim, extent // (self.size * self.inner), self.size, self.inner)
        return None


def relocate(segment: Segment, before: Shape, after: Shape) -> Segment | None:
    """Where a segment is after a reshape that keeps the order of elements; None if it is torn apart.

    A segment that comes to lie across several dimensions is in the outermost of them.
    """
    for first, last in regrouped(before, after) or ():
        if segment.dim in first:
            start = math.prod(before[d] for d in first if d < segment.dim) * segment.outer
            return _placed(start, segment.size, after, last)
    return None


def _placed(start: int, size: int, after: Shape, dims: tuple[int, ...]) -> Segment | None:
    """The part of ``size`` within dimensions ``dims`` of which ``start`` parts lie outside of it."""
    end, passed = start * size, 1
    if size == 1:  # a part of one element is where a dimension of one element is
        for dim in dims:
            if passed == start and after[dim] == 1:
                return Segment(dim, 1, 1, 1)
            passed *= after[dim]
        passed = 1
    for dim in dims:
        extent = after[dim]
        upto = passed * extent
        if extent > 1 and passed <= start < upto:
            if start % passed:
                return None
            if end <= upto:
                if upto % end:
                    return None
                return Segment(dim, start // passed, size, upto // end)
            if upto % start:
                return None
            return Segment(dim, start // passed, upto // start, 1)
        passed = upto
    return Segment(dims[-1], after[dims[-1]], 1, 1) if dims and size == 1 and start == passed else None


@dataclass(frozen=True)
class PropagatedSymbol:
    """Where a symbol went.

    Attributes:
        segments: for each value the segments that follow the symbol.
        undecided: operators (rows) whose outputs could not be decided.
    """

    segments: list[tuple[Segment, ...]]
    undecided: list[int]


def propagate_symbol(
    trace: Trace, seeds: dict[int, Segment], extent: int, until: int | None = None, proportional: bool = False,
    asked: Sequence[int] | None = None,
) -> PropagatedSymbol:  # fmt: skip
    """Walk a symbol of size ``extent`` from the values in ``seeds`` through the whole trace.

    Args:
        trace: any trace; identities may be inferred.
        seeds: segment of the symbol in each input value that has it.
        extent: the symbol's size in this trace (the batch size), by which it is guessed where no rule says it; 0 for
            no guesses.
        until: operators to walk through, None for all.
        proportional: whether what a dimension is cut into, or joined of, has as large a part of the symbol each.
        asked: values whose segments are wanted, None for all; the others have none in the answer.
    """
    walk = _SymbolWalk(_columns(trace), seeds, extent, proportional)
    undecided = [row for row in range(len(trace.operators) if until is None else until) if not walk.passes(row)]
    count = len(trace.values)
    if asked is None:
        return PropagatedSymbol([walk.look_up(value) for value in range(count)], undecided)
    segments: list[tuple[Segment, ...]] = [()] * count
    for value in asked:
        segments[value] = walk.look_up(value)
    return PropagatedSymbol(segments, undecided)


class _WalkedColumns(NamedTuple):
    """What every walk through a trace reads, one entry a value or an operator.

    Attributes:
        calls: of the operators.
        shapes, storage: of values.
        inputs, outputs, phases: of operators.
        constant: whether a value is a parameter, a buffer or a state.
        follows_none: whether a value never has the symbol.
    """

    calls: Calls
    shapes: list[Shape]
    storage: list[int]
    inputs: list[list[int]]
    outputs: list[list[int]]
    phases: list[int]
    constant: list[bool]
    follows_none: list[bool]


@kept(2)
def _columns(trace: Trace) -> _WalkedColumns:
    values, operators = trace.values, trace.operators
    constant = np.isin(values.category, PERSISTENT)
    # parameters, their gradients and states never follow the batch
    follows_none = constant | (values.category == Category.GRADIENT) & (values.of >= 0)
    return _WalkedColumns(
        calls_of(trace), [tuple(s) for s in values.shape.lists()], values.storage.tolist(), operators.inputs.lists(),
        operators.outputs.lists(), operators.phase.tolist(), constant.tolist(), follows_none.tolist(),
    )  # fmt: skip


class _SymbolWalk:
    """Where a symbol is in the values of a trace, operator by operator.

    Args:
        columns: of the trace.
        seeds, extent, proportional: as of :func:`propagate_symbol`.

    Attributes:
        found: value -> its segments that follow the symbol.
        latest: storage -> the value of it that was decided last.
        otherwise: value that is another view of its storage -> where else the symbol may be in it.
    """

    def __init__(self, columns: _WalkedColumns, seeds: dict[int, Segment], extent: int, proportional: bool) -> None:
        self.extent, self.proportional = extent, proportional
        self.calls, self.shapes, self.storage, self.inputs, self.outputs = columns[:5]
        self.phases, self.constant, self.follows_none = columns[5:]
        self.found: dict[int, tuple[Segment, ...]] = {v: (s,) for v, s in seeds.items()}
        self.latest: dict[int, int] = {self.storage[v]: v for v in seeds}
        self.otherwise: dict[int, list[Segment]] = {}

    def look_up(self, value: int) -> tuple[Segment, ...]:
        """Segments of a value, from another view of its storage where no operator that made it was recorded."""
        if value in self.found:
            return self.found[value]
        result: tuple[Segment, ...] = ()
        known = self.latest.get(self.storage[value])
        if known is not None and not self.constant[value]:
            before, after = self.shapes[known], self.shapes[value]
            moved = [_same_storage(s, before, after) for s in self.found[known]]
            result = tuple(s for s in moved if s is not None)
            if len(moved) == 1:
                others = [s for s in _as_matrix(self.found[known][0], before, after) if s != moved[0]]
                result = result or tuple(others[:1])
                self.otherwise[value] = others
        self.found[value] = result
        return result

    def passes(self, row: int) -> bool:
        """Follow the symbol through an operator; whether where it comes out could be decided."""
        if self.phases[row] == Phase.OPTIMIZER:
            for value in self.outputs[row]:
                self._settle(value, ())
            return True
        states = [self.look_up(v) for v in self.inputs[row]]
        return self._carry(row, states) if any(states) else self._begins(row)

    def _settle(self, value: int, segments: tuple[Segment, ...]) -> None:
        self.found[value] = () if self.follows_none[value] else segments
        self.latest[self.storage[value]] = value

    def _begins(self, row: int) -> bool:
        """An operator that reads nothing of the symbol; one that creates a tensor as long is taken to follow it."""
        creates, decided = self.calls[row].kind == "create", True
        for value in self.outputs[row]:
            shape = self.shapes[value]
            if creates and shape and shape[0] == self.extent and (self.extent > 1 or len(shape) > 1):
                self._settle(value, (Segment.whole(0, self.extent),))
                decided = False
            else:
                self._settle(value, ())
        return decided

    def _carry(self, row: int, states: list[tuple[Segment, ...]]) -> bool:
        """An operator whose inputs have the symbol where ``states`` says."""
        call, rule = self.calls[row], self.calls.dims(row)
        contradicts = _contradiction(rule, states, call.inputs)
        if contradicts and rule.known:
            for at, value in enumerate(self.inputs[row]):
                for other in self.otherwise.get(value, ()):
                    tried = [*states[:at], (other,), *states[at + 1 :]]
                    if contradicts and not _contradiction(rule, tried, call.inputs):
                        states, contradicts, self.found[value] = tried, False, (other,)
        decided = rule.known and not contradicts
        for at, value in enumerate(self.outputs[row]):
            if rule.reshape:
                moved = [relocate(s, call.inputs[0], self.shapes[value]) for s in states[0]]
                decided = decided and None not in moved
                self._settle(value, tuple(m for m in moved if m is not None))
            else:
                segments = _through(rule, at, states, self.shapes[value], self.proportional)
                decided = decided and segments is not None
                self._settle(value, segments if segments is not None else _guess(self.shapes[value], self.extent))
            if not rule.known and not self.found[value] and not self.constant[value]:
                self._settle(value, _guess(self.shapes[value], self.extent))
        return decided


def _same_storage(segment: Segment, before: Shape, after: Shape) -> Segment | None:
    """A segment seen through another view of the same storage, of which the operator was not recorded."""
    if before == after:
        return segment
    if len(before) == 2 and after == before[::-1]:
        return segment._replace(dim=1 - segment.dim)
    return relocate(segment, before, after)


def _as_matrix(segment: Segment, before: Shape, after: Shape) -> list[Segment]:
    """Where a segment may be in a matrix that shows the storage of an activation, tokens by features or transposed.

    Of (batch, heads, positions, size) and (batch, positions, size) the features are what is not batch or position.  A
    square matrix may be either.
    """
    tokens: tuple[int, ...] = {4: (0, 2), 3: (0, 1), 2: (0,)}.get(len(before), ())
    if len(after) != 2 or segment.dim not in tokens:
        return []
    features = math.prod(before) // max(math.prod(before[d] for d in tokens), 1)
    rows = math.prod(before[d] for d in tokens)
    outer = math.prod(before[d] for d in tokens if d < segment.dim) * segment.outer
    inner = math.prod(before[d] for d in tokens if d > segment.dim) * segment.inner
    dims = [dim for dim, shape in ((0, (rows, features)), (1, (features, rows))) if shape == after]
    return [Segment(dim, outer, segment.size, inner) for dim in dims]


def in_matrix(segment: Segment, before: Shape, after: Shape) -> Segment | None:
    """Where heads or their elements, of (batch, heads, positions, size), are in a matrix of a part of the tokens.

    Args:
        segment: of ``before``, not of its batch or positions.
        before: shape of all tokens.
        after: shape of the matrix, tokens by features or transposed.
    """
    if len(before) != 4 or len(after) != 2 or segment.dim not in (1, 3):
        return None
    features, tokens = before[1] * before[3], before[0] * before[2]
    outer, inner = (before[1], 1) if segment.dim == 3 else (1, before[3])
    for dim in (0, 1):
        if after[dim] == features and tokens % after[1 - dim] == 0 and after[1 - dim] != features:
            return Segment(dim, outer * segment.outer, segment.size, segment.inner * inner)
    return None


def _through(
    rule: Dims, at: int, states: Sequence[tuple[Segment, ...]], shape: Shape, proportional: bool
) -> tuple[Segment, ...] | None:
    """Segments of output ``at``; None where a segment does not fit the output's dimension."""
    output = rule.outputs[at]
    sources = range(len(states)) if output.inputs is None else [i for i in output.inputs if i >= 0]
    segments: dict[int, Segment] = {}
    for dim, label in enumerate(output.labels):
        if label == NO_LABEL:
            continue
        for source in sources:
            for segment in states[source]:
                if rule.inputs[source][segment.dim] == label and dim not in segments:
                    extent = segment.outer * segment.size * segment.inner
                    if label == rule.split and shape[dim] != extent and not proportional:
                        return None  # a cut through the symbol: the parts need not be proportional
                    moved = segment.moved(dim, shape[dim])
                    if moved is None:
                        return None
                    segments[dim] = moved
    return tuple(segments.values())


def _contradiction(rule: Dims, states: Sequence[tuple[Segment, ...]], shapes: Sequence[Shape]) -> bool:
    """Whether a label follows the symbol in one input and not in another input of the same extent."""
    if rule.reshape:
        return False
    with_symbol = {rule.inputs[i][s.dim] for i, state in enumerate(states) for s in state} - {NO_LABEL}
    for i, row in enumerate(rule.inputs):
        for dim, label in enumerate(row):
            if label in with_symbol and shapes[i][dim] > 1 and not any(s.dim == dim for s in states[i]):
                return True
    return False


def _guess(shape: Shape, extent: int) -> tuple[Segment, ...]:
    """Best guess for an output without a rule: the leading dimension, if it is as large as the symbol."""
    return (Segment.whole(0, extent),) if shape and extent > 1 and shape[0] == extent else ()


def batch_seeds(trace: Trace, batch: int) -> dict[int, Segment]:
    """Where the batch is in what the step is given: inputs, labels, and whatever else no operator makes.

    It is the first dimension of that size; failing that the first one that is a multiple of it (rows of a
    flattened batch, batch outermost).
    """
    seeds = {}
    shapes, category = trace.values.shape.lists(), trace.values.category.tolist()
    fixed = {int(c) for c in PERSISTENT}
    of_parameter = trace.values.of.tolist()
    for value in _read_before_written(trace):
        if category[value] not in fixed and of_parameter[value] < 0:
            for dim, extent in enumerate(shapes[value]):
                if extent == batch:
                    seeds[value] = Segment.whole(dim, extent)
                    break
            else:
                if shapes[value] and batch > 1 and shapes[value][0] % batch == 0 and shapes[value][0]:
                    seeds[value] = Segment(0, 1, batch, shapes[value][0] // batch)
    return seeds


def _read_before_written(trace: Trace) -> Iterable[int]:
    written: set[int] = set()
    seen: dict[int, None] = {}
    for reads, writes in zip(trace.operators.inputs.lists(), trace.operators.outputs.lists(), strict=True):
        for value in reads:
            if value not in written:
                seen.setdefault(value)
        written.update(writes)
    return seen
