"""Offload: what is kept in host memory and travels over the host's link when it is needed.

* Activations (as in torch's ``save_on_cpu`` and torchtune's activation offloading): what a repeated block keeps for its
  backward goes to the host when the block's forward has ended, and comes back when the backward of the block after it
  begins.  At most two blocks wait to leave: the one after them does not begin before the first has left.  The last two
  blocks of a stage keep theirs, for they are needed at once.
* Parameters (ZeRO-Infinity, Rajbhandari et al., arXiv:2104.07857, section 5; without its disk): those of a block arrive
  while the block before it runs, forward and backward, and are dropped after it.  Parameters outside of blocks stay.
* Optimizer (ZeRO-Offload, Ren et al., arXiv:2101.06840, section 4.1): states and master weights are on the host.
  Gradients go there when they are complete, in DDP's buckets (at most two wait to leave, as with activations), the
  host's processor updates, and the new parameters come back.  What is reduced over data-parallel ranks first leaves
  after the backward.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from triosim.core.errors import PlanError
from triosim.memory.blocks import Extra, RankBlocks
from triosim.memory.liveness import BlockLifetime, Recorder
from triosim.partition.gradients import Gradient
from triosim.partition.passes.hoist import hoist
from triosim.partition.passes.sink import sink
from triosim.schedule.program import COPY, Op, ProgramBuilder
from triosim.trace.blocks import blocks
from triosim.trace.tables import NONE, Category, Phase, Trace

HOST = "host"
KEPT_BLOCKS = 2
"""So many blocks at the end of a stage keep their activations, and so many wait to leave."""


class Trip(NamedTuple):
    """Storages that travel together.

    Attributes:
        storages: which.
        bytes: their size.
        leaves: operator after which they leave, -1 if they only come.
        gone: operator that begins when they have left, -1 for none.
        called: operator at whose beginning they are called back, -1 if they only leave.
        needed: operator that waits for them, -1 likewise.
        dropped: operator after which they are dropped, -1 where their last reader decides.
    """

    storages: tuple[int, ...]
    bytes: int
    leaves: int
    gone: int
    called: int
    needed: int
    dropped: int = NONE


class Shuttle:
    """Writes the copies of one forward or backward around its operators.

    Args:
        trips: what travels in it.
        backward: which of the two it is.
        builder, recorder: the fragment being written, and what it uses of memory.
        blocks: of the rank.
        place: row of the host among the program's places.
        stream: of the copies.

    Attributes:
        sent: storage -> the copy of what goes for good.
    """

    def __init__(
        self,
        trips: Sequence[Trip],
        backward: bool,
        builder: ProgramBuilder,
        recorder: Recorder,
        blocks: RankBlocks,
        place: int,
        stream: int = COPY,
    ) -> None:
        self.backward, self.builder, self.place, self.stream = backward, builder, place, stream
        self.recorder, self.blocks, self.sent = recorder, blocks, dict[int, int]()
        leaving = [trip for trip in trips if trip.leaves >= 0 and (not backward or trip.called < 0)]
        coming = [trip for trip in trips if backward or trip.leaves < 0]
        self.leaves, self.gone = _by(leaving, "leaves"), _by(leaving, "gone")
        self.called, self.needed, self.dropped = (_by(coming, name) for name in ("called", "needed", "dropped"))
        self.copies: dict[Trip, int] = {}

    def rows(self) -> tuple[Iterable[int], ...]:
        """Operators before or after which something is due."""
        return (self.leaves, self.gone, self.called, self.needed, self.dropped)

    def before(self, row: int, previous: int) -> list[int]:
        """Call back what is due and return the copies that operator ``row`` waits for; ``previous`` has run last."""
        waits = []
        for trip in self.gone.get(row, ()):
            waits.append(self.copies[trip])
            for storage in trip.storages:
                self.recorder.free(storage, len(self.builder) - 1)
        for trip in self.called.get(row, ()):
            self.copies[trip] = self._copy(Op.FETCH, trip.bytes, row, previous)
            for storage in trip.storages:
                self.recorder.use(storage if trip.dropped < 0 else self._visitor(storage), self.copies[trip])
            if trip.leaves >= 0:
                self.recorder.free(self._away(trip), self.copies[trip])
        return waits + [self.copies[trip] for trip in self.needed.get(row, ())]

    def after(self, row: int, previous: int) -> None:
        """Send off what is due after operator ``row``, which is instruction ``previous``."""
        for trip in self.leaves.get(row, ()):
            self.copies[trip] = self._copy(Op.STORE, trip.bytes, row, previous)
            if trip.called < 0:
                self.sent.update(dict.fromkeys(trip.storages, self.copies[trip]))
            else:
                self.recorder.use(self._away(trip), self.copies[trip])
        for trip in self.dropped.get(row, ()):
            for storage in trip.storages:
                self.recorder.free(self._visitor(storage), previous)

    def _visitor(self, storage: int) -> int:
        """The block of a storage that is here for a time only."""
        known = self.blocks.storages
        extra = Extra(int(known.size[storage]), Category(int(known.category[storage])), storage)
        return self.blocks.add(("visit", storage), extra)

    def _away(self, trip: Trip) -> int:
        """The block on the host of what is away for a time."""
        extra = Extra(trip.bytes, Category.ACTIVATION, trip.storages[0], BlockLifetime.MICRO_BATCH, host=True)
        return self.blocks.add(("away", trip), extra)

    def _copy(self, op: Op, size: int, row: int, previous: int) -> int:
        before = [previous] if previous >= 0 else []
        return self.builder.add(op, self.stream, operator=row, size=size, peer=self.place, before=before)


def _by(trips: Iterable[Trip], name: str) -> dict[int, list[Trip]]:
    found: dict[int, list[Trip]] = {}
    for trip in trips:
        if getattr(trip, name) >= 0:
            found.setdefault(getattr(trip, name), []).append(trip)
    return found


# --- what travels -----------------------------------------------------------------------------------------------------


class _Reach(NamedTuple):
    """First and last operator of a block in a stage's forward, and of its backward (-1 for none)."""

    block: int
    forward: tuple[int, int]
    backward: tuple[int, int]


