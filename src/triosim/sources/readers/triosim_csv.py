"""The CSV folder of the TrioSim release: ``trace.csv`` (operators) and ``tensor.csv`` (one row a use of a tensor).

Columns are found by their names in the header.  Times are ``Operator_cudatimenooverlap``, the sum of an operator's
kernel durations in microseconds.  Tensor ids and storage ids are those of PyTorch's execution trace.

The files hold less than the dataflow.  Operators that launched no kernel (views, gradient bookkeeping) were
dropped, of an autograd node only the tensors of its first step were kept, and in-place operators on lists show no
outputs.  :mod:`triosim.sources.readers._coarse` puts back what follows from the rest.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from triosim.core import guarded
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted
from triosim.core.registry import registered
from triosim.operators import argument_names, canonical, written_roles
from triosim.sources.readers._coarse import complete
from triosim.sources.readers._files import content, files, head
from triosim.sources.readers._purpose import decide
from triosim.sources.readers._step import Argument, ObservedTensor, OperatorRow, build, pass_key
from triosim.sources.reading import Reader
from triosim.trace.accumulation import accumulation_note, median_pass, passes
from triosim.trace.tables import Meta, Phase, Trace

_OPERATOR_COLUMNS = (
    "OperatorID", "OperatorName", "Operator_input", "Operator_output", "Operator_cudatimenooverlap", "stage",
)  # fmt: skip
_TENSOR_COLUMNS = ("TensorID", "TensorShape", "TensorNumElement", "TensorEachByte", "TensorType", "TensorStorgeid")
_PHASES = {"forward": Phase.FORWARD, "backward": Phase.BACKWARD, "optimizer": Phase.OPTIMIZER}
_FLOAT = {4: "float32", 2: "float16"}
_INTEGER = {8: "int64", 4: "int32", 2: "int16", 1: "bool"}
_INTEGER_ROLES = ("target", "indices", "mask")


@dataclass(frozen=True)
class _Use:
    """One row of ``tensor.csv``; ``tensor`` is None for an undefined tensor."""

    id: int
    tensor: ObservedTensor | None
    role: str


@registered
class TriosimCsv(Reader):
    """Reads a TrioSim CSV folder, or the ``trace.csv`` in one."""

    what = "a TrioSim CSV folder (trace.csv and tensor.csv)"

    def recognises(self, path: Path) -> bool:
        return _find(path, "OperatorID") is not None

    def read(self, path: Path, *, step: str = "median", execution_trace: Path | None = None) -> Trace:
        if execution_trace is not None:
            raise InputError(f"{path} has tensor identities already; leave the execution trace {execution_trace} away")
        if step not in ("median", "all", "0", "1"):
            raise InputError(f"{path} holds one step; --step {step} is not in it")
        operators = _find(path, "OperatorID")
        assert operators is not None
        tensors = _find(operators.parent, "TensorID")
        if tensors is None:
            raise InputError(f"{operators.parent} has no tensor.csv (with a TensorID column) beside {operators.name}")
        uses = _uses(tensors)
        rows = _rows(operators, uses, tensors)
        rows, parts = _one_pass(rows)
        undecided = complete(rows)
        purposes = decide(rows)
        notes = ["element types are known by their size only: 4 bytes are taken as float32, 2 as float16"]
        if undecided:
            shown = ", ".join(undecided[:4]) + (", ..." if len(undecided) > 4 else "")
            notes.append(f"{len(undecided)} backward operators could not be tied to their forward operator ({shown})")
        if purposes.without_gradient:
            notes.append(f"{len(purposes.without_gradient)} parameters have no gradient in this step")
        if parts > 1:
            notes.append(accumulation_note(parts))
        meta = Meta(
            made_by="triosim-csv",
            workload=operators.parent.resolve().name,
            framework="torch",
            batch_size=purposes.batch.size,
            micro_batches=parts,
            batch_guess=purposes.batch.guess,
            sequence_length=purposes.batch.sequence,
            clock="gpu",
            notes=tuple(notes),
        )
        return build(rows, meta, purposes.weights, lambda builder: None)


def _one_pass(rows: list[OperatorRow]) -> tuple[list[OperatorRow], int]:
    """The rows with one of the passes of a step that accumulates gradients, and how many passes there were."""
    found = passes([row.phase for row in rows], [pass_key(row) for row in rows])
    if not found:
        return rows, 1
    kept = median_pass(found, [row.device_s for row in rows])
    return [*rows[: found[0].start], *rows[kept.start : kept.stop], *rows[found[-1].stop :]], len(found)


def _find(path: Path, column: str) -> Path | None:
    """The CSV file at ``path``, or in the folder ``path``, whose header has ``column``."""
    for file in files(path) if path.is_dir() else [path]:
        if file.is_file():
            header = head(file, 4096).decode("utf-8-sig", errors="replace").split("\n", 1)[0]
            if column in [name.strip().strip('"') for name in header.split(",")]:
                return file
    return None


def _table(path: Path, columns: tuple[str, ...]) -> list[tuple[int, dict[str, str]]]:
    """Rows with their line numbers; every one has all ``columns``."""
    reader = guarded.rows(guarded.text(content(path), str(path), errors="replace"), str(path))
    table = []
    with guarded.csv_errors(str(path), lambda: reader.line_num):
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            raise InputError(f"{path} has no column {', '.join(missing)}; export the trace again")
        for row in reader:
            absent = [name for name in columns if row[name] is None]
            if absent:
                raise InputError(f"{path}, line {reader.line_num}: {absent[0]} is missing; is the file cut short?")
            table.append((reader.line_num, row))
    if not table:
        raise InputError(f"{path} has a header but no rows; export the trace again")
    return table


def _number(text: str, what: str, path: Path, line: int) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{path}, line {line}: {what} {quoted(text)} is not a whole number") from None


def _list(text: str, what: str, path: Path, line: int, separator: str) -> list[int]:
    inner = text.strip()
    if not (inner.startswith("[") and inner.endswith("]")):
        raise InputError(f"{path}, line {line}: {what} {quoted(text[:60])} is not a list in brackets")
    inner = inner[1:-1].strip()
    return [_number(item.strip(), what, path, line) for item in inner.split(separator)] if inner else []


def _uses(path: Path) -> list[_Use]:
    found = []
    for line, row in _table(path, _TENSOR_COLUMNS):
        number = _number(row["TensorID"], "TensorID", path, line)
        shape = tuple(_list(row["TensorShape"], "TensorShape", path, line, ","))
        elements = _number(row["TensorNumElement"], "TensorNumElement", path, line)
        size = _number(row["TensorEachByte"], "TensorEachByte", path, line)
        storage = _number(row["TensorStorgeid"], "TensorStorgeid", path, line)
        if any(d < 0 for d in shape) or elements < 0 or size < 0:
            raise InputError(f"{path}, line {line}: tensor {number} has a negative size")
        role = row["TensorType"].split("=")[0].strip()
        if size == 0:
            found.append(_Use(number, None, role))
            continue
        if math.prod(shape) != elements:
            raise InputError(f"{path}, line {line}: tensor {number} has shape {list(shape)} but {elements} elements")
        if size not in _INTEGER:
            raise InputError(f"{path}, line {line}: tensor {number} has elements of {size} bytes, not 1, 2, 4 or 8")
        integer = role in _INTEGER_ROLES or size not in _FLOAT
        found.append(
            _Use(number, ObservedTensor(shape, (_INTEGER if integer else _FLOAT)[size], number, storage), role)
        )
    return found


def _rows(path: Path, uses: list[_Use], tensors: Path) -> list[OperatorRow]:
    by_id: dict[int, _Use] = {}
    roles: dict[int, list[str]] = {}
    for use in uses:
        by_id.setdefault(use.id, use)
        if use.role != "output":
            roles.setdefault(use.id, []).append(use.role)
    dtypes: dict[tuple[int, int], str] = {}
    for use in uses:  # one tensor, one element type: that of the most telling use
        if use.tensor is not None and ((use.id, use.tensor.storage) not in dtypes or use.role in _INTEGER_ROLES):
            dtypes[use.id, use.tensor.storage] = use.tensor.dtype
    order = [use.id for use in uses]
    at = 0
    rows: list[OperatorRow] = []
    for line, cells in _table(path, _OPERATOR_COLUMNS):
        read = _list(cells["Operator_input"], "Operator_input", path, line, ";")
        made = _list(cells["Operator_output"], "Operator_output", path, line, ";")
        unknown = [i for i in (*read, *made) if i not in by_id]
        if unknown:
            raise InputError(f"{path}, line {line}: tensor {unknown[0]} is not in {tensors.name}")
        stage = cells["stage"].strip().lower()
        if stage not in _PHASES:
            raise InputError(
                f"{path}, line {line}: stage {quoted(cells['stage'])} is not forward, backward or optimizer"
            )
        seconds = _microseconds(cells["Operator_cudatimenooverlap"], path, line)
        row = OperatorRow(cells["OperatorName"].strip(), _PHASES[stage], device_s=seconds)
        found = _position(order, [*read, *made], at)
        if found is not None:
            shown = uses[found : found + len(read) + len(made)]
            at = found + len(shown)
        else:  # the uses are not in the order of the operators: any use of a tensor tells its shape
            shown = [by_id[number] for number in (*read, *made)]
        for use in shown[: len(read)]:
            if use.tensor is not None:
                telling = next((r for r in roles.get(use.id, ()) if r != "input"), "input")
                role = use.role if found is not None else telling
                row.arguments.append(Argument(role, _typed(use.tensor, dtypes)))
        row.results = [_typed(use.tensor, dtypes) for use in shown[len(read) :] if use.tensor is not None]
        rows.append(row)
    _phases(rows)
    _optimizer(rows)
    for row in rows:
        _in_place(row)
    return rows


def _typed(tensor: ObservedTensor, dtypes: dict[tuple[int, int], str]) -> ObservedTensor:
    return replace(tensor, dtype=dtypes[tensor.id, tensor.storage])


def _position(order: list[int], wanted: list[int], start: int) -> int | None:
    """Where ``wanted`` stands in the list of uses at or after ``start`` (dropped operators' uses lie between)."""
    for at in range(start, len(order) - len(wanted) + 1) if wanted else ():
        if order[at] == wanted[0] and order[at : at + len(wanted)] == wanted:
            return at
    return None


def _microseconds(text: str, path: Path, line: int) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{path}, line {line}: Operator_cudatimenooverlap {quoted(text)} is not a number") from None
    if not math.isfinite(value) or value < 0:
        raise InputError(f"{path}, line {line}: Operator_cudatimenooverlap {quoted(text)} is not a time")
    return value * 1e-6


def _phases(rows: list[OperatorRow]) -> None:
    """Put right what the exporter judges by the start of the name: it calls fused and for-loop optimizers forward."""
    last = max((i for i, row in enumerate(rows) if row.phase == Phase.BACKWARD), default=len(rows))
    for i, row in enumerate(rows):
        if row.phase == Phase.FORWARD and (row.kind == "optimizer" or i > last):
            row.phase = Phase.OPTIMIZER


_LISTS = {"_foreach_lerp": 2, "_foreach_addcmul": 3, "_foreach_addcdiv": 3, "_foreach_copy": 2}
_MAY_BE_TWO = ("_foreach_add", "_foreach_sub", "_foreach_mul", "_foreach_div", "_foreach_pow", "_foreach_maximum")


def _optimizer(rows: list[OperatorRow]) -> None:
    """Cut the flat inputs of operators on lists back into their lists and name them."""
    single = {len(r.arguments) // n for r in rows if (n := _LISTS.get(_plain(r.name)))}
    for row in rows:
        plain = _plain(row.name)
        if not plain.startswith(("_foreach", "_fused")):
            continue
        count = len(row.arguments)
        shapes = [a.tensor.shape for a in row.arguments]
        if plain.startswith("_fused"):
            lists = _fused_lists(shapes)
        elif plain in _MAY_BE_TWO:
            half = count // 2
            two = count % 2 == 0 and count > 0 and shapes[:half] == shapes[half:] and count not in single
            lists = 2 if two else 1
        else:
            lists = _LISTS.get(plain, 1)
        if lists and count % lists == 0:
            names = list(argument_names(row.name, lists))
            if "state_steps" not in names and plain.startswith("_fused_ada") and lists == 5 and shapes[-1] == ():
                names[-1] = "state_steps"
            for i, argument in enumerate(row.arguments):
                argument.role = names[i * lists // count]


def _fused_lists(shapes: list[tuple[int, ...]]) -> int:
    """How many lists of equal length and shapes a fused optimizer was given (step counters are scalars)."""
    for lists in (6, 5, 4, 3, 2):
        if shapes and len(shapes) % lists == 0:
            length = len(shapes) // lists
            if shapes[length : 2 * length] == shapes[:length]:
                return lists
    return 0


def _plain(name: str) -> str:
    return canonical(name)[0]


def _in_place(row: OperatorRow) -> None:
    written = written_roles(row.name)
    lists = row.kind == "optimizer"
    for i, argument in enumerate(row.arguments):
        argument.written = bool(written) and (argument.role in written if lists else i == 0)
