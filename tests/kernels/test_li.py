"""Li's model: by hand, what it must obey, and its constants found again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from validation.data import kernels as kernel_data
from validation.data.kernels import Sample
from validation.fit import li as fit_li
from validation.fit.li import Line
from validation.fit.roofline import even

from tests.data import shared
from tests.kernels.example import DEVICE, UNKNOWN, job, one, step
from triosim.core.errors import InputError
from triosim.kernels import pack
from triosim.kernels.estimate import Source
from triosim.kernels.model import PricingJob
from triosim.kernels.models.li import load
from triosim.kernels.pricing import describe, price


def alone(trace, device=DEVICE) -> float:
    return float(price(PricingJob(trace, device, trace, None), "li").seconds[0])


def by_hand(key: str, flop: float, moved: float, bandwidth: float) -> float:
    c = load()["classes"][key]
    seconds = c["intercept_s"] + moved / (c["byte_rate_offset"] + c["byte_rate_slope"] * bandwidth)
    return seconds + (flop / (c["flop_rate_offset"] + c["flop_rate_slope"] * bandwidth) if flop else 0.0)


def test_a_matrix_product_by_hand():
    m, k, n = 2048, 1024, 4096
    trace = one("aten::linear", [(m, k), (n, k)], (m, n), roles=["input", "weight"])
    expected = by_hand("matrix/tensor", 2 * m * k * n, 2 * (m * k + k * n + m * n), 1e12)
    assert alone(trace) == pytest.approx(expected, rel=1e-12)


def test_an_elementwise_operator_by_hand():
    trace = one("aten::add", [(1000, 1000), (1000, 1000)], (1000, 1000), "float32", ["self", "other"])
    assert alone(trace) == pytest.approx(by_hand("elementwise", 0, 12e6, 1e12), rel=1e-12)


def test_only_the_bandwidth_of_a_device_counts():
    trace = one("aten::linear", [(2048, 2048), (2048, 2048)], (2048, 2048), roles=["input", "weight"])
    doubled = replace(DEVICE, peak_flops={name: 2 * peak for name, peak in DEVICE.peak_flops.items()})
    assert alone(trace, doubled) == pytest.approx(alone(trace), rel=1e-12)
    assert alone(trace, replace(DEVICE, memory_bandwidth=2e12)) < alone(trace)


def test_an_operation_in_a_type_of_twice_the_peak_counts_half():
    device = replace(DEVICE, peak_flops={"bfloat16": 2e14, "float8_e4m3fn": 4e14, "float4_e2m1": 8e14})
    shapes = [(8192, 8192), (8192, 8192)], (8192, 8192)
    c = load()["classes"]["matrix/narrow"]
    rates = [c[f"{what}_rate_offset"] + c[f"{what}_rate_slope"] * 1e12 for what in ("flop", "byte")]
    for dtype, weight, item in (("float8_e4m3fn", 1.0, 1.0), ("float4_e2m1", 0.5, 0.5)):
        trace = one("aten::linear", *shapes, dtype, ["input", "weight"])
        expected = c["intercept_s"] + weight * 2 * 8192**3 / rates[0] + item * 3 * 8192**2 / rates[1]
        assert alone(trace, device) == pytest.approx(expected, rel=1e-12)


@given(st.integers(1, 3000), st.integers(1, 3000), st.sampled_from(["float32", "bfloat16"]))
def test_more_work_takes_longer(m, n, dtype):
    def product(rows: int):
        return one("aten::linear", [(rows, 512), (n, 512)], (rows, n), dtype, ["input", "weight"])

    assert alone(product(m + 1)) > alone(product(m))


def test_a_step_without_a_recording_and_its_story():
    asked = job(recorded_on=None)
    found = price(asked, "li")
    assert found.source.tolist() == [Source.REGRESSION, Source.REGRESSION, Source.NOTHING, Source.REGRESSION]
    assert found.seconds[2] == 0
    assert np.all(found.spread[[0, 1, 3]] > 0)
    assert "linear regressions on the work on Example" in describe(found, asked.trace, asked, "li")[0]


@pytest.mark.parametrize(
    ("device", "missing"),
    [(UNKNOWN, "compute peak"), (replace(DEVICE, memory_bandwidth=None), "memory bandwidth")],
)
def test_a_device_without_figures_is_refused(device, missing):
    with pytest.raises(InputError, match=f"'li' need the {missing}"):
        alone(step(), device)


def test_every_class_of_the_roofline_has_a_line():
    assert tuple(load()["classes"]) == pack.load().keys


def test_lines_are_found_again():
    truth = Line(4e-6, 2e13, 60.0, 1e11, 0.7)
    random = np.random.default_rng(5)
    count = 3000
    device = np.array(["A100-SXM4-80GB", "L40S", "H100-SXM5-80GB"])[np.arange(count) % 3]
    work = np.exp(random.uniform(np.log(1e-7), np.log(1e-2), (2, count)))
    zeros = np.zeros(count)
    sample = Sample(device, work[0], work[1], zeros, zeros, zeros[:, None], zeros)
    sample = replace(sample, seconds=truth.measured(sample, "tensor"))
    found = fit_li.fit(sample, "tensor")
    assert found.measured(sample, "tensor") == pytest.approx(sample.seconds, rel=1e-6)
    assert found.intercept_s == pytest.approx(truth.intercept_s, rel=1e-6)
    isolated = fit_li.fit(sample, "tensor", floor_s=1e-6)
    assert (isolated.intercept_s, isolated.host_s) == (pytest.approx(1e-6), pytest.approx(3e-6, rel=1e-6))


def test_least_squares_without_negative_coefficients():
    a = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    assert fit_li.nonnegative(a, a @ [2.0, 0.5]) == pytest.approx([2.0, 0.5])
    assert fit_li.nonnegative(a, np.array([3.0, 2.0, 1.0])) == pytest.approx([2.0, 0.0])


def test_constants_are_those_of_the_data():
    shared("kernels", "gemm.parquet")
    found = fit_li.fit(even(kernel_data.gemm("bfloat16")), "tensor")
    shipped = load()["classes"]["matrix/tensor"]
    for name in ("intercept_s", "flop_rate_offset", "flop_rate_slope", "byte_rate_offset", "byte_rate_slope"):
        assert getattr(found, name) == pytest.approx(shipped[name], rel=0.01)
