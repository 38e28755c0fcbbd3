"""Habitat's wave scaling: by hand, and what it must obey."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from validation.data import kernel_rows
from validation.fit import habitat as fit_habitat

from tests.data import shared
from tests.kernels.example import DEVICE, job
from triosim.core.errors import InputError
from triosim.kernels.estimate import Source
from triosim.kernels.models.habitat import load, wave_scaling
from triosim.kernels.pricing import describe, price

SOURCE = replace(DEVICE, compute_units=100, clock_hz=1.4e9)
TARGET = replace(
    SOURCE, name="Other", compute_units=50, clock_hz=2.1e9, memory_bandwidth=3e12, peak_flops={"float32": 3e13}
)


def test_wave_scaling_by_hand():
    ridge = np.full(3, 100.0)
    found = wave_scaling(np.array([0.0, 50.0, 200.0]), ridge, SOURCE, TARGET)
    memory, waves = 1 / 3, 2.0 * (1.4 / 2.1)
    assert found == pytest.approx([memory, memory**0.75 * waves**0.25, memory**0.25 * waves**0.75], rel=1e-12)


@given(st.floats(0, 1e6), st.floats(0.1, 1e4))
def test_there_and_back_is_where_one_began(intensity, ridge):
    x, r = np.array([intensity]), np.array([ridge])
    assert wave_scaling(x, r, SOURCE, SOURCE) == pytest.approx([1.0])
    assert wave_scaling(x, r, SOURCE, TARGET) * wave_scaling(x, r, TARGET, SOURCE) == pytest.approx([1.0])


def test_a_recorded_step_on_another_gpu():
    asked = job(device=TARGET, recorded_on=SOURCE)
    found = price(asked, "habitat")
    recorded = asked.recorded.operators.device_s
    assert found.seconds[1] == pytest.approx(recorded[1] / 3)  # moves bytes only
    flop, moved = 2 * 8 * 1024 * 4096, 4 * (8 * 1024 + 4096 * 1024 + 8 * 4096)
    bound = 1 - flop / moved / (2 * 3e13 / 3e12)
    assert found.seconds[0] == pytest.approx(recorded[0] * (1 / 3) ** bound * (2 * 1.4 / 2.1) ** (1 - bound))
    assert found.source.tolist() == [Source.WAVES, Source.WAVES, Source.NOTHING, Source.WAVES]
    assert found.spread[0] == load()["spread"]["matrix"]
    assert "recorded times of Example scaled by waves" in describe(found, asked.trace, asked, "habitat")[0]


def test_the_device_of_the_recording_has_the_recorded_times():
    found = price(job(device=SOURCE, recorded_on=SOURCE), "habitat")
    assert found.source.tolist() == [Source.RECORDED, Source.RECORDED, Source.NOTHING, Source.RECORDED]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (job(device=TARGET, recorded_on=None), "need a trace recorded on another GPU"),
        (job(batch=16, device=TARGET, recorded_on=SOURCE), "hold only for the recorded shapes"),
        (job(device=TARGET, recorded_on=SOURCE, measured=False), "has no recorded time"),
        (job(device=replace(TARGET, clock_hz=None), recorded_on=SOURCE), "need the clock of device 'Other'"),
        (job(device=TARGET, recorded_on=replace(DEVICE, compute_units=None)), "need the number of units"),
        (job(device=replace(TARGET, peak_flops={}), recorded_on=SOURCE), "need the compute peak of device 'Other'"),
        (job(device=replace(TARGET, memory_bandwidth=None), recorded_on=SOURCE), "need the memory bandwidth"),
    ],
)
def test_what_it_cannot_do_is_said_in_a_sentence(asked, message):
    with pytest.raises(InputError, match=message):
        price(asked, "habitat")


def test_the_spread_is_that_of_the_data():
    shared("kernels", "fp32_ops.parquet")
    rows, _ = kernel_rows.read(kernel_rows.shipped("fp32_ops"), {})
    errors = fit_habitat.errors(rows.take(np.flatnonzero(rows.label == "conv")))
    assert fit_habitat.quantile(errors) == pytest.approx(load()["spread"]["convolution"], rel=0.01)
