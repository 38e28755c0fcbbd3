"""The figures of a played job: means over ranks, and rows by device, stage, layer and collective."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import distinct
from triosim.core.spans import covered, merged
from triosim.energy.account import EnergyAccount
from triosim.memory.footprint import Footprint
from triosim.network.rank_classes import alike
from triosim.prediction.played_run import TRANSFERS, RankTimeUse, Run, S, seconds
from triosim.prediction.result import Breakdown, CollectiveRow, DeviceRow, LayerRow, MemoryCurve, Peak, StageRow
from triosim.schedule.program import COLLECTIVES, Op, Program
from triosim.trace.tables import NONE, PERSISTENT, Phase, Trace


def breakdown(run: Run, spent: Sequence[RankTimeUse]) -> Breakdown:
    """Mean over the ranks, seconds per iteration.

    Args:
        run: the played job.
        spent: how each cell spent it.
    """

    def mean(name: str) -> float:
        return _mean(run, spent, range(len(spent)), name)

    return Breakdown(
        mean("compute"), mean("communication"), mean("exposed_communication"), mean("exposed_host"), mean("idle")
    )


def _mean(run: Run, spent: Sequence[RankTimeUse], cells: Sequence[int], name: str) -> float:
    """Mean over the ranks of some cells, seconds per iteration."""
    count = run.lowered.count.tolist()
    ticks = sum(getattr(spent[c], name) * count[c] for c in cells)
    return ticks * S / sum(count[c] for c in cells) / run.iterations


def device_rows(run: Run, spent: Sequence[RankTimeUse], footprints: Sequence[Footprint]) -> tuple[DeviceRow, ...]:
    """One row per rank class, mean over its ranks."""
    rows = []
    for number, (program, footprint) in enumerate(zip(run.programs, footprints, strict=True)):
        cells = run.cells(number)
        rows.append(
            DeviceRow(
                rank=int(program.ranks.min()),
                count=len(program.ranks),
                stage=program.stage,
                busy_s=_mean(run, spent, cells, "compute"),
                communication_s=_mean(run, spent, cells, "communication"),
                idle_s=_mean(run, spent, cells, "idle"),
                host_cpu_s=_mean(run, spent, cells, "host"),
                allocated_bytes=footprint.peak_bytes,
                reserved_bytes=footprint.reserved_bytes,
            )
        )
    return tuple(sorted(rows, key=lambda r: r.rank))


def stage_rows(run: Run, spent: Sequence[RankTimeUse]) -> tuple[StageRow, ...]:
    """One row per pipeline stage, mean over its ranks."""
    by_stage: dict[int, list[int]] = defaultdict(list)
    for number, program in enumerate(run.programs):
        by_stage[program.stage] += run.cells(number)
    return tuple(
        StageRow(stage, _mean(run, spent, cells, "compute"), _mean(run, spent, cells, "communication"))
        for stage, cells in sorted(by_stage.items())
    )


def layer_rows(run: Run, trace: Trace, account: EnergyAccount) -> tuple[LayerRow, ...]:
    """One row per module and phase, on the first rank of each stage; bytes are of one micro-batch."""
    module, phase, phases = trace.operators.module, trace.operators.phase, len(Phase)
    keys: dict[tuple[int, int], list[float]] = {}
    for program in _first_of_each_stage(run):
        cell = run.first_cell(program)
        at = run.tasks(cell)
        joules = account.joules(cell) / S
        begin, finish = run.played.begin[at], run.played.finish[at]
        computes, moves = program.op == Op.COMPUTE, np.isin(program.op, TRANSFERS)
        exposed = np.zeros(len(program), np.int64)
        exposed[moves] = _exposed(begin[moves], finish[moves], begin[computes], finish[computes])
        known = program.operator >= 0
        for kind, length, column in ((computes, finish - begin, 0), (moves, finish - begin, 1), (moves, exposed, 2),
                                   (computes, joules, 3)):  # fmt: skip
            rows = np.flatnonzero(known & kind)
            operator = program.operator[rows]
            code = (module[operator].astype(np.int64) + 1) * phases + phase[operator]
            totals = np.bincount(code, weights=length[rows].astype(np.float64))
            for key in np.flatnonzero(np.bincount(code)).tolist():
                entry = keys.setdefault((key // phases - 1, key % phases), [0.0] * 4)
                entry[column] += float(totals[key]) * S / run.iterations
    moved = _module_bytes(trace)
    return tuple(
        LayerRow(
            module=trace.modules.path[m] if m >= 0 else "",
            phase=Phase(p).name.lower(),
            compute_s=compute,
            communication_s=communication,
            exposed_communication_s=exposed_s,
            input_bytes=moved.get((m, p, "in"), 0),
            output_bytes=moved.get((m, p, "out"), 0),
            weight_bytes=moved.get((m, p, "weight"), 0),
            energy_j=energy_j if account.draws is not None else None,
        )
        for (m, p), (compute, communication, exposed_s, energy_j) in sorted(
            keys.items(), key=lambda item: (item[0][1], item[0][0])
        )
    )


def _exposed(
    begin: NDArray[np.int64], end: NDArray[np.int64], busy: NDArray[np.int64], free: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Of each transfer the ticks in which its rank computed nothing and no transfer that began earlier was in flight.

    Args:
        begin, end: of the transfers.
        busy, free: when computations began and ended.
    """
    order = np.lexsort((end, begin))
    reached = np.maximum.accumulate(np.concatenate([[0], end[order]]))  # by all transfers before
    first = np.maximum(begin[order], reached[:-1])
    last = np.maximum(end[order], first)
    exposed = np.empty(len(begin), np.int64)
    exposed[order] = last - first - covered(first, last, *merged(busy, free))
    return exposed


