"""Automatic choice of source, and times anchored to a recording."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.example import DEVICE, OTHER, UNKNOWN, job, one, step
from tests.kernels.test_changes import marked
from triosim.core.errors import InputError
from triosim.kernels.anchoring import load as load_anchoring
from triosim.kernels.estimate import Source
from triosim.kernels.model import MeasuredTrace, PricingJob
from triosim.kernels.models.auto import Auto
from triosim.kernels.models.physical import PhysicalBaseModel
from triosim.kernels.models.roofline import RooflineBaseModel
from triosim.kernels.pack import load
from triosim.kernels.pricing import price
from triosim.kernels.transfer import distance
from triosim.trace.builder import TraceBuilder
from triosim.trace.tables import Category, Kernels, Meta, Phase
from triosim.transform.rescale import rescale


def test_the_recording_itself_is_used_as_it_is():
    found = price(job())
    assert found.seconds.tolist() == [40e-6, 5e-6, 0.0, 30e-6]
    assert found.source.tolist() == [Source.RECORDED, Source.RECORDED, Source.NOTHING, Source.RECORDED]
    assert np.all(found.spread <= load_anchoring().recorded_spread)


@pytest.mark.parametrize("basis", [PhysicalBaseModel(), RooflineBaseModel()])
def test_anchored_times_are_recorded_times_x_ratio_of_the_model_less_what_fades_of_its_error(basis):
    asked = job(64)
    found = Auto(basis).price(asked)
    now, then = (basis.predict(t, DEVICE) for t in (asked.trace, asked.recorded))
    known = load_anchoring().residuals[now.basis]
    persist, few = (known.column(name, now.classified)[:2] for name in ("persist", "few"))
    step = np.log(now.seconds[:2] / then.seconds[:2])
    error = np.log(np.array([40e-6, 5e-6]) / then.seconds[:2])
    within = np.clip(error, -then.spread[:2], then.spread[:2])
    fades = (1 - persist) * (1 - np.exp(-step / known.keep_length)) * (within - within / (1 + few))
    assert np.all(np.abs(within) < known.keep_length)
    assert np.log(found.seconds[:2]) == pytest.approx(np.log(now.seconds[:2]) + error - fades, rel=1e-9)
    assert found.seconds[3] == 30e-6
    assert found.source.tolist() == [Source.ANCHORED, Source.ANCHORED, Source.NOTHING, Source.RECORDED]


def test_the_mean_of_a_class_lasts_and_what_an_operator_differs_from_it_by_fades():
    """Twenty products that all run at the same part of the modelled rate: that says something of the device."""
    sizes = [1024 + 128 * i for i in range(20)]

    def products(rows: int, device_s: list[float] | None = None):
        b = TraceBuilder()
        for i, size in enumerate(sizes):
            shapes = (rows, size), (size, size), (rows, size)
            x, w, y = (b.value(shape, "float32", Category.ACTIVATION) for shape in shapes)
            seconds = device_s[i] if device_s else float("nan")
            b.operator("aten::linear", (x, w), (y,), roles=("input", "weight"), device_s=seconds, phase=Phase.FORWARD)
        return b.build(Meta("test"))

    model = PhysicalBaseModel().predict(products(512), DEVICE).seconds
    odd = np.where(np.arange(20) == 7, 0.3, 0.2)
    recorded = products(512, (model * np.exp(odd)).tolist())
    asked = products(8192)
    error = np.log(
        price(PricingJob(asked, DEVICE, recorded, DEVICE)).seconds / PhysicalBaseModel().predict(asked, DEVICE).seconds
    )
    assert 0.1 < np.median(error) < 0.2
    assert np.median(error) < error[7] < 0.3


def test_a_launch_bound_operator_stays_and_a_large_one_scales():
    small = one("aten::relu", [(64,)], (64,), "float32", ["self"], device_s=2e-6)
    grown = one("aten::relu", [(256,)], (256,), "float32", ["self"])
    assert price(PricingJob(grown, DEVICE, small, DEVICE)).seconds[0] == pytest.approx(2e-6, rel=0.01)
    large = one("aten::relu", [(1 << 26,)], (1 << 26,), "float32", ["self"], device_s=7e-4)
    grown = one("aten::relu", [(1 << 28,)], (1 << 28,), "float32", ["self"])
    assert price(PricingJob(grown, DEVICE, large, DEVICE)).seconds[0] == pytest.approx(4 * 7e-4, rel=0.01)


@pytest.mark.parametrize("basis", [PhysicalBaseModel(), RooflineBaseModel()])
@given(st.integers(1, 200), st.integers(0, 200), st.floats(1e-6, 1e-2))
def test_what_the_model_says_takes_longer_takes_longer_than_the_recording_too(basis, rows, more, seconds):
    def product(m: int, device_s: float = float("nan")):
        return one("aten::linear", [(m, 512), (512, 512)], (m, 512), roles=["input", "weight"], device_s=device_s)

    recorded = product(64, seconds)
    for device in (DEVICE, OTHER):
        model, found = [], []
        for m in (rows, rows + more):
            model.append(basis.predict(product(m), device).seconds[0])
            found.append(Auto(basis).price(PricingJob(product(m), device, recorded, DEVICE)).seconds[0])
        assert (found[1] - found[0]) * (model[1] - model[0]) >= 0


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
    slower = price(PricingJob(slow, OTHER, slow, DEVICE))
    assert np.all(slower.seconds[[0, 1, 3]] > 3 * found.seconds[[0, 1, 3]])
    assert np.all(found.spread[[0, 1, 3]] > 0.1)


def test_what_a_device_of_its_own_kind_does_to_matrix_products_is_not_carried_over():
    """Within the model's interval a residual is carried over by what such devices share only."""
    trace = one("aten::linear", [(2048, 2048), (2048, 2048)], (2048, 2048), roles=["input", "weight"])
    model, elsewhere = (PhysicalBaseModel().predict(trace, d).seconds[0] for d in (DEVICE, OTHER))
    operators = replace(trace.operators, device_s=np.array([model * np.exp(0.2)]))
    recorded = replace(trace, operators=operators)
    known = load_anchoring().residuals["physical"]
    of = known.classes["matrix/tensor"]
    shared = np.exp(-distance(DEVICE, OTHER) / of["device_length"])
    found = price(PricingJob(trace, OTHER, recorded, DEVICE)).seconds[0]
    assert found == pytest.approx(elsewhere * np.exp(0.2 * shared), rel=1e-9)
    near = replace(OTHER, peak_flops=DEVICE.peak_flops, memory_bandwidth=1.1e12)
    assert distance(DEVICE, near) < 0.1
    model, carried = (price(PricingJob(trace, near, recorded, on)).seconds[0] for on in (None, DEVICE))
    assert carried == pytest.approx(model * np.exp(0.2), rel=0.05), "nearly the same device"


