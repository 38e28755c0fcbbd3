"""Several jobs on one network."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.conftest import Player
from tests.engine.graphs import GB_PER_S, US, Builder, graphs, routes_of, switch, wires
from tests.exploring import examples
from triosim.collectives.pattern import ring
from triosim.engine.check import check
from triosim.engine.graph import EngineNetwork, Graph
from triosim.engine.join import Job, LateStart, delay_jobs, join


def ring_job(places: list[int], nodes: int = 4, start: int = 0) -> Job:
    """An all-reduce of three steps of 1 us among nodes of a switch, two tasks of a token and one of some of two."""
    b = Builder(tokens=[0])
    wait = b.compute(start, stream=0)
    rule = ring(len(places), 1000, 3)
    b.collective(rule, routes_of(rule, places, nodes), before=[[wait]] * len(places))
    b.put(0, before=[wait])
    b.take(0, stream=1)
    b.compute(5, before=[0, 1], need=1)
    return b.graph(), switch(nodes, GB_PER_S)


def test_jobs_with_links_of_their_own_run_as_alone(play: Player) -> None:
    jobs = [ring_job([0, 1]), ring_job([2, 3], start=US)]
    graph, network = join(jobs)
    check(graph, network)
    alone = [play(*job) for job in jobs]
    together = play(graph, network)
    assert together.finish.tolist() == [tick for played in alone for tick in played.finish.tolist()]
    assert together.link_bytes.tolist() == (alone[0].link_bytes + alone[1].link_bytes).tolist()
    assert together.flows == alone[0].flows + alone[1].flows


def test_jobs_share_links_while_both_run(play: Player) -> None:
    # The second job comes after two of three steps of the first and halves its bandwidth in the third.
    graph, network = join([ring_job([0, 1]), ring_job([0, 1], start=2 * US)])
    finish = play(graph, network).finish.tolist()
    assert finish[1:3] == [4 * US, 4 * US]
    assert finish[len(finish) // 2 :][1:3] == [2 * US + 4 * US] * 2


def test_columns_that_only_one_job_has_are_filled_for_the_others() -> None:
    b = Builder()
    b.transfer(0, 10)
    plain = b.graph(), wires([GB_PER_S, GB_PER_S], [[0, 1]])
    b.compute(1, before=[0], need=1)
    other = b.graph(), replace(wires([GB_PER_S] * 2, [[1]], 0, [[3]]), ends=np.array([[0, 1], [1, 2]], np.int32))
    graph, network = join([plain, other])
    assert graph.need is not None
    assert graph.need.tolist() == [0, 0, 1]
    assert network.weights is not None
    assert network.weights.tolist() == [1, 1, 3]
    assert network.ends is not None
    assert network.routes.lists() == [[0, 1], [1]]
    assert graph.what.tolist() == [0, 1, -1]
    assert join([plain])[0].need is None
    assert join([plain])[1].weights is None


def test_jobs_must_agree_on_the_links() -> None:
    b = Builder()
    b.transfer(0, 10)
    job = b.graph(), wires([GB_PER_S], [[0]])
    with pytest.raises(ValueError, match="job 1 has other links than job 0"):
        join([job, (b.graph(), wires([2 * GB_PER_S], [[0]]))])
    ends = [replace(job[1], ends=np.array([[0, end]], np.int32)) for end in (1, 2)]
    with pytest.raises(ValueError, match="the links of job 1 join other nodes"):
        join([(job[0], ends[0]), (job[0], ends[1])])


@settings(max_examples=examples(60))
@given(drawn=st.lists(graphs(max_tasks=6), min_size=1, max_size=3), order=st.permutations(range(3)))
def test_the_order_of_jobs_does_not_matter(
    play: Player, drawn: list[tuple[Graph, EngineNetwork]], order: list[int]
) -> None:
    links = np.full(max(len(network.capacity) for _, network in drawn), GB_PER_S, np.int64)
    jobs = [(graph, replace(network, capacity=links)) for graph, network in drawn]
    order = [number for number in order if number < len(jobs)]
    one, other = play(*join(jobs)), play(*join([jobs[number] for number in order]))
    parts = np.split(one.finish, np.cumsum([len(graph) for graph, _ in jobs])[:-1])
    assert other.finish.tolist() == [tick for number in order for tick in parts[number].tolist()]
    assert other.link_bytes.tolist() == one.link_bytes.tolist()


def spans(jobs: list[Job]) -> list[slice]:
    """Tasks of each job."""
    last = np.cumsum([0, *(len(graph) for graph, _ in jobs)]).tolist()
    return [slice(*pair) for pair in pairwise(last)]


def test_a_job_that_arrives_runs_as_it_would_from_the_beginning(play: Player) -> None:
    jobs = [ring_job([0, 1]), ring_job([0, 1])]
    (graph, network), own = join(jobs), spans(jobs)
    alone = play(*jobs[0]).finish
    graph = delay_jobs(graph, own, [LateStart(), LateStart(100 * US)])
    check(graph, network)
    played = play(graph, network)
    assert played.finish[own[0]].tolist() == alone.tolist()
    assert (played.finish[own[1]] - 100 * US).tolist() == alone.tolist()
    assert played.start[own[1]].min() == 100 * US


@pytest.mark.parametrize(("ticks", "begins"), [(0, 4 * US), (3 * US, 4 * US), (9 * US, 9 * US)])
def test_a_job_follows_another(play: Player, ticks: int, begins: int) -> None:
    jobs = [ring_job([0, 1], start=US), ring_job([2, 3]), ring_job([0, 1])]
    (graph, network), own = join(jobs), spans(jobs)
    graph = delay_jobs(graph, own, [LateStart(), LateStart(), LateStart(ticks, after=0)])
    played = play(graph, network)
    assert int(played.start[own[2]].min()) == begins == max(ticks, int(played.finish[own[0]].max()))


@settings(max_examples=examples(30))
@given(job=graphs(), ticks=st.integers(0, 10**9))
def test_what_arrives_alone_is_only_later(play: Player, job: Job, ticks: int) -> None:
    graph, network = job
    played = play(graph, network)
    shifted = play(delay_jobs(graph, [slice(0, len(graph))], [LateStart(ticks)]), network)
    assert (shifted.finish[: len(graph)] - ticks).tolist() == played.finish.tolist()
