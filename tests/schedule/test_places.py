"""Values that start elsewhere are fetched before their first use."""

from __future__ import annotations

import pytest

import triosim
from tests.asked import asked
from tests.traces import chain
from triosim import InputError, Plan

WEIGHT = 128 * 128 * 4
FREE = {"operator_times": "proportional", "host": "none"}


def test_nothing_is_fetched_unless_asked() -> None:
    trace = chain(layers=4)
    result = triosim.simulate(trace, triosim.system(devices=1, host_link="1MB/s"), *asked(**FREE))
    assert result.iteration_time_s == pytest.approx(trace.device_time())


@pytest.mark.parametrize("overlap", [True, False])
def test_weights_in_host_memory_arrive_one_after_another_in_order_of_use(overlap: bool) -> None:
    trace = chain(layers=4, forward_s=1e-3)
    each = WEIGHT / 1e7
    system = triosim.system(devices=1, host_link="10MB/s")
    result = triosim.simulate(trace, system, *asked(places={"weight": "host"}, overlap=overlap, **FREE))
    if overlap:  # each layer waits for its own weight; the last weight is the slowest
        assert result.iteration_time_s == pytest.approx(4 * each + 1e-3 + 4 * 2e-3)
    else:
        assert result.iteration_time_s == pytest.approx(4 * each + trace.device_time())


def test_the_input_is_fetched_in_every_iteration_and_weights_once() -> None:
    trace = chain(layers=2)
    system = triosim.system(devices=1, host_link="10MB/s")
    for category, times in (("input", 3), ("weight", 1)):
        plan = asked(places={category: "host"}, iterations=3, overlap=False, **FREE)
        result = triosim.simulate(trace, system, *plan)
        size = 64 * 128 * 4 if category == "input" else 2 * WEIGHT
        assert 3 * result.iteration_time_s == pytest.approx(3 * trace.device_time() + times * size / 1e7)


def test_a_pool_and_another_device_are_places_too() -> None:
    trace = chain(layers=2)
    pool = triosim.system(devices=2, link="1GB/s", pool_link="10MB/s")
    plan, models = asked(dp=1, idle_ok=True, overlap=False, **FREE)
    result = triosim.simulate(trace, pool, plan.replaced(places={"weight": "pool"}), models)
    assert result.iteration_time_s == pytest.approx(trace.device_time() + 2 * WEIGHT / 1e7)
    result = triosim.simulate(trace, pool, plan.replaced(places={"weight": "device:1"}), models)
    assert result.iteration_time_s == pytest.approx(trace.device_time() + 2 * WEIGHT / 1e9)


@pytest.mark.parametrize(
    ("place", "words"), [("host", "no host memory"), ("pool", "no memory pool"), ("device:7", "no device 7")]
)
def test_a_place_that_is_not_there_is_refused(place: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        triosim.simulate(chain(), triosim.system(devices=2, link="1GB/s"), Plan(places={"weight": place}))


def test_devices_behind_one_link_to_the_host_share_it() -> None:
    """Two GPUs on each PCIe switch of a DGX-1: fetching at the same time takes neighbours twice as long as others."""
    system = triosim.system("dgx-1v")

    def fetching(*placement: int) -> float:
        plan = asked(
            dp=len(placement), placement=placement, places={"weight": "host"}, overlap=False, training=False, **FREE
        )
        result = triosim.simulate(chain(layers=4, width=4096), system, *plan)
        return result.iteration_time_s - result.breakdown_s.compute

    alone = fetching(0)
    assert fetching(0, 2) == pytest.approx(alone)
    assert fetching(0, 1) == pytest.approx(2 * alone, rel=1e-3)
