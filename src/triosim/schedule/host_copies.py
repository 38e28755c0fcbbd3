"""Copies between a device and host memory or drives, written around the operators that need what they bring."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from triosim.memory.blocks import ExtraBlock, RankBlocks
from triosim.memory.lifetimes import MemoryLocation
from triosim.memory.liveness import BlockLifetime, BlockUseRecorder
from triosim.partition.passes.host_copies import HostCopy, HostUpdate
from triosim.partition.residence import HOST, NVME
from triosim.schedule.program import COPY, Op, ProgramBuilder
from triosim.trace.tables import NONE, Category

HOMES = {HOST: MemoryLocation.HOST, NVME: MemoryLocation.NVME}
"""Where in memory the places are."""


class CopyWriter:
    """Writes the copies of one forward or backward around its operators.

    Args:
        copies: what travels in it.
        backward: which of the two it is.
        builder, recorder: the fragment being written, and what it uses of memory.
        blocks: of the rank.
        places: names of places and their rows in the program.
        stream: of the copies.

    Attributes:
        sent: storage -> the copy of what goes for good.
    """

    def __init__(
        self,
        copies: Sequence[HostCopy],
        backward: bool,
        builder: ProgramBuilder,
        recorder: BlockUseRecorder,
        blocks: RankBlocks,
        places: Mapping[str, int],
        stream: int = COPY,
    ) -> None:
        self.backward, self.builder, self.places, self.stream = backward, builder, places, stream
        self.recorder, self.blocks, self.sent = recorder, blocks, dict[int, int]()
        leaving = [copy for copy in copies if copy.leaves >= 0 and (not backward or copy.called < 0)]
        coming = [copy for copy in copies if backward or copy.leaves < 0]
        self.leaves, self.gone = _by(leaving, "leaves"), _by(leaving, "gone")
        self.called, self.needed, self.dropped = (_by(coming, name) for name in ("called", "needed", "dropped"))
        self.copies: dict[HostCopy, int] = {}

    def rows(self) -> tuple[Iterable[int], ...]:
        """Operators before or after which something is due."""
        return (self.leaves, self.gone, self.called, self.needed, self.dropped)

    def before(self, row: int, previous: int) -> list[int]:
        """Call back what is due and return the copies that operator ``row`` waits for; ``previous`` has run last."""
        waits = []
        for copy in self.gone.get(row, ()):
            waits.append(self.copies[copy])
            for storage in copy.storages:
                self.recorder.free(storage, len(self.builder) - 1)
        for copy in self.called.get(row, ()):
            self.copies[copy] = self._copy(Op.FETCH, copy, row, previous)
            for storage in copy.storages:
                self.recorder.use(storage if copy.dropped < 0 else self._visitor(storage), self.copies[copy])
            if copy.leaves >= 0:
                self.recorder.free(self._away(copy), self.copies[copy])
        return waits + [self.copies[copy] for copy in self.needed.get(row, ())]

    def after(self, row: int, previous: int) -> None:
        """Send off what is due after operator ``row``, which is instruction ``previous``."""
        for copy in self.leaves.get(row, ()):
            self.copies[copy] = self._copy(Op.STORE, copy, row, previous)
            if copy.called < 0:
                self.sent.update(dict.fromkeys(copy.storages, self.copies[copy]))
            else:
                self.recorder.use(self._away(copy), self.copies[copy])
        for copy in self.dropped.get(row, ()):
            for storage in copy.storages:
                self.recorder.free(self._visitor(storage), previous)

    def _visitor(self, storage: int) -> int:
        """The block of a storage that is here for a time only."""
        known = self.blocks.storages
        extra = ExtraBlock(int(known.size[storage]), Category(int(known.category[storage])), storage)
        return self.blocks.add(("visit", storage), extra)

    def _away(self, copy: HostCopy) -> int:
        """The block on the host of what is away for a time."""
        home = HOMES[copy.place]
        extra = ExtraBlock(copy.bytes, Category.ACTIVATION, copy.storages[0], BlockLifetime.MICRO_BATCH, home)
        return self.blocks.add(("away", copy), extra)

    def _copy(self, op: Op, copy: HostCopy, row: int, previous: int) -> int:
        before, place = [previous] if previous >= 0 else [], self.places[copy.place]
        return self.builder.add(op, self.stream, operator=row, size=copy.bytes, peer=place, before=before)


def _by(copies: Iterable[HostCopy], name: str) -> dict[int, list[HostCopy]]:
    found: dict[int, list[HostCopy]] = {}
    for copy in copies:
        if getattr(copy, name) >= 0:
            found.setdefault(getattr(copy, name), []).append(copy)
    return found


def on_host(blocks: RankBlocks, copies: Iterable[HostCopy], update: HostUpdate | None, states: str) -> None:
    """Put on the host what has no place of its own on the device: optimizer states, parameters that only visit.

    Args:
        blocks: of a rank.
        copies: of the forwards of the parts of its stage.
        update: what the host updates, if it does.
        states: place of the optimizer states that it updates.
    """
    for copy in copies:
        if copy.leaves < 0:
            blocks.leaves(copy.storages)
            blocks.add(
                ("home", copy),
                ExtraBlock(copy.bytes, Category.WEIGHT, copy.storages[0], BlockLifetime.RESIDENT, HOMES[copy.place]),
            )
    if update is not None:
        values = blocks.storages.trace.values
        blocks.leaves(np.unique(values.storage[values.category == Category.OPTIMIZER_STATE]).tolist())
        for category, size, place in (
            (Category.OPTIMIZER_STATE, update.states, states),
            (Category.GRADIENT, sum(update.gradients.values()), HOST),
        ):
            blocks.add(("home", category), ExtraBlock(size, category, NONE, BlockLifetime.RESIDENT, HOMES[place]))
