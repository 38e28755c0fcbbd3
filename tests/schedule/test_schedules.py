"""Pipeline schedules: against PyTorch's own order of actions, and against the bubbles of the papers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import triosim
from tests.asked import asked
from tests.exploring import examples
from tests.traces import chain
from triosim import Fidelity, Plan, PlanError
from triosim.schedule.actions import SCHEDULES, Action, Pass, Schedule, check
from triosim.schedule.deadlock import check_circles

PS = 10**12
EACH = [
    ("gpipe", {}),
    ("1f1b", {}),
    ("interleaved-1f1b", {"chunks": 2}),
    ("interleaved-1f1b", {"chunks": 3}),
    ("looped-bfs", {"chunks": 2}),
    ("looped-bfs", {"chunks": 3}),
    ("zb-h1", {}),
    ("zb-h2", {}),
    ("zb-v", {}),
    ("dualpipe-v", {}),
    ("dualpipe", {}),
]
FEWEST = {"dualpipe-v": 2, "dualpipe": 2}
"""Micro-batches for each stage that a schedule needs."""
DUAL = ("dualpipe-v", "dualpipe")
"""Schedules whose backwards are whole or in halves."""


def _fitting(name: str, stages: int) -> int:
    """So many stages, or the next number that a schedule can have."""
    return stages + stages % 2 if name == "dualpipe" else stages


def _made(name: str, options: dict[str, int]) -> Any:
    return SCHEDULES.get(name)(**options)


@given(st.sampled_from(EACH), st.integers(1, 6), st.integers(1, 4))
def test_every_micro_batch_goes_once_each_way_through_every_chunk(which: Any, stages: int, rounds: int) -> None:
    schedule, stages = _made(*which), _fitting(which[0], stages)
    micro_batches = rounds * stages * FEWEST.get(which[0], 1)
    check(schedule, which[0], stages, micro_batches)
    placed = [schedule.stage_of(part, stages) for part in range(stages * schedule.chunks_per_stage)]
    for stage in range(stages):
        actions = schedule.actions(stage, stages, micro_batches)
        assert len(set(actions)) == len(actions)
        for chunk, part in enumerate(part for part, own in enumerate(placed) if own == stage):
            for m in schedule.micro_batches_of(part, stages, micro_batches):
                passes = [a.what for a in actions if (a.micro_batch, a.chunk) == (m, chunk)]
                halves = schedule.splits_backward and len(passes) == 3
                whole = [Pass.BACKWARD] * (schedule.splits_backward in (False, which[0] in DUAL))
                assert passes == [Pass.FORWARD, *([Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT] if halves else whole)]


@given(st.sampled_from(EACH), st.integers(1, 6), st.integers(1, 4))
def test_no_schedule_deadlocks(which: Any, stages: int, rounds: int) -> None:
    """Its actions, and what a pass needs of the parts before and after it, have no cycle."""
    schedule, stages = _made(*which), _fitting(which[0], stages)
    assert _time(schedule, stages, rounds * stages * FEWEST.get(which[0], 1), 6, 6, 6) > 0


def _time(schedule: Any, stages: int, micro_batches: int, forward: int, input_s: int, weight_s: int) -> int:
    """When the last action ends if transfers take no time; times are of all chunks of a stage together."""
    return max(end for _, end in _spans(schedule, stages, micro_batches, forward, input_s, weight_s))


def _spans(
    schedule: Any, stages: int, micro_batches: int, forward: int, input_s: int, weight_s: int
) -> list[tuple[int, int]]:
    """When each stage begins and ends."""
    chunks, last = schedule.chunks_per_stage, stages * schedule.model_parts - 1
    cost = {
        Pass.FORWARD: forward, Pass.BACKWARD: input_s + weight_s, Pass.INPUT_GRADIENT: input_s,
        Pass.WEIGHT_GRADIENT: weight_s,
    }  # fmt: skip
    orders = [schedule.actions(stage, stages, micro_batches) for stage in range(stages)]
    ended: dict[tuple[bool, int, int], int] = {}  # (backward, micro-batch, part)
    parts = [[p for p in range(stages * chunks) if schedule.stage_of(p, stages) == stage] for stage in range(stages)]
    free, at, first = [0] * stages, [0] * stages, [-1] * stages
    while any(a < len(order) for a, order in zip(at, orders, strict=True)):
        moved = False
        for stage, order in enumerate(orders):
            while at[stage] < len(order):
                what, m, chunk = order[at[stage]]
                part = parts[stage][chunk]
                if what is Pass.FORWARD:
                    need = (False, m, part - 1) if part % (last + 1) else None
                elif what is Pass.WEIGHT_GRADIENT:
                    need = (True, m, part)
                else:
                    need = (True, m, part + 1) if part % (last + 1) < last else (False, m, part)
                if need is not None and need not in ended:
                    break
                begin = max(free[stage], ended[need] if need else 0)
                free[stage] = begin + cost[what] // schedule.model_parts
                first[stage] = begin if first[stage] < 0 else first[stage]
                if what is not Pass.WEIGHT_GRADIENT:
                    ended[what is not Pass.FORWARD, m, part] = free[stage]
                at[stage], moved = at[stage] + 1, True
        assert moved, "deadlock"
    return list(zip(first, free, strict=True))


BUBBLE = {
    "gpipe": lambda p, f, b, w, v: (p - 1) * (f + b + w),
    "1f1b": lambda p, f, b, w, v: (p - 1) * (f + b + w),
    "interleaved-1f1b": lambda p, f, b, w, v: (p - 1) * (f + b + w) // v,
    "looped-bfs": lambda p, f, b, w, v: (p - 1) * (f + b + w) // v,
    "zb-h1": lambda p, f, b, w, v: (p - 1) * (f + b - w),
    "zb-h2": lambda p, f, b, w, v: (p - 1) * max(f, f + b - 2 * w),  # the last stage begins (p - 1) f after the first
    "zb-v": lambda p, f, b, w, v: (p - 1) * max(f, f + b - 2 * w) // 2,  # as ZB-H2 in passes of half the length
    "dualpipe-v": lambda p, f, b, w, v: (p - 1) * (f + b - w) // 2,
    "dualpipe": lambda p, f, b, w, v: (p // 2 - 1) * (f + b - w),
}
LEAST = {
    "zb-h2": lambda p: 2 * p - 1,
    "zb-v": lambda p: 2 * p,
    "dualpipe-v": lambda p: 2 * p,
    "dualpipe": lambda p: 2 * p,
}
"""Micro-batches from which a schedule has its bubble, where those of one round are too few."""


@pytest.mark.parametrize(("name", "options"), EACH)
@pytest.mark.parametrize(("stages", "rounds"), [(2, 2), (4, 1), (4, 3), (6, 2)])
@pytest.mark.parametrize(("forward", "backward", "weight"), [(6, 6, 6), (12, 12, 6), (6, 6, 0)])
def test_the_bubble_is_that_of_the_papers(
    name: str, options: dict[str, int], stages: int, rounds: int, forward: int, backward: int, weight: int
) -> None:
    """Narayanan et al. 2021, section 2.2; Lamy-Poirier 2023, section 3; Qi et al. 2024, section 2.2, where T_W <= T_F
    and T_W <= T_B."""
    schedule, m = _made(name, options), max(stages * rounds, LEAST.get(name, int)(stages))
    total = _time(schedule, stages, m, forward, backward, weight)
    bubble = BUBBLE[name](stages, forward, backward, weight, schedule.chunks_per_stage)
    assert total == m * (forward + backward + weight) + bubble


@given(st.integers(2, 8), st.integers(0, 9), st.integers(0, 6), st.integers(0, 6), st.integers(1, 6))
def test_no_stage_waits_longer_in_zb_h2_than_the_paper_says(p: int, more: int, f: int, b: int, weight: int) -> None:
    """Qi et al. 2024, table 2: (p - 1) (T_F + T_B - 2 T_W) from a stage's first pass to its last."""
    m, f, b = 2 * p - 1 + more, weight + f, weight + b
    spans = _spans(_made("zb-h2", {}), p, m, f, b, weight)
    assert max(end - begin for begin, end in spans) == m * (f + b + weight) + (p - 1) * (f + b - 2 * weight)


