"""Megatron's pairs: layers by column, then by row (Megatron-LM, Shoeybi et al. 2019, section 3).

What is Shard after a layer cut by column stays so until it is multiplied into a layer that can be cut by row.  Layers
fed by the same value (queries, keys and values; gate and up) are cut together, and so are layers whose outputs meet
(attention from a decoder to an encoder, of two streams to each other; a convolution and what a diffusion model adds to
it for the time).  Nothing is read off names: a group qualifies if the walk from its outputs meets nothing that needs a
whole value before every path ends in a layer's contraction.  One all-reduce forward comes out of it, after the product
by row, and one backward, of the input gradient of the layer by column.

A table that is only added to such values (biases of attention heads by distance) is cut by its columns with them, as in
T5X (Roberts et al., arXiv:2203.17189).  What is made of a sample and spread over all of its tokens is cut by column
and gathered (:mod:`triosim.partition.modulation`).
"""

from __future__ import annotations

from collections.abc import Sequence

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.operators import NO_LABEL
from triosim.partition.facts import FOLLOWS, Facts, WeightUse
from triosim.partition.modulation import modulation
from triosim.partition.operator_sharding import OperatorShardings
from triosim.partition.placements import REPLICATE, Partial, Placement, Shard
from triosim.partition.rule import Placing, Rule
from triosim.trace.symbols import relocate
from triosim.trace.tables import NONE, Phase

FARTHEST = 40
"""Operators between a layer and what is made of it, at most."""
MOST_JOINED = 5
"""Layers that are cut because what they make meets what another makes, at most: two streams that attend to each other
have three each."""
MOST_WALKS = 32
"""Walks for one group, at most."""
SAME_FOR_ALL = ("expand", "create")
"""Operators that make values of which any part is there without more memory: repeated along a dimension, or filled."""


