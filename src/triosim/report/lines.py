"""Writes many lines of text that differ in their whole numbers only: the rest of each kind of line is formatted once.

In C++ the same text is written many times faster, where a compiler was there when TrioSim was installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

_native: Any
try:
    from triosim.report import _rows as _native
except ImportError:  # there was no compiler when TrioSim was installed
    _native = None

BETWEEN = ",\n"
PIECE = 1 << 11
"""Lines that are put together at a time: about a megabyte, which stays close to the processor until it is written."""


class LineTemplates:
    """The forms of lines: texts with places for numbers, ``%d``, ``%06d``, or ``%.0s`` for one that is not shown.

    Args:
        make: from the numbers that tell a kind of line from others, its form.  It is asked once for each kind, and the
            form has a place for each number of a line; a percent sign of its own is ``%%``.
    """

    def __init__(self, make: Callable[..., str]) -> None:
        self._make = make
        self._native = None if _native is None else _native.Forms()
        self._forms: dict[tuple[int, ...], str] = {}

    def lines(self, keys: Sequence[NDArray], numbers: Sequence[NDArray]) -> Iterator[str]:
        """Lines with :data:`BETWEEN` between them, up to :data:`PIECE` at a time.

        Args:
            keys: columns of whole numbers, shape ``(lines,)`` each, that tell the kinds of lines apart.
            numbers: columns of the numbers in the lines, in the order of their places.
        """
        many = len((*keys, *numbers)[0])
        for first in range(0, many, PIECE):
            which = slice(first, first + PIECE)
            yield self._piece(tuple(key[which] for key in keys), tuple(column[which] for column in numbers))

    def _piece(self, keys: tuple[NDArray, ...], numbers: tuple[NDArray, ...]) -> str:
        if self._native is not None:
            of, put = (tuple(np.ascontiguousarray(c, np.int64) for c in columns) for columns in (keys, numbers))
            return str(self._native.lines(self._make, of, put, BETWEEN))
        kinds, rows = _rows_of(keys, numbers), _rows_of(numbers, keys)
        return BETWEEN.join([self._form(kind) % row for kind, row in zip(kinds, rows, strict=True)])

    def _form(self, kind: tuple[int, ...]) -> str:
        form = self._forms.get(kind)
        if form is None:
            form = self._forms[kind] = self._make(*kind)
        return form


def _rows_of(columns: tuple[NDArray, ...], others: tuple[NDArray, ...]) -> Iterator[tuple[int, ...]]:
    """Rows of columns; where there are none, empty ones, as many as the others have."""
    if not columns:
        return repeat((), len(others[0]))
    return zip(*(column.tolist() for column in columns), strict=True)
