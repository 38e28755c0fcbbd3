"""A collective of ASTRA-sim's system layer: cut into chunks, which pass through the dimensions one after the other.

In each dimension a few chunks are under way at once; the others wait in the order in which they came.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted
from triosim.interop.astra.edge_blocks import EdgeBlocks, Rows, all_of
from triosim.interop.astra.implementation import IMPLEMENTATIONS, Implementation, Stage, result_size
from triosim.interop.astra.system import AstraSystem, DimensionAlgorithm

if TYPE_CHECKING:
    from triosim.engine.graph import Pattern


MOST_AT_ONCE = 10**7
"""Messages that the ranks of a collective may send at once, chunk by chunk: memory grows with them."""

MOST_MESSAGES = 4 * 10**9
"""Messages of a collective: a few minutes with the native engine."""


@dataclass(frozen=True)
class DimensionPass:
    """A chunk of a collective in one dimension of the network.

    Attributes:
        dimension: which.
        kind, size: what is done there with how many bytes at each rank.
        previous: the visit of the same chunk before this one, -1 for none.
        slot: the visit whose end lets this one begin, -1 where there is room from the start.
    """

    dimension: int
    kind: str
    size: int
    previous: int
    slot: int


Duration = Callable[[int, str, int], float]
"""(dimension, kind, bytes) -> about how long a chunk alone would take."""


def chunks(size: int, splits: int) -> list[int]:
    """Bytes of each chunk: equal, what is left over in the last; fewer chunks where there are fewer bytes."""
    count = min(splits, size)
    return [size // count] * (count - 1) + [size - size // count * (count - 1)] if count else []


def phases(kind: str, shape: Sequence[int], local_bandwidth_aware: bool) -> list[tuple[int, str]]:
    """(dimension, kind) of what one chunk goes through; dimensions of one rank are left out.

    An all-gather takes the dimensions in reverse.  An all-reduce that minds local bandwidth scatters on the way up, so
    that the last dimension has the least to do, and gathers on the way back.
    """
    dims = [number for number, members in enumerate(shape) if members > 1]
    if kind == "all_reduce" and local_bandwidth_aware and dims:
        up = [(dim, "reduce_scatter") for dim in dims[:-1]]
        return [*up, (dims[-1], kind), *((dim, "all_gather") for dim in reversed(dims[:-1]))]
    return [(dim, kind) for dim in (reversed(dims) if kind == "all_gather" else dims)]


def visits(kind: str, size: int, shape: Sequence[int], system: AstraSystem, duration: Duration) -> list[DimensionPass]:
    """What all chunks go through, in an order in which each visit comes after those it waits for.

    A dimension takes chunks in the order in which they come.  Where a dimension is passed twice, that order depends on
    how long things take; it is found from how long each would take alone, once for all ranks, so that all agree.
    """
    route = phases(kind, shape, system.local_bandwidth_aware)
    if not route:
        return []
    found: list[DimensionPass] = []
    line: list[list[int]] = [[] for _ in shape]  # visits of each dimension, in the order in which they began
    waiting: list[list[tuple[int, int, int, int]]] = [[] for _ in shape]
    busy = [0] * len(shape)
    events: list[tuple[float, int, int, int, int, int]] = []  # (time, ended dimension, chunk, phase, bytes, visit)
    for chunk, part in enumerate(chunks(size, system.splits)):
        waiting[route[0][0]].append((chunk, 0, part, -1))

    def begin(dim: int, now: float) -> None:
        while waiting[dim] and busy[dim] < system.active:
            chunk, phase, part, previous = waiting[dim].pop(0)
            what, at = route[phase][1], len(found)
            slot = line[dim][-system.active] if len(line[dim]) >= system.active else -1
            found.append(DimensionPass(dim, what, part, previous, slot))
            line[dim].append(at)
            busy[dim] += 1
            heappush(events, (now + duration(dim, what, part), dim, chunk, phase, part, at))

    begin(route[0][0], 0.0)
    while events:
        now, dim, chunk, phase, part, at = heappop(events)
        busy[dim] -= 1
        if phase + 1 < len(route):
            after = route[phase + 1][0]
            waiting[after].append((chunk, phase + 1, result_size(route[phase][1], part, shape[dim]), at))
            begin(after, now)
        begin(dim, now)
    return found


@dataclass(frozen=True)
class CollectivePlan:
    """How one collective is done.

    Attributes:
        kind, size: the collective; see :class:`Stage`.
        shape: ranks along each dimension, the first varying fastest.
        choices: implementation along each dimension.
        hop: (hops, seconds of latency per hop, bytes per second) along each dimension, for putting chunks in order.
    """

    kind: str
    size: int
    shape: tuple[int, ...]
    choices: tuple[DimensionAlgorithm, ...]
    hop: tuple[tuple[int, float, float], ...]


def pattern(plan: CollectivePlan, system: AstraSystem, stagger_ps: int) -> Pattern | None:
    """The messages of a collective among ``prod(plan.shape)`` positions, or None where there is nothing to send.

    Raises:
        InputError: an implementation cannot do this among so many ranks.
    """
    made = [_implementation(plan, dim) for dim in range(len(plan.shape))]

    def duration(dim: int, kind: str, size: int) -> float:
        hops, latency, bandwidth = plan.hop[dim]
        messages, total = made[dim].steps(plan.shape[dim], Stage(kind, size, system.costs))
        return messages * hops * latency + total / bandwidth

    found = visits(plan.kind, plan.size, plan.shape, system, duration)
    if not found:
        return None
    positions = np.arange(math.prod(plan.shape))
    _check_size(plan, found, made, system)
    blocks = EdgeBlocks(len(positions))
    done: list[Rows] = []  # the edge with which each position ends each visit
    begun = [0] * len(plan.shape)
    for visit in found:
        lines = _lines(positions, plan.shape, visit.dimension)
        here = lines.reshape(-1)
        start = [all_of(done[at][here]) for at in (visit.previous, visit.slot) if at >= 0]
        stage = Stage(visit.kind, visit.size, system.costs, stagger_ps, begun[visit.dimension] % system.active)
        begun[visit.dimension] += 1
        ended = made[visit.dimension].add_edges(blocks, lines, stage, start)
        own = np.empty_like(ended)
        own[here] = ended
        done.append(own)
    return blocks.pattern()


def _check_size(
    plan: CollectivePlan, found: Sequence[DimensionPass], made: Sequence[Implementation], system: AstraSystem
) -> None:
    """A collective that neither memory nor patience is enough for is refused."""
    ranks = math.prod(plan.shape)
    edges = messages = 0
    for visit in found:
        members, fan = plan.shape[visit.dimension], made[visit.dimension].fan_out(plan.shape[visit.dimension])
        edges += ranks * fan
        messages += ranks * fan * made[visit.dimension].steps(members, Stage(visit.kind, visit.size, system.costs))[0]
    for count, most, what in ((edges, MOST_AT_ONCE, "messages at once"), (messages, MOST_MESSAGES, "messages")):
        if count > most:
            raise InputError(
                f"{plan.kind.replace('_', '-')} of {plan.size} bytes among {ranks} ranks is {count:.2g} {what}, and "
                f"{most:.0e} is the most that is played: take another implementation or fewer preferred-dataset-splits"
            )


def _lines(positions: NDArray, shape: tuple[int, ...], dim: int) -> NDArray:
    """Positions that differ along one dimension only, shape ``(lines, along it)``."""
    grid = positions.reshape(shape[::-1])
    return np.moveaxis(grid, len(shape) - 1 - dim, -1).reshape(-1, shape[dim])


def _implementation(plan: CollectivePlan, dim: int) -> Implementation:
    choice = plan.choices[dim]
    found = IMPLEMENTATIONS.get(choice.name)(choice.window)
    words = plan.kind.replace("_", "-")
    if plan.kind not in found.kinds:
        raise InputError(f"{words}-implementation {quoted(choice.name)} does not do {words}: take ring or direct")
    why = found.checked(plan.shape[dim])
    if why:
        raise InputError(f"{words}-implementation {quoted(choice.name)} {why}: take ring or direct")
    return found
