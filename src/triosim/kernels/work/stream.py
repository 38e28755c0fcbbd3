"""Operators bound by the bytes that they move: elementwise, copies, reductions, softmax, normalization and the like."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

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
        read, written: bytes, each tensor once.
        rows: rows that are summed over, one after another or on different units: positions of a softmax or layer norm,
            channels of a batch norm; 1 where nothing is summed row by row.
        row_bytes: bytes of one row.
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
        """Bytes read and written, each tensor once."""
        return self.read + self.written

    def take(self, rows: NDArray) -> Stream:
        """These rows only."""
        return Stream(*(getattr(self, field.name)[rows] for field in fields(self)))


def of(trace: Trace, rows: NDArray[np.int64], kernels: NDArray | None = None) -> Stream:
    """What a trace's operators move; any operator can be asked for.

    Args:
        trace: operators with bytes counted.
        rows: operators to be taken.
        kernels: how many kernels each of ``rows`` launches, 1 if not known.
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
    found: dict[int, tuple[int, float, float]] = {}
    columns = np.empty((len(rows), 3))
    for at, row in enumerate(rows.tolist()):
        call = calls[row]
        if id(call) not in found:  # equal calls are one object, kept alive by ``calls``
            found[id(call)] = _sums(call, kind_of(operators.name[row]))
        columns[at] = found[id(call)]
    code, count, length = columns.T
    launched = np.ones(len(rows)) if kernels is None else np.asarray(kernels, float)
    return Stream(code.astype(np.int8), moved - written, written, count, length * item, launched)


def kind_of(name: str) -> str:
    """One of :data:`KINDS` for the operator of this name."""
    found = kind(name)
    if found == "normalization":
        return "batch_norm" if any(part in canonical(name)[0] for part in _BATCH_NORMS) else "layer_norm"
    return found if found in CODE else "other"


def _sums(call: Call, name: str) -> tuple[int, float, float]:
    """Kind, and number and length of the rows."""
    shape = call.shape("input", "self") or (call.inputs[0] if call.inputs else ())
    size = math.prod(shape)
    length = 0
    if name == "softmax" and shape:
        length = shape[int(call.args.get("dim", -1)) % len(shape)]
    elif name == "layer_norm" and shape:
        weight = call.shape("weight")
        length = math.prod(weight) if weight else shape[-1]
    elif name == "batch_norm" and len(shape) > 1:
        length = size // max(shape[1], 1)
    if not length or not size:
        return CODE[name], 1.0, 0.0
    return CODE[name], size / length, float(length)


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
