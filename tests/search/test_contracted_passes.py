"""Passes are run in C++ to the rows to which Python runs them."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import triosim
from tests.asked import asked as both_of
from tests.exploring import examples
from triosim.cli.workloads import load_workload
from triosim.composition.host import HostCosts
from triosim.engine import operator_chain as engine
from triosim.prediction.priced_job import price_job
from triosim.prediction.staged_job import stage_job
from triosim.schedule._stage import JobFacts, StageFacts
from triosim.schedule.gathering import UngatheredUnits
from triosim.search.contracted_passes import PassRun, StageContraction, WrittenPass
from triosim.search.operator_chain import OperatorChain
from triosim.search.outline import job_facts
from triosim.search.pass_script import PassScript, StageScripts
from triosim.search.transfer_times import SharedLinks

native = pytest.mark.skipif(engine._native is None, reason="the native engine is not built")

PLANS: list[dict[str, Any]] = [
    {"tp": 2, "pp": 4},
    {"tp": 2, "pp": 2, "zero": 3, "recompute": "full"},
    {"tp": 2, "pp": 1, "zero": 3},
    {"tp": 4, "pp": 2, "schedule": "interleaved-1f1b", "parallelism": ("sequence",)},
    {"tp": 2, "pp": 2, "zero": 2, "parallelism": ("sequence",), "schedule": "interleaved-1f1b"},
]


@functools.cache
def job(number: int) -> tuple[JobFacts, HostCosts]:
    """A job of the plan of that number, and what launching costs."""
    trace, machine = load_workload("llama-3.2-1b", seq_len=512, training=True), triosim.system("dgx-a100", 2)
    run = both_of(micro_batches=8, batch_size=8, host="eager", **PLANS[number])
    made = stage_job(price_job(trace, machine, *run))
    return job_facts(made), made.launching


class Drawn:
    """Transfers that take what is drawn."""

    def __init__(self, draw: np.random.Generator) -> None:
        self.draw, self.known = draw, dict[object, int]()

    def collective(self, call: object) -> int:
        return self.known.setdefault(call, int(self.draw.integers(0, 10**8)))

    def label(self, call: object) -> int:
        return list(self.known).index(call)

    def boundary(self, boundary: object, back: bool) -> tuple[int, int]:
        return self.collective((id(boundary), back)), self.label((id(boundary), back))

    def send(self, source: int, target: int, size: int) -> tuple[int, int]:
        return self.collective((source, target)), self.label((source, target))


def stage(number: int, at: int, seed: int, slowdown: float, tensor: SharedLinks) -> StageContraction:
    """A stage of a job whose operators, and all that is exchanged, take what is drawn."""
    facts, launching = job(number)
    draw = np.random.default_rng(seed)
    calls = [(what, size, axis) for size, what, axis in facts.exchanged]
    longest = float(draw.choice([1e-6, 1e-4, 1e-3]))
    seconds = draw.uniform(0, longest, len(facts.phase)) * (draw.random(len(facts.phase)) < 0.9)
    ticks = {call: int(draw.integers(0, longest * 2e12)) for call in calls}
    lags = {call: int(draw.integers(0, 1 + own)) for call, own in ticks.items()}
    if seed % 2:
        launching = replace(launching, mode="none")
    chain = OperatorChain(facts, launching, slowdown, ticks, tensor, lags, np.asarray(seconds, np.float64))
    of = StageFacts(facts, at % facts.pipeline)
    return StageContraction(StageScripts(of), of, chain, Drawn(draw))


def scripts(of: StageContraction, draw: st.DataObject) -> PassScript:
    """A pass of it."""
    part = draw.draw(st.sampled_from(of.facts.parts))
    needs = UngatheredUnits(draw.draw(st.booleans()), draw.draw(st.booleans()))
    return of.scripts.of(part.chunk, draw.draw(st.sampled_from(list(part.rows))), draw.draw(st.booleans()), needs)


def same(one: WrittenPass, other: WrittenPass) -> None:
    for name in ("facts", "host_delay", "before"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    for name in ("ports", "calls", "host", "reduces", "waiting_exposed"):
        assert getattr(one, name) == getattr(other, name), name


@native
@settings(max_examples=examples(150))
@given(
    number=st.integers(0, len(PLANS) - 1), at=st.integers(0, 3), seed=st.integers(0, 10**6), leads=st.booleans(),
    slowdown=st.sampled_from([1.0, 1.15, 1.6]),
    tensor=st.sampled_from([SharedLinks(1.0, 1.0, 1.0), SharedLinks(1.3, 1.7, 1.4)]), data=st.data(),
)  # fmt: skip
def test_rows_are_the_same_without_a_compiler(
    number: int, at: int, seed: int, leads: bool, slowdown: float, tensor: SharedLinks, data: st.DataObject
) -> None:
    of = stage(number, at, seed, slowdown, tensor)
    script = scripts(of, data)
    found, plain = of.run(script, leads), PassRun(of, script, leads).run()
    same(found, plain)
    assert (found.facts[:, 3] >= 0).all()
    work = of.chain.ticks[script.rows][~np.array(of.job.skipped)[script.rows]].sum()
    computed = found.facts[(found.facts[:, 0] == 0) & (found.facts[:, 1] == 0), 3].sum()
    assert computed >= work  # collectives beside operators only slow them down


@native
def test_scripts_that_make_no_sense_are_refused() -> None:
    of = stage(1, 0, 2, 1.0, SharedLinks(1.0, 1.0, 1.0))
    part = of.facts.parts[0]
    script = of.scripts.of(part.chunk, next(iter(part.rows)), True, UngatheredUnits(True, True))
    times = np.array(of.timed(script), np.int64).reshape(-1)
    rows, steps, *others = script.columns
    for column, value in ((0, 11), (1, 10**6), (2, 10**6), (3, 9)):
        wrong = steps.copy()
        wrong[:, column] = value
        with pytest.raises(ValueError):
            of.chain.native.contracted((rows, wrong, *others), times, False)
    with pytest.raises(ValueError):
        of.chain.native.contracted((rows + len(of.job.phase), steps, *others), times, False)
    with pytest.raises(ValueError):
        of.chain.native.contracted(script.columns, times[:-1], False)
