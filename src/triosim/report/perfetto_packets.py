"""What Perfetto's binary form is made of: tracks, slices on them, counters, and texts that are named by number.

Fields are those of Perfetto's ``TracePacket``, ``TrackEvent`` and ``ClockSnapshot`` (``protos/perfetto/trace`` of its
repository).  Times are nanoseconds.  On a track each is written as what has passed since the one before, which takes a
byte or two where a time takes five: a clock of the packets' sequence that counts so, and is set to 0 where a track
begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from triosim.core.units import MOST_SUM, picoseconds
from triosim.report.protobuf import Rows, constant, fixed, joined, message, nested, numbers

_TRACE_PACKET = 1  # of the file
_SEQUENCE = 1
_STATE_CLEARED = 1
_BOOT_TIME, _SINCE_LAST = 6, 64  # clocks: the file's own, and that of the sequence, numbered from 64 to 127
_EXPLICIT = 3  # order of tracks


class Packet(IntEnum):
    """Fields of a packet."""

    clocks, timestamp, sequence, event, interned, flags, clock, defaults, track = 6, 8, 10, 11, 12, 13, 58, 59, 60


class Event(IntEnum):
    """Fields of what happens on a track."""

    category, annotation, type, title, track, counter, double_counter, flow, flow_end = 3, 4, 9, 10, 11, 30, 44, 47, 48


class Type(IntEnum):
    """Of what happens on a track."""

    begin, end, counter = 1, 2, 4


class _Clock(IntEnum):
    number, time, incremental = 1, 2, 3


class _Interned(IntEnum):
    category, title, annotation_name, text = 1, 2, 3, 29


class Annotation(IntEnum):
    """Fields of a note on a slice."""

    title, number, text = 1, 3, 17


class _Track(IntEnum):
    uuid, title, parent, counter, ordering, place = 1, 2, 5, 8, 11, 12


_AT_ZERO = message(
    (1, message((_Clock.number, _BOOT_TIME), (_Clock.time, 0))),
    (1, message((_Clock.number, _SINCE_LAST), (_Clock.time, 0), (_Clock.incremental, 1))),
)
"""Both clocks at 0.  Perfetto counts from there again, as often as that is said."""


def packet(*fields: tuple[int, int | str | bytes]) -> bytes:
    """One packet of the file."""
    return message((_TRACE_PACKET, message(*fields, (Packet.sequence, _SEQUENCE))))


def strings(
    titles: Sequence[str], categories: Sequence[str], annotations: Sequence[str], texts: Sequence[str]
) -> bytes:
    """All texts that slices name by their places here, from 1."""
    kinds = (
        (_Interned.category, categories), (_Interned.title, titles), (_Interned.annotation_name, annotations),
        (_Interned.text, texts),
    )  # fmt: skip
    parts = b"".join(
        message((kind, message((1, at), (2, text)))) for kind, found in kinds for at, text in enumerate(found, start=1)
    )
    return packet((Packet.flags, _STATE_CLEARED), (Packet.interned, parts))


def track(uuid: int, name: str, parent: int = 0, place: int = 0, explicit: bool = False, unit: str = "") -> bytes:
    """A track, or a group of tracks.

    Args:
        uuid: its number, from 1.
        name: that is shown.
        parent: number of the group that it is in, 0 for none.
        place: among those of its group.
        explicit: whether those in it are in the order of their places.
        unit: of a counter; a track of slices has none.
    """
    fields: list[tuple[int, int | str | bytes]] = [(_Track.uuid, uuid), (_Track.title, name)]
    fields += [(_Track.parent, parent)] if parent else []
    fields += [(_Track.counter, message((6, unit)))] if unit else []
    fields += [(_Track.ordering, _EXPLICIT)] if explicit else []
    return packet((Packet.track, message(*fields, (_Track.place, place))))


def upon(uuid: int) -> bytes:
    """What follows is on this track, from time 0 on."""
    defaults = message((Packet.event, message((Event.track, uuid))), (Packet.clock, _SINCE_LAST))
    return packet((Packet.defaults, defaults), (Packet.clocks, _AT_ZERO))


def slices(start: NDArray[np.int64], end: NDArray[np.int64], event: Sequence[Rows], since: int = 0) -> bytes:
    """Slices of one track, each with its beginning, of which ``event`` says more, and its end.

    Args:
        start, end: of each; none begins before the one before it ends.
        event: what else is known of them.
        since: end of the slice before the first.
    """
    many = len(start)
    begin = nested(
        _TRACE_PACKET,
        numbers(Packet.timestamp, start - np.append(since, end[:-1])),
        constant(Packet.sequence, _SEQUENCE, many),
        nested(Packet.event, constant(Event.type, Type.begin, many), *event),
    )
    ends = nested(
        _TRACE_PACKET,
        numbers(Packet.timestamp, end - start),
        constant(Packet.sequence, _SEQUENCE, many),
        nested(Packet.event, constant(Event.type, Type.end, many)),
    )
    return joined(begin, ends).tobytes()


def note(name: int, kind: int, values: NDArray[np.integer], where: NDArray[np.bool_] | None = None) -> Rows:
    """A note on slices, whose name has been given a number.

    Args:
        name: number of its name.
        kind: whether values are numbers or stand for texts, a field of :class:`Annotation`.
        values: of each slice.
        where: slices that have it, None for all.
    """
    named = constant(Annotation.title, name, len(values))
    return nested(Event.annotation, named, numbers(kind, values), where=where)


def counter(time: NDArray[np.float64], values: NDArray[np.int64] | NDArray[np.float64]) -> bytes:
    """A track's values, each from a time (s) on, ascending; what stays as it is needs no event, and none a
    track without values."""
    if not len(time):
        return b""
    when = (picoseconds(time, "a time of the timeline", MOST_SUM) + 500) // 1000
    last = np.append(when[1:] != when[:-1], True)  # of several changes at one instant the last holds
    when, values = when[last], values[last]
    changed = np.append(True, values[1:] != values[:-1])
    when, values = when[changed], values[changed]
    whole = values.dtype.kind != "f"
    value = numbers(Event.counter, values) if whole else fixed(Event.double_counter, values)
    event = nested(Packet.event, constant(Event.type, Type.counter, len(when)), value)
    number = constant(Packet.sequence, _SEQUENCE, len(when))
    return nested(_TRACE_PACKET, numbers(Packet.timestamp, np.diff(when, prepend=0)), number, event).tobytes()
