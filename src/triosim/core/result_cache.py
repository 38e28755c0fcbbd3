"""Cache of the last results of slow functions, under keys that say what they depend on."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass
from threading import Lock
from typing import Generic, TypeVar

import numpy as np

R = TypeVar("R")

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
    if is_dataclass(value) and not isinstance(value, type):
        return (type(value), *(content(getattr(value, field.name)) for field in fields(value)))
    if isinstance(value, (list, tuple)):
        return (type(value), *map(content, value))
    if isinstance(value, dict):
        return (dict, *((content(name), content(item)) for name, item in value.items()))
    return (type(value), value)
