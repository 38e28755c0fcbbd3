"""DualPipe: its order, its bubble, and what two copies of the model cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import triosim
from tests.traces import chain
from triosim import Fidelity, Plan, PlanError
from triosim.schedule.actions import SCHEDULES, Action, Pass
from triosim.schedule.interleaving import pairs

PS = 10**12
SIGNS = {Pass.FORWARD: "F", Pass.BACKWARD: "B", Pass.INPUT_GRADIENT: "I", Pass.WEIGHT_GRADIENT: "W"}


def _schedule() -> Any:
    return SCHEDULES.get("dualpipe")()


def _said(actions: Sequence[Action]) -> str:
    """``F0`` is a forward of the first micro-batch that goes down, ``f0`` of the first that goes up."""
    return " ".join(
        (SIGNS[a.what].lower() if a.chunk else SIGNS[a.what]) + str(a.micro_batch - 4 * a.chunk) for a in actions
    )


def test_the_order_is_the_published_one() -> None:
    """Steps 1 to 8 of ``DualPipe.step`` (github.com/deepseek-ai/DualPipe) on 4 ranks with 8 micro-batches, by hand:
    on the outer ranks 2 F, (F f), (i w f), (F b f B), (b f B), (b B in halves), (W I), W; on the inner ones 2 (F f),
    2 (F b f B), b, and what is left in halves."""
    orders = [_said(_schedule().actions(stage, 4, 8)) for stage in range(4)]
    assert orders[0] == "F0 F1 F2 f0 i0 w0 f1 F3 b1 f2 B0 b2 f3 B1 b3 I2 W2 I3 W3"
    assert orders[1] == "F0 f0 F1 f1 F2 b0 f2 B0 F3 b1 f3 B1 b2 B2 i3 I3 w3 W3"
    flipped = str.maketrans("FBIWfbiw", "fbiwFBIW")
    assert orders[3] == orders[0].translate(flipped)
    assert orders[2] == orders[1].translate(flipped)


def _waits(stages: int, micro_batches: int, forward: int, backward: int, weight: int, both: int) -> int:
    """What the stages wait at most between their first pass and their last, transfers taking no time, where a forward
    and the backward after it are one unit that takes ``both``."""
    schedule = _schedule()
    cost = {
        Pass.FORWARD: forward, Pass.BACKWARD: backward, Pass.INPUT_GRADIENT: backward - weight,
        Pass.WEIGHT_GRADIENT: weight,
    }  # fmt: skip
    orders = [schedule.actions(stage, stages, micro_batches) for stage in range(stages)]
    units = []
    for stage, order in enumerate(orders):
        together = set(pairs(order))
        if stage in (stages // 2 - 1, stages // 2):
            together.discard(min(together))  # the middle ranks do not overlap their first two (``dualpipe.py``)
        own, at = list[tuple[Action, ...]](), 0
        while at < len(order):
            own.append(tuple(order[at : at + 1 + (at in together)]))
            at += len(own[-1])
        units.append(own)
    ended: dict[tuple[bool, int, int], int] = {}
    free, first, worked, at = [0] * stages, [-1] * stages, [0] * stages, [0] * stages
    while any(a < len(own) for a, own in zip(at, units, strict=True)):
        moved = False
        for stage, own in enumerate(units):
            while at[stage] < len(own):
                needs, makes = [], []
                for what, m, chunk in own[at[stage]]:
                    part = stages - 1 - stage if chunk else stage
                    if what is Pass.FORWARD:
                        needs += [(False, m, part - 1)] * (part > 0)
                    elif what is not Pass.WEIGHT_GRADIENT:
                        needs += [(True, m, part + 1) if part + 1 < stages else (False, m, part)]
                    makes += [(what is not Pass.FORWARD, m, part)] * (what is not Pass.WEIGHT_GRADIENT)
                if any(need not in ended for need in needs):
                    break
                begin = max([free[stage], *(ended[need] for need in needs)])
                took = both if len(own[at[stage]]) == 2 else cost[own[at[stage]][0].what]
                first[stage] = begin if first[stage] < 0 else first[stage]
                free[stage], worked[stage] = begin + took, worked[stage] + took
                ended.update(dict.fromkeys(makes, free[stage]))
                at[stage], moved = at[stage] + 1, True
        assert moved, "deadlock"
    return max(end - begin - took for begin, end, took in zip(first, free, worked, strict=True))


@given(st.integers(1, 5), st.integers(0, 4), st.integers(1, 5), st.integers(0, 4), st.integers(0, 4), st.integers(0, 3))
def test_no_stage_waits_longer_than_the_paper_says(
    half: int, more: int, weight: int, forward: int, longer: int, hidden: int
) -> None:
    """DeepSeek-V3, table 2: (PP / 2 - 1) (F&B + B - 3 W); exactly that where the first half of a backward is as long
    as a forward and nothing of the two that run in turn is hidden, less where it is longer."""
    stages, forward = 2 * half, weight + forward
    backward = forward + longer + weight
    both = forward + backward - min(hidden, forward)
    found = _waits(stages, 2 * stages + 2 * more, forward, backward, weight, both)
    paper = (half - 1) * (both + backward - 3 * weight)
    assert found <= paper
    if not longer and not hidden:
        assert found == paper


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_a_stage_holds_a_pass_more_than_there_are_stages(stages: int) -> None:
    """DeepSeek-V3, table 2: activations of PP + 1 micro-batches."""
    for stage in range(stages):
        signs = {Pass.FORWARD: 1, Pass.BACKWARD: -1, Pass.WEIGHT_GRADIENT: -1, Pass.INPUT_GRADIENT: 0}
        held = np.cumsum([signs[action.what] for action in _schedule().actions(stage, stages, 4 * stages)])
        assert held.max() <= stages + 1


def _simulated(name: str, pp: int = 4, dp: int = 1, **plan: Any) -> triosim.Result:
    trace = chain(layers=8, batch=512, width=256, weight_s=1e-3, optimizer_s=1e-3)
    plan = {"micro_batches": 8, "batch_size": 512, **plan}
    system = triosim.system(devices=pp * dp, link="1GB/s")
    return triosim.simulate(trace, system, Plan(pp=pp, dp=dp, schedule=name, **plan), Fidelity(host="none"))


def test_every_stage_has_the_weights_of_two() -> None:
    """And their gradients."""
    one, both = _simulated("1f1b"), _simulated("dualpipe")
    held = [made.memory.categories for made in (one, both)]
    of_a_stage = 8 * 256 * 256 * 4 // 4
    assert held[1]["weight"] == 2 * held[0]["weight"] == 2 * of_a_stage
    assert held[1]["gradient"] == held[0]["gradient"] + of_a_stage


def test_copies_add_up_their_gradients() -> None:
    """Each stage sends what it has of both parts to the stage opposite; activations cross as in 1F1B."""
    sent = {name: Counter({row.bytes: row.count for row in _simulated(name).collectives if row.kind == "send"})
            for name in ("1f1b", "dualpipe")}  # fmt: skip
    more = sent["dualpipe"] - sent["1f1b"]
    parameters = 8 * 256 * 256 * 4
    assert not sent["1f1b"] - sent["dualpipe"]
    assert sum(size * count for size, count in more.items()) == 2 * parameters


def test_replicas_reduce_the_gradients_of_both_copies() -> None:
    reduced = {
        name: sum(row.bytes * row.count for row in _simulated(name, dp=2).collectives if row.kind == "all_reduce")
        for name in ("1f1b", "dualpipe")
    }
    assert reduced["dualpipe"] == 2 * reduced["1f1b"] > 0


def test_inference_goes_down_and_up() -> None:
    """Two micro-batches at a time, each in the stages' own pace: half the parts are run by either."""
    trace = chain(layers=8, weight_s=1e-3)
    plan = Plan(pp=2, micro_batches=4, batch_size=256, schedule="dualpipe", training=False)
    result = triosim.simulate(trace, triosim.system(devices=2, link="inf"), plan, Fidelity(host="none"))
    assert round(result.iteration_time_s * PS) == 4 * 4 * PS // 1000


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"pp": 3, "micro_batches": 8}, "pairs of stages, one from each end: use pp 2 or 4, not 3"),
        ({"micro_batches": 4}, "at least two for each stage: use micro-batches 8 or more on 4 stages, not 4"),
        ({"micro_batches": 16, "zero": 3, "dp": 2}, "splits the backward in two"),
    ],
)
def test_what_cannot_be_is_a_sentence(plan: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        _simulated("dualpipe", **plan)
