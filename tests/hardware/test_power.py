"""The law of clock, voltage and power: its shape, and what it was fitted to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data import shared
from triosim.core.errors import InputError
from triosim.hardware.catalog import accelerator
from triosim.hardware.power import LOWEST_CLOCK, check_cap, constants, lowest_cap, relative_clock, static_w


@given(st.floats(LOWEST_CLOCK, 1.0))
def test_a_clock_is_found_again_from_the_power_that_it_takes(clock: float) -> None:
    law = constants()
    assert float(law.clock(np.array(law.switching(clock)))) == pytest.approx(clock, rel=1e-9)


@given(st.floats(80, 700), st.floats(80, 700), st.floats(100, 700))
def test_a_lower_cap_never_makes_a_job_faster(cap: float, other: float, power: float) -> None:
    low, high = sorted((cap, other))
    times = constants().relative_time(np.full(2, power), np.full(2, 700.0), np.array([low, high]))
    assert times[0] >= times[1] >= 1.0


def test_a_cap_above_what_a_job_draws_changes_nothing() -> None:
    assert constants().relative_time(np.array([300.0]), np.array([400.0]), np.array([300.0])).tolist() == [1.0]


def test_the_lowest_cap_is_said_where_a_cap_is_below_it() -> None:
    device = accelerator("A100")
    least = lowest_cap(device)
    static = static_w(device)
    assert least is not None
    assert static is not None
    assert static < constants().limit * least < 400
    check_cap(device, least)
    with pytest.raises(InputError, match=f"the lowest that works is {np.ceil(least):.0f} W"):
        check_cap(device, least - 1)
    with pytest.raises(InputError, match="lowest that works"):
        check_cap(device, float("nan"))


def test_clocks_outside_of_what_a_device_has_are_refused() -> None:
    device = accelerator("A100")
    assert relative_clock(device, 705e6) == 0.5
    with pytest.raises(InputError, match="use 141 to 1410 MHz"):
        relative_clock(device, 2000e6)
    with pytest.raises(InputError, match="boost clock"):
        relative_clock(accelerator("TPU-v7-Ironwood"), 1e9)


def test_measured_epochs_under_caps_are_predicted() -> None:
    from validation.fit.power import read

    errors = {gpu: caps.error(constants()) for gpu, caps in read(shared("energy")).items()}
    assert errors["V100"] < 0.05
    assert errors["A40"] < 0.075
