"""What the end of a Parquet file says of its columns: how many values, and how many bytes they take unpacked.

PyArrow asks for them in a way that ends the whole process where the statistics of a column are damaged (its
``RowGroupMetaData.column``), so this little of them is read here: FileMetaData of the Apache Parquet format
(``parquet.thrift``), in the compact protocol of Apache Thrift.
"""

from __future__ import annotations

from typing import Any

from triosim.core.dataclass import dataclass

MOST_BYTES = 8 << 20
"""Of a footer: two billion rows of ten columns have one of a tenth of this."""

_DEPTH = 32
_FIXED = {3: 1, 7: 8, 13: 16}  # byte, double, UUID
_TRUE, _FALSE, _INTEGERS, _BINARY, _LISTS, _MAP, _STRUCT = 1, 2, (4, 5, 6), 8, (9, 10), 11, 12
_ROW_GROUPS, _COLUMNS, _ROWS, _DATA, _PATH, _VALUES, _UNPACKED = 4, 1, 3, 3, 3, 5, 6  # numbers of fields


@dataclass(frozen=True)
class ColumnChunk:
    """A column within a row group.

    Attributes:
        column: name of the column; of a list, that of the list.
        values: how many, at least the rows of the group.
        unpacked: bytes that they take unpacked, as they are encoded.
    """

    column: str
    values: int
    unpacked: int


def chunks(file: bytes) -> list[ColumnChunk]:
    """The column chunks of a Parquet file.

    Raises:
        ValueError: the end of the file makes no sense.
    """
    size = int.from_bytes(file[-8:-4], "little")
    if file[-4:] != b"PAR1" or not 0 < size <= min(MOST_BYTES, len(file) - 8):
        raise ValueError("its footer is missing")
    fields = _Compact(file[-8 - size : -8]).struct(0)
    found = []
    for group in _list(fields.get(_ROW_GROUPS)):
        rows = _whole(_struct(group).get(_ROWS))
        for chunk in _list(_struct(group).get(_COLUMNS)):
            data = _struct(_struct(chunk).get(_DATA))
            path = _list(data.get(_PATH))
            if not path or not isinstance(path[0], bytes):
                raise ValueError("its footer describes a column without a name")
            values, unpacked = max(_whole(data.get(_VALUES)), rows), _whole(data.get(_UNPACKED))
            found.append(ColumnChunk(path[0].decode(errors="replace"), values, unpacked))
    return found


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise ValueError("its footer does not say how much there is")
    return max(value, 0)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _struct(value: Any) -> dict[int, Any]:
    return value if isinstance(value, dict) else {}


class _Compact:
    """Values of the compact protocol: integers, bytes, lists and structs (field number to value); the rest is None."""

    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 0

    def struct(self, depth: int) -> dict[int, Any]:
        if depth > _DEPTH:
            raise ValueError("its footer is nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while head := self._take(1)[0]:
            number = number + (head >> 4) if head >> 4 else self._signed()
            kind = head & 15
            fields[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in _INTEGERS:
            return self._signed()
        if kind == _BINARY:
            return self._take(self._varint())
        if kind in _FIXED:
            self._take(_FIXED[kind])
            return None
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in _LISTS:
            head = self._take(1)[0]
            return self._values(self._varint() if head >> 4 == 15 else head >> 4, (head & 15,), depth)
        if kind == _MAP:
            count = self._varint()
            kinds = self._take(1)[0] if count else 0
            self._values(count, (kinds >> 4, kinds & 15), depth)
            return None
        raise ValueError(f"its footer has a value of kind {kind}")

    def _values(self, count: int, kinds: tuple[int, ...], depth: int) -> list[Any]:
        if count > len(self.raw) - self.at:  # each takes a byte at least
            raise ValueError("its footer ends too early")
        return [self._element(kind, depth) for _ in range(count) for kind in kinds]

    def _element(self, kind: int, depth: int) -> Any:
        if depth > _DEPTH:
            raise ValueError("its footer is nested too deeply")
        return self._take(1)[0] == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth + 1)

    def _take(self, size: int) -> bytes:
        taken = self.raw[self.at : self.at + size]
        if len(taken) < size:
            raise ValueError("its footer ends too early")
        self.at += size
        return taken

    def _varint(self) -> int:
        value = shift = 0
        while shift < 70:
            byte = self._take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise ValueError("its footer has a number of more than 64 bits")

    def _signed(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)
