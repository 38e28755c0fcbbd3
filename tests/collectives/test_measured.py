"""Measured tables instead of models of collectives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import triosim
from tests.traces import chain
from triosim.collectives.measured import MeasuredCollectives, Table
from triosim.core.errors import InputError
from triosim.hardware import build
from triosim.hardware.system import Link

POINTS = {1000: 1e-3, 2000: 3e-3, 4000: 4e-3}


@pytest.mark.parametrize(
    ("size", "seconds"), [(0, 0.0), (1, 1e-3), (1000, 1e-3), (1500, 2e-3), (4000, 4e-3), (8000, 8e-3)]
)
def test_a_table_is_linear_between_its_points(size: int, seconds: float) -> None:
    assert Table.of(POINTS)(size) == pytest.approx(seconds, rel=1e-12)


@given(
    st.dictionaries(st.integers(1, 10**9), st.floats(0, 10), min_size=1, max_size=8),
    st.integers(1, 10**10),
    st.integers(1, 10**10),
)
def test_more_bytes_never_take_less_time(points: dict[int, float], a: int, b: int) -> None:
    table = Table.of(points)
    assert table(min(a, b)) <= table(max(a, b)) * (1 + 1e-12)


@pytest.mark.parametrize("points", [{}, {0: 1.0}, {1: -1.0}, {1: float("nan")}])
def test_a_table_that_makes_no_sense(points: dict[int, float]) -> None:
    with pytest.raises(InputError, match="table of measured"):
        Table.of(points)


def test_what_was_not_measured_is_not_guessed() -> None:
    measured = MeasuredCollectives(2, {"all_reduce": Table.of(POINTS)}, "here")
    assert measured.collective("all_reduce", [0], 1000) == 0
    for call in (
        lambda: measured.collective("all_gather", [0, 1], 1000),
        lambda: measured.collective("all_reduce", [0, 1, 2], 1000),
        lambda: measured.transfer(1000),
    ):
        with pytest.raises(InputError, match="measured are all_reduce"):
            call()


def test_a_job_takes_what_its_table_says() -> None:
    trace = chain(layers=3)
    system = build.flat(devices=2, link=Link(np.inf))
    plan = triosim.Plan(dp=2, overlap=False)
    free = triosim.simulate(trace, system, plan)
    table = Table.of({1: 0.5, 10**9: 0.5})
    found = triosim.simulate(
        trace, system, plan, measured=MeasuredCollectives(2, {"all_reduce": table}, "measured here")
    )
    assert found.iteration_time_s == pytest.approx(free.iteration_time_s + 0.5, abs=1e-11)
    assert [row.seconds for row in found.collectives] == [pytest.approx(0.5)]
    assert "collectives: measured here" in found.sources
