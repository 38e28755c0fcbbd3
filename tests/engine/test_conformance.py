"""What every network model must do: all that are registered, by themselves and on every engine."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.compare import MODELS, OVERLOADS, on
from tests.engine.conftest import Player
from tests.engine.driver import Sent, drive, flow, narrowest
from tests.engine.graphs import (
    CAPACITIES,
    GB_PER_S,
    TICKS,
    US,
    Builder,
    any_weights,
    edges,
    from_random,
    graphs,
    interrupted,
    routes_of,
    switch,
    wires,
)
from tests.exploring import examples
from triosim.core.columns import Ragged
from triosim.engine import reference
from triosim.engine.graph import UNLIMITED, EngineNetwork
from triosim.engine.join import join
from triosim.engine.solver import WORK_PER_BYTE, Flow, Sharing

SHARING = [name for name, model in MODELS.items() if issubclass(model, Sharing)]
AT_CAPACITY = [name for name, model in MODELS.items() if model.alone_at_capacity]
WEIGHTED = [name for name, model in MODELS.items() if model.weighted]


@st.composite
def traffic(draw: st.DrawFn, name: str) -> tuple[EngineNetwork, list[Sent]]:
    """A network whose links all limit, and what is sent over it, with many ties."""
    nodes = draw(st.integers(2, 4))
    network = draw(from_random(on(name), nodes))
    limits = st.sampled_from([capacity for capacity in CAPACITIES if capacity != UNLIMITED])
    capacity = np.where(network.capacity == UNLIMITED, draw(limits), network.capacity)
    pairs = [p * nodes + q for p in range(nodes) for q in range(nodes) if p != q]
    sent = st.builds(Sent, st.sampled_from(TICKS), st.sampled_from(pairs), st.sampled_from([1, 500, 1000, 1000, 2500]))
    return replace(network, capacity=capacity), draw(st.lists(sent, min_size=1, max_size=8))


def flows(network: EngineNetwork, sent: Sequence[Sent]) -> list[Flow]:
    return [flow(network, number, one) for number, one in enumerate(sent)]


# ---------------------------------------------------------------------------------- by themselves


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=examples(60))
@given(data=st.data())
def test_every_flow_ends_and_none_is_faster_than_its_narrowest_link(name: str, data: st.DataObject) -> None:
    network, sent = data.draw(traffic(name))
    model = MODELS[name]()
    for one, each, end in zip(sent, flows(network, sent), drive(model, network, sent), strict=True):
        served = end - one.tick - (each.latency if model.pays_latency else 0)
        assert (served + 1) * narrowest(network, each) > each.work  # models may count in whole ticks rounded down
        assert end > one.tick


def overloaded(network: EngineNetwork, sent: Sequence[Sent], ends: Sequence[int]) -> bool:
    """Whether a link carried more between two ticks than it can, rounding each flow by a tick."""
    for link, capacity in enumerate(network.capacity.tolist()):
        on_it = [
            (one.tick, end, each.work * each.weights[each.links.index(link)])
            for one, end, each in zip(sent, ends, flows(network, sent), strict=True)
            if link in each.links
        ]
        for since in {first for first, _, _ in on_it}:
            for until in {last for _, last, _ in on_it}:
                within = [work for first, last, work in on_it if first >= since and last <= until]
                if within and sum(within) > capacity * (until - since + len(within)):
                    return True
    return False


@pytest.mark.parametrize("name", [name for name in MODELS if name not in OVERLOADS])
@settings(max_examples=examples(60))
@given(data=st.data())
def test_no_link_carries_more_than_it_can(name: str, data: st.DataObject) -> None:
    network, sent = data.draw(traffic(name))
    assert not overloaded(network, sent, drive(MODELS[name](), network, sent))


@pytest.mark.parametrize("name", sorted(OVERLOADS))
def test_models_that_overload_links_do(name: str) -> None:
    network = EngineNetwork(np.array([1024 * 10**9]), Ragged.of([[0]], np.int32), np.zeros(1, np.int64))
    sent = [Sent(0, 0, 1000)] * 3
    assert overloaded(network, sent, drive(MODELS[name](), network, sent))


@pytest.mark.parametrize("name", AT_CAPACITY)
@settings(max_examples=examples(60))
@given(data=st.data())
def test_a_flow_alone_has_its_narrowest_link(name: str, data: st.DataObject) -> None:
    network, sent = data.draw(traffic(name))
    alone = flow(network, 0, sent[0])
    end = sent[0].tick - (-alone.work // narrowest(network, alone))
    assert drive(MODELS[name](), network, sent[:1]) == [end]


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=examples(60))
@given(data=st.data())
def test_numbers_and_the_order_of_listing_do_not_matter(name: str, data: st.DataObject) -> None:
    """Of flows that are alike in everything, it does not matter which one is called the first."""
    network, sent = data.draw(traffic(name))
    numbers = data.draw(st.permutations(range(len(sent))))
    ends = drive(MODELS[name](), network, sent)
    other = drive(MODELS[name](), network, sent, numbers, backward=data.draw(st.booleans()))
    assert Counter(zip(sent, other, strict=True)) == Counter(zip(sent, ends, strict=True))


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=examples(30))
@given(data=st.data(), later=st.integers(1, 3 * US))
def test_everything_later_ends_later_by_as_much(name: str, data: st.DataObject, later: int) -> None:
    network, sent = data.draw(traffic(name))
    shifted = [one._replace(tick=one.tick + later) for one in sent]
    ends = drive(MODELS[name](), network, sent)
    assert drive(MODELS[name](), network, shifted) == [end + later for end in ends]


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=examples(30))
@given(data=st.data())
def test_a_model_that_is_started_again_has_forgotten_everything(name: str, data: st.DataObject) -> None:
    (network, sent), (other, before) = data.draw(traffic(name)), data.draw(traffic(name))
    model = MODELS[name]()
    drive(model, other, before)
    assert drive(model, network, sent) == drive(MODELS[name](), network, sent)


@pytest.mark.parametrize("name", WEIGHTED)
@settings(max_examples=examples(60))
@given(data=st.data(), times=st.integers(2, 4))
def test_a_weight_is_as_many_flows(name: str, data: st.DataObject, times: int) -> None:
    network, sent = data.draw(traffic(name))
    network = replace(network, weights=None)
    many = drive(MODELS[name](), network, list(sent) * times)
    folded = replace(network, weights=np.full(len(network.routes.values), times, np.int32))
    assert drive(MODELS[name](), folded, sent) * times == many


# --------------------------------------------------------------------------------- on every engine


def test_of_equal_messages_the_one_that_stands_first_in_the_graph_goes_first(play: Player) -> None:
    """One collective of three edges: the second message of the first edge and that of the second come together.

    The engines once gave 7 us and 6 us, for each told the model of them in an order of its own.
    """
    one_way = edges(2, [(1, 0)] * 3, 1000, [2, 1, 1], [[], [(0, 0)], [(1, 0)]])
    b = Builder()
    b.collective(one_way, routes_of(one_way, [0, 1], 2))
    played = play(b.graph(), switch(2, GB_PER_S), MODELS["store-and-forward"]())
    # Two hops of 1 us each.  Both come at 2 us; the first edge's has gone at 4 us, the second's at 5, the third's at 7.
    assert played.finish.tolist() == [7 * US, 7 * US]


@pytest.mark.parametrize("name", MODELS)
def test_flows_that_join_together_are_numbered_in_the_order_of_the_graph(play: Player, name: str) -> None:
    told: list[list[Flow]] = []

    class Noting(MODELS[name]):
        alone_at_capacity = False

        def change(self, now: int, joined: Sequence[Flow], left: Sequence[int]) -> Iterable[tuple[int, int]]:
            told.append(list(joined))
            return super().change(now, joined, left)

    b = Builder()
    waits = [b.compute(5, before=[]) for _ in range(3)]
    for size, wait in zip((7, 8, 9), waits[::-1], strict=True):
        b.transfer(1, size, before=[wait])
    pair = edges(2, [(0, 1), (0, 1)], [5, 6], needs=[[], []])
    for _ in range(2):
        b.collective(pair, [1, 1], delay=5)
    played = play(b.graph(), replace(wires([GB_PER_S], [[], [0]]), ends=np.array([[0, 1]], np.int32)), Noting())
    assert [flow.work // WORK_PER_BYTE for flow in told[0]] == [5, 6, 5, 6, 7, 8, 9]
    assert [flow.number for flow in told[0]] == list(range(7))
    assert played.flows == 7


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=examples(40))
@given(data=st.data())
def test_every_engine_gives_the_same_ticks(play: Player, name: str, data: st.DataObject) -> None:
    graph, network = data.draw(graphs(on=on(name)))
    played, expected = play(graph, network, MODELS[name]()), reference.play(graph, network, MODELS[name]())
    assert played.start.tolist() == expected.start.tolist()
    assert played.finish.tolist() == expected.finish.tolist()
    assert played.link_bytes.tolist() == expected.link_bytes.tolist()
    assert played.events == expected.events


@pytest.mark.parametrize("name", AT_CAPACITY)
@settings(max_examples=examples(150))
@given(data=st.data())
def test_the_closed_form_is_what_flow_by_flow_would_be(play: Player, name: str, data: st.DataObject) -> None:
    graph, network = data.draw(st.one_of(graphs(max_tasks=20), interrupted()))
    case = graph, network if MODELS[name].weighted else replace(network, weights=None)
    closed = play(*case, MODELS[name]())
    by_flow = play(*case, MODELS[name](), _closed_form=False)
    assert closed.flows == by_flow.flows
    for column in ("start", "begin", "finish", "link_bytes"):
        assert getattr(closed, column).tolist() == getattr(by_flow, column).tolist()


@pytest.mark.parametrize("name", AT_CAPACITY)
def test_links_are_held_until_the_last_delivery_of_all(play: Player, name: str) -> None:
    """Member 0 has finished after one byte; what goes to a place that is no member is still under way."""
    network = wires([GB_PER_S, GB_PER_S], [[0], [1], [0, 1]])
    b = Builder()
    b.collective(edges(1, [(0, 1), (1, 2)], [1, 10], needs=[[], [(0, 0)]], places=3), [0, 1])
    b.transfer(2, 10, before=[b.compute(3_000, before=[])])
    played = play(b.graph(), network, MODELS[name]())
    by_flow = play(b.graph(), network, MODELS[name](), _closed_form=False)
    assert played.finish.tolist() == by_flow.finish.tolist()
    assert played.finish.tolist()[0] == 1_000
    assert played.finish.tolist()[-1] > 13_000


class Served(NamedTuple):
    """What a flow was given in all, and its last rate."""

    flow: Flow
    work: int
    rate: int


def watched(name: str) -> Sharing:
    """A model that notes what every flow is given, and holds links to their capacity at every instant."""

    class Watched(MODELS[name]):
        def start(self, wires: EngineNetwork) -> None:
            super().start(wires)
            self.given: dict[int, int] = {}
            self.known: dict[int, Flow] = {}
            self.served: dict[int, int] = defaultdict(int)
            self.ended: list[Served] = []
            self.asked = -1

        def rates(self, now: int, joined: Sequence[Flow], left: Collection[int]) -> Mapping[int, int]:
            assert now > self.asked
            for number, rate in self.given.items():
                self.served[number] += rate * (now - self.asked)
            self.asked = now
            self.ended += [Served(self.known.pop(n), self.served.pop(n), self.given.pop(n)) for n in left]
            self.known.update({each.number: each for each in joined})
            changed = super().rates(now, joined, left)
            self.given.update(changed)
            load: Counter[int] = Counter()
            for number, each in self.known.items():
                for link, weight in zip(each.links, each.weights, strict=True):
                    load[link] += self.given[number] * weight
            assert all(rate >= 0 for rate in self.given.values())
            assert all(load[link] <= self.capacity[link] for link in load)
            return changed

    return Watched()


@pytest.mark.parametrize("name", SHARING)
@settings(max_examples=examples(60))
@given(data=st.data())
def test_every_byte_is_served_and_no_link_is_above_its_capacity(play: Player, name: str, data: st.DataObject) -> None:
    graph, network = data.draw(graphs(on=on(name)))
    model = watched(name)
    played = play(graph, network, model, _closed_form=False)
    carried: Counter[int] = Counter()
    for each in model.ended:
        # The last tick may offer more than was left, but by less than that tick.
        assert 0 <= each.work - each.flow.work < each.rate
        for link, weight in zip(each.flow.links, each.flow.weights, strict=True):
            carried[link] += each.flow.work // WORK_PER_BYTE * weight
    limited = np.flatnonzero(network.capacity != UNLIMITED).tolist()
    assert [carried[link] for link in limited] == played.link_bytes[limited].tolist()


@pytest.mark.parametrize("name", WEIGHTED)
@settings(max_examples=examples(60))
@given(data=st.data(), copies=st.integers(2, 4))
def test_a_folded_job_runs_as_each_of_the_copies_that_it_stands_for(
    play: Player, name: str, data: st.DataObject, copies: int
) -> None:
    """Copies that have some links for themselves and share the others, against one in which those count as often."""
    graph, network = data.draw(st.one_of(graphs(), interrupted()))
    network = data.draw(from_random(any_weights, network))
    links = len(network.capacity)
    common = np.array(data.draw(st.lists(st.booleans(), min_size=links, max_size=links)), bool)
    own = np.flatnonzero(~common)
    capacity = np.concatenate([network.capacity, *[network.capacity[own]] * (copies - 1)])
    jobs = []
    for copy in range(copies):
        there = np.arange(links)
        if copy:
            there[own] = links + (copy - 1) * len(own) + np.arange(len(own))
        routes = Ragged(there[network.routes.values].astype(np.int32), network.routes.offsets)
        jobs.append((graph, replace(network, capacity=capacity, routes=routes)))
    assert network.weights is not None
    times = np.where(common, copies, 1)[network.routes.values]
    folded = play(graph, replace(network, weights=(network.weights * times).astype(np.int32)), MODELS[name]())
    unfolded = play(*join(jobs), MODELS[name]())
    assert unfolded.finish.tolist() == folded.finish.tolist() * copies
    assert unfolded.begin.tolist() == folded.begin.tolist() * copies
    assert unfolded.link_bytes[common.nonzero()].tolist() == folded.link_bytes[common.nonzero()].tolist()


@settings(max_examples=examples(100))
@given(data=st.data())
def test_max_min_never_gives_a_flow_less_than_an_equal_split(data: st.DataObject) -> None:
    network, sent = data.draw(traffic("max-min"))
    rates = []
    for name in ("max-min", "equal-split"):
        model = MODELS[name]()
        model.start(network)
        rates.append(model.rates(0, flows(network, sent), []))
    assert all(rates[0][number] >= rates[1][number] for number in range(len(sent)))
