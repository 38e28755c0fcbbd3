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

from triosim.core.dataclass import dataclass
from triosim.operators import NO_LABEL, Dims, regrouped
from triosim.trace.calls import calls_of
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


def propagate_symbol(trace: Trace, seeds: dict[int, Segment], extent: int) -> PropagatedSymbol:
    """Walk a symbol of size ``extent`` from the values in ``seeds`` through the whole trace.

    Args:
        trace: any trace; identities may be inferred.
        seeds: segment of the symbol in each input value that has it.
        extent: the symbol's size in this trace (the batch size).
    """
    values, operators = trace.values, trace.operators
    shapes: list[Shape] = [tuple(s) for s in values.shape.lists()]
    storage, category = values.storage.tolist(), values.category.tolist()
    of_parameter = values.of.tolist()
    calls = calls_of(trace)
    inputs, outputs = operators.inputs.lists(), operators.outputs.lists()
    phases = operators.phase.tolist()
    found: dict[int, tuple[Segment, ...]] = {v: (s,) for v, s in seeds.items()}
    latest: dict[int, int] = {storage[v]: v for v in seeds}  # last decided value of each storage
    undecided: list[int] = []
    constant = {int(c) for c in PERSISTENT}
    otherwise: dict[int, list[Segment]] = {}  # value seen through a view that was not recorded -> where else it may be

    def look_up(value: int) -> tuple[Segment, ...]:
        if value in found:
            return found[value]
        result: tuple[Segment, ...] = ()
        known = latest.get(storage[value])
        if known is not None and category[value] not in constant:  # another view of a decided storage
            moved = [_same_storage(s, shapes[known], shapes[value]) for s in found[known]]
            result = tuple(s for s in moved if s is not None)
            if len(moved) == 1:
                others = [s for s in _as_matrix(found[known][0], shapes[known], shapes[value]) if s != moved[0]]
                result = result or tuple(others[:1])
                otherwise[value] = others
        found[value] = result
        return result

    def settle(value: int, segments: tuple[Segment, ...]) -> None:
        if category[value] in constant or (category[value] == Category.GRADIENT and of_parameter[value] >= 0):
            segments = ()  # parameters, their gradients and states never follow the batch
        found[value] = segments
        latest[storage[value]] = value

    for row in range(len(operators)):
        if phases[row] == Phase.OPTIMIZER:
            for value in outputs[row]:
                settle(value, ())
            continue
        states = [look_up(v) for v in inputs[row]]
        call = calls[row]
        if not any(states):
            guessed = False
            for value in outputs[row]:
                shape = shapes[value]
                if call.kind == "create" and shape and shape[0] == extent and (extent > 1 or len(shape) > 1):
                    settle(value, (Segment.whole(0, extent),))
                    guessed = True
                else:
                    settle(value, ())
            if guessed:
                undecided.append(row)
            continue
        rule = calls.dims(row)
        contradicts = _contradiction(rule, states, call.inputs)
        if contradicts and rule.known:
            for at, value in enumerate(inputs[row]):
                for other in otherwise.get(value, ()):
                    tried = [*states[:at], (other,), *states[at + 1 :]]
                    if contradicts and not _contradiction(rule, tried, call.inputs):
                        states, contradicts, found[value] = tried, False, (other,)
        decided = rule.known and not contradicts
        for at, value in enumerate(outputs[row]):
            if rule.reshape:
                moved = [relocate(s, call.inputs[0], shapes[value]) for s in states[0]]
                decided = decided and None not in moved
                settle(value, tuple(m for m in moved if m is not None))
            else:
                segments = _through(rule, at, states, shapes[value])
                decided = decided and segments is not None
                settle(value, segments if segments is not None else _guess(shapes[value], extent))
            if not rule.known and not found[value] and category[value] not in constant:
                settle(value, _guess(shapes[value], extent))
        if not decided:
            undecided.append(row)
    for value in range(len(values)):
        look_up(value)
    return PropagatedSymbol([found[v] for v in range(len(values))], undecided)


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


def _through(rule: Dims, at: int, states: Sequence[tuple[Segment, ...]], shape: Shape) -> tuple[Segment, ...] | None:
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
                    if label == rule.split and shape[dim] != extent:
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
