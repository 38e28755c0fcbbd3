"""What a stage keeps in memory: from which instruction to which each storage of its step lives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.memory.lifetimes import Lifetimes
from triosim.partition.gradients import gradients
from triosim.partition.resolve import JobMesh
from triosim.schedule.actions import Pass
from triosim.schedule.offload import Travelled
from triosim.schedule.stages import Stages
from triosim.trace.tables import NONE, PERSISTENT, Category, Phase, Trace

BEFORE = -1
"""Start of what is there before the first instruction."""


NOWHERE = Travelled()


class Ran(NamedTuple):
    """Where the operators of one micro-batch's forward or backward are, counted from its first instruction.

    Attributes:
        at: instruction of each operator of the trace, shape ``(operators,)``; that of the one before for an operator
            without an instruction of its own, -1 where there is none.
        arrivals: storage that another stage sent -> instruction of its arrival.
        travelled: what went to the host and came back.
    """

    at: NDArray[np.int64]
    arrivals: dict[int, int]
    travelled: Travelled = NOWHERE


class MicroBatchRun(NamedTuple):
    """One pass of a micro-batch through one chunk in a program.

    Attributes:
        what, micro_batch, chunk: which one.
        start: its first instruction.
        operators: rows of the trace that it runs.
        ran: what is where in it.
    """

    what: Pass
    micro_batch: int
    chunk: int
    start: int
    operators: Sequence[int]
    ran: Ran


@dataclass(frozen=True)
class Storages:
    """What the storages of a step are, one row each: the same for all stages.

    Attributes:
        size: bytes.
        category: :class:`~triosim.trace.tables.Category` codes of the latest version.
        gradient: those of parameters, set to none at the end of the iteration.
        zeroed: gradients that the step sets to zero instead.
        persistent: parameters, buffers and optimizer states.
        given: the input batch and its labels.
    """

    size: NDArray[np.int64]
    category: NDArray[np.int8]
    gradient: NDArray[np.bool_]
    zeroed: NDArray[np.bool_]
    persistent: NDArray[np.bool_]
    given: NDArray[np.bool_]

    @staticmethod
    @kept(16)
    def of(trace: Trace) -> Storages:
        """Those of a trace."""
        values = trace.values
        size = values.storage_bytes()
        category = np.full(len(size), int(Category.TEMPORARY), np.int8)
        order = np.argsort(values.version, kind="stable")[::-1]
        category[values.storage[order]] = values.category[order]
        gradient = np.zeros(len(size), bool)
        gradient[[one.storage for one in gradients(trace)]] = True
        return Storages(
            size, category, gradient, gradient & ~_made_within(trace, len(size)),
            np.isin(category, [int(c) for c in PERSISTENT]),
            np.isin(category, [int(Category.INPUT), int(Category.LABEL)]),
        )  # fmt: skip


class Occupancy:
    """When the storages of a stage come and go in the first iteration of its program.

    * Parameters, buffers and optimizer states of the stage are there throughout; so is the whole input batch.
    * Gradients of parameters are made by the first backward and stay to the end of the iteration, where they are set
      to none; those that the step sets to zero instead are there throughout.  What is summed into one (of a weight that
      is used twice) is freed when it has been added.
    * Buckets (``bucket_bytes``, what DDP copies gradients to) are there throughout; they count as communication.
    * What is offloaded is here only while it is needed (:mod:`triosim.schedule.offload`).
    * Everything else lives, once for each micro-batch, from the operator that makes it to the last that reads it:
      what the backward reads is exactly what it needs, for the trace says so.
    """

    def __init__(
        self,
        trace: Trace,
        stages: Stages,
        parts: Sequence[int],
        mesh: JobMesh,
        bucket_bytes: int = 0,
        away: NDArray[np.int64] | None = None,
        storages: Storages | None = None,
    ) -> None:
        self.trace, self.stages, self.parts, self.mesh, self.bucket_bytes = trace, stages, parts, mesh, bucket_bytes
        self.away = away if away is not None else np.zeros(0, np.int64)
        self.of = storages or Storages.of(trace)

    def lifetimes(self, runs: Sequence[MicroBatchRun], optimizer: NDArray[np.int64], instructions: int) -> Lifetimes:
        """All lifetimes.

        Args:
            runs: passes of the micro-batches of the first iteration, in order.
            optimizer: instruction of each operator of the optimizer, -1 for the others, shape ``(operators,)``.
            instructions: length of the program; what stays ends after the last.
        """
        parts = [
            self._static(instructions), *self._activations(runs, instructions), self._optimizer(optimizer),
        ]  # fmt: skip
        size, category, start, end, storage = (np.concatenate(column) for column in zip(*parts, strict=True))
        keep = size > 0
        return Lifetimes(
            size[keep].astype(np.int64), category[keep].astype(np.int8), start[keep].astype(np.int32),
            end[keep].astype(np.int32), storage[keep].astype(np.int32),
        )  # fmt: skip

    def _rows(self, where: NDArray, start: NDArray, end: NDArray) -> tuple[NDArray, ...]:
        """Columns for storages ``where``; ``start`` and ``end`` may have a leading axis, one row for each run."""
        shape = np.broadcast_shapes(start.shape, end.shape, where.shape)
        columns = (self.of.size[where], self.of.category[where], start, end, where)
        return tuple(np.broadcast_to(column, shape).reshape(-1) for column in columns)

    # --- what is always there -----------------------------------------------------------------------------------------

    def _static(self, instructions: int) -> tuple[NDArray, ...]:
        """What is there before the first instruction and stays."""
        values, parameters = self.trace.values, self.stages.parameters
        first = np.full(len(self.of.size), -1, np.int64)
        order = np.arange(len(values))[::-1]
        first[values.storage[order]] = order  # the lowest value of each storage
        used = np.zeros(len(self.of.size), bool)
        used[self._storages_used()] = True
        is_weight, is_mine = np.zeros(len(values), bool), np.zeros(len(values), bool)
        is_weight[list(parameters)] = True
        is_mine[[p for p, users in parameters.items() if not set(users).isdisjoint(self.parts)]] = True
        owner = np.where(is_weight[first], first, values.of[first])
        owned = (owner >= 0) & is_weight[owner]
        lasting = self.of.persistent | self.of.zeroed
        keep = np.where(owned, is_mine[owner], used | (0 in self.parts)) & lasting & (first >= 0)
        keep[self.away] = False
        given = self.of.given & used & ~self.of.persistent & (first >= 0)
        where = np.flatnonzero(keep | given)
        size = self.of.size[where] * np.where(given[where], self.mesh.micro_batches, 1)
        category = self.of.category[where]
        size, category = np.append(size, self.bucket_bytes), np.append(category, int(Category.COMMUNICATION))
        return size, category, np.full(len(size), BEFORE), np.full(len(size), instructions), np.append(where, NONE)

    def _storages_used(self) -> NDArray[np.int64]:
        inputs = self.trace.operators.inputs
        at_stage = np.isin(self.stages.of, self.parts)[inputs.rows()]
        return np.unique(self.trace.values.storage[inputs.values[at_stage]])

    # --- what comes and goes ------------------------------------------------------------------------------------------

    def _touched(self, run: MicroBatchRun) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Storages that a pass touches, and its first and last instruction that does, counted from its first."""
        operators, storage = self.trace.operators, self.trace.values.storage
        first = np.full(len(self.of.size), len(operators), np.int64)
        last = np.full(len(self.of.size), -1, np.int64)
        member = np.zeros(len(operators), bool)
        member[np.asarray(run.operators, np.int64)] = True
        for table in (operators.inputs, operators.outputs):
            row = table.rows()
            keep = member[row]
            where = storage[table.values[keep]]
            np.minimum.at(first, where, row[keep])
            np.maximum.at(last, where, row[keep])
        where = np.flatnonzero((last >= 0) & ~(self.of.persistent | self.of.given | self.of.zeroed))
        begin, end = np.maximum(run.ran.at[first[where]], 0), np.maximum(run.ran.at[last[where]], 0)
        for arrived, instruction in run.ran.arrivals.items():
            begin[where == arrived] = instruction  # a value sent by another stage has a place from its arrival on
        return where, begin, end

    def _activations(self, runs: Sequence[MicroBatchRun], instructions: int) -> list[tuple[NDArray, ...]]:
        """What each micro-batch makes: from the first instruction of its passes that touches it to the last."""
        groups = _alike(runs)
        touched = [self._touched(group[0]) for group in groups]
        used = np.unique(np.concatenate([np.zeros(0, np.int64), *(where for where, _, _ in touched)]))
        count, column = self.mesh.micro_batches, np.full(len(self.of.size), -1, np.int64)
        column[used] = np.arange(len(used))
        began = np.full((count, len(used)), instructions, np.int64)
        ended, left, returned = (np.full((count, len(used)), -1, np.int64) for _ in range(3))
        latest, passes = np.zeros(len(used), np.int64), np.zeros(len(used), np.int64)
        kinds = sorted({_kind(group[0]) for group in groups})
        for group, (where, begin, end) in zip(groups, touched, strict=True):
            which, start = _numbers(group), np.array([[run.start] for run in group], np.int64)
            cells = np.ix_(which, column[where])
            began[cells] = np.minimum(began[cells], start + begin)
            ended[cells] = np.maximum(ended[cells], start + end)
            for table, times in ((group[0].ran.travelled.left, left), (group[0].ran.travelled.returned, returned)):
                moved = np.array([s for s in table if column[s] >= 0], np.int64)
                times[np.ix_(which, column[moved])] = start + _looked_up(table, moved)
        for number, kind in enumerate(kinds):
            at = np.zeros(len(used), bool)
            for group, (where, _, _) in zip(groups, touched, strict=True):
                at[column[where[: len(where) * (_kind(group[0]) == kind)]]] = True
            passes[at] += 1
            latest[at] = number
        parts: list[tuple[NDArray, ...]] = []
        done: set[tuple[Pass, int]] = set()
        for group, (where, _, _) in zip(groups, touched, strict=True):
            kind = _kind(group[0])
            own = where[latest[column[where]] == kinds.index(kind)]
            which = _numbers(group)
            several, stays = passes[column[own]] > 1, self.of.gradient[own]
            away = returned[which[0], column[own]] >= 0

            def lives(at: NDArray[np.bool_], start: NDArray, end: NDArray, own: NDArray, which: NDArray) -> None:
                cells = np.ix_(which, column[own[at]])
                parts.append(self._rows(own[at], start[cells], end[cells]))

            lives(away, began, left, own, which)
            lives(away, returned, ended, own, which)
            for others in (several & ~away, ~several & ~away):
                lives(others & ~stays, began, ended, own, which)
                if kind not in done:  # the first backward makes the gradients, the others add to them
                    where = own[others & stays]
                    last = max((run for run in runs if _kind(run) == kind), key=lambda run: run.start)
                    gone = _looked_up(last.ran.travelled.left, where)
                    until = np.where(gone >= 0, last.start + gone, instructions)
                    parts.append(self._rows(where, began[:, column[where]].min(axis=0), until))
            done.add(kind)
        return parts + [self._visits(run) for run in runs if run.ran.travelled.visits]

    def _visits(self, run: MicroBatchRun) -> tuple[NDArray, ...]:
        """What is here for a time only."""
        where, first, last = np.array(run.ran.travelled.visits, np.int64).T
        return self._rows(where, run.start + first, run.start + last)

    def _optimizer(self, at: NDArray[np.int64]) -> tuple[NDArray, ...]:
        """What the optimizer makes for itself."""
        first = np.full(len(self.of.size), np.iinfo(np.int64).max, np.int64)
        last = np.full(len(self.of.size), -1, np.int64)
        for table in (self.trace.operators.inputs, self.trace.operators.outputs):
            row = table.rows()
            keep = at[row] >= 0
            where = self.trace.values.storage[table.values[keep]]
            np.minimum.at(first, where, at[row[keep]])
            np.maximum.at(last, where, at[row[keep]])
        where = np.flatnonzero((last >= 0) & ~(self.of.persistent | self.of.given | self.of.gradient))
        size, *columns = self._rows(where, first[where], last[where])
        return size * self._part_of(where), *columns

    def _part_of(self, where: NDArray[np.int64]) -> NDArray[np.float64]:
        """Part of what the optimizer makes that this stage makes, for it updates its own parameters only."""
        outputs = self.trace.operators.outputs
        part = np.ones(len(self.of.size))
        storage, row = self.trace.values.storage[outputs.values], outputs.rows()
        update = self.trace.operators.phase[row] == Phase.OPTIMIZER
        part[storage[update]] = self.stages.share[:, self.parts].sum(axis=1)[row[update]]
        return part[where]


