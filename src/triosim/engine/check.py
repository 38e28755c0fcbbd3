"""What must hold of a graph before it is played, and what can be said of a run without playing it.

Nothing here depends on the engine.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from triosim.columns import Ragged
from triosim.engine.graph import UNLIMITED, Graph, Task, Wires
from triosim.engine.stepped import sent


def check(graph: Graph, wires: Wires) -> None:
    """Whether the columns make sense; cycles and members that never come are found in playing.

    Raises:
        ValueError: they do not (a defect of the caller); the message names the first row that does not.
    """
    n, routes = len(graph), len(wires.routes)
    for name in ("stream", "duration", "route", "bytes", "delay", "collective", "member", "before", "need"):
        if len(getattr(graph, name)) != n:
            raise ValueError(f"graph.{name} has {len(getattr(graph, name))} rows, graph.kind has {n}")
    kind, need = graph.kind, graph.need
    _rows("kind is not known", ~np.isin(kind, [int(task) for task in Task]))
    _rows("stream does not exist", (graph.stream < -1) | (graph.stream >= graph.streams))
    _rows("duration is negative", graph.duration < 0)
    _rows("delay is negative", graph.delay < 0)
    _rows("bytes are negative", graph.bytes < 0)
    _rows("route does not exist", (kind == Task.TRANSFER) & ((graph.route < 0) | (graph.route >= routes)))
    _rows("need is negative, or more than there are predecessors", (need < 0) | (need > graph.before.lengths()))
    values = graph.before.values
    _rows("predecessor does not exist", _any((values < 0) | (values >= n), graph.before.rows(), n))
    if len(wires.latency) != routes:
        raise ValueError(f"wires.latency has {len(wires.latency)} rows, wires.routes has {routes}")
    _rows("capacity is neither above zero nor UNLIMITED", (wires.capacity < 1) & (wires.capacity != UNLIMITED), "link")
    _rows("latency is negative", wires.latency < 0, "route")
    links, rows = wires.routes.values, wires.routes.rows()
    _rows("link does not exist", _any((links < 0) | (links >= len(wires.capacity)), rows, routes), "route")
    order = np.lexsort((links, rows))
    twice = (np.diff(links[order]) == 0) & (np.diff(rows[order]) == 0)
    _rows("link is crossed twice", _any(twice, rows[order][1:], routes), "route")
    _check_collectives(graph, routes)


def _check_collectives(graph: Graph, routes: int) -> None:
    tasks = np.flatnonzero(graph.kind == Task.COLLECTIVE)
    members = np.array([c.steps.members for c in graph.collectives], np.int64)
    collective, member = graph.collective[tasks], graph.member[tasks]
    _rows("collective does not exist", _any((collective < 0) | (collective >= len(members)), tasks, len(graph)))
    _rows("member does not exist", _any((member < 0) | (member >= members[collective]), tasks, len(graph)))
    places = member + np.concatenate([[0], np.cumsum(members)])[collective]
    if len(np.unique(places)) < len(tasks):
        raise ValueError("two tasks are the same member of a collective")
    for row, c in {id(c): (row, c) for row, c in enumerate(graph.collectives)}.values():
        if c.steps.members < 1 or c.steps.steps < 0 or c.steps.bytes < 0 or c.steps.active < 0 or c.delay < 0:
            raise ValueError(f"collective {row}: members must be 1 or more, steps, bytes, active and delay 0 or more")
        needed = sent(c.steps)
        if c.routes.shape != needed.shape:
            raise ValueError(f"collective {row}: routes have shape {c.routes.shape}, must have {needed.shape}")
        if np.where(needed > 0, (c.routes < 0) | (c.routes >= routes), c.routes != -1).any():
            raise ValueError(f"collective {row}: routes must exist where a position sends, and be -1 where it does not")


def _any(wrong: NDArray, rows: NDArray, count: int) -> NDArray:
    """For each of ``count`` rows whether anything in it is wrong."""
    return np.bincount(rows[wrong], minlength=count) > 0


def _rows(what: str, wrong: NDArray, where: str = "task") -> None:
    if wrong.any():
        raise ValueError(f"{where} {int(np.argmax(wrong))}: {what}")


def carried(graph: Graph, wires: Wires) -> tuple[NDArray[np.int64], int]:
    """Bytes that each link carries, and the number of transfers, those inside collectives included.

    Every task of a run ends, so this does not depend on when.
    """
    moves = graph.kind == Task.TRANSFER
    flows = int(np.count_nonzero(moves))
    route_bytes = np.zeros(len(wires.routes), np.int64)
    np.add.at(route_bytes, graph.route[moves], graph.bytes[moves])
    times = Counter(id(c) for c in graph.collectives)  # many collectives are one object
    for c in {id(c): c for c in graph.collectives}.values():
        count = sent(c.steps) * times[id(c)]
        flows += int(count.sum())
        np.add.at(route_bytes, c.routes[count > 0], count[count > 0] * c.steps.bytes)
    link_bytes = np.zeros(len(wires.capacity), np.int64)
    np.add.at(link_bytes, wires.routes.values, np.repeat(route_bytes, wires.routes.lengths()))
    return link_bytes, flows


def successors(graph: Graph) -> tuple[list[list[int]], list[int], dict[int, list[int]]]:
    """Who waits for whom.

    Returns:
        the tasks that wait for each task, the next on its stream among them; how many things each task waits for; and
        for each task those that need only some of their predecessors, which must be counted in the order of time.
    """
    n = len(graph)
    rows, values = graph.before.rows(), graph.before.values.astype(np.int64)
    some = (graph.need > 0) & (graph.need < graph.before.lengths())
    counts = some[rows]
    order = np.argsort(graph.stream, kind="stable")
    order = order[graph.stream[order] >= 0]
    follows = graph.stream[order[1:]] == graph.stream[order[:-1]]
    source = np.concatenate([values[~counts], order[:-1][follows]])
    target = np.concatenate([rows[~counts], order[1:][follows]])
    waiting = np.bincount(target, minlength=n) + some  # to have counted enough is one thing to wait for
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(source, minlength=n))])
    after = Ragged(target[np.argsort(source, kind="stable")], offsets)
    counted: dict[int, list[int]] = {}
    for task, following in zip(values[counts].tolist(), rows[counts].tolist(), strict=True):
        counted.setdefault(task, []).append(following)
    return after.lists(), waiting.tolist(), counted


def why_stuck(graph: Graph, start: list[int], finish: list[int]) -> str:
    """What the first tasks that never end wait for; ``start`` and ``finish`` are -1 where they never came."""
    stuck = [task for task, end in enumerate(finish) if end < 0]
    reasons = []
    for task in stuck[:3]:
        before = [t for t in graph.before[task].tolist() if finish[t] < 0][:5]
        if start[task] < 0:
            reason = f"waits for tasks {before}" if before else f"waits for its turn on stream {graph.stream[task]}"
        elif graph.kind[task] == Task.COLLECTIVE and (missing := _missing(graph, task, start)):
            reason = f"waits for members {missing[:5]} of collective {graph.collective[task]}"
        else:
            reason = "has begun and is never served"
        reasons.append(f"task {task} ({Task(graph.kind[task]).name}) {reason}")
    return f"{len(stuck)} of {len(graph)} tasks never start or never end: " + "; ".join(reasons)


def _missing(graph: Graph, task: int, start: list[int]) -> list[int]:
    """The members that the collective of a task still waits for."""
    collective = graph.collective[task]
    same = np.flatnonzero((graph.kind == Task.COLLECTIVE) & (graph.collective == collective)).tolist()
    there = {int(graph.member[t]) for t in same if start[t] >= 0}
    return [p for p in range(graph.collectives[collective].steps.members) if p not in there]
