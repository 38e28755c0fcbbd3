"""A forward and a backward that are run in turn, so that the tokens of experts travel behind computation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import triosim
from tests.asked import asked
from tests.partition.test_experts import LENGTH, SIZES
from triosim.partition.transfers import ALL_TO_ALL
from triosim.prediction.prepare import CompiledJob, prepare
from triosim.schedule.actions import SCHEDULES, Pass
from triosim.schedule.interleaving import pairs, places, reordered
from triosim.schedule.program import Op, Program

SCHEDULE = [("1f1b", {}, 1), ("1f1b", {}, 2), ("1f1b", {}, 4), ("interleaved-1f1b", {"chunks": 2}, 2),
            ("dualpipe-v", {}, 2)]  # fmt: skip
LAYERS = 4


def _plan(schedule: str, options: dict[str, Any], pp: int, experts: bool = True, **more: Any) -> Any:
    rules = {"parallelism": ("experts",), "parallelism_options": {"ep": 4}} if experts else {}
    plan = {"pp": pp, "dp": 4, "idle_ok": True, "micro_batches": 8, "batch_size": 8, "schedule": schedule,
            "schedule_options": options, **rules, **more}  # fmt: skip
    return asked(host="none", interference=1.0, **plan)


def _workload(**sizes: int) -> Any:
    sizes = {**SIZES, "num_hidden_layers": LAYERS, **sizes}
    return triosim.model("mixtral-8x7b", sequence_length=LENGTH, configuration=sizes)


def _job(*plan: Any, **more: Any) -> CompiledJob:
    return prepare(_workload(), triosim.system("dgx-h100", nodes=2), *_plan(*plan, **more))


def _of(program: Program, *, micro_batch: int, backward: bool, phase: np.ndarray) -> list[tuple]:
    """What a pass of a micro-batch runs, in order."""
    is_back = np.where(program.operator >= 0, phase[np.maximum(program.operator, 0)] != 0, False)
    rows = np.flatnonzero((program.micro_batch == micro_batch) & (is_back == backward))
    columns = (program.op, program.stream, program.operator, program.bytes, program.what, program.tag)
    return list(zip(*(column[rows].tolist() for column in columns), strict=True))


@pytest.mark.parametrize(("schedule", "options", "pp"), SCHEDULE)
def test_each_pass_runs_what_it_runs_alone_in_the_same_order(schedule: str, options: dict, pp: int) -> None:
    job = _job(schedule, {**options, "combined": True}, pp)
    phase = job.step.trace.operators.phase
    plain = _job(schedule, {**options, "combined": False}, pp)
    for program, other in zip(job.programs, plain.programs, strict=True):
        assert len(program) == len(other)
        for m in range(8):
            for backward in (False, True):
                which = {"micro_batch": m, "backward": backward, "phase": phase}
                own, theirs = _of(program, **which), _of(other, **which)
                assert own == theirs if options == {} and schedule == "1f1b" else sorted(own) == sorted(theirs)
        waits = np.repeat(np.arange(len(program)), program.before.lengths())
        assert np.all(program.before.values < waits)  # nothing waits for what comes after it


@pytest.mark.parametrize(("schedule", "options", "pp"), SCHEDULE)
def test_tokens_travel_behind_computation(schedule: str, options: dict, pp: int) -> None:
    system, workload = triosim.system("dgx-h100", nodes=2), _workload(hidden_size=1024, intermediate_size=2048)
    on, off = (
        triosim.simulate(workload, system, *_plan(schedule, {**options, "combined": combined}, pp))
        for combined in (True, False)
    )
    moved = [sum(r.bytes * r.count for r in one.collectives) for one in (on, off)]
    assert moved[0] == moved[1]
    assert on.breakdown_s.compute == pytest.approx(off.breakdown_s.compute, rel=1e-9)
    assert on.breakdown_s.exposed_communication < 0.8 * off.breakdown_s.exposed_communication
    assert on.iteration_time_s < off.iteration_time_s


@pytest.mark.parametrize(("schedule", "options", "pp"), [("dualpipe-v", {}, 2), ("dualpipe-v", {}, 4)])
def test_where_nothing_is_exchanged_passes_run_one_after_the_other(schedule: str, options: dict, pp: int) -> None:
    system, workload = triosim.system("dgx-h100", nodes=2), _workload()
    on, off = (
        triosim.simulate(workload, system, *_plan(schedule, {"combined": combined}, pp, experts=False))
        for combined in (True, False)
    )
    assert on.iteration_time_s == off.iteration_time_s
    assert on.memory == off.memory


def test_memory_is_that_of_the_passes_in_turn() -> None:
    """The same blocks, at other times: what a backward frees makes room for the forward beside it."""
    (alone,), (in_turn,) = ([p.lifetimes for p in _job("1f1b", {"combined": on}, 1).programs] for on in (False, True))
    assert alone is not None
    assert in_turn is not None
    assert sorted(alone.bytes.tolist()) == sorted(in_turn.bytes.tolist())
    system = triosim.system("dgx-h100", nodes=2)
    memory = [
        triosim.simulate(_workload(), system, *_plan(schedule, options, 1, **batch)).memory
        for schedule, options, batch in (
            ("1f1b", {}, {}), ("1f1b", {"combined": True}, {}), ("gpipe", {}, {"micro_batches": 2, "batch_size": 2}),
        )
    ]  # fmt: skip
    assert memory[0].allocated_bytes < memory[1].allocated_bytes < memory[2].allocated_bytes


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize(("name", "options"), [("1f1b", {}), ("interleaved-1f1b", {"chunks": 2}), ("dualpipe-v", {})])
def test_pairs_do_not_deadlock(name: str, options: dict, stages: int) -> None:
    """Even if neither pass of a pair ended before both have what they need."""
    if stages == 1 and name != "1f1b":
        stages = 5
    schedule = SCHEDULES.get(name)(**{**options, "combined": True})
    micro_batches, chunks = 4 * stages, schedule.chunks_per_stage
    parts = [[p for p in range(stages * chunks) if schedule.stage_of(p, stages) == s] for s in range(stages)]
    orders = []
    for stage in range(stages):
        actions = schedule.actions(stage, stages, micro_batches)
        both = set(pairs(actions))
        assert len(both) > micro_batches // 2
        orders.append([
            [actions[at], actions[at + 1]] if at in both else [actions[at]]
            for at in range(len(actions)) if at - 1 not in both
        ])  # fmt: skip
    ended: set[tuple[bool, int, int]] = set()
    at = [0] * stages
    while any(a < len(order) for a, order in zip(at, orders, strict=True)):
        before = list(at)
        for stage, order in enumerate(orders):
            while at[stage] < len(order):
                made = []
                for what, m, chunk in order[at[stage]]:
                    part = parts[stage][chunk]
                    back = what is not Pass.FORWARD
                    last = part + 1 == stages * chunks
                    need = (True, m, part + 1) if back and not last else (False, m, part if back else part - 1)
                    if need[2] >= 0 and need not in ended and what is not Pass.WEIGHT_GRADIENT:
                        break
                    made.append((back, m, part))
                if len(made) < len(order[at[stage]]):
                    break
                ended.update(made)
                at[stage] += 1
        assert at != before, "deadlock"


def test_a_pass_is_cut_where_it_waits() -> None:
    job = _job("1f1b", {}, 1)
    program = job.programs[0]
    sends = int(((program.op == Op.COLLECTIVE) & (program.what == ALL_TO_ALL)).sum())
    assert sends == 4 * LAYERS * 8
    own = replace(program, before=program.before)
    place = places(own, own)
    assert sorted(place.tolist()) == list(range(2 * len(program)))
    assert np.all(np.diff(place[: len(program)]) > 0)
    assert np.all(np.diff(place[len(program) :]) > 0)
    assert place[len(program)] < place[len(program) - 1]  # the other begins before the one has ended
    assert np.array_equal(reordered(program, np.arange(len(program))).before.values, program.before.values)
