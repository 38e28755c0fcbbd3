"""What must hold of a graph before it is played, and what can be said of a run without playing it.

Nothing here depends on the engine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.core.errors import InputError
from triosim.engine.column_types import typed_columns
from triosim.engine.graph import ALL, UNLIMITED, EngineNetwork, Graph, Pattern, Task, TimeOverflow

MOST = 2**30
"""Tasks, streams, positions and edges must be fewer than this, which is what an event of the native engine can name."""

MOST_BYTES = 2**63 - 1
"""What one link can carry in a run."""


def check(graph: Graph, wires: EngineNetwork) -> None:
    """Whether the columns make sense; cycles, members that never come and tokens that are never put are found in
    playing.

    Raises:
        ValueError: they do not (a defect of the caller); the message names the first row that does not.
    """
    graph, wires = typed_columns(graph, wires)
    _well_formed("graph.before", graph.before)
    _well_formed("wires.routes", wires.routes)
    n, routes = len(graph), len(wires.routes)
    if n >= MOST or not 0 <= graph.streams < MOST:
        raise ValueError("tasks and streams must be 0 or more, and fewer than 2**30")
    for name in ("stream", "amount", "what", "member", "before", "need"):
        column = getattr(graph, name)
        if column is not None and len(column) != n:
            raise ValueError(f"graph.{name} has {len(column)} rows, graph.kind has {n}")
    kind = graph.kind
    _rows("kind is not known", (kind < 0) | (kind >= len(Task)))
    _rows("stream does not exist", (graph.stream < -1) | (graph.stream >= graph.streams))
    _rows("amount is negative", graph.amount < 0)
    _refer(graph, "route", kind == Task.TRANSFER, routes)
    _refer(graph, "collective", kind == Task.COLLECTIVE, len(graph.instances))
    _refer(graph, "counter", (kind == Task.PUT) | (kind == Task.TAKE), len(graph.tokens))
    if graph.need is not None:
        wrong = (graph.need < 0) | (graph.need > graph.before.lengths())
        _rows("need is negative, or more than there are predecessors", wrong)
    values = graph.before.values
    _rows("predecessor does not exist", _any((values < 0) | (values >= n), graph.before.rows(), n))
    _rows("tokens are negative", graph.tokens < 0, "counter")
    _rows("tokens are 2**62 or more, so that no more can be put", graph.tokens >= 2**62, "counter")
    _check_wires(wires)
    _check_collectives(graph, routes)


def _refer(graph: Graph, what: str, rows: NDArray[np.bool_], count: int) -> None:
    """``what`` of these rows is one of so many."""
    _rows(f"{what} does not exist", rows & ((graph.what < 0) | (graph.what >= count)))


def _check_wires(wires: EngineNetwork) -> None:
    routes, links, rows = len(wires.routes), wires.routes.values, wires.routes.rows()
    if len(wires.latency) != routes:
        raise ValueError(f"wires.latency has {len(wires.latency)} rows, wires.routes has {routes}")
    _rows("capacity is neither above zero nor UNLIMITED", (wires.capacity < 1) & (wires.capacity != UNLIMITED), "link")
    _rows("latency is negative", wires.latency < 0, "route")
    _rows("link does not exist", _any((links < 0) | (links >= len(wires.capacity)), rows, routes), "route")
    order = np.lexsort((links, rows))
    twice = (np.diff(links[order]) == 0) & (np.diff(rows[order]) == 0)
    _rows("link is crossed twice", _any(twice, rows[order][1:], routes), "route")
    if wires.weights is not None:
        if len(wires.weights) != len(links):
            raise ValueError(f"wires.weights has {len(wires.weights)} rows, wires.routes.values has {len(links)}")
        _rows("weight is below 1", _any(wires.weights < 1, rows, routes), "route")
    if wires.ends is not None and wires.ends.shape != (len(wires.capacity), 2):
        raise ValueError(f"wires.ends has shape {wires.ends.shape}, must have {(len(wires.capacity), 2)}")


def _check_collectives(graph: Graph, routes: int) -> None:
    patterns = {id(c.pattern): (row, c.pattern) for row, c in enumerate(graph.collectives)}
    for row, pattern in patterns.values():
        _check_pattern(f"collective {row}", pattern)
    for row, c in {id(c): (row, c) for row, c in enumerate(graph.collectives)}.values():
        if c.delay < 0:
            raise ValueError(f"collective {row}: delay is negative")
        if len(c.route) != len(c.pattern):
            raise ValueError(f"collective {row}: route has {len(c.route)} rows, its pattern has {len(c.pattern)} edges")
        _rows("route does not exist", (c.route < 0) | (c.route >= routes), f"collective {row}: edge")
    instances = graph.instances
    if ((instances < 0) | (instances >= len(graph.collectives))).any():
        raise ValueError("graph.instances names a collective that does not exist")
    members = np.array([c.pattern.members for c in graph.collectives], np.int64)[instances]
    if members.sum() >= MOST:
        raise ValueError("members of all collectives that are run must be fewer than 2**30")
    tasks = np.flatnonzero(graph.kind == Task.COLLECTIVE)
    instance, member = graph.what[tasks], graph.member[tasks]
    _rows("member does not exist", _any((member < 0) | (member >= members[instance]), tasks, len(graph)))
    positions = member + np.concatenate([[0], np.cumsum(members)])[instance]
    if len(np.unique(positions)) < len(tasks):
        raise ValueError("two tasks are the same member of a collective")


def _check_pattern(what: str, pattern: Pattern) -> None:
    edges, needs = len(pattern), pattern.needs
    if pattern.members < 1 or pattern.places < pattern.members:
        raise ValueError(f"{what}: members must be 1 or more and places no fewer")
    if pattern.places >= MOST or edges >= MOST or len(needs.values) >= MOST:
        raise ValueError(f"{what}: places and edges must be fewer than 2**30")
    _well_formed(f"{what}: needs", needs)
    for name in ("target", "bytes", "count", "needs", "pause"):
        if len(getattr(pattern, name)) != edges:
            raise ValueError(f"{what}: {name} has {len(getattr(pattern, name))} rows, source has {edges}")
    if len(pattern.lag) != len(needs.values):
        raise ValueError(f"{what}: lag has {len(pattern.lag)} rows, needs.values has {len(needs.values)}")
    edge = f"{what}: edge"
    for end in (pattern.source, pattern.target):
        _rows("position does not exist", (end < 0) | (end >= pattern.places), edge)
    _rows("bytes are negative", pattern.bytes < 0, edge)
    _rows("count is below 1", pattern.count < 1, edge)
    _rows("pause is negative", pattern.pause < 0, edge)
    wrong = (needs.values < 0) | (needs.values >= edges)
    _rows("needs an edge that does not exist", _any(wrong, needs.rows(), edges), edge)
    _rows("lag is neither 0 or more nor ALL", _any((pattern.lag < 0) & (pattern.lag != ALL), needs.rows(), edges), edge)


def _well_formed(what: str, rows: Ragged) -> None:
    steps = np.diff(rows.offsets, prepend=0, append=len(rows.values))
    if not len(rows.offsets) or rows.offsets[0] != 0 or (steps < 0).any() or steps[-1] != 0:
        raise ValueError(f"{what}: offsets must go up from 0 to the number of values")


def _any(wrong: NDArray[Any], rows: NDArray[Any], count: int) -> NDArray[Any]:
    """For each of ``count`` rows whether anything in it is wrong."""
    return np.bincount(rows[wrong], minlength=count) > 0


def _rows(what: str, wrong: NDArray[Any], where: str = "task") -> None:
    if wrong.any():
        raise ValueError(f"{where} {int(np.argmax(wrong))}: {what}")


def link_loads(graph: Graph, wires: EngineNetwork) -> tuple[NDArray[np.int64], int]:
    """Bytes that each link carries (each weight counts), and the number of transfers, those inside collectives
    included.

    Every task of a run ends, so this does not depend on when.

    Raises:
        InputError: more bytes cross a link than 64 bits can count.
    """
    moves = graph.kind == Task.TRANSFER
    run = np.unique(graph.what[graph.kind == Task.COLLECTIVE])
    times = np.bincount(graph.instances[run], minlength=len(graph.collectives)).tolist()
    # In floats first, with room for their rounding: integers would wrap around without a word.
    fits = _carried(graph, wires, moves, times, np.float64).max(initial=0) < MOST_BYTES / 2
    link_bytes = _carried(graph, wires, moves, times, np.int64 if fits else object)
    if not fits and len(over := np.flatnonzero(link_bytes > MOST_BYTES)):
        raise too_much(int(over[0]))
    flows = int(np.count_nonzero(moves))
    flows += sum(int(c.pattern.count.sum(dtype=np.int64)) * n for c, n in zip(graph.collectives, times, strict=True))
    return link_bytes.astype(np.int64), min(flows, MOST_BYTES)


def _carried(
    graph: Graph, wires: EngineNetwork, moves: NDArray[np.bool_], times: list[int], number: type
) -> NDArray[Any]:
    """Bytes of each link, in this type of number; ``times`` is how often each collective is run."""
    route_bytes: NDArray[Any] = np.zeros(len(wires.routes), number)
    np.add.at(route_bytes, graph.what[moves], graph.amount[moves].astype(number))
    for c, runs in zip(graph.collectives, times, strict=True):
        np.add.at(route_bytes, c.route, c.pattern.count.astype(number) * runs * c.pattern.bytes.astype(number))
    link_bytes: NDArray[Any] = np.zeros(len(wires.capacity), number)
    crossing = np.repeat(route_bytes, wires.routes.lengths())
    if wires.weights is not None:
        crossing = crossing * wires.weights.astype(number)
    np.add.at(link_bytes, wires.routes.values, crossing)
    return link_bytes


def successors(graph: Graph) -> tuple[list[list[int]], list[int], dict[int, list[int]]]:
    """Who waits for whom.

    Returns:
        the tasks that wait for each task, the next on its stream among them; how many things each task waits for; and
        for each task those that need only some of their predecessors, which must be counted in the order of time.
    """
    n = len(graph)
    rows, values = graph.before.rows(), graph.before.values.astype(np.int64)
    need = np.zeros(n, np.int32) if graph.need is None else graph.need
    some = (need > 0) & (need < graph.before.lengths())
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


def too_much(link: int) -> InputError:
    """What to tell of a run in which more crosses a link than 64 bits can count."""
    return InputError(f"more than 9.2e18 bytes cross link {link}, the most that can be counted: look for a wrong unit")


def too_long() -> TimeOverflow:
    """What to tell of a run whose ticks do not fit 64 bits."""
    return TimeOverflow(
        "the run lasts more than 106 days of simulated time, the most that can be counted in picoseconds: "
        "look for a wrong unit in bandwidths, sizes and times"
    )


def why_stuck(graph: Graph, start: list[int], finish: list[int]) -> str:
    """What the first tasks that never end wait for; ``start`` and ``finish`` are -1 where they never came."""
    stuck = [task for task, end in enumerate(finish) if end < 0]
    reasons = []
    for task in stuck[:3]:
        before = [t for t in graph.before[task].tolist() if finish[t] < 0][:5]
        if start[task] < 0:
            reason = f"waits for tasks {before}" if before else f"waits for its turn on stream {graph.stream[task]}"
        elif graph.kind[task] == Task.COLLECTIVE and (missing := _missing(graph, task, start)):
            reason = f"waits for members {missing[:5]} of collective {graph.what[task]}"
        elif graph.kind[task] == Task.TAKE:
            reason = f"waits for a token of counter {graph.what[task]}"
        else:
            reason = "has begun and is never served"
        reasons.append(f"task {task} ({Task(graph.kind[task]).name}) {reason}")
    return f"{len(stuck)} of {len(graph)} tasks never start or never end: " + "; ".join(reasons)


def _missing(graph: Graph, task: int, start: list[int]) -> list[int]:
    """The members that the collective of a task still waits for."""
    instance = graph.what[task]
    same = np.flatnonzero((graph.kind == Task.COLLECTIVE) & (graph.what == instance)).tolist()
    there = {int(graph.member[t]) for t in same if start[t] >= 0}
    return [p for p in range(graph.collectives[graph.instances[instance]].pattern.members) if p not in there]