def activation_trips(trace: Trace, forward: Sequence[int], backward: Sequence[int], stays: set[int]) -> list[Trip]:
    """What the blocks of a stage keep for the backward, as it leaves and comes back.

    Args:
        trace: one rank's step.
        forward, backward: operators of the stage in the order in which they run.
        stays: storages that are not to leave (those sent to other stages).

    Raises:
        PlanError: the step has no repeated blocks.
    """
    reach = _reaches(trace, forward, backward, "activations")
    operators, storage = trace.operators, trace.values.storage.tolist()
    size = trace.values.storage_bytes()
    kept = set(np.unique(trace.values.storage[trace.values.category == Category.ACTIVATION]).tolist()) - stays
    made, last = _made_and_last_read(forward, operators.inputs.lists(), operators.outputs.lists(), storage)
    wanted = _first_touched(backward, operators.inputs.lists(), operators.outputs.lists(), storage)
    order = [(b.backward[0], b) for b in reach if b.backward[0] >= 0]
    order.sort(key=lambda item: item[0])
    starts = [start for start, _ in order]
    called = hoist(starts, 1)
    found: dict[tuple[int, int], list[int]] = {}
    for storage_, row in made.items():
        at = next((i for i, b in enumerate(reach) if b.forward[0] <= row <= b.forward[1]), None)
        if at is None or at + KEPT_BLOCKS >= len(reach) or storage_ not in kept or storage_ not in wanted:
            continue
        if last.get(storage_, row) >= reach[at + KEPT_BLOCKS].forward[0]:
            continue  # a later block reads it too
        user = int(np.searchsorted(starts, wanted[storage_], side="right")) - 1
        if user >= 1:  # the first to run backward cannot call ahead
            found.setdefault((at, user), []).append(storage_)
    return [
        Trip(
            tuple(storages), int(size[storages].sum()), leaves=reach[at].forward[1],
            gone=reach[at + KEPT_BLOCKS].forward[0], called=called[user],
            needed=min(wanted[s] for s in storages),
        )
        for (at, user), storages in sorted(found.items())
    ]  # fmt: skip


def parameter_trips(
    trace: Trace, forward: Sequence[int], backward: Sequence[int], parameters: Mapping[int, object]
) -> tuple[list[Trip], list[Trip]]:
    """Parameters of the blocks of a stage, as they visit in its forward and in its backward.

    Args:
        trace: one rank's step.
        forward, backward: operators of the stage in the order in which they run.
        parameters: those of the stage, value ids.

    Raises:
        PlanError: the step has no repeated blocks.
    """
    reach = _reaches(trace, forward, backward, "parameters")
    storage, names = trace.values.storage.tolist(), trace.values.name
    size = trace.values.storage_bytes()
    found = blocks(trace)
    of_path = {path: i for i, path in enumerate(found.path)}
    mine: dict[int, list[int]] = {}
    for value in parameters:
        parts = names[value].split(".")
        block = next((of_path[p] for n in range(1, len(parts)) if (p := ".".join(parts[:n])) in of_path), NONE)
        mine.setdefault(block, []).append(storage[value])

    def trips(rows: list[tuple[int, int, int]]) -> list[Trip]:
        made = []
        for (first, last, block), (called, _, _) in zip(rows, hoist(rows, 1), strict=True):
            if block in mine:
                made.append(Trip(tuple(mine[block]), int(size[mine[block]].sum()), NONE, NONE, called, first, last))
        return made

    return (
        trips(sorted((*b.forward, b.block) for b in reach)),
        trips(sorted((*b.backward, b.block) for b in reach if b.backward[0] >= 0)),
    )


