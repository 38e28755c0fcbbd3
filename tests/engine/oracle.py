"""A second reading of the rules of the engine, as slow and as plain as can be, to compare engines with.

It knows no queue, no closed form, no state machine and no incremental solving: at each instant it looks at everything
again.
"""

from __future__ import annotations

from dataclasses import dataclass

from triosim.engine.graph import UNLIMITED, Graph, Steps, Task, Wires

WORK = 1024 * 10**12


@dataclass
class Move:
    """A transfer: it enters sharing at ``enter`` and has ``left`` to be served."""

    links: list[int]
    enter: int
    left: int
    delivered: int = -1


def max_min(capacity: list[int], flows: list[list[int]]) -> list[int]:
    """Progressive filling by looking at every link in every round."""
    rates: list[int | None] = [None] * len(flows)
    while None in rates:
        shares = {}
        for link in {link for links, rate in zip(flows, rates, strict=True) if rate is None for link in links}:
            on = [i for i, links in enumerate(flows) if link in links]
            taken = sum(rates[i] or 0 for i in on)
            shares[link] = (capacity[link] - taken) // sum(rates[i] is None for i in on)
        low = min(shares.values())
        for i, links in enumerate(flows):
            if rates[i] is None and any(shares[link] == low for link in links):
                rates[i] = low
    return [rate for rate in rates if rate is not None]


def sender(rule: Steps, position: int, step: int) -> list[int]:
    """Who sends to a position in a step, by asking everyone."""
    return [p for p in range(rule.members) if rule.peer(p, step) == position]


class Oracle:
    def __init__(self, graph: Graph, wires: Wires) -> None:
        self.g, self.w = graph, wires
        self.capacity = wires.capacity.tolist()
        n = len(graph)
        self.start, self.begin, self.finish = [-1] * n, [-1] * n, [-1] * n
        self.moves: dict[tuple, Move] = {}
        self.now = 0

    def run(self) -> tuple[list[int], list[int], list[int]]:
        while True:
            while self.look():
                pass
            future = [t for t in self.finish if t > self.now]
            future += [m.enter for m in self.moves.values() if m.enter > self.now]
            future += [t for c in range(len(self.g.collectives)) if (t := self.may_step(c)) > self.now]
            active = [m for m in self.moves.values() if m.delivered < 0 and m.enter <= self.now]
            rates = max_min(self.capacity, [m.links for m in active])
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
        for c in range(len(self.g.collectives)):
            if 0 <= self.may_step(c) <= self.now:
                changed |= self.step(c)
        return changed

    def ready(self, task: int) -> bool:
        before = self.g.before[task].tolist()
        if sum(map(self.done, before)) < (self.g.need[task] or len(before)):
            return False
        stream = self.g.stream[task]
        return stream < 0 or all(self.done(t) for t in range(task) if self.g.stream[t] == stream)

    def work(self, task: int) -> bool:
        kind = self.g.kind[task]
        if kind in (Task.COMPUTE, Task.JOIN):
            self.finish[task] = self.now + (int(self.g.duration[task]) if kind == Task.COMPUTE else 0)
            return True
        if kind == Task.TRANSFER:
            if (task,) not in self.moves:
                self.launch((task,), int(self.g.route[task]), int(self.g.bytes[task]), int(self.g.delay[task]))
                return True
            if self.moves[task,].delivered >= 0:
                self.finish[task] = self.moves[task,].delivered
                return True
        return False

    def launch(self, key: tuple, route: int, size: int, delay: int) -> None:
        links = [k for k in self.w.routes[route].tolist() if self.capacity[k] != UNLIMITED]
        self.moves[key] = Move(links, self.now + delay + int(self.w.latency[route]), size * WORK)

    def members(self, c: int) -> list[int]:
        tasks = [t for t in range(len(self.g)) if self.g.collective[t] == c]
        return sorted(tasks, key=lambda t: self.g.member[t])

    def may_step(self, c: int) -> int:
        """From when on the collective may send, -1 while members are missing."""
        starts = [self.start[t] for t in self.members(c)]
        return max(starts) + self.g.collectives[c].delay if min(starts) >= 0 else -1

    def step(self, c: int) -> bool:
        rule, routes, tasks = self.g.collectives[c].steps, self.g.collectives[c].routes, self.members(c)
        changed = False
        for position, task in enumerate(tasks):
            self.begin[task] = max(self.start[t] for t in tasks)
            step, through = 0, True
            while through and step < rule.steps:
                if rule.peer(position, step) >= 0 and (c, position, step) not in self.moves:
                    self.launch((c, position, step), int(routes[step % len(routes)][position]), rule.bytes, 0)
                    changed = True
                through = not rule.wait or self.through(c, rule, position, step)
                step += 1
            everything = all(self.through(c, rule, position, s) for s in range(rule.steps))
            if everything and self.finish[task] < 0:
                self.finish[task] = self.now
                changed = True
        return changed

    def through(self, c: int, rule: Steps, position: int, step: int) -> bool:
        """Whether all that the position sends and receives in this step has been delivered."""
        keys = [(c, p, step) for p in sender(rule, position, step)]
        if rule.peer(position, step) >= 0:
            keys.append((c, position, step))
        return all(key in self.moves and self.moves[key].delivered >= 0 for key in keys)
