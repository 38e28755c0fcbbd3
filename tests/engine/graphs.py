"""Graphs for tests: a small builder, and networks and graphs drawn at random, full of ties and contention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

import numpy as np
from hypothesis import strategies as st

from triosim.collectives.pattern import chain, exchange, from_first, ring, rounds, to_first
from triosim.core.columns import Ragged
from triosim.engine.graph import ALL, CAPACITY_PER_BYTE, UNLIMITED, Collective, EngineNetwork, Graph, Pattern, Task

GB_PER_S = 10**9 * CAPACITY_PER_BYTE
US = 10**6  # ticks; 1000 bytes at 1 GB/s take 1 us


class Builder:
    """Collects tasks row by row; every method returns the new row."""

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self.rows: list[dict] = []
        self.collectives: list[Collective] = []
        self.instances: list[int] = []
        self.tokens = list(tokens)

    def add(self, kind: Task, **columns: object) -> int:
        self.rows.append({"kind": int(kind), **columns})
        return len(self.rows) - 1

    def compute(self, duration: int, stream: int = -1, before: Sequence[int] = (), need: int = 0) -> int:
        return self.add(Task.COMPUTE, amount=duration, stream=stream, before=before, need=need)

    def join(self, before: Sequence[int] = (), need: int = 0) -> int:
        return self.add(Task.JOIN, before=before, need=need)

    def transfer(self, route: int, size: int, stream: int = -1, before: Sequence[int] = ()) -> int:
        return self.add(Task.TRANSFER, what=route, amount=size, stream=stream, before=before)

    def put(self, counter: int, stream: int = -1, before: Sequence[int] = ()) -> int:
        return self.add(Task.PUT, what=counter, stream=stream, before=before)

    def take(self, counter: int, stream: int = -1, before: Sequence[int] = ()) -> int:
        return self.add(Task.TAKE, what=counter, stream=stream, before=before)

    def collective(
        self,
        pattern: Pattern,
        route: Sequence[int],
        delay: int = 0,
        streams: Sequence[int] = (),
        before: Sequence[Sequence[int]] = (),
    ) -> list[int]:
        """One task per member; ``route`` of each edge."""
        self.collectives.append(Collective(pattern, np.array(route, np.int32), delay))
        return self.again(len(self.collectives) - 1, streams, before)

    def again(self, collective: int, streams: Sequence[int] = (), before: Sequence[Sequence[int]] = ()) -> list[int]:
        """Another run of a collective."""
        self.instances.append(collective)
        return [
            self.add(
                Task.COLLECTIVE,
                what=len(self.instances) - 1,
                member=member,
                stream=streams[member] if streams else -1,
                before=before[member] if before else (),
            )
            for member in range(self.collectives[collective].pattern.members)
        ]

    def graph(self) -> Graph:
        def column(name: str, dtype: type, default: int) -> np.ndarray:
            return np.array([row.get(name, default) for row in self.rows], dtype)

        stream, need = column("stream", np.int32, -1), column("need", np.int32, 0)
        return Graph(
            kind=column("kind", np.int8, 0),
            stream=stream,
            amount=column("amount", np.int64, 0),
            what=column("what", np.int32, -1),
            member=column("member", np.int32, 0),
            before=Ragged.of([list(row.get("before", ())) for row in self.rows], np.int32),
            streams=int(stream.max(initial=-1)) + 1,
            need=need if need.any() else None,
            collectives=tuple(self.collectives),
            instances=np.array(self.instances, np.int32),
            tokens=np.array(self.tokens, np.int64),
        )


def wires(
    capacity: Sequence[int],
    routes: Sequence[Sequence[int]],
    latency: Sequence[int] | int = 0,
    weights: Sequence[Sequence[int]] | None = None,
) -> EngineNetwork:
    """A network from Python lists; capacities in the engine's unit."""
    latencies = [latency] * len(routes) if isinstance(latency, int) else list(latency)
    return EngineNetwork(
        np.array(capacity, np.int64),
        Ragged.of(routes, np.int32),
        np.array(latencies, np.int64),
        None if weights is None else Ragged.of(weights, np.int32).values,
    )


