"""The best plans of a space, exactly, by branch and bound: lower bounds leave out those that cannot be among them.

Plans are taken up in the order of what they take at least (:mod:`triosim.search.bounds`).  One whose least is worse
than the worst of the best so far is never among the best.  Where the Pareto front is wanted, such a plan is left out
only if one is known that costs no more than its least in anything.  Neither the order of evaluation nor the number of
workers changes what is found.
"""

from __future__ import annotations

import bisect
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Literal, NamedTuple, Protocol

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.fidelity import Fidelity
from triosim.hardware.system import System
from triosim.plan import Plan
from triosim.posttraining.workload import PostTrainingWorkload
from triosim.prediction.largest_batch import needed
from triosim.prediction.prepare import check_arguments
from triosim.search.bounds import PlanBound, PlanBounds
from triosim.search.outcome import Figures, PlanOutcome
from triosim.search.pareto import Costs, dominates, pareto_front
from triosim.search.posttraining import PostTrainingBounds, PostTrainingTask
from triosim.search.space import Candidate, PlanSpace
from triosim.search.sweep import outcomes
from triosim.search.task import PlanTask
from triosim.trace.tables import Trace

Objective = Literal["time", "tokens-per-dollar", "memory"]
OBJECTIVES: tuple[Objective, ...] = ("time", "tokens-per-dollar", "memory")
TOO_LARGE = "does not fit in memory, by what it must hold at least"
WORSE = "takes longer than the best found, by what it must run at least"
DOMINATED = "is worse in everything than a plan that was found"
COSTS_MORE = "costs more than the best found, by what it must run at least"
NEEDS_MORE = "needs more memory than the best found, by what it must hold at least"


class OutcomeStore(Protocol):
    """Outcomes that earlier runs of a search have found."""

    def get(self, asked: Mapping[str, Any]) -> PlanOutcome | None:
        """Its outcome, if it is known."""

    def keep(self, asked: Mapping[str, Any], outcome: PlanOutcome) -> None:
        """Remember one."""


@dataclass(frozen=True)
class FoundPlan:
    """A plan that was predicted and fits.

    Attributes:
        candidate: the plan.
        figures: what it takes.
        costs: seconds of an iteration, bytes of the fullest device, device-seconds of an iteration.
    """

    candidate: Candidate
    figures: Figures

    @property
    def costs(self) -> Costs:
        """See the class."""
        return _costs(self.figures.iteration_time_s, self.figures.reserved_bytes, self.candidate.devices)


@dataclass(frozen=True)
class BestPlans:
    """The best plans of a space, its Pareto front, and why other plans fell out.

    Attributes:
        best: the best plans, the best first.
        front: the plans that no other beats in time, memory and device-seconds, the fastest first; None where it was
            not asked for.
        legal: plans of the space.
        predicted: how many of them were predicted.
        fell_out: why others were not, or do not fit: how many, and a sentence.
        illegal: why combinations of sizes are no plans, likewise.
        least_bytes: of plans that do not fit, the least that one must hold; None where there is none.
    """

    best: tuple[FoundPlan, ...]
    front: tuple[FoundPlan, ...] | None
    legal: int
    predicted: int
    fell_out: tuple[tuple[int, str], ...]
    illegal: tuple[tuple[int, str], ...]
    least_bytes: int | None = None


def best_plans(
    workload: Trace | PostTrainingWorkload,
    systems: Mapping[int, System],
    space: PlanSpace,
    base: Plan,
    fidelity: Fidelity | None = None,
    objective: Objective = "time",
    count: int = 10,
    whole_front: bool = False,
    workers: int = 1,
    progress: Callable[[str], None] | None = None,
    known: OutcomeStore | None = None,
    prune: bool = True,
    executor: str = "local",
) -> BestPlans:
    """Find the best plans.

    Args:
        workload: one step on one device, or one of post-training, whose space has the samples of an update.
        systems: the machine, by how many devices it has: those of the space.
        space: what plans there may be.
        base: fields that no plan changes; its global batch is the space's, or the prompts of a step of post-training.
        fidelity: which models predict them.
        objective: what is best: least time of an iteration, most tokens for a dollar of rented devices (fewest
            device-seconds, where all devices cost the same), or least memory of the fullest device, then time.
        count: how many of them.
        whole_front: whether the Pareto front of time, memory and device-seconds is wanted too.
        workers: processes.
        progress: called with how far it is.
        known: what earlier runs have found.
        prune: False predicts every legal plan, for comparison.
        executor: who runs several workers, as of :func:`triosim.search.sweep.sweep`.

    Raises:
        InputError: an argument makes no sense, or no plan is legal or can be formed.
    """
    if objective not in OBJECTIVES:
        raise InputError(f"objective must be one of {', '.join(OBJECTIVES)}, got {objective!r}")
    if count < 1:
        raise InputError(f"--best must be at least 1, got {count}")
    run = _Search(workload, systems, space, base, fidelity or Fidelity(), objective, count, whole_front, prune)
    return run.run(workers, executor, progress or (lambda words: None), known)