def test_devices_of_families_that_were_not_measured_are_less_sure():
    trace = one("aten::linear", [(2048, 2048), (2048, 2048)], (2048, 2048), roles=["input", "weight"], device_s=1e-4)
    same, strange, no_gpu = (
        float(price(PricingJob(trace, device, trace, DEVICE)).spread[0])
        for device in (OTHER, replace(OTHER, architecture="Nobody's"), replace(OTHER, kind="cpu", vendor="AMD"))
    )
    of = load_anchoring().residuals["physical"].classes["matrix/tensor"]
    shared = np.exp(-distance(DEVICE, OTHER) / of["device_length"])
    assert of["device_spread"] * np.sqrt(1 - shared**2) <= same < strange < no_gpu


@given(st.floats(1.0, 30.0), st.floats(1.0, 30.0))
def test_the_interval_grows_with_the_difference_of_the_devices(a, b):
    trace = one("aten::linear", [(2048, 2048), (2048, 2048)], (2048, 2048), roles=["input", "weight"], device_s=1e-4)

    def spread(times: float) -> float:
        device = replace(OTHER, memory_bandwidth=DEVICE.memory_bandwidth * times)
        return float(price(PricingJob(trace, device, trace, DEVICE)).spread[0])

    assert spread(min(a, b)) <= spread(max(a, b)) + 1e-12


