"""Which class of work an operator is, and which engine of the device does it.

Operator models have a few constants per class, so this is where an operator's name, shapes and element types become a
row of their tables.  Everything is done on columns: a trace of a million operators takes well under a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_CODE, DTYPES
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import multiplication, unit_of
from triosim.operators import canonical, is_backward, kind, kind_named
from triosim.trace.tables import ITEM_BYTES, Trace

GROUPS = (
    "nothing", "matrix", "convolution", "convolution_backward", "attention", "attention_backward", "rowwise",
    "elementwise", "other", "experts", "scan",
)  # fmt: skip
"""Classes of work.  ``nothing`` launches no kernel; ``rowwise`` reads each row twice (softmax, normalization);
``other`` is moved by bytes like ``elementwise`` but was never measured on its own; ``experts`` are the products of a
mixture of experts; ``scan`` keeps a state along the sequence."""

(
    NOTHING, MATRIX, CONVOLUTION, CONVOLUTION_BACKWARD, ATTENTION, ATTENTION_BACKWARD, ROWWISE, ELEMENTWISE, OTHER,
    EXPERTS, SCAN,
) = range(len(GROUPS))  # fmt: skip

STANDS_IN = {"experts": "matrix", "scan": "matrix"}
"""Classes that no roofline and no anchoring was fitted to -> the class whose constants they take."""

ENGINES = ("", "simt", "tensor", "narrow")
"""What does the arithmetic: nothing that matters (the operator only moves bytes), the vector units (32 and 64 bits),
the matrix units at 16 bits and TF32, and the matrix units at 8 bits and below."""

BYTES_ONLY, SIMT, TENSOR, NARROW = range(len(ENGINES))

_BACKWARD = {CONVOLUTION: CONVOLUTION_BACKWARD, ATTENTION: ATTENTION_BACKWARD}
_COUNTED = (MATRIX, CONVOLUTION, CONVOLUTION_BACKWARD, ATTENTION, ATTENTION_BACKWARD, EXPERTS, SCAN)
"""Classes whose time follows a count of floating-point operations."""

_OPERANDS = frozenset(
    ("", "input", "self", "mat1", "mat2", "other", "weight", "batch1", "batch2", "tensor", "tensors", "tensor1",
     "tensor2", "vec", "vec2", "query", "key", "value", "q", "k", "v", "grad_output", "grad_out", "grad", "gradient",
     "zxbcdt", "u", "delta")
)  # fmt: skip
"""Arguments that the matrix units multiply; biases, masks, scales and saved statistics may have other types."""


def _width(name: str) -> int:
    size = int(ITEM_BYTES[DTYPE_CODE[name]] * 16)
    if name.startswith(("float", "bfloat", "tfloat", "complex")):
        return size - (name == "tfloat32")  # a float32 that is multiplied with fewer bits
    return size - 2 if name in ("int8", "int4") else 0  # integers that are multiplied; the others are indices or masks


_WIDTH: NDArray[np.int64] = np.array([_width(name) for name in DTYPES], np.int64)
"""Order of the types that are multiplied; 0 for those that are not."""


@dataclass(frozen=True)
class OperatorClasses:
    """Classes of a trace's operators, one row each.

    Attributes:
        group: index into :data:`GROUPS`, int8.
        engine: index into :data:`ENGINES`, int8.
        dtype: index into :data:`~triosim.trace.tables.DTYPES` of the type that is multiplied, -1 where only
            bytes matter, int8.
    """

    group: NDArray[np.int8]
    engine: NDArray[np.int8]
    dtype: NDArray[np.int8]


def classify(trace: Trace, device: Accelerator) -> OperatorClasses:
    """The class, engine and element type of every operator of ``trace`` on ``device``, found once for the last device.

    The element type is the widest one among the operands, or that of the output where it is narrower (under
    autocast a recorded ``aten::linear`` has float32 weights and a bfloat16 result).

    Float32 convolutions on NVIDIA devices that have TF32 run in TF32, float32 matrix products do not: PyTorch's
    defaults are ``torch.backends.cudnn.allow_tf32 = True`` and ``torch.backends.cuda.matmul.allow_tf32 = False``
    (PyTorch documentation, "CUDA semantics", section "TensorFloat-32 (TF32) on Ampere (and later) devices").
    Transformer Engine's products of float32 run in TF32 (``common/gemm/cublaslt_gemm.cu``), and all do where a step
    was asked for or recorded so (:attr:`~triosim.trace.tables.Meta.float32_products`).
    """
    rounded = trace.meta.float32_products
    values, asked, on, kept = trace.operators.__dict__.get("_classified", (None, "", None, None))
    if values is trace.values and asked == rounded and (on is device or on == device):
        found: OperatorClasses = kept
        return found
    found = _classified(trace, device)
    trace.operators.__dict__["_classified"] = (trace.values, rounded, device, found)
    return found


def _classified(trace: Trace, device: Accelerator) -> OperatorClasses:
    operators = trace.operators
    group = by_name(operators.name, group_of_name).astype(np.int8)
    group[operators.view] = NOTHING
    counted = np.isin(group, _COUNTED)
    group[counted & ~(operators.flop > 0)] = OTHER  # the work could not be counted: all that is known is what it moves
    counted &= group != OTHER
    rows = np.flatnonzero(counted)
    dtype = np.full(len(operators), -1, np.int8)
    dtype[rows] = _operand_types(trace, rows)
    experts = np.flatnonzero(group == EXPERTS)
    if experts.size:  # tokens come first; the weights of their choice are of another type
        dtype[experts] = trace.values.dtype[operators.inputs.values[operators.inputs.offsets[experts]]]
    if device.vendor == "NVIDIA" and "tfloat32" in device.peak_flops:
        rounded = (group == CONVOLUTION) | (group == CONVOLUTION_BACKWARD)
        rounded |= by_name(operators.name, lambda name: name.startswith("transformer_engine::")).astype(np.bool_)
        rounded |= trace.meta.float32_products == "tfloat32"
        dtype[rounded & (dtype == DTYPE_CODE["float32"])] = DTYPE_CODE["tfloat32"]
    engine = np.zeros(len(operators), np.int8)
    if rows.size:
        engine[rows] = engines(device)[dtype[rows]]
    for column in (group, engine, dtype):
        column.flags.writeable = False
    return OperatorClasses(group, engine, dtype)


def by_name(names: Iterable[str], what: Callable[[str], int]) -> NDArray[np.int64]:
    """``what(name)`` for every name, computed once per different name."""
    names = tuple(names)
    found = {name: what(name) for name in set(names)}
    return np.fromiter(map(found.__getitem__, names), np.int64, len(names))


def reserves(name: str) -> bool:
    """Whether the operator of this name only reserves memory."""
    return kind(name) != "host" and group_of_name(name) == NOTHING


def multiplies(name: str) -> bool:
    """Whether the work of the operator of this name is counted in floating-point operations."""
    return group_of_name(name) in _COUNTED


def group_of_name(name: str) -> int:
    """Index into :data:`GROUPS` of the operator of this name."""
    group = GROUPS.index(kind_named(kind(name)).kernels_of(canonical(name)[0]))
    return _BACKWARD.get(group, group) if is_backward(name) else group


_ADDING = ("addmm", "baddbmm", "addbmm")


def _operand_types(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int8]:
    """Code of the element type that the operators in ``rows`` multiply; float32 where no operand is floating."""
    operators, types = trace.operators, trace.values.dtype
    inputs, roles = operators.inputs.take(rows), operators.roles.take(rows)
    is_operand = np.array([role in _OPERANDS for role in operators.role_names], bool)
    multiplied, row = is_operand[roles.values], inputs.rows()
    if "self" in operators.role_names:  # which is what a product is added to where it is added to something
        adds = by_name([operators.name[at] for at in rows.tolist()], lambda name: canonical(name)[0] in _ADDING)
        multiplied &= ~(adds.astype(bool)[row] & (roles.values == operators.role_names.index("self")))
    reads = _widest(types[inputs.values], row, len(rows), multiplied)
    outputs = operators.outputs.take(rows)
    writes = _widest(types[outputs.values], outputs.rows(), len(rows))
    reads = np.where(reads < 0, writes, reads)
    narrower = (writes >= 0) & (_WIDTH[writes] < _WIDTH[reads])
    found = np.where(narrower, writes, reads)
    return np.where(found < 0, DTYPE_CODE["float32"], found).astype(np.int8)


def _widest(
    types: NDArray[np.int8], rows: NDArray[np.int64], count: int, where: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    """The widest type in each row that can be multiplied, -1 for none."""
    key = _WIDTH[types] * len(DTYPES) + types
    keep = _WIDTH[types] > 0
    if where is not None:
        keep &= where
    best = np.full(count, -1, np.int64)
    np.maximum.at(best, rows[keep], key[keep])
    return np.where(best >= 0, best % len(DTYPES), -1)


def engines(device: Accelerator) -> NDArray[np.int8]:
    """Engine of each element type on a device; where its peaks are not known, that which other devices have for it."""
    units = [multiplication(device, name).unit if device.peak_flops else unit_of(name) for name in DTYPES]
    return np.array([NARROW if unit == "fourbit" else ENGINES.index(unit) for unit in units], np.int8)
