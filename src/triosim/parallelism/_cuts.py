"""Which weights a tensor-parallel plan divides, and along which dimension."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from triosim.errors import PlanError
from triosim.parallelism._layers import Facts, Layer
from triosim.parallelism._states import FOLLOWS, Outcomes, Partial, State
from triosim.workload.follow import Segment, relocate
from triosim.workload.labels import NO_LABEL
from triosim.workload.trace import Phase


@dataclass
class Cuts:
    """The division of the weights.

    Attributes:
        size: ranks on the tensor axis.
        dims: parameter -> the dimension along which it is divided.
        gathered: rows of the layers whose output is gathered at once.
        losses_divided: whether the loss is computed on a divided vocabulary.
        at_boundaries: reduce every partial value where it arises, as torch's ``parallelize_module`` does at the
            boundary of each module, instead of where it is first needed.
        refused: layers that could not be divided, and why.
    """

    size: int
    dims: dict[int, int] = field(default_factory=dict)
    gathered: set[int] = field(default_factory=set)
    losses_divided: bool = False
    at_boundaries: bool = False
    refused: list[str] = field(default_factory=list)

    def divides(self, facts: Facts, layer: Layer, dim: int) -> bool:
        """Whether the layer's weight can be divided along ``dim``; notes the refusal if not."""
        extent = facts.shapes[layer.weight][dim] if dim != NO_LABEL else 1
        if extent % self.size == 0:
            return True
        self.refused.append(f"{layer.path or 'a layer'} has {extent}, which does not divide by {self.size}")
        return False


def every_layer(facts: Facts, size: int) -> Cuts:
    """Divide every layer along its output, and gather it (the ``tensor_parallel`` library's way)."""
    cuts = Cuts(size)
    for layer in facts.layers:
        if layer.weight in cuts.dims or cuts.divides(facts, layer, layer.out_dim):
            cuts.dims.setdefault(layer.weight, layer.out_dim)
            cuts.gathered.add(layer.row)
    return cuts


def by_plan(facts: Facts, size: int, plan: Mapping[str, str]) -> Cuts:
    """Divide the layers that the user's plan names.

    Raises:
        PlanError: a pattern matches no layer, or a layer does not divide.
    """
    cuts = Cuts(size, at_boundaries=True)
    unused = dict.fromkeys(plan)
    for layer in facts.layers:
        pattern = next((p for p in plan if fnmatch.fnmatchcase(layer.path, p)), None)
        if pattern is None:
            continue
        unused.pop(pattern, None)
        style = plan[pattern]
        if style == "replicate":
            continue
        by_rows = style == "rowwise" or (style == "vocab" and layer.embedding)
        dim = layer.in_dim if by_rows else layer.out_dim
        if not cuts.divides(facts, layer, dim):
            raise PlanError(f"tp-plan: layer {layer.path!r} cannot be {style}: {cuts.refused[-1]}")
        cuts.dims.setdefault(layer.weight, dim)
        if style == "gather":
            cuts.gathered.add(layer.row)
        if style == "vocab" and not layer.embedding:
            cuts.losses_divided = True
    if unused:
        known = ", ".join(dict.fromkeys(layer.path for layer in facts.layers))
        raise PlanError(f"tp-plan: no layer with a weight matches {next(iter(unused))!r}; layers are {known[:300]}")
    return cuts


def pairs(facts: Facts, size: int, vocabulary: bool) -> Cuts:
    """Divide by column what stays divided until it is multiplied into layers that can be divided by row.

    Layers fed by the same value (queries, keys and values; gate and up) are cut together.  Nothing is read off
    names: a group qualifies if the walk from its outputs meets nothing that needs a whole value before every path ends
    in a layer's contraction.

    Args:
        facts: the step.
        size: ranks on the tensor axis.
        vocabulary: also cut the embedding table by rows and the layer that feeds the loss by columns.
    """
    cuts = Cuts(size)
    groups: dict[int, list[Layer]] = {}
    for layer in facts.layers:
        if not layer.embedding and layer.source >= 0:
            groups.setdefault(facts.storage[layer.source], []).append(layer)
    trial = _Trial(facts, cuts)
    for group in groups.values():
        for option in [group] if len(group) == 1 else [group, *([layer] for layer in group)]:
            free = all(layer.weight not in cuts.dims for layer in option)
            if free and all(cuts.divides(facts, layer, layer.out_dim) for layer in option):
                closing = trial.close(option)
                if closing:
                    cuts.dims.update({layer.weight: layer.out_dim for layer in option})
                    cuts.dims.update({layer.weight: layer.in_dim for layer in closing})
                    break
    if vocabulary:
        _cut_vocabulary(facts, cuts)
    return cuts


