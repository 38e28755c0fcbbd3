"""What only the reference engine offers: the closed form of lone collectives, and sight of the rates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.engine.graphs import GB_PER_S, US, Builder, graphs, interrupted, routes_of, switch, wires
from triosim.engine import reference
from triosim.engine.graph import UNLIMITED, Graph, Send, Steps, Stuck, Wires
from triosim.engine.reference import WORK_PER_BYTE, Flow, play
from triosim.engine.solver import Solver
from triosim.engine.stepped import sent


@settings(max_examples=300, deadline=None)
@given(drawn=st.one_of(graphs(max_tasks=25), interrupted()))
def test_closed_form_and_flow_by_flow_are_equal_to_the_tick(drawn: tuple[Graph, Wires]) -> None:
    closed, by_flow = play(*drawn), play(*drawn, _closed_form=False)
    assert closed.start.tolist() == by_flow.start.tolist()
    assert closed.begin.tolist() == by_flow.begin.tolist()
    assert closed.finish.tolist() == by_flow.finish.tolist()
    assert closed.link_bytes.tolist() == by_flow.link_bytes.tolist()
    assert closed.flows == by_flow.flows


def chain_and_a_flow_that_comes_as_its_first_member_ends() -> tuple[Graph, Wires]:
    b = Builder()
    rule = Steps(3, 3, 1000, Send.CHAIN, active=2)
    later = b.compute(2 * US)
    b.collective(rule, routes_of(rule, range(3), 3))
    b.transfer(1, 1000, before=[later])
    return b.graph(), switch(3, GB_PER_S)


@settings(max_examples=150, deadline=None)
@given(drawn=st.one_of(graphs(), interrupted()), order=st.permutations(range(7)))
@example(drawn=chain_and_a_flow_that_comes_as_its_first_member_ends(), order=[6, 5, 4, 3, 2, 1, 0])
def test_the_order_of_what_happens_at_one_tick_does_not_matter(drawn: tuple[Graph, Wires], order: list[int]) -> None:
    played = play(*drawn)
    with pytest.MonkeyPatch.context() as patch:
        for name, place in zip(("_DUE", "_END", "_COUNT", "_JOIN", "_STEP", "_BEGIN", "_WAKE"), order, strict=True):
            patch.setattr(reference, name, place)
        other = play(*drawn)
    assert other.start.tolist() == played.start.tolist()
    assert other.begin.tolist() == played.begin.tolist()
    assert other.finish.tolist() == played.finish.tolist()


@pytest.mark.parametrize(
    "rule",
    [
        Steps(4, 6, 1000),
        Steps(4, 6, 1000, shift=3),
        Steps(4, 3, 1000, shift=1, stride=1),
        Steps(4, 2 + 5, 1000, Send.CHAIN, active=5),
    ],
)
def test_a_collective_alone_is_never_played(rule: Steps) -> None:
    b = Builder()
    b.collective(rule, routes_of(rule, range(4), 4))
    assert play(b.graph(), switch(4, GB_PER_S, 9)).events == 0
    assert play(b.graph(), switch(4, GB_PER_S, 9), _closed_form=False).events > 0


def test_a_ring_is_played_only_after_a_flow_came_onto_its_links() -> None:
    b = Builder()
    rule = Steps(4, 6, 1000)
    b.collective(rule, routes_of(rule, range(4), 5))
    b.transfer(1 * 5 + 4, 10, before=[b.compute(5 * US + 5)])
    # The flow joins in the last step and ends in it: one event for the join, one for its end, and one for the ends of
    # the transfers that it did not delay, one for that which it did.
    assert play(b.graph(), switch(5, GB_PER_S)).events == 4


# --------------------------------------------------------------------------------- sight of the rates


class Watch:
    """Adds up what every flow was served, and holds links to their capacity at every instant."""

    def __init__(self, network: Wires) -> None:
        self.capacity = network.capacity.tolist()
        self.served: dict[int, int] = defaultdict(int)
        self.flows: dict[int, Flow] = {}
        self.rates: dict[int, int] = {}
        self.since = 0

    def __call__(self, now: int, flows: Mapping[int, Flow]) -> None:
        assert now > self.since or not self.flows
        for number, rate in self.rates.items():
            self.served[number] += rate * (now - self.since)
        self.since, self.rates = now, {number: flow.rate for number, flow in flows.items()}
        load: dict[int, int] = defaultdict(int)
        for number, flow in flows.items():
            self.flows[number] = flow
            assert flow.rate > 0
            for link in flow.links:
                load[link] += flow.rate
        assert all(load[link] <= self.capacity[link] for link in load)


@settings(max_examples=150, deadline=None)
@given(drawn=graphs())
def test_no_link_is_above_its_capacity_and_every_byte_is_served(drawn: tuple[Graph, Wires]) -> None:
    graph, network = drawn
    watch = Watch(network)
    played = play(graph, network, observer=watch, _closed_form=False)
    carried = [0] * len(network.capacity)
    for number, flow in watch.flows.items():
        size = int(graph.bytes[flow.task]) if flow.step is None else graph.collectives[flow.step[0]].steps.bytes
        # The last tick may offer more than was left, but by less than that tick.
        assert 0 <= watch.served[number] - size * WORK_PER_BYTE < flow.rate
        for link in flow.links:
            carried[link] += size
    limited = [link for link, capacity in enumerate(watch.capacity) if capacity != UNLIMITED]
    assert [carried[link] for link in limited] == [played.link_bytes[link] for link in limited]


# ---------------------------------------------------------------------------- a solver of one's own


class EqualSplit(Solver):
    """Every flow gets an equal part of each of its links; what it leaves is lost."""

    def start(self, capacity: Sequence[int]) -> None:
        self.capacity = capacity
        self.links: dict[int, Sequence[int]] = {}

    def share(self, now: int, joined: Mapping[int, Sequence[int]], left: Collection[int]) -> Mapping[int, int]:
        self.links.update(joined)
        for flow in left:
            del self.links[flow]
        on: dict[int, int] = defaultdict(int)
        for links in self.links.values():
            for link in links:
                on[link] += 1
        return {flow: min(self.capacity[k] // on[k] for k in links) for flow, links in self.links.items()}


class SetUp(Solver):
    """Every flow has its links to itself, but each new one takes 5 us to set up."""

    alone_at_capacity = False

    def start(self, capacity: Sequence[int]) -> None:
        self.capacity = capacity
        self.waiting: dict[int, tuple[int, Sequence[int]]] = {}

    def share(self, now: int, joined: Mapping[int, Sequence[int]], left: Collection[int]) -> Mapping[int, int]:
        self.waiting.update({flow: (now + 5 * US, links) for flow, links in joined.items()})
        up = {flow: links for flow, (tick, links) in self.waiting.items() if tick <= now}
        for flow in up:
            del self.waiting[flow]
        self.wake = min([tick for tick, _ in self.waiting.values()], default=None)
        rates = {flow: min(self.capacity[link] for link in links) for flow, links in up.items()}
        return {**dict.fromkeys(joined, 0), **rates}


def test_a_solver_may_waste_bandwidth() -> None:
    b = Builder()
    b.transfer(0, 1000)
    b.transfer(1, 3000)
    network = wires([GB_PER_S, 4 * GB_PER_S], [[0, 1], [1]])
    # Half of link 1 each, until the first has ended at 1 us: 2000 bytes in 1 us, then 1000 at 4 GB/s.
    assert play(b.graph(), network, EqualSplit()).finish.tolist() == [US, US + US // 4]


def test_a_solver_may_hold_flows_back_and_ask_to_be_woken() -> None:
    b = Builder()
    later = b.compute(US)
    b.transfer(0, 1000)
    b.transfer(0, 1000, before=[later])
    assert play(b.graph(), wires([GB_PER_S], [[0]]), SetUp()).finish.tolist() == [US, 6 * US, 7 * US]


def test_a_solver_that_does_not_give_lone_flows_their_links_is_asked_about_collectives() -> None:
    b = Builder()
    rule = Steps(3, 4, 1000)
    b.collective(rule, routes_of(rule, range(3), 3))
    assert play(b.graph(), switch(3, GB_PER_S), SetUp()).finish.tolist() == [4 * 6 * US] * 3


class Refuses(EqualSplit):
    def __init__(self, rate: object) -> None:
        self.rate = rate

    def share(self, now: int, joined: Mapping[int, Sequence[int]], left: Collection[int]) -> Mapping[int, int]:
        return dict.fromkeys(joined, self.rate)


def test_flows_that_are_never_served_are_stuck() -> None:
    b = Builder()
    b.transfer(0, 1000)
    with pytest.raises(Stuck, match=r"task 0 \(TRANSFER\) has begun and is never served"):
        play(b.graph(), wires([GB_PER_S], [[0]]), Refuses(0))


@pytest.mark.parametrize(("rate", "error"), [(-1, ValueError), (0.5, TypeError)])
def test_rates_that_are_no_rates_are_refused(rate: float, error: type[Exception]) -> None:
    b = Builder()
    b.transfer(0, 1000)
    with pytest.raises(error):
        play(b.graph(), wires([GB_PER_S], [[0]]), Refuses(rate))


# --------------------------------------------------------------------------------------- the rule


@given(
    rule=st.builds(
        Steps,
        members=st.integers(1, 6),
        steps=st.integers(0, 8),
        bytes=st.just(1),
        send=st.sampled_from(Send),
        shift=st.integers(-2, 7),
        stride=st.integers(-1, 6),
        active=st.integers(0, 5),
    )
)
def test_sent_counts_what_peer_says(rule: Steps) -> None:
    table = sent(rule)
    counted = [[0] * rule.members for _ in table]
    for step in range(rule.steps):
        for position in range(rule.members):
            counted[step % len(table)][position] += rule.peer(position, step) >= 0
    assert table.tolist() == counted
