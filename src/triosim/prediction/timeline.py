"""The Timeline: what ran where and when, as columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.core.units import format_time
from triosim.trace.tables import Category

CATEGORIES: tuple[str, ...] = tuple(c.name.lower() for c in Category)
"""Names of the memory categories, in the order of the columns of :attr:`MemoryTrack.bytes`."""


@dataclass(frozen=True)
class Slices:
    """One row per thing that occupied a stream of a rank; times in seconds from the start of the run.

    Rows of a rank are contiguous and in the order of its program.

    Attributes:
        rank: which rank.
        stream: row of :data:`triosim.schedule.program.STREAMS`.
        op: :class:`triosim.schedule.program.Op` codes.
        name: row of ``Timeline.names``.
        operator: operator row of the trace, -1 for none.
        module: row of ``Timeline.modules``, -1 for none.
        phase: :class:`triosim.trace.tables.Phase` codes, -1 for none.
        micro_batch, iteration: which one it worked on.
        start: when it was ready and took its stream.
        begin: when bytes began to move (collectives, transfers), else ``start``.
        end: when it finished.
        bytes: bytes of a collective (full buffer) or a transfer.
        group: ranks of the collective's group: row of ``Timeline.groups``, -1 for none.
        pair: a transfer and its arrival share a number of their own, -1 for none.
        energy: joules of what computes, static power of its device included; 0 for all else, NaN where not known.
    """

    rank: NDArray[np.int32]
    stream: NDArray[np.int8]
    op: NDArray[np.int8]
    name: NDArray[np.int32]
    operator: NDArray[np.int32]
    module: NDArray[np.int32]
    phase: NDArray[np.int8]
    micro_batch: NDArray[np.int32]
    iteration: NDArray[np.int32]
    start: NDArray[np.float64]
    begin: NDArray[np.float64]
    end: NDArray[np.float64]
    bytes: NDArray[np.int64]
    group: NDArray[np.int32]
    pair: NDArray[np.int64]
    energy: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.rank)


@dataclass(frozen=True)
class MemoryTrack:
    """Memory of one rank over time: a step function.

    Attributes:
        rank: which rank.
        time: when it changes, seconds, ascending.
        bytes: bytes held from then on, shape ``(len(time), len(CATEGORIES))``.
    """

    rank: int
    time: NDArray[np.float64]
    bytes: NDArray[np.int64]


@dataclass(frozen=True)
class PowerTrack:
    """Power of one rank's device over time: a step function.

    Attributes:
        rank: which rank.
        time: when it changes, seconds, ascending.
        watts: drawn from then on.
    """

    rank: int
    time: NDArray[np.float64]
    watts: NDArray[np.float64]


@dataclass(frozen=True)
class LinkUse:
    """What the links carried.

    Attributes:
        name: ``"gpu0 -> nvswitch"``.
        bytes: carried during the run.
        bandwidth: bytes per second, ``inf`` for a link that never limits.
    """

    name: tuple[str, ...]
    bytes: NDArray[np.int64]
    bandwidth: NDArray[np.float64]


@dataclass(frozen=True)
class Timeline:
    """Everything that happened in a run.

    Attributes:
        slices: what ran.
        names: operator and transfer names that ``slices.name`` points into.
        modules: module paths that ``slices.module`` points into.
        groups: ranks of each communication group.
        rank_names: a name for each rank, ``"gpu3 (H100-SXM5-80GB)"``.
        rank_stage: pipeline stage of each rank.
        memory: memory over time of one rank of each class.
        links: what the links carried.
        end: end of the run in seconds.
        iterations: iterations in the run.
        flop: floating-point operations of one run of each of the trace's operators, NaN for kinds without such a count.
        power: power over time of the device of one rank of each class; empty where it is not known.
    """

    slices: Slices
    names: tuple[str, ...]
    modules: tuple[str, ...]
    groups: Ragged
    rank_names: tuple[str, ...]
    rank_stage: tuple[int, ...]
    memory: tuple[MemoryTrack, ...]
    links: LinkUse
    end: float
    iterations: int
    flop: NDArray[np.float64]
    power: tuple[PowerTrack, ...] = ()

    def __repr__(self) -> str:
        """One line; the columns would fill the screen."""
        words = f"{len(self.slices):,} slices, {len(self.rank_names):,} ranks, {self.iterations} iteration(s)"
        return f"Timeline of {format_time(self.end)}: {words}"
