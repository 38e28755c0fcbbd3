"""Rows of a table looked up by number, and the gradient of the table."""

from __future__ import annotations

import math

from triosim.core.registry import registered
from triosim.operators._call import Call, CallResult
from triosim.operators._dims import GRADIENT_ROLES, Dims, Output, bounded, in_each, in_gradient, number, unknown
from triosim.operators._kind import Kind
from triosim.operators._work import INDEX, MovedBytes


@registered
class Embedding(Kind):
    """``result[..., d] = weight[indices[...], d]`` for a table [v, d]."""

    names = """
        embedding: weight indices padding_idx scale_grad_by_freq sparse
        embedding_dense embedding_sparse
        embedding_bag _embedding_bag _embedding_bag_forward_only: weight indices offsets scale_grad_by_freq mode sparse
          per_sample_weights include_last_offset padding_idx
        _embedding_bag_dense
        fbgemm::split_embedding_codegen_lookup_*
        quantized::embedding_byte quantized::embedding_4bit quantized::embedding_bag_byte_rowwise_offsets
        quantized::embedding_bag_4bit_rowwise_offsets
        """
    gradients = """
        embedding_dense_backward: grad_output indices num_weights padding_idx scale_grad_by_freq
        embedding_backward: grad indices num_weights padding_idx scale_grad_by_freq sparse
        """
    words = "embedding"
    weights = ("weight",)
    stream = "embedding"

    def results(self, call: Call) -> tuple[CallResult, ...] | None:
        table, where = call.find("weight"), call.find("indices")
        if call.backward:
            grad, rows = call.find(*GRADIENT_ROLES), number(call, "num_weights")
            if rows is None or grad < 0 or not call.inputs[grad]:
                return None
            return (CallResult((rows, call.inputs[grad][-1]), call.dtype(grad)),)
        if table < 0 or where < 0 or len(call.inputs[table]) != 2 or "bag" in call.name:
            return None
        return (CallResult((*call.inputs[where], call.inputs[table][1]), call.dtype(table)),)

    def bytes(self, call: Call) -> float:
        """Of the table only the rows that are returned are read."""
        return gathered_bytes(call) if not call.backward else super().bytes(call)

    def traffic(self, call: Call, counted: MovedBytes) -> MovedBytes:
        """The gradient of a table is filled with zeros; sorted indices then add row after row."""
        grad = call.shape("grad_output", "grad")
        if not call.backward or not grad or not call.outputs or not call.outputs[0]:
            return counted
        size = float(math.prod(grad))
        return scattered(counted, size, size / max(grad[-1], 1), float(math.prod(call.outputs[0])), call, fills=True)

    def dims(self, call: Call) -> Dims:
        table, where = call.find("weight"), call.find("indices")
        grad = call.find(*GRADIENT_ROLES) if call.backward else -1
        if where < 0:
            where = call.find("input", "self")
        if where < 0 or not call.outputs or "bag" in call.name or call.full_name.startswith("fbgemm"):
            return unknown(call)
        rank = len(call.inputs[where])
        rows, v, d = tuple(range(rank)), rank, rank + 1
        names = (*(f"m{i}" for i in rows), "v", "d")
        made = (v, d) if call.backward else (*rows, d)
        ins, outs = bounded(call, {where: rows, table: (v, d), grad: (*rows, d)}, {0: made})
        linear = in_gradient(call) if call.backward else in_each(table)
        return Dims(tuple(ins), tuple(map(Output, outs)), linear=linear, names=names)


_TABLES = ("weight", "self", "input")


def gathered_bytes(call: Call) -> float:
    """Bytes of an operator that reads of its table only what it returns."""
    read = sum(call.input_bytes(at) for at, role in enumerate(call.roles) if role not in _TABLES)
    return float(read + 2 * call.written())


def scattered(
    counted: MovedBytes, values: float, indices: float, table: float, call: Call, fills: bool = False
) -> MovedBytes:
    """``values`` elements added to a table at sorted indices.

    The sort's passes over 8 bits each read and write an index and a position.
    """
    item = call.item(0)
    touched = min(values, table)
    passes = math.ceil(math.log2(max(table / max(values / max(indices, 1.0), 1.0), 2.0)) / 8)
    sort = indices * passes * 2 * INDEX
    read = values * item + touched * item + sort
    written = (table * fills + touched) * item + sort
    return MovedBytes(counted.stream, read, written, kernels=2.0 + passes + fills)
