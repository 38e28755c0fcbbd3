"""Graphs for tests: a small builder, and strategies that draw networks and graphs full of ties and contention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from triosim.collectives.pattern import chain, exchange, from_first, ring, rounds, to_first
from triosim.columns import Ragged
from triosim.engine.graph import ALL, CAPACITY_PER_BYTE, UNLIMITED, Collective, Graph, Pattern, Task, Wires

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
) -> Wires:
    """Wires from Python lists; capacities in the engine's unit."""
    latencies = [latency] * len(routes) if isinstance(latency, int) else list(latency)
    return Wires(
        np.array(capacity, np.int64),
        Ragged.of(routes, np.int32),
        np.array(latencies, np.int64),
        None if weights is None else Ragged.of(weights, np.int32).values,
    )


def switch(nodes: int, capacity: Sequence[int] | int, latency: Sequence[int] | int = 0) -> Wires:
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


SIZES = st.sampled_from([0, 1, 1000, 1000, 1500, 3000])


@st.composite
def any_edges(draw: st.DrawFn, members: int, places: int) -> Pattern:
    """Edges that wait for each other anyhow, but not in a circle."""
    ends = draw(st.lists(st.tuples(*[st.integers(0, places - 1)] * 2), max_size=5))
    back = draw(st.booleans())  # whether lags look back at edges of any number; then none waits for all of another
    needs: list[list[tuple[int, int]]] = []
    for edge in range(len(ends)):
        lower = [(f, lag) for f in range(edge) for lag in ((0, 1) if back else (0, 1, ALL))]
        any_lag = [(f, lag) for f in range(len(ends)) for lag in (1, 2)] if back else []
        needs.append(draw(st.lists(st.sampled_from(lower + any_lag), max_size=3)) if lower + any_lag else [])
    columns = st.lists(SIZES, min_size=len(ends), max_size=len(ends))
    counts = st.lists(st.integers(1, 4), min_size=len(ends), max_size=len(ends))
    pauses = st.lists(st.sampled_from([0, 0, 0, US // 2, 3]), min_size=len(ends), max_size=len(ends))
    return edges(members, ends, draw(columns), draw(counts), needs, draw(pauses), places)


@st.composite
def patterns(draw: st.DrawFn, members: int) -> Pattern:
    """Any pattern for this many members, all places being members."""
    size = draw(SIZES)
    what = draw(st.sampled_from(["ring", "ring", "chain", "star", "exchange", "any", "any"]))
    if what == "ring":
        return ring(members, size, draw(st.integers(0, 2 * members)))
    if what == "chain":
        return chain(members, size, draw(st.integers(0, 4)))
    if what == "star":
        return draw(st.sampled_from([to_first, from_first]))(members, size)
    if what == "exchange":
        return draw(st.sampled_from([exchange, rounds]))(members, size)
    return draw(any_edges(draw(st.integers(1, members)), members))


CAPACITIES = st.sampled_from([GB_PER_S, GB_PER_S, GB_PER_S, 2 * GB_PER_S, 3 * GB_PER_S + 7, UNLIMITED])
TICKS = st.sampled_from([0, 0, US, US, US // 2, 1, 777])


@st.composite
def networks(draw: st.DrawFn, nodes: int) -> Wires:
    """A switch whose links and latencies may all be alike or differ, and on which flows may count several times."""
    capacity = draw(st.one_of(CAPACITIES, st.lists(CAPACITIES, min_size=2 * nodes, max_size=2 * nodes)))
    latency = draw(st.one_of(TICKS, st.lists(TICKS, min_size=nodes * nodes, max_size=nodes * nodes)))
    network = switch(nodes, capacity, latency)
    return draw(weighted(network)) if not draw(st.integers(0, 3)) else network


@st.composite
def weighted(draw: st.DrawFn, network: Wires) -> Wires:
    """The network with flows that count several times."""
    total = len(network.routes.values)
    weights = draw(st.lists(st.sampled_from([1, 1, 2, 3]), min_size=total, max_size=total))
    return replace(network, weights=np.array(weights, np.int32))


@st.composite
def direct(draw: st.DrawFn, nodes: int) -> Wires:
    """A network in which each node has a link of its own to each other; routes are numbered as on :func:`switch`."""
    pairs = [(p, q) for p in range(nodes) for q in range(nodes)]
    links = [(p, q) for p, q in pairs if p != q]
    capacity = draw(st.one_of(CAPACITIES, st.lists(CAPACITIES, min_size=len(links), max_size=len(links))))
    latency = draw(st.one_of(TICKS, st.lists(TICKS, min_size=len(pairs), max_size=len(pairs))))
    routes = [[links.index((p, q))] if p != q else [] for p, q in pairs]
    capacities = [capacity] * len(links) if isinstance(capacity, int) else capacity
    return replace(wires(capacities, routes, latency), ends=np.array(links, np.int32))


def note(free: list[int], b: Builder) -> None:
    """Note the last row if it is on no stream and waits for free rows only."""
    if b.rows[-1].get("stream", -1) < 0 and set(b.rows[-1]["before"]) <= set(free):
        free.append(len(b.rows) - 1)


@st.composite
def graphs(
    draw: st.DrawFn, max_tasks: int = 14, on: Callable[[int], st.SearchStrategy[Wires]] = networks
) -> tuple[Graph, Wires]:
    """Any graph that can be played to its end: rows depend on rows before them only.

    Args:
        max_tasks: about as many tasks at most.
        on: networks of so many nodes, with routes numbered as on :func:`switch`.
    """
    nodes = draw(st.integers(2, 5))
    network = draw(on(nodes))
    b = Builder(tokens=draw(st.lists(st.integers(0, 2), min_size=2, max_size=2)))
    spare = list(b.tokens)
    free: list[int] = []  # rows that wait for no token, not even by others: only these may a PUT wait for
    streams = st.integers(-1, 3)

    def before(rows: Sequence[int] | None = None) -> list[int]:
        rows = range(len(b.rows)) if rows is None else rows
        return draw(st.lists(st.sampled_from(rows), max_size=3, unique=True)) if rows else []

    while len(b.rows) < max_tasks and draw(st.integers(0, 9)):
        kinds = ["compute", "some", "transfer", "transfer", "collective", "collective", "put", "take"]
        what = draw(st.sampled_from(kinds))
        if what == "collective":
            places = draw(st.permutations(range(nodes)))[: draw(st.integers(1, nodes))]
            pattern = draw(patterns(len(places)))
            places_of_members = places[: pattern.members]
            waits = before()
            b.collective(
                pattern,
                routes_of(pattern, places, nodes),
                delay=draw(TICKS),
                streams=[4 + place for place in places_of_members] if draw(st.booleans()) else (),
                before=[waits if draw(st.booleans()) else [] for _ in places_of_members],
            )
        elif what == "transfer":
            pair = draw(st.integers(0, nodes * nodes - 1))
            size = draw(st.sampled_from([0, 1, 500, 1000, 1000, 2500]))
            b.transfer(pair, size, draw(streams), before())
            note(free, b)
        elif what in ("put", "take"):
            counter = draw(st.integers(0, 1))
            if what == "put":
                spare[counter] += 1
                b.put(counter, before=before(free))
                note(free, b)
            elif spare[counter]:
                spare[counter] -= 1
                b.take(counter, draw(streams), before())
        else:
            waits = before()
            need = draw(st.integers(0, len(waits))) if what == "some" else 0
            b.compute(draw(TICKS), draw(streams), waits, need)
            note(free, b)
    return b.graph(), network


@st.composite
def interrupted(draw: st.DrawFn) -> tuple[Graph, Wires]:
    """Collectives on links of their own, into which at some tick a few transfers or another collective break."""
    nodes = draw(st.integers(2, 6))
    network = draw(networks(nodes))
    b = Builder()
    for _ in range(draw(st.integers(1, 2))):
        places = draw(st.permutations(range(nodes)))[: draw(st.integers(2, nodes))]
        n, size = len(places), draw(st.sampled_from([0, 1, 1000, 1500]))
        pattern = draw(
            st.one_of(
                st.builds(ring, st.just(n), st.just(size), st.integers(1, 2 * n)),
                st.builds(chain, st.just(n), st.just(size), st.integers(1, 5)),
                st.just(rounds(n, size)),
                any_edges(n, n),
            )
        )
        wait = b.compute(draw(st.integers(0, 6)) * US // 2)
        b.collective(pattern, routes_of(pattern, places, nodes), delay=draw(TICKS), before=[[wait]] * n)
    for _ in range(draw(st.integers(0, 3))):
        wait = b.compute(draw(st.integers(0, 24)) * US // 2 + draw(st.integers(-1, 1)) % 3)
        b.transfer(draw(st.integers(0, nodes * nodes - 1)), draw(st.sampled_from([1, 1000, 2500])), before=[wait])
    return b.graph(), network