def test_zb_h2_holds_at_most_twice_what_1f1b_does() -> None:
    """Micro-batches whose activations are held: 2 p - 1 (Qi et al. 2024, table 2)."""
    for stage in range(4):
        held = np.cumsum(
            [
                {Pass.FORWARD: 1, Pass.INPUT_GRADIENT: 0, Pass.WEIGHT_GRADIENT: -1}[action.what]
                for action in _made("zb-h2", {}).actions(stage, 4, 16)
            ]
        )
        assert held.max() == 2 * 4 - 1


@pytest.mark.parametrize("stage", range(4))
def test_zb_v_holds_as_much_as_the_first_stage_of_1f1b(stage: int) -> None:
    """Passes through a chunk, half of a stage each, whose activations are held: 2 p (Qi et al. 2024, section 6)."""
    actions = _made("zb-v", {}).actions(stage, 4, 16)
    held = np.cumsum([{Pass.FORWARD: 1, Pass.WEIGHT_GRADIENT: -1}.get(action.what, 0) for action in actions])
    assert held.max() == 2 * 4


@pytest.mark.parametrize(("name", "options"), EACH)
@pytest.mark.parametrize("weight", [1e-3, 0.5e-3])
def test_the_bubble_comes_out_of_a_simulation(name: str, options: dict[str, int], weight: float) -> None:
    """Equal layers on equal parts, links that take no time."""
    pp, m, v = 4, 8, options.get("chunks", 1)
    trace = chain(layers=24, forward_s=1e-3, backward_s=1e-3, weight_s=weight)
    plan = Plan(pp=pp, micro_batches=m, batch_size=64 * m, schedule=name, schedule_options=options)
    result = triosim.simulate(trace, triosim.system(devices=pp, link="inf"), plan, Fidelity(host="none"))
    f = b = 6 * PS // 1000
    w = round(6 * PS * weight)
    assert round(result.iteration_time_s * PS) == m * (f + b + w) + BUBBLE[name](pp, f, b, w, v)


