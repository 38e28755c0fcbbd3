"""The same step at another batch size or sequence length, with its vocabulary padded, or heads of keys copied.

Only what depends on the batch changes: activations, their gradients and the work on them.  Weights, their
gradients, optimizer states and the optimizer's work do not.  Which dimensions follow the batch is a fact of the
trace (``values.symbols``); where the source did not establish it, it is found here by walking the batch from
the inputs through the operators (:mod:`triosim.trace.symbols`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.core.columns import Ragged, distinct
from triosim.core.errors import InputError, quoted, unknown
from triosim.trace.builder import MOST_BITS
from triosim.trace.calls import calls_of, count_work, with_arguments
from triosim.trace.repeated import ROOM
from triosim.trace.symbols import batch_seeds, propagate_symbol
from triosim.trace.tables import BATCH, GUESSES, JOINED_HEADS, KEY_HEADS, SYMBOLS, UNDECIDED, Phase, Trace


def of_batch(trace: Trace, samples: int) -> Trace:
    """The trace with the batch size of its step stated.

    Args:
        trace: a trace that does not say its batch size, or guesses it.
        samples: of the whole step, all micro-batches together.

    Raises:
        InputError: they cannot be shared among the micro-batches that the step accumulates the gradients of.
    """
    parts = trace.meta.micro_batches
    if samples % parts:
        raise InputError(
            f"--trace-batch-size {samples} cannot be that of {quoted(trace.meta.workload)}, which accumulates the "
            f"gradients of {parts} micro-batches: give a multiple of {parts}"
        )
    return replace(trace, meta=replace(trace.meta, batch_size=samples // parts, batch_guess=""))


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
            f"trace {quoted(trace.meta.workload)} does not say its batch size, so it cannot be rescaled: "
            "give it with --trace-batch-size"
        )
    seeds = batch_seeds(trace, batch)
    if not seeds:
        raise InputError(
            f"trace {quoted(trace.meta.workload)}: no input of the step has a dimension of its batch size {batch}: "
            "give the right one with --trace-batch-size"
        )
    following = propagate_symbol(trace, seeds, batch)
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
            f"traces {quoted(trace.meta.workload)} and {quoted(other.meta.workload)} are not of the same step: "
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
    return distinct(outputs.rows()[marked[outputs.values]])


def size_of(trace: Trace, symbol: str) -> int | None:
    """What a symbol stands for in a trace, None where that is not known.

    Args:
        trace: any.
        symbol: one of :data:`triosim.trace.tables.SYMBOLS`.
    """
    meta = trace.meta
    if symbol in _STATED:
        stated: int | None = getattr(meta, _STATED[symbol])
        return stated
    bits = trace.values.symbols.values
    sizes = distinct(trace.values.shape.values[(bits & SYMBOLS[symbol]) != 0])
    return int(sizes[0]) if len(sizes) == 1 else None


_STATED = {"batch": "batch_size", "sequence": "sequence_length"}
"""Symbols whose sizes a trace states, and where."""


@kept(64, room=ROOM, size=len)
def rescale(trace: Trace, batch: int | None = None, sequence: int | None = None, **others: int | None) -> Trace:
    """The trace with its symbols taken to other sizes; row for row the same operators.

    Measured times stay in the table: they are those of the recorded shapes, and it is for an operator model
    to carry them over.

    Args:
        trace: the step.
        batch: samples; None as they are.
        sequence: tokens of each.
        others: sizes of the other symbols of :data:`triosim.trace.tables.SYMBOLS`, by name.

    Raises:
        InputError: the trace does not know its own size of a symbol, or which dimensions follow it, or a dimension
            would not be whole.
    """
    asked = {"batch": batch, "sequence": sequence, **others}
    for name in asked:
        if name not in SYMBOLS:
            raise unknown("symbol", name, SYMBOLS)
    changed = {name: size for name, size in asked.items() if size is not None and size != size_of(trace, name)}
    if not changed:
        return trace
    if "batch" in changed:
        trace = establish_symbols(trace)
    scales = [(SYMBOLS[name], size, _known(trace, name)) for name, size in changed.items()]
    scaled = _scaled(trace, scales)
    if "batch" in changed and not grown(trace, scaled).any():
        meta, guess = trace.meta, ", which is a guess" if trace.meta.batch_guess else ""
        raise InputError(
            f"no operator of trace {quoted(meta.workload)} grows with its batch size {meta.batch_size}{guess}: give "
            "the right one with --trace-batch-size, or the same step at another batch size with --batch-trace"
        )
    stated: dict[str, Any] = {_STATED[name]: size for name, size in changed.items() if name in _STATED}
    return replace(scaled, meta=replace(scaled.meta, **stated))


def _known(trace: Trace, symbol: str) -> int:
    """The size of a symbol which some dimensions follow.

    Raises:
        InputError: it is not known, or which those are.
    """
    size, name = size_of(trace, symbol), quoted(trace.meta.workload)
    if symbol == "batch":
        if not size:
            raise InputError(
                f"trace {name} does not say its batch size, so it cannot be rescaled: give it with --trace-batch-size"
            )
        return size
    if not size or not np.any(trace.values.symbols.values & SYMBOLS[symbol]):
        cure = "so --seq-len cannot change it: record it with that length" if symbol == "sequence" else "so it stays"
        raise InputError(f"trace {name}: which dimensions follow the {symbol} is not known, {cure}, or name a model")
    return size


def _check_countable(trace: Trace, extents: NDArray[np.int64], old: int, new: int) -> None:
    if float(extents.max(initial=0)) * new >= 2.0**MOST_BITS * old:
        raise _uncountable(trace, old, new)


def _uncountable(trace: Trace, old: int, new: int) -> InputError:
    return InputError(
        f"trace {quoted(trace.meta.workload)}: taken from {old} to {new}, a tensor has more bytes than can be counted: "
        "use a smaller batch or sequence"
    )


def _scaled(trace: Trace, scales: Sequence[tuple[int, int, int]]) -> Trace:
    """The trace with every dimension of a symbol taken from one size to another, given as (symbol, new, old).

    Raises:
        InputError: a dimension would not be whole, or too large.
    """
    shape, symbols = trace.values.shape, trace.values.symbols.values
    extents = shape.values.copy()
    for bit, new, old in scales:
        at = (symbols & bit) != 0
        _check_countable(trace, extents[at], old, new)
        scaled = extents[at] * new
        if np.any(scaled % old):
            odd = int(extents[at][scaled % old != 0][0])
            raise InputError(
                f"trace {quoted(trace.meta.workload)}: a dimension of {odd} does not scale from {old} to {new}"
            )
        extents[at] = scaled // old
    elements = np.bincount(shape.rows(), np.log2(np.maximum(extents, 1)), len(shape))
    if elements.max(initial=0.0) >= MOST_BITS:
        _, new, old = scales[0]
        raise _uncountable(trace, old, new)
    return count_work(replace(trace, values=replace(trace.values, shape=Ragged(extents, shape.offsets))))


VOCABULARY_MULTIPLE = 128
"""Megatron-LM pads the vocabulary to a multiple of this times the tensor-parallel ranks
(``--make-vocab-size-divisible-by``, default 128), so that each rank's part suits the matrix units."""


