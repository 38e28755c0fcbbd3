"""Pipeline stages: where they are cut, who runs what, what crosses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import triosim
from tests.traces import chain
from triosim import Plan, PlanError
from triosim.parallelism.schedule import SCHEDULES
from triosim.parallelism.stages import split
from triosim.workload.trace import Phase

ACTIVATION = 64 * 128 * 4


def _bottleneck(trace, stages) -> float:
    seconds = trace.operators.device_s
    return max(float(seconds[stages.of == s].sum()) for s in range(stages.count))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=4, max_size=9), st.integers(2, 4))
def test_the_slowest_stage_is_as_fast_as_any_cut_allows(times: list[int], count: int) -> None:
    """Against every possible cut."""
    from itertools import combinations

    trace = chain(layers=len(times), backward_s=0.0)
    seconds = np.zeros(len(trace))
    seconds[: len(times)] = times
    stages = split(trace, seconds, count)
    best = min(
        max(sum(times[a:b]) for a, b in zip((0, *cuts), (*cuts, len(times)), strict=True))
        for cuts in combinations(range(1, len(times)), count - 1)
    )
    found = max(float(seconds[stages.of == s].sum()) for s in range(count))
    assert found == pytest.approx(best)
    assert len(set(stages.of[: len(times)].tolist())) == count


def test_backward_runs_where_forward_ran() -> None:
    trace = chain(layers=6)
    stages = split(trace, trace.operators.device_s, 3)
    forward = trace.operators.forward
    backward = np.flatnonzero(trace.operators.phase == Phase.BACKWARD)
    assert np.array_equal(stages.of[backward], stages.of[forward[backward]])


def test_boundary_tensors_go_to_the_next_stage_and_their_gradients_come_back() -> None:
    trace = chain(layers=4)
    stages = split(trace, trace.operators.device_s, 4)
    assert [(b.source, b.target, b.bytes) for b in stages.boundaries] == [(i, i + 1, ACTIVATION) for i in range(3)]
    assert all(b.returned >= 0 for b in stages.boundaries)


def test_skip_connections_are_sent_straight_to_where_they_are_read() -> None:
    trace = chain(layers=4, skips=((0, 3),))
    stages = split(trace, trace.operators.device_s, 4, begins=("layer1", "layer2", "layer3"))
    found = {(b.source, b.target) for b in stages.boundaries}
    assert found == {(0, 1), (1, 2), (2, 3), (0, 3)}
    plan = Plan(pp=4, micro_batches=2, stages=("layer1", "layer2", "layer3"))
    result = triosim.simulate(trace, triosim.system(devices=4, link="1GB/s"), plan)
    (row,) = [c for c in result.collectives if c.kind == "send"]
    assert (row.bytes, row.count) == (ACTIVATION // 2, 2 * 2 * 4)  # micro-batches x there and back x boundaries


def test_the_users_cuts_are_kept() -> None:
    trace = chain(layers=6)
    stages = split(trace, trace.operators.device_s, 3, begins=("layer1", "layer5"))
    assert stages.firsts == ("layer0", "layer1", "layer5")
    assert np.bincount(stages.of[:6]).tolist() == [1, 4, 1]


@pytest.mark.parametrize(
    ("begins", "words"),
    [(("layer9",), "no module 'layer9'"), (("layer3", "layer2"), "name the modules in running order")],
)
def test_cuts_that_make_no_sense_are_refused(begins: tuple[str, ...], words: str) -> None:
    trace = chain(layers=6)
    with pytest.raises(PlanError, match=words):
        split(trace, trace.operators.device_s, len(begins) + 1, begins=begins)


def test_more_stages_than_operators_are_refused() -> None:
    trace = chain(layers=3)
    with pytest.raises(PlanError, match="use pp 3 or less"):
        split(trace, trace.operators.device_s, 4)


def test_optimizer_work_is_shared_by_the_parameters_of_each_stage() -> None:
    trace = chain(layers=6, optimizer_s=6e-3)
    stages = split(trace, trace.operators.device_s, 2, begins=("layer2",))
    row = int(np.flatnonzero(trace.operators.phase == Phase.OPTIMIZER)[0])
    assert stages.share[row].tolist() == pytest.approx([2 / 6, 4 / 6])


@given(st.sampled_from(["gpipe", "1f1b"]), st.integers(1, 6), st.integers(1, 12))
def test_a_schedule_runs_every_micro_batch_once_each_way(name: str, stages: int, parts: int) -> None:
    schedule = SCHEDULES.get(name)()
    for stage in range(stages):
        turns = schedule.turns(stage, stages, parts)
        for backward in (False, True):
            assert [t.micro_batch for t in turns if t.backward is backward] == list(range(parts))
        for m in range(parts):
            assert turns.index((False, m)) < turns.index((True, m))


def test_1f1b_holds_fewer_micro_batches_than_gpipe() -> None:
    trace = chain(layers=8, batch=8192)
    system = triosim.system(devices=4, link="inf")
    held = {
        name: triosim.simulate(trace, system, Plan(pp=4, micro_batches=16, schedule=name)).memory.categories[
            "activation"
        ]
        for name in ("gpipe", "1f1b")
    }
    assert held["1f1b"] < held["gpipe"] / 2
