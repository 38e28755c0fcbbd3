"""What a job of so many tokens takes: from one iteration's prediction, its checkpoints and its failures."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.job import interval as intervals
from triosim.job.checkpoint import Checkpoint
from triosim.job.failures import Failures, JobRuns, run

DEVICE_MTBF_S = 54 * 86_400 * 16_384 / 419
"""419 unexpected interruptions in 54 days of 16,384 H100 (Llama team, arXiv:2407.21783, section 3.3.4)."""
STORAGE_PER_DEVICE = 2e12 / 16_384
"""Bytes per second: a file system that sustains 2 TB/s behind 16,384 GPUs (same paper, section 3.3.1)."""
DETECT_S = 600.0
"""PyTorch's time-out of collectives by default (torch.distributed.init_process_group with NCCL: 10 minutes)."""
RESTART_S = 300.0
"""Scheduling, loading, building communicators, compiling.  Chosen between published ones: 150 s in all on 4,800 devices
(arXiv:2509.03047, abstract), 1,047 s for the communicators of 2,048 GPUs alone before they were mended
(arXiv:2402.15627, section 3.5)."""
HOUR = 3600.0


@dataclass(frozen=True)
class JobIteration:
    """One iteration of a job, as it was predicted.

    Attributes:
        name: of the job.
        seconds, low, high: of an iteration, and its 90 % interval; the mean one where iterations vary.
        devices: ranks of the job.
        tokens, samples: of an iteration; None where a sample has none.
        state_bytes: of parameters and optimizer states, each once.
        fits: whether its memory fits, None where that is not known.
        source: what the mean of iterations that vary rests on, in words; empty where they do not.
    """

    name: str
    seconds: float
    low: float
    high: float
    devices: int
    tokens: float | None
    samples: float
    state_bytes: float
    fits: bool | None = None
    source: str = ""


class JobEvaluation(NamedTuple):
    """Evaluations during a job."""

    every: int
    seconds: float


@dataclass(frozen=True)
class JobOptions:
    """What is asked of a job.

    Attributes:
        tokens, iterations: how long it is, one of the two.
        device_mtbf_s: mean time between failures of one device with its part of everything else; ``inf`` for none.
        detect_s, restart_s, spares, repair_s: see :class:`Failures`.
        storage: bytes per second of all devices together; None for :data:`STORAGE_PER_DEVICE` for each.
        staging: bytes per second at which a device copies to host memory; None where checkpoints are written directly.
        checkpoint_bytes: of a checkpoint; None for parameters and optimizer states.
        every: iterations between checkpoints; None for the best number.
        warm_up_s: before the first iteration, and again after each restart.
        evaluation: how often it is evaluated, and for how long; None for never.
        runs: how often the job is run with other random numbers.
        seed: of those.
    """

    tokens: float | None = None
    iterations: int | None = None
    device_mtbf_s: float = DEVICE_MTBF_S
    detect_s: float = DETECT_S
    restart_s: float = RESTART_S
    spares: int | None = None
    repair_s: float = 0.0
    storage: float | None = None
    staging: float | None = None
    checkpoint_bytes: float | None = None
    every: int | None = None
    warm_up_s: float = 0.0
    evaluation: JobEvaluation | None = None
    runs: int = 1000
    seed: int = 0


@dataclass(frozen=True)
class TrainingJob:
    """A job that was predicted.  Times in seconds; a range is that of 90 % of the runs.

    Attributes:
        of: one of its iterations.
        iterations: how many there are.
        tokens: of all of them, None where samples have none.
        checkpoint: what is written.
        mtbf_s: of the job.
        every: iterations between checkpoints.
        best_s, young_s, daly_s: work between checkpoints: the best, and by the two formulas; NaN without failures.
        total_s: the mean.
        total_range_s: by luck, the iteration being as predicted.
        total_interval_s: by not knowing the iteration, luck being in the mean.
        effective: part of the time in which training goes ahead.
        training_s, evaluation_s, writing_s, lost_s, down_s, waiting_s: what the mean consists of; ``waiting_s`` is a
            part of ``down_s``.
        failures: in the mean.
        failures_range: their range.
        sources: what it rests on.
    """

    of: JobIteration
    iterations: int
    tokens: float | None
    checkpoint: Checkpoint
    mtbf_s: float
    every: int
    best_s: float
    young_s: float
    daly_s: float
    total_s: float
    total_range_s: tuple[float, float]
    total_interval_s: tuple[float, float]
    effective: float
    training_s: float
    evaluation_s: float
    writing_s: float
    lost_s: float
    down_s: float
    waiting_s: float
    failures: float
    failures_range: tuple[float, float]
    sources: tuple[str, ...]

    @property
    def device_hours(self) -> float:
        """Of all devices, in the mean."""
        return self.total_s / HOUR * self.of.devices


