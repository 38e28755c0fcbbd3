"""What travels between a device and host memory in a stage's forward and backward, as a rule's stays say.

* Activations: what a repeated block keeps for its backward leaves when the block's forward has ended, and comes back
  when the backward of a block before its own begins.  A later block does not begin before it has left.
* Parameters: those of a block arrive while a block before it runs, forward and backward, and are dropped after it.
  Parameters outside of blocks stay.
* Gradients of what the host updates leave when they are complete, in the groups in which they would be reduced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.partition.gradients import Gradient
from triosim.partition.passes.hoist import hoist
from triosim.partition.passes.sink import sink
from triosim.partition.residence import HOST, HostStay
from triosim.trace.blocks import blocks
from triosim.trace.tables import NONE, Category, Phase, Trace


class HostCopy(NamedTuple):
    """Storages that travel together.

    Attributes:
        storages: which.
        bytes: their size.
        leaves: operator after which they leave, -1 if they only come.
        gone: operator that begins when they have left, -1 for none.
        called: operator at whose beginning they are called back, -1 if they only leave.
        needed: operator that waits for them, -1 likewise.
        dropped: operator after which they are dropped, -1 where their last reader decides.
        place: where they are while they are away.
    """

    storages: tuple[int, ...]
    bytes: int
    leaves: int
    gone: int
    called: int
    needed: int
    dropped: int = NONE
    place: str = HOST


class _Reach(NamedTuple):
    """First and last operator of a block in a stage's forward, and of its backward (-1 for none)."""

    block: int
    forward: tuple[int, int]
    backward: tuple[int, int]


def activation_copies(
    trace: Trace, forward: Sequence[int], backward: Sequence[int], sent: set[int], stay: HostStay
) -> list[HostCopy]:
    """What the blocks of a stage keep for the backward, as it leaves and comes back.

    Args:
        trace: one rank's step.
        forward, backward: operators of the stage in the order in which they run.
        sent: storages that are not to leave (those sent to other stages).
        stay: what the rule says of them.

    Raises:
        PlanError: the step has no repeated blocks.
    """
    reach = _reaches(trace, forward, backward, stay.name)
    operators, storage = trace.operators, trace.values.storage.tolist()
    size = trace.values.storage_bytes()
    kept = set(np.unique(trace.values.storage[trace.values.category == Category.ACTIVATION]).tolist()) - sent
    made, last = _made_and_last_read(forward, operators.inputs.lists(), operators.outputs.lists(), storage)
    wanted = _first_touched(backward, operators.inputs.lists(), operators.outputs.lists(), storage)
    order = [(b.backward[0], b) for b in reach if b.backward[0] >= 0]
    order.sort(key=lambda item: item[0])
    starts = [start for start, _ in order]
    called = hoist(starts, stay.ahead)
    most = len(reach) - stay.waiting if stay.blocks is None else min(len(reach) - stay.waiting, stay.blocks)
    found: dict[tuple[int, int], list[int]] = {}
    for storage_, row in made.items():
        at = next((i for i, b in enumerate(reach) if b.forward[0] <= row <= b.forward[1]), None)
        if at is None or at >= most or storage_ not in kept or storage_ not in wanted:
            continue
        if last.get(storage_, row) >= reach[at + stay.waiting].forward[0]:
            continue  # a later block reads it too
        user = int(np.searchsorted(starts, wanted[storage_], side="right")) - 1
        if user >= 1:  # the first to run backward cannot call ahead
            found.setdefault((at, user), []).append(storage_)
    return [
        HostCopy(
            tuple(storages), int(size[storages].sum()), leaves=reach[at].forward[1],
            gone=reach[at + stay.waiting].forward[0], called=called[user],
            needed=min(wanted[s] for s in storages), place=stay.place,
        )
        for (at, user), storages in sorted(found.items())
    ]  # fmt: skip


def parameter_copies(
    trace: Trace, forward: Sequence[int], backward: Sequence[int], parameters: Mapping[int, object], stay: HostStay
) -> tuple[list[HostCopy], list[HostCopy]]:
    """Parameters of the blocks of a stage, as they visit in its forward and in its backward.

    Args:
        trace: one rank's step.
        forward, backward: operators of the stage in the order in which they run.
        parameters: those of the stage, value ids.
        stay: what the rule says of them.

    Raises:
        PlanError: the step has no repeated blocks.
    """
    reach = _reaches(trace, forward, backward, stay.name)
    storage, names = trace.values.storage.tolist(), trace.values.name
    size = trace.values.storage_bytes()
    found = blocks(trace)
    of_path = {path: i for i, path in enumerate(found.path)}
    mine: dict[int, list[int]] = {}
    for value in parameters:
        parts = names[value].split(".")
        block = next((of_path[p] for n in range(1, len(parts)) if (p := ".".join(parts[:n])) in of_path), NONE)
        mine.setdefault(block, []).append(storage[value])

    def copies(rows: list[tuple[int, int, int]]) -> list[HostCopy]:
        made = []
        for (first, last, block), (called, _, _) in zip(rows, hoist(rows, stay.ahead), strict=True):
            if block in mine:
                whole = int(size[mine[block]].sum())
                made.append(HostCopy(tuple(mine[block]), whole, NONE, NONE, called, first, last, stay.place))
        return made

    return (
        copies(sorted((*b.forward, b.block) for b in reach)),
        copies(sorted((*b.backward, b.block) for b in reach if b.backward[0] >= 0)),
    )


