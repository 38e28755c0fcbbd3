"""The law of equal turns: a job played as a short one says the same as the whole one, to the last digit."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import triosim
from triosim import Fidelity, Plan, Trace
from triosim.prediction import playing, simulate, steady
from triosim.prediction.priced_job import price_job
from triosim.prediction.result import Result
from triosim.prediction.staged_job import stage_job
from triosim.schedule.actions import SCHEDULES

SYSTEM = triosim.system("dgx-h100", 2)


@cache
def model(name: str = "llama-3.2-1b") -> Trace:
    return triosim.model(name, sequence_length=1024)


def both(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, fidelity: Fidelity | None = None, name: str = "llama-3.2-1b"
) -> tuple[Result, Result, bool]:
    """Played as a short job, as the whole one, and whether the short one was enough."""
    seen: list[bool] = []
    played = simulate.play_short

    def spied(*arguments: Any) -> Any:
        seen.append(False)
        found = played(*arguments)
        seen[-1] = True
        return found

    with monkeypatch.context() as patched:
        patched.setattr(simulate, "play_short", spied)
        short = triosim.simulate(model(name), SYSTEM, plan, fidelity)
    return short, triosim.simulate(model(name), SYSTEM, plan, fidelity, at_once=True), seen == [True]


def different(one: Result, other: Result) -> list[str]:
    return [f.name for f in fields(one) if f.compare and getattr(one, f.name) != getattr(other, f.name)]


BATCH = {"micro_batches": 40, "batch_size": 80}


@pytest.mark.parametrize(
    "asked",
    [
        {"pp": 4, "tp": 2}, {"pp": 4, "zero": 1, "recompute": "full"}, {"pp": 2, "tp": 8, "overlap": False},
        {"pp": 4, "tp": 2, "recompute": "selective", "parallelism": ("sequence",)}, {"dp": 16}, {"tp": 8, "zero": 1},
        {"pp": 4, "dp": 1, "idle_ok": True, "stages": tuple(f"model.layers.{n}" for n in (3, 8, 12))},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("host", ["none", "graph", "eager"])
def test_a_short_job_says_what_the_whole_one_does(
    asked: dict[str, Any], host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, whole, enough = both(monkeypatch, Plan().replaced(**asked, **BATCH), Fidelity(host=host))
    assert different(short, whole) == []
    if host == "none" and asked in ({"pp": 2, "tp": 8, "overlap": False}, {"dp": 16}, {"tp": 8, "zero": 1}):
        assert enough


@pytest.mark.parametrize(
    ("asked", "models"),
    [
        ({"schedule": "gpipe"}, {}), ({"schedule": "interleaved-1f1b"}, {}), ({"schedule": "zb-h1"}, {}),
        ({"zero": 3, "pp": 1}, {}), ({"iterations": 2}, {}), ({"offload": ("activations",)}, {}),
        ({"micro_batches": 16, "batch_size": 16}, {}),
    ],
    ids=str,
)  # fmt: skip
def test_other_jobs_are_played_as_they_are(
    asked: dict[str, Any], models: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan().replaced(**{"pp": 4, "tp": 2, **BATCH, **asked})
    assert steady.shortened(stage_job(price_job(model(), SYSTEM, plan, Fidelity(**models, host="graph")))) is None


def test_with_interference_and_without() -> None:
    plan = Plan(pp=2, zero=1, micro_batches=40, batch_size=80)
    for slowdown in (1.0, 1.3):
        fidelity = Fidelity(host="none", interference=slowdown)
        short, whole = (triosim.simulate(model(), SYSTEM, plan, fidelity, at_once=once) for once in (False, True))
        assert different(short, whole) == []


def test_what_needs_the_whole_job_is_that_of_the_whole_job() -> None:
    plan, fidelity = Plan(pp=2, tp=8, micro_batches=40, batch_size=80), Fidelity(host="none")
    short, whole = (triosim.simulate(model(), SYSTEM, plan, fidelity, at_once=once) for once in (False, True))
    assert short.interval_s == whole.interval_s
    assert short.layers == whole.layers
    assert short.energy == whole.energy


def test_turns_are_found_only_where_more_micro_batches_are_more_turns() -> None:
    schedule = SCHEDULES.get("1f1b")()
    assert [steady._warm(schedule, stage, 4, 16, 30, 11) for stage in range(4)] == [3, 2, 1, 0]
    assert steady._warm(SCHEDULES.get("gpipe")(), 0, 4, 16, 30, 11) == -1


def test_turns_that_take_different_times_are_told() -> None:
    plan = Plan(pp=2, tp=8, micro_batches=40, batch_size=80)
    short = steady.shortened(stage_job(price_job(model(), SYSTEM, plan, Fidelity(host="none"))))
    assert short is not None
    job = simulate.written(short.made)
    lowered, _ = playing.lowered_job(job, fold=True)
    played = playing.play(lowered.graph, lowered.wires, simulate.network_model("max-min", {}))
    assert steady.regular(short, job.programs, lowered, played).ticks > 0
    program = job.programs[lowered.program[0]]
    row = int(short.turns(program)[-2]) + 1
    finish = played.finish + (np.arange(len(played.finish)) == row)
    with pytest.raises(steady.NotSteady):
        steady.regular(short, job.programs, lowered, replace(played, finish=finish))
