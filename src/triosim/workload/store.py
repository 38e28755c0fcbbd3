"""Traces on disk: one ``NAME.triosim`` file, readable without TrioSim in ten years.

The file is an uncompressed zip (fixed dates, so equal traces are equal bytes) that holds

* ``meta.json``: :class:`~triosim.workload.trace.Meta` (its ``schema`` is the name and version of this
  layout) and ``role_names``;
* one Parquet table each: ``operators``, ``values``, ``modules``, ``kernels``, ``communications``, whose columns
  are the attributes of the classes of those names in :mod:`triosim.workload.trace`; rows of different length
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

from triosim.columns import Ragged
from triosim.errors import InputError
from triosim.workload.trace import (
    DTYPES,
    NONE,
    SCHEMA,
    Category,
    Communications,
    Kernels,
    Meta,
    Modules,
    Operators,
    Phase,
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
    path = Path(path)
    content = _pack(trace)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose a folder that can be written to") from None
    finally:
        temporary.unlink(missing_ok=True)


def load(path: str | os.PathLike[str]) -> Trace:
    """Read a trace that :func:`save` wrote.

    Raises:
        InputError: not a trace file, damaged, of an unknown version, or with tables that contradict each other.
    """
    path = Path(path)
    members = _unpack(path)
    meta, role_names = _meta(members["meta.json"], path)
    tables = {name: _table(members[f"{name}.parquet"], name, path) for name in _COLUMNS}
    operators = Operators(**tables["operators"], role_names=role_names)
    trace = Trace(
        meta=meta,
        operators=operators,
        values=Values(**tables["values"]),
        modules=Modules(**tables["modules"]),
        kernels=Kernels(**tables["kernels"]),
        communications=Communications(**tables["communications"]),
    )
    try:
        check(trace)
        _check_codes(trace)
    except AssertionError as error:
        raise InputError(f"{path}: the tables contradict each other ({error}); make the trace again") from None
    return trace


def is_stored(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a stored trace, judged by its content."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {"meta.json", "operators.parquet"} <= set(archive.namelist())
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return False


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


def _unpack(path: Path) -> dict[str, bytes]:
    wanted = ["meta.json", *(f"{name}.parquet" for name in _COLUMNS)]
    try:
        with zipfile.ZipFile(path) as archive:
            missing = sorted(set(wanted) - set(archive.namelist()))
            if missing:
                raise InputError(f"{path} is not a complete trace file: {', '.join(missing)} is missing; make it again")
            return {name: archive.read(name) for name in wanted}
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is not a trace file, or is damaged ({error}); make or copy it again") from None


_META_TYPES: dict[str, tuple[type, ...]] = {
    "batch_size": (int, type(None)), "sequence_length": (int, type(None)), "device": (str, type(None)),
    "step_time_s": (float, int, type(None)), "launch_delay_s": (float, int, type(None)),
    "kernel_gap_s": (float, int, type(None)), "steps": (list,), "notes": (list,),
}  # fmt: skip


def _meta(content: bytes, path: Path) -> tuple[Meta, tuple[str, ...]]:
    try:
        stored = json.loads(content)
    except ValueError as error:
        raise InputError(f"{path}: meta.json is not JSON ({error}); make the trace again") from None
    if not isinstance(stored, dict) or not isinstance(stored.get("schema"), str):
        raise InputError(f"{path}: meta.json names no schema; make the trace again")
    schema = stored["schema"]
    if schema != SCHEMA:
        raise InputError(
            f"{path} has the layout {schema!r}, but this version of TrioSim reads {SCHEMA!r}; "
            "make the trace again or use the version that wrote it"
        )
    role_names: Any = stored.get("role_names")
    if "made_by" not in stored or not _texts(role_names):
        raise InputError(f"{path}: meta.json lacks 'made_by' or 'role_names'; make the trace again")
    fields: dict[str, Any] = {}
    for item in dataclasses.fields(Meta):
        if item.name not in stored:
            continue
        value = stored[item.name]
        types = _META_TYPES.get(item.name, (str,))
        if not isinstance(value, types) or isinstance(value, bool) or (isinstance(value, list) and not _texts(value)):
            raise InputError(f"{path}: meta.json has {item.name} = {value!r}; make the trace again")
        fields[item.name] = tuple(value) if isinstance(value, list) else value
    return Meta(**fields), tuple(role_names)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _table(content: bytes, name: str, path: Path) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: table {name} is damaged ({reason}); make or copy the trace again") from None
    columns: dict[str, Any] = {}
    for column, form in _COLUMNS[name].items():
        if column not in table.column_names and (name, column) in _ADDED:
            columns[column] = np.full(len(table), _ADDED[name, column], np.dtype(form))
            continue
        if column not in table.column_names:
            raise InputError(f"{path}: table {name} has no column {column!r}; make the trace again")
        try:
            columns[column] = _numpy(table.column(column).combine_chunks(), column, form)
        except (pa.ArrowException, TypeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"{path}: column {column!r} of table {name} is not {form} ({reason})") from None
    return columns


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
        flat = array.flatten()
        if flat.null_count:
            raise ValueError(f"{flat.null_count} empty cells")
        offsets = array.offsets.to_numpy().astype(np.int64)
        return Ragged(_cast(flat, _LISTS[name]), offsets - offsets[0])
    return _cast(array, "bool" if form == _FLAG else form)


def _cast(array: pa.Array, form: str) -> NDArray:
    import pyarrow as pa

    kinds = {"bool": pa.types.is_boolean, "float64": pa.types.is_floating}
    if not kinds.get(form, pa.types.is_integer)(array.type):
        raise TypeError(f"type {array.type}")
    if form == "bool":
        return array.to_numpy(zero_copy_only=False)
    return array.cast(form).to_numpy(zero_copy_only=False).copy()  # the copy is writable, as built traces are


def _check_codes(trace: Trace) -> None:
    """What :func:`~triosim.workload.trace.check` leaves to the type of the column."""
    operators, values = trace.operators, trace.values
    _within(operators.phase, 0, len(Phase), "phase")
    _within(operators.roles.values, 0, len(operators.role_names), "role")
    _within(operators.forward, -1, len(operators), "forward operator")
    _within(values.category, 0, len(Category), "category")
    _within(values.dtype, 0, len(DTYPES), "element type")
    _within(values.storage, 0, None, "storage")
    _within(values.version, 0, None, "version")
    _within(values.offset, 0, None, "offset")
    _within(values.of, -1, len(values), "weight of a gradient")
    _within(trace.kernels.operator, 0, len(operators), "operator of a kernel")
    _within(trace.communications.operator, -1, len(operators) + 1, "operator after a communication")
    _within(trace.communications.needed, -1, len(operators), "operator that needs a communication")
    for text in operators.args:
        assert text == "{}" or _is_object(text), f"arguments {text[:40]!r} are not a JSON object"


def _within(column: NDArray, low: int, high: int | None, what: str) -> None:
    outside = column[(column < low) if high is None else (column < low) | (column >= high)]
    assert not outside.size, f"{what} {outside[0]} out of range"


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
