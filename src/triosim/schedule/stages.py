"""A step cut into pipeline stages: who runs which operator, and what each stage has of the optimizer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.core.columns import distinct
from triosim.core.dataclass import dataclass
from triosim.schedule.crossing import Boundary, CrossingTensor, boundaries_of, crossing_items
from triosim.schedule.cutting import candidates, named_cuts, where_to_cut
from triosim.stacks import BALANCED
from triosim.trace.tables import NONE, Phase, Trace


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
    issue_s: NDArray[np.float64] | None = None,
    turns: int = 1,
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
        issue_s: host seconds of each operator, which pass beside its device's, shape ``(operators,)``.
        turns: micro-batches.

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
        cuts = named_cuts(trace, forward, begins)
    else:
        known = candidates(trace, seconds, forward, items, issue_s)
        cuts = where_to_cut(known, count, begins, seconds_per_byte, trace.meta.workload, turns)
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
    boundaries = boundaries_of(trace, of, items)
    firsts = tuple(_module(trace, forward, start) for start in (0, *cuts))
    return Stages(count, of, share, parameters, boundaries, firsts)


def _place_backward(trace: Trace, of: NDArray[np.int32], count: int) -> None:
    """Backward operators run where the operator that they differentiate ran, the rest where their neighbours do."""
    operators, phase = trace.operators, trace.operators.phase
    rows = np.flatnonzero(np.isin(phase, (Phase.BACKWARD, Phase.RECOMPUTE)))
    forward, module = operators.forward[rows], operators.module[rows]
    of_module = np.full(len(trace.modules) + 1, NONE, np.int32)  # the last for none
    ran = np.flatnonzero((phase == Phase.FORWARD) & (operators.module >= 0))
    of_module[operators.module[ran]] = of[ran]
    own = np.where(forward >= 0, of[forward], of_module[module])
    again = np.flatnonzero((forward >= 0) & (phase[forward] != Phase.FORWARD)).tolist()
    if not again:
        last = np.maximum.accumulate(np.where(own >= 0, np.arange(len(rows)), -1))
        of[rows] = np.where(last >= 0, own[last], count - 1)
        return
    current = count - 1
    for row, like, there in zip(rows.tolist(), forward.tolist(), of_module[module].tolist(), strict=True):
        current = int(of[like]) if like >= 0 else there if there >= 0 else current
        of[row] = current


@dataclass(frozen=True)
class _Parameters:
    """What of a trace says which parameters a stage has.

    Attributes:
        number: value id of each parameter.
        reader, read: forward operators that run, and the row of ``number`` of a parameter that each reads.
        size: bytes of each parameter.
        updates: operators of the optimizer.
        toucher, touched, touched_bytes: rows of ``updates``, and of ``number`` of the parameter to which a value that
            each of them touches belongs, once for each such value; bytes of the value, whole numbers.
    """

    number: NDArray[np.int64]
    reader: NDArray[np.int64]
    read: NDArray[np.int64]
    size: NDArray[np.float64]
    updates: NDArray[np.int64]
    toucher: NDArray[np.int64]
    touched: NDArray[np.int64]
    touched_bytes: NDArray[np.float64]


@kept(8)
def _parameters(trace: Trace) -> _Parameters:
    operators, values = trace.operators, trace.values
    storage, weights = values.storage, trace.weights()
    owner = np.full(int(storage.max(initial=NONE)) + 1, NONE, np.int64)
    owner[storage[weights]] = weights
    number = np.array(list(dict.fromkeys(owner[storage[weights]].tolist())), np.int64)
    row_of = np.full(len(values) + 1, NONE, np.int64)  # the last for none
    row_of[number] = np.arange(len(number))
    row = operators.inputs.rows()
    runs = ((operators.phase == Phase.FORWARD) & ~operators.view)[row]
    read = row_of[owner[storage[operators.inputs.values]]]
    here = np.flatnonzero(runs & (read >= 0))
    mine = row_of[owner[storage]]
    mine = np.where((mine < 0) & (values.of >= 0), mine[values.of], mine)
    size = values.bytes().astype(np.float64)
    updates = np.flatnonzero(operators.phase == Phase.OPTIMIZER)
    number_of = np.full(len(operators), NONE, np.int64)
    number_of[updates] = np.arange(len(updates))
    flat = [number_of[table.rows()] * len(values) + table.values for table in (operators.inputs, operators.outputs)]
    pairs = distinct(np.concatenate([one[one >= 0] for one in flat]))
    toucher, value = np.divmod(pairs, max(len(values), 1))
    owned = mine[value] >= 0
    toucher, value = toucher[owned], value[owned]
    return _Parameters(number, row[here], read[here], size[number], updates, toucher, mine[value], size[value])


@kept(8)
def _shared_out(trace: Trace, of: bytes, count: int) -> tuple[dict[int, tuple[int, ...]], NDArray[np.float64]]:
    """Stages of each parameter, and what each stage runs of each operator of the optimizer.

    Operators of the optimizer work on lists of tensors; each stage runs the part for its own parameters, by bytes.

    Args:
        trace: one rank's step.
        of: stage of each operator, int32.
        count: number of stages.
    """
    known, stage = _parameters(trace), np.frombuffer(of, np.int32)
    least, span = int(stage.min(initial=0)), int(stage.max(initial=0)) - int(stage.min(initial=0)) + 1
    used = distinct(known.read * span + (stage[known.reader] - least))  # by parameter, then by stage
    stages: list[list[int]] = [[] for _ in known.number]
    for parameter, own in zip((used // span).tolist(), (used % span + least).tolist(), strict=True):
        stages[parameter].append(own)
    has = np.zeros((len(known.number), count))
    has[used // span, used % span + least] = 1
    has[[not own for own in stages], 0] = 1
    overall = known.size @ has
    overall = overall / overall.sum() if overall.sum() else np.full(count, 1 / count)
    share, found = np.zeros((len(trace), count)), np.zeros((len(known.updates), count))
    np.add.at(found, known.toucher, known.touched_bytes[:, None] * has[known.touched])
    total = found.sum(axis=1, keepdims=True)
    share[known.updates] = np.where(total > 0, found / np.where(total > 0, total, 1), overall)
    return {p: tuple(own) or (0,) for p, own in zip(known.number.tolist(), stages, strict=True)}, share


def _module(trace: Trace, forward: NDArray[np.int64], start: int) -> str:
    for row in forward[start:].tolist():
        if trace.operators.module[row] >= 0:
            return trace.modules.path[trace.operators.module[row]]
    return ""
