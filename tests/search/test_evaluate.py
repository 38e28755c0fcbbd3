"""A plan that is evaluated has the figures of the full prediction."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import triosim
from tests.asked import asked as both_of
from tests.exploring import examples
from triosim.cli.workloads import load_workload
from triosim.core.errors import InputError
from triosim.engine import contention_free
from triosim.fidelity import Fidelity
from triosim.plan import Plan
from triosim.prediction.simulate import simulate
from triosim.search.evaluate import NotEvaluated, evaluate_plan, unsupported_reason
from triosim.search.grid import with_fields
from triosim.search.outcome import Figures, figures
from triosim.search.plan_figures import evaluated_figures

WITHIN = 1e-3
"""What evaluated times may differ where collectives slow down what computes beside them: both stop when settled."""

CUT = ("transformer.h.8",)
"""Where devices alone are balanced.  Cut where hosts are, at the seventh block, the first of the plans with it computes
0.12 % less than a full prediction says, and the second, which is outlined, takes 0.34 % longer."""

PLANS: list[dict[str, Any]] = [
    {"tp": 8, "pp": 2, "micro_batches": 4},
    {"tp": 8, "pp": 4, "micro_batches": 8, "recompute": "full"},
    {"tp": 8, "pp": 4, "micro_batches": 8, "zero": 1, "recompute": "selective"},
    {"tp": 8, "pp": 4, "micro_batches": 8, "parallelism": ("sequence",)},
    {"tp": 8, "pp": 2, "micro_batches": 4, "schedule": "interleaved-1f1b"},
    {"tp": 8, "pp": 4, "micro_batches": 8, "schedule": "gpipe"},
    {"tp": 8, "pp": 4, "micro_batches": 4, "schedule": "zb-h1"},
    {"tp": 8, "pp": 1, "micro_batches": 4},
    {"tp": 4, "pp": 2, "micro_batches": 4, "stages": CUT},
    {"tp": 2, "pp": 4, "micro_batches": 4, "zero": 1},
    {"tp": 2, "pp": 2, "micro_batches": 4, "bucket_bytes": 1 << 20, "stages": CUT},
    {"tp": 1, "pp": 4, "micro_batches": 8, "host": "none"},
    {"tp": 8, "pp": 4, "micro_batches": 1},
]


@pytest.fixture(scope="module")
def workload() -> triosim.Trace:
    return load_workload("gpt2", seq_len=256, training=True)


@pytest.fixture(scope="module")
def machine() -> triosim.System:
    return triosim.system("dgx-a100", 4)


def both(workload: triosim.Trace, machine: triosim.System, run: tuple[Plan, Fidelity]) -> tuple[Figures, Figures]:
    """Evaluated, and of a full prediction."""
    return evaluated_figures(evaluate_plan(workload, machine, *run)), figures(
        simulate(workload, machine, *run, fit=False)
    )


def same_but_for_times(found: Figures, whole: Figures) -> None:
    for name in ("sizes", "reserved_bytes", "capacity_bytes", "fits", "warnings"):
        assert getattr(found, name) == getattr(whole, name)


@pytest.mark.parametrize("asked", PLANS, ids=str)
def test_without_interference_every_figure_is_equal(
    workload: triosim.Trace, machine: triosim.System, asked: dict[str, Any]
) -> None:
    run = both_of(global_batch_size=128, interference="off", **asked)
    job = evaluate_plan(workload, machine, *run)
    found, whole = evaluated_figures(job), figures(simulate(workload, machine, *run, fit=False))
    assert found.way == "evaluated"
    rel = WITHIN if job.contended_sends else 1e-12
    for name, value in asdict(replace(whole, way="evaluated")).items():
        assert getattr(found, name) == (pytest.approx(value, rel=rel) if isinstance(value, float) else value), name


@pytest.mark.parametrize("asked", PLANS, ids=str)
def test_with_interference_times_are_within_a_thousandth(
    workload: triosim.Trace, machine: triosim.System, asked: dict[str, Any]
) -> None:
    try:
        found, whole = both(workload, machine, both_of(global_batch_size=128, **asked))
    except NotEvaluated as reason:
        assert "differently" in str(reason)  # noqa: PT017
        (outcome,) = triosim.sweep(workload, machine, [{"global_batch_size": 128, **asked}])
        assert outcome.figures is not None
        assert outcome.figures.way != "evaluated"
        alone = figures(simulate(workload, machine, *both_of(global_batch_size=128, **asked), fit=False))
        assert outcome.figures.iteration_time_s == pytest.approx(alone.iteration_time_s, rel=WITHIN)
        return
    assert found.iteration_time_s == pytest.approx(whole.iteration_time_s, rel=WITHIN)
    assert found.compute_s == pytest.approx(whole.compute_s, rel=WITHIN)
    same_but_for_times(found, whole)


@pytest.mark.parametrize("name", ["llama-3.2-1b", "bert-base"])
def test_other_models(name: str, machine: triosim.System) -> None:
    asked = {"tp": 4, "pp": 2, "micro-batch-size": 1, "recompute": "full", "interference": "off"}
    run = with_fields(Plan(global_batch_size=16, sequence_length=256), Fidelity(), asked)
    found, whole = both(load_workload(name, training=True), machine, run)
    assert found.iteration_time_s == whole.iteration_time_s
    assert found.binds == whole.binds
    same_but_for_times(found, whole)


@settings(max_examples=examples(60))
@given(
    tp=st.sampled_from([1, 2, 4, 8]), pp=st.sampled_from([1, 2, 4]), parts=st.sampled_from([1, 2, 4, 8]),
    schedule=st.sampled_from(["1f1b", "gpipe", "interleaved-1f1b", "zb-h1"]), zero=st.sampled_from([0, 1]),
    recompute=st.sampled_from(["none", "full", "selective"]), sequence=st.booleans(),
    host=st.sampled_from([None, "none", "compiled"]),
)  # fmt: skip
def test_any_plan_ends_when_it_does(
    workload: triosim.Trace, machine: triosim.System, tp: int, pp: int, parts: int, schedule: str, zero: int,
    recompute: str, sequence: bool, host: str | None,
) -> None:  # fmt: skip
    rules = ("sequence",) if sequence and tp > 1 else ()
    try:
        run = both_of(
            tp=tp, pp=pp, micro_batches=parts, batch_size=8, schedule=schedule, zero=zero, recompute=recompute,
            parallelism=rules, host=host, interference="off",
        )  # fmt: skip
        found = evaluate_plan(workload, machine, *run)
    except (InputError, NotEvaluated):
        assume(False)
    whole = simulate(workload, machine, *run, fit=False)
    assert found.end * 1e-12 == pytest.approx(whole.iteration_time_s, rel=WITHIN if found.contended_sends else 1e-12)
    assert found.reserved == whole.memory.reserved_bytes


def test_memory_is_that_of_all_micro_batches(workload: triosim.Trace, machine: triosim.System) -> None:
    """Two micro-batches more shift the allocator's blocks by a segment."""
    run = both_of(pp=4, micro_batches=8, batch_size=8, zero=1, recompute="full", interference="off")
    whole = simulate(workload, machine, *run, fit=False)
    assert evaluate_plan(workload, machine, *run).reserved == whole.memory.reserved_bytes


