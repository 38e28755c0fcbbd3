"""Exact identity: which value every tensor is.

Addresses are handed out again, Python ids too, so neither names a tensor.  A tensor and its *storage* are known by id
together with a weak reference: an id whose reference has died, or is another object, is new.  Nothing is kept alive.
A *value* is what a tensor held at one moment: a storage, how often that had been written, and where and in what form
the tensor lies in it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

NONE = -1

LARGE = 1 << 17
"""Bytes from which on the C library gets memory from the system and gives it back (glibc's ``M_MMAP_THRESHOLD``)."""


class LedgerValue(NamedTuple):
    """One row of the ledger.

    Attributes:
        storage: number of the allocation.
        version: how often it had been written.
        offset: first element within the storage.
        shape, stride: of the tensor.
        dtype: element type.
    """

    storage: int
    version: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class Ledger:
    """Numbers storages and values in the order in which they are met.

    Attributes:
        values: the values.
        born: for each storage the operator row that made it, or -1 if it was there before.
    """

    def __init__(self) -> None:
        self.values: list[LedgerValue] = []
        self.born: list[int] = []
        self._versions: list[int] = []
        self._storages: dict[int, tuple[weakref.ref, int]] = {}
        self._large: list[weakref.ref] = []
        self._tensors: dict[int, tuple[weakref.ref, int]] = {}
        self._forms: dict[LedgerValue, int] = {}

    def read(self, tensor: Tensor, row: int = NONE) -> int:
        """The value that ``tensor`` is now; a tensor never seen has been there since before ``row``."""
        return self._find(tensor, self._form(tensor, row))

    def wrote(self, tensor: Tensor) -> int:
        """The value that ``tensor`` is after an operator wrote to it: the next version of its storage."""
        self._versions[self.storage(tensor)] += 1
        return self._find(tensor, self._form(tensor, NONE))

    def made(self, tensor: Tensor, row: int) -> int:
        """The value of a tensor that operator ``row`` returned: a new one unless the very tensor is known already."""
        form = self._form(tensor, row)
        known = self._tensors.get(id(tensor))
        if known is not None and known[0]() is tensor and self.values[known[1]] == form:
            return known[1]
        return self._enter(tensor, form)

    def alias(self, tensor: Tensor, of: Tensor) -> None:
        """Say that ``tensor`` lies in the storage of ``of`` although the two name different ones.

        Under fake tensors a real weight is stood in for by a fake one with a storage of its own.
        """
        if self.known(tensor) == NONE:
            thing = _storage(tensor)
            self._storages[id(thing)] = (weakref.ref(thing), self.storage(of))

    def storage(self, tensor: Tensor, row: int = NONE) -> int:
        """Number of the storage of a tensor."""
        thing = _storage(tensor)
        key = id(thing)
        known = self._storages.get(key)
        if known is not None and known[0]() is thing:
            return known[1]
        number = self._open(row)
        self._storages[key] = (weakref.ref(thing), number)
        if row != NONE and isinstance(thing, torch.UntypedStorage) and thing.nbytes() >= LARGE:
            self._large.append(weakref.ref(thing))
        return number

    def known(self, tensor: Tensor) -> int:
        """Number of the storage of a tensor if it has been met, else -1."""
        thing = _storage(tensor)
        known = self._storages.get(id(thing))
        return known[1] if known is not None and known[0]() is thing else NONE

    def released(self) -> bool:
        """Whether a large storage that an operator made is gone since this was last asked."""
        alive = [reference for reference in self._large if reference() is not None]
        gone = len(alive) < len(self._large)
        self._large = alive
        return gone

    def _open(self, row: int) -> int:
        self._versions.append(0)
        self.born.append(row)
        return len(self._versions) - 1

    def _form(self, tensor: Tensor, row: int) -> LedgerValue:
        storage = self.storage(tensor, row)
        try:
            offset, stride = int(tensor.storage_offset()), tensor.stride()
        except (RuntimeError, NotImplementedError):
            offset, stride = 0, ()
        return LedgerValue(storage, self._versions[storage], offset, tuple(tensor.shape), stride, tensor.dtype)

    def _find(self, tensor: Tensor, form: LedgerValue) -> int:
        known = self._tensors.get(id(tensor))
        if known is not None and known[0]() is tensor and self.values[known[1]] == form:
            return known[1]
        # Autograd hands out saved results as new tensor objects on the same storage.
        value = self._forms.get(form)
        if value is None:
            return self._enter(tensor, form)
        self._tensors[id(tensor)] = (weakref.ref(tensor), value)
        return value

    def _enter(self, tensor: Tensor, form: LedgerValue) -> int:
        value = len(self.values)
        self.values.append(form)
        self._tensors[id(tensor)] = (weakref.ref(tensor), value)
        self._forms.setdefault(form, value)
        return value


def _storage(tensor: Tensor) -> Any:
    """The storage object of a tensor: the same object for all its views, as long as one of them lives.

    Sparse tensors and the like have no storage; the tensor itself stands for it.
    """
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return tensor


def parts(tensor: Tensor) -> Iterator[Tensor]:
    """The plain tensors that a wrapper (a distributed or quantised tensor) consists of; a plain tensor itself."""
    flatten: Any = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        yield tensor
        return
    for name in flatten()[0]:
        part = getattr(tensor, name)
        if isinstance(part, Tensor):  # a distributed tensor also lists its mesh
            yield from parts(part)
