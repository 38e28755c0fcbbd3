"""What the storages of a foreign step are for: parameters, gradients, optimizer states, buffers, inputs, activations.

Foreign sources name no parameters.  They are found by what is done with them: the forward pass reads them under the
name of a weight, or the optimizer writes to them.  Their order of registration is that of the optimizer's lists; where
no optimizer ran, that of first use.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterator, Sequence

from triosim.core.dataclass import dataclass
from triosim.operators import canonical
from triosim.sources.readers._step import OperatorRow, Shape, Storage, whole_value
from triosim.trace.tables import Category, Phase

_WEIGHTED = ("linear", "matmul", "convolution", "normalization", "embedding", "attention", "other")
_WEIGHT_ROLES = ("weight", "bias")
_PRODUCT_ROLES = ("mat2", "batch2")
_FORWARD = (Phase.FORWARD, Phase.RECOMPUTE)


@dataclass(frozen=True)
class BatchShape:
    """The batch of a step as its shapes show it.

    Attributes:
        size: samples, None where nothing shows them.
        guess: how it was found, a key of :data:`~triosim.trace.tables.GUESSES`, ``""`` where it was not.
        sequence: extent of dimension 1 of token numbers that are looked up in an embedding, None where there are none.
    """

    size: int | None = None
    guess: str = ""
    sequence: int | None = None


@dataclass(frozen=True)
class ValuePurposes:
    """Purpose of each value of a step, as :func:`decide` finds it.

    Attributes:
        weights: storages of the parameters in registration order.
        without_gradient: those of them for which the step makes no gradient.
        batch: of the step.
    """

    weights: list[Storage]
    without_gradient: list[Storage]
    batch: BatchShape


def decide(rows: Sequence[OperatorRow]) -> ValuePurposes:
    """Set category, owner and name of every storage that the resolved rows use."""
    everything = list(_storages(rows))
    weights = find_weights(rows)
    for storage in weights:
        storage.category = Category.WEIGHT
    aligned = aligned_with_weights(rows, weights)
    _gradients(rows, weights, aligned)
    used = _first_uses(rows)
    for storage in everything:
        if storage.category is None:
            storage.category, storage.of = _category(storage, aligned, used.get(id(storage)))
    name_modules(rows)
    _name(rows, weights)
    covered = {id(s.of) for s in everything if s.category == Category.GRADIENT}
    return ValuePurposes(weights, [w for w in weights if id(w) not in covered], guess_batch(rows))


def _storages(rows: Sequence[OperatorRow]) -> Iterator[Storage]:
    seen: set[int] = set()
    for row in rows:
        for value in (*row.inputs, *row.outputs):
            if id(value.storage) not in seen:
                seen.add(id(value.storage))
                yield value.storage


def find_weights(rows: Sequence[OperatorRow]) -> list[Storage]:
    """Storages of the parameters of resolved rows, in registration order."""
    trained: dict[int, Storage] = {}
    for row in rows:
        if row.phase == Phase.OPTIMIZER and "_amp_" not in row.name:
            for value in row.outputs:
                storage = value.storage
                forward = not storage.read_in.isdisjoint(_FORWARD)
                if storage.creator is None and forward and Phase.BACKWARD not in storage.written_in:
                    trained.setdefault(id(storage), storage)
    used: dict[int, Storage] = {}
    for row in rows:
        used.update((id(v.storage), v.storage) for v in row.inputs if v.storage.parameter)
        if row.phase not in _FORWARD or row.kind not in _WEIGHTED:
            continue
        for value, role in zip(row.inputs, row.roles, strict=True):
            roles = _WEIGHT_ROLES if trained or row.kind not in ("linear", "matmul") else _WEIGHT_ROLES + _PRODUCT_ROLES
            named = role in roles or role.endswith(("_weight", "_bias"))
            if named or (role == "self" and canonical(row.name)[0] == "addmm" and len(value.shape) == 1):
                origin = _origin(value.storage)
                if origin is not None and origin.floating and origin.written_in <= {Phase.OPTIMIZER}:
                    used.setdefault(id(origin), origin)
    return list({**trained, **used}.values())


def _origin(storage: Storage) -> Storage | None:
    """The storage that existed before the step from which this one was cast or copied, None if it was computed."""
    for _ in range(4):
        if storage.creator is None:
            return storage
        if storage.creator.kind not in ("copy", "view") or len(storage.creator.inputs) != 1:
            return None
        storage = storage.creator.inputs[0].storage
    return None


@dataclass(frozen=True)
class _List:
    """The tensors of one argument of an optimizer's operator."""

    row: int
    storages: tuple[Storage, ...]
    shapes: tuple[Shape, ...]


