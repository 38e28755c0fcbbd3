"""The roofline: by hand, and what it must obey."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.example import DEVICE, UNKNOWN, job, one, step
from triosim.core.errors import InputError
from triosim.hardware import catalog
from triosim.kernels.estimate import Limit, Source
from triosim.kernels.model import PricingJob
from triosim.kernels.models.roofline import of_work, predict
from triosim.kernels.pack import load
from triosim.kernels.physical import kinds
from triosim.kernels.pricing import price
from triosim.kernels.work.attention import attention
from triosim.kernels.work.gemm import gemm
from triosim.kernels.work.stream import CODE, Stream
from triosim.trace.tables import Trace


def constants(key: str) -> dict[str, float]:
    pack = load()
    at = pack.keys.index(key)
    return {name: float(getattr(pack, name)[at]) for name in ("floor_s", "compute", "memory", "overlap")}


def alone(trace: Trace, device=DEVICE) -> float:
    return float(price(PricingJob(trace, device, trace, None), "roofline").seconds[0])


def test_a_matrix_product_by_hand():
    m, k, n = 2048, 1024, 4096
    c = constants("matrix/tensor")
    compute = 2 * m * k * n / (c["compute"] * 2e14)
    memory = 2 * (m * k + k * n + m * n) / (c["memory"] * 1e12)
    expected = c["floor_s"] + (compute ** c["overlap"] + memory ** c["overlap"]) ** (1 / c["overlap"])
    trace = one("aten::linear", [(m, k), (n, k)], (m, n), roles=["input", "weight"])
    assert alone(trace) == pytest.approx(expected, rel=1e-12)


def test_an_elementwise_operator_by_hand():
    c = constants("elementwise")
    trace = one("aten::add", [(1000, 1000), (1000, 1000)], (1000, 1000), "float32", ["self", "other"])
    assert alone(trace) == pytest.approx(c["floor_s"] + 12e6 / (c["memory"] * 1e12), rel=1e-12)


def test_tf32_convolutions_and_float32_products():
    convolution = one(
        "aten::conv2d", [(32, 64, 56, 56), (64, 64, 3, 3)], (32, 64, 56, 56), "float32", ["input", "weight"]
    )
    without = replace(DEVICE, peak_flops={"float32": 1e13})
    assert alone(convolution) < alone(convolution, without)
    product = one("aten::linear", [(2048, 2048), (2048, 2048)], (2048, 2048), "float32", ["input", "weight"])
    assert alone(product) == alone(product, without)


def test_kernels_by_their_sizes_are_priced_as_operators_are():
    product = one("aten::linear", [(2048, 1024), (4096, 1024)], (2048, 4096), roles=["input", "weight"])
    assert of_work(gemm(2048, 4096, 1024, "bfloat16"), DEVICE).seconds[0] == pytest.approx(alone(product), rel=1e-12)
    added = one("aten::add", [(1000, 1000), (1000, 1000)], (1000, 1000), "float32", ["self", "other"])
    moved = Stream(np.array([CODE["elementwise"]], np.int8), *(np.array([x]) for x in (8e6, 4e6, 1.0, 0.0, 1.0)))
    assert of_work(moved, DEVICE).seconds[0] == pytest.approx(alone(added), rel=1e-12)


@pytest.mark.parametrize("name", ["TPU-v4", "TPU-v6e", "Gaudi2", "Trainium2", "EPYC-9654", "M2-Ultra"])
def test_what_is_not_a_gpu_moves_bytes_as_fast_as_its_memory(name):
    """Constants per multiprocessor say nothing about chips with two cores: norms took 30 times their bytes."""
    device = catalog.accelerator(name)
    norm = Stream(np.array([CODE["layer_norm"]], np.int8), *(np.array([x]) for x in (3.2e8, 1.6e8, 2e4, 8192.0, 1.0)))
    decode = attention(64, 1, 8192, 32, 8, 128)
    for work in (norm, decode):
        found = kinds.price(work, device)
        assert found.source.tolist() == [Source.ROOFLINE]
        least = work.bytes()[0] / device.memory_bandwidth
        assert least < found.seconds[0] < 2.5 * least


def test_limits_and_what_takes_no_time():
    found = price(job(recorded_on=None), "roofline")
    assert found.seconds[2] == 0
    assert found.source.tolist() == [Source.ROOFLINE, Source.ROOFLINE, Source.NOTHING, Source.ROOFLINE]
    big = one("aten::linear", [(8192, 8192), (8192, 8192)], (8192, 8192), roles=["input", "weight"])
    tiny = one("aten::linear", [(8, 8), (8, 8)], (8, 8), roles=["input", "weight"])
    copy = one("aten::clone", [(8192, 8192)], (8192, 8192), roles=["self"])
    limits = [int(price(PricingJob(t, DEVICE, t, None), "roofline").limit[0]) for t in (big, tiny, copy)]
    assert limits == [Limit.COMPUTE, Limit.LAUNCH, Limit.MEMORY]


def test_an_operator_without_work_costs_the_floor_and_an_allocation_nothing():
    assert alone(one("aten::seed", [], (), out_dtype="int64")) == pytest.approx(constants("other")["floor_s"], rel=1e-4)
    assert alone(one("aten::empty", [], (4096, 4096), out_dtype="float32")) == 0


def test_kernels_cost_a_floor_each():
    trace = step()
    one_each = predict(trace, DEVICE, load(), np.array([1, 1, 1, 1])).seconds
    three = predict(trace, DEVICE, load(), np.array([3, 1, 1, 1])).seconds
    assert three[0] - one_each[0] == pytest.approx(2 * constants("matrix/simt")["floor_s"], rel=1e-9)
    assert np.array_equal(three[1:], one_each[1:])


sizes = st.integers(1, 3000)


@given(sizes, sizes, sizes, st.sampled_from(["float32", "bfloat16"]))
def test_more_work_never_takes_less_time_and_a_better_device_never_more(m, k, n, dtype):
    def product(rows: int) -> Trace:
        return one("aten::linear", [(rows, k), (n, k)], (rows, n), dtype, ["input", "weight"])

    seconds = alone(product(m))
    assert alone(product(m + 1)) >= seconds
    faster = replace(DEVICE, peak_flops={key: 2 * v for key, v in DEVICE.peak_flops.items()}, memory_bandwidth=2e12)
    assert alone(product(m), faster) <= seconds


@pytest.mark.parametrize(
    ("device", "missing"),
    [(UNKNOWN, "compute peak"), (replace(DEVICE, memory_bandwidth=None), "memory bandwidth")],
)
def test_a_device_without_figures_is_refused(device, missing):
    with pytest.raises(InputError, match=f"has no {missing}"):
        alone(step(), device)
