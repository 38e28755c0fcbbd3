"""Hop on a System: golden values worked out by hand, the bounds that the paper proves, and what backups are worth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import triosim
from tests.exploring import examples
from triosim.core.errors import InputError
from triosim.hardware.system import System
from triosim.network.hop import HopRun, play_hop
from triosim.schedule.hop import NEVER, Hop, Neighbours, decide, gaps, graph

UPDATE = 100_000_000  # bytes, 0.1 s at 1 GB/s


def fabric(slowdown: list[float]) -> System:
    """Devices on a switch with 1 GB/s each, divided by its slowdown."""
    system = triosim.system(devices=len(slowdown), topology="switch", link="1GB/s")
    factor = np.array([*slowdown, *[1.0] * (system.nodes - system.devices)])
    return replace(
        system, bandwidth=system.bandwidth / np.maximum(factor[system.edge_source], factor[system.edge_target])
    )


def run(hop: Hop, slowdown: list[float] | None = None, compute: object = 1.0) -> HopRun:
    return play_hop(hop, fabric(slowdown or [1.0] * hop.workers), compute, UPDATE)


def test_without_slowdown_an_iteration_is_computing_and_one_exchange() -> None:
    # Two neighbours share a worker's link: 2 x 0.1 s.
    assert run(Hop(graph("ring", 8), 5)).time_s == pytest.approx(5 * 1.2, abs=1e-10)
    assert run(Hop(graph("ring-based", 8), 5)).time_s == pytest.approx(5 * 1.3, abs=1e-10)
    assert run(Hop(graph("double-ring", 8), 5)).time_s == pytest.approx(5 * 1.4, abs=1e-10)


def test_sending_while_computing_hides_the_exchange() -> None:
    assert run(Hop(graph("ring", 8), 5, order="parallel")).time_s == pytest.approx(5 * 1.0, abs=1e-10)


@pytest.mark.parametrize("name", ["ring", "ring-based", "double-ring"])
@pytest.mark.parametrize("order", ["serial", "parallel"])
def test_without_slowdown_a_backup_worker_changes_nothing(name: str, order: str) -> None:
    near = graph(name, 8)
    none, one = (run(Hop(near, 20, backup=b, tokens=4, order=order)) for b in (0, 1))  # type: ignore[arg-type]
    assert one.iteration_time_s == pytest.approx(none.iteration_time_s, rel=0.01)


@pytest.mark.parametrize("name", ["ring", "ring-based"])
def test_with_one_slow_link_a_backup_worker_is_faster(name: str) -> None:
    slow = [10.0, *[1.0] * 7]
    near = graph(name, 8)
    none, one = (run(Hop(near, 30, backup=b, tokens=5), slow).iteration_time_s for b in (0, 1))
    degree = len(near[0])
    assert none == pytest.approx(1 + degree)  # everybody waits for the slow worker's exchange
    assert one < 0.8 * none


def test_skipping_lets_the_others_run_as_if_nobody_were_slow() -> None:
    slow = [10.0, *[1.0] * 7]
    near = graph("ring-based", 8)
    backup = run(Hop(near, 60, backup=1, tokens=5), slow)
    skips = run(Hop(near, 60, backup=1, tokens=5, skip=10), slow)
    assert backup.skipped == 0
    assert skips.skipped > 20
    assert skips.time_s < 0.7 * backup.time_s
    assert (skips.course.computed[1:]).all()  # only the slow worker skips


def test_bounded_staleness_rides_out_a_worker_that_is_slow_now_and_then() -> None:
    compute = np.ones((8, 20))
    compute[0, 5], compute[4, 12] = 4.0, 4.0
    near = graph("ring", 8)
    strict, stale = (run(Hop(near, 20, staleness=s), compute=compute).time_s for s in (0, 3))
    assert 20 * 1.2 + 5 < strict <= 20 * 1.2 + 6  # both delays reach everybody
    assert stale < strict - 4


def test_two_workers_by_hand() -> None:
    # Worker 1 computes 2 s, worker 0 one; with a staleness of 1, worker 0 is an iteration ahead and then waits.
    hop = Hop(((1,), (0,)), 3, staleness=1)
    entered = run(hop, compute=np.array([[1.0], [2.0]])).course.entered / 1e12
    assert entered[1] == pytest.approx([0, 2, 4, 6])
    assert entered[0] == pytest.approx([0, 1, 2.1, 4.1])


def test_tokens_by_hand() -> None:
    # Each may miss one of two updates: the third worker falls behind, and with one token holds the others.
    compute = np.array([[1.0], [1.0], [5.0]])
    free = run(Hop(graph("ring", 3), 4, backup=1), compute=compute).course.entered / 1e12
    held = run(Hop(graph("ring", 3), 4, backup=1, tokens=1), compute=compute).course.entered / 1e12
    assert free[0, 1] == held[0, 1] == pytest.approx(1.2)
    assert free[0, 2] == pytest.approx(2.4)
    assert held[0, 2] == pytest.approx(held[2, 1])  # it may enter 2 when the slow one has entered 1
    assert held[2, 1] == pytest.approx(5.0)


def distances(near: Neighbours) -> np.ndarray:
    """Length of the shortest path between each two workers."""
    n = len(near)
    found = np.full((n, n), n + 1)
    np.fill_diagonal(found, 0)
    for _ in range(n):
        for a, of_a in enumerate(near):
            for b in of_a:
                found[a] = np.minimum(found[a], found[b] + 1)
    return found


workers = st.sampled_from([("ring", 3), ("ring", 6), ("ring-based", 6), ("ring-based", 8), ("double-ring", 8)])


@st.composite
def jobs(draw: st.DrawFn, tokens: st.SearchStrategy[int | None]) -> tuple[Hop, list[float], np.ndarray]:
    name, count = draw(workers)
    near = graph(name, count)
    backup, staleness = draw(st.integers(0, 1)), draw(st.integers(0, 2))
    given_tokens = draw(tokens)
    skip = draw(st.integers(0, 4)) if given_tokens and (backup or staleness) else 0
    hop = Hop(
        near,
        draw(st.integers(1, 8)),
        backup,
        staleness,
        given_tokens,
        skip,
        order=draw(st.sampled_from(["serial", "parallel"])),
    )
    slow = draw(st.lists(st.integers(1, 10).map(float), min_size=count, max_size=count))
    compute = draw(st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=count, max_size=count))
    return hop, slow, np.array(compute)[:, None]


@settings(max_examples=examples(60))
@given(jobs(st.integers(1, 4)))
def test_nobody_is_ever_further_ahead_than_tokens_allow(job: tuple[Hop, list[float], np.ndarray]) -> None:
    hop, slow, compute = job
    done = run(hop, slow, compute)
    assert hop.tokens is not None
    assert done.gap <= hop.tokens
    assert (gaps(hop, done.course) <= hop.tokens * distances(hop.neighbours)).all()


@settings(max_examples=examples(30))
@given(jobs(st.none()))
def test_without_backup_workers_the_gap_is_bounded_by_the_way_between(job: tuple[Hop, list[float], np.ndarray]) -> None:
    hop, slow, compute = job
    hop = replace(hop, backup=0)
    bound = (hop.staleness + 1) * distances(hop.neighbours).T
    assert (gaps(hop, run(hop, slow, compute).course) <= bound).all()


@settings(max_examples=examples(40))
@given(jobs(st.integers(1, 4)))
def test_a_run_is_one_that_its_own_decisions_lead_to(job: tuple[Hop, list[float], np.ndarray]) -> None:
    hop, slow, compute = job
    done = run(hop, slow, compute)
    assert decide(hop, done.course).keys() == done.decisions
    assert (done.course.entered[:, -1] != NEVER).all()
    assert (done.course.entered[:, 0] == 0).all()
    assert done.skipped == 0 or hop.skip


@settings(max_examples=examples(20))
@given(jobs(st.integers(1, 4)))
def test_more_tokens_are_never_worse_where_nothing_is_decided(job: tuple[Hop, list[float], np.ndarray]) -> None:
    # With updates of no size nothing contends, and only max and + are left.
    hop, _, compute = job
    hop = replace(hop, skip=0, backup=0)
    few, many = (
        play_hop(replace(hop, tokens=t), fabric([1.0] * hop.workers), compute, 0).time_s for t in (hop.tokens, 10)
    )
    assert many <= few


def test_what_cannot_be_is_refused() -> None:
    hop = Hop(graph("ring", 4), 2)
    with pytest.raises(InputError, match="need a device each"):
        play_hop(hop, fabric([1.0] * 3), 1.0, 1)
    with pytest.raises(InputError, match="need a device each"):
        play_hop(hop, fabric([1.0] * 4), 1.0, 1, devices=[0, 1, 2, 2])
    with pytest.raises(InputError, match=r"hop: a time of computing is negative \(-1 s\)"):
        play_hop(hop, fabric([1.0] * 4), -1.0, 1)
    with pytest.raises(InputError, match="the size of an update is -1 bytes"):
        play_hop(hop, fabric([1.0] * 4), 1.0, -1)
