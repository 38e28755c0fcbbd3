"""Automatic choice of source, and times anchored to a recording."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.example import DEVICE, OTHER, UNKNOWN, job, one, step
from tests.kernels.test_changes import marked
from triosim.errors import InputError
from triosim.kernels.anchoring import load as load_anchoring
from triosim.kernels.estimate import Source
from triosim.kernels.model import Job
from triosim.kernels.models.auto import Auto
from triosim.kernels.models.roofline import modelled
from triosim.kernels.pack import load
from triosim.kernels.pricing import price
from triosim.workload.rescale import rescale
from triosim.workload.trace import Kernels


def test_the_recording_itself_is_used_as_it_is():
    found = price(job())
    assert found.seconds.tolist() == [40e-6, 5e-6, 0.0, 30e-6]
    assert found.source.tolist() == [Source.RECORDED, Source.RECORDED, Source.NOTHING, Source.RECORDED]
    assert np.all(found.spread <= load_anchoring().recorded_spread)


def test_anchored_times_are_recorded_times_x_ratio_of_the_roofline():
    asked = job(64)
    found = price(asked)
    now, then = (modelled(t, DEVICE, load()).seconds for t in (asked.trace, asked.recorded))
    assert found.seconds[:2] == pytest.approx(np.array([40e-6, 5e-6]) * now[:2] / then[:2], rel=1e-12)
    assert found.seconds[3] == 30e-6
    assert found.source.tolist() == [Source.ANCHORED, Source.ANCHORED, Source.NOTHING, Source.RECORDED]


def test_a_launch_bound_operator_stays_and_a_large_one_scales():
    small = one("aten::relu", [(64,)], (64,), "float32", ["self"], device_s=2e-6)
    grown = one("aten::relu", [(256,)], (256,), "float32", ["self"])
    assert price(Job(grown, DEVICE, small, DEVICE)).seconds[0] == pytest.approx(2e-6, rel=0.01)
    large = one("aten::relu", [(1 << 26,)], (1 << 26,), "float32", ["self"], device_s=7e-4)
    grown = one("aten::relu", [(1 << 28,)], (1 << 28,), "float32", ["self"])
    assert price(Job(grown, DEVICE, large, DEVICE)).seconds[0] == pytest.approx(4 * 7e-4, rel=0.01)


@given(st.integers(1, 200), st.integers(0, 200), st.floats(1e-6, 1e-2))
def test_more_work_never_takes_less_time(rows, more, seconds):
    def product(m: int, device_s: float = float("nan")):
        return one("aten::linear", [(m, 512), (512, 512)], (m, 512), roles=["input", "weight"], device_s=device_s)

    recorded = product(64, seconds)
    for device in (DEVICE, OTHER):
        here, there = (price(Job(product(m), device, recorded, DEVICE)).seconds[0] for m in (rows, rows + more))
        assert there >= here


def test_the_interval_grows_with_the_distance():
    spreads = [float(price(job(batch)).spread[0]) for batch in (8, 16, 32, 256, 4096)]
    assert spreads == sorted(spreads)
    assert spreads[0] < 0.05 < 0.1 < spreads[-1]
    assert price(job(1)).spread[0] == pytest.approx(price(job(64)).spread[0]), "as far down as up"


def test_on_another_device_the_recorded_time_still_counts():
    found = price(job(device=OTHER))
    assert np.all(found.source[[0, 1, 3]] == Source.ANCHORED)
    slow = step()
    slow = replace(slow, operators=replace(slow.operators, device_s=slow.operators.device_s * 10))
    slower = price(Job(slow, OTHER, slow, DEVICE))
    assert np.all(slower.seconds[[0, 1, 3]] > 3 * found.seconds[[0, 1, 3]])
    assert np.all(found.spread[[0, 1, 3]] > 0.1)


def test_what_a_device_of_its_own_kind_does_to_matrix_products_is_not_carried_over():
    """Within the roofline's interval a residual is carried over by ``transfer`` only."""
    trace = one("aten::linear", [(2048, 2048), (2048, 2048)], (2048, 2048), roles=["input", "weight"])
    model, elsewhere = (modelled(trace, d, load()).seconds[0] for d in (DEVICE, OTHER))
    operators = replace(trace.operators, device_s=np.array([model * np.exp(0.2)]))
    recorded = replace(trace, operators=operators)
    transfer = load_anchoring().classes["matrix/tensor"]["transfer"]
    found = price(Job(trace, OTHER, recorded, DEVICE)).seconds[0]
    assert found == pytest.approx(elsewhere * np.exp(0.2 * transfer), rel=1e-9)


