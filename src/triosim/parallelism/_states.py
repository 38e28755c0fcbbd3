"""The state of values on the tensor axis, and what one operator makes of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from triosim.parallelism._layers import Facts
from triosim.workload.follow import Segment, relocate
from triosim.workload.labels import NO_LABEL
from triosim.workload.trace import Category

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Partial:
    """Each rank holds a summand of the value."""


State = Segment | Partial | None
"""A segment of one dimension is divided; a summand; or (None) every rank has the whole."""

FOLLOWS = (int(Category.WEIGHT), int(Category.BUFFER))
"""What is divided for good when a divided value meets it: biases, the weights of norms, running statistics."""


@dataclass(frozen=True)
class Outcome:
    """What an operator does with inputs in given states, none of them partial.  Not to be changed: it is shared.

    Attributes:
        outputs: states of its outputs.
        gather: inputs that must be made whole first (then ask again).
        take: whole inputs of which each rank uses only its own part.
        row_reductions: all-reduces of one number per row (a loss over a divided vocabulary).
    """

    outputs: list[State]
    gather: list[int] = field(default_factory=list)
    take: dict[int, Segment] = field(default_factory=dict)
    row_reductions: int = 0


class Outcomes:
    """What operators do on ``size`` ranks, worked out once for equal calls on inputs in equal states."""

    def __init__(self, facts: Facts, size: int) -> None:
        self.facts, self.size = facts, size
        self._known: dict[tuple, Outcome] = {}

    def __call__(self, row: int, states: list[State], losses_divided: bool) -> Outcome:
        """What operator ``row`` does with inputs in ``states``."""
        facts = self.facts
        if not any(isinstance(state, Segment) for state in states):
            return Outcome([None] * len(facts.outputs[row]))
        weights = tuple([value in facts.parameter_of for value in facts.inputs[row]])
        key = (id(facts.calls[row]), tuple(states), weights, losses_divided)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = outcome(facts, row, states, self.size, losses_divided)
        return found


def outcome(facts: Facts, row: int, states: list[State], size: int, losses_divided: bool) -> Outcome:
    """What operator ``row`` does with inputs in ``states`` on ``size`` ranks."""
    rule, shapes = facts.labels(row), [facts.shapes[v] for v in facts.inputs[row]]
    outputs = [facts.shapes[v] for v in facts.outputs[row]]
    divided = {i: s for i, s in enumerate(states) if isinstance(s, Segment)}
    gather_all = Outcome([None] * len(outputs), gather=list(divided))
    if not rule.known:
        return gather_all
    if rule.reshape:
        moved = [reshape(divided[0], shapes[0], shape, size) for shape in outputs] if 0 in divided else [None]
        return gather_all if None in moved else Outcome(list(moved))
    label_of = {i: rule.inputs[i][s.dim] for i, s in divided.items()}
    keep = _label_to_keep(facts, row, label_of)
    if any(label != keep for label in label_of.values()):
        return Outcome([None] * len(outputs), gather=[i for i, label in label_of.items() if label != keep])
    if keep == NO_LABEL:
        return gather_all
    reductions = 0
    if keep in rule.whole:
        reductions = _loss_reductions(facts, row) if losses_divided else -1
        if reductions < 0:
            return gather_all
    segment = next(iter(divided.values()))
    take: dict[int, Segment] = {}
    for i, labels in enumerate(rule.inputs):
        if keep in labels and i not in divided:
            dim = labels.index(keep)
            own = segment.moved(dim, shapes[i][dim])
            if own is None or own.size % size:
                return gather_all
            take[i] = own
    result: list[State] = []
    for shape, output in zip(outputs, rule.outputs, strict=True):
        sources = range(len(shapes)) if output.inputs is None else [i for i in output.inputs if i >= 0]
        if keep in output.labels:
            dim = output.labels.index(keep)
            there = segment.moved(dim, shape[dim])
            if there is None or there.size % size:
                return gather_all
            result.append(there)
        elif keep not in rule.whole and 0 not in shape and any(keep in rule.inputs[i] for i in sources):
            result.append(Partial())
        else:
            result.append(None)
    return Outcome(result, take=take, row_reductions=reductions)


def reshape(segment: Segment, before: Shape, after: Shape, size: int) -> Segment | None:
    """Where a divided segment is after a reshape, None if the ranks' parts would be torn apart.

    When the outermost dimension that the segment falls on does not divide, the next one is cut: a fused projection
    of (3, heads, ...) is laid out so that each rank has its heads of all three.
    """
    moved = relocate(segment, before, after)
    if moved is None or moved.size % size == 0:
        return moved
    following = moved.dim + 1
    if moved.outer == 1 and moved.inner == 1 and segment.size > moved.size and following < len(after):
        return Segment.whole(following, after[following]) if after[following] % size == 0 else None
    return None


def _label_to_keep(facts: Facts, row: int, label_of: dict[int, int]) -> int:
    """Where two cuts meet that of a weight stays, else that of the first input."""
    for i, label in label_of.items():
        if facts.inputs[row][i] in facts.parameter_of:
            return label
    return next(iter(label_of.values()))


def _loss_reductions(facts: Facts, row: int) -> int:
    """All-reduces of one number per row that a loss over a divided vocabulary needs, -1 where it is not one.

    The maximum and the sum of exponentials in the softmax and the target's score in the loss; none in the backward
    (Megatron-LM, Shoeybi et al. 2019, section 3).
    """
    call = facts.calls[row]
    if call.kind == "softmax" and "log" in call.name:
        return 0 if call.backward else 2
    if call.kind == "loss" and "cross_entropy" in call.name:
        return 0 if call.backward else 3
    if call.kind == "loss" and "nll" in call.name:
        return 0 if call.backward else 1
    return -1
