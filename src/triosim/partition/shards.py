"""One rank's shard of the optimizer, and what it keeps of parameters that are sharded.

ZeRO 1 cuts the elements of a parameter evenly; FSDP2 cuts its first dimension, and what it sends is padded to a
multiple of the ranks' rows.  A rank's experts are cut along their second dimension where they are fewer than the ranks
that share them, as torchtitan does.  Either way the optimizer works on a part of each tensor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.core.columns import Ragged, distinct
from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.partition.mesh import Mesh
from triosim.partition.replication import Replication
from triosim.partition.step import SharedUpdate, Step
from triosim.partition.transfers import ALL_TO_ALL
from triosim.trace.blocks import blocks
from triosim.trace.calls import count_work
from triosim.trace.ownership import owners, updates_of_one
from triosim.trace.repeated import ROOM
from triosim.trace.tables import ITEM_BYTES, Category, Phase, Trace, Values


def sharded(step: Step, mesh: Mesh, placed: Replication, stages: int = 0, optimizer: str = "") -> Step:
    """The step of one of the replicas.

    Args:
        step: one rank's share of a replica.
        mesh: the ranks.
        placed: what the replicas divide among them.
        stages: pipeline stages, where the optimizer needs whole tensors, which are dealt to the replicas then, or
            brought together where replicas have parts of parameters; else 0.
        optimizer: that one, as it is typed; ``""`` where it is the step's own.

    Raises:
        PlanError: the step has neither gradients nor an optimizer to divide, and its parameters are not.
    """
    step = replace(step, replication=placed)
    if not placed.states:
        return step
    apart = placed.of_apart().shards(mesh) if step.apart else 1
    return _sharded(step, placed.shards(mesh), apart, stages, optimizer if stages else "")


@kept(64, room=2 * ROOM, size=lambda step: len(step.trace))
def _sharded(step: Step, shards: int, shards_apart: int, stages: int, optimizer: str) -> Step:
    placed = step.replication
    if not placed.regathers and not np.any(step.trace.operators.phase == Phase.BACKWARD):
        raise PlanError(f"{placed.name} divides gradients and optimizer states, which inference has not: leave it out")
    notes = step.notes
    if placed.weights and shards > 1 and not placed.modules.modules and not len(blocks(step.trace)):
        notes = (*notes, f"{placed.name}: no repeated blocks were found, so all parameters are gathered at once")
    trace, cut = step.trace, _ShardedValues.of(step.trace.values, shards, step.apart, shards_apart)
    if placed.weights:
        notes = (*notes, *_padded(trace, cut, placed.name))
    updates: tuple[SharedUpdate, ...] = ()
    if stages and placed.weights:
        from triosim.partition.shared_updates import shared_updates  # few optimizers need more than their rows

        trace, updates = shared_updates(trace, optimizer, cut.shards, cut.dim)
        sent = any(what == ALL_TO_ALL for update in updates for what, _ in update.exchanges)
        notes = (*notes, _TOGETHER if sent else _SUMMED)
    elif stages:
        trace, cut, told = dealt(trace, cut, shards, stages)
        notes = (*notes, told)
    return replace(step, trace=shard_optimizer(trace, cut, placed.weights, updates), updates=updates, notes=notes)


@dataclass(frozen=True)
class _ShardedValues:
    """How values are cut.

    Attributes:
        shards: ranks among which the parameter of each is divided, shape ``(values,)``.
        dim: the dimension along which FSDP2 does so, shape ``(values,)``.
    """

    shards: NDArray[np.int64]
    dim: NDArray[np.int64]

    @staticmethod
    def of(values: Values, shards: int, apart: frozenset[int], shards_apart: int) -> _ShardedValues:
        """Values of parameters of which replicas have different ones, theirs and those of the others."""
        own = np.isin(values.storage, values.storage[sorted(apart)])
        own |= (values.of >= 0) & own[np.maximum(values.of, 0)]
        own |= np.isin(values.storage, values.storage[own])
        return _ShardedValues(
            np.where(own, shards_apart, shards), shard_dims(values.shape, shards_apart, np.flatnonzero(own).tolist())
        )


MUCH_PADDED = 1.25
"""How many times their size parameters take where that they are padded is told."""


def _padded(trace: Trace, cut: _ShardedValues, name: str) -> Iterator[str]:
    """What is to be told where ranks that divide rows are so many that parameters are padded a lot."""
    weights = trace.weights()
    whole = trace.values.shape.take(weights).products()
    padded = _parts(trace.values.shape, cut, by_rows=True).take(weights).products() * cut.shards[weights]
    if len(weights) and padded.sum() > MUCH_PADDED * whole.sum():
        most = int(np.argmax(padded - whole))
        yield (
            f"{name}: FSDP2 pads parameters to {padded.sum() / whole.sum():.1f} times their size (most: "
            f"{trace.values.name[weights[most]]}): give --ep, or --parallelism hsdp, as they have fewer rows than ranks"
        )


_TOGETHER = (
    "optimizer: a rank has parts of matrices: all parts of one are sent to each, which orthogonalises it, and back "
    "(all-to-all in 16 bits, as Dion's and torchtitan's Muon; torch.optim.Muon would gather a part for each product)"
)
_SUMMED = "optimizer: a rank has parts of parameters: sums over what they divide are all-reduced, one by one"

ELSEWHERE = 1 << 62
"""Parts of what another rank has as a whole: of each there is next to nothing here."""


def dealt(trace: Trace, cut: _ShardedValues, shards: int, stages: int) -> tuple[Trace, _ShardedValues, str]:
    """The step of the rank that updates most elements, where parameters are updated one by one and as a whole.

    As ``torch.distributed.optim.ZeroRedundancyOptimizer`` and Megatron-LM's layer-wise optimizer do it each of these is
    on one rank, which keeps its states and runs all of its update; the largest is dealt first, to the rank that has
    least.  What one operator updates of many parameters it goes over element
    by element: that is cut evenly as ever.

    Args:
        trace: one rank's step.
        cut: how values are cut.
        shards: ranks that they are dealt to.
        stages: pipeline stages, whose ranks have a part of them each: neighbours in order of registration.

    Returns:
        The step, in which what other ranks run is not; how its values are cut; and what is to be told.
    """
    operators, values = trace.operators, trace.values
    owner, alone = owners(values), updates_of_one(trace)
    whole = set(alone.values())
    order = [int(value) for value in trace.weights() if int(values.storage[value]) in whole]
    elements = values.elements()
    mine = {
        int(values.storage[weight])
        for ranks in distinct(cut.shards[order]).tolist()  # those that share experts, and all replicas
        for some in np.array_split(np.array([w for w in order if cut.shards[w] == ranks], np.int64), stages)
        for weight in _fullest(some.tolist(), elements, ranks)
    }
    others = np.array(sorted(whole - mine), np.int64)
    parts = np.where(np.isin(owner, sorted(mine)), 1, np.where(np.isin(owner, others), ELSEWHERE, cut.shards))
    view = operators.view.copy()
    away = set(others.tolist())
    view[[row for row, of in alone.items() if of in away]] = True
    told = (
        f"optimizer: {len(order):,} parameters are updated as a whole, each on one of {shards} ranks, as torch's "
        f"ZeroRedundancyOptimizer deals them: at most {len(mine):,} on one; their gradients are all-reduced"
    )
    return replace(trace, operators=replace(operators, view=view)), _ShardedValues(parts, cut.dim), told


def _fullest(weights: list[int], elements: NDArray[np.int64], shards: int) -> list[int]:
    """The parameters of the rank that gets most of some that are dealt, the largest first."""
    ranks: list[tuple[int, int, list[int]]] = [(0, rank, []) for rank in range(min(shards, max(len(weights), 1)))]
    for weight in sorted(weights, key=lambda weight: -int(elements[weight])):
        held, rank, own = heappop(ranks)
        heappush(ranks, (held + int(elements[weight]), rank, [*own, weight]))
    return max(ranks)[2]


def shard_dims(shape: Ragged, shards_apart: int, apart: Collection[int]) -> NDArray[np.int64]:
    """The dimension of each value along which it is cut, shape ``(values,)``.

    Args:
        shape: of the values.
        shards_apart: ranks that share the values ``apart``, a rank's experts.
        apart: those.
    """
    dim = np.zeros(len(shape), np.int64)
    own = np.array(sorted(apart), np.int64)
    own = own[shape.lengths()[own] > 1]
    dim[own] = shape.values[shape.offsets[own]] < shards_apart
    return dim


def shard_optimizer(
    trace: Trace, cut: _ShardedValues, by_rows: bool, updates: Sequence[SharedUpdate] = ()
) -> Trace:  # fmt: skip
    """The step with an optimizer that updates one rank's part of every parameter.

    Operators of the optimizer work element by element, so each tensor that they touch is replaced by the part of the
    lowest rank, the largest.  Parameters and gradients keep their storages and sizes for the rest of the step.

    Args:
        trace: one rank's step.
        cut: how.
        by_rows: cut a dimension (FSDP2), else all elements evenly.
        updates: those between whose operators something is exchanged; what they make for themselves has the shapes
            already that it has on a rank.
    """
    operators, values = trace.operators, trace.values
    update = operators.phase == Phase.OPTIMIZER
    if np.all(cut.shards == 1) or not update.any():
        return trace
    count = len(values)
    touched, made, elsewhere = np.zeros(count, bool), np.zeros(count, bool), np.zeros(count, bool)
    for table in (operators.inputs, operators.outputs):
        here = update[table.rows()]
        touched[table.values[here]] = True
        elsewhere[table.values[~here]] = True
    made[operators.outputs.values[update[operators.outputs.rows()]]] = True
    own = made | np.isin(values.category, [int(Category.OPTIMIZER_STATE), int(Category.TEMPORARY)])
    viewed = np.flatnonzero(touched & (elsewhere | ~own))  # of these the optimizer sees a part, the rest all
    shapes = _parts(values.shape, cut, by_rows)
    inside = touched & ~elsewhere & own
    if updates:
        rows = [row for one in updates for rows in one.rows for row in rows]
        for table in (operators.inputs, operators.outputs):
            ready = table.values[np.isin(table.rows(), rows)]
            inside[ready[values.category[ready] == Category.TEMPORARY]] = False
    kept = np.where(inside[values.shape.rows()], shapes.values, values.shape.values)
    number = np.arange(count)
    number[viewed] = count + np.arange(len(viewed))

    def seen(table: Ragged) -> Ragged:
        ids = np.where(update[table.rows()], number[table.values], table.values)
        return Ragged(ids.astype(np.int32), table.offsets)

    operators = replace(operators, inputs=seen(operators.inputs), outputs=seen(operators.outputs))
    extended = _extended(replace(values, shape=Ragged(kept, values.shape.offsets)), viewed, shapes.take(viewed))
    return count_work(replace(trace, values=extended, operators=operators))


def _parts(shape: Ragged, cut: _ShardedValues, by_rows: bool) -> Ragged:
    """Shapes of the lowest rank's parts: fewer rows, or as many elements in the first dimension."""
    some = shape.lengths() > 0
    extents, starts = shape.values.astype(np.int64), shape.offsets[:-1][some]
    if by_rows:
        starts = starts + cut.dim[some]
        whole = extents[starts]
    else:
        some &= cut.shards > 1
        starts, whole = shape.offsets[:-1][some], shape.products()[some]
        divided = (cut.shards > 1)[shape.rows()]
        extents = np.where(divided, np.minimum(extents, 1), extents)  # an empty tensor stays empty
    extents[starts] = -(-whole // cut.shards[some])
    return Ragged(extents, shape.offsets)


def _extended(values: Values, origins: NDArray[np.int64], shapes: Ragged) -> Values:
    """The values and, after them, views of some with other shapes."""
    return Values(
        storage=np.append(values.storage, values.storage[origins]),
        version=np.append(values.version, values.version[origins]),
        offset=np.append(values.offset, np.zeros(len(origins), np.int64)),
        shape=Ragged.stacked([values.shape, shapes]),
        dtype=np.append(values.dtype, values.dtype[origins]),
        category=np.append(values.category, values.category[origins]),
        of=np.append(values.of, values.of[origins]),
        name=(*values.name, *("" for _ in range(len(origins)))),
        symbols=Ragged.stacked([values.symbols, values.symbols.take(origins)]),
    )


def resident(
    trace: Trace, shards: int, apart: frozenset[int] = frozenset(), shards_apart: int = 1
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Storages of parameters, and the bytes of them that a rank keeps from ZeRO 2 on.

    Args:
        trace: one rank's step.
        shards: parts into which parameters are cut.
        apart: parameters of which replicas have different ones.
        shards_apart: parts into which those are cut.
    """
    weights = trace.weights()
    values = trace.values
    elements = _parts(values.shape, _ShardedValues.of(values, shards, apart, shards_apart), by_rows=True).products()[
        weights
    ]
    size = np.ceil(elements * ITEM_BYTES[values.dtype[weights]]).astype(np.int64)
    return values.storage[weights].astype(np.int64), size
