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
    from triosim.sources.readers._profile import EventTable, ProfileEvents
except ImportError:  # there was no compiler when TrioSim was installed
    ProfileEvents = None  # type: ignore[assignment,misc]

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class EventIndex:
    """The events of a file that count.

    A table has a row for each event of one kind, in the order of the file: ``offset`` and ``length`` of its text,
    ``start`` (ns) and ``name``, a row of ``names``.  The columns are packed, a dozen bytes an event; each access to
    one unpacks it.

    Attributes:
        path: the file.
        names: all names that occur.
        calls: of operators, and annotations; with ``shaped``, 1 where the shapes of inputs were recorded, and
            ``function``, "Record function id" or -1, empty where it was not asked for.
        launches: calls of the device's runtime, with ``duration`` (ns) and ``correlation``, -1 for none.
        works: what ran on a device, with the same and ``device`` and ``stream``.
        modules: with ``duration``.
        launch: the row of the launch of each work, -1 for none.
        parts: what else the file holds, by key: offset and length of ``"key": value``.
        skipped: bytes before what offsets count from.
    """

    path: Path
    names: tuple[str, ...]
    calls: EventTable
    launches: EventTable
    works: EventTable
    modules: EventTable
    launch: NDArray[np.int32]
    parts: tuple[tuple[int, int], ...]
    skipped: int

    def top(self, keys: Sequence[str]) -> dict[str, Any]:
        """The values under some keys of the file."""
        starts = tuple(f'"{key}"'.encode() for key in keys)
        places = [(self.skipped + offset, length) for offset, length in self.parts]
        found = [text for text in guarded.slices(self.path, places) if text.startswith(starts)]
        return dict(self._json(b"{" + b",".join(found) + b"}"))

    def events(self, *rows: tuple[EventTable, NDArray[np.bool_]]) -> list[dict[str, Any]]:
        """The rows of some tables that are marked, as the file has them and in its order; fractions are texts."""
        offset = np.concatenate([table.offset[kept] for table, kept in rows]) + self.skipped
        length = np.concatenate([table.length[kept] for table, kept in rows])
        order = np.argsort(offset)
        places = zip(offset[order].tolist(), length[order].tolist(), strict=True)
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
        names=_names(found.names, path),
        calls=found.calls,
        launches=found.launches,
        works=found.works,
        modules=found.modules,
        launch=found.launch_of_works(),
        parts=tuple(found.parts),
        skipped=skipped,
    )


def _names(names: Sequence[bytes], path: Path) -> tuple[str, ...]:
    text = b'["' + b'","'.join(names) + b'"]' if names else b"[]"
    return tuple(guarded.parse_json(guarded.text(text, str(path), errors="replace"), str(path), lenient=True))
