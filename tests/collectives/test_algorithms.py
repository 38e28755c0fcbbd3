"""Collective algorithms: whether data gets everywhere, how much is sent, and how long it takes alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.collectives.patterns import holdings
from tests.engine.graphs import Builder, routes_of, switch, wires
from tests.exploring import examples
from triosim.collectives.algorithm import ALGORITHMS, DEFAULTS, CollectiveSchedule, choose, part
from triosim.collectives.algorithms.ring import CHUNK_BYTES
from triosim.collectives.pattern import ring
from triosim.core.errors import InputError
from triosim.engine.graph import CAPACITY_PER_BYTE, EngineNetwork, GraphRun
from triosim.engine.play import play
from triosim.schedule.program import COLLECTIVES

PS = 10**12

SIZES = st.integers(0, 10**8)
BANDWIDTHS = st.integers(10**6, 10**12)
LATENCIES = st.integers(0, 10**7)


def schedule(algorithm: str, kind: str, members: int, size: int, root: int = 0) -> CollectiveSchedule:
    return ALGORITHMS.get(algorithm)().schedule(kind, members, size, root)


def run(schedule: CollectiveSchedule, network: EngineNetwork) -> GraphRun:
    """Play one collective whose member m sits at node m of a switch; rows are positions."""
    b = Builder()
    b.collective(schedule.pattern, routes_of(schedule.pattern, schedule.order, schedule.pattern.members))
    return play(b.graph(), network)


def served(size: int, bandwidth: int) -> int:
    """Picoseconds for so many bytes at so many bytes per second, rounded up."""
    return ceil(size * PS, bandwidth)


def ceil(a: int, b: int) -> int:
    return -(-a // b)


# ---------------------------------------------------------------------------------------- choice


def test_every_kind_has_a_default_that_does_it() -> None:
    assert set(DEFAULTS) == set(COLLECTIVES)
    for kind in COLLECTIVES:
        assert kind in ALGORITHMS.get(choose(kind, 8, 100)).kinds


def test_the_user_may_choose() -> None:
    assert choose("all_to_all", 8, 100, "direct") == "direct"


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ("ring", "collective algorithm 'ring' does not do all_to_all: use auto or direct or pairwise"),
        ("rign", "unknown collective algorithm 'rign': did you mean ring"),
    ],
)
def test_what_cannot_be_chosen_is_refused_with_what_can(algorithm: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        choose("all_to_all", 8, 100, algorithm)


# --------------------------------------------------------------------------------- all algorithms


EVERY = [(name, kind) for name in ALGORITHMS for kind in ALGORITHMS.get(name).kinds]
PLAIN = [(name, kind) for name, kind in EVERY if name in ("ring", "direct", "pairwise")]


@pytest.mark.parametrize(("algorithm", "kind"), EVERY)
def test_one_member_sends_nothing(algorithm: str, kind: str) -> None:
    pattern, order = schedule(algorithm, kind, 1, 1000)
    assert len(pattern) == 0
    assert order == (0,)


@pytest.mark.parametrize(("algorithm", "kind"), PLAIN)
@given(members=st.integers(2, 9), size=st.integers(0, 3 * CHUNK_BYTES), data=st.data())
def test_everyone_has_a_position_and_enough_is_sent(
    algorithm: str, kind: str, members: int, size: int, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, members - 1))
    pattern, order = schedule(algorithm, kind, members, size, root)
    assert sorted(order) == list(range(members))
    assert len(set(pattern.bytes.tolist())) == 1
    each_sends = int(pattern.bytes[0])
    table = np.bincount(pattern.source, pattern.count, minlength=members).astype(int).tolist()
    each = {
        "all_reduce": 2 * (members - 1) * part(size, members),
        "all_gather": (members - 1) * part(size, members),
        "reduce_scatter": (members - 1) * part(size, members),
        "all_to_all": (members - 1) * part(size, members),
        "gather": part(size, members),
        "scatter": (members - 1) * part(size, members),
    }
    if kind in ("broadcast", "reduce"):
        assert table[-1] == 0
        for count in table[:-1]:
            assert size <= count * each_sends < size + count
        assert order[0 if kind == "broadcast" else -1] == root
    else:
        assert max(table) * each_sends == each[kind]
    if kind in ("gather", "scatter"):
        assert order[0] == root
        assert (table[0] == 0) == (kind == "gather")


# ----------------------------------------------------------------- whether the data gets everywhere


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("members", [2, 3, 8])
def test_a_ring_brings_everything_everywhere(kind: str, members: int) -> None:
    pattern, _ = schedule("ring", kind, members, 1000)
    everything = set(range(members))
    assert holdings(pattern, [{p} for p in range(members)]) == [everything] * members
    fewer = ring(members, 1000, members - 2)
    assert holdings(fewer, [{p} for p in range(members)]) != [everything] * members


@pytest.mark.parametrize("algorithm", ["direct", "pairwise"])
@pytest.mark.parametrize("members", [2, 3, 8])
def test_all_to_all_pairs_everyone_once(algorithm: str, members: int) -> None:
    pattern, _ = schedule(algorithm, "all_to_all", members, 1000)
    pairs = list(zip(pattern.source.tolist(), pattern.target.tolist(), strict=True))
    assert sorted(pairs) == [(p, q) for p in range(members) for q in range(members) if p != q]
    assert pattern.count.tolist() == [1] * len(pairs)


def test_in_a_pairwise_exchange_nobody_goes_on_before_the_round_is_done_for_it() -> None:
    pattern, _ = schedule("pairwise", "all_to_all", 3, 1000)
    ends = list(zip(pattern.source.tolist(), pattern.target.tolist(), strict=True))
    assert ends == [(0, 1), (1, 2), (2, 0), (0, 2), (1, 0), (2, 1)]
    assert pattern.needs.lists() == [[], [], [], [0, 2], [1, 0], [2, 1]]
    assert set(pattern.lag.tolist()) == {0}


@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
def test_every_chunk_of_a_chain_runs_from_one_end_to_the_other(kind: str) -> None:
    pattern, order = schedule("ring", kind, 4, 5 * CHUNK_BYTES, root=2)
    assert order == ((2, 3, 0, 1) if kind == "broadcast" else (3, 0, 1, 2))
    assert (pattern.source.tolist(), pattern.target.tolist()) == ([0, 1, 2], [1, 2, 3])
    assert pattern.needs.lists() == [[], [0], [1]]
    assert (pattern.bytes.tolist(), pattern.count.tolist()) == ([CHUNK_BYTES] * 3, [5] * 3)


# ------------------------------------------------------------------------------ golden, to the tick


@settings(deadline=None)
@given(members=st.integers(2, 16), size=SIZES, bandwidth=BANDWIDTHS, latency=LATENCIES)
def test_ring_times_on_a_switch(members: int, size: int, bandwidth: int, latency: int) -> None:
    network = switch(members, bandwidth * CAPACITY_PER_BYTE, latency)
    step = served(ceil(size, members), bandwidth) + latency
    for kind, rounds in (("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)):
        steps = rounds * (members - 1)
        assert run(schedule("ring", kind, members, size), network).finish.tolist() == [steps * step] * members


@settings(deadline=None)
@given(members=st.integers(2, 16), size=SIZES, bandwidth=BANDWIDTHS, latency=LATENCIES)
def test_ring_all_reduce_on_a_ring(members: int, size: int, bandwidth: int, latency: int) -> None:
    b = Builder()
    pattern, _ = schedule("ring", "all_reduce", members, size)
    b.collective(pattern, range(members))
    network = wires([bandwidth * CAPACITY_PER_BYTE] * members, [[p] for p in range(members)], latency)
    step = served(ceil(size, members), bandwidth) + latency
    assert play(b.graph(), network).finish.tolist() == [2 * (members - 1) * step] * members


@settings(max_examples=examples(50))
@given(members=st.integers(2, 12), size=SIZES, bandwidth=BANDWIDTHS, latency=LATENCIES, data=st.data())
def test_broadcast_and_reduce_are_pipelines(
    members: int, size: int, bandwidth: int, latency: int, data: st.DataObject
) -> None:
    chunks = max(ceil(size, CHUNK_BYTES), 1)
    step = served(ceil(size, chunks), bandwidth) + latency
    network = switch(members, bandwidth * CAPACITY_PER_BYTE, latency)
    for kind in ("broadcast", "reduce"):
        root = data.draw(st.integers(0, members - 1))
        played = run(schedule("ring", kind, members, size, root), network)
        assert played.finish[-1] == (members - 2 + chunks) * step
        assert played.finish[0] == chunks * step


@settings(max_examples=examples(50))
@given(members=st.integers(2, 8), size=SIZES, bandwidth=BANDWIDTHS, latency=LATENCIES)
def test_all_to_all_pairwise_and_direct(members: int, size: int, bandwidth: int, latency: int) -> None:
    network = switch(members, bandwidth * CAPACITY_PER_BYTE, latency)
    each, others = ceil(size, members), members - 1
    pairwise = run(schedule("pairwise", "all_to_all", members, size), network)
    assert pairwise.finish.tolist() == [others * (served(each, bandwidth) + latency)] * members
    direct = run(schedule("direct", "all_to_all", members, size), network)
    share = bandwidth * CAPACITY_PER_BYTE // others
    assert direct.finish.tolist() == [ceil(each * CAPACITY_PER_BYTE * PS, share) + latency] * members
    assert direct.link_bytes.tolist() == pairwise.link_bytes.tolist()


@settings(max_examples=examples(50))
@given(members=st.integers(2, 8), size=SIZES, bandwidth=BANDWIDTHS, latency=LATENCIES, data=st.data())
def test_gather_and_scatter_share_the_link_of_the_root(
    members: int, size: int, bandwidth: int, latency: int, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, members - 1))
    network = switch(members, bandwidth * CAPACITY_PER_BYTE, latency)
    share = bandwidth * CAPACITY_PER_BYTE // (members - 1)
    expected = ceil(ceil(size, members) * CAPACITY_PER_BYTE * PS, share) + latency
    for kind, link in (("gather", 2 * root + 1), ("scatter", 2 * root)):
        played = run(schedule("direct", kind, members, size, root), network)
        assert played.finish.tolist() == [expected] * members
        assert played.link_bytes[link] == (members - 1) * ceil(size, members)
