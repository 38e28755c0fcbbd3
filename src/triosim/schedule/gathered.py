"""What gathered parameters and unscattered gradients occupy: memory of a stage under ZeRO 2 and 3.

As FSDP2 allocates it: an all-gather has a buffer of its own from its launch until it has been copied out, in a forward
until the next unit has been copied out; the copy is there until the unit is sharded again.  Gradients are whole until
they have been copied into the reduce-scatter's buffer, which is there until the next copy waits for it; what comes
out, a rank's part of the gradients, stays to the end of the iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.memory.lifetimes import Lifetimes
from triosim.partition.passes.fuse import Unit
from triosim.schedule.gathering import Marks
from triosim.trace.tables import Category, Phase, Trace


class Spent(NamedTuple):
    """A forward, a backward or the tail of the first iteration.

    Attributes:
        backward: whether it is a backward.
        start: row from which ``marks`` and ``at`` count.
        last: its last row.
        at: instruction of each operator, shape ``(operators,)``; None in the tail.
        marks: what was gathered and scattered in it.
    """

    backward: bool
    start: int
    last: int
    at: NDArray[np.int64] | None
    marks: Marks


def gathered_lifetimes(
    trace: Trace, units: Sequence[Unit], spells: Sequence[Spent], regathers: bool, ways: int, pipelined: bool, end: int
) -> Lifetimes:
    """Lifetimes of what comes and goes with the units.

    Args:
        trace: one rank's step.
        units: of the stage.
        spells: forwards and backwards in order, then what follows them.
        regathers: whether the backward gathers again what the forward has.
        ways: parts into which parameters are cut.
        pipelined: whether there are several stages (see :func:`triosim.schedule.gathering.missing`).
        end: length of the program; what stays ends after its last row.
    """
    rows: list[tuple[int, int, int, int, int]] = []  # bytes, category, first and last row, storage
    size = trace.values.storage_bytes()
    begun = _first_writers(trace)
    since: dict[int, int] = {}  # unit -> where it was copied out
    whole: dict[int, int] = {}  # storage of a gradient -> where it was made
    reduced: set[int] = set()
    weight, gradient, buffer = int(Category.WEIGHT), int(Category.GRADIENT), int(Category.COMMUNICATION)
    first_of = [int(trace.values.storage[unit.parameters[0]]) for unit in units]
    for spell in spells:
        gathered, scattered, start = spell.marks.gathered, spell.marks.scattered, spell.start
        done = int(spell.at[max(unit.forward[1] for unit in units)]) if spell.at is not None and units else 0
        next_copy = [*(copied for _, _, copied in gathered[1:]), max(done, 0)][: len(gathered)]
        for (n, launched, copied), following in zip(gathered, next_copy, strict=True):
            until = copied if spell.backward else following
            rows.append((units[n].gather_bytes, buffer, start + launched, start + until, first_of[n]))
            if n in since:
                rows.append((units[n].gather_bytes, weight, since[n], start + copied, first_of[n]))
            since[n] = start + copied
        for n, unit in enumerate(units):
            if spell.at is None:
                break
            last = (unit.backward if spell.backward else unit.forward)[1]
            if spell.backward:
                for storage in unit.gradients:
                    if begun[storage] >= 0:
                        whole.setdefault(storage, start + max(int(spell.at[begun[storage]]), 0))
                shards = not pipelined
            else:
                shards = regathers and not unit.root
            if n in since and shards and last >= 0:
                at = spell.last if unit.root else start + int(spell.at[last])
                rows.append((unit.gather_bytes, weight, since.pop(n), max(at, 0), first_of[n]))
        waits = [copied for _, copied, _ in scattered[1:]] + [out for _, _, out in scattered[-1:]]
        for (n, copied, out), released in zip(scattered, waits, strict=True):
            unit = units[n]
            for storage in unit.gradients:
                if storage in whole:
                    rows.append((int(size[storage]), gradient, whole.pop(storage), start + copied, storage))
            rows.append((unit.scatter_bytes, buffer, start + copied, start + released, first_of[n]))
            if n not in reduced:
                reduced.add(n)
                rows.append((unit.scatter_bytes // ways, gradient, start + out, end, first_of[n]))
    last = spells[-1].last if spells else 0
    rows += [(units[n].gather_bytes, weight, begin, last, first_of[n]) for n, begin in since.items()]
    rows += [(int(size[storage]), gradient, begin, last, storage) for storage, begin in whole.items()]
    table = np.array(rows, np.int64).reshape(-1, 5)
    first, final, storages = table[:, 2:].T.astype(np.int32)
    return Lifetimes(table[:, 0], table[:, 1].astype(np.int8), first, final, storages)


def _first_writers(trace: Trace) -> list[int]:
    """The first backward operator that writes to each storage, -1 for none."""
    found = np.full(int(trace.values.storage.max(initial=-1)) + 1, -1, np.int64)
    outputs = trace.operators.outputs
    rows = outputs.rows()
    inside = (trace.operators.phase[rows] == Phase.BACKWARD) & ~trace.operators.view[rows]
    storage = trace.values.storage[outputs.values[inside]][::-1]
    found[storage] = rows[inside][::-1]
    return found.tolist()
