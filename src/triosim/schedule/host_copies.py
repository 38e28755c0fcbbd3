"""Copies between a device and host memory, written around the operators that need what they bring."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from triosim.memory.blocks import Extra, RankBlocks
from triosim.memory.liveness import BlockLifetime, Recorder
from triosim.partition.passes.visits import Trip, Update
from triosim.schedule.program import COPY, Op, ProgramBuilder
from triosim.trace.tables import NONE, Category


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