def _reaches(trace: Trace, forward: Sequence[int], backward: Sequence[int], what: str) -> list[_Reach]:
    of = blocks(trace).of(trace).tolist()
    if all(block == NONE for block in of):
        raise PlanError(
            f"{what}: no repeated blocks (numbered modules) found in {trace.meta.workload!r}, and it goes "
            "block by block: leave it out"
        )
    reach: dict[int, list[list[int]]] = {}
    for place, rows in enumerate((forward, backward)):
        for row in rows:
            if of[row] != NONE and (place == 0 or of[row] in reach):
                reach.setdefault(of[row], [[], []])[place].append(row)
    return sorted(
        (
            _Reach(block, (min(f), max(f)), (min(b, default=NONE), max(b, default=NONE)))
            for block, (f, b) in reach.items()
        ),
        key=lambda found: found.forward,
    )


def _made_and_last_read(
    rows: Iterable[int], inputs: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], storage: Sequence[int]
) -> tuple[dict[int, int], dict[int, int]]:
    """Operator that makes each storage, and the last that reads it."""
    made: dict[int, int] = {}
    last: dict[int, int] = {}
    seen: set[int] = set()
    for row in rows:
        for value in inputs[row]:
            seen.add(storage[value])
            last[storage[value]] = row
        for value in outputs[row]:
            if storage[value] not in seen:
                made.setdefault(storage[value], row)
            last[storage[value]] = row
    return made, last


def _first_touched(
    rows: Iterable[int], inputs: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], storage: Sequence[int]
) -> dict[int, int]:
    first: dict[int, int] = {}
    for row in rows:
        for value in (*inputs[row], *outputs[row]):
            first.setdefault(storage[value], row)
    return first


def gradient_copies(
    groups: Sequence[Sequence[Gradient]], sizes: Mapping[int, int], backward: Sequence[int], waiting: int
) -> list[HostCopy]:
    """Complete gradients on their way to the host, beside the last backward.

    Args:
        groups: gradients that travel together, in the order in which they are complete.
        sizes: bytes of each that are needed there, by storage.
        backward: operators of the stage's backward that compute, in order.
        waiting: so many groups wait to leave before the backward waits for the first of them.
    """
    ready = sink(groups)
    copies = []
    for at, group in enumerate(groups):
        later = max(ready[at : at + waiting])
        gone = next((row for row in backward if row > later), NONE) if at + waiting <= len(groups) else NONE
        storages = tuple(g.storage for g in group if g.storage in sizes)
        if storages:
            copies.append(HostCopy(storages, sum(sizes[s] for s in storages), ready[at], gone, NONE, NONE))
    return copies


@dataclass(frozen=True)
class HostUpdate:
    """Optimizer step of one pipeline stage that runs on the processor of the host.

    Attributes:
        gradients: bytes of each gradient that it needs, by storage.
        parameters: bytes of the new parameters.
        states: bytes of its states, master weights included.
        touched_bytes: what it reads and writes: gradients, states and masters once each way.
    """

    gradients: dict[int, int]
    parameters: int
    states: int
    touched_bytes: int


def update_of(trace: Trace, parameters: Iterable[int]) -> HostUpdate:
    """The update of some parameters.

    Args:
        trace: one rank's step, its optimizer divided where it is (ZeRO).
        parameters: value ids.
    """
    operators, values = trace.operators, trace.values
    storage, category, of = values.storage.tolist(), values.category.tolist(), values.of.tolist()
    size = values.bytes().tolist()
    mine = {storage[p] for p in parameters}

    def own(value: int) -> bool:
        owner = of[value] if of[value] >= 0 else value
        return storage[owner] in mine

    reads: dict[int, int] = {}
    writes: dict[int, int] = {}
    kind: dict[int, int] = {}
    for row in np.flatnonzero(operators.phase == Phase.OPTIMIZER).tolist():
        for table, held in ((operators.inputs[row], reads), (operators.outputs[row], writes)):
            for value in table.tolist():
                if category[value] != Category.TEMPORARY and own(value):
                    held[storage[value]] = max(held.get(storage[value], 0), size[value])
                    kind[storage[value]] = category[value]
    return HostUpdate(
        {s: b for s, b in reads.items() if kind[s] == Category.GRADIENT},
        sum(b for s, b in writes.items() if kind[s] == Category.WEIGHT),
        sum(b for s, b in reads.items() if kind[s] == Category.OPTIMIZER_STATE),
        sum(reads.values()) + sum(writes.values()),
    )
