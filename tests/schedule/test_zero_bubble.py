"""The zero-bubble schedule that is found for given times: the paper's bubbles, its memory, and its laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import triosim
from tests.exploring import examples
from tests.schedule.test_schedules import _spans
from tests.traces import chain
from triosim import Fidelity, Plan, PlanError
from triosim.schedule.actions import SCHEDULES, Pass, PassTimes, check
from triosim.schedule.schedules.zb_auto import ZeroBubbleAuto, _best, _longest

TIMES = {
    "1.5B": (8, (18.522, 18.086, 9.337, 0.601)),
    "6.2B": (8, (29.718, 29.444, 19.927, 0.527)),
    "14.6B": (16, (11.347, 11.248, 8.132, 0.377)),
    "28.3B": (32, (10.419, 10.207, 7.715, 0.408)),
}
"""Stages, and milliseconds of forward, input gradient, weight gradient and send (Qi et al. 2024, appendix)."""
KEPT = 32 / (34 + 5 * 24 * 1024 / 2304)
"""What weight gradients still read of the activations of the 1.5B model, whose scores of attention are kept (section 2
of the paper: 32 s b h of s b h (34 + 5 a s / h))."""
BUBBLES = {  # of ZB-1p and ZB-2p, as a share of an iteration (the paper's table of bubble rates)
    ("1.5B", 24): (0.1585, 0.0433), ("1.5B", 32): (0.1242, 0.0039), ("1.5B", 64): (0.0674, 0.0026),
    ("6.2B", 24): (0.1323, 0.0029), ("6.2B", 32): (0.1045, 0.0022), ("6.2B", 64): (0.0554, 0.0010),
}  # fmt: skip


@pytest.mark.parametrize(("model", "micro_batches"), BUBBLES)
@pytest.mark.parametrize("memory", [1, 2])
def test_bubbles_are_those_of_the_paper(model: str, micro_batches: int, memory: int) -> None:
    stages, (forward, backward, weight, send) = TIMES[model]
    times = PassTimes((forward,) * stages, (backward,) * stages, (weight,) * stages, send, KEPT)
    took = _longest(_best(times, stages, float(memory * stages), micro_batches), times, micro_batches)
    bubble = 1 - micro_batches * (forward + backward + weight) / took
    assert bubble == pytest.approx(BUBBLES[model, micro_batches][memory - 1], abs=2e-3)


@settings(max_examples=examples(40))
@given(
    st.integers(2, 5), st.integers(1, 12), st.floats(1.0, 3.0), st.floats(0.0, 1.0), st.floats(0.1, 2.0),
    st.floats(0.1, 2.0), st.floats(0.0, 0.5),
)  # fmt: skip
def test_every_order_is_one(
    stages: int, micro_batches: int, memory: float, kept: float, backward: float, weight: float, send: float
) -> None:
    """Each pass once and in turn, no cycle, and no more activations than there is memory for."""
    times = PassTimes((1.0,) * stages, (backward,) * stages, (weight,) * stages, send, kept)
    schedule = ZeroBubbleAuto(memory).timed(times)
    check(schedule, "zb-auto", stages, micro_batches)
    assert _longest(_best(times, stages, memory * stages, micro_batches), times, micro_batches) < np.inf
    for stage in range(stages):
        held = np.cumsum(
            [
                {Pass.FORWARD: 1.0, Pass.INPUT_GRADIENT: kept - 1, Pass.WEIGHT_GRADIENT: -kept}[action.what]
                for action in schedule.actions(stage, stages, micro_batches)
            ]
        )
        assert held.max() <= max(memory * stages, 1.0 + kept) + 1e-6


@pytest.mark.parametrize(("forward", "backward", "weight"), [(6, 6, 6), (12, 12, 6), (6, 6, 2), (4, 8, 6)])
def test_no_slower_than_what_it_generalises(forward: int, backward: int, weight: int) -> None:
    stages, m = 4, 12
    times = PassTimes((forward,) * stages, (backward,) * stages, (weight,) * stages, 0.0, 1.0)
    for memory, name in ((1.0, "zb-h1"), (2.0, "zb-h2")):
        found = ZeroBubbleAuto(memory).timed(times)
        spans = [
            max(end - begin for begin, end in _spans(one, stages, m, forward, backward, weight))
            for one in (found, SCHEDULES.get(name)())
        ]
        assert spans[0] <= spans[1]


def test_a_prediction_gives_it_the_times_of_its_passes() -> None:
    """More memory makes shorter iterations, and less than 1F1B takes."""
    trace, system = chain(layers=16, weight_s=1e-3), triosim.system(devices=4, link="inf")

    def run(schedule: str, **options: float) -> triosim.Result:
        plan = Plan(pp=4, micro_batches=12, batch_size=64 * 12, schedule=schedule, schedule_options=options)
        return triosim.simulate(trace, system, plan, Fidelity(host="none"))

    plain, tight, wide = run("1f1b"), run("zb-auto", memory=1), run("zb-auto", memory=2)
    assert wide.iteration_time_s <= tight.iteration_time_s < plain.iteration_time_s
    assert wide.iteration_time_s == pytest.approx(12 * 16e-3 + 3 * 4e-3, rel=0.02)  # the last stage begins later


def test_less_memory_than_1f1b_is_refused() -> None:
    with pytest.raises(PlanError, match="memory must be 1 or more"):
        ZeroBubbleAuto(0.5)
