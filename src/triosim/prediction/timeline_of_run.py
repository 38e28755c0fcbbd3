"""The timeline of a played job: what ran where and when, in columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.energy.account import EnergyAccount
from triosim.hardware.system import System
from triosim.memory.footprint import Footprint
from triosim.network.device_assignment import DeviceAssignment
from triosim.prediction.played_run import Run, S, memory_times, seconds
from triosim.prediction.timeline import LinkUse, MemoryTrack, PowerTrack, Slices, Timeline
from triosim.schedule.program import COLLECTIVES, Op, Program
from triosim.trace.tables import NONE, Trace

MOST_RANKS_SHOWN = 64
"""Up to so many ranks the timeline holds all of them, beyond it the first of each cell."""


def timeline_of(
    run: Run,
    trace: Trace,
    system: System,
    assignment: DeviceAssignment,
    footprints: Sequence[Footprint],
    account: EnergyAccount,
) -> Timeline:
    """What ran where and when, in seconds.

    Args:
        run: the played job.
        trace: one rank's step.
        system: the machine.
        assignment: device of each rank.
        footprints: memory of each program.
        account: what it takes.
    """
    lowered, played = run.lowered, run.played
    names, name_of = _names(trace)
    groups = _Groups(assignment)
    module = np.append(trace.operators.module, NONE)
    phase = np.append(trace.operators.phase, NONE)
    shown = np.arange(assignment.ranks) if assignment.ranks <= MOST_RANKS_SHOWN else lowered.lowest
    columns: dict[str, list[NDArray[Any]]] = defaultdict(list)
    for rank in shown.tolist():
        cell = int(lowered.cell[rank])
        at, program = run.tasks(cell), run.program(cell)
        pair = run.pair(cell)
        columns["rank"].append(np.full(len(program), rank, np.int32))
        columns["name"].append(name_of(program))
        columns["module"].append(module[program.operator])
        columns["phase"].append(phase[program.operator])
        columns["group"].append(groups.of(rank, program))
        beside = np.array([assignment.mesh.moved(rank, axis, 0) for axis in assignment.mesh.names])  # of both ends
        columns["pair"].append(np.where(pair >= 0, pair * assignment.ranks + beside[program.axis], -1))
        columns["start"].append(seconds(played.start[at]))
        columns["begin"].append(seconds(played.begin[at]))
        columns["end"].append(seconds(played.finish[at]))
        columns["energy"].append(account.joules(cell))
        for column in ("stream", "op", "operator", "micro_batch", "iteration", "bytes"):
            columns[column].append(getattr(program, column))
    stage = np.zeros(assignment.ranks, np.int64)
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
        rank_names=tuple(_rank_name(system, d) for d in assignment.devices.tolist()),
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

    def __init__(self, assignment: DeviceAssignment) -> None:
        self.assignment = assignment
        tables = [assignment.mesh.table(axis).astype(np.int32) for axis in assignment.mesh.names]
        self.first = np.concatenate([[0], np.cumsum([len(table) for table in tables])])
        self.table = Ragged.stacked([Ragged.even(table) for table in tables])
        self.group = np.empty((len(tables), assignment.ranks), np.int32)
        for axis, table in enumerate(tables):
            self.group[axis, table] = self.first[axis] + np.arange(len(table))[:, None]

    def of(self, rank: int, program: Program) -> NDArray[np.int32]:
        """For each instruction of a rank the row of its group, -1 where it is no collective."""
        return np.where(program.op == Op.COLLECTIVE, self.group[program.axis, rank], -1).astype(np.int32)


def _rank_name(system: System, device: int) -> str:
    model = system.model(device).name
    return f"{system.node_names[device]} ({model})" if model else system.node_names[device]


def _memory_track(run: Run, program: Program, footprint: Footprint) -> MemoryTrack:
    """Memory of the first rank of a class over time."""
    return MemoryTrack(int(program.ranks.min()), seconds(memory_times(run, program, footprint)), footprint.held)
