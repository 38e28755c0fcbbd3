"""What is refused before it is played, and what is known without playing it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.engine.graphs import GB_PER_S, Builder, edges, routes_of, switch, wires
from triosim.collectives.pattern import ring, rounds
from triosim.core.columns import Ragged
from triosim.engine.check import check, link_loads
from triosim.engine.graph import ALL, EngineNetwork, Graph, Pattern


def two_tasks() -> tuple[Graph, EngineNetwork]:
    b = Builder()
    b.compute(1, stream=0)
    b.transfer(0, 8, before=[0])
    return b.graph(), wires([GB_PER_S], [[0]])


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("kind", [0, 9], "task 1: kind is not known"),
        ("stream", [0, 1], "task 1: stream does not exist"),
        ("amount", [-1, 0], "task 0: amount is negative"),
        ("what", [-1, 1], "task 1: route does not exist"),
        ("what", [-1, -1], "task 1: route does not exist"),
        ("kind", [0, 4], "task 1: counter does not exist"),
        ("kind", [5, 1], "task 0: counter does not exist"),
        ("kind", [0, 2], "task 1: collective does not exist"),
        ("tokens", [3, -1], "counter 1: tokens are negative"),
        ("need", [0, 2], "task 1: need is negative, or more than there are predecessors"),
        ("before", Ragged.of([[], [2]], np.int32), "task 1: predecessor does not exist"),
        ("stream", [0], "graph.stream has 1 rows, graph.kind has 2"),
    ],
)
def test_a_graph_that_makes_no_sense_is_refused(column: str, values: object, message: str) -> None:
    graph, network = two_tasks()
    graph = replace(graph, need=np.zeros(2, np.int32))
    check(graph, network)
    if isinstance(values, list):
        values = np.array(values, getattr(graph, column).dtype)
    with pytest.raises(ValueError, match=message):
        check(replace(graph, **{column: values}), network)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (wires([0], [[0]]), "link 0: capacity is neither above zero nor UNLIMITED"),
        (wires([GB_PER_S], [[0]], -1), "route 0: latency is negative"),
        (wires([GB_PER_S], [[0], [1]]), "route 1: link does not exist"),
        (wires([GB_PER_S] * 2, [[1], [0, 1, 0]]), "route 1: link is crossed twice"),
        (wires([GB_PER_S], [[0]], [0, 0]), "wires.latency has 2 rows, wires.routes has 1"),
        (wires([GB_PER_S], [[0]], 0, [[1, 1]]), "wires.weights has 2 rows, wires.routes.values has 1"),
        (wires([GB_PER_S] * 2, [[0], [0, 1]], 0, [[1], [1, 0]]), "route 1: weight is below 1"),
        (replace(wires([GB_PER_S], [[0]]), ends=np.zeros((2, 2), np.int32)), "wires.ends has shape"),
    ],
)
def test_wires_that_make_no_sense_are_refused(network: EngineNetwork, message: str) -> None:
    graph, _ = two_tasks()
    with pytest.raises(ValueError, match=message):
        check(graph, network)


RING = ring(3, 10, 4)
TWO = [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("pattern", "route", "delay", "message"),
    [
        (RING, [1, 5], 0, "collective 0: route has 2 rows, its pattern has 3 edges"),
        (RING, [1, 5, 9], 0, "collective 0: edge 2: route does not exist"),
        (RING, [1, -1, 6], 0, "collective 0: edge 1: route does not exist"),
        (RING, [1, 5, 6], -1, "collective 0: delay is negative"),
        (edges(0, [], 1), [], 0, "collective 0: members must be 1 or more"),
        (edges(3, TWO, 1, places=2), [1, 5], 0, "places no fewer"),
        (edges(3, [(0, 1), (3, 2)], 1), [1, 5], 0, "collective 0: edge 1: position does not exist"),
        (edges(3, [(0, -1), (1, 2)], 1), [1, 5], 0, "collective 0: edge 0: position does not exist"),
        (edges(3, TWO, [1, -1]), [1, 5], 0, "collective 0: edge 1: bytes are negative"),
        (edges(3, TWO, 1, [0, 1]), [1, 5], 0, "collective 0: edge 0: count is below 1"),
        (edges(3, TWO, 1, pause=[0, -1]), [1, 5], 0, "collective 0: edge 1: pause is negative"),
        (edges(3, TWO, 1, needs=[[], [(2, 0)]]), [1, 5], 0, "collective 0: edge 1: needs an edge that does not exist"),
        (edges(3, TWO, 1, needs=[[(1, ALL - 1)], []]), [1, 5], 0, "collective 0: edge 0: lag is neither 0 or more nor"),
        (replace(RING, lag=RING.lag[:2]), [1, 5, 6], 0, "collective 0: lag has 2 rows, needs.values has 3"),
        (replace(RING, bytes=RING.bytes[:2]), [1, 5, 6], 0, "collective 0: bytes has 2 rows, source has 3"),
    ],
)
def test_collectives_that_make_no_sense_are_refused(
    pattern: Pattern, route: list[int], delay: int, message: str
) -> None:
    b = Builder()
    b.collective(pattern, route, delay)
    with pytest.raises(ValueError, match=message):
        check(b.graph(), switch(3, GB_PER_S))


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("what", [0, 0, 1], "task 2: collective does not exist"),
        ("member", [0, 3, 1], "task 1: member does not exist"),
        ("member", [0, 1, 1], "two tasks are the same member"),
        ("instances", [1], "graph.instances names a collective that does not exist"),
    ],
)
def test_members_that_make_no_sense_are_refused(column: str, values: list[int], message: str) -> None:
    b = Builder()
    b.collective(RING, routes_of(RING, range(3), 3))
    graph, network = b.graph(), switch(3, GB_PER_S)
    check(graph, network)
    with pytest.raises(ValueError, match=message):
        check(replace(graph, **{column: np.array(values, np.int32)}), network)


def test_carried_adds_transfers_and_collectives() -> None:
    b = Builder()
    b.transfer(1, 7)
    b.collective(RING, routes_of(RING, range(3), 3))
    exchange = rounds(3, 100)
    b.collective(exchange, routes_of(exchange, range(3), 3))
    link_bytes, flows = link_loads(b.graph(), switch(3, GB_PER_S))
    assert link_bytes.tolist() == [247, 240, 240, 247, 240, 240]
    assert flows == 1 + 12 + 6


def test_carried_counts_every_run_and_every_weight() -> None:
    b = Builder()
    b.collective(RING, range(3))
    b.again(0)
    b.instances.append(0)  # of which no task is in the graph, so that it is never run
    link_bytes, flows = link_loads(b.graph(), wires([GB_PER_S] * 3, [[0, 1], [1], [2]], 0, [[1, 5], [1], [3]]))
    assert link_bytes.tolist() == [80, 480, 240]
    assert flows == 24


def test_carried_does_not_round() -> None:
    b = Builder()
    for _ in range(3):
        b.transfer(0, 2**60 + 1)
    assert link_loads(b.graph(), wires([GB_PER_S], [[0]]))[0][0] == 3 * (2**60 + 1)