def switch(nodes: int, capacity: Sequence[int] | int, latency: Sequence[int] | int = 0) -> EngineNetwork:
    """``nodes`` nodes on a switch: links 2p up and 2p + 1 down; see :func:`route` for the routes."""
    capacities = [capacity] * (2 * nodes) if isinstance(capacity, int) else capacity
    pairs = [(p, q) for p in range(nodes) for q in range(nodes)]
    return wires(capacities, [[2 * p, 2 * q + 1] if p != q else [] for p, q in pairs], latency)


def route(nodes: int, p: int, q: int) -> int:
    """The route from p to q on :func:`switch`."""
    return p * nodes + q


def routes_of(pattern: Pattern, places: Sequence[int], nodes: int) -> list[int]:
    """Route of each edge of a pattern whose positions sit at these nodes of a switch."""
    ends = zip(pattern.source.tolist(), pattern.target.tolist(), strict=True)
    return [route(nodes, places[p], places[q]) for p, q in ends]


def edges(
    members: int,
    ends: Sequence[tuple[int, int]],
    size: Sequence[int] | int,
    count: Sequence[int] | int = 1,
    needs: Sequence[Sequence[tuple[int, int]]] = (),
    pause: Sequence[int] | int = 0,
    places: int = -1,
) -> Pattern:
    """A pattern edge by edge; ``needs`` are (edge, lag)."""

    def column(given: Sequence[int] | int, dtype: type) -> np.ndarray:
        return np.array([given] * len(ends) if isinstance(given, int) else given, dtype)

    needs = needs or [()] * len(ends)
    return Pattern(
        members,
        np.array([p for p, _ in ends], np.int32),
        np.array([q for _, q in ends], np.int32),
        column(size, np.int64),
        column(count, np.int32),
        Ragged.of([[e for e, _ in row] for row in needs], np.int32),
        np.array([lag for row in needs for _, lag in row], np.int32),
        column(pause, np.int64),
        places,
    )


# ------------------------------------------------------------------------------------------ drawn
#
# What is drawn follows from a random number generator: one that hypothesis hands out, or one of a seed where many
# graphs are wanted and time matters.