def test_interleaving_sends_more_and_zero_bubble_the_same() -> None:
    trace = chain(layers=12, weight_s=1e-3)

    def sends(name: str, **options: int) -> int:
        plan = Plan(pp=4, micro_batches=8, schedule=name, schedule_options=options)
        result = triosim.simulate(trace, triosim.system(devices=4, link="1GB/s"), plan)
        return sum(row.count for row in result.collectives if row.kind == "send")

    assert sends("1f1b") == sends("zb-h1") == 8 * 2 * 3  # micro-batches x there and back x boundaries
    assert sends("interleaved-1f1b", chunks=3) == 8 * 2 * (4 * 3 - 1)
    assert sends("zb-v") == sends("dualpipe-v") == 8 * 2 * 2 * 3  # the lowest stage has both parts of the turn


@pytest.mark.parametrize("name", ["zb-v", "dualpipe-v"])
def test_replicas_reduce_each_gradient_once_in_a_v(name: str) -> None:
    """As many bytes as without a pipeline, whose stages have equal shares of them."""
    trace = chain(layers=8, batch=512, width=256, weight_s=1e-3, optimizer_s=1e-3)
    reduced = {}
    for pp, schedule in ((1, "1f1b"), (2, "interleaved-1f1b"), (2, name)):
        plan = Plan(pp=pp, dp=2, micro_batches=8, schedule=schedule)
        result = triosim.simulate(trace, triosim.system(devices=2 * pp, link="1GB/s"), plan)
        rows = [row for row in result.collectives if row.kind == "all_reduce"]
        reduced[pp, schedule] = sum(row.bytes for row in rows)
    assert 2 * reduced[2, name] == 2 * reduced[2, "interleaved-1f1b"] == reduced[1, "1f1b"] > 0  # of a rank


