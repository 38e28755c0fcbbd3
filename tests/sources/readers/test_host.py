"""What the host did while the device worked: costs, waits, and how kernels follow each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exploring import examples
from triosim.sources.readers._choice import DeviceColumns
from triosim.sources.readers._host import FEWEST, QUEUE, HostClock, KernelLaunch, following

US = 1000


def test_delay_and_gap_are_medians_of_kernels_that_show_them() -> None:
    idle = [
        KernelLaunch(100 * US * i, 100 * US * i + 4 * US, 7, 100 * US * i + 6 * US, 100 * US * i + 9 * US)
        for i in range(30)
    ]
    found = following(idle)
    assert found.delay_s == pytest.approx(2e-6)
    assert found.gap_s is None
    queued = [KernelLaunch(i * US, i * US + 500, 7, 100 * US + 11 * US * i, 110 * US + 11 * US * i) for i in range(30)]
    found = following(queued)
    assert found.gap_s == pytest.approx(1e-6)
    assert found.delay_s is None


def test_a_few_kernels_tell_nothing() -> None:
    few = [
        KernelLaunch(100 * US * i, 100 * US * i + US, 7, 100 * US * i + 2 * US, 100 * US * i + 3 * US)
        for i in range(FEWEST)
    ]
    assert following(few) == (None, None)


def test_kernels_that_wait_for_another_stream_are_no_gap() -> None:
    held = [
        KernelLaunch(i * US, i * US + 500, 7, 1_000 * US * (i + 1), 1_000 * US * (i + 1) + 10 * US) for i in range(40)
    ]
    assert following(held).gap_s is None


def columns(kernels: list[KernelLaunch]) -> DeviceColumns:
    call, returned, stream, start, end = np.array(kernels, np.int64).T
    device, known = np.zeros(len(kernels), np.int8), np.ones(len(kernels), np.bool_)
    return DeviceColumns(device, stream, start, end - start, call, returned - call, known, ~known)


def test_a_launch_into_a_full_queue_waits() -> None:
    """Launches of 1 us into a device that takes 100 us for each kernel, and a queue of 1024 as CUDA's is."""
    calls, now, done, places = [], 0, 0, 1024
    assert places > QUEUE
    for number in range(places + 50):
        begin = now
        now = max(now + US, calls[number - places].end if number >= places else 0)
        done = max(done, now) + 100 * US
        calls.append(KernelLaunch(begin, now, 7, done - 100 * US, done))
    found = columns(calls).blocked(0, now)
    assert len(found) >= 38  # ten kernels end while the queue fills
    waited = sum(end - start for start, end in found)
    assert waited == pytest.approx(sum(c.returned - c.call - US for c in calls), rel=0.03)
    assert not columns(calls[:500]).blocked(0, now)
    assert columns(calls).blocked(found[7][1], found[9][0]) == found[8:9]


def test_costs_leave_out_waits_and_count_what_lies_between() -> None:
    clock = HostClock(0, [(20, 30), (25, 40), (90, 95)])
    assert clock.until(10) == pytest.approx(10e-9)
    assert clock.until(50) == pytest.approx(20e-9)
    assert clock.until(45) == 0
    assert clock.until(100) == pytest.approx(45e-9)


@settings(max_examples=examples(80))
@given(
    st.lists(st.tuples(st.integers(0, 900), st.integers(0, 200)), max_size=8),
    st.lists(st.integers(1, 1000), min_size=1, max_size=8),
)
def test_costs_and_waits_make_up_the_time(waits, ends) -> None:
    clock = HostClock(0, [(start, start + length) for start, length in waits])
    spent = sum(clock.until(end) for end in ends)
    last = max(ends)
    waited = sum(any(start <= t < start + length for start, length in waits) for t in range(last))
    assert spent == pytest.approx((last - waited) * 1e-9, abs=1e-15)
