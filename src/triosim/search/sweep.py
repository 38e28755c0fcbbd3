"""Predict many plans for one workload on one machine, in the order given, on one process or several.

Plans that share a stage of a prediction (a step rescaled, divided, priced) share its work: what stages made is kept in
caches of bounded size (:mod:`triosim.core.caching`).  Each worker has caches of its own and gets neighbouring plans, so
plans that have most in common should be next to each other.  Predictions are pure, so the answer depends neither on the
order nor on the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from triosim.core.errors import InputError
from triosim.fidelity import Fidelity
from triosim.hardware.system import System
from triosim.plan import Plan
from triosim.prediction.prepare import check_arguments
from triosim.search.executor import EXECUTORS, Executor
from triosim.search.outcome import PlanOutcome
from triosim.search.task import Detail, Numbered, PlanTask
from triosim.trace.tables import Trace

Progress = Callable[[str], None]

WINDOW = 16384
"""Plans of a summary that are put in another order together, those next to each other that divide the step alike: what
windows share is worked out again in each."""
FIRST_WINDOW = 4
"""Plans of the first window: something is there soon."""

BATCHES = 4
"""Batches of a window for each worker: plans in one share caches, and none should wait long for the last."""
LARGEST_BATCH = 32


def sweep(
    workload: Trace,
    system: System,
    plans: Iterable[Plan | Mapping[str, Any]],
    detail: Detail = "summary",
    workers: int = 1,
    base: Plan | None = None,
    fidelity: Fidelity | None = None,
    progress: Progress | None = None,
    known: Mapping[int, PlanOutcome] | None = None,
    other_recordings: Sequence[Trace] = (),
    made: Callable[[PlanOutcome], None] | None = None,
    window: int = WINDOW,
    executor: str = "local",
) -> Iterator[PlanOutcome]:
    """Predict plans one after another; results come in the order given.

    Plans of a summary are predicted in another order, those together that share most; each comes as soon as it and all
    before it are there.

    Args:
        workload: one step on one device.
        system: the machine.
        plans: plans, or the fields in which they differ from ``base`` (names as :func:`triosim.search.grid.parse_axes`
            has them); may be endless.  One that cannot be formed comes back with the sentence why.
        detail: ``"summary"`` gives what plans are compared by, ``"all"`` everything that a single prediction writes.
        workers: processes; each starts by importing the program's main module, as Python's ``spawn`` does, so a script
            needs ``if __name__ == "__main__":`` around what calls this.
        base: see ``plans``.
        fidelity: which models predict them, where ``plans`` do not say.
        progress: called with how many plans are done, in a few words.
        known: outcomes of plans by number, which are given back and not predicted again.
        other_recordings: the same step recorded on other devices, as of :func:`triosim.simulate`.
        made: called with each outcome as soon as it is there, which may be long before it is its turn.
        window: most plans of a summary that are put in another order together.
        executor: who runs several workers: ``"local"``, processes of this machine, or ``"ray"``, a Ray cluster.

    Raises:
        InputError: ``detail`` or ``workers`` make no sense, or a worker ended (it had too little memory).
    """
    check_arguments(workload, system, base, fidelity)
    if detail not in ("summary", "all"):
        raise InputError(f"detail must be 'summary' or 'all', got {detail!r}")
    if workers < 1:
        raise InputError(f"workers must be at least 1, got {workers}")
    if detail == "all":
        window = 1 if workers == 1 else FIRST_WINDOW * workers
    task = PlanTask(workload, system, base or Plan(), fidelity or Fidelity(), detail, other_recordings)
    return outcomes(task, plans, workers, progress, known, made, window, executor)


def outcomes(
    task: PlanTask,
    plans: Iterable[Plan | Mapping[str, Any]],
    workers: int = 1,
    progress: Progress | None = None,
    known: Mapping[int, PlanOutcome] | None = None,
    made: Callable[[PlanOutcome], None] | None = None,
    window: int = WINDOW,
    executor: str = "local",
) -> Iterator[PlanOutcome]:
    """What a task predicts of plans, in the order given; arguments are those of :func:`sweep`."""
    known = {} if known is None else known  # an empty one may be filled while plans are asked for
    numbered = enumerate(plan if isinstance(plan, Plan) else dict(plan) for plan in plans)
    progress_of = _Progress(progress or (lambda words: None), made or (lambda outcome: None))
    if workers == 1 and executor == "local":
        return _in_windows(numbered, known, task, window, lambda plans: map(task.outcomes, plans), 1, progress_of)
    run = EXECUTORS.get(executor)
    return _spread(numbered, known, task, window, run, workers, progress_of)


class _Progress:
    """Says how far a sweep is, and hands on what was made."""

    def __init__(self, progress: Progress, made: Callable[[PlanOutcome], None]) -> None:
        self.progress, self.made = progress, made
        self.count = self.fit = 0
        self.best = float("inf")

    def add(self, outcome: PlanOutcome, new: bool = True) -> PlanOutcome:
        """One more is there, which was known already or is ``new``."""
        self.count += 1
        if outcome.fits and outcome.figures is not None:
            self.fit += 1
            self.best = min(self.best, outcome.figures.iteration_time_s)
        if new:
            self.made(outcome)
        words = f"{self.count:,} plans, {self.fit:,} possible"
        self.progress(words + (f", best {self.best:.4g} s" if self.fit else ""))
        return outcome


Predict = Callable[[Iterable[list[Numbered]]], Iterable[list[PlanOutcome]]]


def _in_windows(
    numbered: Iterator[Numbered],
    known: Mapping[int, PlanOutcome],
    task: PlanTask,
    window: int,
    predict: Predict,
    workers: int,
    progress: _Progress,
) -> Iterator[PlanOutcome]:
    """Outcomes in order, predicted window by window: within one those are predicted together that share most."""
    size = min(FIRST_WINDOW * workers, window)
    while batch := list(islice(numbered, size)):
        size = window
        next_, after = batch[0][0], batch[-1][0] + 1
        found = {number: progress.add(known[number], new=False) for number, _ in batch if number in known}
        new = [(task.sharing(plan), number, plan) for number, plan in batch if number not in known]
        ordered = [(number, plan) for _, number, plan in sorted(new, key=lambda one: one[:2])]
        most = 1 if workers == 1 else max(1, min(LARGEST_BATCH, len(ordered) // (BATCHES * workers)))
        for outcomes in predict([ordered[at : at + most] for at in range(0, len(ordered), most)]):
            found.update((outcome.number, progress.add(outcome)) for outcome in outcomes)
            while next_ in found:
                yield found.pop(next_)
                next_ += 1
        yield from (found[number] for number in range(next_, after))  # what was known


def _spread(
    numbered: Iterator[Numbered],
    known: Mapping[int, PlanOutcome],
    task: PlanTask,
    window: int,
    executor: type[Executor],
    workers: int,
    progress: _Progress,
) -> Iterator[PlanOutcome]:
    """Outcomes in order, worked out by several processes."""
    with executor(task, workers) as run:
        yield from _in_windows(numbered, known, task, window, run.predict, workers, progress)
