"""One rank's experts of a step, and the rows that travel to them and back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.operators import ExpertsWork
from triosim.operators.experts import expert_sizes
from triosim.partition.dispatch import Dispatch, DispatchHop
from triosim.partition.facts import Facts
from triosim.partition.partition import along_axis
from triosim.partition.placements import Shard
from triosim.partition.routing import rank_shares
from triosim.partition.rule import Placing, Rule
from triosim.partition.rules.megatron import Megatron
from triosim.partition.step import Step
from triosim.partition.transfers import ALL_GATHER, REDUCE_SCATTER, Transfer, Transfers
from triosim.trace.calls import calls_of, count_work
from triosim.trace.tables import NONE, Category, Phase, Trace, Values
from triosim.transform.quantization import CASTS, PADDING

_COUNTS = ("histc", "bincount")
"""What they make is as long as there are experts."""

_CHOICES = ("topk",)
"""What takes the experts of each token."""


@dataclass(frozen=True)
class ExpertPairs(Rule):
    """Divides the products of every expert in pairs, by column and then by row, and nothing else.

    Attributes:
        parameters: of the experts.
    """

    axis: ClassVar[str] = "etp"

    parameters: frozenset[int]

    def place(self, facts: Facts, placing: Placing) -> Placing:
        """Their weights.

        Raises:
            PlanError: none of them can be divided so.
        """
        found = Megatron().place(facts, placing)
        weights = {weight: dim for weight, dim in found.weights.items() if weight in self.parameters}
        if not weights:
            why = f": {found.refused[0]}" if found.refused else ": give etp 1, or own-tokens=off for experts left whole"
            raise PlanError(
                f"experts: etp {placing.size} cannot divide the experts of {facts.trace.meta.workload or 'the trace'}"
                f"{why}"
            )
        return replace(placing, weights=weights, chosen=True)


FEW = 8
"""Inputs of an operator on one tensor, at most: a parameter, its gradient and states."""


@dataclass(frozen=True)
class ExpertPass:
    """One pass through the experts of a layer: its forward, its backward, or its forward run again.

    Attributes:
        rows: operators that multiply by the experts' weights or make their gradients.
        experts: how many there are.
        tokens: rows of the products, each a token and an expert that it takes.
        given, made: what goes in, tokens or gradients, and what comes out, as value ids; -1 where that is not found.
            Where products read what was cast to fewer bits, ``given`` is what was cast.
        sent_after: operator that makes what goes in.
        read_at: first operator that reads it: that of ``rows``, or what casts.
        needed_before: first operator that reads what comes out (as many as operators where none does).
        back_after: operator that makes what comes out.
        elements: of what one rank sends.
        chosen: experts that a token takes; 1 where that is not found.
    """

    rows: tuple[int, ...]
    experts: int
    tokens: int
    given: int
    made: int
    sent_after: int
    read_at: int
    back_after: int
    needed_before: int
    elements: int
    chosen: float = 1.0


@kept(8)
def spread(
    step: Step, dispatch: Dispatch, imbalance: float, routing: float | tuple[float, ...] = 0.0, etp: int = 1,
    etp_axis: int = NONE, capacity: float = 0.0, padded: bool = True,
) -> Step:  # fmt: skip
    """The step of a rank that has one part of the experts.

    Args:
        step: with all experts.
        dispatch: the ranks among which the experts are divided, and how rows travel among them.
        imbalance: rows of the fullest rank over the mean.
        routing: which experts tokens take, as :func:`~triosim.partition.routing.routing_of` gives it; its fullest rank
            multiplies the imbalance.
        etp: ranks with tokens of their own that divide each expert: they gather what came to any of them, and scatter
            the sums of what they make of it.
        etp_axis: row of the mesh's axes along which they are.
        capacity: rows that every expert has, over the mean, whatever tokens take; 0 for those that come.
        padded: whether an expert that gets fewer rows works on as many; otherwise it takes what comes, up to these.

    Raises:
        PlanError: there are no experts, they do not divide, or the routing is of other experts.
    """
    trace, size = step.trace, dispatch.ranks
    passes, parameters, held = _experts_in(trace)
    name = trace.meta.workload or "the trace"
    if not passes:
        raise PlanError(f"experts: {name} has no layer of experts: leave ep out")
    counts = {one.experts for one in passes}
    if any(count % size for count in counts):
        near = ", ".join(str(n) for n in range(1, min(counts) + 1) if not any(count % n for count in counts))
        raise PlanError(
            f"experts: the {' and '.join(map(str, sorted(counts)))} experts of {name} do not divide by ep {size}: "
            f"sizes that do are {near}"
        )
    width = trace.values.bytes() / np.maximum(trace.values.elements(), 1)
    if capacity and padded:
        fullest = [capacity] * len(passes)
    else:
        most = capacity or math.inf
        fullest = [min(imbalance * _fullest(one, size, routing, most), most) for one in passes]
    sent = []
    for one, more in zip(passes, fullest, strict=True) if size * etp > 1 else ():
        hops = dispatch.hops(one.experts, one.chosen) if size > 1 else []
        if etp > 1:
            hops.append(DispatchHop(etp_axis, ALL_GATHER, REDUCE_SCATTER, etp * one.chosen, fills=True))
        row, own = one.elements / one.chosen, float(width[one.given])
        rows = [row * hop.times * (more if hop.there != ALL_GATHER or hop.fills else 1) for hop in hops]
        there = [math.ceil(n * dispatch.there(own)) for n in rows]
        back = [math.ceil(n * own) for n in rows]
        sent += [
            Transfer(one.sent_after, one.read_at, hop.there, hop.axis, n, one.given, hop.beside)
            for hop, n in zip(hops, there, strict=True)
        ]
        sent += [
            Transfer(one.back_after, one.needed_before, hop.back, hop.axis, n, one.made, hop.beside)
            for hop, n in zip(hops[::-1], back[::-1], strict=True)
        ]
    values = _cut(trace.values, held, size)
    if (size * etp > 1 or capacity) and any(more * etp != 1 for more in fullest):
        values = _crowded(values, trace, passes, [more * etp for more in fullest])
    count = len(step.homes.values)
    homes = replace(step.homes, values=_cut(step.homes.values, held[held < count], size))
    made = replace(step, trace=count_work(replace(trace, values=values)), homes=homes, apart=frozenset(parameters))
    if 0 < capacity < 1:
        dropped = (
            f"experts: capacity {capacity:g} drops at least {1 - capacity:.0%} of what tokens choose; the model FLOP "
            "utilization counts it all"
        )
        made = replace(made, notes=(*made.notes, dropped))
    if etp > 1:  # what is added up is scattered where rows go back, and no later
        made = along_axis(made, "etp", etp, [ExpertPairs(frozenset(parameters))], etp_axis, None)
        made = replace(made, apart=frozenset(parameters), transfers=step.transfers)
    return replace(made, transfers=step.transfers.with_more(Transfers.of(sent)))


def experts_of(trace: Trace) -> int:
    """How many experts a layer has, 0 without any; of layers that differ the greatest common divisor."""
    return math.gcd(*(one.experts for one in _experts_in(trace)[0]))


@kept(16)
def _experts_in(trace: Trace) -> tuple[tuple[ExpertPass, ...], frozenset[int], NDArray[np.int64]]:
    """The passes through experts, and what :func:`_held` says: the same however experts are divided."""
    passes = tuple(_passes(trace))
    parameters, held = _held(trace, passes) if passes else (set[int](), np.zeros(0, np.int64))
    return passes, frozenset(parameters), held


def routed(facts: Facts, seed: tuple[int, Shard]) -> tuple[frozenset[int], dict[int, Shard]]:
    """What ranks that share sequences do each with tokens of their own in layers of experts: sort and take rows.

    Args:
        facts: of a step.
        seed: an input and its Shard along the sequence.

    Returns:
        Rows of the operators, and the Shards of the tokens, and of the experts that each takes, in what they make.

    Raises:
        PlanError: the layers are not known, for operators have no modules.
    """
    trace, (value, shard) = facts.trace, seed
    products = [row for row in range(len(trace)) if facts.calls[row].kind == "experts"]
    inside = _in_layers_of_experts(facts, products)
    shape = facts.shapes[value]
    tokens = math.prod(shape[: shard.dim + 1])
    works = [expert_sizes(facts.calls[row]) for row in products]
    counts = {math.prod(shape), *(round(known.tokens) for known in works if known is not None)}
    rows, places = set[int](), dict[int, Shard]()
    for row in range(len(trace)):
        kind = facts.calls[row].kind
        if not inside[row] or facts.phase[row] == Phase.OPTIMIZER:
            continue
        if trace.operators.view[row] or (kind not in ("index", "permutation", "create") and facts.dims(row).known):
            continue
        for made in facts.outputs[row] if facts.calls[row].name not in _COUNTS else ():
            at = next((dim for dim, extent in enumerate(facts.shapes[made]) if extent in counts), NONE)
            if at != NONE:
                inner = facts.shapes[made][at] // tokens
                places[made] = Shard(at, tokens // shard.size, shard.size, inner)
        if kind != "create" or any(made in places for made in facts.outputs[row]):
            rows.add(row)
    return frozenset(rows), places


def _in_layers_of_experts(facts: Facts, products: Iterable[int]) -> list[bool]:
    """Whether each operator is in a module of experts, with what chooses them.

    Raises:
        PlanError: operators have no modules.
    """
    module, paths = facts.trace.operators.module.tolist(), facts.trace.modules.path
    layers = {paths[module[row]].rpartition(".")[0] if module[row] != NONE else "" for row in products}
    if "" in layers:
        raise PlanError(
            f"tokens of {facts.trace.meta.workload or 'the trace'} choose experts, and where is not known without "
            "names of modules: leave cp and etp out"
        )
    inside = [any(f"{path}.".startswith(f"{layer}.") for layer in layers) for path in paths]
    return [number != NONE and inside[number] for number in module]


def with_whole_experts(facts: Facts, placing: Placing, alone: frozenset[int], places: Mapping[int, Shard]) -> Placing:
    """Nothing of the experts placed, who work on the tokens that rest with each rank.

    Args:
        facts: of a step.
        placing: what rests between layers included.
        alone, places: what each rank does with tokens of its own, as of :func:`routed`.
    """
    experts = _experts_in(facts.trace)[1]
    weights = {weight: dim for weight, dim in placing.weights.items() if weight not in experts}
    products = [row for row in range(len(facts.calls)) if facts.calls[row].kind == "experts"]
    inside = _in_layers_of_experts(facts, products)
    own = {row for row, layer in facts.layer_of.items() if inside[row] and layer.weight not in weights}
    return replace(
        placing, weights=weights, resting={**places, **placing.resting}, alone=placing.alone | alone,
        own=placing.own | own | set(products), left=placing.left | experts,
    )  # fmt: skip


def _cut(values: Values, held: NDArray[np.int64], size: int) -> Values:
    """Values with their first dimension cut into ``size`` parts."""
    extents = values.shape.values.copy()
    extents[values.shape.offsets[held]] //= size
    return replace(values, shape=Ragged(extents, values.shape.offsets))


def _fullest(one: ExpertPass, size: int, routing: float | tuple[float, ...], capacity: float) -> float:
    """Rows of the fullest rank over the mean; exactly 1 where all experts are alike, and drop nothing."""
    return float(rank_shares(routing, one.experts, one.chosen, size, capacity).max() * size) if routing else 1.0


def _crowded(values: Values, trace: Trace, passes: Iterable[ExpertPass], fullest: Iterable[float]) -> Values:
    """Values with more rows between dispatch and combine, on the rank that has most of them."""
    inputs, outputs, lists = trace.operators.inputs.lists(), trace.operators.outputs.lists(), trace.values.shape.lists()
    places: dict[int, float] = {}
    for one, more in zip(passes, fullest, strict=True):
        for row in range(one.read_at, one.rows[-1] + 1):
            for value in (*inputs[row], *outputs[row]):
                shape = lists[value]
                if len(shape) == 2 and one.tokens in shape:
                    places[int(values.shape.offsets[value]) + list(shape).index(one.tokens)] = more
    at = np.array(list(places), np.int64)
    extents = values.shape.values.copy()
    extents[at] = np.ceil(extents[at] * np.array(list(places.values()))).astype(extents.dtype)
    return replace(values, shape=Ragged(extents, values.shape.offsets))


def _held(trace: Trace, passes: Iterable[ExpertPass]) -> tuple[set[int], NDArray[np.int64]]:
    """Parameters of experts, and all values whose first dimension is the experts: weights, gradients, states.

    What an operator makes of such a value in the same shape (a cast, a sum of gradients) is one too.  Biases lie beside
    the weights in a module and have as many rows.
    """
    facts, count = Facts(trace), {row: one.experts for one in passes for row in one.rows}
    shapes, storage, name = facts.shapes, facts.storage, trace.values.name
    first = {storage[v]: v for v in trace.weights().tolist()}
    parameters: dict[int, int] = {}
    storages: dict[int, int] = {}
    for row, experts in count.items():
        for value in facts.inputs[row]:
            weight = facts.parameter(value)
            if facts.category[weight] == Category.WEIGHT and shapes[weight][:1] == (experts,):
                parameters[first.get(storage[weight], weight)] = experts
        storages.update((storage[v], experts) for v in facts.outputs[row] if len(shapes[v]) == 3)
    homes = {(name[p].rpartition(".")[0], experts) for p, experts in parameters.items() if name[p]}
    for weight in first.values():
        home = name[weight].rpartition(".")[0]
        if name[weight] and (home, *shapes[weight][:1]) in homes:
            parameters[weight] = shapes[weight][0]
    storages.update((storage[p], experts) for p, experts in parameters.items())
    for value, of in enumerate(facts.of):
        owner = first.get(storage[of], of) if of >= 0 else NONE
        if owner in parameters:
            storages[storage[value]] = parameters[owner]
    for row, (reads, writes) in enumerate(zip(facts.inputs, facts.outputs, strict=True)):
        if row not in count and len(reads) <= FEW:  # an optimizer of all tensors at once tells nothing of a single one
            made = {shapes[v]: storages[storage[v]] for v in reads if storage[v] in storages and len(shapes[v]) > 1}
            for value in writes:
                if shapes[value] in made:
                    storages.setdefault(storage[value], made[shapes[value]])
    held = [v for v, where in enumerate(storage) if where in storages and shapes[v][:1] == (storages[where],)]
    return set(parameters), np.array(held, np.int64)


def _passes(trace: Trace) -> Iterator[ExpertPass]:
    """Passes through experts in order of their first operator: operators of one module and phase."""
    calls, operators = calls_of(trace), trace.operators
    found: dict[tuple[int, int, int], list[int]] = {}
    turns: dict[tuple[int, int], int] = {}
    before: tuple[int, int] | None = None
    works: dict[int, ExpertsWork] = {}
    for row, phase in enumerate(operators.phase.tolist()):
        if phase == Phase.OPTIMIZER or calls[row].kind != "experts":
            continue
        known = expert_sizes(calls[row])
        if known is None:
            continue
        works[row] = known
        key = int(operators.module[row]), phase
        turns[key] = turns.get(key, 0) + (key != before)  # a module that runs several times passes several times
        before = key
        found.setdefault((*key, turns[key]), []).append(row)
    for (_, phase, _), rows in found.items():
        one = _expert_pass(trace, rows, works, phase)
        if one is not None:
            yield one


def _expert_pass(trace: Trace, rows: list[int], works: dict[int, ExpertsWork], phase: int) -> ExpertPass | None:
    """What goes in and what comes out; None where that is not found."""
    inputs, outputs, storage = trace.operators.inputs.lists(), trace.operators.outputs.lists(), trace.values.storage
    writers, shapes = trace.writers(), trace.values.shape.lists()
    known, own = works[rows[0]], set(rows)
    tokens = round(known.tokens)
    phases = trace.operators.phase
    given = [
        (writer, value) for value, writer in zip(inputs[rows[0]], writers[rows[0]], strict=True)
        if writer >= 0 and phases[writer] == phase and len(shapes[value]) == 2 and tokens in shapes[value]
    ]  # fmt: skip
    made = [(row, v) for row in rows for v in outputs[row] if len(shapes[v]) == 2 and shapes[v][0] == tokens]
    if not given or not made:
        return None
    sent_after, value = max(given)
    read_at = rows[0]
    while trace.operators.name[sent_after] in (*CASTS, PADDING):  # rows travel as they are computed
        value, sent_after = inputs[sent_after][0], int(writers[sent_after][0])
        read_at = next(
            row for row in range(sent_after + 1, rows[0] + 1)
            if not trace.operators.view[row] and any(storage[v] == storage[value] for v in inputs[row])
        )  # fmt: skip
    back_after, result = made[-1]
    where = storage[result]
    readers = (
        row for row in range(back_after + 1, len(trace))
        if row not in own and any(storage[v] == where for v in inputs[row])
    )  # fmt: skip
    last = next(readers, len(trace))
    elements = math.prod(shapes[value]) * (round(known.topk) if known.matrices > 1 else 1)
    chosen = known.topk if known.topk > 1 else _chosen(trace, rows[0], tokens)
    return ExpertPass(
        tuple(rows), round(known.experts), tokens, value, result, sent_after, read_at, back_after, last, elements,
        chosen,
    )  # fmt: skip


def _chosen(trace: Trace, before: int, pairs: int) -> float:
    """Experts of each token, of the last choice among them that makes so many pairs; 1 where there is none."""
    calls, outputs, shapes = calls_of(trace), trace.operators.outputs.lists(), trace.values.shape.lists()
    for row in range(before - 1, -1, -1):
        if calls[row].name in _CHOICES:
            for value in outputs[row]:
                if len(shapes[value]) >= 2 and math.prod(shapes[value]) == pairs:
                    return float(shapes[value][-1])
    return 1.0
