"""Graphs for tests: a small builder, and strategies that draw networks and graphs full of ties and contention."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from triosim.columns import Ragged
from triosim.engine.graph import CAPACITY_PER_BYTE, UNLIMITED, Collective, Graph, Send, Steps, Task, Wires
from triosim.engine.stepped import same_peer

GB_PER_S = 10**9 * CAPACITY_PER_BYTE
US = 10**6  # ticks; 1000 bytes at 1 GB/s take 1 us


class Builder:
    """Collects tasks row by row; every method returns the new row."""

    def __init__(self) -> None:
        self.rows: list[dict] = []
        self.collectives: list[Collective] = []

    def add(self, kind: Task, **columns: object) -> int:
        self.rows.append({"kind": int(kind), **columns})
        return len(self.rows) - 1

    def compute(self, duration: int, stream: int = -1, before: Sequence[int] = (), need: int = 0) -> int:
        return self.add(Task.COMPUTE, duration=duration, stream=stream, before=before, need=need)

    def join(self, before: Sequence[int] = (), need: int = 0) -> int:
        return self.add(Task.JOIN, before=before, need=need)

    def transfer(self, route: int, size: int, stream: int = -1, before: Sequence[int] = (), delay: int = 0) -> int:
        return self.add(Task.TRANSFER, route=route, bytes=size, stream=stream, before=before, delay=delay)

    def collective(
        self,
        steps: Steps,
        routes: object,
        delay: int = 0,
        streams: Sequence[int] = (),
        before: Sequence[Sequence[int]] = (),
    ) -> list[int]:
        """One task per member; ``routes`` in the shape that the rule asks for."""
        self.collectives.append(Collective(steps, np.array(routes, np.int32), delay))
        return [
            self.add(
                Task.COLLECTIVE,
                collective=len(self.collectives) - 1,
                member=member,
                stream=streams[member] if streams else -1,
                before=before[member] if before else (),
            )
            for member in range(steps.members)
        ]

    def graph(self) -> Graph:
        def column(name: str, dtype: type, default: int) -> np.ndarray:
            return np.array([row.get(name, default) for row in self.rows], dtype)

        stream = column("stream", np.int32, -1)
        return Graph(
            kind=column("kind", np.int8, 0),
            stream=stream,
            duration=column("duration", np.int64, 0),
            route=column("route", np.int32, -1),
            bytes=column("bytes", np.int64, 0),
            delay=column("delay", np.int64, 0),
            collective=column("collective", np.int32, -1),
            member=column("member", np.int32, 0),
            before=Ragged.of([list(row.get("before", ())) for row in self.rows], np.int32),
            need=column("need", np.int32, 0),
            streams=int(stream.max(initial=-1)) + 1,
            collectives=tuple(self.collectives),
        )


def wires(capacity: Sequence[int], routes: Sequence[Sequence[int]], latency: Sequence[int] | int = 0) -> Wires:
    """Wires from Python lists; capacities in the engine's unit."""
    latencies = [latency] * len(routes) if isinstance(latency, int) else list(latency)
    return Wires(np.array(capacity, np.int64), Ragged.of(routes, np.int32), np.array(latencies, np.int64))


def switch(nodes: int, capacity: Sequence[int] | int, latency: Sequence[int] | int = 0) -> Wires:
    """``nodes`` nodes on a switch: links 2p up and 2p + 1 down; see :func:`route` for the routes."""
    capacities = [capacity] * (2 * nodes) if isinstance(capacity, int) else capacity
    pairs = [(p, q) for p in range(nodes) for q in range(nodes)]
    return wires(capacities, [[2 * p, 2 * q + 1] if p != q else [] for p, q in pairs], latency)


def route(nodes: int, p: int, q: int) -> int:
    """The route from p to q on :func:`switch`."""
    return p * nodes + q


def routes_of(steps: Steps, places: Sequence[int], nodes: int) -> list[list[int]]:
    """Routes of a collective whose positions sit at these nodes of a switch."""
    rows = range(1 if same_peer(steps) else steps.steps)
    table = [[-1] * steps.members for _ in rows]
    for step in range(steps.steps):
        for position in range(steps.members):
            peer = steps.peer(position, step)
            if peer >= 0:
                table[step % len(table)][position] = route(nodes, places[position], places[peer])
    return table


