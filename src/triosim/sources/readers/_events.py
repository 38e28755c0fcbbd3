"""Where the events of a large profile lie in its file, so that only those of one step need to be taken apart.

The file is gone through once, piece by piece, by native code that checks it to be JSON and keeps of each event that
counts where it lies and the few numbers by which a step is chosen; then the events of the step are read again.  What is
not as profilers write it (other forms of numbers, damaged text, events without times) is left to the reader of whole
files, which knows all of that and says what is wrong; so is everything where there is no native code.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core import guarded
from triosim.core.dataclass import dataclass

try:
    from triosim.sources.readers._profile import ProfileEvents
except ImportError:  # there was no compiler when TrioSim was installed
    ProfileEvents = None  # type: ignore[assignment,misc]

CALL, WORK, LAUNCH, MODULE, SHAPED = range(5)
"""Kinds of events: a call of an operator or an annotation, something on a device, a call of the device's runtime, a
module, a call that was recorded with the shapes of its inputs."""

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class EventIndex:
    """The events of a file that count, in its order.

    Attributes:
        path: the file.
        offset, length: where each lies in the (decompressed) file, bytes.
        start: when each began, ns.
        kind: what each is.
        name: row of ``names``.
        names: all names that occur.
        others: rows of all but calls; ``duration`` (ns) and ``correlation`` are of these.
        works: rows of what ran on a device; ``device`` and ``stream`` are of these.
        function: "Record function id" of each call, -1 for none; empty where it was not asked for.
        parts: what else the file holds, by key: offset and length of ``"key": value``.
    """

    path: Path
    offset: NDArray[np.int64]
    length: NDArray[np.int32]
    start: NDArray[np.int64]
    kind: NDArray[np.uint8]
    name: NDArray[np.int32]
    names: tuple[str, ...]
    others: NDArray[np.int64]
    duration: NDArray[np.int64]
    correlation: NDArray[np.int64]
    works: NDArray[np.int64]
    device: NDArray[np.int64]
    stream: NDArray[np.int64]
    function: NDArray[np.int64]
    parts: tuple[tuple[int, int], ...]

    def top(self, keys: Sequence[str]) -> dict[str, Any]:
        """The values under some keys of the file."""
        starts = tuple(f'"{key}"'.encode() for key in keys)
        found = [text for text in guarded.slices(self.path, self.parts) if text.startswith(starts)]
        return dict(self._json(b"{" + b",".join(found) + b"}"))

    def events(self, rows: NDArray[np.int64]) -> list[dict[str, Any]]:
        """Some events as the file has them, in the order of ``rows``, which ascend; fractions are texts."""
        places = zip(self.offset[rows].tolist(), self.length[rows].tolist(), strict=True)
        return list(self._json(b"[" + b",".join(guarded.slices(self.path, places)) + b"]"))

    def _json(self, text: bytes) -> Any:
        source = guarded.text(text, str(self.path), errors="replace")
        return guarded.parse_json(source, str(self.path), parse_float=str, lenient=True)


def index(path: Path, functions: bool) -> EventIndex | None:
    """The index of a profile, None where it has to be read as a whole.

    Args:
        path: the file, plain or gzip.
        functions: whether ``function`` is wanted.

    Raises:
        InputError: unreadable, or a damaged gzip file.
    """
    if ProfileEvents is None:
        return None
    found, skipped = ProfileEvents(functions), 0
    waiting, size, enough = [], 0, 1
    for at, piece in enumerate(guarded.pieces(path)):
        if at == 0 and piece.startswith(_BOM):
            piece, skipped = piece[len(_BOM) :], len(_BOM)
        waiting.append(piece)
        size += len(piece)
        if size >= enough:
            text = b"".join(waiting)
            waiting = [text[found.feed(text, False) :]]
            size = len(waiting[0])
            enough = 2 * size  # what is longer than a piece is not begun again with every one
            if found.odd:
                return None
    found.feed(b"".join(waiting), True)
    if found.odd:
        return None
    return EventIndex(
        path=path,
        offset=found.offset + skipped if skipped else found.offset,
        length=found.length,
        start=found.start,
        kind=found.kind,
        name=found.name,
        names=_names(found.names, path),
        others=np.flatnonzero((found.kind != CALL) & (found.kind != SHAPED)),
        duration=found.duration,
        correlation=found.correlation,
        works=np.flatnonzero(found.kind == WORK),
        device=found.device,
        stream=found.stream,
        function=found.function,
        parts=tuple((offset + skipped, length) for offset, length in found.parts),
    )


def _names(names: Sequence[bytes], path: Path) -> tuple[str, ...]:
    text = b'["' + b'","'.join(names) + b'"]' if names else b"[]"
    return tuple(guarded.parse_json(guarded.text(text, str(path), errors="replace"), str(path), lenient=True))