def _lists(rows: Sequence[OperatorRow]) -> Iterator[_List]:
    for index, row in enumerate(rows):
        if row.phase != Phase.OPTIMIZER:
            continue
        start = 0
        for at in range(1, len(row.roles) + 1):
            if at == len(row.roles) or row.roles[at] != row.roles[start]:
                values = row.inputs[start:at]
                yield _List(index, tuple(v.storage for v in values), tuple(v.shape for v in values))
                start = at


def aligned_with_weights(rows: Sequence[OperatorRow], parameters: Sequence[Storage]) -> dict[int, Storage]:
    """For each tensor that stands in the optimizer's lists where a parameter stands in another, that parameter.

    A list without parameters belongs to the next list of parameters of the same length and shapes; scalars (step
    counters) to the next of the same length.
    """
    weights = {id(w) for w in parameters}
    lists = list(_lists(rows))
    targets = [entry for entry in lists if entry.storages and all(id(s) in weights for s in entry.storages)]
    by_shapes: dict[object, list[_List]] = {}
    for target in targets:
        by_shapes.setdefault(target.shapes, []).append(target)
        by_shapes.setdefault(len(target.shapes), []).append(target)
    found: dict[int, Storage] = {}
    for entry in lists:
        scalars = all(shape == () for shape in entry.shapes)
        candidates = by_shapes.get(entry.shapes) or (by_shapes.get(len(entry.shapes)) if scalars else None)
        if not candidates:
            continue
        at = bisect.bisect_left(candidates, entry.row, key=lambda c: c.row)
        target = candidates[min(at, len(candidates) - 1)]
        for storage, weight in zip(entry.storages, target.storages, strict=True):
            if id(storage) not in weights and not _made_in(storage, Phase.OPTIMIZER):
                found.setdefault(id(storage), weight)
    return found


def _made_in(storage: Storage, phase: Phase) -> bool:
    return storage.creator is not None and storage.creator.phase == phase


def _gradients(rows: Sequence[OperatorRow], weights: list[Storage], aligned: dict[int, Storage]) -> None:
    """Tell which storages hold the gradient of which parameter: from the optimizer's lists, from autograd's own
    word (:attr:`OperatorRow.gradient`), or from the shapes that the backward of a parameter's operator returns."""
    mine = {id(w): w for w in weights}
    told = [row for row in rows if row.gradient]
    taken: set[int] = set()
    for row in told:
        storage, shape = row.inputs[0].storage, row.inputs[0].shape
        weight = aligned.get(id(storage)) or _differentiated(row.maker, storage, shape, mine, taken)
        if weight is not None and storage.category is None:
            storage.category, storage.of = Category.GRADIENT, weight
            taken.add(id(weight))
    for row in rows:
        for value in row.outputs if row.phase == Phase.BACKWARD else ():
            weight = aligned.get(id(value.storage))
            if weight is not None and value.storage.category is None:
                value.storage.category, value.storage.of = Category.GRADIENT, weight
                taken.add(id(weight))
    if not told:
        _by_shape(rows, mine, taken)


