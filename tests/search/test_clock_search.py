"""The clock of least energy of a machine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import triosim
from triosim.hardware.machine import system
from triosim.hardware.system import System
from triosim.plan import Plan
from triosim.prediction.result import Result
from triosim.search.clock_search import best_clock


def test_devices_of_a_mixed_machine_keep_their_own_clocks() -> None:
    machine = system(device="H100-SXM5-80GB", devices=2)
    slower = replace(machine.models[0], name="slower", clock_hz=1410e6)
    machine = replace(machine, models=(machine.models[0], slower), device_model=np.array([0, 1], np.int32))
    step = triosim.model("llama-3.2-1b", sequence_length=256)
    limits = []

    def predict(at: System) -> Result:
        limits.append([one.clock_limit_hz for one in at.models])
        return triosim.simulate(step, at, Plan(dp=2), fit=False)

    found = best_clock(predict, machine)
    assert dict(found.boost_hz) == {"H100-SXM5-80GB": 1980e6, "slower": 1410e6}
    assert limits[0] == [None, None]
    assert found.points[0].clock_mhz == 1980
    assert all(low == min(high, 1410e6) for high, low in limits[1:])
    assert any(high > low for high, low in limits[1:])
