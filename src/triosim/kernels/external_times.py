"""External times: what simulators and profilers found of kernels and operators, as one table.

``read(path)`` takes the file that another tool wrote, finds the one reader that recognises its content and returns the
times in it.  A reader is one file in ``triosim/kernels/external``; other packages add theirs through the entry-point
group ``triosim.external``.  Which operators of a trace the times belong to is decided in
:mod:`triosim.kernels.matching`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.core import guarded
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, no_such_file, quoted
from triosim.core.guarded import INTEGERS
from triosim.core.registry import Registry
from triosim.sources.readers._files import content, describe

SIDES = ("", "forward", "backward")
"""Which pass a row is of: not said, forward, backward."""


class Granularity(IntEnum):
    """What one row gives the time of."""

    KERNEL = 0
    """One launch of a kernel, or the mean of several."""
    OPERATOR = 1
    """One call of an operator."""
    MODULE = 2
    """All operators of one module in one pass together."""
    REGION = 3
    """A stretch of a simulation that only a mapping file or the order can give to an operator."""


@dataclass(frozen=True)
class ExternalTimes:
    """Times that another tool found, one row each in the order of its file.

    Attributes:
        source: what the file is, in the words of its reader, and its path.
        what: of what the rows are.
        name: kernel, operator, module or region.
        module: module path of each row, ``""`` where the file has none.
        side: index into :data:`SIDES`, int8.
        launches: how many the row is the mean of, int64.
        seconds: of one launch; NaN where it did not finish.
        elements: elements of the output, 0 where the file does not say.
        notes: what a reader of the prediction should know.
    """

    source: str
    what: Granularity
    name: tuple[str, ...]
    module: tuple[str, ...]
    side: NDArray[np.int8]
    launches: NDArray[np.int64]
    seconds: NDArray[np.float64]
    elements: NDArray[np.int64]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.name)


class ExternalRow(NamedTuple):
    """One row of :class:`ExternalTimes`."""

    name: str
    seconds: float
    launches: int = 1
    module: str = ""
    side: str = ""
    elements: int = 0


def table(source: str, what: Granularity, rows: Iterable[ExternalRow], notes: Iterable[str] = ()) -> ExternalTimes:
    """Rows as columns.

    Raises:
        InputError: a number of launches or elements needs more than 64 bits.
    """
    rows = list(rows)
    for row in rows:
        if row.launches not in INTEGERS or row.elements not in INTEGERS:
            number = quoted(row.elements if row.launches in INTEGERS else row.launches)
            raise InputError(f"{source}: {quoted(row.name)} counts {number}, more than 64 bits hold: write it again")
    return ExternalTimes(
        source=source,
        what=what,
        name=tuple(row.name for row in rows),
        module=tuple(row.module for row in rows),
        side=np.array([SIDES.index(row.side) for row in rows], np.int8),
        launches=np.array([row.launches for row in rows], np.int64),
        seconds=np.array([row.seconds for row in rows], np.float64),
        elements=np.array([row.elements for row in rows], np.int64),
        notes=tuple(notes),
    )


class ClockRates(NamedTuple):
    """Frequencies in Hz that turn cycles into seconds, each None where not known.

    The first of these counts: what the user said, what the file says, what the device's datasheet says.
    """

    given: float | None = None
    device: float | None = None


UNKNOWN_CLOCK = ClockRates()


class ExternalReader(ABC):
    """Reads one format.  One subclass a file in ``kernels/external``.

    Attributes:
        title: what the format is, in the words of an error message.
    """

    title: ClassVar[str]

    @abstractmethod
    def recognises(self, text: str) -> bool:
        """Whether a file with this content is of this format; never raises, never judges by the file's name."""

    @abstractmethod
    def read(self, path: Path, text: str, clock: ClockRates) -> ExternalTimes:
        """The times in a file that :meth:`recognises` accepted.

        Args:
            path: of the file, for messages.
            text: its content.
            clock: what cycles are counted with, where the format counts cycles.

        Raises:
            InputError: the content is broken or holds no times.
        """


READERS = Registry("triosim.kernels.external", "triosim.external", "reader of external times", ExternalReader)
"""Readers of external times by name."""


def read(path: Path, clock: ClockRates = UNKNOWN_CLOCK) -> ExternalTimes:
    """The times in a file of any known format, plain or gzipped.

    Raises:
        InputError: there is no such file, nothing reads it, more than one reader could, or it is broken.
    """
    if not os.path.exists(path):
        raise InputError(f"external times: {no_such_file(path)}")
    if os.path.isdir(path):
        raise InputError(f"external times: {path} is a folder; give the file in it that holds the times")
    text = guarded.text(content(path), str(path), errors="replace")
    readers = [READERS.get(name)() for name in READERS.names()]
    found = [reader for reader in readers if reader.recognises(text)]
    if len(found) != 1:
        known = ", ".join(reader.title for reader in found or readers)
        looks = "could be any of" if found else f"{describe(path)}, which no reader of external times takes; give"
        raise InputError(f"{path} {looks} {known}")
    made = found[0].read(path, text, clock)
    if not len(made):
        raise InputError(f"{path} ({made.source}) holds no times; run the tool again until it has written them")
    bad = np.flatnonzero((made.seconds < 0) | np.isinf(made.seconds))
    if bad.size:
        row = int(bad[0])
        raise InputError(f"{path}: row {row} ({made.name[row]}) takes {made.seconds[row]} s; correct it")
    return made
