"""The longest way through a graph: what playing gives where no transfers meet, and the same from both engines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import triosim
from tests.engine.graphs import GB_PER_S, US, Builder, wires
from tests.exploring import examples
from triosim.collectives.pattern import ring
from triosim.engine.graph import Stuck, Task
from triosim.engine.longest_path import Durations, has_longest_path, longest_path, task_durations
from triosim.engine.monte_carlo import play_many
from triosim.engine.play import ENGINES, play
from triosim.engine.solvers.max_min import MaxMin

MODEL = MaxMin()


def lowered(plan: triosim.Plan, nodes: int = 2):
    found = []
    system = triosim.system("dgx-a100", nodes=nodes)
    triosim.simulate(triosim.model("gpt2"), system, plan, on_finished=lambda run, *_: found.append(run.lowered))
    return found[0]


def drawn(graph, draws=20, kinds=3):
    rng = np.random.default_rng(5)
    kind = np.where(graph.kind == Task.COMPUTE, rng.integers(-1, kinds, len(graph)), -1).astype(np.int32)
    factors, links = rng.uniform(0.7, 1.5, (draws, kinds)), rng.uniform(0.6, 1.4, draws)
    factors[0], links[0] = 1, 1
    return kind, factors, links


@pytest.mark.parametrize("engine", ENGINES)
def test_a_chain_by_hand(engine, monkeypatch):
    monkeypatch.setenv("TRIOSIM_ENGINE", engine)
    builder = Builder()
    first = builder.compute(3 * US, stream=0)
    sent = builder.transfer(0, 2000, before=[first])
    second = builder.compute(5 * US, stream=0)
    builder.join(before=[sent, second])
    graph, network = builder.graph(), wires([GB_PER_S], [[0]], latency=[US])
    took = task_durations(graph, network, MODEL, play(graph, network, MODEL), slower=0.5)
    assert took.fixed.tolist() == [3 * US, US, 5 * US, 0]
    assert took.shared.tolist() == [0, 2 * US, 0, 0]
    kind = np.array([0, -1, 1, -1], np.int32)
    factors, links = np.array([[1, 1], [2, 1], [1, 0.2]]), np.array([1, 1, 0.25])
    ends, found = longest_path(graph, took, kind, factors, links, np.array([1, 0]))
    assert ends.tolist() == [8 * US, 11 * US, 12 * US]
    assert found.tolist() == [[6 * US, 3 * US], [9 * US, 6 * US], [12 * US, 3 * US]]


@pytest.mark.parametrize(
    "plan", [triosim.Plan(zero=3), triosim.Plan(tp=8), triosim.Plan(tp=2, pp=2, micro_batches=4, overlap=False)]
)
def test_where_no_transfers_meet_it_is_what_playing_gives(plan):
    job = lowered(plan)
    kind, factors, links = drawn(job.graph)
    played = play(job.graph, job.wires, MODEL)
    took = task_durations(job.graph, job.wires, MODEL, played, slower=0.8)
    ends, found = longest_path(job.graph, took, kind, factors, links, np.arange(len(job.graph)))
    real = play_many(job.graph, job.wires, MODEL, kind, factors, links)
    assert ends[0] == real[0] == played.finish.max()
    assert (found[0] == played.finish).all()
    alone = play(job.graph, job.wires, MODEL).events
    assert alone == played.events
    assert ends == pytest.approx(real, rel=0.02 if plan.pp > 1 else 1e-4)


@pytest.mark.skipif("native" not in ENGINES, reason="no native engine")
@settings(max_examples=examples(30))
@given(seed=st.integers(0, 2**32 - 1))
def test_both_engines_agree_to_the_bit(seed):
    rng = np.random.default_rng(seed)
    builder = Builder()
    rows: list[int] = []
    for _ in range(int(rng.integers(2, 30))):
        before = [int(row) for row in rng.choice(rows, min(len(rows), int(rng.integers(0, 3))), replace=False)]
        match int(rng.integers(4)):
            case 0:
                rows.append(builder.compute(int(rng.integers(0, 9 * US)), int(rng.integers(-1, 3)), before))
            case 1:
                rows.append(builder.transfer(int(rng.integers(2)), int(rng.integers(1, 9000)), before=before))
            case 2:
                rows.append(builder.join(before))
            case 3:
                rows += builder.collective(ring(2, 1000, 2), [0, 1], before=[before, before])
    graph, network = builder.graph(), wires([GB_PER_S, 2 * GB_PER_S], [[0], [1]], latency=[0, US])
    played = play(graph, network, MODEL)
    took = task_durations(graph, network, MODEL, played, slower=0.7)
    given_ = (*drawn(graph, draws=11), np.arange(len(graph)))
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for engine in ENGINES:
            patch.setenv("TRIOSIM_ENGINE", engine)
            found.append(longest_path(graph, took, *given_))
    assert all((one == other).all() for one, other in zip(*found, strict=True))
    assert (found[0][1][0] == played.finish).all(), "a draw that moves nothing"


@pytest.mark.parametrize("engine", ENGINES)
def test_what_cannot_be_played_so_is_refused(engine, monkeypatch):
    monkeypatch.setenv("TRIOSIM_ENGINE", engine)
    tokens = Builder([0])
    tokens.put(0)
    tokens.take(0)
    some = Builder()
    some.join([some.compute(US), some.compute(2 * US)], need=1)
    for builder in (tokens, some):
        graph = builder.graph()
        assert not has_longest_path(graph)
        nothing = Durations(np.zeros(len(graph)), np.zeros(len(graph)))
        with pytest.raises(ValueError, match="longest way"):
            longest_path(
                graph, nothing, np.full(len(graph), -1, np.int32), np.ones((1, 0)), np.ones(1), np.zeros(0, int)
            )
    circle = Builder()
    circle.compute(US, before=[1])
    circle.compute(US, before=[0])
    graph = circle.graph()
    with pytest.raises(Stuck):
        longest_path(
            graph,
            Durations(np.ones(2), np.zeros(2)),
            np.zeros(2, np.int32),
            np.ones((1, 1)),
            np.ones(1),
            np.zeros(0, int),
        )


@pytest.mark.skipif("native" not in ENGINES, reason="no native engine")
def test_columns_that_make_no_sense_are_refused(monkeypatch):
    builder = Builder()
    builder.compute(US)
    graph = builder.graph()
    took, one = Durations(np.ones(1), np.zeros(1)), np.ones(1)
    good = (took, np.zeros(1, np.int32), np.ones((1, 1)), one, np.zeros(1, np.int64))
    longest_path(graph, *good)
    for place, bad in ((0, Durations(np.ones(2), np.zeros(1))), (1, np.ones(1, np.int32)), (2, np.ones((2, 1))),
                       (4, np.ones(1, np.int64))):  # fmt: skip
        wrong = [*good]
        wrong[place] = bad
        with pytest.raises(ValueError, match="sense"):
            longest_path(graph, *wrong)
    with pytest.raises(ValueError, match="sense"):
        longest_path(replace(graph, what=np.array([5], np.int32), kind=np.array([Task.COLLECTIVE], np.int8)), *good)
