"""Matrix products: what one call multiplies, as columns."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_CODE
from triosim.operators import ROWS, SCALES, ProductWork
from triosim.trace.calls import calls_of
from triosim.trace.tables import ITEM_BYTES, Trace

VECTOR = 16.0
"""Bytes that a thread loads at once at most."""


@dataclass(frozen=True)
class Gemm:
    """``batch`` products C[m, n] = A[m, k] B[k, n], one row per call.

    Attributes:
        m, n, k: sizes; ``k`` is summed over.
        batch: independent products in one call.
        dtype: index into :data:`~triosim.trace.tables.DTYPES` of the type that is multiplied.
        a_bytes, b_bytes, c_bytes: bytes of one element of A, B and C (4-bit weights under 16-bit arithmetic differ).
        warm: whether A and B may still lie in the last-level cache, as when a benchmark repeats one call.
        casts: whether the time holds the kernel that casts A from 16 bits to the type that is multiplied.
        sparse: whether two of every four elements of B along ``k`` are zero and hardware may leave them out.
        tuned: whether products of 8 bits run in the kernels of training libraries and DeepGEMM, which are faster than
            those that serving stacks run on activations with a scale for each token.
        library: whether products of 8 bits run in a library's kernels, which has whichever tile is fastest, and not in
            those that an engine brings along, of which it is known what they take.
        aligned: bytes of which the beginnings of all rows of A, B and C, as they lie in memory, are multiples; at most
            :data:`VECTOR`.
    """

    m: NDArray[np.float64]
    n: NDArray[np.float64]
    k: NDArray[np.float64]
    batch: NDArray[np.float64]
    dtype: NDArray[np.int8]
    a_bytes: NDArray[np.float64]
    b_bytes: NDArray[np.float64]
    c_bytes: NDArray[np.float64]
    warm: NDArray[np.bool_]
    casts: NDArray[np.bool_]
    sparse: NDArray[np.bool_]
    tuned: NDArray[np.bool_]
    library: NDArray[np.bool_]
    aligned: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.m)

    def flop(self) -> NDArray[np.float64]:
        """Floating-point operations; a multiply-add counts two."""
        return 2.0 * self.batch * self.m * self.n * self.k

    def bytes(self) -> NDArray[np.float64]:
        """Bytes of A, B and C, each once."""
        a, b, c = self.m * self.k * self.a_bytes, self.k * self.n * self.b_bytes, self.m * self.n * self.c_bytes
        return self.batch * (a + b + c)

    def take(self, rows: NDArray) -> Gemm:
        """These rows only."""
        return Gemm(*(getattr(self, field.name)[rows] for field in fields(self)))


def gemm(
    m: ArrayLike, n: ArrayLike, k: ArrayLike, dtype: str, batch: ArrayLike = 1.0, *, warm: bool = False,
    casts: bool = False, weights: str | None = None, sparse: bool = False, tuned: bool = False,
    library: bool = False,
) -> Gemm:  # fmt: skip
    """Products of one element type; C has 16 bits where A and B have fewer, and rows of A and of B or its transpose,
    which is how weights lie, are ``k`` or ``n`` long.

    Args:
        m, n, k, batch: as in :class:`Gemm`; what is the same in all rows may be a single number.
        dtype: type that is multiplied.
        warm, casts, sparse, tuned, library: as in :class:`Gemm`.
        weights: type that B is stored in, where it is another: ``int4`` and ``int8`` for weight-only quantization.

    Raises:
        KeyError: ``dtype`` or ``weights`` is not one of :data:`~triosim.trace.tables.DTYPES`.
    """
    rows, columns, depth, products = np.array(np.broadcast_arrays(m, n, k, batch), np.float64).reshape(4, -1)
    code = DTYPE_CODE[dtype]
    item = float(ITEM_BYTES[code])
    stored = float(ITEM_BYTES[DTYPE_CODE[weights]]) if weights else item

    def column(value: float | bool, kind: type) -> NDArray:
        return np.full(len(rows), value, kind)

    return Gemm(
        rows, columns, depth, products, column(code, np.int8), column(item, float), column(stored, float),
        column(max(item, 2.0), float), column(warm, bool), column(casts, bool), column(sparse, bool),
        column(tuned, bool), column(library, bool), _alignment(item, columns, depth),
    )  # fmt: skip


def of(trace: Trace, rows: NDArray[np.int64], dtype: NDArray[np.int8]) -> tuple[Gemm, NDArray[np.float64]]:
    """The products of a trace's operators of kinds ``linear`` and ``matmul``.

    A backward operator that yields several gradients is as many products of one size; their number is the second
    result (1 for every forward operator).  Shapes that do not tell the product (an ``einsum``) are
    read from the counted FLOP as a cube.  A weight that the trace stores with fewer bytes than are multiplied is read
    as it is stored.

    Args:
        trace: operators with FLOP counted.
        rows: operators to be taken.
        dtype: element type that each of ``rows`` multiplies (see :func:`triosim.kernels.classes.classify`).
    """
    m, n, k, batch, times = np.array(calls_of(trace).work(rows, ProductWork), np.float64).reshape(len(rows), 5).T
    item = ITEM_BYTES[dtype]
    no = np.zeros(len(rows), bool)
    stored = np.minimum(item, _stored(trace, rows))
    # what multiplies 8 bits in a trace is a training step's, and given them as they are; scales of rows take PyTorch
    # to CUTLASS's kernels, as they do serving stacks (aten/src/ATen/native/cuda/RowwiseScaledMM.cu)
    tuned = np.isin(dtype, _EIGHT) & ~scaled_by_rows(trace, rows)
    code, out = dtype.astype(np.int8), np.maximum(item, 2.0)
    aligned = _alignment(item, *_row_lengths(trace, rows, m, n, k, batch))
    return Gemm(m, n, k, batch, code, item, stored, out, no, no, no, tuned, no, aligned), times


def _alignment(item: NDArray[np.float64] | float, *lengths: NDArray[np.float64]) -> NDArray[np.float64]:
    """Bytes of which multiples of all these numbers of elements are multiples, at most :data:`VECTOR`."""
    out = np.full(len(lengths[0]), VECTOR)
    for length in lengths:
        size = length * item
        whole = (length == np.floor(length)) & (length > 1)  # what has one element, or is no real length, binds nothing
        two = np.where(whole, size, VECTOR).astype(np.int64)
        out = np.minimum(out, (two & -two).astype(np.float64))
    return out


_TURNS = ("aten::t", "aten::transpose")
_LEFT, _RIGHT = ("self", "mat1", "input"), ("mat2", "other")


def _row_lengths(
    trace: Trace, rows: NDArray[np.int64], m: NDArray, n: NDArray, k: NDArray, batch: NDArray
) -> tuple[NDArray[np.float64], ...]:
    """Elements of a row of A, of B and of C, as they lie in memory.

    C's are ``n`` long.  A's are ``k`` long, and ``m`` where A is what an operator before has turned, as gradients are
    for the product that makes a weight's; B's are ``n`` long, and ``k`` where it is turned or a layer's weight.
    """
    left, right = k.copy(), np.where(batch > 1, n, k)
    single = np.flatnonzero((batch == 1) & ((m % 8 != 0) | (n % 8 != 0) | (k % 8 != 0)))
    if len(single):
        operators = trace.operators
        turns = np.flatnonzero(np.array([name in _TURNS for name in operators.name], bool))
        turned = set(operators.outputs.take(turns).values.tolist())
        inputs, roles = operators.inputs.take(rows[single]), operators.roles.take(rows[single])
        for at, value, role in zip(inputs.rows().tolist(), inputs.values.tolist(), roles.values.tolist(), strict=True):
            row, name = single[at], operators.role_names[role]
            if name in _LEFT and value in turned:
                left[row] = m[row]
            elif name in _RIGHT and value not in turned:
                right[row] = n[row]
    return left, right, n


_EIGHT = (DTYPE_CODE["float8_e4m3fn"], DTYPE_CODE["float8_e5m2"])
_WEIGHTS = ("weight", "mat2", "other")
_BY_ROWS = f'"{SCALES}":"{ROWS}"'


def scaled_by_rows(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each operator multiplies what has a scale for each row."""
    args = trace.operators.args
    known = {text: _BY_ROWS in text for text in set(args)}
    if not any(known.values()):
        return np.zeros(len(rows), bool)
    return np.array([known[args[row]] for row in rows.tolist()], bool)


def _stored(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Bytes of an element of the matrix on the right of each operator; infinite where it is not told."""
    inputs, roles = trace.operators.inputs.take(rows), trace.operators.roles.take(rows)
    is_weight = np.array([name in _WEIGHTS for name in trace.operators.role_names], bool)[roles.values]
    out = np.full(len(rows), np.inf)
    np.minimum.at(out, inputs.rows()[is_weight], ITEM_BYTES[trace.values.dtype[inputs.values[is_weight]]])
    return out
