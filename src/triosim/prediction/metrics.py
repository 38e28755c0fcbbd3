"""From what the engine played to the numbers that a user asks for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged, distinct
from triosim.core.dataclass import dataclass
from triosim.core.spans import covered, merged
from triosim.core.units import PICOSECONDS_PER_SECOND
from triosim.energy.account import EnergyAccount
from triosim.engine.graph import GraphRun
from triosim.hardware.system import System
from triosim.memory.footprint import Footprint
from triosim.network.lowering import LoweredJob
from triosim.network.placement import Placement
from triosim.network.rank_classes import alike
from triosim.prediction.result import Breakdown, CollectiveRow, DeviceRow, LayerRow, MemoryCurve, Peak, StageRow
from triosim.prediction.timeline import LinkUse, MemoryTrack, PowerTrack, Slices, Timeline
from triosim.schedule.program import COLLECTIVES, Op, Program
from triosim.trace.tables import NONE, PERSISTENT, Phase, Trace

S = 1 / PICOSECONDS_PER_SECOND


_TRANSFERS = (Op.COLLECTIVE, Op.SEND, Op.FETCH, Op.STORE)
"""What a rank moves; what it receives is its neighbour's."""


@dataclass(frozen=True)
class Run:
    """One played job: its programs, its graph and the times of its tasks."""

    programs: Sequence[Program]
    lowered: LoweredJob
    played: GraphRun
    iterations: int

    @cached_property
    def end(self) -> int:
        """End of the run in picoseconds."""
        return int(self.played.finish.max(initial=0))

    @cached_property
    def spent(self) -> tuple[RankTimeUse, ...]:
        """How each cell spent the run."""
        return tuple(occupied(self, cell) for cell in range(self.lowered.cells))

    @cached_property
    def active(self) -> int:
        """Picoseconds with at least one device or transfer busy."""
        return active(self)

    def tasks(self, cell: int) -> slice:
        """Tasks of a cell of ranks."""
        return slice(int(self.lowered.first[cell]), int(self.lowered.first[cell + 1]))

    def program(self, cell: int) -> Program:
        """Program of a cell."""
        return self.programs[self.lowered.program[cell]]

    def first_cell(self, program: Program) -> int:
        """The cell of the lowest rank that runs a program."""
        return int(self.lowered.cell[program.ranks.min()])

    def cells(self, number: int) -> list[int]:
        """Cells that run a program."""
        return np.flatnonzero(self.lowered.program == number).tolist()

    @property
    def played_tasks(self) -> int:
        """Tasks in the graph."""
        return len(self.lowered.graph)

    @property
    def flows(self) -> int:
        """Transfers, those in collectives included."""
        return self.played.flows

    def stands_for(self, number: int) -> NDArray[np.int64] | None:
        """How many equal instructions each of a program stands for; None where each is one."""
        return None

    def memory(self, number: int, footprint: Footprint) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """When the memory of the first rank of a class changes, ticks, and bytes that it holds from then on."""
        return _memory_times(self, self.programs[number], footprint), footprint.total

    def began(self, number: int, row: int) -> tuple[int, int]:
        """When an instruction of a program began on its first rank, ticks; and the row where that instruction is."""
        return int(self.played.start[self.tasks(self.first_cell(self.programs[number])).start + row]), row

    def length(self, number: int) -> int:
        """Instructions of a program."""
        return len(self.programs[number])


@dataclass(frozen=True)
class RankTimeUse:
    """Time of each rank of a cell by what it did, picoseconds.

    Attributes:
        compute, communication, host: time with the compute stream, a transfer, or the host busy.
        exposed_communication: communication while it did not compute.
        exposed_host: the host working while there was neither computation nor communication.
        idle: none of these.
    """

    compute: int
    communication: int
    host: int
    exposed_communication: int
    exposed_host: int
    idle: int


def seconds(ticks: NDArray[np.int64]) -> NDArray[np.float64]:
    """Picoseconds as seconds."""
    return np.asarray(ticks * S, np.float64)


