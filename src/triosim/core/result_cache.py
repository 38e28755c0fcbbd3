"""Cache of the last results of slow functions, under keys that say what they depend on."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from threading import Lock
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import field_names

R = TypeVar("R")
Columns = Sequence[NDArray[Any]]

_DIGEST_BYTES = 20


class ResultCache(Generic[R]):
    """Least recently used cache of the last ``most`` results.

    Unlike :func:`triosim.core.caching.kept` it lets an old result go *before* it makes a new one, so that two that
    need much memory are never there at once, and does not keep what measures more than ``room``.

    Args:
        most: results.
        room: what one may measure to be kept.
        size: what a result measures.
    """

    def __init__(self, most: int, room: float, size: Callable[[R], float]) -> None:
        self.most, self.room, self.size = most, room, size
        self._results: OrderedDict[Hashable, R] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable, make: Callable[[], R]) -> R:
        """The result under a key, made if it is not there.  Exceptions are not kept."""
        with self._lock:
            if key in self._results:
                self._results.move_to_end(key)
                return self._results[key]
            while len(self._results) >= self.most:
                self._results.popitem(last=False)
        made = make()
        if self.size(made) <= self.room:
            with self._lock:
                self._results[key] = made
                while len(self._results) > self.most:
                    self._results.popitem(last=False)
        return made

    def forget(self) -> None:
        """Let all go."""
        with self._lock:
            self._results.clear()


def content(value: object) -> Hashable:
    """A key that is equal for what consists of equal things: columns count by what is in them, not by which they are.

    Columns are told apart by a digest of 160 bits.  What is neither a column, a dataclass nor a container must be
    hashable.
    """
    if isinstance(value, np.ndarray):
        column = np.ascontiguousarray(value)
        return (column.dtype.str, column.shape, hashlib.blake2b(column.data, digest_size=_DIGEST_BYTES).digest())
    kind: Any = type(value)
    names = field_names(kind)
    if names is not None:
        return (kind, *(content(getattr(value, name)) for name in names))
    if isinstance(value, (list, tuple)):
        return (type(value), *map(content, value))
    if isinstance(value, dict):
        return (dict, *((content(name), content(item)) for name, item in value.items()))
    return (type(value), value)


class Repeated:
    """Numbers sets of columns from 0 on in the order in which they first come; equal ones have one number.

    Large columns are compared, and not digested as by :func:`content`: that reads them at the speed of memory.  They
    are of whole numbers or booleans, and must not change while they are known here, for they are not copied.
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