@st.composite
def rules(draw: st.DrawFn, members: int) -> Steps:
    """Any rule for this many members."""
    send = draw(st.sampled_from([Send.SHIFT] * 3 + [Send.CHAIN, Send.TO_FIRST, Send.FROM_FIRST]))
    size = draw(st.sampled_from([0, 1, 1000, 1000, 1500, 3000]))
    if send == Send.SHIFT:
        stride = draw(st.sampled_from([0, 0, 1]))
        count = draw(st.integers(0, 2 * members))
        wait = draw(st.integers(0, 3)) > 0
        return Steps(members, count, size, send, draw(st.integers(0, members)), stride, wait=wait)
    if send == Send.CHAIN:
        active = draw(st.integers(0, 4))
        return Steps(members, max(members - 2 + active, 0) if active else 0, size, send, active=active)
    if send == Send.TO_FIRST:
        return Steps(members, 1, size, send)
    return Steps(members, members - 1, size, send, wait=draw(st.booleans()))


CAPACITIES = st.sampled_from([GB_PER_S, GB_PER_S, GB_PER_S, 2 * GB_PER_S, 3 * GB_PER_S + 7, UNLIMITED])
TICKS = st.sampled_from([0, 0, US, US, US // 2, 1, 777])


@st.composite
def networks(draw: st.DrawFn, nodes: int) -> Wires:
    """A switch whose links and latencies may all be alike or differ."""
    capacity = draw(st.one_of(CAPACITIES, st.lists(CAPACITIES, min_size=2 * nodes, max_size=2 * nodes)))
    latency = draw(st.one_of(TICKS, st.lists(TICKS, min_size=nodes * nodes, max_size=nodes * nodes)))
    return switch(nodes, capacity, latency)


@st.composite
def graphs(draw: st.DrawFn, max_tasks: int = 14) -> tuple[Graph, Wires]:
    """Any graph that can be played to its end: rows depend on rows before them only."""
    nodes = draw(st.integers(2, 5))
    network = draw(networks(nodes))
    b = Builder()
    streams = st.integers(-1, 3)

    def before() -> list[int]:
        return draw(st.lists(st.integers(0, len(b.rows) - 1), max_size=3, unique=True)) if b.rows else []

    while len(b.rows) < max_tasks and draw(st.integers(0, 9)):
        what = draw(st.sampled_from(["compute", "some", "transfer", "transfer", "collective", "collective"]))
        if what == "collective":
            places = draw(st.permutations(range(nodes)))[: draw(st.integers(1, nodes))]
            rule = draw(rules(len(places)))
            waits = before()
            b.collective(
                rule,
                routes_of(rule, places, nodes),
                delay=draw(TICKS),
                streams=[4 + place for place in places] if draw(st.booleans()) else (),
                before=[waits if draw(st.booleans()) else [] for _ in places],
            )
        elif what == "transfer":
            pair = draw(st.integers(0, nodes * nodes - 1))
            size = draw(st.sampled_from([0, 1, 500, 1000, 1000, 2500]))
            b.transfer(pair, size, draw(streams), before(), draw(TICKS))
        else:
            waits = before()
            need = draw(st.integers(0, len(waits))) if what == "some" else 0
            b.compute(draw(TICKS), draw(streams), waits, need)
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
        active = draw(st.integers(1, 5))
        rule = draw(
            st.sampled_from(
                [
                    Steps(n, 2 * (n - 1), size),
                    Steps(n, draw(st.integers(1, 9)), size, shift=draw(st.integers(1, n - 1))),
                    Steps(n, n - 1, size, shift=1, stride=1),
                    Steps(n, n - 2 + active, size, Send.CHAIN, active=active),
                ]
            )
        )
        wait = b.compute(draw(st.integers(0, 6)) * US // 2)
        b.collective(rule, routes_of(rule, places, nodes), delay=draw(TICKS), before=[[wait]] * n)
    for _ in range(draw(st.integers(0, 3))):
        wait = b.compute(draw(st.integers(0, 24)) * US // 2 + draw(st.integers(-1, 1)) % 3)
        b.transfer(draw(st.integers(0, nodes * nodes - 1)), draw(st.sampled_from([1, 1000, 2500])), before=[wait])
    return b.graph(), network
