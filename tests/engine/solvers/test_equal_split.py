"""Equal split, against dividing every link anew."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.graphs import GB_PER_S, US, Builder, wires
from tests.engine.oracle import equal_split
from tests.engine.solvers.test_max_min import flows, networks
from triosim.engine.play import play
from triosim.engine.solvers.equal_split import EqualSplit


@settings(deadline=None)
@given(drawn=networks(), data=st.data())
def test_every_rate_is_the_smallest_equal_part_of_its_links(drawn: tuple, data: st.DataObject) -> None:
    capacity, routes = drawn
    solver, known = EqualSplit(), {flow.number: flow for flow in flows(routes)}
    solver.start(wires(capacity, []))
    rates: dict[int, int] = {}
    outside, inside = list(routes), []
    for now in range(data.draw(st.integers(1, 6))):
        joining = data.draw(st.lists(st.sampled_from(outside), unique=True)) if outside else []
        leaving = data.draw(st.lists(st.sampled_from(inside), unique=True)) if inside else []
        changed = solver.rates(now, [known[flow] for flow in joining], leaving)
        for flow in leaving:
            del rates[flow]
        assert all(rates.get(flow) != rate for flow, rate in changed.items())
        rates.update(changed)
        outside = [flow for flow in outside if flow not in joining]
        inside = [flow for flow in inside if flow not in leaving] + joining
        assert [rates[flow] for flow in inside] == equal_split(capacity, [routes[flow] for flow in inside])


def test_bandwidth_that_a_flow_cannot_use_is_lost() -> None:
    b = Builder()
    b.transfer(0, 1000)
    b.transfer(1, 3000)
    network = wires([GB_PER_S, 4 * GB_PER_S], [[0, 1], [1]])
    # Half of link 1 each, until the first has ended at 1 us: 2000 bytes in 1 us, then 1000 at 4 GB/s.
    assert play(b.graph(), network, "equal-split").finish.tolist() == [US, US + US // 4]


def test_every_flow_moves_even_where_a_link_has_fewer_units_than_flows() -> None:
    solver = EqualSplit()
    solver.start(wires([2], []))
    assert solver.rates(0, flows(dict.fromkeys(range(3), ((0, 1),))), []) == {0: 1, 1: 1, 2: 1}
