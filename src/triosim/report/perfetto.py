"""The timeline in Perfetto's own binary form (``.pftrace``): a ninth of the size of JSON, and written faster.

A track per rank, below it one per stream; slices with operator, phase, module and bytes; arrows from each send to its
arrival; counters of memory and power.  https://ui.perfetto.dev opens it, and its trace processor reads it with SQL.
For tools that read PyTorch's traces there is :mod:`triosim.report.chrome`.

Perfetto counts nanoseconds, to which the picoseconds of the engine are rounded: what touches still touches.  Fields are
those of Perfetto's ``TracePacket`` and ``TrackEvent`` (``protos/perfetto/trace`` of its repository).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import count, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.outputs import binary_output
from triosim.core.units import MOST_SUM, picoseconds
from triosim.prediction.timeline import CATEGORIES, Timeline
from triosim.report.lanes import by_track, lanes_in_order
from triosim.report.messages import spans
from triosim.report.perfetto_packets import (
    Annotation,
    Event,
    Packet,
    Type,
    counter,
    note,
    packet,
    slices,
    strings,
    track,
    upon,
)  # fmt: skip
from triosim.report.protobuf import fixed, message, numbers
from triosim.report.ranks import shown
from triosim.schedule.program import HOST, STREAMS, Op
from triosim.trace.tables import Phase

LIMIT = 10_000_000
"""Slices above which only one rank of each class is written: about 500 MB."""

_PIECE = 1 << 13  # slices: their columns stay close to the processor
_RECEIVE = len(STREAMS)
_TRACKS = len(STREAMS) + 1


_ANNOTATIONS = ("module", "micro_batch", "iteration", "bytes", "ranks")
"""Notes on slices; their numbers are those of their places here, from 1."""
_STREAM_NAMES = {
    "compute": "compute", "tp": "tensor-parallel communication", "dp": "data-parallel communication",
    "send": "send to other stages", "copy": "copy", "host": "host",
}  # fmt: skip


def write(
    timeline: Timeline, path: str | os.PathLike[str], *, ranks: Sequence[int] | None = None, limit: int = LIMIT
) -> list[Path]:
    """Write the timeline to ``path``; returns the file written.

    Args:
        timeline: what to write.
        path: ``trace.pftrace``.
        ranks: only these; by default all ranks of the timeline if it has at most ``limit`` slices, else one rank of
            each class.
        limit: see ``ranks``.

    Raises:
        InputError: a rank is not in the timeline, or the file cannot be written.
    """
    chosen = shown(timeline, ranks, limit)
    with binary_output(path) as out:
        for piece in _pieces(timeline, chosen):
            out.write(piece)
    return [Path(path)]


@dataclass(frozen=True)
class _VisibleSlices:
    """Slices of the ranks that are shown, by track, lane and start.

    Attributes:
        rows: of the timeline's slices.
        track: rank and stream as one number.
        lane: of the track.
        start, end: ns.
        micro_batches: whether there is more than one.
    """

    rows: NDArray[np.int64]
    track: NDArray[np.int64]
    lane: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    micro_batches: bool


def _chosen(timeline: Timeline, ranks: Sequence[int]) -> _VisibleSlices:
    s = timeline.slices
    rows = np.flatnonzero(np.isin(s.rank, ranks))
    begins, _, ends = spans(s)
    start, end = (
        picoseconds(t if len(rows) == len(s) else t[rows], "a time of the timeline", MOST_SUM) for t in (begins, ends)
    )
    start, end = (start + 500) // 1000, (np.maximum(end, start) + 500) // 1000
    stream = np.where(s.stream[rows] < 0, _RECEIVE, s.stream[rows]).astype(np.int64)
    track = s.rank[rows].astype(np.int64) * _TRACKS + stream
    order = by_track(track, start, end)
    rows, track, start, end = (column[order] for column in (rows, track, start, end))
    lane = lanes_in_order(track, start, end)
    if lane.any():
        order = np.lexsort((lane, track))
        rows, track, lane, start, end = (column[order] for column in (rows, track, lane, start, end))
    return _VisibleSlices(rows, track, lane, start, end, bool(s.micro_batch.max(initial=0) > 0))


def _pieces(timeline: Timeline, ranks: Sequence[int]) -> Iterator[bytes]:
    """The file, bit by bit."""
    yield _strings(timeline)
    made = _chosen(timeline, ranks)
    numbered = count(1)
    parents = {rank: next(numbered) for rank in ranks}
    for rank, parent in parents.items():
        yield track(parent, f"rank {rank} ({timeline.rank_names[rank]})", place=rank, explicit=True)
        yield from _steps(timeline, made, rank, parent, next(numbered))
    changes = np.diff(made.track, prepend=-1, append=-1) != 0
    changes |= np.diff(made.lane, prepend=-1, append=-1) != 0
    bounds = np.flatnonzero(changes).tolist()
    for first, last in pairwise(bounds):
        rank, stream = divmod(int(made.track[first]), _TRACKS)
        lane = int(made.lane[first])
        name = "receive from other stages"
        if stream != _RECEIVE:
            name = _STREAM_NAMES.get(STREAMS[stream], STREAMS[stream])
        place = 1 + lane + 1000 * (0 if stream == HOST else 1 + stream)
        uuid = next(numbered)
        yield track(uuid, name + (f" {lane + 1}" if lane else ""), parents[rank], place)
        yield upon(uuid)
        for begin in range(first, last, _PIECE):
            since = int(made.end[begin - 1]) if begin > first else 0
            yield _slices(timeline, made, slice(begin, min(begin + _PIECE, last)), since)
    for rank, parent in parents.items():
        yield from _counters(timeline, rank, parent, numbered)


def _strings(timeline: Timeline) -> bytes:
    """All texts of the slices, which they name by number."""
    phases = [phase.name.lower() for phase in Phase]
    return strings(timeline.names, phases, _ANNOTATIONS, timeline.modules)


def _steps(timeline: Timeline, made: _VisibleSlices, rank: int, parent: int, uuid: int) -> Iterator[bytes]:
    """The iterations of a rank, each from its first slice on to that of the next."""
    yield track(uuid, "iterations", parent, 0)
    yield upon(uuid)
    mine = np.arange(*np.searchsorted(made.track, [rank * _TRACKS, (rank + 1) * _TRACKS]))
    iteration = timeline.slices.iteration[made.rows[mine]]
    which = np.unique(iteration).tolist()
    starts = [int(made.start[mine[iteration == n]].min()) for n in which]
    ends = [*starts[1:], int(made.end[mine].max(initial=0))]
    for n, since, start, end in zip(which, [0, *ends], starts, ends, strict=False):
        begin = message((Event.type, Type.begin), (23, f"iteration {n}"))
        yield packet((Packet.timestamp, start - since), (Packet.event, begin))
        yield packet((Packet.timestamp, end - start), (Packet.event, message((Event.type, Type.end))))


def _slices(timeline: Timeline, made: _VisibleSlices, which: slice, since: int) -> bytes:
    """Slices of one track, each with its beginning and its end; ``since``: the end of the one before them."""
    s, rows = timeline.slices, made.rows[which]

    def counted(column: NDArray, first: int = 0) -> NDArray[np.int64]:
        """A column of these slices, counted from ``first`` on; 0 for what is not known."""
        found = column[rows].astype(np.int64)
        found += first
        return np.maximum(found, 0, out=found)

    phase, module, pair = counted(s.phase, 1), counted(s.module, 1), counted(s.pair, 1)
    op, size, group = s.op[rows], counted(s.bytes), s.group[rows]
    moves = (size > 0) & (op != Op.COMPUTE) & (op != Op.ISSUE)
    event = [
        numbers(Event.title, counted(s.name, 1)),
        numbers(Event.category, phase, phase > 0),
        note(_ANNOTATIONS.index("module") + 1, Annotation.text, module, module > 0),
    ]
    if made.micro_batches:
        event.append(note(_ANNOTATIONS.index("micro_batch") + 1, Annotation.number, counted(s.micro_batch)))
    if timeline.iterations > 1:
        event.append(note(_ANNOTATIONS.index("iteration") + 1, Annotation.number, counted(s.iteration)))
    if moves.any():
        event.append(note(_ANNOTATIONS.index("bytes") + 1, Annotation.number, size, moves))
    if group.max() >= 0:
        ranks = np.append(np.diff(timeline.groups.offsets), 0)[group]
        event.append(note(_ANNOTATIONS.index("ranks") + 1, Annotation.number, ranks, group >= 0))
    if pair.any():
        arrival = op == Op.RECEIVE
        event.append(fixed(Event.flow, pair, (pair > 0) & ~arrival))
        event.append(fixed(Event.flow_end, pair, (pair > 0) & arrival))
    return slices(made.start[which], made.end[which], event, since)


def _counters(timeline: Timeline, rank: int, parent: int, numbered: Iterator[int]) -> Iterator[bytes]:
    """What is held and drawn, for ranks of which that is known."""
    for held in timeline.memory:
        used = np.flatnonzero(held.bytes.any(axis=0)).tolist() if held.rank == rank else []
        for column in used:
            uuid = next(numbered)
            yield track(uuid, f"memory: {CATEGORIES[column]}", parent, 100_000 + column, unit="B")
            yield upon(uuid)
            yield counter(held.time, held.bytes[:, column])
    for drawn in timeline.power:
        if drawn.rank == rank and len(drawn.time):
            uuid = next(numbered)
            yield track(uuid, "power", parent, 200_000, unit="W")
            yield upon(uuid)
            yield counter(drawn.time, drawn.watts)
