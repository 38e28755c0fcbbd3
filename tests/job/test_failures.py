"""Jobs that fail: against closed forms, and in their limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triosim import InputError
from triosim.job.checkpoint import Checkpoint
from triosim.job.failures import Failures, JobRuns, run
from triosim.job.interval import stretch

DAY = 86_400.0


def _run(
    failures: Failures, checkpoint: Checkpoint, interval: float = 3600.0, work: float = 30 * DAY, runs: int = 400
) -> JobRuns:
    return run(work, interval, checkpoint, failures, 0.0, runs, seed=1)


SYNC = Checkpoint(60e9, 8, 1e9)
ASYNC = Checkpoint(600e9, 8, 1e9, staging=25e9)  # stops for 3 s, safe 10 minutes later
SLOW = Checkpoint(5400e9, 8, 1e9, staging=25e9)  # still being written when the next one is due


@pytest.mark.parametrize("checkpoint", [SYNC, ASYNC])
@pytest.mark.parametrize("mtbf", [DAY, 4 * 3600.0])
def test_the_mean_is_what_is_expected(checkpoint: Checkpoint, mtbf: float) -> None:
    """Of a long job: Daly's equation, and its like for checkpoints that are written beside training."""
    failures = Failures(mtbf, detect_s=600, restart_s=300)
    found = _run(failures, checkpoint)
    expected = 30 * DAY * stretch(3600.0, checkpoint, 900 + checkpoint.written_s, mtbf)
    error = float(found.total.std()) / math.sqrt(len(found.total))
    assert float(found.total.mean()) == pytest.approx(expected, abs=4 * error + mtbf / 4)
    assert float(found.failures.mean()) == pytest.approx(float(found.total.mean()) / mtbf, rel=0.02)


@given(work=st.floats(100, 1e6), interval=st.floats(10, 1e6), start=st.floats(0, 1e4))
@pytest.mark.parametrize("checkpoint", [SYNC, ASYNC, SLOW])
def test_at_a_rate_of_nothing_it_is_as_without(
    checkpoint: Checkpoint, work: float, interval: float, start: float
) -> None:
    never, rarely = (run(work, interval, checkpoint, Failures(mtbf), start, 3, seed=0) for mtbf in (math.inf, 1e30))
    assert np.array_equal(never.total, rarely.total)
    assert not never.failures.any()
    assert np.allclose(never.total, start + work + never.writing, rtol=1e-12)
    assert np.allclose(never.lost, 0, atol=1e-6 * work)


@pytest.mark.parametrize("checkpoint", [SYNC, ASYNC])
def test_parts_are_the_whole_and_none_is_below_zero(checkpoint: Checkpoint) -> None:
    found = _run(Failures(DAY / 4, 600, 300, spares=1, repair_s=DAY), checkpoint)
    for part in (found.down, found.waiting, found.writing, found.lost):
        assert np.all(part >= -1e-6)
    assert np.all(found.waiting <= found.down)
    assert np.allclose(found.total, 30 * DAY + found.down + found.writing + found.lost)


def test_spares_are_waited_for_where_there_are_too_few() -> None:
    """None: every failure is a repair; many: as if there were always one."""
    totals = {
        spares: _run(Failures(DAY / 4, 600, 300, spares=spares, repair_s=DAY), SYNC).total.mean()
        for spares in (None, 0, 1, 4, 50)
    }
    assert totals[0] > totals[1] > totals[4] > totals[50] == totals[None]
    none = _run(Failures(DAY / 4, 600, 300, spares=0, repair_s=DAY), SYNC)
    assert np.allclose(none.waiting, none.failures * DAY, rtol=0.05)


def test_more_failures_take_longer() -> None:
    means = [_run(Failures(mtbf, 600, 300), SYNC).total.mean() for mtbf in (DAY / 8, DAY, 8 * DAY, math.inf)]
    assert means == sorted(means, reverse=True)


def test_the_same_seed_is_the_same_run() -> None:
    first, again = (_run(Failures(DAY), SYNC, runs=5) for _ in range(2))
    assert np.array_equal(first.total, again.total)


@pytest.mark.parametrize(
    ("words", "make"),
    [
        ("gets nowhere", lambda: _run(Failures(1.0, 0, 0), SYNC, work=1e4, runs=1)),
        (
            "fails every 450 s, .* times before it is done, and takes .* times as long as it works",
            lambda: _run(Failures(450, 600, 300), Checkpoint(1, 1, 1 / 115), work=1.5e7, interval=300, runs=1),
        ),
        ("must be above 0", lambda: Failures(0.0)),
        ("must be at least 0", lambda: Failures(1.0, detect_s=-1)),
        ("more than 0 B/s", lambda: Checkpoint(1, 1, 0.0)),
        ("more than 0 B/s to host", lambda: Checkpoint(1, 1, 1.0, staging=0.0)),
    ],
)
def test_what_cannot_be_is_a_sentence(words: str, make: object) -> None:
    with pytest.raises(InputError, match=words):
        make()  # type: ignore[operator]
