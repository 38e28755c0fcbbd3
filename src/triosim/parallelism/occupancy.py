"""What a stage keeps in memory: from which instruction to which each storage of its step lives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.memory.lifetimes import Lifetimes
from triosim.parallelism.gradients import gradients
from triosim.parallelism.offload import Travelled
from triosim.parallelism.stages import Stages
from triosim.plan import Mesh
from triosim.workload.trace import NONE, PERSISTENT, Category, Phase, Trace

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


class Spell(NamedTuple):
    """One micro-batch's forward or backward in a program.

    Attributes:
        backward, micro_batch: which one.
        start: its first instruction.
        ran: what is where in it.
    """

    backward: bool
    micro_batch: int
    start: int
    ran: Ran


@dataclass(frozen=True)
class Storages:
    """What the storages of a step are, one row each: the same for all stages.

    Attributes:
        size: bytes.
        category: :class:`~triosim.workload.trace.Category` codes of the latest version.
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
    * What is offloaded is here only while it is needed (:mod:`triosim.parallelism.offload`).
    * Everything else lives, once for each micro-batch, from the operator that makes it to the last that reads it:
      what the backward reads is exactly what it needs, for the trace says so.
    """

    def __init__(
        self,
        trace: Trace,
        stages: Stages,
        stage: int,
        mesh: Mesh,
        bucket_bytes: int = 0,
        away: NDArray[np.int64] | None = None,
        storages: Storages | None = None,
    ) -> None:
        self.trace, self.stages, self.stage, self.mesh, self.bucket_bytes = trace, stages, stage, mesh, bucket_bytes
        self.away = away if away is not None else np.zeros(0, np.int64)
        self.of, operators = storages or Storages.of(trace), trace.operators
        rows = np.flatnonzero((stages.of == stage) | (operators.phase == Phase.OPTIMIZER))
        phase = operators.phase[rows]
        self.forward = self._uses(rows[phase == Phase.FORWARD])
        self.backward = self._uses(rows[(phase == Phase.BACKWARD) | (phase == Phase.RECOMPUTE)])

    def lifetimes(self, spells: Sequence[Spell], optimizer: NDArray[np.int64], instructions: int) -> Lifetimes:
        """All lifetimes.

        Args:
            spells: forwards and backwards of the first iteration, in order.
            optimizer: instruction of each operator of the optimizer, -1 for the others, shape ``(operators,)``.
            instructions: length of the program; what stays ends after the last.
        """
        parts = [
            self._static(instructions), *self._activations(spells, instructions), self._optimizer(optimizer),
        ]  # fmt: skip
        size, category, start, end, storage = (np.concatenate(column) for column in zip(*parts, strict=True))
        keep = size > 0
        return Lifetimes(
            size[keep].astype(np.int64), category[keep].astype(np.int8), start[keep].astype(np.int32),
            end[keep].astype(np.int32), storage[keep].astype(np.int32),
        )  # fmt: skip

    def _rows(self, where: NDArray, start: NDArray, end: NDArray) -> tuple[NDArray, ...]:
        """Columns for storages ``where``; ``start`` and ``end`` may have a leading axis, one row for each spell."""
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
        is_mine[[p for p, users in parameters.items() if self.stage in users]] = True
        owner = np.where(is_weight[first], first, values.of[first])
        owned = (owner >= 0) & is_weight[owner]
        lasting = self.of.persistent | self.of.zeroed
        keep = np.where(owned, is_mine[owner], used | (self.stage == 0)) & lasting & (first >= 0)
        keep[self.away] = False
        given = self.of.given & used & ~self.of.persistent & (first >= 0)
        where = np.flatnonzero(keep | given)
        size = self.of.size[where] * np.where(given[where], self.mesh.micro_batches, 1)
        category = self.of.category[where]
        size, category = np.append(size, self.bucket_bytes), np.append(category, int(Category.COMMUNICATION))
        return size, category, np.full(len(size), BEFORE), np.full(len(size), instructions), np.append(where, NONE)

    def _storages_used(self) -> NDArray[np.int64]:
        inputs = self.trace.operators.inputs
        at_stage = (self.stages.of == self.stage)[inputs.rows()]
        return np.unique(self.trace.values.storage[inputs.values[at_stage]])

    # --- what comes and goes ------------------------------------------------------------------------------------------

    def _uses(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First and last of these operators that touch each storage (-1 for none)."""
        operators, storage = self.trace.operators, self.trace.values.storage
        first = np.full(len(self.of.size), np.iinfo(np.int32).max, np.int64)
        last = np.full(len(self.of.size), -1, np.int64)
        member = np.zeros(len(operators), bool)
        member[rows] = True
        for table in (operators.inputs, operators.outputs):
            row = table.rows()
            keep = member[row]
            where = storage[table.values[keep]]
            np.minimum.at(first, where, row[keep])
            np.maximum.at(last, where, row[keep])
        first[last < 0] = -1
        return first, last

    def _activations(self, spells: Sequence[Spell], instructions: int) -> list[tuple[NDArray, ...]]:
        """What each micro-batch makes; what its forward makes for its backward lives from one to the other."""
        comes = ~(self.of.persistent | self.of.given | self.of.zeroed)
        held = np.flatnonzero(comes & (self.forward[1] >= 0) & (self.backward[1] >= 0))
        passing = np.flatnonzero(comes & (self.forward[1] >= 0) & (self.backward[1] < 0))
        made = np.flatnonzero(comes & (self.forward[1] < 0) & (self.backward[1] >= 0))
        parts = []
        began = np.full((self.mesh.micro_batches, len(held)), BEFORE, np.int64)
        left = began.copy()
        for group in _alike(spells, backward=False):
            start = _starts(group)
            ran = group[0].ran
            began[[spell.micro_batch for spell in group]] = start + self._arrival(held, ran)
            left[[spell.micro_batch for spell in group]] = start + _looked_up(ran.travelled.left, held)
            parts.append(self._rows(passing, start + self._arrival(passing, ran), start + self._end(passing, ran, 0)))
        back = [spell for spell in spells if spell.backward]
        for group in _alike(spells, backward=True):
            start, ran = _starts(group), group[0].ran
            which = [spell.micro_batch for spell in group]
            returned = _looked_up(ran.travelled.returned, held)
            first, last = self._begin(made, ran, 1), self._end(made, ran, 1)
            end = start + self._end(held, ran, 1)
            away = returned >= 0
            parts.append(self._rows(held[away], began[which][:, away], left[which][:, away]))
            parts.append(self._rows(held[away], start + returned[away], end[:, away]))
            held_here = (held[~away], began[which][:, ~away], end[:, ~away])
            for where, begin, until in (held_here, (made, start + first, start + last)):
                stays = self.of.gradient[where]
                parts.append(self._rows(where[~stays], begin[:, ~stays], until[:, ~stays]))
                if group[0] is back[0]:  # the first backward makes the gradients, the others add to them
                    gone = _looked_up(back[-1].ran.travelled.left, where[stays])
                    final = np.where(gone >= 0, back[-1].start + gone, instructions)
                    parts.append(self._rows(where[stays], begin[0, stays], final))
        if not back:
            parts.append(self._rows(held, began, began))
        return parts + [self._visits(spell) for spell in spells if spell.ran.travelled.visits]

    def _visits(self, spell: Spell) -> tuple[NDArray, ...]:
        """What is here for a time only."""
        where, first, last = np.array(spell.ran.travelled.visits, np.int64).T
        return self._rows(where, spell.start + first, spell.start + last)

    def _begin(self, where: NDArray, ran: Ran, backward: int) -> NDArray[np.int64]:
        uses = self.backward if backward else self.forward
        return np.maximum(ran.at[uses[0][where]], 0)

    def _end(self, where: NDArray, ran: Ran, backward: int) -> NDArray[np.int64]:
        uses = self.backward if backward else self.forward
        return np.maximum(ran.at[uses[1][where]], 0)

    def _arrival(self, where: NDArray, ran: Ran) -> NDArray[np.int64]:
        """Where a forward gets its storages: a value sent by another stage has a place from its arrival on."""
        begin = self._begin(where, ran, 0)
        for storage, instruction in ran.arrivals.items():
            begin[where == storage] = instruction
        return begin

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
        part[storage[update]] = self.stages.share[row[update], self.stage]
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


def _alike(spells: Sequence[Spell], backward: bool) -> list[list[Spell]]:
    """Spells in one direction, those that ran the same instructions together, in the order of the first of each."""
    groups: dict[int, list[Spell]] = {}
    for spell in spells:
        if spell.backward == backward:
            groups.setdefault(id(spell.ran), []).append(spell)
    return list(groups.values())


def _starts(spells: Sequence[Spell]) -> NDArray[np.int64]:
    return np.array([spell.start for spell in spells], np.int64)[:, None]