def _first_of_each_stage(run: Run) -> list[Program]:
    """The program of the lowest rank of each stage."""
    first: dict[int, Program] = {}
    for program in sorted(run.programs, key=lambda p: int(p.ranks.min())):
        first.setdefault(program.stage, program)
    return list(first.values())


def _module_bytes(trace: Trace) -> dict[tuple[int, int, str], int]:
    """Bytes that enter and leave each module in each phase, and of the weights it uses; each storage once in each."""
    operators, values = trace.operators, trace.values
    size, storage = values.bytes(), values.storage.astype(np.int64)
    reader, writer, read = operators.inputs.rows(), trace.writer, operators.inputs.values
    persistent = np.isin(values.category[read], [int(c) for c in PERSISTENT])
    enters = ~persistent & ((writer == NONE) | (operators.module[writer] != operators.module[reader]))
    leaves = enters & (writer != NONE)
    phases = len(Phase)
    where = (operators.module.astype(np.int64) + 1) * phases + operators.phase
    moved: dict[tuple[int, int, str], int] = {}
    for which, entries, by in (("weight", persistent, reader), ("in", enters, reader), ("out", leaves, writer)):
        at = np.flatnonzero(entries)
        _, first = np.unique(where[by[at]] * (int(storage.max(initial=0)) + 1) + storage[read[at]], return_index=True)
        at = at[first]
        code, which_of = np.unique(where[by[at]], return_inverse=True)
        amount = np.zeros(len(code), np.int64)
        np.add.at(amount, which_of, size[read[at]])
        for key, found in zip(code.tolist(), amount.tolist(), strict=True):
            moved[key // phases - 1, key % phases, which] = found
    return moved


def collective_rows(run: Run, axes: Sequence[str]) -> tuple[CollectiveRow, ...]:
    """Collectives and stage-to-stage sends by shape, as one rank of each class sees them, per iteration."""
    graph, lowered = run.lowered.graph, run.lowered
    sizes = lowered.groups.lengths()
    keys, lengths, often = [], [], []
    for number, program in enumerate(run.programs):
        at = run.tasks(run.first_cell(program))
        rows = program.rows(Op.COLLECTIVE, Op.SEND)
        task, sends = rows + at.start, program.op[rows] == Op.SEND
        instance = np.where(sends, -1 - task, graph.what[task])  # a send counts for itself
        lengths.append(run.played.finish[task] - run.played.begin[task])
        each = run.stands_for(number)
        often.append(np.ones(len(rows), np.int64) if each is None else each[rows])
        members = np.full(len(rows), 2)
        members[~sends] = sizes[lowered.group_of(task[~sends])]
        how = graph.instances[np.where(sends, 0, instance)] if len(graph.instances) else np.zeros(len(rows))
        columns = (
            program.axis[rows], np.where(sends, -1, program.what[rows]),
            members, program.bytes[rows],
            np.where(sends, -1, how), instance,
        )  # fmt: skip
        keys.append(np.stack([np.asarray(column, np.int64) for column in columns]))
    table, ticks, times = np.concatenate(keys, axis=1), np.concatenate(lengths), np.concatenate(often)
    _, once = np.unique(table[-1], return_index=True)  # members of several classes meet in one collective
    _, first, row = np.unique(alike(*table[:-1, once]), return_index=True, return_inverse=True)
    shapes, count = table[:-1, once[first]], np.bincount(row, times[once]).astype(np.int64)
    total = np.bincount(row, (ticks * times)[once].astype(np.float64))
    merged_: dict[tuple[Any, ...], list[float]] = {}
    for (axis, what, members, size, how), calls, spent in zip(
        shapes.T.tolist(), count.tolist(), total.tolist(), strict=True
    ):
        kind, names = ("send", ("direct", "")) if what < 0 else (COLLECTIVES[what], lowered.how[how])
        entry = merged_.setdefault((axes[axis], kind, members, size, *names), [0, 0.0])
        entry[0] += calls
        entry[1] += spent * S
    return tuple(
        CollectiveRow(axis, kind, members, size, round(calls / run.iterations), spent / run.iterations, *names)
        for (axis, kind, members, size, *names), (calls, spent) in sorted(merged_.items(), key=lambda i: -i[1][1])
    )


def peak(run: Run, number: int, footprint: Footprint, trace: Trace) -> Peak:
    """When the first rank of a class holds most."""
    row, program = footprint.peak_row, run.programs[number]
    if not 0 <= row < run.length(number):
        return Peak("", "", "", 0.0)
    began, row = run.began(number, row)
    when = began * S
    operator = int(program.operator[row])
    if operator < 0:
        return Peak("", "", Op(int(program.op[row])).name.lower(), when)
    module = int(trace.operators.module[operator])
    name = trace.operators.name[operator]
    if program.op[row] not in (Op.COMPUTE, Op.ISSUE):
        name = (
            COLLECTIVES[program.what[row]]
            if program.op[row] == Op.COLLECTIVE
            else Op(int(program.op[row])).name.lower()
        )
    path = trace.modules.path[module] if module >= 0 else ""
    return Peak(Phase(int(trace.operators.phase[operator])).name.lower(), path, name, when)


CURVE_STEPS = 200
"""Steps of a memory curve in the result; each shows the most within it, so that no peak is lost."""


def memory_curve(run: Run, number: int, footprint: Footprint) -> MemoryCurve:
    """What the first rank of a class holds over the run."""
    when, held = run.memory(number, footprint)
    if not len(held):
        return MemoryCurve((), ())
    starts = distinct(np.linspace(0, len(held) - 1, min(CURVE_STEPS, len(held))).astype(np.int64))
    most = np.maximum.reduceat(held, starts)
    return MemoryCurve(tuple(seconds(when[starts]).tolist()), tuple(most.tolist()))
