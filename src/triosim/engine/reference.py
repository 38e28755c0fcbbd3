"""The engine in plain Python: the specification of all engines, and what runs where no faster one is installed.

The idea.  Most tasks wait for nothing but other tasks: as soon as the ends of its predecessors are known, so are the
start and the end of a task, however far in the future.  Such tasks are settled on the spot and never enter the queue.
What must wait for its turn are transfers, because how fast one runs depends on which others run.  So the queue holds
only the instants at which something starts or stops to use links, and the few other things that must be counted in the
order of time.

All that happens at one instant is taken together: first every event of that tick, in any order, with all that follows
from it at the same tick, then *one* question to the sharing solver.  Nothing that follows from the answer lies at the
same tick, for bytes take time.

Whole numbers make this exact.  What is left of a flow is counted in units of (1/1024 byte per second) x (1 picosecond),
so that rate times time is subtracted without rounding, and a flow ends at the first tick by which all of it is served.

A collective that shares no link is not played at all: :class:`~triosim.engine.alone.Alone` knows the tick of everything
in it.  It is turned into flows at the very tick at which another flow comes onto one of its links.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from operator import index
from typing import NamedTuple

import numpy as np

from triosim.engine.alone import Alone
from triosim.engine.check import carried, check, successors, why_stuck
from triosim.engine.graph import CAPACITY_PER_BYTE, UNLIMITED, Collective, Graph, Played, Stuck, Task, Wires
from triosim.engine.solver import Solver
from triosim.engine.solvers.max_min import MaxMin
from triosim.engine.stepped import Stepping, Transfer
from triosim.errors import InputError
from triosim.units import PICOSECONDS_PER_SECOND

WORK_PER_BYTE = CAPACITY_PER_BYTE * PICOSECONDS_PER_SECOND
"""What serving one byte takes, in units of (1/1024 byte per second) x (1 picosecond)."""

_NEVER = -1

# What can happen at a tick.  The order of what happens at one tick changes no result.
_DUE, _END, _COUNT, _JOIN, _STEP, _BEGIN, _WAKE = range(7)


class Flow:
    """A transfer that uses links.

    Attributes:
        links: the links that limit it.
        rate: what it is served at since tick ``since``, in 1/1024 byte per second.
        left: work left at tick ``since``.
        due: tick at which it ends if its rate stays, -1 while it stands still.
        task: the TRANSFER that it is, or -1.
        step: (collective, position, step) that it is part of, if it is not a task.
    """

    __slots__ = ("due", "left", "links", "rate", "since", "step", "task")

    def __init__(self, links: tuple[int, ...], left: int, now: int, task: int, step: tuple[int, ...] | None) -> None:
        self.links = links
        self.left = left
        self.rate = 0
        self.since = now
        self.due = _NEVER
        self.task = task
        self.step = step


Observer = Callable[[int, Mapping[int, Flow]], None]
"""Called after each answer of the solver with the tick and all flows that use links from then on, not to be changed."""


def play(
    graph: Graph,
    wires: Wires,
    solver: Solver | None = None,
    observer: Observer | None = None,
    *,
    _closed_form: bool = True,
) -> Played:
    """Play the graph from tick 0 until everything has ended.

    Args:
        graph: the tasks.
        wires: the network that their transfers use.
        solver: how links are shared; max-min fair if None.
        observer: sees the rates; the transfers of collectives that share no link are not among them.
        _closed_form: for tests: if False, collectives that share no link are played flow by flow as well.

    Raises:
        Stuck: some tasks can never start or end.
        InputError: the run is longer than 64 bits of picoseconds, 106 days.
        ValueError: the columns make no sense.
    """
    check(graph, wires)
    run = _Run(graph, wires, solver or MaxMin(), observer, _closed_form)
    run.play()
    return run.played()


class _Plan(NamedTuple):
    """What is known of a collective before it runs.

    Attributes:
        routes: as :attr:`Collective.routes`.
        work: what serving one of its transfers takes.
        alone: how it runs where no other flow is on its links, or None if it must be played flow by flow anyway.
        links: the links that it must have for itself to be alone.
        ends: ticks after the begin -> positions that finish then, if it is alone.
    """

    routes: list[list[int]]
    work: int
    alone: Alone | None
    links: tuple[int, ...]
    ends: dict[int, list[int]]

    def route(self, position: int, step: int) -> int:
        """The route of what a position sends in a step."""
        return self.routes[step if len(self.routes) > 1 else 0][position]


class _Running(NamedTuple):
    """A collective that runs alone, since tick ``began``; ``ends`` are the ticks to come, counted from then."""

    alone: Alone
    began: int
    ends: dict[int, list[int]]


class _Run:
    """One run: where every task stands, what is under way, and the queue of what happens next."""

    def __init__(
        self, graph: Graph, wires: Wires, solver: Solver, observer: Observer | None, closed_form: bool
    ) -> None:
        n = len(graph)
        self.graph, self.wires = graph, wires
        self.solver, self.observer = solver, observer
        self.closed_form = closed_form and solver.alone_at_capacity
        self.now = 0
        self.queue: list[tuple[int, ...]] = []
        self.happen: dict[int, Callable[..., None]] = {
            _DUE: self._due, _END: self._end, _COUNT: self._count, _JOIN: self._join, _STEP: self._step,
            _BEGIN: self._begin, _WAKE: self._wake,
        }  # fmt: skip

        # Links: only those that limit; a route whose links never limit has none.
        capacity = wires.capacity.tolist()
        self.links = [tuple(link for link in row if capacity[link] != UNLIMITED) for row in wires.routes.lists()]
        self.alone_rate = [min([capacity[link] for link in links], default=0) for links in self.links]
        self.latency = wires.latency.tolist()
        solver.start(capacity)

        # Tasks.  How long they last is known beforehand, but for collectives and for transfers that can share links.
        moves, meets = graph.kind == Task.TRANSFER, graph.kind == Task.COLLECTIVE
        lasts = np.where(graph.kind == Task.COMPUTE, graph.duration, 0)
        lasts[moves] = graph.delay[moves] + wires.latency[graph.route[moves]]
        self.until_join: list[int] = lasts.tolist()
        limited = np.array([bool(links) for links in self.links], bool)
        moves[moves] = (graph.bytes[moves] > 0) & limited[graph.route[moves]]
        lasts[moves | meets] = _NEVER
        self.lasts: list[int] = lasts.tolist()
        self.after, self.waiting, self.counted = successors(graph)
        self.need, self.route, self.bytes = graph.need.tolist(), graph.route.tolist(), graph.bytes.tolist()
        self.collective = graph.collective.tolist()
        self.ready = [0] * n
        self.start = [_NEVER] * n
        self.finish = [_NEVER] * n

        # Collectives: who is in them, who is still missing, and how those that run are played.
        self.tasks = [[_NEVER] * c.steps.members for c in graph.collectives]
        for task in np.flatnonzero(meets).tolist():
            self.tasks[self.collective[task]][graph.member[task]] = task
        self.missing = [len(tasks) for tasks in self.tasks]
        self.begin = [0] * len(self.tasks)
        self.plans: dict[int, _Plan] = {}
        self.stepping: dict[int, Stepping] = {}
        self.alone: dict[int, _Running] = {}
        self.claimed: dict[int, int] = {}  # link -> the collective that has it for itself

        # Flows under way.
        self.flows: dict[int, Flow] = {}
        self.known = 0
        self.joined: dict[int, tuple[int, ...]] = {}
        self.left: list[int] = []
        self.flows_on = [0] * len(capacity)
        self.asked = False
        self.events = 0

    # ---------------------------------------------------------------------------------------- time

    def play(self) -> None:
        """Go from instant to instant until nothing is left to happen."""
        self._proceed([task for task, count in enumerate(self.waiting) if not count])
        queue = self.queue
        while queue:
            self.now = now = queue[0][0]
            while queue and queue[0][0] == now:
                _, what, *about = heappop(queue)
                self.happen[what](*about)
            if self.joined or self.left or self.asked:
                self._share()

    def played(self) -> Played:
        """The columns of what happened."""
        if _NEVER in self.finish:
            raise Stuck(why_stuck(self.graph, self.start, self.finish))
        link_bytes, flows = carried(self.graph, self.wires)
        try:
            start, finish = np.array(self.start, np.int64), np.array(self.finish, np.int64)
        except OverflowError:
            raise InputError(
                "the run lasts more than 106 days of simulated time, the most that can be counted in picoseconds: "
                "look for a wrong unit in bandwidths, sizes and times"
            ) from None
        begin = start.copy()
        members = self.graph.kind == Task.COLLECTIVE
        begin[members] = np.array(self.begin, np.int64)[self.graph.collective[members]]
        return Played(start, begin, finish, link_bytes, flows, self.events, "reference")

    # --------------------------------------------------------------------------------------- tasks

    def _proceed(self, tasks: list[int]) -> None:
        """Start tasks that are ready; end those of which it is known when; start what waited for them, and so on.

        The ticks at which they start and end may lie in the future.
        """
        ready, waiting, lasts, after = self.ready, self.waiting, self.lasts, self.after
        start, finish, counted = self.start, self.finish, self.counted
        while tasks:
            task = tasks.pop()
            start[task] = ready[task]
            if lasts[task] == _NEVER:
                self._launch(task)
                continue
            end = finish[task] = start[task] + lasts[task]
            for following in after[task]:
                if ready[following] < end:
                    ready[following] = end
                waiting[following] -= 1
                if not waiting[following]:
                    tasks.append(following)
            for following in counted.get(task, ()):
                heappush(self.queue, (end, _COUNT, following))

    def _launch(self, task: int) -> None:
        """A task whose end is not known yet starts."""
        start, collective = self.start[task], self.collective[task]
        if collective < 0:
            heappush(self.queue, (start + self.until_join[task], _JOIN, task))
            return
        self.begin[collective] = max(self.begin[collective], start)
        self.missing[collective] -= 1
        if not self.missing[collective]:
            delay = int(self.graph.collectives[collective].delay)
            heappush(self.queue, (self.begin[collective] + delay, _BEGIN, collective))

    def _finish(self, task: int) -> None:
        """A task ends now."""
        self.lasts[task] = self.now - self.start[task]
        self._proceed([task])

    def _count(self, task: int) -> None:
        """One of the predecessors of a task that needs some of them has finished."""
        self.need[task] -= 1
        if not self.need[task]:
            self.ready[task] = max(self.ready[task], self.now)
            self.waiting[task] -= 1
            if not self.waiting[task]:
                self._proceed([task])

    # --------------------------------------------------------------------------------------- flows

    def _join(self, task: int) -> None:
        """The delay and latency of a TRANSFER have passed: it starts to use its links."""
        self._add(Flow(self.links[self.route[task]], self.bytes[task] * WORK_PER_BYTE, self.now, task, None))

    def _add(self, flow: Flow) -> None:
        for link in flow.links:
            if link in self.claimed:
                self._materialise(self.claimed[link])
            self.flows_on[link] += 1
        self.flows[self.known] = flow
        self.joined[self.known] = flow.links
        self.known += 1

    def _due(self, number: int) -> None:
        """The last byte of a flow has been served, unless its rate was changed after this was foreseen."""
        flow = self.flows.get(number)
        if flow is None or flow.due != self.now:
            return
        del self.flows[number]
        self.left.append(number)
        for link in flow.links:
            self.flows_on[link] -= 1
        if flow.step is None:
            self._finish(flow.task)
        else:
            self._delivered(*flow.step)

    def _share(self) -> None:
        """Ask the solver what this instant changes."""
        rates = self.solver.share(self.now, self.joined, self.left)
        for number, rate in rates.items():
            flow = self.flows[number]
            flow.left -= flow.rate * (self.now - flow.since)
            flow.since, flow.rate = self.now, index(rate)
            if flow.rate < 0:
                raise ValueError(f"{type(self.solver).__name__} gave a flow the rate {rate}")
            flow.due = _NEVER
            if flow.rate:
                flow.due = self.now + _ticks(flow.left, flow.rate)
                heappush(self.queue, (flow.due, _DUE, number))
        self.joined, self.left, self.asked = {}, [], False
        self.events += 1
        if self.solver.wake is not None and self.solver.wake > self.now:
            heappush(self.queue, (self.solver.wake, _WAKE))
        if self.observer is not None:
            self.observer(self.now, self.flows)

    def _wake(self) -> None:
        """The solver wanted to be asked at this tick."""
        self.asked = True

    # --------------------------------------------------------------------------------- collectives

    def _begin(self, collective: int) -> None:
        """All members are there and the delay has passed: the first step starts."""
        plan = self._plan(collective)
        if plan.alone is None or any(self.flows_on[link] or link in self.claimed for link in plan.links):
            self.stepping[collective] = stepping = Stepping(self.graph.collectives[collective].steps)
            self._follow(collective, *stepping.begin())
            return
        self.claimed.update(dict.fromkeys(plan.links, collective))
        self.alone[collective] = _Running(plan.alone, self.now, dict(plan.ends))
        for ticks in plan.ends:
            heappush(self.queue, (self.now + ticks, _END, collective))

    def _follow(self, collective: int, starting: list[Transfer], finished: list[int]) -> None:
        """What a move of the state machine leads to at this instant."""
        for position, step in starting:
            latency = self.latency[self._plan(collective).route(position, step)]
            heappush(self.queue, (self.now + latency, _STEP, collective, position, step))
        for position in finished:
            self._finish(self.tasks[collective][position])

    def _step(self, collective: int, position: int, step: int, served_from: int | None = None) -> None:
        """The latency of a transfer has passed: it starts to use its links, or did so alone at ``served_from``."""
        plan = self._plan(collective)
        route, left = plan.route(position, step), plan.work
        if not left or not self.links[route]:
            self._delivered(collective, position, step)
            return
        if served_from is not None:
            left -= self.alone_rate[route] * (self.now - served_from)
        self._add(Flow(self.links[route], left, self.now, _NEVER, (collective, position, step)))

    def _delivered(self, collective: int, position: int, step: int) -> None:
        self._follow(collective, *self.stepping[collective].delivered(position, step))

    def _end(self, collective: int) -> None:
        """Some members of a collective that is alone have finished."""
        running = self.alone.get(collective)
        if running is None:
            return  # it is played flow by flow by now
        for position in running.ends.pop(self.now - running.began):
            self._finish(self.tasks[collective][position])
        if not running.ends:
            self._release(collective)

    def _materialise(self, collective: int) -> None:
        """A flow comes onto a link of a collective that was alone: from now on it is played flow by flow."""
        running, plan = self._release(collective), self._plan(collective)
        ticks = self.now - running.began
        self.stepping[collective], flying = running.alone.state(ticks)
        for position in running.ends.pop(ticks, ()):
            self._finish(self.tasks[collective][position])
        for (position, step), started in flying:
            served_from = running.began + started + self.latency[plan.route(position, step)]
            if served_from > self.now:
                heappush(self.queue, (served_from, _STEP, collective, position, step))
            else:
                self._step(collective, position, step, served_from)

    def _release(self, collective: int) -> _Running:
        for link in self._plan(collective).links:
            del self.claimed[link]
        return self.alone.pop(collective)

    def _plan(self, collective: int) -> _Plan:
        c = self.graph.collectives[collective]
        plan = self.plans.get(id(c))  # many collectives are one object, a layer's of each micro-batch for example
        if plan is None:
            plan = self.plans[id(c)] = self._planned(c)
        return plan

    def _planned(self, c: Collective) -> _Plan:
        routes: list[list[int]] = c.routes.tolist()
        work = int(c.steps.bytes) * WORK_PER_BYTE
        # Links must differ between the positions of a row.  Between rows they need not: where each step has its own,
        # there is a closed form only if the steps follow each other.
        used = [[link for route in row if route >= 0 for link in self.links[route]] if work else [] for row in routes]
        alone = None
        if self.closed_form and all(len(set(row)) == len(row) for row in used):
            alone = Alone.of(c.steps, [[self._alone_ticks(route, work) for route in row] for row in routes])
        ends: dict[int, list[int]] = {}
        for position, ticks in enumerate(alone.finish() if alone else ()):
            ends.setdefault(ticks, []).append(position)
        return _Plan(routes, work, alone, tuple({link for row in used for link in row}), ends)

    def _alone_ticks(self, route: int, work: int) -> int:
        """From start to delivery of a transfer that shares no link; nothing for no route."""
        return self.latency[route] + _ticks(work, self.alone_rate[route]) if route >= 0 else 0


def _ticks(work: int, rate: int) -> int:
    """Ticks until work is done at a rate, rounded up; none where no link limits (rate 0)."""
    return -(-work // rate) if rate else 0