def test_several_recordings_weigh_by_their_certainty():
    trace = one("aten::linear", [(2048, 2048), (2048, 2048)], (2048, 2048), roles=["input", "weight"], device_s=1e-4)
    near = replace(DEVICE, name="Near", memory_bandwidth=1.2e12)
    faster = replace(trace, operators=replace(trace.operators, device_s=np.array([0.9e-4])))
    asked = replace(OTHER, peak_flops=DEVICE.peak_flops)
    one_, other = (price(PricingJob(trace, asked, t, d)) for t, d in ((trace, DEVICE), (faster, near)))
    both = price(PricingJob(trace, asked, trace, DEVICE, (MeasuredTrace(faster, near),)))
    low, high = sorted((one_.seconds[0], other.seconds[0]))
    assert low <= both.seconds[0] <= high
    assert both.source[0] == Source.ANCHORED
    swapped = price(PricingJob(trace, asked, faster, near, (MeasuredTrace(trace, DEVICE),)))
    assert both.seconds[0] == pytest.approx(swapped.seconds[0], rel=1e-12)
    assert both.spread[0] >= min(one_.spread[0], other.spread[0])


def test_a_recording_of_the_device_itself_needs_no_other():
    trace = step()
    elsewhere = replace(trace, operators=replace(trace.operators, device_s=trace.operators.device_s * 7))
    found = price(PricingJob(trace, DEVICE, elsewhere, OTHER, (MeasuredTrace(trace, DEVICE),)))
    alone = price(job())
    assert np.array_equal(found.seconds, alone.seconds)
    assert np.array_equal(found.source, alone.source)
    assert np.array_equal(found.spread, alone.spread)


def test_another_precision_is_anchored():
    recorded = one("aten::linear", [(2048, 2048), (2048, 2048)], (2048, 2048), "float32", ["input", "weight"], 2.5e-3)
    half = one("aten::linear", [(2048, 2048), (2048, 2048)], (2048, 2048), "bfloat16", ["input", "weight"])
    found = price(PricingJob(half, DEVICE, recorded, DEVICE))
    assert found.source[0] == Source.ANCHORED
    assert found.seconds[0] < 0.5e-3


@pytest.mark.parametrize(("basis", "model"), [(PhysicalBaseModel(), "physical"), (RooflineBaseModel(), "roofline")])
def test_without_a_recording_the_model(basis, model):
    asked = job(recorded_on=None)
    found = Auto(basis).price(asked)
    by = Source[model.upper()]
    assert found.source.tolist() == [by, by, Source.NOTHING, by]
    assert np.array_equal(found.seconds, price(asked, model).seconds)
    partly = job(measured=False)
    assert np.array_equal(Auto(basis).price(partly).source, found.source), "a recording without times"


def test_a_recording_on_an_unknown_device_says_nothing_of_another():
    found = price(job(recorded_on=replace(UNKNOWN, name="Somebody's")))
    assert np.all(found.source[[0, 1, 3]] == Source.PHYSICAL)


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
    single = price(PricingJob(large, DEVICE, recorded, DEVICE)).seconds[0]
    several = price(PricingJob(large, DEVICE, replace(recorded, kernels=ten), DEVICE)).seconds[0]
    assert several < single, "the recorded time was ten launches, not work"


def test_operators_that_launched_nothing_stay_so():
    recorded = one("aten::relu", [(64,)], (64,), "float32", ["self"], device_s=0.0)
    grown = one("aten::relu", [(1 << 20,)], (1 << 20,), "float32", ["self"])
    found = price(PricingJob(grown, DEVICE, recorded, DEVICE))
    assert found.seconds[0] == 0
    assert found.source[0] == Source.NOTHING


@pytest.mark.parametrize("batch", [2, 32])
@pytest.mark.parametrize("device", [DEVICE, UNKNOWN])
def test_undecided_operators_reach_from_unchanged_to_fully_scaled(batch, device):
    recorded = marked(step(), 3)
    found = price(PricingJob(rescale(recorded, batch), device, recorded, device))
    assert found.source[1] == Source.UNDECIDED
    low, high = (found.seconds[1] * np.exp(sign * found.spread[1]) for sign in (-1, 1))
    ends = sorted((5e-6, 5e-6 * batch / 8))
    assert low <= ends[0] * (1 + 1e-9)
    assert high >= ends[1] * (1 - 1e-9)
    assert found.source[0] != Source.UNDECIDED
    assert price(PricingJob(recorded, device, recorded, device)).source[1] == Source.RECORDED, "nothing changed"


def test_a_pack_of_ones_own(tmp_path):
    pack = load()
    slow = replace(pack, memory=pack.memory / 2)
    asked = job(recorded_on=None)
    assert Auto(RooflineBaseModel(slow)).price(asked).seconds[1] > Auto(RooflineBaseModel(pack)).price(asked).seconds[1]
