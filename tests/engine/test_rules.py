"""What every engine must do: the rules of :mod:`triosim.engine.graph`, by hand, by law and against a second reading."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.conftest import Player
from tests.engine.graphs import (
    GB_PER_S,
    US,
    Builder,
    edges,
    graphs,
    interrupted,
    networks,
    route,
    routes_of,
    switch,
    wires,
)
from tests.engine.oracle import Oracle, Share, equal_split, max_min
from tests.exploring import examples
from triosim.collectives.pattern import chain, ring, to_first
from triosim.core.columns import Ragged
from triosim.core.errors import InputError
from triosim.engine.graph import ALL, UNLIMITED, EngineNetwork, Graph, GraphRun, Stuck, Task
from triosim.engine.join import join
from triosim.engine.solver import Sharing
from triosim.engine.solvers.equal_split import EqualSplit
from triosim.engine.solvers.max_min import MaxMin

NOTHING = wires([], [])


def ticks(played: GraphRun) -> list[tuple[int, int, int]]:
    return list(zip(played.start.tolist(), played.begin.tolist(), played.finish.tolist(), strict=True))


# ------------------------------------------------------------------------------------------ rules


def test_tasks_on_a_stream_run_in_row_order_and_wait_for_their_predecessors(play: Player) -> None:
    b = Builder()
    slow = b.compute(10, stream=0)
    first = b.compute(3, stream=1, before=[slow])
    b.compute(1, stream=1)  # ready at once, but behind the other on its stream
    b.join(before=[first])
    assert ticks(play(b.graph(), NOTHING)) == [(0, 0, 10), (10, 10, 13), (13, 13, 14), (13, 13, 13)]


@pytest.mark.parametrize(("need", "start"), [(0, 9), (1, 2), (2, 5), (3, 9)])
def test_a_task_that_needs_k_predecessors_starts_when_the_kth_has_finished(play: Player, need: int, start: int) -> None:
    b = Builder()
    before = [b.compute(9), b.compute(2), b.compute(5)]
    b.compute(1, before=before, need=need)
    assert play(b.graph(), NOTHING).start[3] == start


def test_a_task_that_needs_one_transfer_counts_what_is_known_early_in_the_order_of_time(play: Player) -> None:
    # The end of the compute task is known at tick 0 but lies after that of the transfer.
    b = Builder()
    before = [b.compute(5 * US), b.transfer(0, 1000)]
    b.compute(1, before=before, need=1)
    assert play(b.graph(), wires([GB_PER_S], [[0]])).start[2] == 1 * US


def test_a_transfer_waits_for_its_latency_and_is_then_served_at_the_slowest_link(play: Player) -> None:
    b = Builder()
    b.transfer(0, 1000)
    w = wires([3 * GB_PER_S, GB_PER_S], [[0, 1]], 7)
    assert ticks(play(b.graph(), w)) == [(0, 0, 7 + US)]


def test_serving_time_is_rounded_up_to_a_whole_tick(play: Player) -> None:
    b = Builder()
    b.transfer(0, 1000)
    assert play(b.graph(), wires([3 * GB_PER_S], [[0]])).finish[0] == 333_334


@pytest.mark.parametrize(("size", "links"), [(0, [0]), (1000, [1]), (1000, [])])
def test_nothing_to_serve_or_no_link_that_limits_leaves_latency(play: Player, size: int, links: list[int]) -> None:
    b = Builder()
    b.transfer(0, size)
    assert play(b.graph(), wires([GB_PER_S, UNLIMITED], [links], 7)).finish[0] == 7


def test_two_flows_share_a_link_while_both_are_there(play: Player) -> None:
    b = Builder()
    later = b.compute(US)
    b.transfer(0, 3000)
    b.transfer(0, 1000, before=[later])
    # Alone for 1 us (1000 bytes), at half speed until the second is served at 3 us, alone for the last 1000 bytes.
    played = play(b.graph(), wires([GB_PER_S], [[0]]))
    assert played.finish.tolist() == [US, 4 * US, 3 * US]
    assert played.link_bytes.tolist() == [4000]
    assert played.flows == 2


def test_what_one_flow_cannot_use_goes_to_the_other(play: Player) -> None:
    b = Builder()
    b.transfer(0, 1000)
    b.transfer(1, 3000)
    # Link 0 holds the first flow to 1 GB/s; the second gets the other 3 GB/s of link 1.
    played = play(b.graph(), wires([GB_PER_S, 4 * GB_PER_S], [[0, 1], [1]]))
    assert played.finish.tolist() == [US, US]


def test_a_flow_that_ends_as_another_starts_does_not_slow_it(play: Player) -> None:
    b = Builder()
    later = b.compute(US)
    b.transfer(0, 1000)
    b.transfer(0, 1000, before=[later])
    assert play(b.graph(), wires([GB_PER_S], [[0]])).finish.tolist() == [US, US, 2 * US]


def test_members_of_a_collective_begin_together_after_the_last_has_come(play: Player) -> None:
    b = Builder()
    rule = ring(2, 1000, 2)
    waits = [[b.compute(3)], [b.compute(8)]]
    b.collective(rule, routes_of(rule, (0, 1), 2), delay=10, before=waits)
    done = 8 + 10 + 2 * (5 + US)
    assert ticks(play(b.graph(), switch(2, GB_PER_S, 5)))[2:] == [(3, 8, done), (8, 8, done)]


@pytest.mark.parametrize("members", [1, 3])
def test_a_collective_in_which_nothing_is_sent_takes_its_delay(play: Player, members: int) -> None:
    b = Builder()
    b.collective(ring(members, 1000, 0), [], delay=4)
    assert ticks(play(b.graph(), switch(3, GB_PER_S))) == [(0, 0, 4)] * members


def test_a_chain_is_a_pipeline_whose_members_finish_one_after_another(play: Player) -> None:
    b = Builder()
    rule = chain(3, 1000, 4)
    b.collective(rule, routes_of(rule, (0, 1, 2), 3))
    played = play(b.graph(), switch(3, GB_PER_S))
    assert played.finish.tolist() == [4 * US, 5 * US, 5 * US]
    assert played.flows == 8
    assert played.link_bytes.tolist() == [4000, 0, 4000, 4000, 0, 4000]


def test_a_slow_hop_sets_the_pace_of_a_ring_after_it_has_been_round(play: Player) -> None:
    b = Builder()
    rule = ring(3, 1000, 4)
    b.collective(rule, routes_of(rule, (0, 1, 2), 3))
    played = play(b.graph(), switch(3, [GB_PER_S, GB_PER_S, GB_PER_S // 2, GB_PER_S, GB_PER_S, GB_PER_S]))
    # Position 1 takes 4 x 2 us to send, and 2 gets the last of it then.  Position 2 sends for the last time when it has
    # what 1 sent in the step before, at 6 us; so 0 has it at 7 us.
    assert played.finish.tolist() == [7 * US, 8 * US, 8 * US]


def test_gather_shares_the_link_of_the_root(play: Player) -> None:
    b = Builder()
    rule = to_first(4, 1000)
    b.collective(rule, routes_of(rule, range(4), 4))
    played = play(b.graph(), switch(4, GB_PER_S))
    # A third of a link each, rounded down, so that they end one tick after 3 us.
    assert played.finish.tolist() == [3 * US + 1] * 4
    assert played.link_bytes[1] == 3000


@pytest.mark.parametrize(("wait", "finish"), [(False, [3, 3, 3, 3]), (True, [3, 1, 2, 3])])
def test_scatter_sends_all_at_once_or_one_after_another(play: Player, wait: bool, finish: list[int]) -> None:
    b = Builder()
    needs = [[], [(0, 0)], [(1, 0)]] if wait else ()
    rule = edges(4, [(0, 1), (0, 2), (0, 3)], 1000, needs=needs)
    b.collective(rule, routes_of(rule, range(4), 4))
    rounding = 0 if wait else 1
    assert play(b.graph(), switch(4, GB_PER_S)).finish.tolist() == [f * US + rounding for f in finish]


def test_an_edge_that_needs_all_of_another_waits_for_its_last_transfer(play: Player) -> None:
    b = Builder()
    # A tree of two leaves: three pieces up each, and down when all has come; the third leaf needs one piece only.
    ends = [(1, 0), (2, 0), (0, 1), (0, 3)]
    rule = edges(4, ends, 1000, [3, 2, 1, 1], [[], [], [(0, ALL), (1, ALL)], [(1, 0)]])
    network = wires([GB_PER_S] * 4, [[0], [1], [2], [3]])
    b.collective(rule, range(4))
    assert play(b.graph(), network).finish.tolist() == [4 * US, 4 * US, 2 * US, 2 * US]


def test_a_lag_beyond_the_last_transfer_of_an_edge_waits_for_the_last(play: Player) -> None:
    b = Builder()
    rule = edges(3, [(0, 1), (1, 2)], 1000, [2, 4], [[], [(0, 1)]])
    b.collective(rule, range(2))
    # Transfer 0 waits for nothing, 1 for the first of the other edge, 2 and 3 for its second and last.
    assert play(b.graph(), wires([GB_PER_S, 2 * GB_PER_S], [[0], [1]])).finish.tolist() == [2 * US, 3 * US, 3 * US]


def test_a_pause_comes_before_each_transfer(play: Player) -> None:
    b = Builder()
    b.collective(edges(2, [(0, 1)], 1000, 3, pause=7), [0])
    assert play(b.graph(), wires([GB_PER_S], [[0]], 5)).finish.tolist() == [3 * (7 + 5 + US)] * 2


def test_positions_that_are_no_members_forward_and_have_no_task(play: Player) -> None:
    b = Builder()
    # Two members send up to a switch, which sends the sum to both.
    ends = [(0, 2), (1, 2), (2, 0), (2, 1)]
    b.collective(edges(2, ends, 1000, 2, [[], [], [(0, 0), (1, 0)], [(0, 0), (1, 0)]], places=3), range(4))
    network = wires([GB_PER_S, GB_PER_S // 2, GB_PER_S, GB_PER_S], [[0], [1], [2], [3]])
    assert play(b.graph(), network).finish.tolist() == [5 * US, 5 * US]


def test_a_weight_is_as_many_flows(play: Player) -> None:
    b = Builder()
    b.transfer(0, 1000)
    b.transfer(1, 1000)
    network = wires([4 * GB_PER_S, 4 * GB_PER_S], [[0, 1], [1]], 0, [[3, 1], [1]])
    # A third of link 0, 1 1/3 GB/s rounded down, and what that leaves of link 1, a little more than 2 2/3.
    played = play(b.graph(), network)
    assert played.finish.tolist() == [750_001, 375_000]
    assert played.link_bytes.tolist() == [3000, 2000]
    assert played.flows == 2


def test_an_edge_of_weight_has_its_part_of_a_link_when_it_is_alone(play: Player) -> None:
    b = Builder()
    b.collective(ring(1, 1, 0), [])
    b.collective(edges(1, [(0, 0)], 1000, 6, [[(0, 1)]]), [0])  # four members of a ring folded into one, on two links
    assert play(b.graph(), wires([GB_PER_S], [[0]], 0, [[2]])).finish.tolist() == [0, 6 * 2 * US]


# ------------------------------------------------------------------------------------------ tokens


def test_a_token_is_taken_when_it_is_there(play: Player) -> None:
    b = Builder(tokens=[1])
    b.take(0)
    waits = b.take(0, before=[b.compute(2)])
    late = b.take(0, before=[b.compute(9)])
    b.put(0, before=[b.compute(5)])
    b.put(0, before=[b.compute(7)])
    played = play(b.graph(), NOTHING)
    assert played.finish[[0, waits, late]].tolist() == [0, 5, 9]
    assert played.start[[0, waits, late]].tolist() == [0, 2, 9]


def test_who_was_ready_first_is_served_first_and_of_those_the_lowest_row(play: Player) -> None:
    b = Builder(tokens=[0])
    early = b.compute(1)
    later = b.compute(2)
    takes = [b.take(0, before=[later]), b.take(0, before=[later]), b.take(0, before=[early])]
    for ticks_until in (3, 4, 5):
        b.put(0, before=[b.compute(ticks_until)])
    assert play(b.graph(), NOTHING).finish[takes].tolist() == [4, 5, 3]


def test_a_token_goes_to_the_lowest_row_that_is_ready_at_its_tick_however_that_came_about(play: Player) -> None:
    b = Builder(tokens=[0])
    long = b.compute(US)
    low = b.take(0, before=[b.join(before=[b.join(before=[b.transfer(0, 1000)])])])
    high = b.take(0, before=[long])
    b.put(0, before=[long])
    b.put(0, before=[b.compute(2 * US)])
    played = play(b.graph(), wires([GB_PER_S], [[0]]))
    assert played.finish[[low, high]].tolist() == [US, 2 * US]


def test_what_follows_from_a_token_at_its_tick_comes_a_round_later(play: Player) -> None:
    b = Builder(tokens=[1, 1])
    first = b.take(0)
    low = b.take(1, before=[first])  # ready at tick 0 too, but only when row 0 has got its token
    high = b.take(1)
    b.put(1, before=[b.compute(3)])
    assert play(b.graph(), NOTHING).finish[[first, low, high]].tolist() == [0, 3, 0]


def test_a_stream_is_held_up_by_a_take(play: Player) -> None:
    b = Builder(tokens=[0])
    b.take(0, stream=0)
    after = b.compute(1, stream=0)
    b.put(0, before=[b.compute(5)])
    assert play(b.graph(), NOTHING).start[after] == 5


def test_a_flow_breaks_into_a_ring_in_the_middle_of_a_step(play: Player) -> None:
    b = Builder()
    later = b.compute(US // 2)
    rule = ring(2, 1000, 2)
    b.collective(rule, routes_of(rule, (0, 1), 3))
    b.transfer(route(3, 0, 2), 1000, before=[later])
    # From 0.5 us on node 0's uplink is shared: the last 500 bytes of the first step from 0 take until 1.5 us.  The
    # second step has half the link until the transfer is served at 2.5 us, and all of it for its last 500 bytes.
    played = play(b.graph(), switch(3, GB_PER_S))
    assert played.finish.tolist() == [US // 2, 3 * US, 3 * US, US // 2 * 5]


# ------------------------------------------------------------------------------------ what cannot be


def test_a_cycle_is_stuck(play: Player) -> None:
    b = Builder()
    b.compute(1, before=[1])
    b.compute(1, before=[0])
    with pytest.raises(Stuck, match=r"2 of 2 tasks never start or never end: task 0 \(COMPUTE\) waits for tasks \[1\]"):
        play(b.graph(), NOTHING)


def test_a_member_that_never_comes_is_named(play: Player) -> None:
    b = Builder()
    rule = ring(3, 10, 4)
    members = b.collective(rule, routes_of(rule, range(3), 3))
    del b.rows[members[1]]
    with pytest.raises(Stuck, match=r"task 0 \(COLLECTIVE\) waits for members \[1\] of collective 0"):
        play(b.graph(), switch(3, GB_PER_S))


def test_a_token_that_is_never_put_is_named(play: Player) -> None:
    b = Builder(tokens=[0, 1])
    b.take(1)
    b.take(0)
    with pytest.raises(Stuck, match=r"task 1 \(TAKE\) waits for a token of counter 0"):
        play(b.graph(), NOTHING)


@pytest.mark.parametrize("lag", [0, ALL])
def test_edges_that_wait_in_a_circle_are_stuck(play: Player, lag: int) -> None:
    b = Builder()
    b.collective(edges(2, [(0, 1), (1, 0)], 10, 2, [[(1, 1)], [(0, lag)]]), [0, 0])
    network = wires([GB_PER_S], [[0]])
    if lag == 0:
        assert play(b.graph(), network).finish.max() > 0
        return
    with pytest.raises(Stuck, match="has begun and is never served"):
        play(b.graph(), network)


def test_a_stream_behind_a_stuck_task_is_stuck(play: Player) -> None:
    b = Builder()
    b.compute(1, stream=0, before=[0])
    b.compute(1, stream=0)
    with pytest.raises(Stuck, match=r"task 1 \(COMPUTE\) waits for its turn on stream 0"):
        play(b.graph(), NOTHING)


def test_a_run_of_more_than_106_days_is_refused(play: Player) -> None:
    b = Builder()
    b.transfer(0, 10**9)
    with pytest.raises(InputError, match="106 days"):
        play(b.graph(), wires([1024], [[0]]))


def test_an_empty_graph_takes_no_time(play: Player) -> None:
    assert len(play(Builder().graph(), NOTHING).finish) == 0


# --------------------------------------------------------------------------------- a second reading


@settings(max_examples=examples(150))
@given(
    drawn=st.one_of(graphs(), interrupted()),
    how=st.sampled_from([(MaxMin, max_min), (MaxMin, max_min), (EqualSplit, equal_split)]),
)
def test_every_tick_is_that_of_the_oracle(
    play: Player, drawn: tuple[Graph, EngineNetwork], how: tuple[type[Sharing], Share]
) -> None:
    start, begin, finish = Oracle(*drawn, how[1]).run()
    played = play(*drawn, how[0]())
    assert played.start.tolist() == start
    assert played.begin.tolist() == begin
    assert played.finish.tolist() == finish


# ------------------------------------------------------------------------------------------ laws


@settings(max_examples=examples(100))
@given(drawn=graphs())
def test_streams_never_overlap_and_nothing_starts_before_what_it_waits_for(
    play: Player, drawn: tuple[Graph, EngineNetwork]
) -> None:
    graph, _ = drawn
    played = play(*drawn)
    assert (played.start <= played.begin).all()
    assert (played.begin <= played.finish).all()
    for stream in range(graph.streams):
        rows = np.flatnonzero(graph.stream == stream)
        assert (played.start[rows[1:]] >= played.finish[rows[:-1]]).all()
    for task, before in enumerate(graph.before):
        need = 0 if graph.need is None else int(graph.need[task])
        ends = np.sort(played.finish[before])[: need or None]
        assert played.start[task] >= ends.max(initial=0)


@settings(max_examples=examples(100))
@given(drawn=graphs(), data=st.data())
def test_names_of_links_routes_and_streams_do_not_matter(
    play: Player, drawn: tuple[Graph, EngineNetwork], data: st.DataObject
) -> None:
    graph, network = drawn
    links = np.array(data.draw(st.permutations(range(len(network.capacity)))), np.int32)
    streams = np.array([*data.draw(st.permutations(range(graph.streams))), -1], np.int32)
    capacity = np.empty_like(network.capacity)
    capacity[links] = network.capacity
    routes = Ragged(links[network.routes.values], network.routes.offsets)
    relabelled = EngineNetwork(capacity, routes, network.latency, network.weights)
    played, other = play(graph, network), play(replace(graph, stream=streams[graph.stream]), relabelled)
    assert ticks(other) == ticks(played)
    assert other.link_bytes[links].tolist() == played.link_bytes.tolist()


@settings(max_examples=examples(100))
@given(drawn=graphs(), other=graphs())
def test_an_unrelated_graph_beside_it_changes_nothing(
    play: Player, drawn: tuple[Graph, EngineNetwork], other: tuple[Graph, EngineNetwork]
) -> None:
    alone, beside = play(*drawn), play(*beside_each_other(*drawn, *other))
    n, links = len(drawn[0]), len(drawn[1].capacity)
    assert ticks(beside)[:n] == ticks(alone)
    assert ticks(beside)[n:] == ticks(play(*other))
    assert beside.link_bytes[:links].tolist() == alone.link_bytes.tolist()


@settings(max_examples=examples(100))
@given(drawn=graphs(), data=st.data())
def test_shorter_tasks_never_make_a_run_longer_where_nothing_contends(
    play: Player, drawn: tuple[Graph, EngineNetwork], data: st.DataObject
) -> None:
    graph, network = drawn
    network = replace(network, capacity=np.full_like(network.capacity, UNLIMITED))
    compute = graph.kind == Task.COMPUTE
    shorter = graph.amount.copy()
    shorter[compute] = [data.draw(st.integers(0, d)) for d in graph.amount[compute].tolist()]
    # With tokens shorter tasks could come first to one and hold up a longer chain.
    graph = replace(graph, tokens=np.full(len(graph.tokens), len(graph), np.int64))
    assert (play(replace(graph, amount=shorter), network).finish <= play(graph, network).finish).all()


@settings(max_examples=examples(60))
@given(data=st.data(), nodes=st.integers(2, 5), count=st.integers(1, 8))
def test_order_of_transfers_that_start_together_does_not_matter(
    play: Player, data: st.DataObject, nodes: int, count: int
) -> None:
    network = data.draw(networks(nodes))
    drawn = st.tuples(st.integers(0, nodes * nodes - 1), st.sampled_from([1, 1000, 1000, 2500]))
    moves = data.draw(st.lists(drawn, min_size=count, max_size=count))
    order = data.draw(st.permutations(range(count)))
    finish = []
    for rows in (range(count), order):
        b = Builder()
        for row in rows:
            b.transfer(*moves[row])
        finish.append(play(b.graph(), network).finish)
    assert finish[0][list(order)].tolist() == finish[1].tolist()


def beside_each_other(a: Graph, aw: EngineNetwork, b: Graph, bw: EngineNetwork) -> tuple[Graph, EngineNetwork]:
    """Two graphs as one, each on links of its own."""
    links = np.concatenate([aw.capacity, bw.capacity])
    other = Ragged(bw.routes.values + len(aw.capacity), bw.routes.offsets)
    return join([(a, replace(aw, capacity=links)), (b, replace(bw, capacity=links, routes=other))])


def test_kinds_of_task_are_those_that_are_tested_here() -> None:
    assert {task.name for task in Task} == {"COMPUTE", "TRANSFER", "COLLECTIVE", "JOIN", "PUT", "TAKE"}
