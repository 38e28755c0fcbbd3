"""Traces on disk: one ``NAME.triosim`` file, readable without TrioSim in ten years.

The file is an uncompressed zip (fixed dates, so equal traces are equal bytes) that holds

* ``meta.json``: :class:`~triosim.trace.tables.Meta` (its ``schema`` is the name and version of this
  layout) and ``role_names``;
* one Parquet table each: ``operators``, ``values``, ``modules``, ``kernels``, ``communications``, whose columns
  are the attributes of the classes of those names in :mod:`triosim.trace.tables`; rows of different length
  are Parquet lists.

Nothing in the file is ever executed.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from triosim.core import guarded
from triosim.core.columns import Ragged
from triosim.core.errors import InputError, quoted
from triosim.core.limits import check_memory, check_unpacked
from triosim.core.outputs import binary_output
from triosim.trace.footer import chunks
from triosim.trace.tables import (
    NONE,
    SCHEMA,
    Communications,
    Kernels,
    Meta,
    Modules,
    Operators,
    Trace,
    Values,
    check,
)

if TYPE_CHECKING:
    import pyarrow as pa

_TEXT, _FLAG, _REAL = "text", "flag", "float64"
_LISTS = {"inputs": "int32", "roles": "int16", "outputs": "int32", "shape": "int64", "symbols": "uint8"}
_COLUMNS: dict[str, dict[str, str]] = {
    "operators": {
        "name": _TEXT, "phase": "int8", "module": "int32", "inputs": "list", "roles": "list", "outputs": "list",
        "args": _TEXT, "forward": "int32", "view": _FLAG, "sync": _FLAG, "device_s": _REAL, "host_s": _REAL,
        "flop": _REAL, "bytes": _REAL,
    },
    "values": {
        "storage": "int32", "version": "int32", "offset": "int64", "shape": "list", "dtype": "int8",
        "category": "int8", "of": "int32", "name": _TEXT, "symbols": "list",
    },
    "modules": {"path": _TEXT, "kind": _TEXT},
    "kernels": {"operator": "int32", "name": _TEXT, "device_s": _REAL, "stream": "int32"},
    "communications": {
        "name": _TEXT, "kind": _TEXT, "bytes": _REAL, "group_size": "int32", "device_s": _REAL, "operator": "int32",
        "needed": "int32", "stream": "int32", "host_s": _REAL,
    },
}  # fmt: skip
_ADDED: dict[tuple[str, str], float] = {
    ("communications", "operator"): NONE, ("communications", "needed"): NONE, ("communications", "stream"): NONE,
    ("communications", "host_s"): np.nan,
}  # fmt: skip
"""Columns that came later, and what they count as in files without them."""
_EPOCH = (1980, 1, 1, 0, 0, 0)


def save(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write ``trace`` to ``path``, whole or not at all; equal traces give equal bytes.

    Raises:
        InputError: the place cannot be written.
    """
    content = _pack(trace)
    with binary_output(path) as file:
        file.write(content)


def load(path: str | os.PathLike[str]) -> Trace:
    """Read a trace that :func:`save` wrote.

    Raises:
        InputError: not a trace file, damaged, of an unknown version, or with tables that contradict each other.
    """
    path = Path(path)
    members = guarded.unpacked(path, ["meta.json", *(f"{name}.parquet" for name in _COLUMNS)], "trace file")
    packed = sum(map(len, members.values()))
    meta, role_names = _meta(members["meta.json"], path)
    tables = {name: _table(members[f"{name}.parquet"], name, path, packed) for name in _COLUMNS}
    trace = Trace(
        meta=meta,
        operators=Operators(**tables["operators"], role_names=role_names),
        values=Values(**tables["values"]),
        modules=Modules(**tables["modules"]),
        kernels=Kernels(**tables["kernels"]),
        communications=Communications(**tables["communications"]),
    )
    try:
        check(trace)
    except InputError as error:
        raise InputError(f"{path}: the tables contradict each other ({error}); make the trace again") from None
    return trace