def predict(of: JobIteration, options: JobOptions) -> TrainingJob:
    """Predict a whole job.

    Args:
        of: one of its iterations.
        options: what is asked.

    Raises:
        InputError: the job has no length or two, or failures come so fast that it gets nowhere.
    """
    iterations = _iterations(of, options)
    size = of.state_bytes if options.checkpoint_bytes is None else options.checkpoint_bytes
    storage = STORAGE_PER_DEVICE * of.devices if options.storage is None else options.storage
    checkpoint = Checkpoint(size, of.devices, storage, options.staging)
    failures = Failures(
        options.device_mtbf_s / of.devices, options.detect_s, options.restart_s + options.warm_up_s, options.spares,
        options.repair_s,
    )  # fmt: skip
    down = failures.detect_s + failures.restart_s + checkpoint.written_s
    evaluated = iterations // options.evaluation.every * options.evaluation.seconds if options.evaluation else 0.0

    def work(seconds: float) -> float:
        return iterations * seconds + evaluated

    each = work(of.seconds) / iterations
    best = intervals.best(checkpoint, down, failures.mtbf_s, each, work(of.seconds))
    every = min(options.every or max(round(best / each), 1), iterations)  # none later than the end

    def runs(seconds: float) -> JobRuns:
        interval = every * work(seconds) / iterations
        return run(work(seconds), interval, checkpoint, failures, options.warm_up_s, options.runs, options.seed)

    found = runs(of.seconds)
    total = float(found.total.mean())
    return TrainingJob(
        of, iterations, None if of.tokens is None else of.tokens * iterations, checkpoint, failures.mtbf_s, every,
        best_s=best if failures.mtbf_s < math.inf else math.nan,
        young_s=intervals.young(checkpoint.blocking_s, failures.mtbf_s) if failures.mtbf_s < math.inf else math.nan,
        daly_s=intervals.daly(checkpoint.blocking_s, failures.mtbf_s) if failures.mtbf_s < math.inf else math.nan,
        total_s=total,
        total_range_s=_range(found.total),
        total_interval_s=(float(runs(of.low).total.mean()), float(runs(of.high).total.mean())),
        effective=iterations * of.seconds / total,
        training_s=iterations * of.seconds,
        evaluation_s=evaluated,
        writing_s=float(found.writing.mean()),
        lost_s=float(found.lost.mean()),
        down_s=float(found.down.mean()),
        waiting_s=float(found.waiting.mean()),
        failures=float(found.failures.mean()),
        failures_range=_range(found.failures),
        sources=((of.source,) if of.source else ()) + _sources(options),
    )  # fmt: skip


MOST_ITERATIONS = 10**12
"""A job of more is a slip of the pen."""


def _iterations(of: JobIteration, options: JobOptions) -> int:
    found = _asked_iterations(of, options)
    if found > MOST_ITERATIONS:
        raise InputError(f"a job of {found:.3g} iterations is longer than any: look for a wrong number")
    return found


def _asked_iterations(of: JobIteration, options: JobOptions) -> int:
    if (options.tokens is None) == (options.iterations is None):
        raise InputError("a job has a length: give tokens or iterations, one of the two")
    if options.iterations is not None:
        if options.iterations < 1:
            raise InputError("a job has at least 1 iteration")
        return options.iterations
    assert options.tokens is not None
    if not of.tokens:
        raise InputError(f"{of.name} has no tokens: give iterations instead")
    if not options.tokens > 0:
        raise InputError("a job has more than 0 tokens")
    return math.ceil(options.tokens / of.tokens)


def _range(values: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(values, (0.05, 0.95))
    return float(low), float(high)


def _sources(options: JobOptions) -> tuple[str, ...]:
    found = []
    if options.device_mtbf_s == DEVICE_MTBF_S:
        found.append(
            "failures: 419 unexpected interruptions in 54 days of 16,384 H100, one in 50,700 device hours (Llama 3, "
            "arXiv:2407.21783, section 3.3.4)"
        )
    if options.storage is None:
        found.append("storage: 122 MB/s for each device, of 2 TB/s behind 16,384 (same paper, section 3.3.1)")
    if options.device_mtbf_s < math.inf and options.detect_s == DETECT_S:
        found.append("detection: 10 minutes, PyTorch's time-out of collectives")
    if options.device_mtbf_s < math.inf and options.restart_s == RESTART_S:
        found.append("restart: 5 minutes until it runs again, chosen; reading the checkpoint comes on top")
    if options.checkpoint_bytes is None:
        found.append("checkpoint: parameters and optimizer states, each once, written by all devices together")
    return tuple(found)
