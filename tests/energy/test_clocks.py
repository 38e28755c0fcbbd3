from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import triosim
from triosim.energy.work import OperatorWork, joined
from triosim.hardware.system import System

MODEL = triosim.model("llama-3.2-1b", batch_size=4, sequence_length=2048, configuration={"num_hidden_layers": 2})
H200 = triosim.system(device="H200", devices=1)


def held(clock_mhz: float | None = None, tdp_w: float | None = None) -> System:
    """One H200 at a clock, and with another TDP."""
    model = H200.models[0]
    clock = None if clock_mhz is None else clock_mhz * 1e6
    return replace(H200, models=(replace(model, clock_limit_hz=clock, tdp_w=tdp_w or model.tdp_w),))


def seconds(clock_mhz: float | None = None, tdp_w: float | None = None) -> float:
    return triosim.simulate(MODEL, held(clock_mhz, tdp_w)).breakdown_s.compute


@pytest.mark.parametrize("clock_mhz", [1700, 1500, 1350, 1200])
def test_a_held_clock_and_the_power_do_not_slow_the_same_product_twice(clock_mhz: float) -> None:
    """Each operator takes the longer of two: as its power lets it run, and as the clock does with power to spare."""
    plenty = 5000.0
    power, clock, both = seconds(), seconds(clock_mhz, plenty), seconds(clock_mhz)
    assert seconds(None, plenty) < power  # the TDP binds products of this model
    assert max(power, clock) <= both
    assert both <= max(power, clock) * 1.08  # some are bound by one, others by the other


def test_a_clock_that_power_does_not_reach_changes_little() -> None:
    full = H200.models[0].clock_hz or 0.0
    assert seconds(full / 1e6) == seconds()
    assert seconds(0.9 * full / 1e6) == pytest.approx(seconds(), rel=0.03)


def test_operators_that_are_put_together_keep_the_clocks_that_they_run_at() -> None:
    def work(clock: list[float] | None) -> OperatorWork:
        one = np.ones(2)
        return OperatorWork(one, one, one, one, one.astype(np.int64), one, lambda: one,
                            None if clock is None else np.array(clock))  # fmt: skip

    assert joined([work([0.7, 1.0]), work([0.9, 0.8])]).running.tolist() == [0.7, 1.0, 0.9, 0.8]
    assert joined([work([0.7, 1.0]), work(None)]).running.tolist() == [0.7, 1.0, 1.0, 1.0]
