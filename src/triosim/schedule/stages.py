"""Cutting a step into pipeline stages: who runs which operator, and what crosses from stage to stage."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.core.columns import distinct
from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPES
from triosim.core.errors import PlanError
from triosim.stacks import BALANCED, EVEN_WITH_ENDS
from triosim.trace.blocks import blocks
from triosim.trace.tables import NONE, PERSISTENT, Category, Phase, Trace

NARROW_TOLERANCE = 1.1
"""Cuts where the fewest tensors cross are preferred while the slowest stage grows by at most this factor."""


@dataclass(frozen=True)
class Boundary:
    """A value that crosses from the stage that makes it to a stage that reads it.

    Attributes:
        storage: its storage.
        source, target: stages.
        made: forward operator that makes it.
        read: first operator of the target stage that reads it.
        returned: backward operator of the target stage after which its gradient is final, -1 if it has none.
        bytes: its size.
    """

    storage: int
    source: int
    target: int
    made: int
    read: int
    returned: int
    bytes: int


@dataclass(frozen=True)
class Stages:
    """A step cut into ``count`` stages.

    Attributes:
        count: number of stages.
        of: stage of each forward, backward and recomputed operator; -1 for optimizer operators.
        share: for each optimizer operator the part of it that each stage runs, shape ``(operators, count)``; rows of
            other operators are zero.
        parameters: for each parameter (value id) the stages that use it.
        boundaries: what crosses.
        firsts: the module in which each stage begins, for people.
    """

    count: int
    of: NDArray[np.int32]
    share: NDArray[np.float64]
    parameters: dict[int, tuple[int, ...]]
    boundaries: tuple[Boundary, ...]
    firsts: tuple[str, ...]


def split(
    trace: Trace,
    seconds: NDArray[np.float64],
    count: int,
    begins: Sequence[str] | str = BALANCED,
    seconds_per_byte: float = 0.0,
    homes: Trace | None = None,
) -> Stages:
    """Cut a step into ``count`` stages of contiguous forward operators.

    Args:
        trace: one rank's step.
        seconds: time of each operator, shape ``(operators,)``; or ``(count, operators)`` where the stages run on
            different devices: time of each operator on the device of each stage.
        count: number of stages.
        begins: module paths at which the stages after the first begin, or one of :data:`triosim.stacks.CUTS`.
        seconds_per_byte: what sending a byte to the next stage costs, for balancing.
        homes: the step with its values as they cross (:attr:`triosim.partition.step.Step.homes`); ``trace`` if None.

    Raises:
        PlanError: there are fewer operators than stages, or a named module does not exist or is out of order.
    """
    forward = np.flatnonzero(trace.operators.phase == Phase.FORWARD)
    if count == 1:
        of = np.where(trace.operators.phase == Phase.OPTIMIZER, NONE, 0).astype(np.int32)
        share = (trace.operators.phase == Phase.OPTIMIZER).astype(np.float64)[:, None]
        return Stages(1, of, share, dict.fromkeys(trace.weights().tolist(), (0,)), (), ("",))
    items = crossing_items(trace if homes is None else homes)
    if not isinstance(begins, str):
        cuts = _named_cuts(trace, forward, begins)
    else:
        cuts = where_to_cut(
            _cutting(trace, seconds, forward, items), count, begins, seconds_per_byte, trace.meta.workload
        )
    return _cut(trace, forward, items, cuts)


def cut(trace: Trace, cuts: Sequence[int], homes: Trace) -> Stages:
    """A step cut where one says.

    Args:
        trace, homes: as of :func:`split`.
        cuts: places in the order of the forward operators at which the stages after the first begin.
    """
    return _cut(trace, np.flatnonzero(trace.operators.phase == Phase.FORWARD), crossing_items(homes), cuts)


def _cut(trace: Trace, forward: NDArray[np.int64], items: Sequence[CrossingTensor], cuts: Sequence[int]) -> Stages:
    rows, count = len(trace), len(cuts) + 1
    position = np.full(rows, -1, np.int64)
    position[forward] = np.arange(len(forward))
    of = np.full(rows, NONE, np.int32)
    of[forward] = np.searchsorted(np.array(cuts), np.arange(len(forward)), side="right")
    _place_backward(trace, of, count)
    parameters, share = _shared_out(trace, of.tobytes(), count)
    boundaries = _boundaries(trace, of, items)
    firsts = tuple(_module(trace, forward, start) for start in (0, *cuts))
    return Stages(count, of, share, parameters, boundaries, firsts)


# --- what crosses ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CrossingTensor:
    """A tensor that a forward operator writes and later forward operators read."""

    storage: int
    made: int
    reads: tuple[int, ...]
    bytes: int


@kept(48)
def crossing_items(trace: Trace) -> tuple[CrossingTensor, ...]:
    """Forward values that would have to be sent if a cut fell between their making and a use.

    What is made from no weight and no floating-point input (masks, position tables) is cheap to make on each stage and
    is not sent, as nothing flows back through it either.
    """
    operators, values = trace.operators, trace.values
    size, storage, category = values.bytes().tolist(), values.storage.tolist(), values.category.tolist()
    floating = _FLOATING[values.dtype].tolist()
    inputs, outputs, phases = operators.inputs.lists(), operators.outputs.lists(), operators.phase.tolist()
    writers = trace.writers()
    views = operators.view.tolist()
    carried: set[int] = set()  # rows whose outputs depend on weights or floating-point inputs
    reads: dict[tuple[int, int], list[int]] = {}
    for row, read in enumerate(inputs):
        if phases[row] != Phase.FORWARD:
            continue
        depends = False
        for value, writer in zip(read, writers[row], strict=True):
            if writer >= 0:
                depends = depends or writer in carried
                reads.setdefault((writer, storage[value]), []).append(row)
            elif category[value] == Category.WEIGHT or (category[value] == Category.INPUT and floating[value]):
                depends = True
        if depends and not views[row]:
            carried.add(row)
    constant = {int(c) for c in PERSISTENT}
    later = operators.phase[operators.inputs.rows()] != Phase.FORWARD
    saved = set(values.storage[operators.inputs.values[later]].tolist())
    items = []
    for (writer, where), rows in reads.items():
        while rows and views[rows[-1]] and where not in saved:
            rows.pop()  # nothing reads the view: what it is of need not be there
        if not rows:
            continue
        written = [v for v in outputs[writer] if storage[v] == where]
        if writer in carried and phases[writer] == Phase.FORWARD and category[written[0]] not in constant:
            items.append(CrossingTensor(where, writer, tuple(rows), max(size[v] for v in written)))
    return tuple(items)


_FLOATING = np.array([name.startswith(("float", "bfloat", "tfloat", "complex", "unknown")) for name in DTYPES])
"""Whether gradients flow through values of each dtype."""


def floating_storages(trace: Trace) -> set[int]:
    """Storages through whose values gradients flow."""
    return set(trace.values.storage[_FLOATING[trace.values.dtype]].tolist())


def _boundaries(trace: Trace, of: NDArray[np.int32], items: Sequence[CrossingTensor]) -> tuple[Boundary, ...]:
    operators = trace.operators
    floating = floating_storages(trace)
    last_backward: dict[int, int] = {}  # forward operator -> the last operator that differentiates it
    last_of_stage: dict[int, int] = {}
    stage, forward = of.tolist(), operators.forward.tolist()
    for row in np.flatnonzero(operators.phase == Phase.BACKWARD).tolist():
        if forward[row] >= 0:
            last_backward[forward[row]] = row
        last_of_stage[stage[row]] = row
    found = []
    for item in items:
        source = stage[item.made]
        readers: dict[int, list[int]] = {}
        for row in item.reads:
            if stage[row] > source:
                readers.setdefault(stage[row], []).append(row)
        for target, rows in sorted(readers.items()):
            returned = NONE
            if item.storage in floating and target in last_of_stage:
                linked = [last_backward[r] for r in rows if r in last_backward and stage[last_backward[r]] == target]
                returned = max(linked, default=last_of_stage[target])
            found.append(Boundary(item.storage, source, target, item.made, min(rows), returned, item.bytes))
    return tuple(sorted(found, key=lambda b: (b.made, b.target)))


# --- where to cut ---------------------------------------------------------------------------------------------------


def _named_cuts(trace: Trace, forward: NDArray[np.int64], begins: Sequence[str]) -> list[int]:
    paths = trace.modules.path
    cuts: list[int] = []
    for name in begins:
        rows = [
            i
            for i, row in enumerate(forward.tolist())
            if trace.operators.module[row] >= 0
            and (
                paths[trace.operators.module[row]] == name or paths[trace.operators.module[row]].startswith(name + ".")
            )
        ]
        if not rows:
            raise PlanError(
                f"stages: no module {name!r} runs in {trace.meta.workload!r}; modules are {', '.join(paths[:12])}, ..."
            )
        if rows[0] <= (cuts[-1] if cuts else 0):
            raise PlanError(
                f"stages: module {name!r} runs before the stage that it should follow; "
                "name the modules in running order"
            )
        cuts.append(rows[0])
    return cuts


@dataclass(frozen=True)
class CutCandidates:
    """What is known of the forward operators of a step where it is to be cut; ``n`` of them, in order.

    Attributes:
        work: seconds of each with its backward, on devices of one kind, or of each stage; shape ``(1 or stages, n)``.
        crossing: bytes that would be sent if a stage began with an operator, shape ``(n,)``.
        tensors: how many values they are in, shape ``(n,)``.
        cuttable: whether a stage may begin there, shape ``(n,)``.
        block: the block that each is in, -1 for none, shape ``(n,)`` (:mod:`triosim.trace.blocks`).
    """

    work: NDArray[np.float64]
    crossing: NDArray[np.float64]
    tensors: NDArray[np.int64]
    cuttable: NDArray[np.bool_]
    block: NDArray[np.int64]


def cutting(trace: Trace, seconds: NDArray[np.float64], homes: Trace | None = None) -> CutCandidates:
    """What is known of a step where it is to be cut; arguments as of :func:`split`."""
    forward = np.flatnonzero(trace.operators.phase == Phase.FORWARD)
    return _cutting(trace, seconds, forward, crossing_items(trace if homes is None else homes))


def _cutting(
    trace: Trace,
    seconds: NDArray[np.float64],
    forward: NDArray[np.int64],
    items: Sequence[CrossingTensor],
) -> CutCandidates:
    different = np.atleast_2d(seconds)  # (1 or count, operators)
    different = different[:1] if bool((different == different[0]).all()) else different
    work = different[:, forward]
    position = np.full(len(trace), -1, np.int64)
    position[forward] = np.arange(len(forward))
    backward = np.flatnonzero((trace.operators.phase != Phase.FORWARD) & (trace.operators.forward >= 0))
    of = position[trace.operators.forward[backward]]
    for row, own in zip(work, different, strict=True):
        np.add.at(row, of, own[backward])
    n = len(forward)
    size = np.array([item.bytes for item in items], np.float64)
    begin = position[[item.made for item in items]] + 1
    end = position[[item.reads[-1] for item in items]] + 1
    crossing = np.cumsum(np.bincount(begin, size, n + 2) - np.bincount(end, size, n + 2))[:n]
    tensors = np.cumsum(np.bincount(begin, minlength=n + 2) - np.bincount(end, minlength=n + 2))[:n]
    cuttable = ~trace.operators.view[forward] & (tensors > 0)
    cuttable[:1] = False
    return CutCandidates(work, crossing, tensors, cuttable, blocks(trace).of(trace)[forward].astype(np.int64))


def where_to_cut(of: CutCandidates, count: int, how: str, seconds_per_byte: float, workload: str = "") -> list[int]:
    """Where the stages after the first begin: places among the forward operators.

    Args:
        of: what is known of the operators.
        count: number of stages.
        how: one of :data:`triosim.stacks.CUTS`; time is balanced too where there are fewer blocks than stages.
        seconds_per_byte: what sending a byte to the next stage costs.
        workload: its name, for people.

    Raises:
        PlanError: there are fewer operators than stages.
    """
    even = None if how == BALANCED else even_cuts(of.block, count, with_ends=how == EVEN_WITH_ENDS)
    return _balanced_cuts(of, count, seconds_per_byte, workload) if even is None else even


def even_cuts(block: NDArray[np.int64], count: int, with_ends: bool) -> list[int] | None:
    """Places at which stages of equally many blocks begin; None where there are too few blocks.

    Where the number does not divide, the two ends count as a block each if that does (as the 126 layers of
    Llama-3.1-405B on 16 stages); else the first stages have one more.

    Args:
        block: of each forward operator the block that it is in, -1 for none, shape ``(n,)``.
        count: number of stages.
        with_ends: whether the two ends count as a block each in any case.
    """
    anew = np.append(True, block[1:] != block[:-1])
    begins = np.flatnonzero(anew & (block >= 0))
    after = np.flatnonzero(anew & (block < 0))
    layers = len(begins)
    with_ends = with_ends or (layers % count > 0 and (layers + 2) % count == 0)
    least, more = divmod(layers + 2 * with_ends, count)
    ends = np.cumsum(least + (np.arange(count) < more))[:-1] - with_ends  # blocks up to the end of each stage
    last = after[after > begins[-1]] if layers else after
    if not least or (len(ends) and ends[-1] >= layers and not len(last)):
        return None
    return [int(begins[end]) if end < layers else int(last[0]) for end in ends.tolist()]


def _between_blocks(of: CutCandidates, count: int, workload: str) -> list[int]:
    """Places where a stage may begin.

    Blocks are not cut through, nor is what comes before, between and after them (nobody sends logits to another stage,
    for its loss), where there are enough of them.
    """
    real, anew = np.flatnonzero(of.cuttable), np.append(True, of.block[1:] != of.block[:-1])
    run = np.cumsum(anew)[real]
    edges = real[np.append(run[:1] > 1, run[1:] != run[:-1])[: len(real)]]  # the first of each run where one may cut
    between = np.union1d(edges, real[of.block[real] < 0])
    for places in (edges, between, real, np.arange(1, len(of.block))):
        if len(places) >= count - 1:
            return places.tolist()
    n = len(of.block)
    raise PlanError(
        f"pp {count} needs at least {count} forward operators, but {workload!r} has {n}: use pp {n} or less"
    )


def _balanced_cuts(of: CutCandidates, count: int, seconds_per_byte: float, workload: str) -> list[int]:
    """The slowest stage, its sends included, is as fast as possible, and among equals the fewest bytes cross."""
    n = len(of.cuttable)
    real = _between_blocks(of, count, workload)
    sums = np.concatenate([np.zeros((len(of.work), 1)), np.cumsum(of.work, axis=1)], axis=1)
    before = np.broadcast_to(sums, (count, n + 1))
    cost = of.crossing * seconds_per_byte  # one way: a value goes while a gradient comes
    best = _bottleneck(before, cost, real)
    fewest = min(int(of.tensors[p]) for p in real)
    narrow = [p for p in real if of.tensors[p] == fewest]
    if len(narrow) >= count - 1:
        limit = _bottleneck(before, cost, narrow)
        if limit <= best * NARROW_TOLERANCE:
            real, best = narrow, limit
    return _lightest(before, of.crossing, [p for p in real if cost[p] <= best * (1 + 1e-9)], best)


def _alike_possible(ends: Sequence[float], count: int, limit: float) -> bool:
    """Whether ``count`` stages on equal devices are enough: each takes as much as it can within ``limit`` seconds.

    What fewer stages can do, more can too, as long as there are points to cut at.

    Args:
        ends: time of the work before each point and before the end.
        count: number of stages.
        limit: seconds.
    """
    done, at = 0.0, 0
    for _ in range(count):
        at = bisect_right(ends, done + limit, at)  # plain numbers: an array's search costs ten times as much
        if at == len(ends):
            return True
        if at == 0 or ends[at - 1] <= done:
            return False
        done = ends[at - 1]
    return False


def _possible(before: NDArray[np.float64], points: NDArray[np.int64], limit: float) -> bool:
    """Whether each stage can have some of the work within ``limit`` seconds, cutting only at ``points``.

    Stage by stage: an end can be reached if the latest end of the stage before that lies before it is near enough.
    More is not needed, since a shorter stage is never slower.  Taking as much as one can is wrong here: what comes next
    may be too much for the device of the next stage, and not for the one after it.

    Args:
        before: time of the work before each position, by stage, shape (stages, n + 1).
        points: where cuts are allowed, ascending, shape (p,).
        limit: seconds.
    """
    ends = np.append(points, before.shape[1] - 1)  # (p + 1,)
    first = before[0]
    reached = first[ends] <= limit
    for own in before[1:]:
        at = np.arange(len(ends))
        latest = np.maximum.accumulate(np.where(reached, at, -1))  # the last end so far that can be reached
        start = np.concatenate([[-1], latest[:-1]])
        reached = (start >= 0) & (own[ends] - own[ends[np.maximum(start, 0)]] <= limit)
    return bool(reached[-1])


def _bottleneck(before: NDArray[np.float64], cost: NDArray[np.float64], points: Sequence[int]) -> float:
    """The smallest possible time of the slowest stage or of the sends between stages (bisection).

    Sends run beside computation, so a cut must only not take longer than the slowest stage.
    """
    count, at = len(before), np.array(points, np.int64)
    sends, alike = cost[at], not before.strides[0] or bool((before == before[0]).all())
    slowest, every = float(sends.max(initial=0.0)), before[0][np.append(at, before.shape[1] - 1)].tolist()

    def possible(limit: float) -> bool:
        open_ = at if slowest <= limit else at[sends <= limit]
        if len(open_) < count - 1:
            return False
        if not alike:
            return _possible(before, open_, limit)
        ends = every if open_ is at else before[0][np.append(open_, before.shape[1] - 1)].tolist()
        return _alike_possible(ends, count, limit)

    # no stage beats its part of the work, each operator on the device that is fastest at it
    least = before[0, -1] if alike else np.diff(before).min(axis=0).sum()
    low, high = float(least) / count, float(before[:, -1].max() + cost.max())
    if possible(low * (1 + 1e-9)):
        return low
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if possible(middle) else (middle, high)
        if high - low <= 1e-10 * high:
            break
    return high


def _even(before: NDArray[np.float64]) -> float:
    """Seconds that each stage would take if work could be divided at will, in proportion to how fast each device is."""
    totals = before[:, -1]
    if (totals == totals[0]).all():
        return float(totals[0]) / len(totals)
    return float(1 / np.sum(1 / totals)) if (totals > 0).all() else 0.0


def _lightest(
    before: NDArray[np.float64], crossing: NDArray[np.float64], points: Sequence[int], limit: float
) -> list[int]:
    """Cuts within the limit over which the fewest bytes cross (then the most even); one stage for each row."""
    limit *= 1 + 1e-9
    starts = np.array([0, *points], np.int64)
    even, crosses = _even(before), crossing[starts].tolist()
    # plain numbers: what is read one at a time here is no array's
    alike = not before.strides[0]
    alone = [before[0][starts].tolist()] * len(before) if alike else [own[starts].tolist() for own in before]
    latest = _latest(before, starts, limit)
    best: list[dict[int, tuple[float, float]]] = [{0: (0.0, 0.0)}]
    origin: list[dict[int, int]] = []
    for done, last in zip(alone[:-1], latest[1:], strict=True):
        previous = best[-1]
        row: dict[int, tuple[float, float]] = {}
        came: dict[int, int] = {}
        window: deque[int] = deque()
        least = min(previous, default=len(done))
        for k in range(least + 1, len(done)):
            if k - 1 in previous:
                while window and previous[window[-1]] >= previous[k - 1]:
                    window.pop()
                window.append(k - 1)
            while window and done[k] - done[window[0]] > limit:
                window.popleft()
            if window and k >= last:
                weight, uneven = previous[window[0]]
                row[k] = (weight + crosses[k], uneven + abs(done[k] - done[window[0]] - even))
                came[k] = window[0]
            elif not window and k > max(previous):
                break
        best.append(row)
        origin.append(came)
    ends, left = best[-1], (before[-1, -1] - before[-1, starts]).tolist()
    allowed = [k for k in sorted(ends) if left[k] <= limit]
    k = min(allowed, key=lambda i: ends[i])
    cuts = []
    for came in reversed(origin):
        cuts.append(int(starts[k]))
        k = came[k]
    return cuts[::-1]


def _latest(before: NDArray[np.float64], starts: NDArray[np.int64], limit: float) -> list[int]:
    """For each stage the first of the points at which it may begin so that it and those after it have time enough."""
    found = [len(starts)] * len(before)
    end = before.shape[1] - 1
    for stage in range(len(before) - 1, -1, -1):
        own = before[stage]
        # what is rounded otherwise here than there is left in
        found[stage] = int(np.searchsorted(own[starts], own[end] - limit * (1 + 1e-9) - 1e-9 * own[-1], side="left"))
        end = int(starts[min(found[stage], len(starts) - 1)])
    return found


# --- who runs the rest ------------------------------------------------------------------------------------------------


def _place_backward(trace: Trace, of: NDArray[np.int32], count: int) -> None:
    """Backward operators run where the operator that they differentiate ran, the rest where their neighbours do."""
    operators = trace.operators
    stage, module, forward = of.tolist(), operators.module.tolist(), operators.forward.tolist()
    rows = np.flatnonzero(operators.phase == Phase.FORWARD).tolist()
    module_stage = {module[row]: stage[row] for row in rows if module[row] >= 0}
    current = count - 1
    for row in np.flatnonzero(np.isin(operators.phase, (Phase.BACKWARD, Phase.RECOMPUTE))).tolist():
        current = stage[forward[row]] if forward[row] >= 0 else module_stage.get(module[row], current)
        of[row] = stage[row] = current


@kept(8)
def _shared_out(trace: Trace, of: bytes, count: int) -> tuple[dict[int, tuple[int, ...]], NDArray[np.float64]]:
    """Stages of each parameter, and what each stage runs of each operator of the optimizer.

    Args:
        trace: one rank's step.
        of: stage of each operator, int32.
        count: number of stages.
    """
    parameters = _stages_of_parameters(trace, np.frombuffer(of, np.int32))
    return parameters, _optimizer_share(trace, parameters, count)


def _stages_of_parameters(trace: Trace, of: NDArray[np.int32]) -> dict[int, tuple[int, ...]]:
    operators, storage = trace.operators, trace.values.storage
    weights = trace.weights()
    owner = np.full(int(storage.max(initial=NONE)) + 1, NONE, np.int64)
    owner[storage[weights]] = weights
    row = operators.inputs.rows()
    runs = ((operators.phase == Phase.FORWARD) & ~operators.view)[row]
    read = owner[storage[operators.inputs.values]]
    here = np.flatnonzero(runs & (read >= 0))
    least, span = int(of.min(initial=0)), int(of.max(initial=0)) - int(of.min(initial=0)) + 1
    used = distinct(read[here] * span + (of[row[here]] - least))  # by parameter, then by stage
    stages: dict[int, list[int]] = {v: [] for v in dict.fromkeys(owner[storage[weights]].tolist())}
    for parameter, stage in zip((used // span).tolist(), (used % span + least).tolist(), strict=True):
        stages[parameter].append(stage)
    return {parameter: tuple(own) or (0,) for parameter, own in stages.items()}


def _optimizer_share(trace: Trace, parameters: dict[int, tuple[int, ...]], count: int) -> NDArray[np.float64]:
    """Optimizer operators work on lists of tensors; each stage runs the part for its own parameters, by bytes."""
    values = trace.values
    size, storage = values.bytes(), values.storage
    by_storage = {int(storage[v]): v for v in parameters}
    overall = np.zeros(count)
    for parameter, stages in parameters.items():
        for stage in stages:
            overall[stage] += size[parameter]
    overall = overall / overall.sum() if overall.sum() else np.full(count, 1 / count)
    share = np.zeros((len(trace), count))
    known = np.zeros(int(values.storage.max(initial=-1)) + 2, np.int64)  # of each storage its parameter's row, or none
    part = np.zeros((len(by_storage) + 1, count))
    for row, (where, parameter) in enumerate(by_storage.items(), start=1):
        known[where] = row
        part[row, list(parameters[parameter])] = 1
    owner = known[values.storage]
    owner = np.where((owner == 0) & (values.of >= 0), owner[values.of], owner)
    sizes = size.astype(np.float64)
    inputs, outputs = trace.operators.inputs, trace.operators.outputs
    for row in np.flatnonzero(trace.operators.phase == Phase.OPTIMIZER).tolist():
        own = np.unique(np.concatenate([inputs[row], outputs[row]]))
        found = sizes[own] @ part[owner[own]]
        share[row] = found / found.sum() if found.sum() else overall
    return share


def _module(trace: Trace, forward: NDArray[np.int64], start: int) -> str:
    for row in forward[start:].tolist():
        if trace.operators.module[row] >= 0:
            return trace.modules.path[trace.operators.module[row]]
    return ""