def test_zero_bubble_holds_no_more_than_the_first_stage_of_1f1b() -> None:
    """All stages hold ``pp`` micro-batches under ZB-H1 and as much under ZB-V, stage ``s`` of 1F1B ``pp - s``."""
    trace = chain(layers=8, batch=8192, width=128, weight_s=1e-3)
    system = triosim.system(devices=4, link="inf")
    held = {
        name: [
            d.allocated_bytes
            for d in triosim.simulate(trace, system, Plan(pp=4, micro_batches=16, schedule=name)).devices
        ]
        for name in ("1f1b", "zb-h1", "zb-v")
    }
    assert max(held["zb-v"]) <= held["1f1b"][0] + 2 * 2 * 128 * 128 * 4
    weights = 2 * 2 * 128 * 128 * 4  # and gradients
    assert max(held["zb-h1"]) <= held["1f1b"][0] + weights
    assert held["1f1b"][3] < held["1f1b"][0] / 3
    assert held["zb-h1"][3] > held["zb-h1"][0] * 2 / 3


def test_gradients_of_a_chunk_are_reduced_while_others_still_run() -> None:
    trace = chain(layers=12, batch=64, width=512, weight_s=1e-3, optimizer_s=1e-3)
    plan = Plan(pp=2, dp=2, micro_batches=4, schedule="interleaved-1f1b", schedule_options={"chunks": 3})
    result = triosim.simulate(trace, triosim.system(devices=4, link="100MB/s"), plan)
    slices = result.timeline.slices
    assert result.breakdown_s.communication > result.breakdown_s.exposed_communication > 0
    assert len(slices)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"pp": 4, "micro_batches": 9, "schedule": "interleaved-1f1b"}, "nearest that can are 8 and 12"),
        ({"pp": 1, "schedule": "interleaved-1f1b"}, "use pp 2 or more"),
        (
            {"pp": 2, "micro_batches": 2, "schedule": "interleaved-1f1b", "schedule_options": {"chunks": 0}},
            "at least 1",
        ),
        ({"pp": 2, "micro_batches": 2, "schedule": "interleaved-1f1b", "stages": ("layer4",)}, "pp 2 x 2 chunk"),
        ({"pp": 2, "dp": 2, "micro_batches": 2, "schedule": "zb-h1", "zero": 3}, "splits the backward"),
        ({"pp": 2, "schedule": "nobody"}, "unknown pipeline schedule"),
    ],
)
def test_what_cannot_be_scheduled_is_a_sentence(plan: dict[str, Any], words: str) -> None:
    trace = chain(layers=8, batch=72, weight_s=1e-3, optimizer_s=1e-3)
    with pytest.raises(PlanError if "unknown" not in words else triosim.InputError, match=words):
        triosim.simulate(trace, triosim.system(devices=4, link="1GB/s"), *asked(**plan))


def test_a_backward_that_cannot_be_split_is_told() -> None:
    plan = Plan(pp=2, micro_batches=2, schedule="zb-h1")
    result = triosim.simulate(chain(layers=4), triosim.system(devices=2, link="1GB/s"), plan)
    assert any("in one operator" in warning for warning in result.warnings)
    result = triosim.simulate(chain(layers=4, weight_s=1e-3), triosim.system(devices=2, link="1GB/s"), plan)
    assert not any("in one operator" in warning for warning in result.warnings)


