"""A Hop job on a System: the graph of its tasks, and the course that it takes.

Which iterations a worker skips and which updates are dropped depends on the course of the run, and the engine plays
graphs in which everything is settled.  So a run is played, what the workers would have decided in it is looked up
(:func:`triosim.schedule.hop.decide`), and it is played again with that, until a run leads to the very decisions with
which it was played.  A decision rests only on what happened before it and changes only what happens after it; so the
first n decisions are right after n runs at the latest, and there is one such course and no other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.units import PICOSECONDS_PER_SECOND, picoseconds
from triosim.engine.graph import EngineNetwork, Graph, GraphRun, Stuck, Task
from triosim.engine.play import play
from triosim.engine.solver import NetworkModel
from triosim.hardware.system import System
from triosim.network.routes import Router
from triosim.schedule.hop import NEVER, Decisions, DroppedUpdate, Hop, HopTimes, SkippedIterations, decide, gaps

_COURSES_TRIED = 10_000
"""Runs after which there is a defect: a job has fewer decisions than that."""


@dataclass(frozen=True)
class HopRun:
    """When the workers of a Hop job computed and reduced, and what they skipped and dropped.

    Attributes:
        hop: the protocol.
        course: when everything happened.
        decisions: the jumps and drops.
        transfers: updates that were sent.
        runs: how often the job was played to find its course.
        engine: which engine played it.
    """

    hop: Hop
    course: HopTimes
    decisions: Decisions
    transfers: int
    runs: int
    engine: str

    @property
    def time_s(self) -> float:
        """Until all workers are through, in seconds."""
        return int(self.course.entered[:, -1].max()) / PICOSECONDS_PER_SECOND

    @property
    def iteration_time_s(self) -> float:
        """Seconds per iteration of the job."""
        return self.time_s / self.hop.iterations

    @property
    def skipped(self) -> int:
        """Iterations that workers left out, together."""
        return int((~self.course.computed).sum())

    @property
    def gap(self) -> int:
        """The largest number of iterations by which a worker was ever ahead of one to which it sends."""
        return max(int(gaps(self.hop, self.course)[a, b]) for a, b in self.hop.edges())


def play_hop(
    hop: Hop,
    system: System,
    compute_s: ArrayLike,
    update_bytes: int,
    devices: Sequence[int] | None = None,
    model: NetworkModel | str = "max-min",
) -> HopRun:
    """Play a Hop job.

    Args:
        hop: the protocol.
        system: the machine.
        compute_s: seconds that an iteration computes: a number, one for each worker (shape ``(workers, 1)``) or one for
            each worker and iteration.
        update_bytes: size of what a worker sends to a neighbour in an iteration.
        devices: device of each worker; worker i on device i if None.
        model: how the network is shared.

    Raises:
        InputError: the system has too few devices or no route between neighbours, or a time or size is negative.
    """
    compute = np.asarray(compute_s, np.float64)
    if update_bytes < 0:
        raise InputError(f"hop: the size of an update is {update_bytes} bytes: the least is 0")
    ticks = picoseconds(np.broadcast_to(compute, (hop.workers, hop.iterations)), "hop: a time of computing")
    placed = list(range(hop.workers)) if devices is None else list(devices)
    if len(set(placed)) < hop.workers or not all(0 <= device < system.devices for device in placed):
        raise InputError(f"hop: {hop.workers} workers need a device each, system {system.name!r} has {system.devices}")
    wires = Router(system).wires([(placed[a], placed[b]) for a, b in hop.edges()])
    return _settle(hop, wires, ticks, update_bytes, model)


def _settle(hop: Hop, wires: EngineNetwork, ticks: NDArray[np.int64], size: int, model: NetworkModel | str) -> HopRun:
    """Play until a run leads to the decisions with which it was played."""
    decisions: Decisions = frozenset()
    known: Decisions = frozenset()  # those among them that are right whatever comes later
    for runs in range(1, _COURSES_TRIED):
        job = _Job(hop, decisions, ticks, size)
        try:
            played = play(job.graph(), wires, model)
        except Stuck:
            if decisions == known:
                raise
            decisions = known  # guesses that contradict each other: go on from what is certain
            continue
        course = job.course(played)
        made = decide(hop, course)
        if made.keys() == decisions:
            return HopRun(hop, course, decisions, job.transfers, runs, played.engine)
        differ = [made[new] for new in made.keys() - decisions] + [
            _tick(old, course) for old in decisions - made.keys()
        ]
        first = min((tick for tick in differ if tick != NEVER), default=max(made.values(), default=0))
        known = frozenset(decision for decision, tick in made.items() if tick <= first)
        decisions = frozenset(made)
    raise AssertionError("no course of the Hop job agrees with its own decisions")


def _tick(decision: SkippedIterations | DroppedUpdate, course: HopTimes) -> int:
    """When a decision would have been made that was not, :data:`NEVER` if the run did not come to it."""
    if isinstance(decision, DroppedUpdate):
        return int(course.turn[decision.edge, decision.iteration])
    asked = course.computed[decision.worker, decision.after]
    return int(course.reduced[decision.worker, decision.after]) if asked else NEVER


class _Job:
    """The graph of a job in which all decisions are made, and where its parts are.

    Streams: one for each edge, on which its updates follow each other.  Counters: one for each edge, with the tokens
    that the receiver of its updates puts and their sender takes.
    """

    def __init__(self, hop: Hop, decisions: Decisions, ticks: NDArray[np.int64], size: int) -> None:
        self.hop, self.size, self.ticks = hop, size, ticks.tolist()
        self.edges = hop.edges()
        self.leaving: list[list[int]] = [[] for _ in range(hop.workers)]
        self.coming: list[list[int]] = [[] for _ in range(hop.workers)]
        for edge, (sender, receiver) in enumerate(self.edges):
            self.leaving[sender].append(edge)
            self.coming[receiver].append(edge)
        self.jumps = {(d.worker, d.after): d.to for d in decisions if isinstance(d, SkippedIterations)}
        self.drops = {(d.edge, d.iteration) for d in decisions if isinstance(d, DroppedUpdate)}
        self.transfers = 0

        self.rows: list[tuple[int, int, int, int]] = []  # kind, stream, amount, what
        self.before: list[list[int]] = []
        self.need: dict[int, int] = {}
        shape = (hop.workers, hop.iterations)
        self.enter, self.reduce = np.full(shape, -1), np.full(shape, -1)
        self.computed = np.zeros(shape, bool)
        self.turn = np.full((len(self.edges), hop.iterations), -1)
        self.sent = np.zeros(self.turn.shape, bool)
        for worker in range(hop.workers):
            self._work(worker)
        for worker, iteration in np.argwhere(self.reduce >= 0).tolist():
            self._await_updates(worker, iteration)

    def graph(self) -> Graph:
        """The tasks."""
        kind, stream, amount, what = (np.array(column) for column in zip(*self.rows, strict=True))
        need = np.zeros(len(self.rows), np.int32)
        need[list(self.need)] = list(self.need.values())
        return Graph(
            kind=kind.astype(np.int8),
            stream=stream.astype(np.int32),
            amount=amount.astype(np.int64),
            what=what.astype(np.int32),
            member=np.zeros(len(self.rows), np.int32),
            before=Ragged.of(self.before, np.int32),
            streams=len(self.edges),
            need=need,
            tokens=np.full(len(self.edges), self.hop.tokens or 0, np.int64),
        )

    def course(self, played: GraphRun) -> HopTimes:
        """When everything happened."""
        last = played.finish[self.reduce[:, -1]]
        return HopTimes(
            np.column_stack([_at(played.finish, self.enter), last]),
            _at(played.finish, self.reduce),
            self.computed,
            _at(played.start, self.turn),
        )

    # --- what a worker does -------------------------------------------------------------------------------------------

    def _work(self, worker: int) -> None:
        previous, iteration, computes = -1, 0, True
        while iteration < self.hop.iterations:
            entered = self._enter(worker, previous, iteration)
            done = self._compute(worker, iteration) if computes else entered
            self.reduce[worker, iteration] = self._add(Task.JOIN, before=[done])
            to = self.jumps.get((worker, iteration)) if computes else None
            previous, iteration, computes = iteration, iteration + 1 if to is None else to - 1, to is None

    def _enter(self, worker: int, previous: int, iteration: int) -> int:
        """Take a token of each out-neighbour for each iteration that passes, and give each in-neighbour as many.

        Returns the task of having entered.
        """
        first = previous < 0
        done = [] if first else [int(self.reduce[worker, previous])]
        tokens = range(0 if first or self.hop.tokens is None else iteration - previous)
        taken = [self._add(Task.TAKE, what=edge, before=done) for edge in self.leaving[worker] for _ in tokens]
        self.enter[worker, iteration] = entered = self._add(Task.JOIN, before=[*done, *taken])
        for edge in self.coming[worker]:
            for _ in tokens:
                self._add(Task.PUT, what=edge, before=[entered])
        return entered

    def _compute(self, worker: int, iteration: int) -> int:
        """Compute and send; returns the task of computing."""
        entered = int(self.enter[worker, iteration])
        computed = self._add(Task.COMPUTE, amount=self.ticks[worker][iteration], before=[entered])
        self.computed[worker, iteration] = True
        for edge in self.leaving[worker]:
            ready = [computed if self.hop.order == "serial" else entered]
            sent = (edge, iteration) not in self.drops
            kind, size, route = (Task.TRANSFER, self.size, edge) if sent else (Task.JOIN, 0, -1)
            self.turn[edge, iteration] = self._add(kind, edge, size, route, ready)
            self.sent[edge, iteration] = sent
            self.transfers += sent
        return computed

    def _await_updates(self, worker: int, iteration: int) -> None:
        """Reduce when enough in-neighbours have delivered an update that is fresh enough."""
        oldest = iteration - self.hop.staleness
        if oldest < 0:
            return
        fresh = []
        for edge in self.coming[worker]:
            later = np.flatnonzero(self.sent[edge, oldest:])
            if len(later):  # updates of an edge come in order, so the first that is fresh enough is the first to come
                fresh.append(int(self.turn[edge, oldest + later[0]]))
        enough = min(len(self.coming[worker]) - self.hop.backup, len(fresh))
        if enough:
            arrived = self._add(Task.JOIN, before=fresh)
            self.need[arrived] = enough
            self.before[int(self.reduce[worker, iteration])].append(arrived)

    def _add(self, kind: Task, stream: int = -1, amount: int = 0, what: int = -1, before: Sequence[int] = ()) -> int:
        self.rows.append((kind, stream, amount, what))
        self.before.append(list(before))
        return len(self.rows) - 1


def _at(ticks: NDArray[np.int64], tasks: NDArray[np.int64]) -> NDArray[np.int64]:
    """The tick of each task, :data:`NEVER` where there is none."""
    return np.where(tasks >= 0, ticks[tasks], NEVER)
