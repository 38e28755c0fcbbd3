"""What every value is for, and the last word on phases."""

from __future__ import annotations

from collections import defaultdict

from triosim.operators import canonical, kind
from triosim.sources.record.observer import StepTape
from triosim.trace.tables import Category, Phase

NONE = -1
_PASSES_GRADIENT_ON = frozenset({"add", "clone", "copy", "_to_copy", "detach", "new_empty_strided"})
"""What autograd does between the last derivative and ``.grad``: sum, copy, or nothing."""


def settle_phases(tape: StepTape) -> None:
    """Tell apart what was called outside of modules and of ``Optimizer.step``, in place.

    Zeroing or clipping gradients, a hand-written update and a moving average of the weights belong to the optimizer:
    they write weights or gradients, or compute without gradient mode from them once a backward pass has ended.
    """
    storage = [v.storage for v in tape.ledger.values]
    lasting = {storage[v] for v in (*tape.parameters, *tape.states)} | set(tape.gradients)
    derived: set[int] = set()
    last = max((n for n, row in enumerate(tape.rows) if row.phase == Phase.OPTIMIZER), default=len(tape.rows))
    for number, row in enumerate(tape.rows):
        if row.phase != Phase.FORWARD or row.module != NONE:
            continue
        written = {storage[v] for v in row.written}
        reads = {storage[v] for v in row.inputs}
        updates = bool(written) and written <= lasting
        computes = row.after_backward and not row.grad_mode and bool(reads & (lasting | derived))
        if updates or computes or number > last:
            row.phase = Phase.OPTIMIZER
            derived.update(storage[v] for v in row.outputs)


def categorise(tape: StepTape) -> tuple[list[Category], list[int]]:
    """Category of every value, and the weight that a gradient or an optimizer state belongs to (else -1).

    Decided per storage: a view is for what its storage is for.
    """
    values, born = tape.ledger.values, tape.ledger.born
    storage = [v.storage for v in values]
    category: list[Category | None] = [None] * len(born)
    of = [NONE] * len(born)
    for found, what in ((tape.parameters, Category.WEIGHT), (tape.buffers, Category.BUFFER)):
        for value in found:
            if category[storage[value]] is None:
                category[storage[value]] = what
    for value, weight in tape.states.items():
        if category[storage[value]] is None:
            category[storage[value]], of[storage[value]] = Category.OPTIMIZER_STATE, weight
    for place, weight in _gradients(tape, category).items():
        category[place], of[place] = Category.GRADIENT, weight
    saved = _read_in_backward(tape)
    labels = _labels(tape)
    written_out = _numbers_in_code(tape)
    for entry in values:
        place = entry.storage
        if category[place] is not None:
            continue
        if born[place] != NONE:
            phase = tape.rows[born[place]].phase
            kept = phase in (Phase.FORWARD, Phase.RECOMPUTE) and place in saved
            category[place] = Category.ACTIVATION if kept else Category.TEMPORARY
        elif place in written_out:
            category[place] = Category.TEMPORARY
        elif place in labels:
            category[place] = Category.LABEL
        elif place in tape.inputs:
            category[place] = Category.INPUT
        elif place in tape.constants or tape.inputs or not entry.shape:
            category[place] = Category.BUFFER
        else:
            category[place] = Category.INPUT
    decided = [Category.TEMPORARY if c is None else c for c in category]
    return [decided[place] for place in storage], [of[place] for place in storage]


def _gradients(tape: StepTape, category: list[Category | None]) -> dict[int, int]:
    """Storages of gradients -> the weight: what is in ``.grad``, and what was summed or copied into it."""
    values, rows = tape.ledger.values, tape.rows
    writers: dict[int, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        if row.phase == Phase.BACKWARD and not row.view:
            for value in row.outputs:
                writers[values[value].storage].append(number)
    found = {place: weight for place, weight in tape.gradients.items() if category[place] is None}
    waiting = list(found)
    while waiting:
        place = waiting.pop()
        weight = found[place]
        for number in writers[place]:
            if canonical(rows[number].name)[0] not in _PASSES_GRADIENT_ON:
                continue
            for value in rows[number].inputs:
                source = values[value].storage
                fits = sorted(values[value].shape) == sorted(values[weight].shape)
                if fits and source not in found and category[source] is None and source in writers:
                    found[source] = weight
                    waiting.append(source)
    return found


def _read_in_backward(tape: StepTape) -> set[int]:
    """Storages that backward reads, or recomputation from before it."""
    values, born, rows = tape.ledger.values, tape.ledger.born, tape.rows
    found = set()
    for row in rows:
        if row.phase not in (Phase.BACKWARD, Phase.RECOMPUTE):
            continue
        for value in row.inputs:
            place = values[value].storage
            made = rows[born[place]].phase if born[place] != NONE else None
            if row.phase == Phase.BACKWARD or made == Phase.FORWARD:
                found.add(place)
    return found


def _numbers_in_code(tape: StepTape) -> set[int]:
    """Storages of constants such as ``torch.tensor(1.0)``, which come to be without an operator and are then lifted."""
    storage = [v.storage for v in tape.ledger.values]
    return {storage[v] for row in tape.rows if canonical(row.name)[0] == "lift_fresh" for v in row.inputs}


def _labels(tape: StepTape) -> set[int]:
    """Storages from before the step that only a loss reads, directly or through copies."""
    values, born = tape.ledger.values, tape.ledger.born
    readers: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for number, row in enumerate(tape.rows):
        if not row.view:
            for value, role in zip(row.inputs, row.roles, strict=True):
                readers[values[value].storage].append((number, role))

    def only_loss(place: int, floating: bool, depth: int = 0) -> bool:
        if not readers[place] or depth > 8:
            return False
        for number, role in readers[place]:
            row = tape.rows[number]
            if kind(row.name) == "loss":
                if floating and role != "target":
                    return False
            elif kind(row.name) != "copy" or not all(
                only_loss(values[v].storage, floating, depth + 1) for v in row.outputs
            ):
                return False
        return True

    first: dict[int, bool] = {}
    for entry in values:
        first.setdefault(entry.storage, entry.dtype.is_floating_point)
    return {place for place, floating in first.items() if born[place] == NONE and only_loss(place, floating)}