def _differentiated(
    maker: OperatorRow | None, storage: Storage, shape: Shape, weights: dict[int, Storage], taken: set[int]
) -> Storage | None:
    """The parameter that the operator behind a gradient reads and that has the gradient's shape."""
    if maker is None or maker.forward is None:
        return None
    candidates = [w for w in _read_weights(maker.forward, weights) if whole_value(w).shape == shape]
    if len(candidates) > 1:
        alike = [v.storage for v in maker.outputs if v.shape == shape]
        if len(alike) == len(candidates) and storage in alike:
            return candidates[alike.index(storage)]
    free = [w for w in candidates if id(w) not in taken]
    return next(iter(free or candidates), None)


def _read_weights(row: OperatorRow, weights: dict[int, Storage]) -> list[Storage]:
    found: dict[int, Storage] = {}
    for value in row.inputs:
        storage = _origin(value.storage)
        if storage is not None and id(storage) in weights:
            found.setdefault(id(storage), storage)
    return list(found.values())


def _by_shape(rows: Sequence[OperatorRow], weights: dict[int, Storage], taken: set[int]) -> None:
    groups: dict[int, list[OperatorRow]] = {}
    for row in rows:
        if row.phase == Phase.BACKWARD and row.forward is not None:
            groups.setdefault(id(row.forward), []).append(row)
    for group in groups.values():
        assert group[0].forward is not None
        wanted = [w for w in _read_weights(group[0].forward, weights) if id(w) not in taken]
        used: set[int] = set()
        for weight in wanted:
            shape = whole_value(weight).shape
            candidates = [
                value
                for row in reversed(group)  # the gradient of the input is computed first
                if not row.view
                for value in row.outputs
                if value.storage.category is None and id(value.storage) not in used
            ]
            exact = [v for v in candidates if v.shape == shape]
            turned = [v for v in candidates if len(shape) == 2 and v.shape == shape[::-1]]
            padded = [v for v in candidates if tuple(d for d in v.shape if d > 1) == tuple(d for d in shape if d > 1)]
            for value in (exact or turned or padded)[:1]:
                value.storage.category, value.storage.of = Category.GRADIENT, weight
                used.add(id(value.storage))
                taken.add(id(weight))


def _first_uses(rows: Sequence[OperatorRow]) -> dict[int, tuple[OperatorRow, str]]:
    """The first operator that reads each storage, and as which argument; views read nothing."""
    found: dict[int, tuple[OperatorRow, str]] = {}
    for row in rows:
        if not (row.view or row.gradient):
            for value, role in zip(row.inputs, row.roles, strict=True):
                found.setdefault(id(value.storage), (row, role))
    return found


def _category(
    storage: Storage, aligned: dict[int, Storage], first_use: tuple[OperatorRow, str] | None
) -> tuple[Category, Storage | None]:
    if storage.creator is not None:
        saved = storage.creator.phase in _FORWARD and Phase.BACKWARD in storage.read_in
        return (Category.ACTIVATION if saved else Category.TEMPORARY), None
    weight = aligned.get(id(storage))
    if Phase.BACKWARD in storage.written_in and weight is not None:
        return Category.GRADIENT, weight  # kept from step to step and added to
    use = first_use or storage.first_read
    if use is None:
        return Category.TEMPORARY, None
    row, role = use
    if row.phase == Phase.BACKWARD:
        gradient = Phase.BACKWARD in storage.written_in
        return (Category.GRADIENT if gradient else Category.TEMPORARY), weight if gradient else None
    if row.phase == Phase.OPTIMIZER:
        return Category.OPTIMIZER_STATE, weight
    if role.startswith("running_") or Phase.FORWARD in storage.written_in:
        return Category.BUFFER, None
    if row.kind == "loss" and role not in ("self", "input"):
        return Category.LABEL, None
    scalar = all(v.shape == () for v in storage.values.values())
    return (Category.TEMPORARY if scalar else Category.INPUT), None


