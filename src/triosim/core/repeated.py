"""Sets of columns that come again: what was worked out of one holds for its equals.

Large columns are compared, and not digested: that reads them at the speed of memory, and nothing can be mistaken.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Columns = Sequence[NDArray[Any]]


class Repeated:
    """Numbers sets of columns from 0 on in the order in which they first come; equal ones have one number.

    Columns are of whole numbers or booleans, and must not change while they are known here: they are not copied.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, list[tuple[int, Columns]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def number(self, key: Hashable, columns: Columns) -> int:
        """The number of these columns; ``len()`` before the call if they are new.

        Args:
            key: what must be equal besides.
            columns: each of any length.
        """
        alike = self._known.setdefault((key, *map(_sum, columns)), [])
        for number, known in alike:
            if all(map(np.array_equal, columns, known)):
                return number
        alike.append((self._count, columns))
        self._count += 1
        return self._count - 1


def _sum(column: NDArray[Any]) -> tuple[int, int]:
    """What equal columns have in common, and others seldom; it may wrap around."""
    return len(column), int(np.count_nonzero(column) if column.dtype == np.bool_ else column.sum())
