"""Laws of max-min fair sharing in whole numbers."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.oracle import max_min
from triosim.engine.solvers.max_min import MaxMin, fill


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[int], dict[int, tuple[int, ...]]]:
    links = draw(st.integers(1, 6))
    capacity = draw(st.lists(st.one_of(st.integers(20, 40), st.just(24)), min_size=links, max_size=links))
    routes = st.lists(st.integers(0, links - 1), min_size=1, max_size=3, unique=True).map(tuple)
    return capacity, dict(enumerate(draw(st.lists(routes, max_size=12))))


@given(drawn=networks())
def test_no_link_is_above_capacity_and_every_flow_is_held_back_by_a_full_link(drawn: tuple) -> None:
    capacity, routes = drawn
    rates = fill(capacity, routes)
    on = {link: [rates[flow] for flow, links in routes.items() if link in links] for link in range(len(capacity))}
    for link, here in on.items():
        assert sum(here) <= capacity[link]
    for flow, links in routes.items():
        # Full but for what could not be divided among those that it holds back, of which this flow is one.
        assert any(
            rates[flow] == max(on[link]) and capacity[link] - sum(on[link]) < on[link].count(rates[flow])
            for link in links
        )


@given(drawn=networks(), data=st.data())
def test_numbers_and_order_of_flows_and_links_do_not_matter(drawn: tuple, data: st.DataObject) -> None:
    capacity, routes = drawn
    link_names = data.draw(st.permutations(range(len(capacity))))
    flow_names = data.draw(st.permutations(range(len(routes))))
    renamed = [0] * len(capacity)
    for link, name in enumerate(link_names):
        renamed[name] = capacity[link]
    others = {flow_names[flow]: tuple(link_names[k] for k in reversed(routes[flow])) for flow in reversed(routes)}
    rates, other = fill(capacity, routes), fill(renamed, others)
    assert {flow_names[flow]: rate for flow, rate in rates.items()} == other


@given(drawn=networks())
def test_filling_is_that_of_the_oracle(drawn: tuple) -> None:
    capacity, routes = drawn
    rates = fill(capacity, routes)
    assert [rates[flow] for flow in routes] == max_min(capacity, [list(links) for links in routes.values()])


@settings(deadline=None)
@given(drawn=networks(), data=st.data())
def test_solving_what_a_change_reaches_is_solving_everything(drawn: tuple, data: st.DataObject) -> None:
    capacity, routes = drawn
    solver = MaxMin()
    solver.start(capacity)
    rates: dict[int, int] = {}
    outside, inside = list(routes), []
    for now in range(data.draw(st.integers(1, 6))):
        joining = data.draw(st.lists(st.sampled_from(outside), unique=True)) if outside else []
        leaving = data.draw(st.lists(st.sampled_from(inside), unique=True)) if inside else []
        changed = solver.share(now, {flow: routes[flow] for flow in joining}, leaving)
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
    assert fill([30, 50], {0: (0,), 1: (0,), 2: (0, 1), 3: (1,)}) == {0: 10, 1: 10, 2: 10, 3: 40}


def test_all_links_with_the_smallest_share_are_full_at_once() -> None:
    # Both links have the share 2 although link 1 would have 3 for its second flow after the first was given 2.
    assert fill([2, 5], {0: (0, 1), 1: (1,)}) == {0: 2, 1: 2}


def test_every_flow_moves_even_where_a_link_has_fewer_units_than_flows() -> None:
    assert fill([2], {0: (0,), 1: (0,), 2: (0,)}) == {0: 1, 1: 1, 2: 1}
