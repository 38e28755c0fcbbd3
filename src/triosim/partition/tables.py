"""Embedding tables among replicas: what one of them looks up for all, and what is exchanged for it.

Each of ``n`` ranks has samples of its own, ``B`` of them, ``L`` rows of each of ``T`` tables for a batch, ``D`` wide.
What becomes of the look-up of a table (an embedding bag, which adds up the rows of a sample):

* ``table``: a rank has whole tables and looks their rows up for the samples of all: indices and sums travel by
  all-to-all, ``T B D`` elements of sums a rank;
* ``row``: a rank has ``1 / n`` of the rows of each table and adds up those that it has for the samples of all, mean
  ``L`` of them: indices travel by all-to-all, sums are reduce-scattered, ``n T B D`` elements in the full buffer, and
  their gradients all-gathered;
* ``column``: a rank has ``1 / n`` of the columns of each table and looks all rows up: indices are all-gathered, sums
  travel by all-to-all.

Gradients of tables stay where the tables are.  Indices travel beside what runs before the first look-up.

Sources: Naumov et al., arXiv:1906.00091, section 4; Mudigere et al., "Software-hardware co-design for fast and scalable
training of deep learning recommendation models" (arXiv:2104.05158), section 4.2; TorchRec's table-wise, row-wise and
column-wise sharding.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from triosim.core.caching import kept
from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.partition.facts import Facts
from triosim.partition.local_trace import with_copies
from triosim.partition.step import Step
from triosim.partition.transfers import ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER, Transfer, Transfers
from triosim.trace.calls import count_work
from triosim.trace.tables import ITEM_BYTES, NONE, Category, Phase

TableStyle = Literal["table", "row", "column"]


@dataclass(frozen=True)
class TableLookUp:
    """One table and what runs for it.

    Attributes:
        weight: value id of the table.
        forward: operator that looks its rows up; it makes the sums ``made`` [B, D].
        backward: operators that make the gradient of its rows out of ``given``, the gradient of the sums.
        update: operators of the optimizer that touch nothing else.
        made, given: value ids; ``given`` is -1 without a backward.
        per_row: values with an element, or a row, for each row that is looked up.
        per_sample: values with an element for each sample, which only the look-up reads or makes.
    """

    weight: int
    forward: int
    backward: tuple[int, ...]
    update: tuple[int, ...]
    made: int
    given: int
    per_row: tuple[int, ...]
    per_sample: tuple[int, ...]


@kept(8)
def look_ups(step: Step) -> tuple[TableLookUp, ...]:
    """The tables of a step whose rows an embedding bag looks up."""
    facts, found = Facts(step.trace), list[TableLookUp]()
    for row in range(len(step.trace)):
        call = facts.calls[row]
        if call.kind != "embedding" or "bag" not in call.name or facts.phase[row] != Phase.FORWARD:
            continue
        weight, indices, offsets = (call.find(role) for role in ("weight", "indices", "offsets"))
        reads, writes = facts.inputs[row], facts.outputs[row]
        if weight >= 0 and indices >= 0:
            starts = reads[offsets] if offsets >= 0 else NONE
            found.append(_look_up(facts, row, facts.parameter(reads[weight]), reads[indices], starts, writes))
    return tuple(found)


def _look_up(facts: Facts, row: int, weight: int, indices: int, starts: int, writes: Sequence[int]) -> TableLookUp:
    made, others, lookups = writes[0], writes[1:], facts.shapes[indices][0]
    gradients = {v for v, of in enumerate(facts.of) if of == weight and facts.category[v] == Category.GRADIENT}
    own = {facts.storage[v] for v in gradients} | {facts.storage[weight]}
    backward, update, given = list[int](), list[int](), NONE
    for other, (ins, outs) in enumerate(zip(facts.inputs, facts.outputs, strict=True)):
        if facts.phase[other] == Phase.OPTIMIZER:
            if any(facts.storage[v] in own for v in (*ins, *outs)) and len(outs) == 1:
                update.append(other)
                own.update(facts.storage[v] for v in outs)
        elif gradients & set(outs):
            backward.append(other)
            given = next((v for v in ins if facts.shapes[v] == facts.shapes[made]), given)
    rows = [v for v, shape in enumerate(facts.shapes) if facts.storage[v] in own and shape[:1] == (lookups,)]
    rows = [v for v in rows if facts.storage[v] != facts.storage[weight]]
    per_row = [indices, *(v for v in others if facts.shapes[v] == (lookups,) and v == others[0]), *rows]
    per_sample = [v for v in (starts, *others) if v != NONE and v not in per_row]
    return TableLookUp(
        weight, row, tuple(backward), tuple(update), made, given, tuple(dict.fromkeys(per_row)), tuple(per_sample)
    )  # fmt: skip


@kept(8)
def with_shared_tables(step: Step, style: TableStyle, size: int, axis: int) -> Step:
    """The step of the rank that has most of the tables.

    Args:
        step: of a rank that has all tables.
        style: see the module.
        size: ranks that have them among them.
        axis: row of the mesh's axes.

    Raises:
        PlanError: there are none, or their columns do not divide.
    """
    found, name = look_ups(step), step.trace.meta.workload or "the trace"
    if not found:
        raise PlanError(f"tables: {name} looks nothing up with an embedding bag: leave the rule out")
    apart = step.apart | {one.weight for one in found}
    if size == 1:
        return replace(step, apart=apart)
    values, operators = step.trace.values, step.trace.operators
    shapes = [list(shape) for shape in values.shape.lists()]
    width = {shapes[one.weight][1] for one in found}
    if style == "column" and any(columns % size for columns in width):
        raise PlanError(
            f"tables: {max(width)} columns of {name} do not divide by {size} ranks: give sharding=row or table"
        )
    mine = _fullest(step, found, size) if style == "table" else set(range(len(found)))
    inputs, outputs = list(operators.inputs.lists()), list(operators.outputs.lists())
    view, copies = operators.view.copy(), list[tuple[int, tuple[int, ...]]]()
    sent = _exchanged(step, found, style, size, axis)
    for number, one in enumerate(found):
        samples, columns = shapes[one.made]
        sums = (samples * size * (number in mine), columns // size if style == "column" else columns)
        if number not in mine:
            view[[one.forward, *one.backward, *one.update]] = True
        for value, table, rows in ((one.made, outputs, [one.forward]), (one.given, inputs, one.backward)):
            if value != NONE:
                for row in rows:
                    table[row] = [len(shapes) + len(copies) if v == value else v for v in table[row]]
                copies.append((value, sums))
    _reshape(step, found, style, size, mine, shapes)
    cut = replace(values, shape=Ragged.of(shapes))
    new = int(values.storage.max(initial=-1)) + 1
    operators = replace(
        operators, inputs=Ragged.of(inputs, np.int32), outputs=Ragged.of(outputs, np.int32), view=view
    )  # fmt: skip
    local = replace(step.trace, values=with_copies(cut, copies, range(new, new + len(copies))), operators=operators)
    homes = replace(step.homes.values, shape=Ragged.of(shapes[: len(step.homes.values)]))
    told = (f"tables: the fullest of {size} ranks has {len(mine)} of {len(found)} tables",) if style == "table" else ()
    return replace(
        step, trace=count_work(local), homes=replace(step.homes, values=homes), apart=apart,
        transfers=step.transfers.with_more(Transfers.of(sent)),
        origin=(*step.origin, *(value for value, _ in copies)), notes=(*step.notes, *told),
    )  # fmt: skip


def _reshape(
    step: Step, found: Sequence[TableLookUp], style: TableStyle, size: int, mine: Collection[int],
    shapes: list[list[int]],
) -> None:  # fmt: skip
    """Cut the tables, and make what is looked up in them as long as a rank looks up; tables ``mine`` are here."""
    storage = step.trace.values.storage.tolist()
    on = {storage[one.weight]: number for number, one in enumerate(found)}
    for value, where in enumerate(storage):
        shape = shapes[value]
        if where not in on or len(shape) != 2:
            continue
        if style == "column":
            shape[1] //= size
        else:
            shape[0] = -(-shape[0] // size) if style == "row" else shape[0] * (on[where] in mine)
    for number, one in enumerate(found):
        here = number in mine
        for value in one.per_row:
            shapes[value][0] *= {"table": size * here, "row": 1, "column": size}[style]
            if style == "column" and len(shapes[value]) == 2:
                shapes[value][1] //= size
        for value in one.per_sample:
            shapes[value][0] *= size * here


def _exchanged(step: Step, found: Sequence[TableLookUp], style: TableStyle, size: int, axis: int) -> list[Transfer]:
    """What all tables exchange at once: lengths and indices, sums, and the gradients of sums."""
    values, facts = step.trace.values, Facts(step.trace)
    each = values.bytes().tolist()
    first, last = min(one.forward for one in found), max(one.forward for one in found)
    starts = next((row for row in range(len(step.trace)) if facts.phase[row] == Phase.FORWARD), first)
    after = starts if starts < first else NONE
    samples = [facts.shapes[one.made][0] for one in found]
    lengths = math.ceil(sum(samples) * float(ITEM_BYTES[values.dtype[found[0].per_row[0]]]))
    indices = sum(each[one.per_row[0]] for one in found)
    kind, times = (ALL_GATHER, size) if style == "column" else (ALL_TO_ALL, 1)
    sent = [Transfer(after, first, kind, axis, times * n, NONE) for n in (lengths, indices)]
    made = {facts.storage[one.made] for one in found}
    read = next(
        (row for row in range(last + 1, len(step.trace)) if any(facts.storage[v] in made for v in facts.inputs[row])),
        len(step.trace),
    )
    sums = sum(each[one.made] for one in found)
    forth, back, full = (
        (REDUCE_SCATTER, ALL_GATHER, size * sums) if style == "row" else (ALL_TO_ALL, ALL_TO_ALL, sums)
    )  # fmt: skip
    sent.append(Transfer(last, read, forth, axis, full, found[0].made))
    given = [one for one in found if one.given != NONE]
    if given:
        needs = min(min(one.backward) for one in given)
        wanted = {facts.storage[one.given] for one in given}
        made_by = max(
            (row for row in range(needs) if any(facts.storage[v] in wanted for v in facts.outputs[row])), default=NONE
        )
        sent.append(Transfer(made_by, needs, back, axis, full, given[0].given))
    return sent


def _fullest(step: Step, found: Sequence[TableLookUp], size: int) -> set[int]:
    """Tables of the rank that has most bytes: the largest first go to the rank that has least, as many to each."""
    bytes_ = step.trace.values.bytes()[[one.weight for one in found]]
    most = -(-len(found) // size)

    def load(own: list[int]) -> tuple[int, int]:
        return len(own), int(bytes_[own].sum())

    held: list[list[int]] = [[] for _ in range(size)]
    for table in np.argsort(-bytes_, kind="stable").tolist():
        room = [own for own in held if len(own) < most]
        min(room, key=lambda own: load(own)[1]).append(table)
    fullest: list[int] = max(held, key=load)
    return set(fullest)