def guess_batch(rows: Sequence[OperatorRow]) -> BatchShape:
    """What most operators of the forward pass take for the batch.

    The first dimension of what a convolution, attention or embedding reads is the batch by definition.  Where there are
    none of them it is taken from matrix products, whose rows may be samples or tokens, else from the first input.
    """
    votes: dict[str, Counter[int]] = {"operators": Counter(), "products": Counter()}
    lengths: dict[int, int] = {}
    first: int | None = None
    for row in rows:
        if row.phase != Phase.FORWARD:
            continue
        shapes = {role: v.shape for v, role in zip(reversed(row.inputs), reversed(row.roles), strict=True)}
        base = canonical(row.name)[0]
        source, weight = shapes.get("input", shapes.get("self", ())), shapes.get("weight", ())
        query, indices = shapes.get("query", ()), shapes.get("indices", ())
        if row.kind == "convolution" and len(source) == len(weight) > 2:
            votes["operators"][source[0]] += 1
        elif row.kind == "attention" and len(query) == 4:
            votes["operators"][query[0]] += 1
        elif base == "embedding" and len(indices) == 2:
            votes["operators"][indices[0]] += 1
            lengths.setdefault(indices[0], indices[1])
        elif base == "linear" and len(source) > 1:
            votes["products"][source[0]] += 1
        elif base in ("addmm", "mm") and len(shapes.get("mat1", source)) == 2:
            votes["products"][shapes.get("mat1", source)[0]] += 1
        if first is None:
            given = (v for v in row.inputs if v.storage.category == Category.INPUT and v.shape)
            first = next((value.shape[0] for value in given), None)
    for how, counts in votes.items():
        counts.pop(0, None)
        if counts:
            size = max(counts, key=lambda extent: (counts[extent], extent))
            return BatchShape(size, how, lengths.get(size))
    return BatchShape(first, "input") if first else BatchShape()


def name_modules(rows: Sequence[OperatorRow]) -> None:
    """Give rows a module: backward rows that of their forward row; where the source knows none, every operator
    with parameters one of its own (``conv2d_3``, numbered in forward order), the same when it reads the same ones."""
    if not any(row.module for row in rows):
        count: dict[str, int] = {}
        owner: dict[int, tuple[str, str]] = {}
        for row in rows:
            if row.phase not in _FORWARD:
                continue
            weights = [s for v in row.inputs if (s := _origin(v.storage)) and s.category == Category.WEIGHT]
            if not weights:
                continue
            if id(weights[0]) not in owner:
                base = canonical(row.name)[0]
                owner[id(weights[0])] = (f"{base}_{count.get(base, 0)}", base)
                count[base] = count.get(base, 0) + 1
            row.module, row.module_kind = owner[id(weights[0])]
    for row in rows:
        if not row.module and row.forward is not None:
            row.module, row.module_kind = row.forward.module, row.forward.module_kind
    home: dict[int, tuple[str, str]] = {}
    for row in rows:
        if row.phase in _FORWARD and row.module:
            for value in row.inputs:
                if value.storage.category == Category.WEIGHT:
                    home.setdefault(id(value.storage), (row.module, row.module_kind))
    for row in rows:
        if not row.module and row.phase in (Phase.BACKWARD, Phase.OPTIMIZER):
            owners = {home.get(id(v.storage.of or v.storage)) for v in (*row.inputs, *row.outputs)} - {None}
            if len(owners) == 1:
                row.module, row.module_kind = owners.pop()  # type: ignore[misc]


def _name(rows: Sequence[OperatorRow], weights: Sequence[Storage]) -> None:
    wanted = {id(w) for w in weights}
    used: set[str] = set()
    for row in rows:
        for value, role in zip(row.inputs, row.roles, strict=True):
            storage = _origin(value.storage) or value.storage
            known = id(storage) in wanted or storage.category == Category.BUFFER
            if row.phase in _FORWARD and known and not storage.name:
                name = f"{row.module}.{role}" if row.module else role
                if name in used:
                    name += f"_{sum(1 for other in used if other.startswith(name))}"
                used.add(name)
                storage.name = name
