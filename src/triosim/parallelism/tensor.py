"""Tensor parallelism: what one rank computes when weights are divided, and what must be exchanged.

Every value is on the tensor axis either *whole* (each rank has all of it), *divided* (a segment of one dimension is
cut) or *partial* (each rank has a summand).  Weights are cut by a plan (:mod:`triosim.parallelism._cuts`); from there
one walk goes operator by operator by the rules of :mod:`triosim.workload.labels`, forward, backward and optimizer
alike, and inserts a collective where an operator needs something in another form:

* a partial value that anything but a view or a sum of partials reads is all-reduced;
* a divided value whose whole extent is needed at once (softmax, layer norm) is all-gathered;
* taking one's own part of a whole value costs nothing.

Column-parallel followed by row-parallel layers (Megatron-LM, Shoeybi et al. 2019, section 3) come out with one
all-reduce forward, after the row-parallel product, and one backward, of the column-parallel layer's input gradient.
The ``gather`` style divides every layer's output and gathers it at once: the full output forward, an all-reduce of the
full input gradient backward.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from triosim.columns import Ragged
from triosim.errors import PlanError
from triosim.parallelism._cuts import Cuts, by_plan, every_layer, pairs
from triosim.parallelism._layers import Facts
from triosim.parallelism._states import FOLLOWS, Outcome, Outcomes, Partial, State
from triosim.parallelism.program import AXES, COLLECTIVES
from triosim.parallelism.step import Exchanges, Step
from triosim.workload.builder import recount
from triosim.workload.follow import Segment, relocate
from triosim.workload.trace import ITEM_BYTES, Category, Phase, Trace, Values

ALL_REDUCE, ALL_GATHER = COLLECTIVES.index("all_reduce"), COLLECTIVES.index("all_gather")
TP = AXES.index("tp")
_CARRIES_PARTIAL = ("clone", "detach", "alias", "contiguous", "to", "_to_copy")
ROW_REDUCTION_BYTES = 4
"""A loss over a divided vocabulary exchanges one float32 per row."""


def shard(
    trace: Trace,
    size: int,
    style: str = "megatron",
    plan: Mapping[str, str] | None = None,
    vocabulary: bool = False,
) -> Step:
    """One rank's share of a step on ``size`` tensor-parallel ranks.

    Args:
        trace: the whole step.
        size: ranks on the tensor axis.
        style: ``"megatron"`` or ``"gather"``; used when there is no ``plan``.
        plan: module path pattern -> style of that layer, in the words of torch's ``parallelize_module``:
            ``colwise``, ``rowwise``, ``gather`` (colwise with its output gathered), ``vocab`` (an embedding cut by rows
            of its table; an output layer cut by columns with the loss computed on the parts) or ``replicate``.
        vocabulary: also cut the embedding table and the output layer along the vocabulary.

    Raises:
        PlanError: nothing can be divided, or a layer that the plan names does not exist or does not divide.
    """
    if size == 1:
        return Step(trace, Exchanges.of([]))
    facts = Facts(trace)
    if plan is not None:
        cuts = by_plan(facts, size, plan)
    elif style == "gather":
        cuts = every_layer(facts, size)
    else:
        cuts = pairs(facts, size, vocabulary)
    if not cuts.dims:
        why = (
            f": {cuts.refused[0]}"
            if cuts.refused
            else ": no two layers follow each other without needing the whole between"
        )
        raise PlanError(f"tp {size} cannot divide any layer of {trace.meta.workload or 'the trace'}{why}")
    return _Walk(facts, cuts).run()


class _Walk:
    """One walk through a step with its weights cut."""

    def __init__(self, facts: Facts, cuts: Cuts) -> None:
        self.facts, self.cuts = facts, cuts
        self.outcomes = Outcomes(facts, cuts.size)
        self.divided = dict(cuts.dims)  # parameter -> dimension, growing as biases and norms follow
        self.states: dict[int, State] = {}
        self.latest: dict[int, int] = {}  # storage -> the value last written or seen there
        self.producer: dict[int, int] = {}  # storage -> the operator that made what is there
        self.local = _LocalValues(facts.trace)
        self.exchanges: list[tuple[int, int, int, int, int]] = []
        self.readers: dict[int, list[int]] = {}
        for row, reads in enumerate(facts.inputs):
            for value in reads:
                self.readers.setdefault(facts.storage[value], []).append(row)

    def run(self) -> Step:
        """Walk every operator and build the local trace."""
        facts = self.facts
        inputs = []
        for row in range(len(facts.inputs)):
            if facts.phase[row] == Phase.OPTIMIZER:
                self._optimize(row)
                inputs.append(facts.inputs[row])
            else:
                inputs.append(self._operate(row))
        trace = self.local.build(self.states, inputs, self.cuts.size)
        notes = [f"tp {self.cuts.size}: left whole, because {why}" for why in dict.fromkeys(self.cuts.refused)]
        return Step(trace, Exchanges.of(self.exchanges), tuple(notes[:5]))

    # --- one operator -------------------------------------------------------------------------------------------------

    def _operate(self, row: int) -> list[int]:
        """Settle the states of an operator's outputs; returns the value ids that it reads locally."""
        facts = self.facts
        reads = facts.inputs[row]
        states = [self._state(v) for v in reads]
        if any(isinstance(s, Partial) for s in states):
            if self._stays_partial(row, states):
                made = self.producer.get(facts.storage[reads[0]], row) if facts.trace.operators.view[row] else row
                for value in facts.outputs[row]:
                    self._settle(value, Partial(), made)
                return reads
            for value in reads:
                if isinstance(self._state(value), Partial):
                    self._all_reduce(value, row)
            states = [self._state(v) for v in reads]
        local = [self.local.alias.get(v, v) for v in reads]
        found = self.outcomes(row, states, self.cuts.losses_divided)
        while found.gather:
            for at in found.gather:
                local[at] = self._whole(reads[at], row)
                states[at] = None
            found = self.outcomes(row, states, self.cuts.losses_divided)
        self._take(row, found, local)
        if found.row_reductions:
            size = math.prod(facts.shapes[reads[0]][:-1]) * ROW_REDUCTION_BYTES
            self.exchanges += [(row, row + 1, ALL_REDUCE, TP, size)] * found.row_reductions
        for value, state in zip(facts.outputs[row], found.outputs, strict=True):
            self._settle(value, self._gradient_state(value, state), row)
            if isinstance(self.states[value], Partial) and self.cuts.at_boundaries:
                self._all_reduce(value, self._next_reader(value, row))
        if row in self.cuts.gathered:
            for value in facts.outputs[row]:
                if isinstance(self.states[value], Segment):
                    self.local.alias[value] = self._whole(value, self._next_reader(value, row))
                    self.local.shape[value] = self.states[value]
                    self.states[value] = None
        return local

    def _take(self, row: int, found: Outcome, local: list[int]) -> None:
        """Use only the own part of whole inputs; biases and norms are divided for good."""
        facts = self.facts
        for at, own in found.take.items():
            value = facts.inputs[row][at]
            if facts.category[value] in FOLLOWS or value in facts.parameter_of:
                parameter = facts.parameter(value)
                self.divided[parameter] = (
                    facts.parameter_of[value][1][own.dim] if value in facts.parameter_of else own.dim
                )
                for known in facts.made_of.get(parameter, ()):
                    if known in self.states:
                        self.states[known] = self._own_part(known)
                self.states[value] = own
            else:
                local[at] = self.local.part(local[at], own, self.cuts.size)

    def _optimize(self, row: int) -> None:
        """Optimizer operators work on each tensor by itself: outputs are in the state of the input they update."""
        facts = self.facts
        reads, writes = facts.inputs[row], facts.outputs[row]
        by_storage = {}
        for value in reads:
            if isinstance(self._state(value), Partial):
                self._all_reduce(value, row)
            by_storage[facts.storage[value]] = value
        for at, value in enumerate(writes):
            source = by_storage.get(facts.storage[value], reads[at] if at < len(reads) else -1)
            same = source >= 0 and facts.shapes[source] == facts.shapes[value]
            self._settle(value, self._state(source) if same else None, row)

    def _stays_partial(self, row: int, states: list[State]) -> bool:
        """Whether the sum over ranks may be taken after this operator instead of before it.

        So it is for a view, for a sum of partial values, and for the sums in which the backward gathers gradients of
        one value (of queries, keys and values): there one rank may add what is whole.
        """
        call = self.facts.calls[row]
        if call.kind == "view" or call.name in _CARRIES_PARTIAL:
            return len(states) == 1
        if call.name not in ("add", "sub") or call.backward or any(isinstance(s, Segment) for s in states):
            return False
        return self.facts.phase[row] == Phase.BACKWARD or all(isinstance(s, Partial) for s in states)

    # --- states -------------------------------------------------------------------------------------------------------

    def _state(self, value: int) -> State:
        if value not in self.states:
            self.states[value] = self._first_state(value)
        return self.states[value]

    def _first_state(self, value: int) -> State:
        """State of a value that no operator of the trace has made."""
        facts = self.facts
        if facts.category[value] in (*FOLLOWS, Category.OPTIMIZER_STATE):
            return self._own_part(value)
        known = self.latest.get(facts.storage[value])
        if known is None:
            return None
        state = self.states[known]
        if not isinstance(state, Segment):
            if known in self.local.alias and facts.shapes[known] == facts.shapes[value]:
                self.local.alias[value] = self.local.alias[known]
            return state
        if facts.shapes[known] == facts.shapes[value]:
            return state
        if facts.shapes[value] == facts.shapes[known][::-1] and len(facts.shapes[value]) == 2:
            return state._replace(dim=1 - state.dim)
        return relocate(state, facts.shapes[known], facts.shapes[value])

    def _own_part(self, value: int) -> State:
        """State of a parameter, a buffer, or something of a parameter's shape."""
        facts = self.facts
        owner = facts.of[value] if facts.of[value] >= 0 and value not in facts.parameter_of else value
        parameter = facts.parameter(owner)
        if parameter not in self.divided or (owner != value and facts.shapes[owner] != facts.shapes[value]):
            return None
        dim = facts.dim_of(owner, self.divided[parameter])
        return Segment.whole(dim, facts.shapes[owner][dim])

    def _gradient_state(self, value: int, state: State) -> State:
        """A divided parameter's gradient that is made from nothing divided (an embedding table's) is made divided."""
        facts = self.facts
        if state is None and facts.category[value] == Category.GRADIENT and facts.of[value] >= 0:
            return self._own_part(value)
        return state

    def _settle(self, value: int, state: State, row: int) -> None:
        self.states[value] = state
        self.latest[self.facts.storage[value]] = value
        self.producer[self.facts.storage[value]] = row
        self.local.alias.pop(value, None)

    # --- collectives --------------------------------------------------------------------------------------------------

    def _all_reduce(self, value: int, before: int) -> None:
        facts = self.facts
        storage = facts.storage[value]
        self.exchanges.append((self.producer.get(storage, before - 1), before, ALL_REDUCE, TP, self._bytes(value)))
        for other in facts.on_storage[storage]:
            if isinstance(self.states.get(other), Partial):
                self.states[other] = None

    def _whole(self, value: int, before: int) -> int:
        made, new = self.local.whole(value)
        if new:
            after = self.producer.get(self.facts.storage[value], before - 1)
            self.exchanges.append((after, before, ALL_GATHER, TP, self._bytes(value)))
        return made

    def _next_reader(self, value: int, row: int) -> int:
        rows = self.readers.get(self.facts.storage[value], [])
        at = bisect_right(rows, row)
        return rows[at] if at < len(rows) else len(self.facts.inputs)

    def _bytes(self, value: int) -> int:
        values = self.facts.trace.values
        return math.ceil(math.prod(self.facts.shapes[value]) * float(ITEM_BYTES[values.dtype[value]]))


