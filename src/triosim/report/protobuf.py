"""Many protobuf messages of one shape at once: their fields as columns.

They are written in C++ where a compiler was when TrioSim was installed, else by NumPy, to the same bytes.  For NumPy a
message is a row of bytes; a field that a row lacks, and the bytes that a shorter number does not need, are left out.
Wire format: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triosim.core.dataclass import dataclass

_native: Any
try:
    from triosim.report import _rows as _native
except ImportError:  # there was no compiler when TrioSim was installed
    _native = None

VARINT, FIXED64, LENGTH = 0, 1, 2
"""Wire types."""


_NUMBER, _FIXED, _NESTED, _SAME = range(4)
"""Kinds of fields, as native/message_rows.hpp numbers them."""


@dataclass(frozen=True)
class _Field:
    """One field of many messages.

    Attributes:
        kind: a kind of field.
        head: its tag; all of it where it is the same everywhere.
        values: of a number or of eight bytes, shape (messages,).
        inner: the fields of a message.
        where: which messages have it, None for all.
    """

    kind: int
    head: bytes
    values: NDArray[np.int64] | None = None
    inner: tuple[_Field, ...] = ()
    where: NDArray[np.bool_] | None = None

    def plain(self) -> tuple[object, ...]:
        """It as C++ takes it."""
        where = None if self.where is None else np.ascontiguousarray(self.where).view(np.uint8)
        return self.kind, self.head, self.values, where, tuple(field.plain() for field in self.inner)

    def spread(self, messages: int) -> _Spread:
        """It as rows of bytes."""
        head = _same(self.head, messages)
        if self.values is not None:
            head = _after(head, _eight(self.values) if self.kind == _FIXED else _varints(self.values))
        elif self.kind == _NESTED:
            inner = _after(*(field.spread(messages) for field in self.inner))
            head = _after(head, _varints(inner.length), inner)
        return head if self.where is None else head.only(self.where)


@dataclass(frozen=True)
class Rows:
    """Fields of many messages, one after another."""

    fields: tuple[_Field, ...]
    messages: int

    def tobytes(self) -> bytes:
        """All messages, one after another."""
        if _native is not None:
            return bytes(_native.messages(tuple(field.plain() for field in self.fields), self.messages))
        return _after(*(field.spread(self.messages) for field in self.fields)).tobytes()


def numbers(field: int, values: ArrayLike, where: NDArray[np.bool_] | None = None) -> Rows:
    """A field that is a whole number of at most 63 bits, not below 0, of those messages that have it."""
    column = np.ascontiguousarray(values, np.int64)
    return Rows((_Field(_NUMBER, tag(field, VARINT), column, where=where),), len(column))


def fixed(field: int, values: ArrayLike, where: NDArray[np.bool_] | None = None) -> Rows:
    """A field of eight bytes: a ``fixed64``, or a ``double`` where the values are floating-point numbers."""
    column = np.asarray(values)
    column = np.ascontiguousarray(column, np.float64 if column.dtype.kind == "f" else np.int64).view(np.int64)
    return Rows((_Field(_FIXED, tag(field, FIXED64), column, where=where),), len(column))


def constant(field: int, value: int, messages: int) -> Rows:
    """A field that is the same small number everywhere."""
    return Rows((_Field(_SAME, tag(field, VARINT) + varint(value)),), messages)


def nested(field: int, *fields: Rows, where: NDArray[np.bool_] | None = None) -> Rows:
    """A field that is a message, with the fields it is made of."""
    inner = joined(*fields)
    return Rows((_Field(_NESTED, tag(field, LENGTH), None, inner.fields, where),), inner.messages)


def joined(*fields: Rows) -> Rows:
    """Fields one after another."""
    return Rows(tuple(field for rows in fields for field in rows.fields), fields[0].messages)


# --- written by NumPy -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Spread:
    """Fields of many messages as bytes.

    Attributes:
        parts: the bytes of each, shape (messages, most bytes), and which of them a message has, of that shape or
            (messages, 1); None for all.
        length: bytes of each message.
    """

    parts: tuple[tuple[NDArray[np.uint8], NDArray[np.bool_] | None], ...]
    length: NDArray[np.int64]

    def tobytes(self) -> bytes:
        """All messages, one after another."""
        width = sum(made.shape[1] for made, _ in self.parts)
        text = np.empty((len(self.length), width), np.uint8)
        used = np.empty((len(self.length), width), np.bool_)
        at = 0
        for made, some in self.parts:
            until = at + made.shape[1]
            text[:, at:until] = made
            used[:, at:until] = True if some is None else some
            at = until
        return text[used].tobytes()

    def only(self, where: NDArray[np.bool_]) -> _Spread:
        """It in those messages, and nothing in the others."""
        mask = where[:, None]
        parts = tuple((made, mask if some is None else some & mask) for made, some in self.parts)
        return _Spread(parts, self.length * where)


def _after(*fields: _Spread) -> _Spread:
    """Fields one after another."""
    length = fields[0].length.copy()
    for rows in fields[1:]:
        length += rows.length
    return _Spread(tuple(part for rows in fields for part in rows.parts), length)


def _varints(values: NDArray[np.integer]) -> _Spread:
    rest = values.astype(np.uint64)
    width = max(-(-int(rest.max(initial=0)).bit_length() // 7), 1)
    made = np.empty((len(rest), width), np.uint8)
    used = np.ones((len(rest), width), np.bool_)
    length = np.ones(len(rest), np.int64)
    for at in range(width):
        made[:, at] = rest & np.uint64(127)
        rest = rest >> np.uint64(7)
        if at + 1 < width:
            used[:, at + 1] = more = rest > 0
            made[:, at] |= more.view(np.uint8) << 7
            length += more
    return _Spread(((made, used if width > 1 else None),), length)


def _eight(values: NDArray[np.int64]) -> _Spread:
    made = values.astype("<i8").view(np.uint8).reshape(len(values), 8)
    return _Spread(((made, None),), np.full(len(made), 8))


def _same(text: bytes, messages: int) -> _Spread:
    made = np.broadcast_to(np.frombuffer(text, np.uint8), (messages, len(text)))
    return _Spread(((made, None),), np.full(messages, len(text)))


# --- one message -----------------------------------------------------------------------------------------------------


_SHORT = tuple(bytes([value]) for value in range(128))


def varint(value: int) -> bytes:
    """A whole number, 0 or more."""
    if value < 128:
        return _SHORT[value]
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)


@functools.cache
def tag(field: int, wire: int) -> bytes:
    """What stands before a field."""
    return varint(field << 3 | wire)


def message(*fields: tuple[int, int | str | bytes]) -> bytes:
    """A message of numbers, texts and other messages."""
    made = b""
    for field, value in fields:
        if isinstance(value, int):
            made += tag(field, VARINT) + varint(value)
        else:
            text = value.encode("utf-8", errors="replace") if isinstance(value, str) else value
            made += tag(field, LENGTH) + varint(len(text)) + text
    return made
