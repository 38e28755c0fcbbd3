"""Steps that accumulate gradients: several forward and backward passes before one optimizer step.

Gradient accumulation runs micro-batches one after another and adds their gradients up in the same storages; the
optimizer runs once.  Such a step is reduced to *one* of its micro-batches and the optimizer
(:func:`one_micro_batch`), and ``meta.micro_batches`` says how often it ran: the form in which every other trace is, so
that another batch, pipelines and the rest work as they do for those.

The micro-batch that is kept is the one of median device time among those that add to gradients which are there already
(the first of a step does not, where they are set to None).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.operators import canonical, kind
from triosim.trace.tables import BATCH, NONE, PERSISTENT, Category, Phase, Trace, Values

TELLING = frozenset(("linear", "matmul", "experts", "convolution", "attention", "embedding", "normalization"))
"""Kinds of operators by which passes are compared."""

_GIVEN = (Category.INPUT, Category.LABEL)


def passes(phases: Sequence[int], keys: Sequence[Hashable]) -> list[range]:
    """Rows of each forward and backward pass of a step, where several alike come before one optimizer step.

    A pass begins with the first forward operator after a backward one.

    Args:
        phases: of the operators in their order, :class:`~triosim.trace.tables.Phase` codes.
        keys: what must be the same in every pass, for each operator; None for those that may differ.

    Returns:
        The passes in order, or nothing: there is only one, the optimizer runs between them, or they differ.
    """
    backward = [row for row, phase in enumerate(phases) if phase in (Phase.BACKWARD, Phase.RECOMPUTE)]
    if not backward:
        return []
    starts = [next(row for row, phase in enumerate(phases) if phase != Phase.OPTIMIZER)]
    differentiated = False
    for row in range(starts[0], backward[-1] + 1):
        phase = phases[row]
        if phase == Phase.OPTIMIZER and differentiated:
            return []
        if phase == Phase.FORWARD and differentiated:
            starts.append(row)
            differentiated = False
        differentiated = differentiated or phase in (Phase.BACKWARD, Phase.RECOMPUTE)
    found: list[range] = []
    of_passes: list[tuple[Hashable, ...]] = []
    for start, stop in zip(starts, [*starts[1:], backward[-1] + 1], strict=True):
        key = tuple(keys[r] for r in range(start, stop) if phases[r] == Phase.FORWARD and keys[r] is not None)
        if key or not found:
            found.append(range(start, stop))
            of_passes.append(key)
        else:  # a further backward of the same pass
            found[-1] = range(found[-1].start, stop)
    alike = len(found) > 1 and of_passes[0] and all(key == of_passes[0] for key in of_passes)
    return found if alike else []


def median_pass(found: Sequence[range], seconds: Sequence[float]) -> range:
    """The pass of median time (the lower of two) among all but the first.

    Args:
        found: the passes.
        seconds: device time of each operator, NaN where not measured.
    """
    later = sorted(found[1:], key=lambda rows: float(np.nansum([seconds[row] for row in rows])))
    return later[(len(later) - 1) // 2]


def one_micro_batch(trace: Trace) -> Trace:
    """The trace of one micro-batch of a step that accumulates gradients; any other trace as it is.

    ``meta.batch_size`` becomes that of the micro-batch.
    """
    operators = trace.operators
    if trace.meta.micro_batches > 1 or not _turns_back(operators.phase):
        return trace
    kinds = {name: kind(name) for name in set(operators.name)}
    keys = [
        (canonical(name)[0], module) if kinds[name] in TELLING else None
        for name, module in zip(operators.name, operators.module.tolist(), strict=True)
    ]
    found = passes(operators.phase.tolist(), keys)
    if not found or not _same_gradients(trace, found):
        return trace
    kept = median_pass(found, operators.device_s.tolist())
    rows = np.union1d(_set_up(trace, found, kept), np.arange(found[-1].stop, len(trace)))
    rows = np.union1d(rows, np.arange(kept.start, kept.stop)).astype(np.int64)
    chosen = _pruned(trace.select(rows))
    if trace.meta.symbols and not _follows_batch(chosen):
        chosen = replace(chosen, meta=replace(chosen.meta, symbols=""))  # found where the batch is cut by a number
    batch, unequal = _batch_size(trace, kept, bool(chosen.meta.symbols), len(found))
    notes = [accumulation_note(len(found))]
    if unequal:
        notes.append(f"the step is of {trace.meta.batch_size} samples, which its micro-batches do not share equally")
    meta = replace(chosen.meta, batch_size=batch, micro_batches=len(found))
    return replace(chosen, meta=meta).noted(*notes)


def accumulation_note(count: int) -> str:
    """What a reader of the trace is told."""
    return f"the step accumulates the gradients of {count} micro-batches: the one of median time stands for all"


def _turns_back(phase: NDArray[np.int8]) -> bool:
    """Whether a forward operator comes between two backward ones: a cheap sign that there may be several passes."""
    main = phase[phase != Phase.OPTIMIZER]
    return int(np.count_nonzero((main[1:] == Phase.FORWARD) & (main[:-1] != Phase.FORWARD))) > 0


def _same_gradients(trace: Trace, found: Sequence[range]) -> bool:
    """Whether the gradient of some parameter is written in several passes, where identities are exact."""
    if trace.meta.identity != "exact":
        return True
    values, outputs = trace.values, trace.operators.outputs.lists()
    mine = (values.category == Category.GRADIENT) & (values.of >= 0)
    written = [{int(values.storage[v]) for row in rows for v in outputs[row] if mine[v]} for rows in found]
    return bool(written[0] & written[1])


def _set_up(trace: Trace, found: Sequence[range], kept: range) -> NDArray[np.int64]:
    """Rows outside of the kept pass that it needs: what comes before the first one, and casts of weights in the first.

    Views are not among them: without the operator that made it, a value is a part of what was there before.
    """
    operators, values = trace.operators, trace.values
    inputs, views = operators.inputs.lists(), operators.view.tolist()
    is_weight = (values.category == Category.WEIGHT).tolist()
    wanted = list(range(found[0].start))  # such as setting gradients to zero
    if kept == found[0]:
        return np.array(wanted, np.int64)
    first = found[0]
    reads_weight = (row for row in first if any(is_weight[v] for v in inputs[row]))
    begins = next(reads_weight, first.start)
    casts = {
        row
        for row in first
        if inputs[row] and all(is_weight[v] for v in inputs[row]) and kind(operators.name[row]) == "copy"
    }
    candidates = (set(range(first.start, begins)) | casts) - {row for row in first if views[row]}
    writers = trace.writers()
    waiting, needed = list(kept), set()
    while waiting:
        for writer in writers[waiting.pop()]:
            if writer in candidates and writer not in needed:
                needed.add(writer)
                waiting.append(writer)
    return np.array(sorted({*wanted, *needed}), np.int64)


def _pruned(trace: Trace) -> Trace:
    """The trace without values that nothing uses, and parts of what the step was given as wholes of their own."""
    operators, values = trace.operators, trace.values
    used = np.isin(values.category, PERSISTENT)
    for ids in (operators.inputs.values, operators.outputs.values):
        used[ids] = True
    used[values.of[used & (values.of >= 0)]] = True
    new = np.full(len(values) + 1, NONE, np.int64)
    new[:-1][used] = np.arange(int(used.sum()))
    rows = np.flatnonzero(used)
    _, storage = np.unique(values.storage[rows], return_inverse=True)
    kept = Values(
        storage=storage.astype(np.int32),
        version=values.version[rows],
        offset=values.offset[rows],
        shape=values.shape.take(rows),
        dtype=values.dtype[rows],
        category=values.category[rows],
        of=new[values.of[rows]].astype(np.int32),
        name=tuple(values.name[row] for row in rows.tolist()),
        symbols=values.symbols.take(rows),
    )
    first = np.full(int(storage.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, storage, kept.offset)
    given = np.isin(kept.category, _GIVEN)
    kept = replace(kept, offset=np.where(given, kept.offset - first[storage], kept.offset))
    inputs, outputs = (
        Ragged(new[column.values].astype(np.int32), column.offsets) for column in (operators.inputs, operators.outputs)
    )
    return replace(trace, operators=replace(operators, inputs=inputs, outputs=outputs), values=kept)


def _follows_batch(trace: Trace) -> bool:
    """Whether a dimension of what the step was given is known to follow the batch."""
    given = np.isin(trace.values.category, _GIVEN)
    symbols = trace.values.symbols
    return bool(np.any((symbols.values & BATCH != 0) & given[symbols.rows()]))


def _batch_size(trace: Trace, kept: range, follows: bool, count: int) -> tuple[int | None, bool]:
    """Samples of a micro-batch, and whether those of the step are not as many times more.

    A batch size that was guessed was guessed from operators of one micro-batch.  One that was stated is either that of
    what each micro-batch was given, or of the step, of which each was given its share.

    Args:
        trace: of the whole step.
        kept: rows of one pass.
        follows: whether it is known which dimensions follow the batch.
        count: passes of the step.
    """
    batch = trace.meta.batch_size
    if batch is None or trace.meta.batch_guess:
        return batch, False
    shapes, symbols = trace.values.shape.lists(), trace.values.symbols.lists()
    extents = [
        extent
        for value in _entering(trace, kept)
        for place, extent in enumerate(shapes[value])
        if extent and (symbols[value][place] & BATCH if follows else place == 0)
    ]
    if batch in extents:
        return batch, False
    share = batch / count
    nearest = min(extents, key=lambda extent: abs(extent - share), default=None)
    if nearest is None or nearest > 2 * share:
        return max(batch // count, 1), bool(batch % count)
    return nearest, nearest != share


def _entering(trace: Trace, rows: range) -> list[int]:
    """Values that a pass reads and that come from outside of it, without what outlasts the step."""
    operators, values = trace.operators, trace.values
    lasting = np.isin(values.category, PERSISTENT) | (values.category == Category.GRADIENT)
    storage = values.storage.tolist()
    inputs, outputs, views = operators.inputs.lists(), operators.outputs.lists(), operators.view.tolist()
    made: set[int] = set()
    found: dict[int, None] = {}
    for row in rows:
        if not views[row]:
            found.update((v, None) for v in inputs[row] if storage[v] not in made and not lasting[v])
            made.update(storage[v] for v in outputs[row])
    return list(found)
