"""Many protobuf messages of one shape at once: their fields as columns, written by NumPy.

A message is a row of bytes; a field that a row lacks, and the bytes that a shorter number does not need, are left out.
Wire format: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

VARINT, FIXED64, LENGTH = 0, 1, 2
"""Wire types."""


@dataclass(frozen=True)
class Rows:
    """Fields of many messages.

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


def numbers(field: int, values: ArrayLike, where: NDArray[np.bool_] | None = None) -> Rows:
    """A field that is a whole number of at most 63 bits, not below 0, of those messages that have it."""
    return _tagged(field, VARINT, _varints(np.asarray(values)), where)


def fixed(field: int, values: ArrayLike, where: NDArray[np.bool_] | None = None) -> Rows:
    """A field of eight bytes: a ``fixed64``, or a ``double`` where the values are floating-point numbers."""
    column = np.asarray(values)
    column = column.astype("<f8" if column.dtype.kind == "f" else "<u8")
    made = np.ascontiguousarray(column).view(np.uint8).reshape(len(column), 8)
    return _tagged(field, FIXED64, Rows(((made, None),), np.full(len(made), 8)), where)


def constant(field: int, value: int, messages: int) -> Rows:
    """A field that is the same small number everywhere."""
    return _same(tag(field, VARINT) + varint(value), messages)


def nested(field: int, *fields: Rows, where: NDArray[np.bool_] | None = None) -> Rows:
    """A field that is a message, with the fields it is made of."""
    inner = joined(*fields)
    return _tagged(field, LENGTH, joined(_varints(inner.length), inner), where)


def joined(*fields: Rows) -> Rows:
    """Fields one after another."""
    length = fields[0].length.copy()
    for rows in fields[1:]:
        length += rows.length
    return Rows(tuple(part for rows in fields for part in rows.parts), length)


def _varints(values: NDArray[np.integer]) -> Rows:
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
    return Rows(((made, used if width > 1 else None),), length)


def _same(text: bytes, messages: int) -> Rows:
    made = np.broadcast_to(np.frombuffer(text, np.uint8), (messages, len(text)))
    return Rows(((made, None),), np.full(messages, len(text)))


def _tagged(field: int, wire: int, value: Rows, where: NDArray[np.bool_] | None) -> Rows:
    head = tag(field, wire)
    parts = (*_same(head, len(value.length)).parts, *value.parts)
    length = value.length + len(head)
    if where is None:
        return Rows(parts, length)
    mask = where[:, None]
    return Rows(tuple((made, mask if some is None else some & mask) for made, some in parts), length * where)


# --- one message -----------------------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    """A whole number, 0 or more."""
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)


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
