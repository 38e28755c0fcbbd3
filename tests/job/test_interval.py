"""How often to write a checkpoint: published values, and the expectation against brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triosim.job.checkpoint import Checkpoint
from triosim.job.interval import best, daly, stretch, young

MINUTE, HOUR = 60.0, 3600.0


@pytest.mark.parametrize(("mtbf", "minutes"), [(24 * HOUR, 117), (6 * HOUR, 57), (15 * MINUTE, 9.1)])
def test_dalys_own_examples(mtbf: float, minutes: float) -> None:
    """Figures 3 to 5 of the paper: checkpoints of 5 minutes."""
    assert daly(5 * MINUTE, mtbf) / MINUTE == pytest.approx(minutes, rel=0.006)


def test_both_formulas_are_one_where_checkpoints_are_short() -> None:
    assert daly(1e-6, HOUR) == pytest.approx(young(1e-6, HOUR), rel=1e-4)
    assert daly(3 * HOUR, HOUR) == HOUR


def _written(seconds: float) -> Checkpoint:
    return Checkpoint(bytes=seconds * 1e9, devices=8, storage=1e9)


@given(
    written=st.floats(0.1, 600), mtbf=st.floats(600, 1e7), down=st.floats(0, 3600), staged=st.booleans(),
)  # fmt: skip
def test_the_best_interval_is_the_least_of_all(written: float, mtbf: float, down: float, staged: bool) -> None:
    checkpoint = Checkpoint(written * 1e9, 8, 1e9, staging=1e9 if staged else None)
    found = best(checkpoint, down, mtbf, 0.01, 1e9)
    least = stretch(found, checkpoint, down, mtbf)
    for work in np.geomspace(0.01, 100 * mtbf, 400).tolist():
        assert stretch(work, checkpoint, down, mtbf) >= least * (1 - 1e-9)


@given(written=st.floats(0.1, 60), mtbf=st.floats(1e4, 1e7))
def test_the_best_interval_is_dalys_where_nothing_is_written_beside(written: float, mtbf: float) -> None:
    assert best(_written(written), 300.0, mtbf, 1e-3, 1e9) == pytest.approx(daly(written, mtbf), rel=0.02)


def test_without_failures_only_the_last_checkpoint_is_written() -> None:
    assert best(_written(10), 300.0, math.inf, 1.0, 5e4) == 5e4
    assert stretch(5e4, _written(10), 300.0, math.inf) == pytest.approx(1 + 10 / 5e4)


def test_a_job_that_gets_nowhere_is_infinite() -> None:
    assert stretch(1e6, _written(10), 0.0, 1000.0) == math.inf