def test_devices_of_families_that_were_not_measured_are_less_sure():
    trace = one("aten::linear", [(2048, 2048), (2048, 2048)], (2048, 2048), roles=["input", "weight"], device_s=1e-4)
    same, strange, no_gpu = (
        float(price(Job(trace, device, trace, DEVICE)).spread[0])
        for device in (OTHER, replace(OTHER, architecture="Nobody's"), replace(OTHER, kind="cpu", vendor="AMD"))
    )
    assert load_anchoring().classes["matrix/tensor"]["device_spread"] <= same < strange < no_gpu


def test_another_precision_is_anchored():
    recorded = one("aten::linear", [(2048, 2048), (2048, 2048)], (2048, 2048), "float32", ["input", "weight"], 2.5e-3)
    half = one("aten::linear", [(2048, 2048), (2048, 2048)], (2048, 2048), "bfloat16", ["input", "weight"])
    found = price(Job(half, DEVICE, recorded, DEVICE))
    assert found.source[0] == Source.ANCHORED
    assert found.seconds[0] < 0.5e-3


def test_without_a_recording_the_roofline():
    asked = job(recorded_on=None)
    found = price(asked)
    assert found.source.tolist() == [Source.ROOFLINE, Source.ROOFLINE, Source.NOTHING, Source.ROOFLINE]
    assert np.array_equal(found.seconds, price(asked, "roofline").seconds)
    partly = job(measured=False)
    assert np.array_equal(price(partly).source, found.source), "a recording without times"


def test_a_recording_on_an_unknown_device_says_nothing_of_another():
    found = price(job(recorded_on=replace(UNKNOWN, name="Somebody's")))
    assert np.all(found.source[[0, 1, 3]] == Source.ROOFLINE)


def test_an_unknown_device_scales_above_its_own_floor():
    found = price(job(32, UNKNOWN, UNKNOWN))
    assert found.source.tolist() == [Source.PROPORTIONAL, Source.PROPORTIONAL, Source.NOTHING, Source.RECORDED]
    assert found.seconds.tolist() == pytest.approx([5e-6 + 4 * 35e-6, 5e-6, 0.0, 30e-6])
    assert price(job(device=UNKNOWN, recorded_on=UNKNOWN)).seconds.tolist() == [40e-6, 5e-6, 0.0, 30e-6]
    with pytest.raises(InputError, match="name it with --device"):
        price(job(device=UNKNOWN, recorded_on=UNKNOWN, measured=False))
    with pytest.raises(InputError, match="compute peak"):
        price(job(device=UNKNOWN))


def test_kernels_that_were_recorded_cost_a_floor_each():
    recorded = one("aten::relu", [(64,)], (64,), "float32", ["self"], device_s=20e-6)
    ten = Kernels(np.zeros(10, np.int32), ("k",) * 10, np.full(10, 2e-6), np.zeros(10, np.int32))
    large = one("aten::relu", [(1 << 20,)], (1 << 20,), "float32", ["self"])
    single = price(Job(large, DEVICE, recorded, DEVICE)).seconds[0]
    several = price(Job(large, DEVICE, replace(recorded, kernels=ten), DEVICE)).seconds[0]
    assert several < single, "the recorded time was ten launches, not work"


def test_operators_that_launched_nothing_stay_so():
    recorded = one("aten::relu", [(64,)], (64,), "float32", ["self"], device_s=0.0)
    grown = one("aten::relu", [(1 << 20,)], (1 << 20,), "float32", ["self"])
    found = price(Job(grown, DEVICE, recorded, DEVICE))
    assert found.seconds[0] == 0
    assert found.source[0] == Source.NOTHING


@pytest.mark.parametrize("batch", [2, 32])
@pytest.mark.parametrize("device", [DEVICE, UNKNOWN])
def test_undecided_operators_reach_from_unchanged_to_fully_scaled(batch, device):
    recorded = marked(step(), 3)
    found = price(Job(rescale(recorded, batch), device, recorded, device))
    assert found.source[1] == Source.UNDECIDED
    low, high = (found.seconds[1] * np.exp(sign * found.spread[1]) for sign in (-1, 1))
    ends = sorted((5e-6, 5e-6 * batch / 8))
    assert low <= ends[0] * (1 + 1e-9)
    assert high >= ends[1] * (1 - 1e-9)
    assert found.source[0] != Source.UNDECIDED
    assert price(Job(recorded, device, recorded, device)).source[1] == Source.RECORDED, "nothing changed"


def test_a_pack_of_ones_own(tmp_path):
    pack = load()
    slow = replace(pack, memory=pack.memory / 2)
    asked = job(recorded_on=None)
    assert Auto(slow).price(asked).seconds[1] > Auto(pack).price(asked).seconds[1]