def _cut_vocabulary(facts: Facts, cuts: Cuts) -> None:
    """Embedding table by rows, output layer by columns (Megatron-LM, Shoeybi et al. 2019, section 3)."""
    tables = [layer for layer in facts.layers if layer.embedding and layer.in_dim != NO_LABEL]
    if not tables:
        return
    rows = max((facts.shapes[t.weight][t.in_dim] for t in tables), default=0)
    for table in tables:
        if facts.shapes[table.weight][table.in_dim] == rows and cuts.divides(facts, table, table.in_dim):
            cuts.dims.setdefault(table.weight, table.in_dim)
    for head in facts.layers:
        if head.embedding or not _feeds_loss(facts, head):
            continue
        if cuts.dims.get(head.weight, head.out_dim) == head.out_dim and cuts.divides(facts, head, head.out_dim):
            cuts.dims[head.weight] = head.out_dim
            cuts.losses_divided = True


def _feeds_loss(facts: Facts, layer: Layer) -> bool:
    """Whether nothing but a loss (through views, casts and a softmax) reads the layer's output."""
    storages = {facts.storage[v] for v in facts.outputs[layer.row]}
    for row in range(layer.row + 1, len(facts.inputs)):
        if facts.phase[row] != Phase.FORWARD or not any(facts.storage[v] in storages for v in facts.inputs[row]):
            continue
        call = facts.calls[row]
        if call.kind == "loss":
            return True
        if call.kind not in ("view", "softmax", "copy"):
            return False
        storages.update(facts.storage[v] for v in facts.outputs[row])
    return False


class _Trial:
    """Tries column cuts on the forward part of a step."""

    def __init__(self, facts: Facts, cuts: Cuts) -> None:
        self.facts, self.cuts = facts, cuts
        self.outcomes = Outcomes(facts, cuts.size)
        self.layer_at = {layer.row: layer for layer in facts.layers}
        self.last_use: dict[int, int] = {}
        for row, reads in enumerate(facts.inputs):
            if facts.phase[row] == Phase.FORWARD:
                self.last_use.update((facts.storage[v], row) for v in reads)

    def close(self, group: Sequence[Layer]) -> list[Layer]:
        """Layers to cut by row if ``group`` is cut by column; empty if something would need a whole value."""
        facts = self.facts
        members = {layer.row: layer for layer in group}
        states: dict[int, State] = {}
        live: dict[int, int] = {}  # divided storages and the value last seen on them
        followed: dict[int, int] = {}
        closing: list[Layer] = []
        row, end = min(members), max(members)
        while row <= end:
            reads = facts.inputs[row]
            member = members.get(row)
            touched = member is not None or any(facts.storage[v] in live for v in reads)
            if facts.phase[row] == Phase.FORWARD and touched:
                before = [self._state(v, states, live, followed) for v in reads]
                if member is not None:
                    at = facts.weight_input(row, member)
                    dim = facts.dim_of(reads[at], member.out_dim)
                    before[at] = Segment.whole(dim, facts.shapes[reads[at]][dim])
                elif row in self.layer_at and self.layer_at[row].weight not in followed:
                    layer = self.layer_at[row]
                    if not self._contracts(row, layer, before):
                        return []
                    closing.append(layer)
                    row += 1
                    continue
                found = self.outcomes(row, before, losses_divided=False)
                if found.gather or any(isinstance(s, Partial) for s in found.outputs):
                    return []
                for at, own in found.take.items():
                    if facts.category[reads[at]] not in FOLLOWS and reads[at] not in facts.parameter_of:
                        return []  # a divided value meets a whole one: a residual connection
                    followed[facts.parameter(reads[at])] = own.dim
                for value, state in zip(facts.outputs[row], found.outputs, strict=True):
                    states[value] = state
                    if isinstance(state, Segment):
                        live[facts.storage[value]] = value
                        end = max(end, self.last_use.get(facts.storage[value], row))
            row += 1
        return closing

    def _contracts(self, row: int, layer: Layer, before: Sequence[State]) -> bool:
        """Whether the divided inputs of a layer are divided along what its weight is multiplied over."""
        facts = self.facts
        rule = facts.labels(row)
        at = facts.weight_input(row, layer)
        divided = {rule.inputs[i][s.dim] for i, s in enumerate(before) if isinstance(s, Segment)}
        if layer.in_dim == NO_LABEL or layer.weight in self.cuts.dims:
            return False
        wanted = rule.inputs[at][facts.dim_of(facts.inputs[row][at], layer.in_dim)]
        return divided == {wanted} and self.cuts.divides(facts, layer, layer.in_dim)

    def _state(self, value: int, states: dict[int, State], live: dict[int, int], followed: dict[int, int]) -> State:
        facts = self.facts
        if value in states:
            return states[value]
        if facts.parameter(value) in followed:
            dim = facts.dim_of(value, followed[facts.parameter(value)])
            return Segment.whole(dim, facts.shapes[value][dim])
        known = live.get(facts.storage[value])
        state = states[known] if known is not None else None
        if known is None or not isinstance(state, Segment):
            return None
        return relocate(state, facts.shapes[known], facts.shapes[value])
