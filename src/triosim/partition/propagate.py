"""Propagation: one walk through a step that follows placements on one axis and inserts the transfers they need.

Weights and inputs are placed by rules (:mod:`triosim.partition.rule`); from there the walk goes operator by operator,
forward, backward and optimizer alike, for the backward's operators are in the trace:

* a Partial value that anything but a view or a sum of Partial values reads becomes Replicate (all-reduce), or the
  Shard in which it rests (reduce-scatter), once for what is in it;
* a Shard value whose whole extent is needed at once (softmax, layer norm), or that meets another Shard which stays, is
  gathered.  The result is a *copy* of that region of its storage, kept for other readers; the value's own placement,
  its *home*, does not change;
* taking one's own part of a Replicate value costs nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Hashable, Sequence

from triosim.core.errors import PlanError
from triosim.operators import NO_LABEL
from triosim.partition.facts import FOLLOWS, Facts
from triosim.partition.local_trace import LocalTrace
from triosim.partition.operator_sharding import OperatorSharding, OperatorShardings
from triosim.partition.placements import PARTIAL, REPLICATE, VARYING, Partial, Placement, Replicate, Shard, Varying
from triosim.partition.rule import Placing
from triosim.partition.step import Step
from triosim.partition.transfers import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, Transfer, Transfers
from triosim.trace.symbols import in_matrix, relocate
from triosim.trace.tables import ITEM_BYTES, NONE, Category, Phase

_CARRIES_PARTIAL = ("clone", "detach", "alias", "contiguous", "to", "_to_copy", "rescale")
LONGEST_CHAIN = 8
"""Operators from the last product of an expert to the sum over a token's experts, at most."""
ROW_REDUCTION_BYTES = 4
"""A loss over a vocabulary in parts exchanges one float32 per row."""


def propagate(
    facts: Facts, placing: Placing, axis: int, origin: Sequence[int] = ()
) -> tuple[Step, dict[int, int], dict[int, int]]:
    """One rank's share of a step.

    Args:
        facts: the undivided step.
        placing: what rules have placed.
        axis: row of the mesh's axes, for the transfers.
        origin: where the step is a share on another axis: the value that each of the last values is a copy of.

    Returns:
        The share; the parameters that are Shard with their dimensions: the placed ones and those that followed; and all
        values that are made Shard with theirs.
    """
    walk = _Walk(facts, placing, axis, origin)
    return walk.run(), walk.weights, walk.local.shards(walk.placed)


