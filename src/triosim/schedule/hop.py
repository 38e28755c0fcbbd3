"""Hop: decentralised training in which workers exchange updates with their neighbours and need not all keep step.

Source: Luo, Lin, Zhuo, Qian, "Hop: Heterogeneity-Aware Decentralized Training", ASPLOS 2019 (arXiv:1902.01064).

In each iteration a worker computes, sends its update to its out-neighbours, waits for the updates of its in-neighbours
and reduces them.  Four things bound or loosen how far workers may drift apart:

* *backup workers*: so many of a worker's in-neighbours it need not wait for;
* *bounded staleness*: an update may be that many iterations old;
* *tokens*: each worker keeps a queue of tokens for each in-neighbour, puts one in when it enters an iteration, and a
  worker takes one from each of its out-neighbours to enter an iteration: it can never be more than the initial number
  of tokens ahead of a worker to which it sends;
* *skipped iterations*: a worker that sees that all its out-neighbours are ahead jumps.  It takes part in the reduction
  of the iteration before the one to which it jumps, to have fresh parameters, without computing or sending anything.

An update that its receiver can use no more when it is its turn to be sent is dropped: the sender asks how far the
receiver is.  Jumps and drops depend on the course of the run; :func:`decide` says which follow from a
:class:`HopTimes`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, unknown

Neighbours = tuple[tuple[int, ...], ...]
"""For each worker those to whom it sends its updates."""

NEVER = -1
"""The tick of what does not happen."""


def ring(workers: int) -> Neighbours:
    """Each worker and the two beside it."""
    return _mutual(workers, [(i, (i + 1) % workers) for i in range(workers)])


def ring_based(workers: int) -> Neighbours:
    """A ring in which each worker is joined to the most distant one as well.

    Raises:
        InputError: the number of workers is odd, so that there are two that are most distant.
    """
    if workers % 2:
        raise InputError(f"a ring-based graph joins opposite workers and needs an even number of them, not {workers}")
    return _mutual(workers, [*_edges(ring(workers)), *((i, i + workers // 2) for i in range(workers // 2))])


def double_ring(workers: int) -> Neighbours:
    """Two ring-based graphs of half the workers each, each worker joined to its like in the other.

    Raises:
        InputError: the number of workers is not a multiple of 4.
    """
    if workers % 4:
        raise InputError(f"a double-ring graph is two ring-based ones and needs a multiple of 4 workers, not {workers}")
    half = workers // 2
    inner = _edges(ring_based(half))
    return _mutual(workers, [*inner, *((a + half, b + half) for a, b in inner), *((i, i + half) for i in range(half))])


GRAPHS: dict[str, Callable[[int], Neighbours]] = {"ring": ring, "ring-based": ring_based, "double-ring": double_ring}
"""The communication graphs of the paper by name (section 7, figure of the graphs)."""


def graph(name: str, workers: int) -> Neighbours:
    """A communication graph by name.

    Raises:
        InputError: no such graph, or not for this number of workers.
    """
    if name not in GRAPHS:
        raise unknown("communication graph", name, GRAPHS)
    if workers < 2:
        raise InputError(f"a communication graph needs at least 2 workers, got {workers}")
    return GRAPHS[name](workers)


def _mutual(workers: int, edges: list[tuple[int, int]]) -> Neighbours:
    near: list[set[int]] = [set() for _ in range(workers)]
    for a, b in edges:
        if a != b:
            near[a].add(b)
            near[b].add(a)
    return tuple(tuple(sorted(found)) for found in near)


def _edges(neighbours: Neighbours) -> list[tuple[int, int]]:
    return [(worker, other) for worker, near in enumerate(neighbours) for other in near]


@dataclass(frozen=True)
class Hop:
    """A protocol on a communication graph.

    Attributes:
        neighbours: for each worker those to whom it sends.
        iterations: that each worker goes through.
        backup: updates, of those due in an iteration, that a worker need not wait for.
        staleness: how many iterations old an update may be.
        tokens: initial tokens of each queue, which bound how far a worker can be ahead of one to which it sends; None
            for no such bound.
        skip: most iterations that a worker may leave out at once; 0 never to jump.
        behind: how far behind the slowest of its out-neighbours a worker must be to jump, at least 2.
        order: ``"serial"``: compute, then send; ``"parallel"``: send the parameters while computing on them (the two
            computation graphs of section 2 of the paper).

    Raises:
        InputError: a value that cannot be, or that makes workers wait for ever.
    """

    neighbours: Neighbours
    iterations: int
    backup: int = 0
    staleness: int = 0
    tokens: int | None = None
    skip: int = 0
    behind: int = 2
    order: Literal["serial", "parallel"] = "serial"

    def __post_init__(self) -> None:
        for name, least in (("iterations", 1), ("backup", 0), ("staleness", 0), ("skip", 0), ("behind", 2)):
            if getattr(self, name) < least:
                raise InputError(f"hop: {name} must be at least {least}, got {getattr(self, name)}")
        if self.tokens is not None and self.tokens < 1:
            raise InputError(f"hop: tokens must be at least 1, got {self.tokens}: with none no worker could go on")
        if self.order not in ("serial", "parallel"):
            raise InputError(f"hop: order must be serial or parallel, got {self.order!r}")
        workers = len(self.neighbours)
        for worker, near in enumerate(self.neighbours):
            if not near or len(set(near)) < len(near) or worker in near or not all(0 <= n < workers for n in near):
                raise InputError(
                    f"hop: worker {worker} sends to {near}: name one or more of the other workers once each"
                )
        fewest = min(self.in_degree().tolist())
        if self.backup >= fewest:
            raise InputError(
                f"hop: {self.backup} backup workers leave nothing to wait for where {fewest} updates come in: "
                f"give at most {max(fewest - 1, 0)}"
            )
        if self.skip and (self.tokens is None or not (self.backup or self.staleness)):
            raise InputError(
                "hop: a worker skips iterations when the tokens show that it is behind, and others must get on without "
                "it: give tokens and at least one backup worker or a staleness of 1"
            )

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self.neighbours)

    def edges(self) -> list[tuple[int, int]]:
        """(sender, receiver) of all updates of an iteration, by sender."""
        return _edges(self.neighbours)

    def in_degree(self) -> NDArray[np.int64]:
        """How many send to each worker."""
        return np.bincount([b for _, b in self.edges()], minlength=self.workers)


class SkippedIterations(NamedTuple):
    """``worker`` goes on from iteration ``after`` to iteration ``to``."""

    worker: int
    after: int
    to: int


class DroppedUpdate(NamedTuple):
    """The update of ``iteration`` along ``edge`` (row of :meth:`Hop.edges`) is not sent."""

    edge: int
    iteration: int


Decisions = frozenset[SkippedIterations | DroppedUpdate]


@dataclass(frozen=True)
class HopTimes:
    """Ticks of the events of a run, :data:`NEVER` for those that did not happen.

    Attributes:
        entered: when each worker entered each iteration, shape ``(workers, iterations + 1)``, int64; the last column is
            when it was through.  A worker that jumps enters the iteration before the one to which it jumps.
        reduced: when each worker had reduced each iteration, shape ``(workers, iterations)``, int64.
        computed: whether each worker computed each iteration, same shape.
        turn: when it was the turn of each update to be sent, dropped ones included, shape ``(edges, iterations)``,
            int64.
    """

    entered: NDArray[np.int64]
    reduced: NDArray[np.int64]
    computed: NDArray[np.bool_]
    turn: NDArray[np.int64]


def decide(hop: Hop, course: HopTimes) -> dict[SkippedIterations | DroppedUpdate, int]:
    """The jumps and drops that workers decide on in the course of a run, and the tick of each.

    What a worker knows of the others at a tick is what happened before it.
    """
    made: dict[SkippedIterations | DroppedUpdate, int] = {}
    if not (hop.backup or hop.staleness):
        return made  # nobody gets on without an update, so none comes too late and nobody is left behind
    seen = _ObservedProgress(course)
    edges = hop.edges()
    for edge, iteration in np.argwhere(course.turn != NEVER).tolist():
        tick = int(course.turn[edge, iteration])
        if seen.iteration(edges[edge][1], tick) > iteration + hop.staleness:
            made[DroppedUpdate(edge, iteration)] = tick
    if hop.skip:
        for worker, after in np.argwhere(course.computed).tolist():
            tick = int(course.reduced[worker, after])
            slowest = min(seen.iteration(other, tick) for other in hop.neighbours[worker])
            to = min(slowest, after + 1 + hop.skip)
            if slowest - after >= hop.behind:
                made[SkippedIterations(worker, after, to)] = tick
    return made


class _ObservedProgress:
    """How far each worker is, as seen by others."""

    def __init__(self, course: HopTimes) -> None:
        self.iterations = [np.flatnonzero(row != NEVER) for row in course.entered]
        self.ticks = [row[found] for row, found in zip(course.entered, self.iterations, strict=True)]

    def iteration(self, worker: int, tick: int) -> int:
        """The last iteration that a worker entered before a tick, the first if none."""
        entered = int(np.searchsorted(self.ticks[worker], tick, side="left"))
        return int(self.iterations[worker][max(entered - 1, 0)])


def gaps(hop: Hop, course: HopTimes) -> NDArray[np.int64]:
    """The largest number of iterations by which each worker was ever ahead of each other, shape ``(workers, workers)``.

    What happens at one tick has happened for all.  A worker that is through is as far as the last iteration.
    """
    found = np.zeros((hop.workers, hop.workers), np.int64)
    for ahead in range(hop.workers):
        iterations = np.flatnonzero(course.entered[ahead, :-1] != NEVER)
        ticks = course.entered[ahead, iterations]
        for behind in range(hop.workers):
            theirs = np.flatnonzero(course.entered[behind] != NEVER)
            reached = theirs[np.searchsorted(course.entered[behind, theirs], ticks, side="right") - 1]
            found[ahead, behind] = np.max(iterations - reached)
    return found
