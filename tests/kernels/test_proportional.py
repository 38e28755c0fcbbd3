"""Proportional times: the ratio of the work, exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.example import job
from triosim.kernels.estimate import Source
from triosim.kernels.pricing import price


@pytest.mark.parametrize("batch", [1, 2, 4, 16, 64, 1024])
def test_powers_of_two_are_exact(batch):
    found = price(job(batch), "proportional")
    factor = batch / 8
    assert found.seconds.tolist() == [40e-6 * factor, 5e-6 * factor, 0.0, 30e-6]
    assert found.source.tolist() == [Source.PROPORTIONAL, Source.PROPORTIONAL, Source.NOTHING, Source.RECORDED]


@given(st.integers(1, 4096))
def test_any_ratio_and_the_optimizer_stays(batch):
    seconds = price(job(batch), "proportional").seconds
    assert seconds[:2] == pytest.approx(np.array([40e-6, 5e-6]) * batch / 8, rel=1e-12)
    assert seconds[3] == 30e-6


def test_further_is_less_sure():
    spreads = [price(job(batch), "proportional").spread[0] for batch in (8, 16, 32, 64)]
    assert spreads == sorted(spreads)
    assert spreads[0] < 0.05 < spreads[-1]
