"""Which forward operator a backward operator differentiates, from autograd's own numbering.

Autograd numbers its nodes as they are made, and makes the node of an operator just before it calls the operator's
kernel.  So the first operator that ran while a number was the last one given is the one that the node differentiates,
and a backward operator asks the node that is being run for its number.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import NamedTuple

from triosim.operators import canonical, kind
from triosim.sources.record.observer import RecordedOperator, StepTape
from triosim.trace.tables import Phase

NONE = -1
_BUILT_IN = re.compile(r"Backward\d+$")
"""Autograd's own nodes end in a number; those of a user's ``autograd.Function`` do not."""

_SUMS = frozenset({"aten::add", "aten::add_"})


class TapeLinks(NamedTuple):
    """One entry per row of the tape.

    Attributes:
        forward: row that a backward row differentiates, else -1.
        module: index of the module, backward rows that of their forward row.
    """

    forward: list[int]
    module: list[int]


def link(tape: StepTape) -> TapeLinks:
    """Find the forward row of every backward row, and with it the module."""
    rows = tape.rows
    made: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, row in enumerate(rows):
        if row.phase in (Phase.FORWARD, Phase.RECOMPUTE) and row.collective is None:
            made[row.sequence][row.thread].append(number)
    forward, module = [NONE] * len(rows), [row.module for row in rows]
    for number, row in enumerate(rows):
        if row.phase != Phase.BACKWARD:
            continue
        module[number] = NONE
        if row.sequence != NONE and row.sequence in made:
            forward[number] = _choose(row, number, made[row.sequence], rows)
        if forward[number] != NONE:
            module[number] = rows[forward[number]].module
    for number in _gradient_sums(tape):
        forward[number] = NONE  # autograd adds up the gradients of a tensor that was used twice: no derivative
    _give_accumulation_its_owner(tape, module)
    return TapeLinks(forward, module)


def _choose(row: RecordedOperator, number: int, by_thread: dict[int, list[int]], rows: list[RecordedOperator]) -> int:
    """The row that the node made: the first one with its number, on the thread where the node was made.

    Threads number independently.  Where two threads made forward operators under the same number (recomputation on
    autograd's own thread), the one whose operator bears the node's name is meant, else the later one.
    """
    groups = [[n for n in group if n < number] for group in by_thread.values()]
    groups = [group for group in groups if group]
    if not groups:
        return NONE
    if len(groups) > 1:
        wanted = canonical(row.node)[0]
        groups.sort(key=lambda group: (canonical(rows[group[0]].name)[0] == wanted, group[0]))
    group = groups[-1]
    if _BUILT_IN.search(row.node):
        return group[0]
    # A user's own autograd.Function may run many operators forward: take one of the same kind, else the first real one.
    same = [n for n in group if kind(rows[n].name) == kind(row.name)]
    real = [n for n in group if not rows[n].view]
    return (same or real or group)[0]


def _gradient_sums(tape: StepTape) -> list[int]:
    """Rows in which autograd adds a gradient to the one that a tensor has already received.

    They run at the end of a node's evaluation, and one of the two summands was made by another node before.
    """
    rows, storage = tape.rows, [v.storage for v in tape.ledger.values]
    shape = [v.shape for v in tape.ledger.values]
    found: list[int] = []
    writer: dict[int, int] = {}
    start, key = 0, None
    for number, row in enumerate(rows):
        this = (row.phase, row.task, row.sequence, row.node)
        if this != key:
            start, key = number, this
        if row.phase == Phase.BACKWARD and row.name in _SUMS and len(row.inputs) == 2 and _BUILT_IN.search(row.node):
            made_by = [writer.get(storage[v], NONE) for v in row.inputs]
            earlier = any(NONE < m < start and rows[m].phase == Phase.BACKWARD for m in made_by)
            if earlier and shape[row.inputs[0]] == shape[row.inputs[1]] and _last_of_its_node(rows, number):
                found.append(number)
        if not row.view:
            for value in row.outputs:
                writer[storage[value]] = number
    return found


def _last_of_its_node(rows: list[RecordedOperator], number: int) -> bool:
    row = rows[number]
    for other in rows[number + 1 :]:
        if (other.phase, other.task, other.sequence, other.node) != (row.phase, row.task, row.sequence, row.node):
            return True
        if other.name not in _SUMS:
            return False
    return True


def _give_accumulation_its_owner(tape: StepTape, module: list[int]) -> None:
    """What accumulates a weight's gradient differentiates nothing; it belongs to the module that owns the weight."""
    index_of = {tape.names.modules.get(id(m), ""): i for i, m in reversed(list(enumerate(tape.modules)))}
    name_of = {value: name for (name, _), value in zip(tape.names.parameters, tape.parameters, strict=True)}
    for number, row in enumerate(tape.rows):
        if row.phase != Phase.BACKWARD or module[number] != NONE or "AccumulateGrad" not in row.node:
            continue
        for value in (*row.inputs, *row.outputs):
            weight = tape.gradients.get(tape.ledger.values[value].storage)
            name = name_of.get(weight, "") if weight is not None else ""
            if name:
                module[number] = index_of.get(name.rpartition(".")[0], NONE)
                break