def _reaches(trace: Trace, forward: Sequence[int], backward: Sequence[int], what: str) -> list[_Reach]:
    of = blocks(trace).of(trace).tolist()
    if all(block == NONE for block in of):
        raise PlanError(
            f"offload {what}: no repeated blocks (numbered modules) found in {trace.meta.workload!r}, and it goes "
            "block by block: leave it out"
        )
    reach: dict[int, list[list[int]]] = {}
    for place, rows in enumerate((forward, backward)):
        for row in rows:
            if of[row] != NONE and (place == 0 or of[row] in reach):
                reach.setdefault(of[row], [[], []])[place].append(row)
    return sorted(
        (
            _Reach(block, (min(f), max(f)), (min(b, default=NONE), max(b, default=NONE)))
            for block, (f, b) in reach.items()
        ),
        key=lambda found: found.forward,
    )


def _made_and_last_read(
    rows: Iterable[int], inputs: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], storage: Sequence[int]
) -> tuple[dict[int, int], dict[int, int]]:
    """Operator that makes each storage, and the last that reads it."""
    made: dict[int, int] = {}
    last: dict[int, int] = {}
    seen: set[int] = set()
    for row in rows:
        for value in inputs[row]:
            seen.add(storage[value])
            last[storage[value]] = row
        for value in outputs[row]:
            if storage[value] not in seen:
                made.setdefault(storage[value], row)
            last[storage[value]] = row
    return made, last


def _first_touched(
    rows: Iterable[int], inputs: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], storage: Sequence[int]
) -> dict[int, int]:
    first: dict[int, int] = {}
    for row in rows:
        for value in (*inputs[row], *outputs[row]):
            first.setdefault(storage[value], row)
    return first


def gradient_trips(
    groups: Sequence[Sequence[Gradient]], sizes: Mapping[int, int], backward: Sequence[int]
) -> list[Trip]:
    """Complete gradients on their way to the host, beside the last backward.

    Args:
        groups: gradients that travel together, in the order in which they are complete.
        sizes: bytes of each that are needed there, by storage.
        backward: operators of the stage's backward that compute, in order.
    """
    ready = sink(groups)
    trips = []
    for at, group in enumerate(groups):
        later = max(ready[at : at + KEPT_BLOCKS])
        gone = next((row for row in backward if row > later), NONE) if at + KEPT_BLOCKS <= len(groups) else NONE
        storages = tuple(g.storage for g in group if g.storage in sizes)
        if storages:
            trips.append(Trip(storages, sum(sizes[s] for s in storages), ready[at], gone, NONE, NONE))
    return trips


# --- the update -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Update:
    """What the host's processor updates for one stage.

    Attributes:
        gradients: bytes of each gradient that it needs, by storage.
        parameters: bytes of the new parameters.
        states: bytes of its states, master weights included.
        touched_bytes: what it reads and writes: gradients, states and masters once each way.
    """

    gradients: dict[int, int]
    parameters: int
    states: int
    touched_bytes: int


def update_of(trace: Trace, parameters: Iterable[int]) -> Update:
    """The update of some parameters.

    Args:
        trace: one rank's step, its optimizer divided where it is (ZeRO).
        parameters: value ids.
    """
    operators, values = trace.operators, trace.values
    storage, category, of = values.storage.tolist(), values.category.tolist(), values.of.tolist()
    size = values.bytes().tolist()
    mine = {storage[p] for p in parameters}

    def own(value: int) -> bool:
        owner = of[value] if of[value] >= 0 else value
        return storage[owner] in mine

    reads: dict[int, int] = {}
    writes: dict[int, int] = {}
    kind: dict[int, int] = {}
    for row in np.flatnonzero(operators.phase == Phase.OPTIMIZER).tolist():
        for table, held in ((operators.inputs[row], reads), (operators.outputs[row], writes)):
            for value in table.tolist():
                if category[value] != Category.TEMPORARY and own(value):
                    held[storage[value]] = max(held.get(storage[value], 0), size[value])
                    kind[storage[value]] = category[value]
    return Update(
        {s: b for s, b in reads.items() if kind[s] == Category.GRADIENT},
        sum(b for s, b in writes.items() if kind[s] == Category.WEIGHT),
        sum(b for s, b in reads.items() if kind[s] == Category.OPTIMIZER_STATE),
        sum(reads.values()) + sum(writes.values()),
    )


def on_host(blocks: RankBlocks, trips: Iterable[Trip], update: Update | None) -> None:
    """Put on the host what has no place of its own on the device: optimizer states, parameters that only visit.

    Args:
        blocks: of a rank.
        trips: of the forwards of the parts of its stage.
        update: what the host updates, if it does.
    """
    for trip in trips:
        if trip.leaves < 0:
            blocks.leaves(trip.storages)
            blocks.add(
                ("home", trip), Extra(trip.bytes, Category.WEIGHT, trip.storages[0], BlockLifetime.RESIDENT, host=True)
            )
    if update is not None:
        values = blocks.storages.trace.values
        blocks.leaves(np.unique(values.storage[values.category == Category.OPTIMIZER_STATE]).tolist())
        for category, size in (
            (Category.OPTIMIZER_STATE, update.states), (Category.GRADIENT, sum(update.gradients.values())),
        ):  # fmt: skip
            blocks.add(("home", category), Extra(size, category, NONE, BlockLifetime.RESIDENT, host=True))
