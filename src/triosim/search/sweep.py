"""Predict many plans for one workload on one machine, in the order given, on one process or several.

Plans that share a stage of a prediction (a step rescaled, divided, priced) share its work: what stages made is kept in
caches of bounded size (:mod:`triosim.core.caching`).  Each worker has caches of its own and gets neighbouring plans, so
plans that have most in common should be next to each other.  Predictions are pure, so the answer depends neither on the
order nor on the number of workers.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any, Literal

from triosim.core.errors import InputError
from triosim.fidelity import Fidelity
from triosim.hardware.system import System
from triosim.plan import Plan
from triosim.prediction.simulate import simulate
from triosim.search.evaluate import NotEvaluated, evaluated
from triosim.search.evaluated_figures import evaluated_figures, outlined_figures
from triosim.search.grid import asked_of
from triosim.search.outcome import Figures, PlanOutcome, figures
from triosim.search.outline import outlined
from triosim.trace.tables import Trace

Detail = Literal["summary", "all"]
Tell = Callable[[str], None]
Formed = tuple[Plan, Fidelity]
Numbered = tuple[int, Plan | dict[str, Any]]

WINDOW = 4096
"""Plans of a summary that are put in another order together, those next to each other that divide the step alike.  The
first windows are smaller, so that something is there soon."""
FIRST_WINDOW = 4

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
    progress: Tell | None = None,
    known: Mapping[int, PlanOutcome] | None = None,
    also: Sequence[Trace] = (),
    made: Callable[[PlanOutcome], None] | None = None,
    window: int = WINDOW,
) -> Iterator[PlanOutcome]:
    """Predict plans one after another; results come in the order given.

    Plans of a summary are predicted in another order, those together that share most, and come 4, 8, 16, ... at a time.

    Args:
        workload: one step on one device.
        system: the machine.
        plans: plans, or the fields in which they differ from ``base`` (names as :func:`triosim.search.grid.axes_of` has
            them); may be endless.  One that cannot be formed comes back with the sentence why.
        detail: ``"summary"`` gives what plans are compared by, ``"all"`` everything that a single prediction writes.
        workers: processes; each starts by importing the program's main module, as Python's ``spawn`` does, so a script
            needs ``if __name__ == "__main__":`` around what calls this.
        base: see ``plans``.
        fidelity: which models predict them, where ``plans`` do not say.
        progress: told how many plans are done, in a few words.
        known: outcomes of plans by number, which are given back and not predicted again.
        also: the same step recorded on other devices, as of :func:`triosim.simulate`.
        made: called with each outcome as soon as it is there, which may be long before it is its turn.
        window: most plans of a summary that are put in another order together.

    Raises:
        InputError: ``detail`` or ``workers`` make no sense, or a worker ended (it had too little memory).
    """
    if detail not in ("summary", "all"):
        raise InputError(f"detail must be 'summary' or 'all', got {detail!r}")
    if workers < 1:
        raise InputError(f"workers must be at least 1, got {workers}")
    base, fidelity = base or Plan(), fidelity or Fidelity()
    known = {} if known is None else known  # an empty one may be filled while plans are asked for
    numbered = enumerate(plan if isinstance(plan, Plan) else dict(plan) for plan in plans)
    task = _Task(workload, system, base, fidelity, detail, also)
    if detail == "all":
        window = 1 if workers == 1 else FIRST_WINDOW * workers
    progress_of = _Progress(progress or (lambda words: None), made or (lambda outcome: None))
    if workers == 1:
        return _in_windows(numbered, known, task, window, lambda plans: map(task.outcomes, plans), 1, progress_of)
    return _spread(numbered, known, task, window, workers, progress_of)


class _Progress:
    """Says how far a sweep is, and hands on what was made."""

    def __init__(self, tell: Tell, made: Callable[[PlanOutcome], None]) -> None:
        self.tell, self.made = tell, made
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
        self.tell(words + (f", best {self.best:.4g} s" if self.fit else ""))
        return outcome


Predict = Callable[[Iterable[list[Numbered]]], Iterable[list[PlanOutcome]]]


def _in_windows(
    numbered: Iterator[Numbered],
    known: Mapping[int, PlanOutcome],
    task: _Task,
    window: int,
    predict: Predict,
    workers: int,
    progress: _Progress,
) -> Iterator[PlanOutcome]:
    """Outcomes in order, predicted window by window: within one those come together that share most."""
    size = min(FIRST_WINDOW * workers, window)
    while batch := list(islice(numbered, size)):
        size = min(2 * size, window)
        found = {number: progress.add(known[number], new=False) for number, _ in batch if number in known}
        new = [(task.sharing(plan), number, plan) for number, plan in batch if number not in known]
        ordered = [(number, plan) for _, number, plan in sorted(new, key=lambda one: one[:2])]
        most = 1 if workers == 1 else max(1, min(LARGEST_BATCH, len(ordered) // (BATCHES * workers)))
        for outcomes in predict([ordered[at : at + most] for at in range(0, len(ordered), most)]):
            found.update((outcome.number, progress.add(outcome)) for outcome in outcomes)
        yield from (found[number] for number, _ in batch)


def _shares(formed: Formed | str, devices: int) -> str:
    """Alike for plans that divide and price the same step, as most of the work is."""
    if isinstance(formed, str):
        return ""
    plan, _ = formed
    replicas = plan.dp or max(devices // plan.replica_ranks, 1)
    batch = plan.batch_size or (plan.global_batch_size or 0) / replicas
    size = batch / (plan.micro_batches or 1)
    step = (plan.tp, plan.parallelism, plan.recompute, plan.sequence_length, size)
    return repr((*step, plan.zero, plan.pp, plan.schedule))


class _Task:
    """Predicts one plan after another.

    Args:
        workload, system, base, fidelity, detail, also: as of :func:`sweep`.
    """

    def __init__(
        self,
        workload: Trace,
        system: System,
        base: Plan,
        fidelity: Fidelity,
        detail: Detail,
        also: Sequence[Trace] = (),
    ) -> None:
        self.workload, self.system, self.detail, self.also = workload, system, detail, also
        self.base, self.fidelity = base, fidelity

    def formed(self, plan: Plan | dict[str, Any]) -> Formed | str:
        """The plan and its fidelity, or why there is none."""
        try:
            if isinstance(plan, Plan):
                return plan, self.fidelity
            return asked_of(self.base, self.fidelity, plan, self.system.devices)
        except InputError as error:
            return str(error)

    def sharing(self, plan: Plan | dict[str, Any]) -> str:
        """Alike for plans that should be predicted one after another."""
        return _shares(self.formed(plan), self.system.devices) if self.detail == "summary" else ""

    def outcomes(self, plans: Iterable[Numbered]) -> list[PlanOutcome]:
        """What some plans give."""
        return [self.outcome(number, plan) for number, plan in plans]

    def outcome(self, number: int, plan: Plan | dict[str, Any]) -> PlanOutcome:
        """What a plan gives."""
        asked, given = _asked(plan), self.formed(plan)
        if isinstance(given, str):
            return PlanOutcome(number, asked, None, given)
        formed, fidelity = given
        try:
            if self.detail == "summary":
                found = self._summary(formed, fidelity)
                if found is not None:
                    return PlanOutcome(number, asked, found)
            result = simulate(self.workload, self.system, formed, fidelity, fit=False, also=self.also)
            whole = result.to_dict() if self.detail == "all" else None
            return PlanOutcome(number, asked, figures(result), "", whole)
        except InputError as error:
            return PlanOutcome(number, asked, None, str(error))

    def _summary(self, plan: Plan, fidelity: Fidelity) -> Figures | None:
        """Figures without a full prediction; None where there is no other way."""
        try:
            return outlined_figures(outlined(self.workload, self.system, plan, fidelity, self.also))
        except NotEvaluated:
            pass
        try:
            return evaluated_figures(evaluated(self.workload, self.system, plan, fidelity, self.also))
        except NotEvaluated:
            return None


def _asked(plan: Plan | dict[str, Any]) -> dict[str, Any]:
    """What a sweep gave of a plan, in values that JSON has."""
    fields = {n: getattr(plan, n) for n in sorted(plan.given)} if isinstance(plan, Plan) else plan
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}


# --- several processes ------------------------------------------------------------------------------------------------

_task: _Task | None = None
"""In a worker: what it predicts plans for."""


def _begin(
    workload: Trace, system: System, base: Plan, fidelity: Fidelity, detail: Detail, also: Sequence[Trace]
) -> None:
    """Make this process a worker."""
    global _task
    _task = _Task(workload, system, base, fidelity, detail, also)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    """A worker whose sweep was killed would wait for ever."""
    parent.join()
    os._exit(1)


def _outcomes(plans: list[Numbered]) -> list[PlanOutcome]:
    assert _task is not None
    return _task.outcomes(plans)


def _spread(
    numbered: Iterator[Numbered],
    known: Mapping[int, PlanOutcome],
    task: _Task,
    window: int,
    workers: int,
    progress: _Progress,
) -> Iterator[PlanOutcome]:
    """Outcomes in order, worked out by several processes."""
    context = multiprocessing.get_context("spawn")
    begin = (task.workload, task.system, task.base, task.fidelity, task.detail, task.also)
    pool = ProcessPoolExecutor(workers, context, _begin, begin)

    def predict(batches: Iterable[list[Numbered]]) -> Iterator[list[PlanOutcome]]:
        for future in as_completed([pool.submit(_outcomes, batch) for batch in batches]):
            yield future.result()

    try:
        yield from _in_windows(numbered, known, task, window, predict, workers, progress)
    except BrokenProcessPool:
        raise InputError(
            f"one of {workers} workers ended before it was done, as a machine does that runs out of memory: use fewer"
        ) from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
