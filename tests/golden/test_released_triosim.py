"""Values worked out by hand from the traces of the released TrioSim, and what its defects did to them.

The data-parallel time is exact arithmetic: an all-reduce of S bytes over a ring of N takes 2 (N - 1) steps of
ceil(S / N) / B + L each, every step rounded up to a picosecond.
"""

from __future__ import annotations

import pytest

import triosim
from tests.data import shared
from triosim import Fidelity, Plan

PS = 10**12


@pytest.fixture(scope="module", params=["vgg13", "resnet50"])
def trace(request):
    return triosim.load(shared("triosim-h100", request.param))


SUMS = {"vgg13": 94.038e-3, "resnet50": 70.723e-3}
PARAMETER_BYTES = {"vgg13": 532191392, "resnet50": 102228128}


def _ps(seconds: float) -> int:
    return round(seconds * PS)


def test_one_device_is_the_sum_of_operators(trace) -> None:
    result = triosim.simulate(trace, triosim.system(devices=1))
    assert _ps(result.iteration_time_s) == _ps(SUMS[trace.meta.workload])


@pytest.mark.parametrize("devices", [2, 3, 8, 84])
@pytest.mark.parametrize("latency", [0, 5e-6])
def test_standard_data_parallel_on_a_ring(trace, devices: int, latency: float) -> None:
    """Depends on N and on latency; the released TrioSim's does on neither."""
    system = triosim.system(devices=devices, topology="ring", link="113.75GB/s", latency=latency)
    result = triosim.simulate(trace, system, Plan(overlap=False))
    chunk = -(-PARAMETER_BYTES[trace.meta.workload] // devices)
    step = -(-chunk * PS // 113_750_000_000) + _ps(latency)
    assert _ps(result.iteration_time_s) == _ps(SUMS[trace.meta.workload]) + 2 * (devices - 1) * step


def test_the_published_setting(trace) -> None:
    system = triosim.system(devices=8, topology="ring", link="113.75GB/s")
    found = triosim.simulate(trace, system, Plan(overlap=False)).iteration_time_s * 1e3
    assert found == pytest.approx({"vgg13": 102.2256, "resnet50": 72.2957}[trace.meta.workload], rel=1e-4)


def test_nothing_is_reduced_twice_and_everything_once(trace) -> None:
    """The released TrioSim reduced some tensors twice and others never."""
    result = triosim.simulate(trace, triosim.system(devices=8, topology="ring", link="113.75GB/s"))
    assert sum(c.bytes * c.count for c in result.collectives) == PARAMETER_BYTES[trace.meta.workload]


def test_one_rank_of_anything_is_one_device(trace) -> None:
    """The released TrioSim deadlocked silently in tensor parallel on one device and reported 17.1 ms."""
    for plan in (Plan(dp=1), Plan(tp=1), Plan(pp=1), Plan(dp=1, overlap=False), Plan(dp_style="dataparallel")):
        result = triosim.simulate(trace, triosim.system(devices=1), plan)
        assert _ps(result.iteration_time_s) == _ps(SUMS[trace.meta.workload])


def test_memory_that_does_not_suffice_shortens_nothing(trace) -> None:
    """The released TrioSim stopped early when memory ran out and reported the short time."""
    small = triosim.simulate(
        trace, triosim.system(device="RTX-2080Ti", devices=1), fidelity=Fidelity(operator_times="auto")
    )
    assert small.memory.fits is False
    assert _ps(small.iteration_time_s) == _ps(SUMS[trace.meta.workload])  # it names no device: recorded on this one


def test_a_larger_batch_moves_no_more_gradients(trace) -> None:
    """The released TrioSim scaled weights and gradients with the batch."""
    system = triosim.system(devices=4, topology="ring", link="113.75GB/s")
    for batch in (32, 128, 256):
        result = triosim.simulate(trace, system, Plan(batch_size=batch))
        assert sum(c.bytes * c.count for c in result.collectives) == PARAMETER_BYTES[trace.meta.workload]