def _costs(seconds: float, size: int, devices: int) -> Costs:
    return (seconds, float(size), seconds * devices)


class _OpenPlan(NamedTuple):
    """A plan that is not predicted yet, in the order in which they are.

    Attributes:
        least: what counts, at least.
        number: of the candidate.
        known: how well its least is known: a place in :data:`_STEPS`.
        costs: all that it costs at least.
    """

    least: Costs
    number: int
    known: int
    costs: Costs


_STEPS = ("at_once", "by_volume", "without_recomputation", "of", "of_stages")
"""What tells the least of a plan, each step dearer and sharper than the one before it."""
SHARP = len(_STEPS) - 1

TOGETHER = 8
"""Plans that one process is given at once: those found worst of them are predicted for nothing, but plans that are
alike share work."""


class _Search:
    def __init__(
        self, workload: Trace | PostTrainingWorkload, systems: Mapping[int, System], space: PlanSpace, base: Plan,
        fidelity: Fidelity, objective: Objective, count: int, whole_front: bool, prune: bool,
    ) -> None:  # fmt: skip
        check_arguments(workload if isinstance(workload, Trace) else workload.policy, next(iter(systems.values())))
        self.workload, self.systems, self.space, self.fidelity = workload, systems, space, fidelity
        batch = space.batch if isinstance(workload, Trace) else base.global_batch_size
        self.base = base.replaced(global_batch_size=batch, training=True)
        self.objective, self.count, self.whole_front, self.prune = objective, count, whole_front, prune
        self.candidates = space.candidates()
        self.illegal = space.illegal.most_common()
        self.fell: Counter[str] = Counter()
        self.too_large: int | None = None
        self.predicted = 0
        self.best: list[tuple[Costs, int]] = []
        self.found: dict[int, FoundPlan] = {}

    def run(
        self, workers: int, executor: str, progress: Callable[[str], None], known: OutcomeStore | None
    ) -> BestPlans:
        """All of it."""
        if not self.candidates:
            why = "; ".join(f"{words} ({number:,} of them)" if number > 1 else words for words, number in self.illegal)
            raise InputError(f"no plan is legal{': ' + why if why else ''}: give another batch or number of devices")
        for devices in sorted(self.systems):
            for outcome in self._predicted(devices, workers, executor, progress, known):
                self._take(outcome)
        if not self.found and self.too_large is None:
            raise InputError(_none_formed(self.fell.most_common()))
        places = pareto_front([self.found[n].costs for n in sorted(self.found)])
        numbers = sorted(self.found)
        return BestPlans(
            tuple(self.found[number] for _, number in self.best[: self.count]),
            tuple(self.found[numbers[place]] for place in places) if self.whole_front else None,
            len(self.candidates),
            self.predicted,
            tuple((n, why) for why, n in self.fell.most_common()),
            tuple((n, why) for why, n in self.illegal),
            self.too_large,
        )

    # --- in which order -----------------------------------------------------------------------------------------------

    def _predicted(
        self, devices: int, workers: int, executor: str, progress: Callable[[str], None], known: OutcomeStore | None
    ) -> Iterator[tuple[Candidate, PlanOutcome]]:
        """Plans on so many devices that may be among the best, with what they gave."""
        opened = _OpenPlans(self, devices, progress)
        if workers > 1 or executor != "local":
            yield from self._swept(opened, devices, workers, executor, known)
            return
        while batch := list(islice(opened, TOGETHER)):
            yield from self._swept(batch, devices, 1, executor, known)

    def _swept(
        self, plans: Iterable[Candidate], devices: int, workers: int, executor: str, known: OutcomeStore | None
    ) -> Iterator[tuple[Candidate, PlanOutcome]]:
        """Plans on so many devices with what they gave."""
        sent: list[Candidate] = []
        remembered: dict[int, PlanOutcome] = {}

        def asked() -> Iterator[dict[str, Any]]:
            for candidate in plans:
                before = known.get(candidate.asked) if known else None
                if before is not None:
                    remembered[len(sent)] = replace(before, number=len(sent))
                sent.append(candidate)
                yield dict(candidate.asked)

        def made(outcome: PlanOutcome) -> None:
            if known:
                known.keep(sent[outcome.number].asked, outcome)

        for outcome in outcomes(
            self._task(devices), asked(), workers, known=remembered, made=made, window=TOGETHER * workers,
            executor=executor,
        ):  # fmt: skip
            yield sent[outcome.number], outcome

    def _task(self, devices: int) -> PlanTask:
        """What predicts plans on so many devices."""
        of = (self.systems[devices], self.base, self.fidelity)
        if isinstance(self.workload, Trace):
            return PlanTask(self.workload, *of, detail="summary")
        return PostTrainingTask(self.workload, *of)

    def bounds(self, devices: int) -> PlanBounds | PostTrainingBounds:
        """What tells the least of plans on so many devices."""
        of = (self.systems[devices], self.base, self.fidelity)
        if isinstance(self.workload, Trace):
            return PlanBounds(self.workload, *of)
        return PostTrainingBounds(self.workload, *of)

    def key(self, costs: Costs) -> Costs:
        """What is compared first, then what decides between equals."""
        seconds, size, spent = costs
        return {"time": (seconds,), "tokens-per-dollar": (spent,), "memory": (size, seconds)}[self.objective]

    def is_out(self, one: _OpenPlan) -> bool:
        """Whether a plan cannot be among what is looked for; counts why."""
        if not self.prune or len(self.best) < self.count or one.least <= self.best[self.count - 1][0]:
            return False
        if not self.whole_front:
            self.fell[{"time": WORSE, "tokens-per-dollar": COSTS_MORE, "memory": NEEDS_MORE}[self.objective]] += 1
            return True
        if any(dominates(known.costs, one.costs) for known in self.found.values()):
            self.fell[DOMINATED] += 1
            return True
        return False

    # --- what came out ------------------------------------------------------------------------------------------------

    def _take(self, given: tuple[Candidate, PlanOutcome]) -> None:
        candidate, outcome = given
        self.predicted += 1
        if outcome.figures is None:
            self.fell[outcome.why] += 1
        elif not outcome.fits:
            self.does_not_fit("does not fit in memory", outcome.figures.needed_bytes)
        else:
            found = FoundPlan(candidate, outcome.figures)
            self.found[candidate.number] = found
            bisect.insort(self.best, (self.key(found.costs), candidate.number))

    def does_not_fit(self, why: str, size: int) -> None:
        """Count a plan that must hold so much."""
        self.fell[why] += 1
        self.too_large = size if self.too_large is None else min(self.too_large, size)

    def best_words(self) -> str:
        if not self.best:
            return "none fits yet"
        return f"best {self.found[self.best[0][1]].figures.iteration_time_s:.4g} s"


