"""Blocks of a step: what its storages are to memory, and what its operators use of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.memory.lifetimes import MemoryLocation
from triosim.memory.liveness import BlockLifetime, BlockUses, MemoryBlocks
from triosim.partition.gradients import gradients
from triosim.partition.transfers import ALL_GATHER, Transfers
from triosim.trace.tables import NONE, PERSISTENT, Category, Phase, Trace


class StepStorages:
    """The storages of a step, a block each, and which operators touch them: the same for all stages.

    Args:
        trace: one rank's step.
        transfers: inside it.  What a later phase gathers again is kept until then, though no operator reads it there.

    Attributes:
        size: bytes of each storage.
        category: :class:`~triosim.trace.tables.Category` codes of its latest version.
        gradient: whether it is the gradient of a parameter, which stays to the end of the iteration.
        zeroed: whether it is one that the step sets to zero instead of making it anew, and so is always there.
        persistent: whether it is a parameter, a buffer or an optimizer state.
        given: whether it is of the input batch or its labels.
    """

    def __init__(self, trace: Trace, transfers: Transfers) -> None:
        self.trace = trace
        values = trace.values
        self.size = values.storage_bytes()
        self.category = np.full(len(self.size), int(Category.TEMPORARY), np.int8)
        order = np.argsort(values.version, kind="stable")[::-1]
        self.category[values.storage[order]] = values.category[order]
        self.gradient = np.zeros(len(self.size), bool)
        self.gradient[[one.storage for one in gradients(trace)]] = True
        self.zeroed = self.gradient & ~_made_within(trace, len(self.size))
        self.persistent = np.isin(self.category, [int(c) for c in PERSISTENT])
        self.given = np.isin(self.category, [int(Category.INPUT), int(Category.LABEL)])
        first = np.full(len(self.size), NONE, np.int64)
        first[values.storage[::-1]] = np.arange(len(values))[::-1]
        self.shown = first  # the lowest value of each storage
        tables = trace.operators.inputs, trace.operators.outputs
        again, part = _gathered_again(trace, transfers)
        row = np.concatenate([*(table.rows() for table in tables), again])
        storage = np.concatenate([*(values.storage[table.values] for table in tables), part])
        order = np.argsort(row, kind="stable")
        self._row, self._storage = row[order], storage[order]

    def __len__(self) -> int:
        return len(self.size)

    def touched(
        self, rows: Sequence[int] | NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Storages that some operators touch, and the first and last of them that does, in the order of ``rows``."""
        own = np.asarray(rows, np.int64)
        member = np.zeros(len(self.trace.operators), bool)
        member[own] = True
        inside = member[self._row]
        row, storage = self._row[inside], self._storage[inside]
        if len(own) > 1 and bool((own[1:] < own[:-1]).any()):  # what is run in another order than that of the step
            place = np.empty(len(member), np.int64)
            place[own] = np.arange(len(own))
            order = np.argsort(place[row], kind="stable")
            row, storage = row[order], storage[order]
        first, last = np.full(len(self.size), -1, np.int64), np.full(len(self.size), -1, np.int64)
        last[storage] = row  # the last of several counts
        first[storage[::-1]] = row[::-1]
        where = np.flatnonzero(last >= 0)
        return where, first[where], last[where]

    def uses(self, rows: Sequence[int], at: NDArray[np.int64], arrivals: Mapping[int, int]) -> BlockUses:
        """What a pass of a micro-batch uses.

        Args:
            rows: operators that it runs.
            at: instruction of each operator of the trace, shape ``(operators,)``; that of the one before for an
                operator without an instruction of its own, -1 where there is none.
            arrivals: storage that another stage sent -> the instruction at which it arrives and takes memory.
        """
        where, first, last = self.touched(rows)
        first, last = np.maximum(at[first], 0), np.maximum(at[last], 0)
        for storage, instruction in arrivals.items():
            first[where == storage] = instruction
        last = np.maximum(first, last)  # where a stage only looks at views of what arrives, the views come before it
        return BlockUses(where, first, last, np.zeros(len(where), bool))


@dataclass(frozen=True)
class ExtraBlock:
    """A block of memory that is no storage of the step.

    Attributes:
        size: bytes.
        category: what it is.
        storage: what it is made of, -1 for none.
        scope: how long it is held.
        home: where it is.
    """

    size: int
    category: Category
    storage: int = NONE
    scope: BlockLifetime = BlockLifetime.ITERATION
    home: MemoryLocation = MemoryLocation.DEVICE