def is_stored(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a stored trace, judged by its content."""
    return guarded.members(Path(path)) >= {"meta.json", "operators.parquet"}


def _pack(trace: Trace) -> bytes:
    meta = {**dataclasses.asdict(trace.meta), "role_names": trace.operators.role_names}
    members = {"meta.json": json.dumps(meta, indent=1, sort_keys=True).encode()}
    for name, columns in _COLUMNS.items():
        members[f"{name}.parquet"] = _parquet(getattr(trace, name), columns)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content)
    return buffer.getvalue()


def _parquet(rows: Any, columns: Mapping[str, str]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = {name: _arrow(getattr(rows, name), name, form) for name, form in columns.items()}
    sink = io.BytesIO()
    pq.write_table(pa.table(arrays), sink, compression="zstd", store_schema=False, write_statistics=False)
    return sink.getvalue()


def _arrow(column: Any, name: str, form: str) -> pa.Array:
    import pyarrow as pa

    if form == "list":
        flat = pa.array(column.values.astype(_LISTS[name]))
        return pa.ListArray.from_arrays(pa.array(column.offsets.astype(np.int32)), flat)
    if form == _TEXT:
        try:
            return pa.array(column, pa.string())
        except UnicodeEncodeError:  # lone surrogates, from broken escapes in a foreign file
            return pa.array([text.encode(errors="replace").decode() for text in column], pa.string())
    return pa.array(column.astype(bool if form == _FLAG else form))


_META_TYPES: dict[str, tuple[type, ...]] = {
    "batch_size": (int, type(None)), "micro_batches": (int,), "sequence_length": (int, type(None)),
    "device": (str, type(None)),
    "step_time_s": (float, int, type(None)), "launch_delay_s": (float, int, type(None)),
    "kernel_gap_s": (float, int, type(None)), "steps": (list,), "notes": (list,),
}  # fmt: skip


def _meta(content: bytes, path: Path) -> tuple[Meta, tuple[str, ...]]:
    where = f"{path}: meta.json"
    stored = guarded.parse_json(guarded.text(content, where), where)
    guarded.check_values(stored, where, finite=True)
    if not isinstance(stored, dict) or not isinstance(stored.get("schema"), str):
        raise InputError(f"{where} names no schema; make the trace again")
    schema = stored["schema"]
    if schema != SCHEMA:
        raise InputError(
            f"{path} has the layout {quoted(schema)}, but this version of TrioSim reads {SCHEMA!r}; "
            "make the trace again or use the version that wrote it"
        )
    role_names: Any = stored.get("role_names")
    if "made_by" not in stored or not _texts(role_names):
        raise InputError(f"{where} lacks 'made_by' or 'role_names'; make the trace again")
    fields: dict[str, Any] = {}
    for item in dataclasses.fields(Meta):
        if item.name not in stored:
            continue
        value = stored[item.name]
        types = _META_TYPES.get(item.name, (str,))
        if not isinstance(value, types) or isinstance(value, bool) or (isinstance(value, list) and not _texts(value)):
            raise InputError(f"{where} has {item.name} = {quoted(value)}; make the trace again")
        fields[item.name] = tuple(value) if isinstance(value, list) else value
    return Meta(**fields), tuple(role_names)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _table(content: bytes, name: str, path: Path, packed: int) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(content), thrift_string_size_limit=len(content))
        size = _unpacked_bytes(content, file.metadata.num_rows, _COLUMNS[name])
        check_unpacked(size, packed, f"{path}: table {name}")
        check_memory(size, f"{path}: table {name}")
        table = file.read(columns=[c for c in _COLUMNS[name] if c in file.schema_arrow.names], use_threads=False)
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, MemoryError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: table {name} is damaged ({_reason(error)}); make or copy the trace again") from None
    if len(table) != file.metadata.num_rows:
        raise InputError(f"{path}: table {name} is damaged (rows are missing); make or copy the trace again")
    columns: dict[str, Any] = {}
    for column, form in _COLUMNS[name].items():
        if column not in table.column_names and (name, column) in _ADDED:
            columns[column] = np.full(len(table), _ADDED[name, column], np.dtype(form))
            continue
        if column not in table.column_names:
            raise InputError(f"{path}: table {name} has no column {quoted(column)}; make the trace again")
        try:
            columns[column] = _numpy(table.column(column).combine_chunks(), column, form)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InputError(
                f"{path}: column {quoted(column)} of table {name} is not {form} ({_reason(error)}); make the trace "
                "again"
            ) from None
    return columns


_LENGTH_BYTES = 24  # of a value: two copies while it is converted, and the offsets of lists
_TEXT_BYTES = 120  # of a text, as an object of Python's


def _unpacked_bytes(content: bytes, rows: int, forms: Mapping[str, str]) -> int:
    """Bytes that a Parquet table of so many rows takes when it is read, as its own footer has it."""
    size = rows * _LENGTH_BYTES
    for chunk in chunks(content):
        form = forms.get(chunk.column)
        if form is not None:
            size += chunk.values * (_TEXT_BYTES if form == _TEXT else _LENGTH_BYTES) + chunk.unpacked
    return size


def _reason(error: BaseException) -> str:
    lines = str(error).splitlines()
    return quoted(lines[0])[1:-1] if lines else type(error).__name__


def _numpy(array: pa.Array, name: str, form: str) -> Any:
    import pyarrow as pa

    if array.null_count:
        raise ValueError(f"{array.null_count} empty cells")
    if form == _TEXT:
        if not pa.types.is_string(array.type):
            raise TypeError(f"type {array.type}")
        return tuple(array.to_pylist())
    if form == "list":
        if not pa.types.is_list(array.type):
            raise TypeError(f"type {array.type}")
        offsets = _values(array.offsets).astype(np.int64)
        flat = array.values[int(offsets[0]) : int(offsets[-1])]  # as flatten, which imports all of pyarrow.compute
        if flat.null_count:
            raise ValueError(f"{flat.null_count} empty cells")
        return Ragged(_cast(flat, _LISTS[name]), offsets - offsets[0])
    return _cast(array, "bool" if form == _FLAG else form)


def _cast(array: pa.Array, form: str) -> NDArray[Any]:
    import pyarrow as pa

    kinds = {"bool": pa.types.is_boolean, "float64": pa.types.is_floating}
    if not kinds.get(form, pa.types.is_integer)(array.type):
        raise TypeError(f"type {array.type}")
    return _values(array if form == "bool" or str(array.type) == _ARROW.get(form, form) else array.cast(form))


_ARROW = {"float64": "double"}


def _values(array: pa.Array) -> NDArray[Any]:
    """A copy of an array without empty cells.  Its own ``to_numpy`` imports pandas where that is installed."""
    import pyarrow as pa

    rows = slice(array.offset, array.offset + len(array))
    content = array.buffers()[1] or b""
    if pa.types.is_boolean(array.type):
        return np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little")[rows].astype(np.bool_)
    letter = "f" if pa.types.is_floating(array.type) else "u" if pa.types.is_unsigned_integer(array.type) else "i"
    found: NDArray[Any] = np.frombuffer(content, f"<{letter}{array.type.bit_width // 8}")[rows].copy()
    return found