def _made_within(trace: Trace, storages: int) -> NDArray[np.bool_]:
    """Storages that an operator of the step makes: one returns their first version, and nothing has read it before."""
    first = np.full((2, storages), len(trace.operators), np.int64)
    for kind, table in enumerate((trace.operators.inputs, trace.operators.outputs)):
        counts = (trace.values.version[table.values] == 0) | (kind == 0)
        np.minimum.at(first[kind], trace.values.storage[table.values[counts]], table.rows()[counts])
    return first[1] < first[0]


def _looked_up(table: Mapping[int, int], storages: NDArray[np.int64]) -> NDArray[np.int64]:
    """What a table says of each storage, -1 for nothing."""
    return np.array([table.get(storage, NONE) for storage in storages.tolist()], np.int64)


def _kind(run: MicroBatchRun) -> tuple[Pass, int]:
    """What is run, in the order in which a micro-batch goes through it."""
    return run.what, run.chunk if run.what is Pass.FORWARD else -run.chunk


def _numbers(runs: Sequence[MicroBatchRun]) -> NDArray[np.int64]:
    return np.array([run.micro_batch for run in runs], np.int64)


def _alike(runs: Sequence[MicroBatchRun]) -> list[list[MicroBatchRun]]:
    """Those that ran the same instructions together: forwards first, then in the order of the first of each."""
    groups: dict[int, list[MicroBatchRun]] = {}
    for run in sorted(runs, key=lambda run: run.what):
        groups.setdefault(id(run.ran), []).append(run)
    return list(groups.values())