class _LocalValues:
    """The values of the local trace: those of the whole one, cut, and copies made by gathering or taking parts."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.alias: dict[int, int] = {}  # value -> the local value that later readers get instead
        self.shape: dict[int, State] = {}  # state in which a value was made, where it changed later
        self._wholes: dict[int, int] = {}
        self._parts: dict[tuple[int, Segment], int] = {}
        self._extra: list[tuple[int, tuple[int, ...], bool]] = []  # (origin, shape, new storage)
        self._shapes = [tuple(s) for s in trace.values.shape.lists()]

    def whole(self, value: int) -> tuple[int, bool]:
        """The gathered copy of a value, and whether it had to be made."""
        new = value not in self._wholes
        if new:
            self._wholes[value] = self._add(value, self._shapes[value], True)
        return self._wholes[value], new

    def part(self, value: int, own: Segment, size: int) -> int:
        """The own part of a whole value: a view."""
        key = (value, own)
        if key not in self._parts:
            origin = value if value < len(self._shapes) else self._extra[value - len(self._shapes)][0]
            shape = list(self._shapes[origin])
            shape[own.dim] //= size
            self._parts[key] = self._add(origin, tuple(shape), False)
        return self._parts[key]

    def _add(self, origin: int, shape: tuple[int, ...], new_storage: bool) -> int:
        self._extra.append((origin, shape, new_storage))
        return len(self._shapes) + len(self._extra) - 1

    def build(self, states: Mapping[int, State], inputs: list[list[int]], size: int) -> Trace:
        """The local trace: shapes cut, extra values appended, inputs as read locally."""
        trace, values = self.trace, self.trace.values
        divided = {v: s.dim for v, s in {**states, **self.shape}.items() if isinstance(s, Segment)}
        extents = values.shape.values.copy()
        at = values.shape.offsets[list(divided)] + np.array(list(divided.values()), np.int64)
        extents[at] //= size
        extra = Ragged.of([shape for _, shape, _ in self._extra])
        origins = np.array([origin for origin, _, _ in self._extra], np.int64)
        fresh = np.array([new for _, _, new in self._extra], bool)
        storage = values.storage[origins] if len(origins) else np.zeros(0, np.int32)
        storage = storage.copy()
        storage[fresh] = int(values.storage.max(initial=-1)) + 1 + np.arange(int(fresh.sum()), dtype=np.int32)
        extended = Values(
            storage=np.concatenate([values.storage, storage]).astype(np.int32),
            version=np.concatenate([values.version, values.version[origins]]),
            offset=np.concatenate([values.offset, np.zeros(len(origins), np.int64)]),
            shape=Ragged.stacked([Ragged(extents, values.shape.offsets), extra]),
            dtype=np.concatenate([values.dtype, values.dtype[origins]]),
            category=np.concatenate([values.category, values.category[origins]]),
            of=np.concatenate([values.of, np.full(len(origins), -1, np.int32)]),
            name=(*values.name, *("" for _ in origins)),
            symbols=Ragged.stacked([values.symbols, values.symbols.take(origins)]),
        )
        operators = replace(trace.operators, inputs=Ragged.of(inputs, np.int32))
        return recount(replace(trace, values=extended, operators=operators))