class _PairSearch:
    """Looks for the pairs in the forward part of a step."""

    def __init__(self, facts: Facts, placing: Placing) -> None:
        self.facts, self.placing = facts, placing
        self.outcomes = OperatorShardings(facts, placing.size)
        self.weights = dict(placing.weights)
        self.refused: list[str] = []
        self.layer_at = {layer.row: layer for layer in facts.layers}
        self.last_use: dict[int, int] = {}
        for row, reads in enumerate(facts.inputs):
            if facts.phase[row] == Phase.FORWARD:
                self.last_use.update((facts.home(v), row) for v in reads)
        self.maker = {value: row for row, writes in enumerate(facts.outputs) for value in writes}
        self.met = NONE  # the value that had to be whole where a walk ended
        written = {facts.storage[v]: layer.row for layer in facts.layers for v in facts.outputs[layer.row]}
        sources = {facts.storage[layer.source] for layer in facts.layers if layer.source >= 0}
        self.first = {row for storage, row in written.items() if storage in sources}
        """Layers whose output is another's input as it is: the first of two factors (adapters of low rank)."""
        self.closed = NONE  # the first layer by row that the walk had come to
        self.walks = 0
        self.taken: list[tuple[int, int, WeightUse]] = []  # rows where values of tables are met, in this walk
        self.tables: dict[int, WeightUse] = {}  # tables to cut by column
        self.met_at: dict[int, set[int]] = {}  # storage of what is made of a table -> rows that found pairs meet it at
        self.with_tables = True

    def run(self) -> Placing:
        self._search()
        if not all(self._only_met(table) for table in self.tables.values()):
            self.weights, self.refused, self.with_tables = dict(self.placing.weights), [], False
            self.tables, self.met_at = {}, {}
            self._search()
        tables = {table.weight: table.out_dim for table in self.tables.values()}
        placing = self.placing.sharding({**self.weights, **tables}).refusing(*self.refused)
        return modulation(self.facts, placing)

    def _search(self) -> None:
        groups: dict[int, list[WeightUse]] = {}
        for layer in self.facts.layers:
            if not layer.embedding and layer.source >= 0:
                groups.setdefault(self.facts.storage[layer.source], []).append(layer)
        for group in groups.values():
            for option in self._options(group):
                free = all(layer.weight not in self.weights for layer in option)
                if free and all(self._divides(layer, layer.out_dim) for layer in option):
                    self.walks = 0
                    opening, closing = self._pair(option)
                    if closing:
                        self.weights.update({layer.weight: layer.out_dim for layer in opening})
                        self.weights.update({layer.weight: layer.in_dim for layer in closing})
                        for row, storage, table in self.taken:
                            self.tables[table.weight] = table
                            self.met_at.setdefault(storage, set()).add(row)
                        if option is group:
                            break

    def _options(self, group: list[WeightUse]) -> list[list[WeightUse]]:
        """Layers fed by one value that may be cut by column together: all, all but first factors, each alone."""
        whole = [layer for layer in group if layer.row not in self.first]
        singles = [[layer] for layer in group] if len(group) > 1 else []
        return [group, *([whole] if 0 < len(whole) < len(group) else []), *singles]

    def _pair(self, group: Sequence[WeightUse], joined: int = 0) -> tuple[Sequence[WeightUse], list[WeightUse]]:
        """A group, with layers where only both together can be cut by column, and the layers to cut by row.

        So it is with latent attention, whose queries are made of one value, keys and values of another; with attention
        to what an encoder or another stream has made; with a convolution to whose output that of a layer is added; with
        adapters of low rank, whose second factors are added to what layers make.
        """
        self.met, self.closed = NONE, NONE
        self.walks += 1
        closing = self._closing(group)
        met, closed = self.met, self.closed
        for layer in self._layers_before(met) if met != NONE and joined < MOST_JOINED else ():
            free = layer.weight not in self.weights and layer not in group and self.walks < MOST_WALKS
            beside = closed == NONE or layer.row < closed  # not made of what the group itself makes
            if free and beside and not self.placing.refusal(self.facts, layer, layer.out_dim):
                opening, found = self._pair([*group, layer], joined + 1)
                if found:
                    return opening, found
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
        """Whether any part of a value is there without more memory."""
        row = self.maker.get(value, NONE)
        return row != NONE and {self.facts.calls[row].name, self.facts.calls[row].kind} & {*SAME_FOR_ALL} != set()

    def _table(self, value: int, own: Shard) -> WeightUse | None:
        """The table that, cut by its columns, makes a value the Shard ``own`` without anything being sent."""
        facts, chain, made = self.facts, list[int](), value
        while (row := self.maker.get(made, NONE)) != NONE and len(chain) < FARTHEST and row not in self.layer_at:
            chain.append(row)
            if len(facts.inputs[row]) != 1:
                return None
            made = facts.inputs[row][0]
        table = self.layer_at.get(row)
        if not self.with_tables or table is None or not table.embedding or table.weight in self.placing.weights:
            return None
        if self.placing.refusal(facts, table, table.out_dim):
            return None
        at, reads = facts.weight_input(row, table), facts.inputs[row]
        dim = facts.dim_of(reads[at], table.out_dim)
        before: list[Placement] = [REPLICATE] * len(reads)
        before[at] = Shard.whole(dim, facts.shapes[reads[at]][dim])
        for step in (row, *reversed(chain)):
            found = self.outcomes(step, before)
            if found.gather or found.take or len(found.outputs) != 1:
                return None
            before = list(found.outputs)
        return table if before == [own] else None

    def _only_met(self, table: WeightUse) -> bool:
        """Whether all that reads what is made of a table are pairs that meet it, and views on the way there."""
        facts = self.facts
        waiting = {facts.storage[v] for v in facts.outputs[table.row]}
        for row in range(table.row + 1, len(facts.inputs)):
            read = {facts.storage[v] for v in facts.inputs[row]} & waiting
            if facts.phase[row] != Phase.FORWARD or any(row in self.met_at.get(storage, ()) for storage in read):
                continue
            if read and len(facts.inputs[row]) != 1:
                return False
            if read:
                waiting.update(facts.storage[v] for v in facts.outputs[row])
        return sum(layer.weight == table.weight for layer in facts.layers) == 1

    def _divides(self, layer: WeightUse, dim: int) -> bool:
        """Whether a layer's weight can be Shard along a dimension; notes why not."""
        why = self.placing.refusal(self.facts, layer, dim)
        if why:
            self.refused.append(why)
        return not why

    def _closing(self, group: Sequence[WeightUse]) -> list[WeightUse]:
        """Layers to cut by row if ``group`` is cut by column; empty if something would need a whole value."""
        facts = self.facts
        self.taken = []
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
                    self.closed = min(entry.row for entry in closing)
                    row += 1
                    continue
                found = self.outcomes(row, before)
                if found.gather or any(isinstance(p, Partial) for p in found.outputs):
                    return []
                for at, own in found.take.items():
                    if facts.category[reads[at]] not in FOLLOWS and reads[at] not in facts.parameter_of:
                        if self._same_for_all(reads[at]):
                            continue
                        table = self._table(reads[at], own)
                        if table is not None:
                            self.taken.append((row, facts.storage[reads[at]], table))
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
