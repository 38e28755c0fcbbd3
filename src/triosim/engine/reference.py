"""The engine in plain Python: the specification of all engines, and what runs where no faster one is installed.

The idea.  Most tasks wait for nothing but other tasks: as soon as the ends of its predecessors are known, so are the
start and the end of a task, however far in the future.  Such tasks are settled on the spot and never enter the queue.
What must wait for its turn are transfers, because how fast one runs depends on which others run.  So the queue holds
only the instants at which something starts or stops to use links, and the few other things that must be counted in the
order of time.

All that happens at one instant is taken together: first every event of that tick, in any order, with all that follows
from it at the same tick, then tokens are given in rounds, then *one* question to the network model.  Nothing that
follows from the answer lies at the same tick, for bytes take time.

Whole numbers make this exact: when a flow ends is worked out without rounding but for the last tick (see
:class:`triosim.engine.solver.Sharing`).

A collective that shares no link is not played at all: :mod:`triosim.engine.isolated_collective` knows the tick of
everything in it. It is turned into flows at the very tick at which another flow comes onto one of its links.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from operator import index
from typing import NamedTuple

import numpy as np

from triosim.core.columns import Ragged
from triosim.core.errors import InputError
from triosim.engine.check import check, link_loads, successors, too_long, why_stuck
from triosim.engine.graph import BEYOND, UNLIMITED, Collective, EngineNetwork, Graph, GraphRun, Stuck, Task
from triosim.engine.isolated_collective import IsolatedCollective, isolated_collective
from triosim.engine.pattern_state import PatternEdges, PatternState
from triosim.engine.solver import NEVER, WORK_PER_BYTE, Flow, NetworkModel
from triosim.engine.solvers.max_min import MaxMin

# What can happen at a tick.  The order of what happens at one tick changes no result.
_DUE, _END, _COUNT, _JOIN, _STEP, _BEGIN, _WAKE, _PUT, _TAKE = range(9)

NOT_YET = -1


def play(
    graph: Graph, wires: EngineNetwork, model: NetworkModel | None = None, *, _closed_form: bool = True
) -> GraphRun:
    """Play the graph from tick 0 until everything has ended.

    Args:
        graph: the tasks.
        wires: the network that their transfers use.
        model: how links are shared; max-min fair if None.
        _closed_form: for tests: if False, collectives that share no link are played flow by flow as well.

    Raises:
        Stuck: some tasks can never start or end.
        TimeOverflow: the run is longer than 64 bits of picoseconds, 106 days.
        InputError: more bytes cross a link than 64 bits can count, or the model answers what cannot be.
        ValueError: the columns make no sense.
    """
    check(graph, wires)
    run = _ReferenceRun(graph, wires, model or MaxMin(), _closed_form)
    run.play()
    return run.played()


class _ActiveFlow(NamedTuple):
    """What a flow under way is: a TRANSFER, or if ``task`` is -1 a transfer of an edge of a collective."""

    links: tuple[int, ...]
    task: int
    instance: int
    edge: int


class _PendingFlow(NamedTuple):
    """A flow that joins at this instant and has no number yet."""

    moving: _ActiveFlow
    route: int
    work: int

    def place(self) -> tuple[int, ...]:
        """By which flows that join at one instant are numbered: what they are, not in which order they were found."""
        return self.moving[1:]


class _CollectivePlan(NamedTuple):
    """What is known of a collective before it runs.

    Attributes:
        edges: its pattern.
        routes: route of each edge.
        work: of each edge what serving one of its transfers takes, 0 where no link limits.
        until_join: ticks from the start of a transfer of each edge until it uses its links.
        alone: how it runs where no other flow is on its links, or None if it must be played flow by flow anyway.
        links: the links that it must have for itself to be alone.
        ends: ticks after the begin -> members that finish then, if it is alone.
    """

    edges: PatternEdges
    routes: list[int]
    work: list[int]
    until_join: list[int]
    alone: IsolatedCollective | None
    links: tuple[int, ...]
    ends: dict[int, list[int]]


class _IsolatedRun(NamedTuple):
    """A collective that runs alone, since tick ``began``; ``ends`` are the ticks to come, counted from then."""

    alone: IsolatedCollective
    began: int
    ends: dict[int, list[int]]


class _ReferenceRun:
    """One run: where every task stands, what is under way, and the queue of what happens next."""

    def __init__(self, graph: Graph, wires: EngineNetwork, model: NetworkModel, closed_form: bool) -> None:
        if wires.weights is not None and not model.weighted:
            raise ValueError(f"{type(model).__name__} does not understand weights: unfold the job")
        self.graph, self.wires, self.model = graph, wires, model
        self.closed_form = closed_form and model.alone_at_capacity and not model.pays_latency
        self.now = 0
        self.queue: list[tuple[int, ...]] = []
        self.happen: dict[int, Callable[..., None]] = {
            _DUE: self._due, _END: self._end, _COUNT: self._count, _JOIN: self._join, _STEP: self._step,
            _BEGIN: self._begin, _WAKE: self._wake, _PUT: self._put, _TAKE: self._take,
        }  # fmt: skip
        self._lay_wires()
        self._line_up()
        self._gather()
        model.start(wires)

        # Flows under way, and what the model is to be told of them.
        self.flows: dict[int, _ActiveFlow] = {}
        self.ends: dict[int, int] = {}
        self.known = 0
        self.joined: list[_PendingFlow] = []
        self.left: list[int] = []
        self.flows_on = [0] * len(wires.capacity)
        self.asked = False
        self.events = 0

    def _lay_wires(self) -> None:
        """Routes with only the links that limit; a route whose links never limit has none."""
        capacity, routes = self.wires.capacity.tolist(), self.wires.routes.lists()
        weights = [[1] * len(route) for route in routes]
        if self.wires.weights is not None:
            weights = Ragged(self.wires.weights, self.wires.routes.offsets).lists()
        pairs = [
            [(link, weight) for link, weight in zip(*row, strict=True) if capacity[link] != UNLIMITED]
            for row in zip(routes, weights, strict=True)
        ]
        self.links = [tuple(link for link, _ in row) for row in pairs]
        self.weights = [tuple(weight for _, weight in row) for row in pairs]
        self.alone_rate = [min([max(capacity[k] // weight, 1) for k, weight in row], default=0) for row in pairs]
        self.latency: list[int] = self.wires.latency.tolist()

    def _line_up(self) -> None:
        """Tasks.  How long they last is known beforehand, but for collectives, transfers that can share and TAKEs."""
        graph, n = self.graph, len(self.graph)
        moves = graph.kind == Task.TRANSFER
        lasts = np.where(graph.kind == Task.COMPUTE, graph.amount, 0)
        lasts[moves] = self.wires.latency[graph.what[moves]]
        limited = np.array([bool(links) for links in self.links], bool)
        moves[moves] = (graph.amount[moves] > 0) & limited[graph.what[moves]]
        lasts[moves | (graph.kind == Task.COLLECTIVE) | (graph.kind == Task.TAKE)] = NOT_YET
        self.lasts: list[int] = lasts.tolist()
        self.kind, self.amount, self.what = graph.kind.tolist(), graph.amount.tolist(), graph.what.tolist()
        self.need = [] if graph.need is None else graph.need.tolist()
        self.after, self.waiting, counted = successors(graph)
        # What the end of a task is told to, in the order of time: those that need some of their predecessors, counters.
        self.notified = {task: [(_COUNT, row) for row in rows] for task, rows in counted.items()}
        for task in np.flatnonzero(graph.kind == Task.PUT).tolist():
            self.notified.setdefault(task, []).append((_PUT, self.what[task]))
        self.ready = [0] * n
        self.start = [NOT_YET] * n
        self.finish = [NOT_YET] * n
        self.tokens = graph.tokens.tolist()
        self.takers: list[list[tuple[int, int]]] = [[] for _ in self.tokens]  # (tick of being ready, row)
        self.giving: set[int] = set()  # counters that may have something to give

    def _gather(self) -> None:
        """Collectives: who is in them, who is still missing, and how those that run are played."""
        graph = self.graph
        self.collectives = [graph.collectives[row] for row in graph.instances.tolist()]
        self.tasks = [[NOT_YET] * c.pattern.members for c in self.collectives]
        for task in np.flatnonzero(graph.kind == Task.COLLECTIVE).tolist():
            self.tasks[self.what[task]][graph.member[task]] = task
        self.missing = [len(tasks) for tasks in self.tasks]
        self.begin = [0] * len(self.tasks)
        self.edges: dict[int, PatternEdges] = {}
        self.plans: dict[int, _CollectivePlan] = {}
        self.stepping: dict[int, PatternState] = {}
        self.alone: dict[int, _IsolatedRun] = {}
        self.claimed: dict[int, int] = {}  # link -> the instance that has it for itself

    # ---------------------------------------------------------------------------------------- time

    def play(self) -> None:
        """Go from instant to instant until nothing is left to happen."""
        self._proceed([task for task, count in enumerate(self.waiting) if not count])
        while self.queue:
            self.now = self.queue[0][0]
            if self.now >= BEYOND:
                if NOT_YET in self.finish and any(self._stands(*event) for event in self.queue):
                    raise too_long()
                break
            self._happen()
            while self._give():
                self._happen()
            if self.joined or self.left or self.asked:
                self._share()

    def _stands(self, tick: int, what: int, *about: int) -> bool:
        """Whether what was foreseen has not been taken back since."""
        if what == _WAKE:
            return self.model.wake == tick
        return what != _DUE or self.ends.get(about[0]) == tick

    def _happen(self) -> None:
        """All that the queue holds for this tick."""
        queue, now = self.queue, self.now
        while queue and queue[0][0] == now:
            _, what, *about = heappop(queue)
            self.happen[what](*about)

    def played(self) -> GraphRun:
        """The columns of what happened."""
        if max(self.finish, default=0) >= BEYOND:
            raise too_long()
        if NOT_YET in self.finish:
            raise Stuck(why_stuck(self.graph, self.start, self.finish))
        link_bytes, flows = link_loads(self.graph, self.wires)
        start, finish = np.array(self.start, np.int64), np.array(self.finish, np.int64)
        begin = start.copy()
        members = self.graph.kind == Task.COLLECTIVE
        begin[members] = np.array(self.begin, np.int64)[self.graph.what[members]]
        return GraphRun(start, begin, finish, link_bytes, flows, self.events, "reference")

    # --------------------------------------------------------------------------------------- tasks

    def _proceed(self, tasks: list[int]) -> None:
        """Start tasks that are ready; end those of which it is known when; start what waited for them, and so on.

        The ticks at which they start and end may lie in the future.
        """
        ready, waiting, lasts, after = self.ready, self.waiting, self.lasts, self.after
        start, finish, notified = self.start, self.finish, self.notified
        while tasks:
            task = tasks.pop()
            start[task] = ready[task]
            if lasts[task] == NOT_YET:
                self._launch(task)
                continue
            end = finish[task] = start[task] + lasts[task]
            for following in after[task]:
                if ready[following] < end:
                    ready[following] = end
                waiting[following] -= 1
                if not waiting[following]:
                    tasks.append(following)
            for event in notified.get(task, ()):
                heappush(self.queue, (end, *event))

    def _launch(self, task: int) -> None:
        """A task whose end is not known yet starts."""
        start, kind, what = self.start[task], self.kind[task], self.what[task]
        if kind == Task.TRANSFER:
            heappush(self.queue, (start + self._until_join(what), _JOIN, task))
        elif kind == Task.TAKE:
            heappush(self.queue, (start, _TAKE, task))
        else:
            self.begin[what] = max(self.begin[what], start)
            self.missing[what] -= 1
            if not self.missing[what]:
                heappush(self.queue, (self.begin[what] + int(self.collectives[what].delay), _BEGIN, what))

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

    # -------------------------------------------------------------------------------------- tokens

    def _put(self, counter: int) -> None:
        self.tokens[counter] += 1
        self.giving.add(counter)

    def _take(self, task: int) -> None:
        counter = self.what[task]
        heappush(self.takers[counter], (self.now, task))
        self.giving.add(counter)

    def _give(self) -> bool:
        """One round: all counters give what they have to those that wait.  Whether anyone got a token."""
        served = []
        for counter in self.giving:
            takers = self.takers[counter]
            while takers and self.tokens[counter]:
                self.tokens[counter] -= 1
                served.append(heappop(takers)[1])
        self.giving.clear()
        for task in served:
            self._finish(task)
        return bool(served)

    # --------------------------------------------------------------------------------------- flows

    def _until_join(self, route: int) -> int:
        """Ticks from the start of a transfer until it uses its links."""
        return 0 if self.model.pays_latency else self.latency[route]

    def _join(self, task: int) -> None:
        """A TRANSFER starts to use its links."""
        route = self.what[task]
        self._add(route, self.amount[task] * WORK_PER_BYTE, _ActiveFlow(self.links[route], task, NOT_YET, NOT_YET))

    def _add(self, route: int, work: int, moving: _ActiveFlow) -> None:
        for link in moving.links:
            if link in self.claimed:
                self._materialise(self.claimed[link])
            self.flows_on[link] += 1
        self.joined.append(_PendingFlow(moving, route, work))

    def _due(self, number: int) -> None:
        """The last byte of a flow has been served, unless something changed after this was foreseen."""
        if self.ends.get(number) != self.now:
            return
        del self.ends[number]
        moving = self.flows.pop(number)
        self.left.append(number)
        for link in moving.links:
            self.flows_on[link] -= 1
        if moving.task != NOT_YET:
            self._finish(moving.task)
        else:
            self._delivered(moving.instance, moving.edge)

    def _share(self) -> None:
        """Ask the network model what this instant changes."""
        joined = []
        for moving, route, work in sorted(self.joined, key=_PendingFlow.place):
            self.flows[self.known] = moving
            joined.append(Flow(self.known, moving.links, self.weights[route], work, self.latency[route]))
            self.known += 1
        for number, given in self.model.change(self.now, joined, sorted(self.left)):
            end = index(given)
            if number not in self.flows or (end <= self.now and end != NEVER):
                name = type(self.model).__name__
                raise InputError(f"network model {name} let flow {number} end at {end}, asked at {self.now}")
            self.ends[number] = end
            if end != NEVER:
                heappush(self.queue, (end, _DUE, number))
        self.joined, self.left, self.asked = [], [], False
        self.events += 1
        if self.model.wake is not None and self.model.wake > self.now:
            heappush(self.queue, (self.model.wake, _WAKE))

    def _wake(self) -> None:
        """The model wanted to be asked at this tick, and did not take that back since."""
        self.asked = self.asked or self.model.wake == self.now

    # --------------------------------------------------------------------------------- collectives

    def _begin(self, instance: int) -> None:
        """All members are there and the delay has passed: the first transfers start."""
        plan = self._plan(instance)
        if plan.alone is None or any(self.flows_on[link] or link in self.claimed for link in plan.links):
            stepping = self.stepping[instance] = PatternState(plan.edges)
            self._follow(instance, stepping.flying(), stepping.finished())
            return
        self.claimed.update(dict.fromkeys(plan.links, instance))
        self.alone[instance] = _IsolatedRun(plan.alone, self.now, dict(plan.ends))
        for ticks in plan.ends:
            heappush(self.queue, (self.now + ticks, _END, instance))

    def _follow(self, instance: int, starting: list[int], finished: list[int]) -> None:
        """What a move of the state machine leads to at this instant."""
        until_join = self._plan(instance).until_join
        for edge in starting:
            heappush(self.queue, (self.now + until_join[edge], _STEP, instance, edge))
        for member in finished:
            self._finish(self.tasks[instance][member])

    def _step(self, instance: int, edge: int, served: int = 0) -> None:
        """A transfer of an edge starts to use its links; this much of its work has been done already."""
        plan = self._plan(instance)
        if not plan.work[edge]:
            self._delivered(instance, edge)
            return
        route = plan.routes[edge]
        self._add(route, plan.work[edge] - served, _ActiveFlow(self.links[route], NOT_YET, instance, edge))

    def _delivered(self, instance: int, edge: int) -> None:
        self._follow(instance, *self.stepping[instance].next(edge))

    def _end(self, instance: int) -> None:
        """Some members of a collective that is alone have finished."""
        running = self.alone.get(instance)
        if running is None:
            return  # it is played flow by flow by now
        for member in running.ends.pop(self.now - running.began):
            self._finish(self.tasks[instance][member])
        if not running.ends:
            self._release(instance)

    def _materialise(self, instance: int) -> None:
        """A flow comes onto a link of a collective that was alone: from now on it is played flow by flow."""
        running, plan = self._release(instance), self._plan(instance)
        ticks = self.now - running.began
        self.stepping[instance], flying = running.alone.state(ticks)
        for member in running.ends.pop(ticks, ()):
            self._finish(self.tasks[instance][member])
        for edge, started in flying:
            joined = running.began + started + plan.until_join[edge]
            if joined > self.now:
                heappush(self.queue, (joined, _STEP, instance, edge))
            else:
                self._step(instance, edge, self.alone_rate[plan.routes[edge]] * (self.now - joined))

    def _release(self, instance: int) -> _IsolatedRun:
        for link in self._plan(instance).links:
            del self.claimed[link]
        return self.alone.pop(instance)

    def _plan(self, instance: int) -> _CollectivePlan:
        c = self.collectives[instance]
        plan = self.plans.get(id(c))  # many instances are one object, a layer's of each micro-batch for example
        if plan is None:
            plan = self.plans[id(c)] = self._planned(c)
        return plan

    def _planned(self, c: Collective) -> _CollectivePlan:
        if id(c.pattern) not in self.edges:
            self.edges[id(c.pattern)] = PatternEdges.of(c.pattern)
        edges, routes = self.edges[id(c.pattern)], c.route.tolist()
        sizes, pauses = c.pattern.bytes.tolist(), c.pattern.pause.tolist()
        limits = [self.links[route] if size else () for route, size in zip(routes, sizes, strict=True)]
        work = [size * WORK_PER_BYTE if links else 0 for size, links in zip(sizes, limits, strict=True)]
        until_join = [
            pause + (self._until_join(route) if links else self.latency[route])
            for pause, route, links in zip(pauses, routes, limits, strict=True)
        ]
        used = [link for links in limits for link in links]
        own = None
        if self.closed_form and len(set(used)) == len(used):
            rates = [self.alone_rate[route] for route in routes]
            own = isolated_collective(
                edges, [t - (-w // r) if w else t for t, w, r in zip(until_join, work, rates, strict=True)]
            )
        ends: dict[int, list[int]] = {}
        for member, ticks in enumerate(own.ends() if own else ()):
            ends.setdefault(ticks, []).append(member)
        if own:
            ends.setdefault(own.last, [])  # its links are its own until the last delivery, for which no member may wait
        return _CollectivePlan(edges, routes, work, until_join, own, tuple(used), ends)
