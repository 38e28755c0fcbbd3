"""A prediction that is made again, or with something changed, costs what changed and says the same as a first one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import triosim
from triosim import Fidelity, Plan, Trace
from triosim.hardware.system import System
from triosim.prediction import playing, prepare
from triosim.prediction import result as results


@pytest.fixture(scope="module")
def gpt2() -> Trace:
    return triosim.model("gpt2", sequence_length=64)


@pytest.fixture(scope="module")
def system() -> System:
    return triosim.system("dgx-a100", nodes=2)


@pytest.fixture
def forgetful() -> Iterator[None]:
    """What was kept before is gone."""
    forget()
    yield
    forget()


def forget() -> None:
    prepare._WRITTEN.forget()
    playing._LOWERED.forget()
    playing._PLAYED.forget()


PLAN = Plan(tp=2, pp=2, dp=4, micro_batches=4)
CHANGES: dict[str, tuple[Plan, Fidelity]] = {
    "micro-batches": (PLAN.replaced(micro_batches=8), Fidelity()),
    "schedule": (PLAN.replaced(schedule="gpipe"), Fidelity()),
    "zero": (PLAN.replaced(zero=1), Fidelity()),
    "overlap": (PLAN.replaced(overlap=False), Fidelity()),
    "iterations": (PLAN.replaced(iterations=2), Fidelity()),
    "buckets": (PLAN.replaced(bucket_bytes=1_000_000), Fidelity()),
    "stages": (PLAN.replaced(stages=("transformer.h.3",)), Fidelity()),
    "axis order": (PLAN.replaced(axis_order=("dp", "pp", "tp")), Fidelity()),
    "placement": (PLAN.replaced(placement=tuple(range(15, -1, -1))), Fidelity()),
    "solver": (PLAN, Fidelity(solver="equal-split")),
    "slowdown": (PLAN, Fidelity(interference=1.5)),
    "host": (PLAN, Fidelity(host="graph")),
    "fold": (PLAN, Fidelity(fold=False)),
    "operator times": (PLAN, Fidelity(operator_times="roofline")),
    "algorithm": (PLAN, Fidelity(collective_algorithm="tree")),
}


def shown(result: results.Result) -> dict:
    """All that a result says, but for what the run cost."""
    assert result.interval_s
    return result.to_dict()


@pytest.mark.parametrize("what", CHANGES)
def test_what_was_kept_of_another_prediction_changes_nothing(
    what: str, gpt2: Trace, system: System, forgetful: None
) -> None:
    plan, fidelity = CHANGES[what]
    first = shown(triosim.simulate(gpt2, system, plan, fidelity))
    base = shown(triosim.simulate(gpt2, system, PLAN))
    after = shown(triosim.simulate(gpt2, system, plan, fidelity))
    assert after == first
    if what != "fold":
        assert after != base


def test_another_machine_is_another_prediction(gpt2: Trace, system: System, forgetful: None) -> None:
    base = triosim.simulate(gpt2, system, PLAN)
    faster = triosim.simulate(gpt2, triosim.system("dgx-h100", nodes=2), PLAN)
    assert faster.iteration_time_s < base.iteration_time_s
    assert shown(triosim.simulate(gpt2, system, PLAN)) == shown(base)


def test_nothing_is_written_or_played_twice(
    gpt2: Trace, system: System, monkeypatch: pytest.MonkeyPatch, forgetful: None
) -> None:
    first = triosim.simulate(gpt2, system, PLAN)

    def never(*given: object, **named: object) -> None:
        raise AssertionError("done again")

    played = playing.play
    with monkeypatch.context() as patch:
        patch.setattr(prepare, "each_program", never)
        patch.setattr(playing, "lower", never)
        patch.setattr(playing, "play", never)
        again = triosim.simulate(gpt2, system, PLAN)
        patch.setattr(playing, "play", played)
        slower = triosim.simulate(gpt2, system, PLAN, Fidelity(interference=2.0))  # plays again what was lowered
    assert shown(again) == shown(first)
    assert slower.breakdown_s.compute > first.breakdown_s.compute
