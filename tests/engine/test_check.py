"""What is refused before it is played, and what is known without playing it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.engine.graphs import GB_PER_S, Builder, routes_of, switch, wires
from triosim.columns import Ragged
from triosim.engine.check import carried, check
from triosim.engine.graph import Graph, Send, Steps, Wires


def two_tasks() -> tuple[Graph, Wires]:
    b = Builder()
    b.compute(1, stream=0)
    b.transfer(0, 8, before=[0])
    return b.graph(), wires([GB_PER_S], [[0]])


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("kind", [0, 9], "task 1: kind is not known"),
        ("stream", [0, 1], "task 1: stream does not exist"),
        ("duration", [-1, 0], "task 0: duration is negative"),
        ("delay", [0, -1], "task 1: delay is negative"),
        ("bytes", [0, -1], "task 1: bytes are negative"),
        ("route", [-1, 1], "task 1: route does not exist"),
        ("need", [0, 2], "task 1: need is negative, or more than there are predecessors"),
        ("before", Ragged.of([[], [2]], np.int32), "task 1: predecessor does not exist"),
        ("stream", [0], "graph.stream has 1 rows, graph.kind has 2"),
    ],
)
def test_a_graph_that_makes_no_sense_is_refused(column: str, values: object, message: str) -> None:
    graph, network = two_tasks()
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
    ],
)
def test_wires_that_make_no_sense_are_refused(network: Wires, message: str) -> None:
    graph, _ = two_tasks()
    with pytest.raises(ValueError, match=message):
        check(graph, network)


RING = Steps(3, 4, 10)


@pytest.mark.parametrize(
    ("rule", "routes", "message"),
    [
        (RING, [[1, 5]], "collective 0: routes have shape"),
        (RING, [[1, 5, 9]], "collective 0: routes must exist where a position sends"),
        (RING, [[1, 5, -1]], "collective 0: routes must exist where a position sends"),
        (Steps(3, 1, 10, Send.TO_FIRST), [[1, 3, 6]], "be -1 where it does not"),
        (Steps(3, 2, 10, stride=1), [[1, 5, 6]], "collective 0: routes have shape"),
        (Steps(3, 4, -1), [[1, 5, 6]], "collective 0: members must be 1 or more"),
    ],
)
def test_collectives_that_make_no_sense_are_refused(rule: Steps, routes: object, message: str) -> None:
    b = Builder()
    b.collective(rule, routes)
    with pytest.raises(ValueError, match=message):
        check(b.graph(), switch(3, GB_PER_S))


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("collective", [0, 0, 1], "task 2: collective does not exist"),
        ("member", [0, 3, 1], "task 1: member does not exist"),
        ("member", [0, 1, 1], "two tasks are the same member"),
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
    exchange = Steps(3, 2, 100, stride=1)
    b.collective(exchange, routes_of(exchange, range(3), 3))
    link_bytes, flows = carried(b.graph(), switch(3, GB_PER_S))
    assert link_bytes.tolist() == [247, 240, 240, 247, 240, 240]
    assert flows == 1 + 12 + 6


def test_carried_does_not_round() -> None:
    b = Builder()
    for _ in range(3):
        b.transfer(0, 2**60 + 1)
    assert carried(b.graph(), wires([GB_PER_S], [[0]]))[0][0] == 3 * (2**60 + 1)