Spans = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Disjoint intervals, ascending."""


def busy(run: Run, cell: int, op: Op) -> Spans:
    """When a cell ran instructions of a kind."""
    rows = run.program(cell).rows(op) + run.tasks(cell).start
    return merged(run.played.start[rows], run.played.finish[rows])


def together(*spans: Spans) -> Spans:
    """The union of some."""
    return merged(*(np.concatenate(pair) for pair in zip(*spans, strict=True)))


def length(spans: Spans) -> int:
    """Ticks in all."""
    return int((spans[1] - spans[0]).sum())


def occupied(run: Run, cell: int) -> RankTimeUse:
    """How each rank of a cell spent the run."""
    computing, issuing = busy(run, cell, Op.COMPUTE), busy(run, cell, Op.ISSUE)
    moving = merged(*transfers(run, cell))
    compute, host, communication = length(computing), length(issuing), length(moving)
    both = communication + compute - int(covered(*moving, *computing).sum())
    all_three = both + host - int(covered(*issuing, *together(computing, moving)).sum())
    return RankTimeUse(compute, communication, host, both - compute, all_three - both, run.end - all_three)


def transfers(run: Run, cell: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """When transfers of a cell were in flight: its collectives, what it sent, fetched and received."""
    at, program, played = run.tasks(cell), run.program(cell), run.played
    rows = program.rows(*_TRANSFERS) + at.start
    arrivals = program.rows(Op.RECEIVE) + at.start
    before = run.lowered.graph.before
    senders = before.values[before.offsets[arrivals + 1] - 1]
    own = np.concatenate([rows, senders])
    return played.begin[own], played.finish[own]


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


def active(run: Run) -> int:
    """Picoseconds with at least one device or transfer busy."""
    return length(any_busy(run))


def any_busy(run: Run) -> Spans:
    """When at least one device or transfer was busy."""
    found = []
    for cell in range(run.lowered.cells):
        at, program = run.tasks(cell).start, run.program(cell)
        for when, ops in ((run.played.start, (Op.COMPUTE,)), (run.played.begin, _TRANSFERS)):
            rows = program.rows(*ops) + at
            found.append(merged(when[rows], run.played.finish[rows]))
    return together(*found)


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
    module, phase = trace.operators.module, trace.operators.phase
    keys: dict[tuple[int, int], list[float]] = {}
    for program in _first_of_each_stage(run):
        cell = run.first_cell(program)
        at = run.tasks(cell)
        joules = account.joules(cell) / S
        begin, finish = run.played.begin[at], run.played.finish[at]
        computes, moves = program.op == Op.COMPUTE, np.isin(program.op, _TRANSFERS)
        exposed = np.zeros(len(program), np.int64)
        exposed[moves] = _exposed(begin[moves], finish[moves], begin[computes], finish[computes])
        known = program.operator >= 0
        for kind, length, column in ((computes, finish - begin, 0), (moves, finish - begin, 1), (moves, exposed, 2),
                                   (computes, joules, 3)):  # fmt: skip
            rows = np.flatnonzero(known & kind)
            operator = program.operator[rows]
            code = (module[operator].astype(np.int64) + 1) * len(Phase) + phase[operator]
            totals = np.bincount(code, weights=length[rows].astype(np.float64))
            for key in np.flatnonzero(np.bincount(code)).tolist():
                entry = keys.setdefault((key // len(Phase) - 1, key % len(Phase)), [0.0] * 4)
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
    where = (operators.module.astype(np.int64) + 1) * len(Phase) + operators.phase
    moved: dict[tuple[int, int, str], int] = {}
    for which, entries, by in (("weight", persistent, reader), ("in", enters, reader), ("out", leaves, writer)):
        at = np.flatnonzero(entries)
        _, first = np.unique(where[by[at]] * (int(storage.max(initial=0)) + 1) + storage[read[at]], return_index=True)
        at = at[first]
        code, which_of = np.unique(where[by[at]], return_inverse=True)
        amount = np.zeros(len(code), np.int64)
        np.add.at(amount, which_of, size[read[at]])
        for key, found in zip(code.tolist(), amount.tolist(), strict=True):
            moved[key // len(Phase) - 1, key % len(Phase), which] = found
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
        how = graph.instances[np.where(sends, 0, instance)] if len(graph.instances) else np.zeros(len(rows))
        columns = (
            program.axis[rows], np.where(sends, -1, program.what[rows]),
            np.where(sends, 2, sizes[lowered.group[task]] if len(sizes) else 0), program.bytes[rows],
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


MOST_RANKS_SHOWN = 64
"""Up to so many ranks the timeline holds all of them, beyond it the first of each cell."""


def timeline(
    run: Run,
    trace: Trace,
    system: System,
    placement: Placement,
    footprints: Sequence[Footprint],
    account: EnergyAccount,
) -> Timeline:
    """What ran where and when, in seconds.

    Args:
        run: the played job.
        trace: one rank's step.
        system: the machine.
        placement: device of each rank.
        footprints: memory of each program.
        account: what it takes.
    """
    lowered, played = run.lowered, run.played
    names, name_of = _names(trace)
    groups = _Groups(placement)
    module = np.append(trace.operators.module, NONE)
    phase = np.append(trace.operators.phase, NONE)
    shown = np.arange(placement.ranks) if placement.ranks <= MOST_RANKS_SHOWN else lowered.lowest
    columns: dict[str, list[NDArray[Any]]] = defaultdict(list)
    for rank in shown.tolist():
        cell = int(lowered.cell[rank])
        at, program = run.tasks(cell), run.program(cell)
        pair = lowered.pair[at]
        columns["rank"].append(np.full(len(program), rank, np.int32))
        columns["name"].append(name_of(program))
        columns["module"].append(module[program.operator])
        columns["phase"].append(phase[program.operator])
        columns["group"].append(groups.of(rank, program))
        beside = np.array([placement.mesh.moved(rank, axis, 0) for axis in placement.mesh.names])  # of both ends
        columns["pair"].append(np.where(pair >= 0, pair * placement.ranks + beside[program.axis], -1))
        columns["start"].append(seconds(played.start[at]))
        columns["begin"].append(seconds(played.begin[at]))
        columns["end"].append(seconds(played.finish[at]))
        columns["energy"].append(account.joules(cell))
        for column in ("stream", "op", "operator", "micro_batch", "iteration", "bytes"):
            columns[column].append(getattr(program, column))
    stage = np.zeros(placement.ranks, np.int64)
    for program in run.programs:
        stage[program.ranks] = program.stage
    slices = Slices(**{key: np.concatenate(parts) for key, parts in columns.items()})
    tracks = tuple(
        _memory_track(run, program, footprint) for program, footprint in zip(run.programs, footprints, strict=True)
    )
    ends = zip(system.edge_source.tolist(), system.edge_target.tolist(), strict=True)
    carried = np.append(played.link_bytes, 0)[lowered.link]  # what uses no link is -1: the last
    links = LinkUse(
        tuple(f"{system.node_names[a]} -> {system.node_names[b]}" for a, b in ends), carried, system.bandwidth
    )
    return Timeline(
        slices=slices,
        names=names,
        modules=trace.modules.path,
        groups=groups.table,
        rank_names=tuple(_rank_name(system, d) for d in placement.devices.tolist()),
        rank_stage=tuple(stage.tolist()),
        memory=tracks,
        links=links,
        end=run.end * S,
        iterations=run.iterations,
        flop=trace.operators.flop,
        power=tuple(_power_track(run, program, account) for program in run.programs if account.draws is not None),
    )


def _power_track(run: Run, program: Program, account: EnergyAccount) -> PowerTrack:
    """What the device of the first rank of a class draws over time."""
    ticks, watts = account.watts(run.first_cell(program))
    return PowerTrack(int(program.ranks.min()), seconds(ticks), watts)


def _names(trace: Trace) -> tuple[tuple[str, ...], Callable[[Program], NDArray[np.int32]]]:
    """The distinct names of what runs, and for a program the row of each instruction in them."""
    names: dict[str, int] = {}

    def name(text: str) -> int:
        return names.setdefault(text, len(names))

    nothing = name("")
    operator_name = np.array([*(name(text) for text in trace.operators.name), nothing], np.int32)
    transfer_name = {
        Op.SEND: name("send"),
        Op.RECEIVE: name("receive"),
        Op.FETCH: name("fetch"),
        Op.STORE: name("store"),
    }
    kind_name = np.array([name(kind) for kind in COLLECTIVES], np.int32)
    copy_name = np.array([name(f"{kind} copy") for kind in COLLECTIVES], np.int32)

    def rows(program: Program) -> NDArray[np.int32]:
        named = operator_name[program.operator]
        for op, code in transfer_name.items():
            named = np.where(program.op == op, code, named)
        named = np.where(program.operator < 0, nothing, named)
        copies = (program.op == Op.COMPUTE) & (program.what >= 0)
        named = np.where(copies, copy_name[program.what], named)
        return np.where(program.op == Op.COLLECTIVE, kind_name[np.maximum(program.what, 0)], named).astype(np.int32)

    return tuple(names), rows


class _Groups:
    """The communication groups of all ranks, by axis."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        tables = [placement.mesh.table(axis).astype(np.int32) for axis in placement.mesh.names]
        self.first = np.concatenate([[0], np.cumsum([len(table) for table in tables])])
        self.table = Ragged.stacked([Ragged.even(table) for table in tables])
        self.group = np.empty((len(tables), placement.ranks), np.int32)
        for axis, table in enumerate(tables):
            self.group[axis, table] = self.first[axis] + np.arange(len(table))[:, None]

    def of(self, rank: int, program: Program) -> NDArray[np.int32]:
        """For each instruction of a rank the row of its group, -1 where it is no collective."""
        return np.where(program.op == Op.COLLECTIVE, self.group[program.axis, rank], -1).astype(np.int32)


def _rank_name(system: System, device: int) -> str:
    model = system.model(device).name
    return f"{system.node_names[device]} ({model})" if model else system.node_names[device]


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


def _memory_track(run: Run, program: Program, footprint: Footprint) -> MemoryTrack:
    """Memory of the first rank of a class over time."""
    return MemoryTrack(int(program.ranks.min()), seconds(_memory_times(run, program, footprint)), footprint.held)


def _memory_times(run: Run, program: Program, footprint: Footprint) -> NDArray[np.int64]:
    """Ticks at which the memory of the first rank of a class changes; what comes with a row comes when the row begins
    or has ended."""
    if not len(footprint.rows) or not len(program):
        return np.zeros(len(footprint.rows), np.int64)
    first = run.tasks(run.first_cell(program)).start
    inside = (footprint.rows >= 0) & (footprint.rows < len(program))
    task = first + np.clip(footprint.rows, 0, len(program) - 1)
    when = np.where(footprint.ended, run.played.finish[task], run.played.start[task])
    return np.maximum.accumulate(np.where(inside, when, 0))
