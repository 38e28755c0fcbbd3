"""Laws of max-min fair sharing in whole numbers."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.graphs import wires
from tests.engine.oracle import max_min
from triosim.engine.solver import Flow
from triosim.engine.solvers.max_min import Crossed, MaxMin, fill


def flows(routes: dict[int, Crossed]) -> list[Flow]:
    """Flows by their links, each with its weight there."""
    return [Flow(n, tuple(k for k, _ in row), tuple(w for _, w in row), 1, 0) for n, row in routes.items()]


def filled(capacity: Sequence[int], routes: dict[int, Sequence[int]]) -> dict[int, int]:
    """Rates of flows that all count once."""
    return fill(capacity, {number: [(link, 1) for link in row] for number, row in routes.items()})


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[int], dict[int, Crossed]]:
    links = draw(st.integers(1, 6))
    capacity = draw(st.lists(st.one_of(st.integers(60, 99), st.just(72)), min_size=links, max_size=links))
    weights = st.lists(st.sampled_from([1, 1, 1, 2, 3]), min_size=3, max_size=3)
    routes = st.lists(st.integers(0, links - 1), min_size=1, max_size=3, unique=True)
    crossed = st.tuples(routes, weights).map(lambda both: tuple(zip(*both, strict=False)))
    return capacity, dict(enumerate(draw(st.lists(crossed, max_size=12))))


@given(drawn=networks())
def test_no_link_is_above_capacity_and_every_flow_is_held_back_by_a_full_link(drawn: tuple) -> None:
    capacity, routes = drawn
    rates = fill(capacity, routes)
    load = [
        sum(rates[flow] * weight for flow, row in routes.items() for k, weight in row if k == link)
        for link in range(len(capacity))
    ]
    assert all(used <= limit for used, limit in zip(load, capacity, strict=True))
    for flow, row in routes.items():
        # Full but for what could not be divided among those that it holds back, of which this flow is one.
        bottlenecks = []
        for link, _ in row:
            on = [(rates[other], weight) for other, crossed in routes.items() for k, weight in crossed if k == link]
            held = sum(weight for rate, weight in on if rate == rates[flow])
            bottlenecks.append(max(rate for rate, _ in on) == rates[flow] and capacity[link] - load[link] < held)
        assert any(bottlenecks)


@given(drawn=networks(), data=st.data())
def test_numbers_and_order_of_flows_and_links_do_not_matter(drawn: tuple, data: st.DataObject) -> None:
    capacity, routes = drawn
    link_names = data.draw(st.permutations(range(len(capacity))))
    flow_names = data.draw(st.permutations(range(len(routes))))
    renamed = [0] * len(capacity)
    for link, name in enumerate(link_names):
        renamed[name] = capacity[link]
    others = {
        flow_names[flow]: tuple((link_names[k], weight) for k, weight in reversed(routes[flow]))
        for flow in reversed(routes)
    }
    rates, other = fill(capacity, routes), fill(renamed, others)
    assert {flow_names[flow]: rate for flow, rate in rates.items()} == other


@given(drawn=networks())
def test_filling_is_that_of_the_oracle(drawn: tuple) -> None:
    capacity, routes = drawn
    rates = fill(capacity, routes)
    assert [rates[flow] for flow in routes] == max_min(capacity, list(routes.values()))


@given(drawn=networks())
def test_a_weight_is_as_many_flows(drawn: tuple) -> None:
    """A flow that counts w times on each of its links gets the rate of each of w flows."""
    capacity, routes = drawn
    weight = {flow: row[0][1] for flow, row in routes.items()}
    alike = {flow: tuple((k, weight[flow]) for k, _ in row) for flow, row in routes.items()}
    many = [(flow, [k for k, _ in row]) for flow, row in routes.items() for _ in range(weight[flow])]
    rates = filled(capacity, {number: row for number, (_, row) in enumerate(many)})
    assert {flow: rates[number] for number, (flow, _) in enumerate(many)} == fill(capacity, alike)


@settings(deadline=None)
@given(drawn=networks(), data=st.data())
def test_solving_what_a_change_reaches_is_solving_everything(drawn: tuple, data: st.DataObject) -> None:
    capacity, routes = drawn
    solver, known = MaxMin(), {flow.number: flow for flow in flows(routes)}
    solver.start(wires(capacity, []))
    rates: dict[int, int] = {}
    outside, inside = list(routes), []
    for now in range(data.draw(st.integers(1, 6))):
        joining = data.draw(st.lists(st.sampled_from(outside), unique=True)) if outside else []
        leaving = data.draw(st.lists(st.sampled_from(inside), unique=True)) if inside else []
        changed = solver.rates(now, [known[flow] for flow in joining], leaving)
        assert set(joining) <= set(changed)
        for flow in leaving:
            del rates[flow]
        assert all(rates.get(flow) != rate for flow, rate in changed.items())
        rates.update(changed)
        outside = [flow for flow in outside if flow not in joining]
        inside = [flow for flow in inside if flow not in leaving] + joining
        assert rates == fill(capacity, {flow: routes[flow] for flow in inside})


def test_the_textbook_case() -> None:
    # Three flows on link 0 and one of them on link 1 with a fourth, in thirds: 10, 10, 10 and 40.
    assert filled([30, 50], {0: (0,), 1: (0,), 2: (0, 1), 3: (1,)}) == {0: 10, 1: 10, 2: 10, 3: 40}


def test_all_links_with_the_smallest_share_are_full_at_once() -> None:
    # Both links have the share 2 although link 1 would have 3 for its second flow after the first was given 2.
    assert filled([2, 5], {0: (0, 1), 1: (1,)}) == {0: 2, 1: 2}


def test_every_flow_moves_even_where_a_link_has_fewer_units_than_flows() -> None:
    assert filled([2], {0: (0,), 1: (0,), 2: (0,)}) == {0: 1, 1: 1, 2: 1}