def test_without_a_compiler_it_is_the_same(
    workload: triosim.Trace, machine: triosim.System, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(global_batch_size=128, **PLANS[1])
    before = evaluate_plan(workload, machine, plan).end
    monkeypatch.setattr(contention_free, "_native", None)
    assert evaluate_plan(workload, machine, plan).end == before


@pytest.mark.parametrize(
    "asked", [{"iterations": 2}, {"zero": 2}, {"overlap": False}, {"offload": ("optimizer",)}, {"training": False}]
)
def test_what_cannot_be_evaluated_says_so_and_is_simulated(
    workload: triosim.Trace, machine: triosim.System, asked: dict[str, Any]
) -> None:
    plan = Plan(tp=8, pp=2, micro_batches=2, batch_size=2, **asked)
    assert unsupported_reason(plan, Fidelity())
    with pytest.raises(NotEvaluated):
        evaluate_plan(workload, machine, plan)
    (outcome,) = triosim.sweep(workload, machine, [plan])
    assert outcome.figures is not None
    assert outcome.figures == figures(simulate(workload, machine, plan, fit=False))
    assert outcome.figures.way == "simulated"


@pytest.mark.parametrize("schedule", ["zb-v", "dualpipe-v"])
def test_chunks_in_a_v_are_simulated(workload: triosim.Trace, machine: triosim.System, schedule: str) -> None:
    plan = Plan(tp=8, pp=2, micro_batches=4, batch_size=4, schedule=schedule)
    with pytest.raises(NotEvaluated, match="chunks that are not placed in turn"):
        evaluate_plan(workload, machine, plan)
