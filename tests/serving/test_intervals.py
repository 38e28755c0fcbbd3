"""Intervals of figures: from what each class of kernels does to them, and from what they become at the ends."""

import math
from collections.abc import Callable

import pytest

from triosim.kernels.estimate import Z90
from triosim.serving.kernel_times import KernelErrors, each_moved, ends_moved, intervals

Figure = Callable[[float], float]


def _found(figure: Figure, *, bent: bool) -> tuple[float, float]:
    """Its interval where the logarithm of all steps' time is the sum of what classes are off by, each by a tenth for
    a standard deviation; ``bent``: whether runs at the ends are asked for."""

    def figures(errors: KernelErrors) -> dict[str, float]:
        off = 0.1 * sum(errors)
        return {"e2e.mean": math.exp(off), "asked": figure(math.exp(off))}

    classes = each_moved(2)
    found, moved = figures(KernelErrors()), [figures(one) for one in classes]
    ends = [figures(one) for one in ends_moved(found, moved, classes)]
    return intervals(found, moved, ends=ends if bent else ())["asked"]


def test_ends_are_nine_of_ten_times_of_all_classes() -> None:
    classes = each_moved(2)
    slower, faster = ends_moved({"e2e.mean": 1.0}, [{"e2e.mean": math.exp(0.1)}] * len(classes), classes)
    assert math.hypot(*slower) == pytest.approx(Z90)
    assert [-one for one in slower] == pytest.approx(list(faster))


@pytest.mark.parametrize("power", [1.0, 0.5, -1.0])
def test_figures_that_are_straight_have_the_interval_of_their_slopes(power: float) -> None:
    straight, bent = (_found(lambda time: 7.0 * time**power, bent=bent) for bent in (False, True))
    assert bent == pytest.approx(straight)
    assert math.log(straight[1] / 7) == pytest.approx(abs(power) * Z90 * 0.1 * math.sqrt(len(each_moved(2))))


def test_queues_end_where_nobody_waits_and_grow_beyond_their_slope() -> None:
    def waits(time: float) -> float:  # 0.1 for its own steps, and a queue that is empty where these take 0.9
        return 0.1 * time + max(time - 0.9, 0.0) ** 2

    low, high = _found(waits, bent=True)
    straight_low, straight_high = _found(waits, bent=False)
    end = math.exp(Z90 * 0.1 * math.sqrt(len(each_moved(2))))
    assert straight_low < low == pytest.approx(waits(1 / end))
    assert straight_high < high == pytest.approx(waits(end))


def test_what_no_end_moves_keeps_its_slopes() -> None:
    found, moved = {"e2e.mean": 1.0, "asked": 1.0}, [{"e2e.mean": 1.1, "asked": 1.0}, {"e2e.mean": 1.0, "asked": 1.1}]
    apart = intervals(found, moved, ends=[{"e2e.mean": 1.2, "asked": 1.0}, {"e2e.mean": 0.8, "asked": 1.0}])["asked"]
    assert apart == intervals(found, moved)["asked"]