class RankBlocks:
    """The blocks of one rank class: the storages of its step, then what schedules and transfers add.

    * Parameters, buffers and optimizer states of the stage are resident, and so is the whole input batch.
    * Gradients of parameters are made by the first backward and stay to the end of the iteration, where they are set to
      none; those that the step sets to zero instead are resident.  What is summed into one (of a weight that is used
      twice) is freed when it has been added.
    * Everything else lives, once for each micro-batch, from the operator that makes it to the last that reads it: what
      the backward reads is exactly what it needs, for the trace says so.

    Args:
        storages: of the step.
        parameters: all parameters (value ids), and whether this rank has them.
        rows: operators that the rank runs.
        first: whether it has the first part of the model, and with it what belongs to nobody.
        micro_batches: of an iteration.

    Attributes:
        stands_for: storage of a gradient -> the storage that holds what this rank has of it, where that is another.
    """

    def __init__(
        self,
        storages: StepStorages,
        parameters: Mapping[int, bool],
        rows: NDArray[np.int64],
        first: bool,
        micro_batches: int,
    ) -> None:
        self.storages = storages
        values, shown = storages.trace.values, storages.shown
        inputs = storages.trace.operators.inputs
        used = np.zeros(len(storages), bool)
        used[values.storage[inputs.values[np.isin(inputs.rows(), rows)]]] = True
        is_weight, is_mine = np.zeros(len(values), bool), np.zeros(len(values), bool)
        is_weight[list(parameters)] = True
        is_mine[[value for value, mine in parameters.items() if mine]] = True
        owner = np.where(is_weight[shown], shown, values.of[shown])
        owned = (owner >= 0) & is_weight[owner]
        there = shown >= 0
        stays = np.where(owned, is_mine[owner], used | first) & (storages.persistent | storages.zeroed) & there
        given = storages.given & used & ~storages.persistent & there
        comes = ~(storages.persistent | storages.given | storages.zeroed)
        self.scope = np.full(len(storages), int(BlockLifetime.NOWHERE), np.int8)
        self.scope[comes] = np.where(
            storages.gradient[comes], int(BlockLifetime.ITERATION), int(BlockLifetime.MICRO_BATCH)
        )
        self.scope[stays | given] = int(BlockLifetime.RESIDENT)
        self.size = storages.size * np.where(given, micro_batches, 1)
        self.category = storages.category.copy()
        self.stands_for: dict[int, int] = {}
        self._extra: list[ExtraBlock] = []
        self._known: dict[object, int] = {}

    def add(self, key: object, extra: ExtraBlock) -> int:
        """The block that is known as ``key``, made if there is none."""
        if key not in self._known:
            self._known[key] = len(self.storages) + len(self._extra)
            self._extra.append(extra)
        return self._known[key]

    def leaves(self, storages: Collection[int]) -> None:
        """Some storages are not resident on the device."""
        self.scope[list(storages)] = int(BlockLifetime.NOWHERE)

    def shrinks(self, storages: NDArray[np.int64], size: NDArray[np.int64]) -> None:
        """Only a part of some storages is resident."""
        self.size[storages] = size

    def stays(self, storages: Iterable[int]) -> None:
        """Some storages are made by the first micro-batch and stay to the end of the iteration."""
        self.scope[[*storages]] = int(BlockLifetime.ITERATION)

    def gradients_here(self, stands_for: Mapping[int, int]) -> None:
        """What this rank has of some gradients (storages) is in other storages."""
        self.stands_for.update(stands_for)
        self.stays(stands_for.values())
        self.category[[*stands_for.values()]] = int(Category.GRADIENT)

    def once(self, key: object, at: NDArray[np.int64], part: NDArray[np.float64]) -> BlockUses:
        """What operators that run once in an iteration make for themselves, each in blocks of its own.

        Args:
            key: of the blocks.
            at: instruction of each operator, -1 for those that are not run.
            part: of each operator that is run here.
        """
        known = self.storages
        where, first, last = known.touched(np.flatnonzero(at >= 0).tolist())
        keep = ~(known.persistent | known.given | known.gradient)[where]
        where, first, last = where[keep], at[first[keep]], at[last[keep]]
        outputs = known.trace.operators.outputs
        share, made, row = np.ones(len(known)), known.trace.values.storage[outputs.values], outputs.rows()
        update = known.trace.operators.phase[row] == Phase.OPTIMIZER
        share[made[update]] = part[row[update]]
        size, category = (known.size * share).astype(np.int64), known.category
        block = [
            self.add((key, storage), ExtraBlock(int(size[storage]), Category(int(category[storage])), storage))
            for storage in where.tolist()
        ]
        return BlockUses(np.array(block, np.int64), first, last, np.ones(len(where), bool))

    def build(self) -> MemoryBlocks:
        """All of them."""
        count, extra = len(self.storages), self._extra
        return MemoryBlocks(
            np.concatenate([self.size, np.array([one.size for one in extra], np.int64)]),
            np.concatenate([self.category, np.array([one.category for one in extra], np.int8)]),
            np.concatenate([np.arange(count), np.array([one.storage for one in extra], np.int64)]).astype(np.int32),
            np.concatenate([self.scope, np.array([one.scope for one in extra], np.int8)]),
            np.concatenate([np.zeros(count, np.int8), np.array([one.home for one in extra], np.int8)]),
        )


def _gathered_again(trace: Trace, transfers: Transfers) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Operators that read what is gathered for them, and the storages of the rank's own parts, where those were made in
    another phase."""
    operators, storage = trace.operators, trace.values.storage
    phase_made = np.full(int(storage.max(initial=-1)) + 1, NONE, np.int64)
    made = operators.outputs
    phase_made[storage[made.values][::-1]] = operators.phase[made.rows()][::-1]
    rows = np.flatnonzero((transfers.what == ALL_GATHER) & (transfers.value >= 0) & (transfers.before < len(operators)))
    before, part = transfers.before[rows].astype(np.int64), storage[transfers.value[rows]].astype(np.int64)
    again = (phase_made[part] != NONE) & (phase_made[part] != operators.phase[before])
    return before[again], part[again]


def _made_within(trace: Trace, storages: int) -> NDArray[np.bool_]:
    """Storages that an operator of the step makes: one returns their first version, and nothing has read it before."""
    first = np.full((2, storages), len(trace.operators), np.int64)
    for kind, table in enumerate((trace.operators.inputs, trace.operators.outputs)):
        counts = (trace.values.version[table.values] == 0) | (kind == 0)
        np.minimum.at(first[kind], trace.values.storage[table.values[counts]], table.rows()[counts])
    return np.asarray(first[1] < first[0])
