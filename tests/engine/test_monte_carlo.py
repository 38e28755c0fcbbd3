"""Many draws in one call end when each of them ends alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import triosim
from tests.engine.compare import compare_draws
from tests.engine.graphs import GB_PER_S, US, Builder, wires
from triosim.engine.graph import BEYOND
from triosim.engine.monte_carlo import play_many, scale_amounts
from triosim.engine.play import ENGINES, play
from triosim.engine.solvers.equal_split import EqualSplit
from triosim.engine.solvers.max_min import MaxMin
from triosim.network.sharing import network_model


def lowered():
    found = []
    system = triosim.system("dgx-a100", nodes=2)
    plan = triosim.Plan(dp=4, tp=2, pp=2, micro_batches=4)
    triosim.simulate(triosim.model("gpt2"), system, plan, on_finished=lambda run, *_: found.append(run.lowered))
    return found[0]


@pytest.mark.parametrize("model", [MaxMin, EqualSplit, lambda: network_model("uncontended", {})])
def test_each_draw_ends_when_it_ends_alone(model):
    job = lowered()
    if not model().weighted:
        pytest.skip("the job is folded")
    graph, wires = job.graph, job.wires
    kind = np.random.default_rng(0).integers(-1, 3, len(graph)).astype(np.int32)
    kind[graph.kind != 0] = -1
    factors = np.array([[1.0, 1.0, 1.0], [1.3, 0.7, 1.0], [0.5, 2.0, 1.1]])
    links = np.array([1.0, 1.0, 0.5])
    ends = play_many(graph, wires, model(), kind, factors, links)
    for row, link, end in zip(factors, links, ends.tolist(), strict=True):
        amount = scale_amounts(graph.amount, np.where(kind < 0, 1.0, row[kind]))
        capacity = np.where(
            wires.capacity < 0, wires.capacity, scale_amounts(wires.capacity, np.full(len(wires.capacity), link))
        )
        alone = play(replace(graph, amount=amount), replace(wires, capacity=capacity), model())
        assert alone.finish.max() == end
    assert play(graph, wires, model()).finish.max() == ends[0]
    assert ends[2] > ends[0]


@pytest.mark.skipif("native" not in ENGINES, reason="no compiler was there at installation")
def test_draws_of_any_graph_end_when_they_end_alone():
    compare_draws(60, first=500)


def test_the_python_engine_gives_the_same(monkeypatch):
    job = lowered()
    kind = np.where(job.graph.kind == 0, 0, -1).astype(np.int32)
    given = (kind, np.array([[1.0], [1.25]]), np.array([1.0, 0.8]))
    ends = play_many(job.graph, job.wires, MaxMin(), *given)
    monkeypatch.setenv("TRIOSIM_ENGINE", "reference")
    assert play_many(job.graph, job.wires, MaxMin(), *given).tolist() == ends.tolist()
    assert "reference" in ENGINES


@pytest.mark.parametrize("engine", ENGINES)
def test_a_draw_that_cannot_be_counted_is_as_long_as_can_be(monkeypatch, engine):
    """A large spread once let ticks wrap around: 64 bits are 106 days."""
    monkeypatch.setenv("TRIOSIM_ENGINE", engine)
    b = Builder()
    b.compute(2**60)
    b.transfer(0, 1000, before=[0])
    job = b.graph(), wires([GB_PER_S], [[0]])
    kind, links = np.array([0, -1], np.int32), np.array([1.0, 1.0, 1.0, 0.5])
    ends = play_many(*job, MaxMin(), kind, np.array([[1.0], [9.0], [1e300], [7.5]]), links)
    assert ends.tolist() == [2**60 + US, BEYOND, BEYOND, int(7.5 * 2**60) + 2 * US]


def test_amounts_are_scaled_to_the_nearest_and_never_wrap_around():
    amount = np.array([3, 5, 2**62, 2**63 - 1, 0])
    assert scale_amounts(amount, np.array([0.5, 1.0, 4.0, 1.0, 1e300])).tolist() == [2, 5, BEYOND, 2**63 - 1, 0]
