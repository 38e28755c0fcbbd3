"""Operators bound by the bytes that they move: elementwise, copies, reductions, softmax, normalization and the like.

A trace counts the tensors of a call, each once.  What kernels move differs where they write indices, fill before they
scatter, read rows here and there, or go over their input several times; :func:`of` says how, by kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from triosim.workload.operators import Call, Calls, canonical, kind
from triosim.workload.trace import DTYPE_CODE, ITEM_BYTES, Trace

KINDS = (
    "elementwise", "reduction", "copy", "softmax", "layer_norm", "batch_norm", "embedding", "pooling", "optimizer",
    "loss", "index", "create", "other",
)  # fmt: skip
"""Kinds of operators; quantise and dequantise are elementwise, RMS norm and group norm are ``layer_norm``."""
CODE = {name: code for code, name in enumerate(KINDS)}

_BATCH_NORMS = ("batch_norm", "instance_norm")


@dataclass(frozen=True)
class Stream:
    """What operators move, one row per call.

    Attributes:
        kind: index into :data:`KINDS`, int8.
        read, written: bytes.
        rows: what costs a unit time one by one: rows that are summed over (positions of a softmax or layer norm,
            channels of a batch norm), and elements that a pooling finds the window of; 1 where there is nothing such.
        row_bytes: bytes of one row; 0 where there are none.
        kernels: how many kernels the call launches.
    """

    kind: NDArray[np.int8]
    read: NDArray[np.float64]
    written: NDArray[np.float64]
    rows: NDArray[np.float64]
    row_bytes: NDArray[np.float64]
    kernels: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.kind)

    def flop(self) -> NDArray[np.float64]:
        """Not counted: these operators wait for memory."""
        return np.zeros(len(self))

    def bytes(self) -> NDArray[np.float64]:
        """Bytes read and written."""
        return self.read + self.written

    def take(self, rows: NDArray) -> Stream:
        """These rows only."""
        return Stream(*(getattr(self, field.name)[rows] for field in fields(self)))


def of(trace: Trace, rows: NDArray[np.int64], kernels: NDArray | None = None) -> Stream:
    """What a trace's operators move; any operator can be asked for, those of no kind for their tensors once.

    Args:
        trace: operators with bytes counted.
        rows: operators to be taken.
        kernels: how many kernels each of ``rows`` launches, 1 if not known: then as many as the kind takes.
    """
    calls, operators = Calls(trace), trace.operators
    outputs = operators.outputs.take(rows)
    written = np.zeros(len(rows))
    np.add.at(written, outputs.rows(), trace.values.bytes()[outputs.values].astype(float))
    item = np.full(len(rows), ITEM_BYTES[DTYPE_CODE["float32"]])
    inputs = operators.inputs.take(rows)
    first = np.flatnonzero(inputs.lengths())
    item[first] = ITEM_BYTES[trace.values.dtype[inputs.values[inputs.offsets[first]]]]
    moved = np.nan_to_num(operators.bytes[rows])
    written = np.minimum(written, moved)
    found: dict[tuple[int, str, float, float, float], Traffic] = {}
    columns = np.empty((len(rows), 6))
    for at, row in enumerate(rows.tolist()):
        call, name = calls[row], operators.name[row]
        wide, both, out = float(item[at]), float(moved[at]), float(written[at])
        key = id(call), name, wide, both, out  # equal calls are one object, kept alive by ``calls``
        if key not in found:
            found[key] = traffic(call, name, wide, Traffic(both - out, out))
        one = found[key]
        columns[at] = _code(call, name), one.read, one.written, one.rows, one.row_bytes, one.kernels
    code, read, wrote, count, length, launches = columns.T
    known = np.ones(len(rows)) if kernels is None else np.asarray(kernels, float)
    launched = np.where((known > 1) & (launches > 0), known, launches)
    return Stream(code.astype(np.int8), read, wrote, count, length, launched)


def kind_of(name: str) -> str:
    """One of :data:`KINDS` for the operator of this name."""
    found = kind(name)
    if found == "normalization":
        return "batch_norm" if any(part in canonical(name)[0] for part in _BATCH_NORMS) else "layer_norm"
    return found if found in CODE else "other"


@dataclass(frozen=True)
class Traffic:
    """What one call moves: bytes read and written, rows and their bytes as in :class:`Stream`, and kernels."""

    read: float
    written: float
    rows: float = 1.0
    row_bytes: float = 0.0
    kernels: float = 1.0


INDEX = 8.0
"""Bytes of an index (PyTorch's are of 64 bits)."""
SECTOR = 32.0
"""Bytes of memory that reading or writing one element alone takes."""


def traffic(call: Call, name: str, item: float, counted: Traffic) -> Traffic:
    """What a call moves.

    Args:
        call: shapes and arguments.
        name: as the trace has it; ``index_put_`` works in place, ``index_put`` on a copy.
        item: bytes of an element of the first input.
        counted: every tensor of the call once.
    """
    special = _BY_KIND.get(KINDS[_code(call, name)])
    return special(call, name, item, counted) if special else counted


def _code(call: Call, name: str) -> int:
    found = kind_of(name)
    if found == "batch_norm" and not call.backward and (
        call.args.get("training") is False or "no_training" in call.name
    ):  # statistics are given: nothing is summed  # fmt: skip
        return CODE["elementwise"]
    return CODE[found]


def _size(shape: tuple[int, ...] | None) -> float:
    return float(math.prod(shape)) if shape is not None else 0.0


def _elementwise(call: Call, name: str, item: float, counted: Traffic) -> Traffic:
    """Filling reads nothing."""
    return replace(counted, read=0.0) if call.name in ("zero", "fill") else counted


def _created(call: Call, name: str, item: float, counted: Traffic) -> Traffic:
    """An empty tensor is memory that nobody touches."""
    return Traffic(0.0, 0.0, kernels=0.0) if "empty" in call.name else counted


def _softmax(call: Call, name: str, item: float, counted: Traffic) -> Traffic:
    shape = _input(call)
    return _rows(counted, shape, shape[int(call.args.get("dim", -1)) % len(shape)] if shape else 0, item)


def _layer_norm(call: Call, name: str, item: float, counted: Traffic) -> Traffic:
    """The gradients of weight and bias take a second kernel, which reads what the first has read."""
    shape, weight = _input(call), call.shape("weight")
    if "group_norm" in call.name and len(shape) > 1:
        groups = int(call.args.get("num_groups") or call.args.get("group") or 1)
        length = math.prod(shape[1:]) // max(groups, 1)
    else:
        length = math.prod(weight) if weight else shape[-1] if shape else 0
    found = _rows(counted, shape, length, item)
    if call.backward and len(call.outputs) > 1:
        return replace(found, read=2.0 * found.read, kernels=2.0)
    return found


def _batch_norm(call: Call, name: str, item: float, counted: Traffic) -> Traffic:
    shape = _input(call)
    if len(shape) < 2:
        return counted
    rows = shape[0] * shape[1] if "instance" in call.name else shape[1]
    return _rows(counted, shape, math.prod(shape) // max(rows, 1), item)


def _input(call: Call) -> tuple[int, ...]:
    return call.shape("input", "self") or (call.inputs[0] if call.inputs else ())


def _rows(counted: Traffic, shape: tuple[int, ...], length: int, item: float) -> Traffic:
    size = math.prod(shape)
    if not length or not size:
        return counted
    return replace(counted, rows=size / length, row_bytes=length * item)


def _pooling(call: Call, name: str, item: float, counted: Traffic) -> Traffic:
    """Every element that is produced walks over its windows, whose overlap the caches serve.

    The largest of a window is kept with its index, and the backward reads indices instead of the input.  A window over
    everything is a sum.
    """
    grad = call.shape("grad_output", "grad") if call.backward else None
    made = call.outputs[0] if call.outputs else ()
    windows = grad if grad is not None else made
    largest = "max" in call.name
    found = counted
    if grad is not None:
        found = Traffic(_size(grad) * (item + INDEX * largest), _size(made) * item)
    elif largest and len(call.outputs) == 1:
        found = replace(counted, written=counted.written + INDEX * _size(made))
    if len(windows) > 2 and math.prod(windows[2:]) > 1:
        return replace(found, rows=_size(made), row_bytes=item)
    return found


def _embedding(call: Call, name: str, item: float, counted: Traffic) -> Traffic:
    """The gradient of a table is filled with zeros; sorted indices then add row after row."""
    grad = call.shape("grad_output", "grad")
    if not call.backward or not grad or not call.outputs or not call.outputs[0]:
        return counted
    return _scattered(_size(grad), _size(grad) / max(grad[-1], 1), _size(call.outputs[0]), item, fills=True)


def _scattered(values: float, indices: float, table: float, item: float, fills: bool) -> Traffic:
    """``values`` elements added to a table at sorted indices.

    The sort's passes over 8 bits each read and write an index and a position.
    """
    touched = min(values, table)
    passes = math.ceil(math.log2(max(table / max(values / max(indices, 1.0), 1.0), 2.0)) / 8)
    sort = indices * passes * 2 * INDEX
    read = values * item + touched * item + sort
    return Traffic(read, (table * fills + touched) * item + sort, kernels=2.0 + passes + fills)


_SCATTERS = ("index_put", "_index_put_impl", "index_add", "index_copy", "index_fill", "scatter", "scatter_add",
             "scatter_reduce", "_unsafe_index_put", "masked_scatter")  # fmt: skip


def _index(call: Call, name: str, item: float, counted: Traffic) -> Traffic:
    """Scattering touches the rows that it writes, once the whole is there; sorting passes over 8 bits of a key each."""
    made = call.outputs[0] if call.outputs else ()
    if call.backward:
        grad = call.shape("grad_output", "grad")
        if not grad or not made:
            return counted
        return _scattered(_size(grad), _size(grad) / max(grad[-1], 1), _size(made), item, fills=True)
    if call.name in _SCATTERS and call.inputs:
        values = _size(call.shape("values", "source", "src"))
        indices = sum(_size(s) for s, r in zip(call.inputs, call.roles, strict=True) if r in ("index", "indices"))
        values = values or indices
        copied = 0.0 if name.split(".")[0].endswith("_") else _size(made) * item
        return Traffic(copied + 2 * values * item + indices * INDEX, copied + values * item, kernels=1.0 + (copied > 0))
    keys = _size(_input(call))
    if call.name in ("sort", "argsort", "unique", "_unique2", "msort"):
        passes = max(item, 1.0)
        return Traffic(passes * keys * (item + INDEX), passes * keys * (item + INDEX), kernels=passes)
    if call.name == "topk":  # finds the k-th largest 8 bits at a time, then gathers
        return Traffic((item + 1.0) * keys * item, counted.written, kernels=2.0)
    if call.name == "multinomial":  # running sums, written and searched
        return Traffic(2 * keys * item, keys * item + counted.written, kernels=2.0)
    return counted


def _loss(call: Call, name: str, item: float, counted: Traffic) -> Traffic:
    """The likelihood of a class is one element of each row; its gradient is zero everywhere else."""
    scores, made = call.shape("input", "self") or (), call.outputs[0] if call.outputs else ()
    if not scores or len(scores) < 2:
        return counted
    rows, size = _size(scores) / scores[1], _size(scores) * item
    chosen = rows * (SECTOR + INDEX)
    if call.name.startswith("nll_loss"):
        if call.backward:
            return Traffic(rows * INDEX, _size(made) * item + rows * SECTOR, kernels=2.0)
        return Traffic(chosen, min(counted.written, rows * item))
    if call.name.startswith("cross_entropy"):  # a logarithmic softmax, kept for the backward, and the likelihood
        if call.backward:
            return Traffic(2 * size, 2 * size, kernels=3.0)
        return Traffic(size + chosen, size, kernels=2.0)
    return counted


_LISTS = {"_fused_adam": 4, "_fused_adamw": 4, "_fused_sgd": 3, "_fused_adagrad": 3}
"""Tensors that an optimizer reads for each parameter; ``_foreach`` operators tell by their inputs."""
_TENSORS = (110, 64, 48, 36, 30)
_BLOCKS, _CHUNK = 320, 65536
"""Tensors (by lists) and blocks of one kernel, and elements of a block, in PyTorch's ``MultiTensorApply.cuh``."""


def _optimizer(call: Call, name: str, item: float, counted: Traffic) -> Traffic:
    """Many tensors in as few kernels as their arguments allow."""
    if not call.inputs or not call.outputs:
        return counted
    lists = _LISTS.get(call.name, max(round(len(call.inputs) / len(call.outputs)), 1))
    count = max(len(call.inputs) // lists, 1)
    blocks = sum(math.ceil(math.prod(shape) / _CHUNK) for shape in call.inputs[:count])
    kernels = max(math.ceil(count / _TENSORS[min(lists, 5) - 1]), math.ceil(blocks / _BLOCKS), 1)
    return replace(counted, kernels=float(kernels))


_BY_KIND: dict[str, Callable[[Call, str, float, Traffic], Traffic]] = {
    "elementwise": _elementwise, "create": _created, "softmax": _softmax, "layer_norm": _layer_norm,
    "batch_norm": _batch_norm, "pooling": _pooling, "embedding": _embedding, "index": _index, "loss": _loss,
    "optimizer": _optimizer,
}  # fmt: skip


def rowwise(name: str, rows: NDArray, length: NDArray, item: float = 4.0, reads: int = 1) -> Stream:
    """Operators of one kind that read ``reads`` tensors of ``rows x length`` elements and write one."""
    rows, length = np.asarray(rows, float), np.asarray(length, float)
    size = rows * length * item
    summed = name in ("softmax", "layer_norm", "batch_norm")
    ones = np.ones(len(rows))
    return Stream(
        np.full(len(rows), CODE[name], np.int8), reads * size, size, rows if summed else ones,
        length * item if summed else 0.0 * ones, ones,
    )  # fmt: skip
