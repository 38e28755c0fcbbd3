"""The footer of a Parquet file, held against what PyArrow says of sound ones."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from triosim.trace.footer import chunks


def parquet(**options: object) -> bytes:
    table = pa.table({"a": range(1000), "b": [[1, 2, 3]] * 1000, "c": ["text"] * 1000, "d": [None, 0.5] * 500})
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


OPTIONS = {
    "as it is": {},
    "many groups": {"row_group_size": 40},
    "no statistics": {"write_statistics": False},
    "an index of pages": {"write_page_index": True, "compression": "zstd"},
    "old": {"version": "1.0", "use_dictionary": False},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_it_says_what_pyarrow_says(options: dict[str, object]) -> None:
    raw = parquet(**options)
    known = pq.ParquetFile(pa.BufferReader(raw)).metadata
    columns = [known.row_group(g).column(c) for g in range(known.num_row_groups) for c in range(known.num_columns)]
    found = chunks(raw)
    assert [chunk.column for chunk in found] == [column.path_in_schema.split(".")[0] for column in columns]
    assert [chunk.values for chunk in found] == [column.num_values for column in columns]
    assert [chunk.unpacked for chunk in found] == [column.total_uncompressed_size for column in columns]


def test_what_is_damaged_is_refused_or_read_but_nothing_else() -> None:
    raw = parquet(row_group_size=500)
    size = int.from_bytes(raw[-8:-4], "little")
    refused = []
    for at in range(len(raw) - 8 - size, len(raw)):
        for flip in (1, 8, 0x80, 0xFF):
            damaged = bytearray(raw)
            damaged[at] ^= flip
            try:
                chunks(bytes(damaged))
            except ValueError as error:
                refused.append(str(error))
    assert len(refused) > size
    assert all("footer" in message for message in refused)
    for short in (b"", raw[:7], raw[-8:], raw[: len(raw) // 2]):
        with pytest.raises(ValueError, match="footer is missing"):
            chunks(short)


def test_nesting_and_counts_cost_nothing() -> None:
    def file(footer: bytes) -> bytes:
        return b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"

    with pytest.raises(ValueError, match="nested too deeply"):
        chunks(file(b"\x1c" * 5000))
    with pytest.raises(ValueError, match="nested too deeply"):
        chunks(file(b"\x49" + b"\x19" * 5000))
    with pytest.raises(ValueError, match="ends too early"):
        chunks(file(b"\x49\xfc" + b"\xff" * 4 + b"\x0f"))  # four billion row groups
    with pytest.raises(ValueError, match="more than 64 bits"):
        chunks(file(b"\x16" + b"\xff" * 20))
