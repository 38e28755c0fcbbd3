"""Store and forward, and every message by itself: by hand, and as laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triosim.core.columns import Ragged
from triosim.engine.graph import CAPACITY_PER_BYTE, EngineNetwork, Graph, GraphRun, Task
from triosim.engine.play import play
from triosim.engine.solvers.store_and_forward import StoreAndForward
from triosim.engine.solvers.uncontended import Uncontended

NS = 1000


def wires(rates: list[int], routes: list[list[int]], latency: list[int]) -> EngineNetwork:
    """Links of whole bytes per nanosecond."""
    capacity = np.array(rates, np.int64) * CAPACITY_PER_BYTE * 10**9
    return EngineNetwork(capacity, Ragged.of(routes, np.int32), np.array(latency, np.int64))


def send(net: EngineNetwork, messages: list[tuple[int, int, int]], model) -> GraphRun:
    """(start, bytes, route) of each message; each starts after a computation of its own."""
    n = len(messages)
    kind = np.repeat(np.array([Task.COMPUTE, Task.TRANSFER], np.int8), n)
    amount = np.array([start for start, _, _ in messages] + [size for _, size, _ in messages], np.int64)
    what = np.array([-1] * n + [route for _, _, route in messages], np.int32)
    before = Ragged.of([[]] * n + [[row] for row in range(n)], np.int32)
    graph = Graph(kind, np.full(2 * n, -1, np.int32), amount, what, np.zeros(2 * n, np.int32), before, 0)
    return play(graph, net, model)


def ends(net: EngineNetwork, messages: list[tuple[int, int, int]], model) -> list[int]:
    return send(net, messages, model).finish[len(messages) :].tolist()


def test_a_message_is_stored_at_each_hop() -> None:
    net = wires([1, 2], [[0, 1]], [2 * 100 * NS])
    assert ends(net, [(0, 600, 0)], StoreAndForward()) == [(100 + 600 + 100 + 300) * NS]
    assert ends(net, [(0, 600, 0)], Uncontended()) == [(200 + 600) * NS]


def test_a_latency_that_hops_do_not_divide_is_paid_whole() -> None:
    """777 over two hops was paid as 2 x 388."""
    net = wires([1000, 1000], [[0, 1]], [777])
    assert ends(net, [(0, 1, 0)], StoreAndForward()) == [777 + 2]


def test_a_link_serves_one_at_a_time_first_come_first_served() -> None:
    net = wires([1], [[0]], [50 * NS])
    messages = [(0, 100, 0), (10 * NS, 10, 0), (5 * NS, 1000, 0)]
    assert ends(net, messages, StoreAndForward()) == [150 * NS, 1160 * NS, 1150 * NS]
    assert ends(net, messages, Uncontended()) == [150 * NS, 70 * NS, 1055 * NS]


def test_at_the_second_hop_it_matters_who_comes_there_first() -> None:
    net = wires([1, 1, 1], [[0, 2], [1, 2]], [0, 0])
    assert ends(net, [(0, 300, 0), (100 * NS, 100, 1)], StoreAndForward()) == [600 * NS, 300 * NS]
    assert ends(net, [(0, 300, 0), (150 * NS, 200, 1)], StoreAndForward()) == [600 * NS, 800 * NS]


def test_equal_start_the_smaller_first() -> None:
    net = wires([1], [[0]], [0])
    assert ends(net, [(0, 300, 0), (0, 100, 0)], StoreAndForward()) == [400 * NS, 100 * NS]


def test_of_one_size_by_links_then_the_shorter_latency() -> None:
    net = wires([1, 1], [[0], [0, 1], [0]], [40 * NS, 0, 0])
    assert ends(net, [(0, 100, 0), (0, 100, 1), (0, 100, 2)], StoreAndForward()) == [240 * NS, 400 * NS, 100 * NS]


@pytest.mark.parametrize("clock", [1, NS])
def test_a_link_that_serves_in_less_than_a_tick_hands_on_at_once(clock: int) -> None:
    """Messages below 1000 bytes once stood still for ever on links of 1e15 B/s."""
    net = wires([10**6, 10**6, 1], [[0, 1], [0, 1, 2]], [0, 0])
    assert ends(net, [(2 * NS, 8, 0)], StoreAndForward(clock)) == [2 * NS + 1]
    assert ends(net, [(0, 300, 1), (0, 200, 1)], StoreAndForward(clock)) == [500 * NS, 200 * NS]


def test_times_are_rounded_down_to_the_clock() -> None:
    """ASTRA-sim: the link is busy floor(bytes / bandwidth), arrival is floor(latency + bytes / bandwidth)."""
    net = wires([3], [[0]], [NS // 2])
    assert ends(net, [(0, 100, 0), (0, 100, 0)], StoreAndForward(clock=NS)) == [33 * NS, 66 * NS]
    assert ends(net, [(0, 100, 0)], Uncontended(clock=NS)) == [33 * NS]
    assert ends(net, [(0, 100, 0)], StoreAndForward()) == [33_833]


def test_what_comes_within_a_period_goes_in_the_order_in_which_it_came() -> None:
    net = wires([1], [[0]], [0])
    assert ends(net, [(1, 100, 0), (0, 300, 0)], StoreAndForward(clock=NS)) == [400 * NS, 300 * NS]


@pytest.mark.parametrize("model", [StoreAndForward, Uncontended])
def test_nothing_ends_before_it_began(model) -> None:
    net = wires([1 << 20], [[0]], [0])
    assert ends(net, [(5, 1, 0)], model(clock=NS)) == [6]


messages = st.lists(
    st.tuples(st.integers(0, 50).map(lambda ns: ns * NS), st.integers(1, 200), st.integers(0, 3)),
    min_size=1,
    max_size=8,
)
NET = wires([1, 2, 1, 4], [[0], [0, 1], [1, 2, 3], [3, 0]], [0, 20 * NS, 30 * NS, 10 * NS])


@given(messages)
def test_no_message_is_faster_than_alone_and_no_link_carries_more_than_it_can(found: list) -> None:
    together = ends(NET, found, StoreAndForward())
    for message, end in zip(found, together, strict=True):
        assert end >= ends(NET, [message], StoreAndForward())[0]
    for link in range(4):
        over = [(start, size, end) for (start, size, route), end in zip(found, together, strict=True)
                if link in NET.routes[route]]  # fmt: skip
        if over:
            room = max(end for _, _, end in over) - min(start for start, _, _ in over)
            rate = int(NET.capacity[link]) // CAPACITY_PER_BYTE / 10**12
            assert sum(size for _, size, _ in over) <= room * rate * (1 + 1e-12) + 1e-6


@given(messages)
def test_a_message_that_comes_later_holds_up_none_before_it_on_one_link(found: list) -> None:
    one = wires([1], [[0]], [7 * NS])
    first = sorted((start, size, 0) for start, size, _ in found)
    last = first[-1][0] + NS
    assert ends(one, [*first, (last, 50, 0)], StoreAndForward())[:-1] == ends(one, first, StoreAndForward())


@given(messages)
def test_a_model_can_be_used_again(found: list) -> None:
    model = StoreAndForward()
    assert ends(NET, found, model) == ends(NET, found, model)
