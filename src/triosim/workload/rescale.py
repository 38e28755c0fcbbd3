"""The same step at another batch size or sequence length.

Only what depends on the batch changes: activations, their gradients and the work on them.  Weights, their
gradients, optimizer states and the optimizer's work do not.  Which dimensions follow the batch is a fact of the
trace (``values.symbols``); where the source did not establish it, it is found here by walking the batch from
the inputs through the operators (:mod:`triosim.workload.follow`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from triosim.columns import Ragged
from triosim.errors import InputError
from triosim.workload.builder import recount
from triosim.workload.follow import batch_seeds, follow
from triosim.workload.trace import BATCH, SEQUENCE, UNDECIDED, Trace


def establish_symbols(trace: Trace) -> Trace:
    """The trace with the symbols of its dimensions found, if they were not yet.

    Raises:
        InputError: the batch size is not known, or no input has it.
    """
    if trace.meta.symbols:
        return trace
    batch = trace.meta.batch_size
    if not batch:
        raise InputError(
            f"trace {trace.meta.workload!r} does not say its batch size, so it cannot be rescaled: "
            "give it with --trace-batch-size"
        )
    seeds = batch_seeds(trace, batch)
    if not seeds:
        raise InputError(
            f"trace {trace.meta.workload!r}: no input of the step has a dimension of its batch size {batch}: "
            "give the right one with --trace-batch-size"
        )
    following = follow(trace, seeds, batch)
    symbols = [[0] * len(shape) for shape in trace.values.shape.lists()]
    for value, segments in enumerate(following.segments):
        for segment in segments:
            symbols[value][segment.dim] |= BATCH
    outputs = trace.operators.outputs.lists()
    for row in following.undecided:
        for value in outputs[row]:
            symbols[value] = [bits | UNDECIDED for bits in symbols[value]]
    values = replace(trace.values, symbols=Ragged.of(symbols, np.uint8))
    return replace(trace, values=values, meta=replace(trace.meta, symbols="propagated"))


def symbols_from(trace: Trace, other: Trace) -> Trace:
    """The trace with its symbols found by comparing it with a trace of the same step at another batch size.

    Raises:
        InputError: the traces are not of the same step, or of the same batch size.
    """
    a, b = trace.meta.batch_size, other.meta.batch_size
    if not a or not b or a == b:
        raise InputError(f"two traces of different batch size are needed, got {a} and {b}")
    if trace.operators.name != other.operators.name:
        raise InputError(
            f"traces {trace.meta.workload!r} and {other.meta.workload!r} are not of the same step: "
            f"{len(trace)} and {len(other)} operators, or their names differ"
        )
    shapes, theirs = trace.values.shape.lists(), other.values.shape.lists()
    symbols = [[0] * len(shape) for shape in shapes]
    pairs = zip(
        (*trace.operators.inputs, *trace.operators.outputs),
        (*other.operators.inputs, *other.operators.outputs),
        strict=True,
    )
    for mine, yours in pairs:
        for v, w in zip(mine.tolist(), yours.tolist(), strict=False):
            if len(shapes[v]) != len(theirs[w]):
                symbols[v] = [UNDECIDED] * len(shapes[v])
                continue
            for dim, (x, y) in enumerate(zip(shapes[v], theirs[w], strict=True)):
                if x * b == y * a and x != y:
                    symbols[v][dim] |= BATCH
                elif x != y:
                    symbols[v][dim] |= UNDECIDED
    values = replace(trace.values, symbols=Ragged.of(symbols, np.uint8))
    return replace(trace, values=values, meta=replace(trace.meta, symbols="two traces"))


def undecided(trace: Trace) -> NDArray[np.int64]:
    """Rows of operators with an output whose dependence on the batch could not be decided."""
    bits = trace.values.symbols
    marked = np.zeros(len(trace.values), bool)
    marked[bits.rows()[(bits.values & UNDECIDED) != 0]] = True
    outputs = trace.operators.outputs
    return np.unique(outputs.rows()[marked[outputs.values]])


def rescale(trace: Trace, batch_size: int | None = None, sequence_length: int | None = None) -> Trace:
    """The trace at another batch size and sequence length; row for row the same operators.

    Measured times stay in the table: they are those of the recorded shapes, and it is for an operator model
    to carry them over.

    Raises:
        InputError: the trace does not say its own batch size or sequence length, or a dimension would not be whole.
    """
    meta = trace.meta
    scales: list[tuple[int, int, int]] = []
    if batch_size is not None and batch_size != meta.batch_size:
        trace = establish_symbols(trace)
        if not meta.batch_size:
            raise InputError(
                f"trace {meta.workload!r} does not say its batch size, so it cannot be rescaled: "
                "give it with --trace-batch-size"
            )
        scales.append((BATCH, batch_size, meta.batch_size))
    if sequence_length is not None and sequence_length != meta.sequence_length:
        if not meta.sequence_length or not np.any(trace.values.symbols.values & SEQUENCE):
            raise InputError(
                f"trace {meta.workload!r}: which dimensions follow the sequence is not known, so --seq-len cannot "
                "change it: record it with that length, or name a model"
            )
        scales.append((SEQUENCE, sequence_length, meta.sequence_length))
    if not scales:
        return trace
    shape, symbols = trace.values.shape, trace.values.symbols.values
    extents = shape.values.copy()
    for bit, new, old in scales:
        at = (symbols & bit) != 0
        scaled = extents[at] * new
        if np.any(scaled % old):
            raise InputError(
                f"trace {meta.workload!r}: a dimension of {int(extents[at][scaled % old != 0][0])} does not scale "
                f"from {old} to {new}"
            )
        extents[at] = scaled // old
    values = replace(trace.values, shape=Ragged(extents, shape.offsets))
    meta = replace(
        trace.meta,
        batch_size=batch_size if batch_size is not None else meta.batch_size,
        sequence_length=sequence_length if sequence_length is not None else meta.sequence_length,
    )
    return recount(replace(trace, values=values, meta=meta))