@kept(64, room=ROOM, size=len)
def padded_vocabulary(trace: Trace, ranks: int) -> Trace:
    """The trace with its vocabulary padded as Megatron-LM pads it, where it does not divide among ``ranks``.

    Weights, gradients, optimizer states, scores and the work on all of them grow; a note of the trace says so.  Where
    the vocabulary divides, or the trace does not know which dimensions are its (only models by name do), it is
    returned as it is.
    """
    size = size_of(trace, "vocabulary")
    if size is None or size % ranks == 0:
        return trace
    unit = VOCABULARY_MULTIPLE * ranks
    padded = -(-size // unit) * unit
    note = (
        f"vocabulary: padded from {size:,} to {padded:,}, a multiple of {VOCABULARY_MULTIPLE} x tp {ranks}, as "
        "Megatron-LM does (--make-vocab-size-divisible-by)"
    )
    return replace(rescale(trace, vocabulary=padded), meta=replace(trace.meta, notes=(*trace.meta.notes, note)))


REPEATS, SPLITS = "aten::repeat_interleave", "aten::split_with_sizes"


def with_copied_key_heads(trace: Trace, ranks: int) -> Trace:
    """The trace with as many heads of keys and values as ranks, where they are fewer and each is copied to some.

    vLLM, NeuronX Distributed (``kv_size_multiplier``) and NeMo's converters give each rank a head of its own so.
    Returned as it is where :func:`key_head_copies` is 1.
    """
    copies = key_head_copies(trace, ranks)
    if copies == 1:
        return trace
    queries, keys = attention_heads(trace) or (1, 1)
    note = f"tp {ranks}: each of the {keys} heads of keys and values is on {copies} ranks, which add up its gradients"
    scales = [(KEY_HEADS, ranks, keys), (JOINED_HEADS, queries + 2 * ranks, queries + 2 * keys)]
    made = _scaled(trace, scales)
    shapes, operators, symbols = made.values.shape.lists(), made.operators, trace.values.symbols.lists()
    for shape, bits in zip(shapes, symbols, strict=True):
        if len(shape) == 5 and bits[1] & KEY_HEADS and shape[2] == queries // keys:
            shape[2] = queries // ranks  # of those that a head was repeated to
    made = replace(made, values=replace(made.values, shape=Ragged.of(shapes)))
    args = list(operators.args)
    for row, (reads, writes) in enumerate(zip(operators.inputs.lists(), operators.outputs.lists(), strict=True)):
        name = operators.name[row]
        if name == SPLITS and sum(shapes[v][-1] for v in writes) == shapes[reads[0]][-1]:
            args[row] = with_arguments(args[row], split_sizes=[shapes[v][-1] for v in writes])
        elif name == REPEATS and shapes[reads[0]][1:2] == [ranks] and shapes[writes[0]][1:2] == [queries]:
            args[row] = with_arguments(args[row], repeats=queries // ranks)
    meta = replace(trace.meta, notes=(*trace.meta.notes, note))
    return count_work(replace(made, operators=replace(operators, args=tuple(args)), meta=meta))


def key_head_copies(trace: Trace, ranks: int) -> int:
    """Ranks that have each head of keys and values, 1 where heads are divided, or not known to be fewer."""
    if ranks <= _fewest_key_heads(trace):  # as mostly; asking which attentions there are takes a while
        return 1
    heads = attention_heads(trace)
    if heads is None or ranks <= heads[1] or ranks % heads[1] or heads[0] % ranks:
        return 1
    return ranks // heads[1]


@kept(64)
def attention_heads(trace: Trace) -> tuple[int, int] | None:
    """Heads of queries and of keys, where they are the same in all attentions that have fewer of keys."""
    if not (fewest := _fewest_key_heads(trace)):
        return None
    calls, grouped = calls_of(trace), _key_heads(trace)
    queries = set[int]()
    for row, groups in enumerate(_read_groups(trace)):
        call = calls[row]
        if call.kind == "attention" and not call.backward and (read := call.shape("query")) and len(read) > 2:
            queries.add(read[-3])
        elif groups and call.full_name == REPEATS and len(call.outputs[0]) == 4:
            queries.add(call.outputs[0][1])
    if len(queries) != 1:
        return None
    return (queries.pop(), fewest) if not np.any(grouped % fewest) else None


def _key_heads(trace: Trace) -> NDArray[np.int64]:
    """Lengths of all dimensions of fewer heads of keys."""
    values = trace.values
    lengths: NDArray[np.int64] = values.shape.values[(values.symbols.values & KEY_HEADS) != 0]
    return lengths


def _fewest_key_heads(trace: Trace) -> int:
    """The least of them, 0 where there are none."""
    lengths = _key_heads(trace)
    return int(lengths.min()) if len(lengths) else 0


def _read_groups(trace: Trace) -> list[bool]:
    """Whether the first that an operator reads has a dimension of heads of keys."""
    values, inputs = trace.values, trace.operators.inputs
    marked = np.zeros(len(values) + 1, bool)
    marked[values.symbols.rows()[(values.symbols.values & KEY_HEADS) != 0]] = True
    return [bool(len(reads)) and bool(marked[reads[0]]) for reads in inputs.lists()]


def grown(recorded: Trace, scaled: Trace) -> NDArray[np.bool_]:
    """Operators of the forward and backward passes whose work differs between the same step at two batch sizes."""
    mine, theirs = recorded.operators, scaled.operators
    more = (mine.bytes != theirs.bytes) | ((mine.flop != theirs.flop) & ~np.isnan(mine.flop))
    return np.asarray(more & (mine.phase != Phase.OPTIMIZER), np.bool_)


def grown_share(recorded: Trace, scaled: Trace) -> float | None:
    """Part of the recorded time of the passes in operators that grow with the batch.

    None where the batch is the recorded one, nothing was measured, or the two are not row for row the same.
    """
    seconds = np.where(recorded.operators.phase == Phase.OPTIMIZER, 0.0, np.nan_to_num(recorded.operators.device_s))
    total = float(seconds.sum())
    if recorded.meta.batch_size == scaled.meta.batch_size or not total or len(recorded) != len(scaled):
        return None
    return float(seconds[grown(recorded, scaled)].sum()) / total


def guessed_batch(trace: Trace) -> str:
    """What is to be said of a batch size that the trace does not state."""
    meta = trace.meta
    parts = f" in each of {meta.micro_batches} micro-batches" if meta.micro_batches > 1 else ""
    return (
        f"batch size {meta.batch_size}{parts} of the trace is a guess ({GUESSES[meta.batch_guess]}): state it with "
        "--trace-batch-size"
    )
