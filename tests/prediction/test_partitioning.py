"""The law of repeated blocks: a short step taken through and repeated is what the long step gives, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import triosim
from tests.exploring import examples
from triosim.plan import Plan
from triosim.prediction import partitioning, priced_job
from triosim.prediction.priced_job import price_job
from triosim.prediction.staged_job import StagedJob, stage_job
from triosim.trace.repeated import differing, repeated
from triosim.trace.tables import Trace

SYSTEM = triosim.system("dgx-h100", 1)


@cache
def model(name: str, layers: int = 0, training: bool = True) -> Trace:
    """A model by name, with so many layers instead of its own."""
    longer = {LAYERS.get(name, "num_hidden_layers"): layers} if layers else None
    return triosim.model(name, sequence_length=128, configuration=longer, training=training)


LAYERS = {"gpt2": "n_layer"}


def _both(
    monkeypatch: pytest.MonkeyPatch, workload: Trace, plan: Plan, repeats: bool = True
) -> tuple[StagedJob, StagedJob]:
    """The job by way of the short step and without it."""
    seen = []

    def spied(*arguments: Any) -> partitioning.PartitionedWorkload:
        seen.append(partitioning.divided(*arguments))
        return seen[-1]

    with monkeypatch.context() as patched:
        patched.setattr(priced_job, "divided", spied)
        short = stage_job(price_job(workload, SYSTEM, plan))
        patched.setattr(partitioning, "repeated", lambda trace: None)
        long = stage_job(price_job(workload, SYSTEM, plan))
    assert [one.short is not None for one in seen] == [repeats, False]
    return short, long


def _different(a: StagedJob, b: StagedJob) -> list[str]:
    pairs = [(a.step, b.step), (a.whole, b.whole), (a.job.recorded, b.job.recorded), (a.stages, b.stages)]
    return [where for mine, theirs in (*pairs, (a.times, b.times)) if (where := differing(mine, theirs))]


# --- which traces repeat ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "repeats"),
    [
        ("gpt2", True), ("llama-3.2-1b", True), ("qwen2.5-0.5b", True), ("qwen3-0.6b", True), ("mixtral-8x7b", True),
        ("gemma-2-2b", True), ("gemma-3-1b", True), ("bert-base", True), ("deepseek-v2-lite", True),
        ("gpt-oss-20b", True), ("resnet50", False),
    ],
)  # fmt: skip
def test_a_model_of_many_layers_is_taken_as_a_short_one(name: str, repeats: bool) -> None:
    workload = triosim.model(name) if name == "resnet50" else model(name)
    of = repeated(workload)
    assert (of is not None) == repeats
    if of is not None:
        assert len(of.short) < len(workload)
        assert differing(of.long(of.short), workload) == ""


def test_the_short_trace_does_not_grow_with_the_layers() -> None:
    few, many = (repeated(model("gpt2", layers)) for layers in (12, 48))
    assert few is not None
    assert many is not None
    assert len(few.short) == len(many.short)
    assert many.copies == few.copies + 36


def test_a_layer_that_differs_is_kept() -> None:
    workload = model("gpt2", 48)
    layer = workload.modules.path.index("transformer.h.20")
    row = int(np.flatnonzero(workload.operators.module == layer + 2)[0])
    times = np.full(len(workload), 1e-3)
    times[row] = 2e-3
    odd = replace(workload, operators=replace(workload.operators, device_s=times))
    of = repeated(odd)
    assert of is not None
    assert np.count_nonzero(of.short.operators.device_s == 2e-3) == 1
    assert differing(of.long(of.short), odd) == ""


def test_a_recording_does_not_repeat() -> None:
    workload = model("gpt2", 48)
    times = np.random.default_rng(0).uniform(1e-5, 1e-3, len(workload))
    assert repeated(replace(workload, operators=replace(workload.operators, device_s=times))) is None


# --- the law ----------------------------------------------------------------------------------------------------------

ENOUGH = 12
"""Layers of which a short step has fewer."""
NAMES = ("gpt2", "llama-3.2-1b", "qwen2.5-0.5b", "gemma-2-2b", "mixtral-8x7b", "bert-base")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "asked",
    [
        {"tp": 8}, {"tp": 2, "parallelism": ("sequence",)}, {"tp": 4, "tp_style": "gather"}, {"zero": 3},
        {"tp": 2, "pp": 2, "zero": 1, "recompute": "full"}, {"tp": 2, "recompute": "selective", "zero": 2},
        {"tp": 2, "parallelism": ("context",), "parallelism_options": {"cp": 2}, "zero": 1},
    ],
    ids=str,
)  # fmt: skip
def test_the_short_step_gives_the_long_one(
    name: str, asked: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "mixtral-8x7b" and "context" in asked.get("parallelism", ()):  # type: ignore[operator]
        asked = {"parallelism": ("experts",), "parallelism_options": {"ep": 4}, "zero": 1}
    plan = Plan(batch_size=8, micro_batches=4).replaced(**asked)
    short, long = _both(monkeypatch, model(name, ENOUGH), plan)
    assert _different(short, long) == []


@pytest.mark.parametrize("name", ["deepseek-v2-lite", "qwen3-30b-a3b", "gpt-oss-20b"])
@pytest.mark.parametrize(
    "asked",
    [
        {"tp": 2}, {"tp": 4, "pp": 2, "recompute": "full"}, {"parallelism_options": {"ep": 8}, "zero": 1},
        {"tp": 2, "pp": 2, "recompute": "selective", "parallelism_options": {"ep": 2}}, {"zero": 3},
    ],
    ids=str,
)  # fmt: skip
def test_experts_and_latent_attention_give_the_same(
    name: str, asked: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = ("experts",) if "parallelism_options" in asked else ()
    plan = Plan(batch_size=8, micro_batches=1).replaced(**asked, parallelism=rules)
    short, long = _both(monkeypatch, model(name, ENOUGH), plan)
    assert _different(short, long) == []


@settings(max_examples=examples(25))
@given(
    name=st.sampled_from(NAMES[:3]),
    tp=st.sampled_from([1, 2, 4, 8]),
    recompute=st.sampled_from(["none", "full", "selective"]),
    zero=st.sampled_from([0, 1, 2, 3]),
    rests=st.booleans(),
    samples=st.sampled_from([1, 2, 4]),
    parts=st.sampled_from([1, 3]),
    training=st.booleans(),
)
def test_every_plan_gives_the_same_with_and_without_a_short_step(
    name: str, tp: int, recompute: str, zero: int, rests: bool, samples: int, parts: int, training: bool
) -> None:
    plan = Plan(
        tp=tp, recompute=recompute if training else "none", zero=zero if training else 0,  # type: ignore[arg-type]
        parallelism=("sequence",) if rests else (), batch_size=samples * parts, micro_batches=parts, training=training,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patched:
        short, long = _both(patched, model(name, LONGER[name], training), plan)
    assert _different(short, long) == []


LONGER = {"gpt2": 12, "llama-3.2-1b": 13, "qwen2.5-0.5b": 15}


def test_a_plan_by_module_sees_the_whole_step(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(tp=2, tp_plan={"transformer.h.7.mlp.c_fc": "colwise", "transformer.h.7.mlp.c_proj": "rowwise"})
    short, long = _both(monkeypatch, model("gpt2"), plan, repeats=False)
    assert len(short.step.transfers) == 2
    assert _different(short, long) == []


def test_plans_that_differ_in_what_replicas_divide_share_a_divided_step() -> None:
    steps = [stage_job(price_job(model("gpt2", 12), SYSTEM, Plan(tp=2, zero=stage))).step for stage in (0, 1, 2)]
    assert steps[0].homes is steps[1].homes is steps[2].homes
    assert steps[0].trace.operators.phase is steps[1].trace.operators.phase
    assert steps[0].trace.values is not steps[1].trace.values  # the optimizer works on shards