class _Walk:
    """One walk."""

    def __init__(self, facts: Facts, placing: Placing, axis: int, origin: Sequence[int]) -> None:
        self.facts, self.placing, self.axis = facts, placing, axis
        self.origin = dict(enumerate(origin, len(facts.shapes) - len(origin)))
        self.summand_of = {value: copy for copy, value in self.origin.items()}
        """What another axis adds up -> the summands that an operator makes instead."""
        self.rests = placing.stationary == "weights" and bool(placing.resting)
        self.outcomes = OperatorShardings(facts, placing.size)
        self.weights = dict(placing.weights)  # parameter -> dimension, growing as biases and norms follow
        self.placed: dict[int, Placement] = {}
        self.latest: dict[int, int] = {}  # storage -> the value last written or seen there
        self.producer: dict[int, int] = {}  # storage -> the operator that made what is there, or the last view of it
        self.made: dict[int, int] = {}  # the same, but for views
        self.summed: dict[int, list[int]] = {}  # storage -> operators that made or passed on the summands there
        self.of_experts: set[int] = set()  # storages that hold summands which products of experts have made
        self.local = LocalTrace(facts.trace, facts.inputs, facts.outputs)
        self.transfers: list[Transfer] = []
        self.readers: dict[int, list[int]] = {}
        for row, reads in enumerate(facts.inputs):
            for value in reads:
                self.readers.setdefault(facts.storage[value], []).append(row)
        self.version, self.offset = facts.trace.values.version.tolist(), facts.trace.values.offset.tolist()
        self.embeddings = {layer.row for layer in facts.layers if layer.embedding} if self.rests else set()

    def run(self) -> Step:
        """Walk every operator and build the local trace."""
        for row in range(len(self.facts.inputs)):
            if self.facts.phase[row] == Phase.OPTIMIZER:
                self._optimize(row)
            else:
                self._operate(row)
        homes = self.local.homes(self.placed, self.placing.size)
        origin = (*self.origin.values(), *self.local.origin)
        return Step(self.local.build(homes), Transfers.of(self.transfers), homes, origin=origin)

    # --- one operator -------------------------------------------------------------------------------------------------

    def _operate(self, row: int) -> None:
        """Settle the placements of an operator's outputs."""
        facts = self.facts
        reads = facts.inputs[row]
        before = [self._placement(v) for v in reads]
        if any(isinstance(p, Partial) for p in before):
            if facts.storage[reads[0]] in self.of_experts and facts.dims(row).creates:  # reads a shape, no elements
                for value in facts.outputs[row]:
                    self._settle(value, REPLICATE, row)
                return
            if self._stays_partial(row, before):
                self._pass_on(row, before)
                return
            for value in reads:
                if isinstance(self._placement(value), Partial):
                    self._resolve(value, row)
            before = [self._placement(v) for v in reads]
        local = self.local.inputs[row] = [self.local.alias.get(v, v) for v in reads]
        if row in self.placing.alone:
            other = PARTIAL if facts.phase[row] == Phase.BACKWARD else VARYING
            for value in facts.outputs[row]:
                self._settle(value, self.placing.resting.get(value, other), row)
            return
        resting, of_layer = self._resting(row, before)
        found = self.outcomes(row, before, self.placing.losses_divided, resting, of_layer)
        if found.gather and facts.dims(row).creates:  # reads a shape, no elements
            found = OperatorSharding([REPLICATE] * len(facts.outputs[row]))
        while found.gather:
            for at in found.gather:
                local[at] = self._whole(reads[at], row)
                before[at] = REPLICATE
            found = self.outcomes(row, before, self.placing.losses_divided, resting, of_layer)
        if row in self.embeddings:
            found = self._rested(row, before, found)
        self._take(row, found, local)
        if resting and local == reads and facts.trace.operators.view[row] and facts.phase[row] == Phase.BACKWARD:
            self._view_of_copy(row)
        if found.row_reductions:
            size = math.prod(facts.shapes[reads[0]][:-1]) * ROW_REDUCTION_BYTES
            self.transfers += [Transfer(row, row + 1, ALL_REDUCE, self.axis, size, -1)] * found.row_reductions
        for at, (value, placement) in enumerate(zip(facts.outputs[row], found.outputs, strict=True)):
            home = self._gradient_placement(value, self._own(row, before, placement))
            if isinstance(home, Shard) and isinstance(placement, Replicate):
                self._take_columns(row, at, home, local)
            self._settle(value, home, row)
            if isinstance(self.placed[value], Partial):
                if facts.calls[row].kind == "experts":
                    self.of_experts.add(facts.storage[value])
                self.summed.setdefault(facts.storage[value], []).append(row)
                if self.placing.at_boundaries:
                    self._resolve(value, self._next_reader(value, row))
        if row in self.placing.gathered:
            for value in facts.outputs[row]:
                home = self.placed[value]
                if isinstance(home, Shard):
                    self.local.alias[value] = self._whole(value, self._next_reader(value, row))
                    self.local.made_as[value] = home
                    self.placed[value] = REPLICATE

    def _own(self, row: int, before: Sequence[Placement], placement: Placement) -> Placement:
        """Varying where an operator sums up on each rank for itself, or is given nothing but that."""
        alone = isinstance(placement, Partial) and self.facts.calls[row].kind in self.placing.per_rank
        passed = isinstance(placement, Replicate) and any(isinstance(p, Varying) for p in before)
        return VARYING if alone or passed else placement

    def _pass_on(self, row: int, before: Sequence[Placement]) -> None:
        """What an operator makes of summands is a summand."""
        facts = self.facts
        reads, writes = facts.inputs[row], facts.outputs[row]
        made = self.producer.get(facts.storage[reads[0]], row) if facts.trace.operators.view[row] else row
        self.local.inputs[row] = [
            self.local.whole(v, ("widened", row, v)) if isinstance(p, Shard) else v
            for v, p in zip(reads, before, strict=True)
        ]
        experts = any(facts.storage[value] in self.of_experts for value in reads)
        for value in writes:
            self._settle(value, PARTIAL, made)
            if experts:
                self.of_experts.add(facts.storage[value])
        for value in (*reads, *writes):
            if isinstance(self.placed[value], Partial):
                self.summed.setdefault(facts.storage[value], []).append(row)

    def _take(self, row: int, found: OperatorSharding, local: list[int]) -> None:
        """Use only the own part of Replicate inputs; biases and norms are Shard for good."""
        facts = self.facts
        for at, own in found.take.items():
            value = facts.inputs[row][at]
            follows = facts.category[value] in FOLLOWS or value in facts.parameter_of
            sliced = (self.placing.resting or self.placing.inputs) and facts.category[value] == Category.BUFFER
            if follows and not sliced:
                parameter = facts.parameter(value)
                self.weights[parameter] = (
                    facts.parameter_of[value][1][own.dim] if value in facts.parameter_of else own.dim
                )
                for known in facts.made_of.get(parameter, ()):
                    if known in self.placed:
                        self.placed[known] = self._own_part(known)
                self.placed[value] = own
            else:
                local[at] = self.local.part(local[at], own, self.placing.size)

    def _take_columns(self, row: int, output: int, home: Shard, local: list[int]) -> None:
        """A gradient that is made Shard from what every rank has is made of the part of it that it needs."""
        facts = self.facts
        dims = facts.dims(row)
        label = dims.outputs[output].labels[home.dim] if dims.known and not dims.reshape else NO_LABEL
        for at, labels in enumerate(dims.inputs):
            value = facts.inputs[row][at]
            if label != NO_LABEL and label in labels and isinstance(self._placement(value), Replicate):
                dim = labels.index(label)
                own = home.moved(dim, facts.shapes[value][dim])
                if own is not None and own.size % self.placing.size == 0:
                    local[at] = self.local.part(local[at], own, self.placing.size)

    def _optimize(self, row: int) -> None:
        """Optimizer operators work on each tensor by itself: outputs are placed as the input that they update."""
        facts = self.facts
        reads, writes = facts.inputs[row], facts.outputs[row]
        by_storage = {}
        for value in reads:
            if isinstance(self._placement(value), Partial) and not self._left(value):
                self._resolve(value, row)
            by_storage[facts.storage[value]] = value
        for at, value in enumerate(writes):
            there = self.latest.get(facts.storage[value], -1)  # what is only overwritten
            source = by_storage.get(facts.storage[value], reads[at] if at < len(reads) else there)
            same = source >= 0 and facts.shapes[source] == facts.shapes[value]
            home = self._placement(source) if same else REPLICATE
            self._settle(value, REPLICATE if isinstance(home, Partial) else home, row)

    def _left(self, value: int) -> bool:
        """Whether a summand of a gradient is left to what reduces those of the replicas."""
        owner = self.facts.of[value]
        return bool(self.placing.left) and self.facts.parameter(owner if owner >= 0 else value) in self.placing.left

    def _stays_partial(self, row: int, before: Sequence[Placement]) -> bool:
        """Whether the sum over ranks may be taken after this operator instead of before it.

        So it is for a view, for a sum of Partial values, for what turns a summand into the gradient of a parameter that
        is left to the replicas' own reduction or of what all tokens are conditioned on, and for the sums in which the
        backward gathers gradients of one value (of queries, keys and values): there one rank may add what is whole, and
        each what rests with it.
        """
        call = self.facts.calls[row]
        if call.kind == "view" or call.name in _CARRIES_PARTIAL:
            return len(before) == 1 and not (self._has_tokens(row, 0) and not self.facts.trace.operators.view[row])
        partial = [at for at, p in enumerate(before) if isinstance(p, Partial)]
        shards = [at for at, p in enumerate(before) if isinstance(p, Shard)]
        if len(partial) == 1 and not shards and self._shrinks(row, self.facts.inputs[row][partial[0]]):
            return True
        if len(partial) == 1 and not shards and self._linear(row, partial[0]):
            made = self.facts.outputs[row]
            if made and all(self.facts.of[value] >= 0 and self._left(value) for value in made):
                return True
        if not shards and self._of_condition(row, partial, before):
            return True
        if call.name not in ("add", "sub") or call.backward or len(self._resting(row, before)[0]) < len(shards):
            return False
        return self.facts.phase[row] == Phase.BACKWARD or all(isinstance(p, Partial) for p in before)

    def _has_tokens(self, row: int, at: int) -> bool:
        """Whether summands have the tokens of all ranks, of which each is to have its own, before they are copied."""
        return self.placing.stationary == "activations" and self.facts.inputs[row][at] in self.placing.resting

    def _of_condition(self, row: int, partial: Sequence[int], before: Sequence[Placement]) -> bool:
        """Whether the backward goes on with summands where every rank has run the same forward on what all have.

        So it is where activations stay (each rank has tokens of its own): what all tokens are conditioned on (time,
        class, a vector of the prompt) has gradients that are sums over the ranks' tokens; what comes of them, linear in
        them, are summands too, at last of gradients of parameters, which are reduced with all others.
        """
        if self.placing.stationary != "activations" or self.facts.phase[row] != Phase.BACKWARD:
            return False
        if any(self._has_tokens(row, at) for at in partial):
            return False
        alike = all(isinstance(p, Partial | Replicate) for p in before)
        return alike and frozenset(partial) in self.facts.dims(row).linear

    def _shrinks(self, row: int, value: int) -> bool:
        """Whether linear operators make something smaller of the summands of experts: a row for each token instead of
        one for each token and expert.  So Megatron-LM and torchtitan, too, add up after tokens are back in order."""
        facts, size = self.facts, math.prod(self.facts.shapes[value])
        if facts.storage[value] not in self.of_experts:
            return False
        phase = facts.phase[row]
        for _ in range(LONGEST_CHAIN):
            at = [i for i, v in enumerate(facts.inputs[row]) if facts.storage[v] == facts.storage[value]]
            if len(at) != 1 or len(facts.outputs[row]) != 1 or not self._linear(row, at[0]):
                return False
            value = facts.outputs[row][0]
            if math.prod(facts.shapes[value]) < size:
                return True
            row = self._next_reader(value, row)
            if row >= len(facts.inputs) or facts.phase[row] != phase:
                return False
        return False

    def _linear(self, row: int, at: int) -> bool:
        """Whether an operator is linear in one input, the others as they are."""
        facts = self.facts
        if facts.calls[row].name == "index_put" and facts.calls[row].args.get("accumulate"):
            target = self.producer.get(facts.storage[facts.inputs[row][0]], -1)  # rows are added to nothing
            return at == len(facts.inputs[row]) - 1 and target >= 0 and facts.calls[target].kind == "create"
        return frozenset({at}) in facts.dims(row).linear

    # --- placements ---------------------------------------------------------------------------------------------------

    def _placement(self, value: int) -> Placement:
        if value not in self.placed:
            self.placed[value] = self._first_placement(value)
        return self.placed[value]

    def _first_placement(self, value: int) -> Placement:
        """Placement of a value that no operator of the trace has made."""
        facts = self.facts
        if facts.category[value] in (*FOLLOWS, Category.OPTIMIZER_STATE):
            return self._own_part(value)
        known = self.latest.get(facts.storage[value])
        if known is None:
            main = facts.category[value] == Category.GRADIENT and facts.of[value] >= 0  # there before the step
            return self._own_part(value) if main else self._given(value)
        placement = self.placed[known]
        if not isinstance(placement, Shard):
            if known in self.local.alias and facts.shapes[known] == facts.shapes[value]:
                self.local.alias[value] = self.local.alias[known]
            return placement
        return self._seen(placement, known, value)

    def _given(self, value: int) -> Placement:
        """Placement of what no operator makes: an input, or what another axis has made of a value."""
        source = self.origin.get(value, self.summand_of.get(value, NONE))
        if source == NONE or (value not in self.origin and source not in self.placed):
            return self.placing.inputs.get(value, REPLICATE)
        home, before, after = self._placement(source), self.facts.shapes[source], self.facts.shapes[value]
        if isinstance(home, Replicate) or before == after:
            return home
        if isinstance(home, Shard) and len(before) == len(after) and before[home.dim] == after[home.dim]:
            return home  # the other axis has another dimension
        if isinstance(home, Shard) and (moved := in_matrix(home, before, after)) is not None:
            return moved
        raise PlanError(
            f"{self.placing.axis} {self.placing.size} divides what another axis gathers or adds up along the same "
            f"dimension, in {self.facts.trace.meta.workload or 'the trace'}: leave one of the two out"
        )

    def _seen(self, shard: Shard, known: int, value: int) -> Placement:
        """A Shard of one value as another of the same storage shows it."""
        before, after = self.facts.shapes[known], self.facts.shapes[value]
        rests = self.placing.resting.get(value)
        if self.placing.stationary == "activations" and rests is not None and rests.size == shard.size:
            return rests  # known from all that reads it
        if before == after:
            return shard
        if after == before[::-1] and len(after) == 2:
            return shard._replace(dim=1 - shard.dim)
        return relocate(shard, before, after) or REPLICATE

    def _own_part(self, value: int) -> Placement:
        """Placement of a parameter, a buffer, or something of a parameter's shape."""
        facts = self.facts
        owner = facts.of[value] if facts.of[value] >= 0 and value not in facts.parameter_of else value
        parameter = facts.parameter(owner)
        if parameter not in self.weights or (owner != value and facts.shapes[owner] != facts.shapes[value]):
            return REPLICATE
        dim = facts.dim_of(owner, self.weights[parameter])
        return Shard.whole(dim, facts.shapes[owner][dim])

    def _gradient_placement(self, value: int, placement: Placement) -> Placement:
        """A Shard parameter's gradient that is made from nothing Shard (an embedding table's) is made Shard."""
        facts = self.facts
        if (
            isinstance(placement, Replicate)
            and facts.category[value] == Category.GRADIENT
            and facts.of[value] >= 0
        ):  # fmt: skip
            return self._own_part(value)
        return placement

    def _settle(self, value: int, placement: Placement, row: int) -> None:
        storage = self.facts.storage[value]
        self.placed[value] = placement
        self.latest[storage] = value
        self.producer[storage] = row
        if not self.facts.trace.operators.view[row]:
            self.made[storage] = row
        self.local.alias.pop(value, None)

    def _view_of_copy(self, row: int) -> None:
        """A view of what the forward has gathered and kept is one of the copy, so its home need not be kept too."""
        tables = self.local.inputs, self.local.outputs
        regions = [self._region(value, row) for table in tables for value in table[row]]
        if len(set(regions)) == 1 and self.local.gathered(regions[0]):
            for table in tables:
                table[row] = [self.local.whole(value, regions[0]) for value in table[row]]

    # --- what rests ---------------------------------------------------------------------------------------------------

    def _resting(self, row: int, before: Sequence[Placement]) -> tuple[frozenset[int], bool]:
        """The inputs that are only resting, and whether the operator is one for which nothing may."""
        resting = self.placing.resting
        if not self.rests:
            return frozenset(), False
        found = frozenset(
            i
            for i, (value, p) in enumerate(zip(self.facts.inputs[row], before, strict=True))
            if isinstance(p, Shard) and value in resting and resting[value].dim == p.dim
        )
        of_layer = bool(found) and row not in self.placing.own
        return found, of_layer and (self.facts.multiplies(row) or self.facts.gathered_first(row))

    def _rested(self, row: int, before: list[Placement], found: OperatorSharding) -> OperatorSharding:
        """What is looked up of a table that every rank has is looked up for the own part only."""
        facts = self.facts
        made = facts.outputs[row][0]
        if made not in self.placing.resting or not isinstance(found.outputs[0], Replicate):
            return found
        dims = facts.dims(row)
        label = dims.outputs[0].labels[self.placing.resting[made].dim]
        for i, labels in enumerate(dims.inputs):
            if label in labels and facts.inputs[row][i] not in facts.parameter_of:
                dim = labels.index(label)
                own = self.placing.resting[made].moved(dim, facts.shapes[facts.inputs[row][i]][dim])
                if own is not None and own.size % self.placing.size == 0:
                    parts = self.outcomes(row, [own if j == i else p for j, p in enumerate(before)])
                    if not parts.gather:
                        return OperatorSharding(parts.outputs, take={**parts.take, i: own})
        return found

    # --- transfers ----------------------------------------------------------------------------------------------------

    def _resolve(self, value: int, before: int) -> None:
        """Make a Partial value Replicate, or the Shard in which it rests, with all that is on its storage."""
        facts = self.facts
        storage = facts.storage[value]
        partial = [v for v in facts.on_storage[storage] if isinstance(self.placed.get(v), Partial)]
        rest = self.placing.resting.get(value)
        ends = before < len(facts.phase) and facts.phase[before] == Phase.OPTIMIZER
        known = self.placing.resting if self.placing.stationary == "activations" else {}
        found = (
            {v: known.get(v) or self._seen(rest, value, v) for v in partial} if rest is not None and not ends else {}
        )
        scatters = bool(found) and all(
            isinstance(p, Shard) and p.size % self.placing.size == 0 for p in found.values()
        )  # fmt: skip
        what = REDUCE_SCATTER if scatters else ALL_REDUCE
        made = self.producer.get(storage, before - 1)
        sent = max(partial, key=self._bytes) if len(partial) > 1 else value  # all of it, if a part is read first
        sent = sent if self._bytes(sent) > self._bytes(value) else value
        self.transfers.append(Transfer(made, before, what, self.axis, self._bytes(sent), sent))
        for other in partial:
            self.placed[other] = found[other] if scatters else REPLICATE
        rows = self.summed.pop(storage, [])
        if scatters:
            self.local.summands(rows, storage, facts.storage)

    def _whole(self, value: int, before: int) -> int:
        """The gathered copy of a value, made if it is not there."""
        facts, region = self.facts, self._region(value, before)
        if not self.local.gathered(region):
            after = self.producer.get(facts.storage[value], before - 1)
            again = self.placing.regathers and before < len(facts.phase) and facts.phase[before] != Phase.FORWARD
            made = self.made.get(facts.storage[value], -1)  # a product may read a transpose that the backward makes
            if again and made >= 0 and facts.phase[made] == Phase.FORWARD:
                after = self._launch(before)
            self.transfers.append(Transfer(after, before, ALL_GATHER, self.axis, self._bytes(value), value))
        return self.local.whole(value, region)

    def _region(self, value: int, row: int) -> Hashable:
        """What a copy is one of: elements of a storage, and the phase in which it is read if it is gathered in each."""
        facts = self.facts
        phase = facts.phase[row] if self.placing.regathers and row < len(facts.phase) else -1
        return facts.storage[value], self.version[value], self.offset[value], math.prod(facts.shapes[value]), phase

    def _launch(self, row: int) -> int:
        """After which operator of the backward what the forward made is gathered again for ``row``; -1 for just before.

        When the last of what else it reads is there: beside the product that makes the gradient of the layer's input.
        """
        facts = self.facts
        others = [self.made.get(facts.storage[v], -1) for v in facts.inputs[row]]
        return max((other for other in others if other >= 0 and facts.phase[other] != Phase.FORWARD), default=-1)

    def _next_reader(self, value: int, row: int) -> int:
        rows = self.readers.get(self.facts.storage[value], [])
        at = bisect_right(rows, row)
        return rows[at] if at < len(rows) else len(self.facts.inputs)

    def _bytes(self, value: int) -> int:
        values = self.facts.trace.values
        return math.ceil(math.prod(self.facts.shapes[value]) * float(ITEM_BYTES[values.dtype[value]]))
