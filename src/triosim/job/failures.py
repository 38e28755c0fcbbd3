"""A job that fails at random and goes on from its last safe checkpoint, many times over."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.units import format_time
from triosim.job.checkpoint import Checkpoint
from triosim.job.interval import stretch

MOST_FAILURES = 100_000
"""A job that fails more often has no end; 100,000 devices that fail as Llama 3's fail 8,600 times in half a year."""


@dataclass(frozen=True)
class Failures:
    """How a job fails, and what it takes to go on.

    Attributes:
        mtbf_s: mean time between failures of the whole job, exponentially distributed; ``inf`` for none.
        detect_s: until a failure is noticed.
        restart_s: until the job runs again, without reading the checkpoint.
        spares: servers that wait to take the place of a failed one; None where there is always one.
        repair_s: until a failed server is a spare.
    """

    mtbf_s: float
    detect_s: float = 0.0
    restart_s: float = 0.0
    spares: int | None = None
    repair_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.mtbf_s > 0:
            raise InputError("the mean time between failures must be above 0")
        if min(self.detect_s, self.restart_s, self.repair_s) < 0 or (self.spares is not None and self.spares < 0):
            raise InputError("times of failures, and spares, must be at least 0")


@dataclass(frozen=True)
class JobRuns:
    """Outcome of each simulated run of a job, seconds, shape ``(runs,)``.

    Attributes:
        total: from the first start to the last checkpoint.
        down: from failures until the job worked again, waiting for servers included, and the first start.
        waiting: of that, for servers to be repaired.
        writing: stopped by checkpoints that were kept.
        lost: work, and checkpoints, that were done once more.
        failures: how many there were.
    """

    total: NDArray[np.float64]
    down: NDArray[np.float64]
    waiting: NDArray[np.float64]
    writing: NDArray[np.float64]
    lost: NDArray[np.float64]
    failures: NDArray[np.int64]


def run(
    work_s: float, interval_s: float, checkpoint: Checkpoint, failures: Failures, start_s: float, runs: int, seed: int
) -> JobRuns:
    """Run a job several times.

    Args:
        work_s: work in all.
        interval_s: work between checkpoints; the last one is written at the end.
        checkpoint: what is written.
        failures: how the job fails.
        start_s: until the job works for the first time.
        runs: how often; each with other random numbers.
        seed: of those.

    Raises:
        InputError: failures come so fast that the job gets nowhere.
    """
    draw = np.random.default_rng(seed)
    blocking, background = checkpoint.blocking_s, checkpoint.background_s
    intervals = max(math.ceil(work_s / interval_s - 1e-9), 1)
    last = work_s - (intervals - 1) * interval_s
    period = blocking + max(interval_s, background)
    first_safe = interval_s + blocking + background
    again = failures.detect_s + failures.restart_s + checkpoint.written_s
    nowhere = (
        f"the job fails every {format_time(failures.mtbf_s)} and gets nowhere: it works {format_time(interval_s)} "
        f"between checkpoints that take {format_time(blocking)}, and {format_time(again)} pass until it works again"
    )
    # After a failure it must restart and reach a checkpoint: so many attempts as the mean of a geometric law.
    reach = again + min(first_safe, last + blocking + background)
    if reach > failures.mtbf_s * math.log(MOST_FAILURES):
        raise InputError(nowhere)
    times = stretch(interval_s, checkpoint, again, failures.mtbf_s)
    expected = times * work_s / failures.mtbf_s
    if expected > MOST_FAILURES:
        raise InputError(
            f"the job fails every {format_time(failures.mtbf_s)}, {expected:,.0f} times before it is done, and takes "
            f"{times:,.1f} times as long as it works: look for a wrong number"
        )

    total, down, waiting = np.zeros(runs), np.full(runs, float(start_s)), np.zeros(runs)
    done, count = np.zeros(runs, np.int64), np.zeros(runs, np.int64)
    delay = np.full(runs, float(start_s))  # until the job works, in which it may fail again
    away = np.zeros((runs, failures.spares)) if failures.spares else None  # when each spare is there again
    going = np.arange(runs)
    while going.size:
        until = draw.exponential(failures.mtbf_s, going.size) if failures.mtbf_s < math.inf else math.inf
        worked = until - delay[going]  # below 0 where it failed again before it worked
        left = intervals - done[going]
        end = (left - 1) * period + last + blocking + background
        ends = worked >= end
        total[going[ends]] += (delay[going] + end)[ends]
        going, worked, left = going[~ends], worked[~ends], left[~ends]
        if not going.size:
            break
        safe = np.where(worked >= first_safe, 1 + np.floor((worked - first_safe) / period), 0).astype(np.int64)
        done[going] += np.minimum(safe, left - 1)
        total[going] += worked + delay[going]
        down[going] += np.minimum(worked, 0)  # what had been counted as down and did not pass
        wait = np.zeros(going.size)
        if away is not None:
            slot = np.argmin(away[going], axis=1)
            wait = np.maximum(away[going, slot] - total[going], 0)
            away[going, slot] = total[going] + failures.repair_s
        elif failures.spares == 0:
            wait[:] = failures.repair_s
        delay[going] = again
        total[going] += wait  # nothing runs that could fail
        down[going] += wait + again
        waiting[going] += wait
        count[going] += 1
        if count.max() > MOST_FAILURES:
            raise InputError(nowhere)
    writing = np.full(runs, (intervals - 1) * (period - interval_s) + blocking + background)
    lost = np.where(count > 0, np.maximum(total - work_s - down - writing, 0.0), 0.0)
    return JobRuns(total, down, waiting, writing, lost, count)