class TestAgainstTorch:
    """``torch.distributed.pipelining``'s own lists of actions."""

    @pytest.fixture
    def schedules(self) -> Any:
        pytest.importorskip("torch")
        from torch.distributed.pipelining import schedules

        return schedules

    def _theirs(
        self, schedules: Any, cls: str, stages: int, chunks: int, micro_batches: int, rank: int
    ) -> list[Action]:
        made = object.__new__(getattr(schedules, cls))
        made._stages = [None] * chunks
        made.pp_group_size, made.n_local_stages, made._n_microbatches, made.rank = stages, chunks, micro_batches, rank
        made.number_of_rounds = max(1, micro_batches // stages)
        made.microbatches_per_round = micro_batches // made.number_of_rounds
        kinds = {
            "FORWARD": Pass.FORWARD, "FULL_BACKWARD": Pass.BACKWARD, "BACKWARD_INPUT": Pass.INPUT_GRADIENT,
            "BACKWARD_WEIGHT": Pass.WEIGHT_GRADIENT,
        }  # fmt: skip
        made.num_stages = stages * chunks
        listed = made._calculate_single_rank_operations(rank)
        return [
            Action(kinds[action.computation_type.name], action.microbatch_index, action.stage_index // stages)
            for together in listed
            if together is not None
            for action in together.sub_actions or (together,)
        ]

    @pytest.mark.parametrize(
        ("stages", "chunks", "micro_batches"), [(2, 2, 4), (4, 2, 8), (4, 3, 8), (4, 2, 10), (4, 2, 3), (8, 4, 16)]
    )
    def test_interleaved(self, schedules: Any, stages: int, chunks: int, micro_batches: int) -> None:
        ours = _made("interleaved-1f1b", {"chunks": chunks})
        for rank in range(stages):
            theirs = self._theirs(schedules, "ScheduleInterleaved1F1B", stages, chunks, micro_batches, rank)
            assert ours.actions(rank, stages, micro_batches) == theirs

    @pytest.mark.parametrize(("stages", "chunks", "micro_batches"), [(2, 2, 4), (4, 3, 8), (4, 1, 3), (8, 4, 10)])
    def test_looped_breadth_first(self, schedules: Any, stages: int, chunks: int, micro_batches: int) -> None:
        ours = _made("looped-bfs", {"chunks": chunks})
        for rank in range(stages):
            theirs = self._theirs(schedules, "ScheduleLoopedBFS", stages, chunks, micro_batches, rank)
            assert ours.actions(rank, stages, micro_batches) == theirs

    @pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (8, 16)])
    def test_weight_gradients_lag_as_in_its_zero_bubble(self, schedules: Any, stages: int, micro_batches: int) -> None:
        """Its ScheduleInterleavedZeroBubble of one chunk: backwards in the same order."""
        ours = _made("zb-h1", {})
        for rank in range(stages):
            theirs = self._theirs(schedules, "ScheduleInterleavedZeroBubble", stages, 1, micro_batches, rank)
            own = ours.actions(rank, stages, micro_batches)
            assert [a for a in own if a.what is not Pass.FORWARD] == [a for a in theirs if a.what is not Pass.FORWARD]

    @pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 2), (2, 4), (4, 3), (4, 8), (8, 40)])
    def test_zero_bubble_in_a_v(self, schedules: Any, stages: int, micro_batches: int) -> None:
        for rank in range(stages):
            theirs = self._theirs(schedules, "ScheduleZBVZeroBubble", stages, 2, micro_batches, rank)
            assert _made("zb-v", {}).actions(rank, stages, micro_batches) == theirs

    @pytest.mark.parametrize(("stages", "micro_batches"), [(1, 2), (2, 4), (3, 7), (4, 8), (5, 12), (8, 40)])
    def test_dual_pipe_in_a_v(self, schedules: Any, stages: int, micro_batches: int) -> None:
        for rank in range(stages):
            theirs = self._theirs(schedules, "ScheduleDualPipeV", stages, 2, micro_batches, rank)
            assert _made("dualpipe-v", {}).actions(rank, stages, micro_batches) == theirs

    @pytest.mark.parametrize("name", ["zb-v", "dualpipe-v"])
    def test_parts_in_a_v(self, name: str) -> None:
        pytest.importorskip("torch")
        from torch.distributed.pipelining._utils import generate_stage_to_rank_mapping

        theirs = generate_stage_to_rank_mapping(4, 8, style="v")
        assert {part: _made(name, {}).stage_of(part, 4) for part in range(8)} == theirs


def test_inference_goes_through_the_chunks_in_rounds() -> None:
    trace = chain(layers=8, weight_s=1e-3)
    plan = Plan(pp=2, micro_batches=4, batch_size=256, schedule="interleaved-1f1b", training=False)
    result = triosim.simulate(trace, triosim.system(devices=2, link="inf"), plan)
    f = 4 * PS // 1000
    assert round(result.iteration_time_s * PS) == 4 * f + f // 2


