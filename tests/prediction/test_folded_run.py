"""Every rank by itself: what is played, and drawn for the interval, is folded where that is the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import triosim
from triosim import Fidelity, Plan
from triosim.engine.play import play
from triosim.prediction import playing, simulate, uncertainty
from triosim.prediction.folded_run import folded


@pytest.mark.parametrize("plan", [Plan(tp=4), Plan(tp=4, pp=2, micro_batches=2, batch_size=8)])
def test_the_interval_is_the_same(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
    monkeypatch.setattr(uncertainty, "BUDGET", 0)  # no job is small
    trace = triosim.model("gpt2", sequence_length=64, configuration={"n_layer": 4})
    system = triosim.system("dgx-h100", nodes=2)
    drawn: list[int] = []

    def counting(job, lowered, *rest):
        drawn.append(len(lowered.graph))
        return uncertainty.uncertainty(job, lowered, *rest)

    monkeypatch.setattr(simulate, "uncertainty", counting)
    same, alone = (triosim.simulate(trace, system, plan, Fidelity(fold=fold), fit=False) for fold in (True, False))
    assert alone.interval_s == same.interval_s
    assert len(drawn) == 2
    assert drawn[0] == drawn[1] < alone.simulation.tasks


def test_ranks_that_did_not_do_the_same_are_not_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = triosim.model("gpt2", sequence_length=64, configuration={"n_layer": 4})
    played, kept = playing.play_job, []

    def keeping(job, communication, *rest, **how):
        kept.append((job, communication, played(job, communication, *rest, **how)))
        return kept[-1][-1]

    monkeypatch.setattr(simulate, "play_job", keeping)
    triosim.simulate(trace, triosim.system("dgx-h100", nodes=2), Plan(tp=4), Fidelity(fold=False), fit=False)
    job, communication, found = kept[0]
    assert folded(job, communication, found.run, found.played, found.amount) is not None
    finish = found.run.played.finish.copy()
    finish[-1] += 1
    run = replace(found.run, played=replace(found.run.played, finish=finish))
    assert np.unique(run.alike).size == np.unique(found.run.alike).size + 1
    assert folded(job, communication, run, found.played, found.amount) is None


@pytest.mark.parametrize(
    ("plan", "slow"),
    [(Plan(tp=4), "auto"), (Plan(tp=4, pp=2, micro_batches=4, batch_size=8), "auto"), (Plan(), 1.6), (Plan(tp=8), 40)],
)
def test_only_the_last_play_is_of_every_rank(monkeypatch: pytest.MonkeyPatch, plan: Plan, slow: str | float) -> None:
    """What went before is played folded; also where so slow a one does not come to an end of it in time."""
    trace = triosim.model("gpt2", sequence_length=64, configuration={"n_layer": 4})
    system = triosim.system("dgx-h100", nodes=16)
    played: list[int] = []

    def counting(graph, *rest):
        played.append(len(graph))
        return play(graph, *rest)

    def simulated(fewest: int):
        playing._PLAYED.forget()
        played.clear()
        monkeypatch.setattr(playing, "FEWEST_TASKS", fewest)
        return triosim.simulate(trace, system, plan, Fidelity(fold=False, interference=slow), fit=False)

    monkeypatch.setattr(playing, "play", counting)
    whole = simulated(1 << 40)
    every, often = max(played), len(played)
    assert played == [every] * often
    assert often > 1
    known = simulated(0)
    assert [tasks for tasks in played if tasks == every] == [every]
    assert len(played) == often + 1
    assert known.to_dict() == whole.to_dict()
