"""A second reading of the rules of the engine, as slow and as plain as can be, to compare engines with.

It knows no queue, no closed form, no state machine and no incremental solving: at each instant it looks at everything
again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from triosim.engine.graph import ALL, UNLIMITED, EngineNetwork, Graph, Task

WORK = 1024 * 10**12

Crossed = Sequence[tuple[int, int]]
"""Links of a flow, each with how often it counts there."""


Share = Callable[[Sequence[int], Sequence[Crossed]], list[int]]
"""(capacity of each link, links of each flow) -> rate of each flow."""


@dataclass
class Move:
    """A transfer: it enters sharing at ``enter`` and has ``left`` to be served."""

    links: list[tuple[int, int]]
    enter: int
    left: int
    delivered: int = -1


def max_min(capacity: Sequence[int], flows: Sequence[Crossed]) -> list[int]:
    """Progressive filling by looking at every link in every round."""
    rates: list[int | None] = [None] * len(flows)
    while None in rates:
        shares = {}
        for link in {link for links, rate in zip(flows, rates, strict=True) if rate is None for link, _ in links}:
            on = [(i, weight) for i, links in enumerate(flows) for crossed, weight in links if crossed == link]
            taken = sum((rates[i] or 0) * weight for i, weight in on)
            waiting = sum(weight for i, weight in on if rates[i] is None)
            shares[link] = max((capacity[link] - taken) // waiting, 1)
        low = min(shares.values())
        for i, links in enumerate(flows):
            if rates[i] is None and any(shares[link] == low for link, _ in links):
                rates[i] = low
    return [rate for rate in rates if rate is not None]


def equal_split(capacity: Sequence[int], flows: Sequence[Crossed]) -> list[int]:
    """Every link divided by all that is on it."""
    load = [sum(weight for links in flows for crossed, weight in links if crossed == k) for k in range(len(capacity))]
    return [max(min(capacity[link] // load[link] for link, _ in links), 1) for links in flows]


class Oracle:
    def __init__(self, graph: Graph, wires: EngineNetwork, share: Share = max_min) -> None:
        self.g, self.w, self.share = graph, wires, share
        self.capacity = wires.capacity.tolist()
        n = len(graph)
        self.start, self.begin, self.finish = [-1] * n, [-1] * n, [-1] * n
        self.moves: dict[tuple, Move] = {}
        self.given = [0] * len(graph.tokens)
        self.now = 0

    def run(self) -> tuple[list[int], list[int], list[int]]:
        while True:
            while self.look() or self.give():
                pass
            future = [t for t in self.finish if t > self.now]
            future += [m.enter for m in self.moves.values() if m.enter > self.now]
            future += [t for c in range(len(self.g.instances)) if (t := self.may_begin(c)) > self.now]
            active = [m for m in self.moves.values() if m.delivered < 0 and m.enter <= self.now]
            rates = self.share(self.capacity, [m.links for m in active])
            future += [self.now - (-m.left // rate) for m, rate in zip(active, rates, strict=True)]
            if not future:
                return self.start, self.begin, self.finish
            later = min(future)
            for m, rate in zip(active, rates, strict=True):
                m.left -= rate * (later - self.now)
            self.now = later

    def done(self, task: int) -> bool:
        return 0 <= self.finish[task] <= self.now

    def look(self) -> bool:
        """Do one round of what can be done at this instant; whether anything was."""
        changed = False
        for move in self.moves.values():
            if move.delivered < 0 and move.enter <= self.now and (move.left <= 0 or not move.links):
                move.delivered = self.now
                changed = True
        for task in range(len(self.g)):
            if self.start[task] < 0 and self.ready(task):
                self.start[task] = self.begin[task] = self.now
                changed = True
            if self.start[task] >= 0 and self.finish[task] < 0:
                changed |= self.work(task)
        for c in range(len(self.g.instances)):
            if 0 <= self.may_begin(c) <= self.now:
                changed |= self.step(c)
        return changed

    def give(self) -> bool:
        """Give tokens once to those that wait at this instant; whether anyone got one."""
        got = False
        for counter in range(len(self.g.tokens)):
            own = [t for t in range(len(self.g)) if self.g.what[t] == counter]
            put = sum(self.g.kind[t] == Task.PUT and self.done(t) for t in own)
            waiting = [t for t in own if self.g.kind[t] == Task.TAKE and self.start[t] >= 0 and self.finish[t] < 0]
            there = int(self.g.tokens[counter]) + put - self.given[counter]
            for task in sorted(waiting, key=lambda t: (self.start[t], t))[:there]:
                self.finish[task] = self.now
                self.given[counter] += 1
                got = True
        return got

    def ready(self, task: int) -> bool:
        before = self.g.before[task].tolist()
        need = 0 if self.g.need is None else int(self.g.need[task])
        if sum(map(self.done, before)) < (need or len(before)):
            return False
        stream = self.g.stream[task]
        return stream < 0 or all(self.done(t) for t in range(task) if self.g.stream[t] == stream)

    def work(self, task: int) -> bool:
        kind = self.g.kind[task]
        if kind in (Task.COMPUTE, Task.JOIN, Task.PUT):
            self.finish[task] = self.now + int(self.g.amount[task])
            return True
        if kind == Task.TRANSFER:
            if (task,) not in self.moves:
                self.launch((task,), int(self.g.what[task]), int(self.g.amount[task]), 0)
                return True
            if self.moves[task,].delivered >= 0:
                self.finish[task] = self.moves[task,].delivered
                return True
        return False

    def launch(self, key: tuple, route: int, size: int, pause: int) -> None:
        first, last = self.w.routes.offsets[route : route + 2].tolist()
        weights = [1] * (last - first) if self.w.weights is None else self.w.weights[first:last].tolist()
        crossed = zip(self.w.routes[route].tolist(), weights, strict=True)
        links = [(k, weight) for k, weight in crossed if self.capacity[k] != UNLIMITED]
        self.moves[key] = Move(links, self.now + pause + int(self.w.latency[route]), size * WORK)

    def members(self, c: int) -> list[int]:
        tasks = [t for t in range(len(self.g)) if self.g.kind[t] == Task.COLLECTIVE and self.g.what[t] == c]
        return sorted(tasks, key=lambda t: self.g.member[t])

    def may_begin(self, c: int) -> int:
        """From when on the collective may send, -1 while members are missing."""
        starts = [self.start[t] for t in self.members(c)]
        return max(starts) + self.g.collectives[self.g.instances[c]].delay if min(starts) >= 0 else -1

    def step(self, c: int) -> bool:
        collective, tasks, changed = self.g.collectives[self.g.instances[c]], self.members(c), False
        pattern = collective.pattern
        for edge in range(len(pattern)):
            for k in range(int(pattern.count[edge])):
                if (c, edge, k) not in self.moves and self.may_start(c, edge, k):
                    self.launch(
                        (c, edge, k), int(collective.route[edge]), int(pattern.bytes[edge]), int(pattern.pause[edge])
                    )
                    changed = True
        for position, task in enumerate(tasks):
            self.begin[task] = max(self.start[t] for t in tasks)
            own = [e for e in range(len(pattern)) if position in (pattern.source[e], pattern.target[e])]
            if self.finish[task] < 0 and all(self.through(c, e, int(pattern.count[e]) - 1) for e in own):
                self.finish[task] = self.now
                changed = True
        return changed

    def may_start(self, c: int, edge: int, k: int) -> bool:
        pattern = self.g.collectives[self.g.instances[c]].pattern
        first, last = pattern.needs.offsets[edge : edge + 2].tolist()
        waits = [(edge, k - 1)] if k else []
        for row in range(first, last):
            other, lag = int(pattern.needs.values[row]), int(pattern.lag[row])
            end = int(pattern.count[other]) - 1
            needed = end if lag == ALL else min(k - lag, end)
            if needed >= 0:
                waits.append((other, needed))
        return all(self.through(c, *wait) for wait in waits)

    def through(self, c: int, edge: int, k: int) -> bool:
        """Whether this transfer has been delivered."""
        return (c, edge, k) in self.moves and self.moves[c, edge, k].delivered >= 0