class _Odd(Schedule):
    """Runs what it is told to run."""

    splits_backward = True

    def __init__(self, order: list[Action], placed: tuple[int, ...] = (0,)) -> None:
        self.order, self.placed = order, placed

    def stage_of(self, part: int, stages: int) -> int:
        return self.placed[part]

    def actions(self, stage: int, stages: int, micro_batches: int) -> list[Action]:
        return self.order


F, B, I, W = Pass
BOTH = [Action(F, 0), Action(F, 1)]


@pytest.mark.parametrize(
    ("order", "placed", "words"),
    [
        ([*BOTH, Action(I, 0), Action(W, 0), Action(B, 1)], (0,), ""),
        (
            [*BOTH, Action(I, 0), Action(B, 1), Action(W, 0)],
            (0,),
            "whole while weight gradients of 1 other.s. are due",
        ),
        ([*BOTH, Action(I, 0), Action(B, 0)], (0,), "runs backward of micro-batch 0 where weight_gradient is its next"),
        ([Action(W, 0)], (0,), "runs weight_gradient of micro-batch 0 where forward is its next pass"),
        ([*BOTH, Action(B, 0), Action(I, 0)], (0,), "where nothing is its next pass"),
        ([*BOTH, Action(B, 0), Action(I, 1)], (0,), "runs 1 of 2 micro-batches to the end"),
        ([], (1,), "stage_of puts parts on stages 1: each of 1 needs 1"),
    ],
)
def test_schedules_of_others_are_checked(order: list[Action], placed: tuple[int, ...], words: str) -> None:
    if not words:
        check(_Odd(order, placed), "odd", 1, 2)
        return
    with pytest.raises(PlanError, match=words):
        check(_Odd(order, placed), "odd", 1, 2)


@settings(max_examples=examples(30))
@given(st.integers(2, 4), st.integers(1, 3))
def test_one_chunk_is_1f1b(stages: int, rounds: int) -> None:
    """Interleaving over one chunk has PyTorch's longer warm-up, and takes exactly as long."""
    m = stages * rounds
    one, plain = _made("interleaved-1f1b", {"chunks": 1}), _made("1f1b", {})
    assert _time(one, stages, m, 2, 2, 2) == _time(plain, stages, m, 2, 2, 2)
    assert np.all([len(one.actions(s, stages, m)) == len(plain.actions(s, stages, m)) for s in range(stages)])


CIRCLE = """
from dataclasses import dataclass
from triosim.core.registry import registered
from triosim.schedule.actions import Action, Pass, Schedule


@registered
@dataclass(frozen=True)
class InCircles(Schedule):
    def actions(self, stage, stages, micro_batches):
        forward, backward = ([Action(what, m) for m in range(micro_batches)] for what in (Pass.FORWARD, Pass.BACKWARD))
        if stage:
            return forward + backward
        return [action for pair in zip(forward, backward) for action in pair]
"""


def test_stages_that_wait_for_each_other_are_named(tmp_path: Path) -> None:
    path = tmp_path / "circles.py"
    path.write_text(CIRCLE)
    words = (
        r"circles.py deadlocks on 2 stages: stage 0 waits in backward of micro-batch 0 for backward of micro-batch 0 "
        r"on stage 1, which it runs after forward of micro-batch 1; stage 1 waits in forward of micro-batch 1 for "
        r"forward of micro-batch 1 on stage 0, which it runs after backward of micro-batch 0"
    )
    with pytest.raises(PlanError, match=words):
        triosim.simulate(
            chain(layers=4, batch=8), triosim.system(devices=2, link="1GB/s"),
            Plan(pp=2, micro_batches=4, schedule=str(path)),
        )  # fmt: skip


@given(st.sampled_from(EACH), st.integers(1, 6), st.integers(1, 4))
def test_ours_are_found_to_go_in_no_circles(which: Any, stages: int, rounds: int) -> None:
    stages = _fitting(which[0], stages)
    check_circles(_made(*which), which[0], stages, rounds * stages * FEWEST.get(which[0], 1))