def _none_formed(whys: list[tuple[str, int]]) -> str:
    """That no legal plan can be formed, and what is wrong with most."""
    others = sum(count for _, count in whys[1:])
    more = f" ({others:,} of {others + whys[0][1]:,} fail otherwise)" if others else ""
    return f"no plan can be formed: {whys[0][0]}{more}"


class _OpenPlans(Iterator[Candidate]):
    """Plans on so many devices that may be among the best, those that take least at least first.

    What a plan takes at least is worked out step by step, and the next step only once no other takes less.

    Args:
        of: the search; what it has found until a plan is asked for leaves out others.
        devices: how many.
        progress: called with how far it is.
    """

    def __init__(self, of: _Search, devices: int, progress: Callable[[str], None]) -> None:
        self.of, self.devices, self.progress = of, devices, progress
        self.system = of.systems[devices]
        self.bounds = of.bounds(devices)
        own = [one for one in of.candidates if one.devices == devices]
        self.count = len(own)
        self.heap: list[_OpenPlan] = []
        if not of.prune:
            self.heap = [_OpenPlan((0.0,), one.number, SHARP, (0.0, 0.0, 0.0)) for one in own]
            return
        for number, one in enumerate(own):
            if not number % 1000:
                progress(f"{devices} devices: {number:,} of {len(own):,} plans bounded")
            self._push(one, 0, (0.0, 0.0, 0.0))

    def __next__(self) -> Candidate:
        while self.heap:
            one = heapq.heappop(self.heap)
            if self.of.is_out(one):
                continue
            left = f"{self.count - len(self.heap):,} of {self.count:,} plans"
            self.progress(f"{self.devices} devices: {left} looked at, {self.of.best_words()}")
            candidate = self.of.candidates[one.number]
            if one.known == SHARP:
                return candidate
            self._push(candidate, one.known + 1, one.costs)
        raise StopIteration

    def _push(self, candidate: Candidate, known: int, before: Costs) -> None:
        """Keep a plan whose least is known so well, if it may fit."""
        bound: PlanBound | str
        try:
            bound = getattr(self.bounds, _STEPS[known])(candidate)
        except InputError as error:  # what replicas exchange cannot be as a rule that all plans share says
            bound = str(error)
        if isinstance(bound, str):
            self.of.fell[bound] += 1
        elif not _fits(bound.bytes, self.system):
            self.of.does_not_fit(TOO_LARGE, bound.bytes)
        else:
            new = _costs(bound.seconds, bound.bytes, self.devices)
            if known == 0:
                self.bounds.expect(candidate)
            costs = tuple(max(pair) for pair in zip(before, new, strict=True))
            heapq.heappush(self.heap, _OpenPlan(self.of.key(costs), candidate.number, known, costs))


def _fits(size: int, system: System) -> bool:
    """Whether the largest of the devices holds so much."""
    return any(needed(0, size, device).fits is not False for device in system.models)
