"""Megatron's pairs: layers by column, then by row (Megatron-LM, Shoeybi et al. 2019, section 3).

What is Shard after a layer cut by column stays so until it is multiplied into a layer that can be cut by row.  Layers
fed by the same value (queries, keys and values; gate and up) are cut together.  Nothing is read off names: a group
qualifies if the walk from its outputs meets nothing that needs a whole value before every path ends in a layer's
contraction.  One all-reduce forward comes out of it, after the product by row, and one backward, of the input gradient
of the layer by column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from triosim.core.registry import registered
from triosim.operators import NO_LABEL
from triosim.partition.facts import FOLLOWS, Facts, WeightUse
from triosim.partition.outcome import Outcomes
from triosim.partition.placements import REPLICATE, Partial, Placement, Shard
from triosim.partition.rule import Placing, Rule
from triosim.trace.symbols import relocate
from triosim.trace.tables import NONE, Phase

FARTHEST = 40
"""Operators between a layer and what is made of it, at most."""


class _PairSearch:
    """Looks for the pairs in the forward part of a step."""

    def __init__(self, facts: Facts, placing: Placing) -> None:
        self.facts, self.placing = facts, placing
        self.outcomes = Outcomes(facts, placing.size)
        self.weights = dict(placing.weights)
        self.refused: list[str] = []
        self.layer_at = {layer.row: layer for layer in facts.layers}
        self.last_use: dict[int, int] = {}
        for row, reads in enumerate(facts.inputs):
            if facts.phase[row] == Phase.FORWARD:
                self.last_use.update((facts.home(v), row) for v in reads)
        self.maker = {value: row for row, writes in enumerate(facts.outputs) for value in writes}
        self.met = NONE  # the value that had to be whole where a walk ended

    def run(self) -> Placing:
        groups: dict[int, list[WeightUse]] = {}
        for layer in self.facts.layers:
            if not layer.embedding and layer.source >= 0:
                groups.setdefault(self.facts.storage[layer.source], []).append(layer)
        for group in groups.values():
            for option in [group] if len(group) == 1 else [group, *([layer] for layer in group)]:
                free = all(layer.weight not in self.weights for layer in option)
                if free and all(self._divides(layer, layer.out_dim) for layer in option):
                    opening, closing = self._pair(option)
                    if closing:
                        self.weights.update({layer.weight: layer.out_dim for layer in opening})
                        self.weights.update({layer.weight: layer.in_dim for layer in closing})
                        break
        return self.placing.sharding(self.weights).refusing(*self.refused)

    def _pair(self, group: Sequence[WeightUse]) -> tuple[Sequence[WeightUse], list[WeightUse]]:
        """A group, with another layer where only both together can be cut by column, and the layers to cut by row.

        So it is with latent attention: queries are made of one value, keys and values of another.
        """
        self.met = NONE
        closing = self._closing(group)
        met = self.met
        for layer in self._layers_before(met) if met != NONE else ():
            free = layer.weight not in self.weights and layer not in group
            if free and not self.placing.refusal(self.facts, layer, layer.out_dim):
                found = self._closing([*group, layer])
                if found:
                    return [*group, layer], found
        return group, closing

    def _layers_before(self, value: int) -> list[WeightUse]:
        """The nearest layers of which a value is made."""
        waiting, found, seen = [value], list[WeightUse](), set[int]()
        while waiting and len(seen) < FARTHEST:
            row = self.maker.get(waiting.pop(0), NONE)
            if row == NONE or row in seen:
                continue
            seen.add(row)
            if row in self.layer_at and not self.layer_at[row].embedding:
                found.append(self.layer_at[row])
            else:
                waiting += self.facts.inputs[row]
        return found

    def _same_for_all(self, value: int) -> bool:
        """Whether a value repeats another along a dimension: any part of it is there without more memory."""
        row = self.maker.get(value, NONE)
        return row != NONE and self.facts.calls[row].name == "expand"

    def _divides(self, layer: WeightUse, dim: int) -> bool:
        """Whether a layer's weight can be Shard along a dimension; notes why not."""
        why = self.placing.refusal(self.facts, layer, dim)
        if why:
            self.refused.append(why)
        return not why

    def _closing(self, group: Sequence[WeightUse]) -> list[WeightUse]:
        """Layers to cut by row if ``group`` is cut by column; empty if something would need a whole value."""
        facts = self.facts
        members = {layer.row: layer for layer in group}
        placed: dict[int, Placement] = {}
        live: dict[int, int] = {}  # Shard storages and the value last seen on them
        followed: dict[int, int] = {}
        closing: list[WeightUse] = []
        row, end = min(members), max(members)
        while row <= end:
            reads = facts.inputs[row]
            member = members.get(row)
            touched = member is not None or any(facts.home(v) in live for v in reads)
            if facts.phase[row] == Phase.FORWARD and touched:
                before = [self._placement(v, placed, live, followed) for v in reads]
                if member is not None:
                    at = facts.weight_input(row, member)
                    dim = facts.dim_of(reads[at], member.out_dim)
                    before[at] = Shard.whole(dim, facts.shapes[reads[at]][dim])
                elif row in self.layer_at and self.layer_at[row].weight not in followed:
                    layer = self.layer_at[row]
                    if not self._contracts(row, layer, before):
                        return []
                    closing.append(layer)
                    row += 1
                    continue
                found = self.outcomes(row, before)
                if found.gather or any(isinstance(p, Partial) for p in found.outputs):
                    return []
                for at, own in found.take.items():
                    if facts.category[reads[at]] not in FOLLOWS and reads[at] not in facts.parameter_of:
                        if self._same_for_all(reads[at]):
                            continue
                        self.met = reads[at]
                        return []  # a Shard value meets a whole one: a residual connection
                    followed[facts.parameter(reads[at])] = own.dim
                for value, placement in zip(facts.outputs[row], found.outputs, strict=True):
                    placed[value] = placement
                    if isinstance(placement, Shard):
                        live[facts.home(value)] = value
                        end = max(end, self.last_use.get(facts.home(value), row))
            row += 1
        return closing

    def _contracts(self, row: int, layer: WeightUse, before: Sequence[Placement]) -> bool:
        """Whether the Shard inputs of a layer are Shard along what its weight is multiplied over."""
        facts = self.facts
        dims = facts.dims(row)
        at = facts.weight_input(row, layer)
        labels = {dims.inputs[i][p.dim] for i, p in enumerate(before) if isinstance(p, Shard)}
        if layer.in_dim == NO_LABEL or layer.weight in self.weights:
            return False
        wanted = dims.inputs[at][facts.dim_of(facts.inputs[row][at], layer.in_dim)]
        return labels == {wanted} and self._divides(layer, layer.in_dim)

    def _placement(
        self, value: int, placed: dict[int, Placement], live: dict[int, int], followed: dict[int, int]
    ) -> Placement:
        facts = self.facts
        if value in placed:
            return placed[value]
        if facts.parameter(value) in followed:
            dim = facts.dim_of(value, followed[facts.parameter(value)])
            return Shard.whole(dim, facts.shapes[value][dim])
        known = live.get(facts.home(value))
        placement = placed[known] if known is not None else REPLICATE
        if known is None or not isinstance(placement, Shard):
            return REPLICATE
        before, after = facts.shapes[known], facts.shapes[value]
        if value in facts.copy_of and len(before) == len(after) and before[placement.dim] == after[placement.dim]:
            return placement  # what another axis has gathered along another dimension
        return relocate(placement, facts.shapes[known], facts.shapes[value]) or REPLICATE


@registered
@dataclass(frozen=True)
class Megatron(Rule):
    """Cuts every pair that it finds."""

    def place(self, facts: Facts, placing: Placing) -> Placing:
        """Weights of the pairs, along their outputs and then along their inputs."""
        return _PairSearch(facts, placing).run()