SIZES = [0, 1, 1000, 1000, 1500, 3000]
CAPACITIES = [GB_PER_S, GB_PER_S, GB_PER_S, 2 * GB_PER_S, 3 * GB_PER_S + 7, UNLIMITED]
TICKS = [0, 0, US, US, US // 2, 1, 777]

OnNodes = Callable[[Random, int], EngineNetwork]
Made = TypeVar("Made")


def from_random(make: Callable[..., Made], *about: object) -> st.SearchStrategy[Made]:
    """What ``make(draw, *about)`` gives, as a strategy."""
    return st.randoms(use_true_random=False).map(lambda draw: make(draw, *about))


def some(draw: Random, rows: Sequence, most: int) -> list:
    """Some of these, none twice."""
    return draw.sample(rows, draw.randint(0, min(most, len(rows))))


def any_edges(draw: Random, members: int, places: int) -> Pattern:
    """Edges that wait for each other anyhow, but not in a circle."""
    ends = [(draw.randrange(places), draw.randrange(places)) for _ in range(draw.randint(0, 5))]
    back = draw.random() < 0.5  # whether lags look back at edges of any number; then none waits for all of another
    needs: list[list[tuple[int, int]]] = []
    for edge in range(len(ends)):
        known = [(f, lag) for f in range(edge) for lag in ((0, 1) if back else (0, 1, ALL))]
        known += [(f, lag) for f in range(len(ends)) for lag in (1, 2)] if back else []
        needs.append([draw.choice(known) for _ in range(draw.randint(0, 3))] if known else [])
    sizes = [draw.choice(SIZES) for _ in ends]
    counts = [draw.randint(1, 4) for _ in ends]
    pauses = [draw.choice([0, 0, 0, US // 2, 3]) for _ in ends]
    return edges(members, ends, sizes, counts, needs, pauses, places)


def any_edges_in_step(draw: Random, places: int) -> Pattern:
    """A ring that goes on long, of which edges need some others as well, all with lag 1."""
    needs = [[(draw.randrange(places), 1) for _ in range(draw.randint(0, 2))] for _ in range(places)]
    pauses = [draw.choice([0, 0, US // 2, 3]) for _ in range(places)]
    ends = [(place, (place + 1) % places) for place in range(places)]
    return edges(places, ends, draw.choice([0, 1, 1000, 1500]), draw.randint(1, 30), needs, pauses)


def any_pattern(draw: Random, members: int) -> Pattern:
    """Any pattern for this many members, all places being members."""
    size = draw.choice(SIZES)
    what = draw.choice(["ring", "ring", "chain", "star", "exchange", "any", "any"])
    if what == "ring":
        return ring(members, size, draw.randint(0, 2 * members))
    if what == "chain":
        return chain(members, size, draw.randint(0, 4))
    if what == "star":
        return draw.choice([to_first, from_first])(members, size)
    if what == "exchange":
        return draw.choice([exchange, rounds])(members, size)
    return any_edges(draw, draw.randint(1, members), members)


def alike_or_not(draw: Random, values: Sequence[int], count: int) -> list[int]:
    """So many of these values: all the same, or each another."""
    return [draw.choice(values)] * count if draw.random() < 0.5 else [draw.choice(values) for _ in range(count)]


def any_switch(draw: Random, nodes: int) -> EngineNetwork:
    """A switch whose links and latencies may all be alike or differ, and on which flows may count several times."""
    capacity, latency = alike_or_not(draw, CAPACITIES, 2 * nodes), alike_or_not(draw, TICKS, nodes * nodes)
    network = switch(nodes, capacity, latency)
    return any_weights(draw, network) if draw.random() < 0.25 else network


def any_weights(draw: Random, network: EngineNetwork) -> EngineNetwork:
    """The network with flows that count several times."""
    weights = [draw.choice([1, 1, 2, 3]) for _ in range(len(network.routes.values))]
    return replace(network, weights=np.array(weights, np.int32))


def any_direct(draw: Random, nodes: int) -> EngineNetwork:
    """A network in which each node has a link of its own to each other; routes are numbered as on :func:`switch`."""
    pairs = [(p, q) for p in range(nodes) for q in range(nodes)]
    links = [(p, q) for p, q in pairs if p != q]
    capacity, latency = alike_or_not(draw, CAPACITIES, len(links)), alike_or_not(draw, TICKS, len(pairs))
    routes = [[links.index((p, q))] if p != q else [] for p, q in pairs]
    return replace(wires(capacity, routes, latency), ends=np.array(links, np.int32))


def any_ring(draw: Random, nodes: int) -> EngineNetwork:
    """Nodes in a ring of links in one direction, many hops between most; routes are numbered as on :func:`switch`.

    Some links are so fast that they serve a message in less than a tick.
    """
    capacity = alike_or_not(draw, [*CAPACITIES[2:], 10**6 * GB_PER_S], nodes)
    routes = [[hop % nodes for hop in range(p, p + (q - p) % nodes)] for p in range(nodes) for q in range(nodes)]
    network = wires(capacity, routes, alike_or_not(draw, TICKS, nodes * nodes))
    return any_weights(draw, network) if draw.random() < 0.25 else network


def note(free: list[int], b: Builder) -> None:
    """Note the last row if it is on no stream and waits for free rows only."""
    if b.rows[-1].get("stream", -1) < 0 and set(b.rows[-1]["before"]) <= set(free):
        free.append(len(b.rows) - 1)


def any_graph(draw: Random, max_tasks: int = 14, on: OnNodes = any_switch) -> tuple[Graph, EngineNetwork]:
    """Any graph that can be played to its end: rows depend on rows before them only.

    Args:
        draw: where everything comes from.
        max_tasks: about as many tasks at most.
        on: networks of so many nodes, with routes numbered as on :func:`switch`.
    """
    nodes = draw.randint(2, 5)
    network = on(draw, nodes)
    b = Builder(tokens=[draw.randint(0, 2), draw.randint(0, 2)])
    spare = list(b.tokens)
    free: list[int] = []  # rows that wait for no token, not even by others: only these may a PUT wait for

    while len(b.rows) < max_tasks and draw.randint(0, 9):
        rows = range(len(b.rows))
        what = draw.choice(["compute", "some", "transfer", "transfer", "collective", "collective", "put", "take"])
        if what == "collective":
            places = draw.sample(range(nodes), draw.randint(1, nodes))
            pattern = any_pattern(draw, len(places))
            places_of_members = places[: pattern.members]
            waits = some(draw, rows, 3)
            b.collective(
                pattern,
                routes_of(pattern, places, nodes),
                delay=draw.choice(TICKS),
                streams=[4 + place for place in places_of_members] if draw.random() < 0.5 else (),
                before=[waits if draw.random() < 0.5 else [] for _ in places_of_members],
            )
        elif what == "transfer":
            pair, size = draw.randrange(nodes * nodes), draw.choice([0, 1, 500, 1000, 1000, 2500])
            b.transfer(pair, size, draw.randint(-1, 3), some(draw, rows, 3))
            note(free, b)
        elif what in ("put", "take"):
            counter = draw.randint(0, 1)
            if what == "put":
                spare[counter] += 1
                b.put(counter, before=some(draw, free, 3))
                note(free, b)
            elif spare[counter]:
                spare[counter] -= 1
                b.take(counter, draw.randint(-1, 3), some(draw, rows, 3))
        else:
            waits = some(draw, rows, 3)
            need = draw.randint(0, len(waits)) if what == "some" else 0
            b.compute(draw.choice(TICKS), draw.randint(-1, 3), waits, need)
            note(free, b)
    return b.graph(), network


def any_interruption(draw: Random, on: OnNodes = any_switch) -> tuple[Graph, EngineNetwork]:
    """Collectives on links of their own, into which at some tick a few transfers or another collective break."""
    nodes = draw.randint(2, 6)
    network = on(draw, nodes)
    b = Builder()
    for _ in range(draw.randint(1, 2)):
        places = draw.sample(range(nodes), draw.randint(2, nodes))
        n, size = len(places), draw.choice([0, 1, 1000, 1500])
        what = draw.choice(["ring", "chain", "rounds", "any", "in step"])
        if what == "ring":
            pattern = ring(n, size, draw.randint(1, 2 * n))
        elif what == "chain":
            pattern = chain(n, size, draw.randint(1, 5))
        elif what == "in step":
            pattern = any_edges_in_step(draw, n)
        else:
            pattern = rounds(n, size) if what == "rounds" else any_edges(draw, n, n)
        wait = b.compute(draw.randint(0, 6) * US // 2)
        b.collective(pattern, routes_of(pattern, places, nodes), delay=draw.choice(TICKS), before=[[wait]] * n)
    for _ in range(draw.randint(0, 3)):
        wait = b.compute(draw.randint(0, 24) * US // 2 + draw.randint(-1, 1) % 3)
        b.transfer(draw.randrange(nodes * nodes), draw.choice([1, 1000, 2500]), before=[wait])
    return b.graph(), network


def networks(nodes: int) -> st.SearchStrategy[EngineNetwork]:
    """See :func:`any_switch`."""
    return from_random(any_switch, nodes)


def graphs(max_tasks: int = 14, on: OnNodes = any_switch) -> st.SearchStrategy[tuple[Graph, EngineNetwork]]:
    """See :func:`any_graph`."""
    return from_random(any_graph, max_tasks, on)


def interrupted() -> st.SearchStrategy[tuple[Graph, EngineNetwork]]:
    """See :func:`any_interruption`."""
    return from_random(any_interruption)
