"""Sharding of the results of one operator, from operands in given placements on an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from triosim.core.dataclass import dataclass
from triosim.operators import NO_LABEL, Dims
from triosim.partition.facts import Facts
from triosim.partition.placements import PARTIAL, REPLICATE, Placement, Shard
from triosim.trace.symbols import relocate

Shape = tuple[int, ...]


@dataclass(frozen=True)
class OperatorSharding:
    """What an operator does with inputs in given placements, none of them Partial.  Not to be changed: it is shared.

    Attributes:
        outputs: placements of its outputs.
        gather: inputs that must be made whole first (then ask again).
        take: Replicate inputs of which each rank uses only its own part.
        row_reductions: all-reduces of one number per row (a loss over a vocabulary that is Shard).
    """

    outputs: list[Placement]
    gather: list[int] = field(default_factory=list)
    take: dict[int, Shard] = field(default_factory=dict)
    row_reductions: int = 0


class OperatorShardings:
    """Placements of the results of operators on ``size`` ranks, worked out once for equal calls."""

    def __init__(self, facts: Facts, size: int) -> None:
        self.facts, self.size = facts, size
        self._known: dict[tuple[object, ...], OperatorSharding] = {}

    def __call__(
        self,
        row: int,
        placed: Sequence[Placement],
        losses_divided: bool = False,
        resting: frozenset[int] = frozenset(),
        of_layer: bool = False,
    ) -> OperatorSharding:
        """What operator ``row`` does.

        Args:
            row: the operator.
            placed: placements of its inputs.
            losses_divided: whether losses are computed on a vocabulary that is Shard.
            resting: inputs that are only resting in their Shard, which yields to any other.
            of_layer: whether it multiplies by a layer's weight or makes its gradient, for which nothing may rest: the
                gradient would be a sum over the ranks.
        """
        facts = self.facts
        if not any(isinstance(one, Shard) for one in placed):
            return OperatorSharding([REPLICATE] * len(facts.outputs[row]))
        weights = tuple([value in facts.parameter_of for value in facts.inputs[row]])
        key = (id(facts.calls[row]), tuple(placed), weights, losses_divided, resting, of_layer)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._outcome(row, placed, losses_divided, resting, of_layer)
        return found

    def _outcome(
        self, row: int, placed: Sequence[Placement], losses_divided: bool, resting: frozenset[int], of_layer: bool
    ) -> OperatorSharding:
        facts, size = self.facts, self.size
        dims, shapes = facts.dims(row), [facts.shapes[v] for v in facts.inputs[row]]
        outputs = [facts.shapes[v] for v in facts.outputs[row]]
        shards = {i: p for i, p in enumerate(placed) if isinstance(p, Shard)}
        whole: list[Placement] = [REPLICATE] * len(outputs)
        gather_all = OperatorSharding(whole, gather=list(shards))
        if not dims.known:
            return gather_all
        if dims.reshape:
            moved = [reshape(shards[0], shapes[0], shape, size) if 0 in shards else None for shape in outputs]
            places: list[Placement] = [place for place in moved if place is not None]
            return OperatorSharding(places) if len(places) == len(moved) else gather_all
        label_of = {i: dims.inputs[i][p.dim] for i, p in shards.items()}
        rested = {label_of[i] for i in resting if i in label_of}
        keep = self._kept(row, dims, label_of, rested)
        if of_layer and keep in rested:
            return gather_all
        if any(label != keep for label in label_of.values()):
            return OperatorSharding(whole, gather=[i for i, label in label_of.items() if label != keep])
        if keep == NO_LABEL:
            return gather_all
        reductions = 0
        if keep in dims.whole:
            reductions = loss_reductions(facts, row) if losses_divided else -1
            if reductions < 0:
                return gather_all
        shard = next(iter(shards.values()))
        take: dict[int, Shard] = {}
        for i, labels in enumerate(dims.inputs):
            if keep in labels and i not in shards:
                dim = labels.index(keep)
                own = shard.moved(dim, shapes[i][dim])
                if own is None or own.size % size:
                    return gather_all
                take[i] = own
        result: list[Placement] = []
        for shape, output in zip(outputs, dims.outputs, strict=True):
            sources = range(len(shapes)) if output.inputs is None else [i for i in output.inputs if i >= 0]
            if keep in output.labels:
                dim = output.labels.index(keep)
                there = shard.moved(dim, shape[dim])
                if there is None or there.size % size:
                    return gather_all
                result.append(there)
            elif keep not in dims.whole and 0 not in shape and any(keep in dims.inputs[i] for i in sources):
                result.append(PARTIAL)
            else:
                result.append(REPLICATE)
        return OperatorSharding(result, take=take, row_reductions=reductions)

    def _kept(self, row: int, dims: Dims, label_of: dict[int, int], rested: set[int]) -> int:
        """Where two labels meet that of a weight stays, else one that is not resting, else that of the first input."""
        for i, label in label_of.items():
            if self.facts.inputs[row][i] in self.facts.parameter_of and label not in rested:
                return label
        working = [label for label in label_of.values() if label not in rested]
        return next(iter(working or label_of.values()))


def reshape(shard: Shard, before: Shape, after: Shape, size: int) -> Shard | None:
    """Where a Shard is after a reshape, None if the ranks' parts would be torn apart.

    When the outermost dimension that it falls on does not divide, the next one is cut: a fused projection of
    (3, heads, ...) is laid out so that each rank has its heads of all three.
    """
    moved = relocate(shard, before, after)
    if moved is None or moved.size % size == 0:
        return moved
    following = moved.dim + 1
    if moved.outer == 1 and moved.inner == 1 and shard.size > moved.size and following < len(after):
        return Shard.whole(following, after[following]) if after[following] % size == 0 else None
    return None


def loss_reductions(facts: Facts, row: int) -> int:
    """All-reduces of one number per row that a loss over a vocabulary in parts needs, -1 where it is not one.

    The maximum and the sum of exponentials in the softmax and the target's score in the loss; none in the backward
    (Megatron-LM, Shoeybi et al. 2019, section 3).
    """
    call = facts.calls[row]
    if call.kind == "softmax" and "log" in call.name:
        return 0 if call.backward else 2
    if call.kind == "loss" and "cross_entropy" in call.name and "binary" not in call.name:
        return 0 if call.backward else 3
    if call.kind == "loss" and "nll" in call.name:
        return 0 if call.backward else 1
    return -1
