"""Recorded times: as they are, or not at all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.example import DEVICE, OTHER, UNKNOWN, job
from triosim.core.errors import InputError
from triosim.kernels.estimate import Source
from triosim.kernels.pricing import price


def test_the_recording_itself():
    found = price(job(), "recorded")
    assert found.seconds.tolist() == [40e-6, 5e-6, 0.0, 30e-6]
    assert found.source.tolist() == [Source.RECORDED, Source.RECORDED, Source.NOTHING, Source.RECORDED]
    assert found.spread[2] == 0
    assert np.all(found.spread[[0, 1, 3]] < 0.1)


def test_a_device_without_a_datasheet_is_fine():
    assert price(job(device=UNKNOWN, recorded_on=UNKNOWN), "recorded").seconds.sum() == pytest.approx(75e-6)


@pytest.mark.parametrize("model", ["recorded", "proportional"])
def test_another_device_is_refused(model):
    with pytest.raises(InputError, match="recorded device Example, not on Faster"):
        price(job(device=OTHER), model)
    with pytest.raises(InputError, match="Example with other figures"):
        price(job(device=replace(DEVICE, memory_bandwidth=3e12)), model)


@pytest.mark.parametrize("model", ["recorded", "proportional"])
def test_nothing_recorded_is_refused(model):
    with pytest.raises(InputError, match="has no measured times"):
        price(job(recorded_on=None), model)
    with pytest.raises(InputError, match=r"operator 0 \(aten::linear\) has no recorded time, the first of 3"):
        price(job(measured=False), model)


def test_other_shapes_are_refused_by_name():
    with pytest.raises(InputError, match=r"operator 0 \(aten::linear\) has others, the first of 3: .*proportional"):
        price(job(16), "recorded")
