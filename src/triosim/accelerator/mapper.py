"""Looks for mappings of little energy, time, or their product.

A searcher (a file of ``searchers/``) proposes mappings and is told their scores.  Those that exceed a store or a
fan-out are scored by how much they do, without being counted.  The search is split into islands, each with a random
stream of its own, so that one seed gives one answer however many processes share the islands.

A budget is a number of mappings; one in seconds is taken as :data:`RATE` mappings for each, which any recent machine
does in less, so that the answer does not depend on the machine.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from triosim.accelerator.architecture import Architecture
from triosim.accelerator.directives import Constraints
from triosim.accelerator.evaluate import Evaluation, costs, evaluation
from triosim.accelerator.mapping import LoopMapping
from triosim.accelerator.mapspace import MappingSpace, keeps_under, space
from triosim.accelerator.problem import Problem
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, unknown
from triosim.core.registry import Registry

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

SEARCHERS: Registry[Searcher] = Registry("triosim.accelerator.searchers", "triosim.mapping_searchers", "mapping search")
"""Ways to look for mappings."""

OBJECTIVES = ("energy", "delay", "edp", "pareto")

RATE = 100_000
"""Mappings that a second of budget stands for."""

LONGEST_S = 7 * 86_400
"""Seconds of a budget."""

ISLANDS = 4
"""Searches side by side, each with a part of the budget."""

TELLING = 3
"""Searches side by side from which on their spread says how far a longer search would come.  On 20 layers of four ready
designs the cycles of 300,000 mappings were within it for 39 of 40 budgets of 5,000 and 30,000 (the other was 0.29 below
where 0.26 were said, in logarithms), and not for 4 of 20 of 2,000, where two searches ran."""

_WEIGHTS = (0.5, 0.0, 1.0, 0.25, 0.75)  # of delay, on the islands of a Pareto search
_INVALID = 1e6  # score of a mapping that does not fit, before what it exceeds

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Candidates:
    """Mappings that a searcher proposes: factors (slots, dimensions, B) and orders (stores, dimensions, B)."""

    factors: NDArray[np.int64]
    orders: NDArray[np.int8]


class Searcher(Protocol):
    """A way to look for mappings."""

    def search(
        self, space: MappingSpace, random: np.random.Generator, budget: int
    ) -> Generator[Candidates, Scores, None]:
        """Yields mappings and is sent their scores, lower better; ends when it has no more to propose."""
        ...


@dataclass(frozen=True)
class FoundMapping:
    """One mapping that a search found, with its energy in joules and its cycles."""

    mapping: LoopMapping
    energy_j: float
    cycles: float

    @property
    def edp(self) -> float:
        """Energy times delay, in joule cycles."""
        return self.energy_j * self.cycles


@dataclass(frozen=True)
class Search:
    """What a search found.

    Attributes:
        best: for the objective; of a Pareto search that of the least product.
        front: mappings that none beats in both energy and cycles, by cycles; only of a Pareto search more than one.
        evaluated: mappings that were counted.
        proposed: those and the ones that did not fit.
        finished: whether the whole budget was used.
        curve: (mappings proposed, best objective so far) of the first island.
        spread: highest over lowest of the islands' best objectives: what stopping early leaves open.  Infinite where
            they are fewer than :data:`TELLING`; 1 where all mappings were tried.
        energy_spread: the same of the joules of these bests.
    """

    best: FoundMapping
    front: tuple[FoundMapping, ...]
    evaluated: int
    proposed: int
    finished: bool
    curve: tuple[tuple[int, float], ...] = ()
    spread: float = 1.0
    energy_spread: float = 1.0


@dataclass
class _Island:
    """What one island has found so far."""

    best: tuple[float, LoopMapping, float, float] | None = None
    front: list[tuple[float, float, LoopMapping]] = field(default_factory=list)
    evaluated: int = 0
    proposed: int = 0
    finished: bool = False
    interrupted: bool = False
    curve: list[tuple[int, float]] = field(default_factory=list)


def objective_values(objective: str, energy: Scores, cycles: Scores, weight: float = 0.5) -> Scores:
    """What is to be small: joules, cycles, their product, or a weighted one for one point of a Pareto front."""
    if objective == "energy":
        return energy
    if objective == "delay":
        return cycles * (1.0 + 1e-9 * np.log(np.maximum(energy, 1e-300)))  # of equal time the one of less energy
    if objective == "edp":
        return energy * cycles
    found: Scores = np.power(energy, 2 * (1 - weight)) * np.power(cycles, 2 * weight)
    return found


def run_island(
    where: MappingSpace, searcher: str, objective: str, budget: int, seed: Sequence[int], timing: str = "bandwidth",
    weight: float = 0.5, deadline: float | None = None, on_progress: Callable[[int], None] | None = None,
) -> _Island:  # fmt: skip
    """One island: asks its searcher for mappings until the budget is used.

    Args:
        where: the mappings to search.
        searcher, objective, timing: by name.
        budget: mappings.
        seed: of its random stream.
        weight: of delay, for a Pareto search.
        deadline: :func:`time.monotonic` at which to end early.
        on_progress: is told how many mappings have been proposed.
    """
    island = _Island()
    asks = SEARCHERS.get(searcher)().search(where, np.random.default_rng(list(seed)), budget)
    best = np.inf
    try:
        candidates = next(asks)
        while True:
            scores, energy, cycles, valid = _scores(where, candidates, objective, timing, weight)
            island.proposed += len(scores)
            island.evaluated += int(valid.sum())
            at = int(np.argmin(scores))
            if scores[at] < min(best, _INVALID):
                best = float(scores[at])
                mapping = where.nest.mapping(candidates.factors[..., at], candidates.orders[..., at])
                island.best = (best, mapping, float(energy[at]), float(cycles[at]))
                island.curve.append((island.proposed, float(np.exp(best))))
            if objective == "pareto":
                _extend_front(where, island.front, candidates, energy, cycles, valid)
            if island.proposed >= budget:
                island.finished = True
                break
            if on_progress is not None:
                on_progress(island.proposed)
            if deadline is not None and time.monotonic() > deadline:
                break
            candidates = asks.send(scores)
    except StopIteration:
        island.finished = True
    except KeyboardInterrupt:
        island.interrupted = True
    return island


def _scores(
    where: MappingSpace, candidates: Candidates, objective: str, timing: str, weight: float
) -> tuple[Scores, Scores, Scores, NDArray[np.bool_]]:
    """Scores, joules, cycles and whether it fits, of each candidate; logarithms of the objective."""
    excess = where.excess(candidates.factors)
    valid = excess == 0
    scores = _INVALID + excess
    energy = np.full(len(scores), np.inf)
    cycles = np.full(len(scores), np.inf)
    if valid.any():
        factors = candidates.factors if valid.all() else candidates.factors[:, :, valid]
        orders = candidates.orders if valid.all() else candidates.orders[:, :, valid]
        found = costs(where.nest, factors, orders, timing)
        energy[valid], cycles[valid] = found.total_j, found.cycles
        value = objective_values(objective, energy[valid], cycles[valid], weight)
        scores[valid] = np.log(np.maximum(value, 1e-300))
    return scores, energy, cycles, valid


def _extend_front(
    where: MappingSpace, front: list[tuple[float, float, LoopMapping]], candidates: Candidates, energy: Scores,
    cycles: Scores,
    valid: NDArray[np.bool_],
) -> None:  # fmt: skip
    """Add what no other beats in both."""
    order = np.lexsort((energy, cycles))
    least = np.inf
    fresh = []
    for b in order[valid[order]]:
        if energy[b] < least:
            least = energy[b]
            fresh.append(int(b))
    rows = [(float(cycles[b]), float(energy[b]), b) for b in fresh]
    known = [(c, e) for c, e, _ in front]
    for c, e, b in rows:
        if not any(kc <= c and ke <= e for kc, ke in known):
            front.append((c, e, where.nest.mapping(candidates.factors[..., b], candidates.orders[..., b])))
    front[:] = _non_dominated(front)


def _non_dominated(rows: Iterable[tuple[float, float, LoopMapping]]) -> list[tuple[float, float, LoopMapping]]:
    kept: list[tuple[float, float, LoopMapping]] = []
    least = np.inf
    for row in sorted(rows, key=lambda r: (r[0], r[1])):
        if row[1] < least:
            least = row[1]
            kept.append(row)
    return kept


def parse_budget(text: str | int) -> int:
    """Mappings of a budget: ``"10s"`` is ten times :data:`RATE`, ``"500000"`` or ``"5e5"`` is that many.

    Raises:
        InputError: neither a time nor a whole number, or less than one mapping.
    """
    from triosim.core.units import parse_time

    words = str(text).strip()
    timed = words[-1:].isalpha()
    value = parse_time(words, "--budget")  # of a number without a unit that number
    if value > (LONGEST_S if timed else LONGEST_S * RATE):
        raise InputError(
            f"--budget {words} is longer than a week: give less" if timed
            else f"--budget {words} is more mappings than a week has time for: give less"
        )  # fmt: skip
    if not timed and value != int(value):
        raise InputError(f"--budget {words} is no whole number of mappings: give one, or a time such as 10s")
    number = int(value * RATE) if timed else int(value)
    if number < 1:
        raise InputError(f"--budget {words} is no mapping at all: give a time such as 10s or a number of mappings")
    return number


Keeps = dict[str, tuple[str, ...]]
Dropped = frozenset[tuple[str, str]]


def free_pairs(architecture: Architecture, problem: Problem, constraints: Constraints) -> list[tuple[str, str]]:
    """Pairs of store and tensor of which neither the design nor a constraint says whether it is kept."""
    said = {(store, tensor) for store, tensor, _ in constraints.keeps}
    said |= {(s.name, t.name) for s in architecture.stores if s.keeps is not None for t in problem.tensors}
    return [
        (store.name, tensor.name) for store in architecture.stores[1:] for tensor in problem.tensors
        if (store.name, tensor.name) not in said
    ]  # fmt: skip


CHOICES = 32  # choices of what is kept that race with each other
ROUNDS = 4  # of the race: a quarter stays, and others that differ from them by one pair take the place of the rest
LEAST = 512  # mappings that a choice is tried with: of a small budget fewer choices race
RACE = 0.3  # share of the budget that the race takes


def search(
    architecture: Architecture, problem: Problem, constraints: Constraints | None = None, *, objective: str = "edp",
    searcher: str = "genetic", budget: int = 10 * RATE, seed: int = 0, timing: str = "bandwidth", workers: int = 1,
    deadline: float | None = None, on_progress: Callable[[int], None] | None = None,
) -> Search:  # fmt: skip
    """Look for a mapping.

    Args:
        architecture, problem, constraints: see there.
        objective: one of :data:`OBJECTIVES`.
        searcher: a registered one: ``genetic``, ``random`` or ``exhaustive``.
        budget: mappings to try.
        seed: of all random choices.
        timing: see :mod:`triosim.accelerator.evaluate`.
        workers: processes; they change how long it takes and nothing else.
        deadline: :func:`time.monotonic` at which to end with the best so far.
        on_progress: is told now and then how many mappings have been tried.

    Raises:
        InputError: unknown names, or no mapping is possible or was found.
        KeyboardInterrupt: it was interrupted before it found one.
    """
    if objective not in OBJECTIVES:
        raise unknown("objective", objective, OBJECTIVES)
    SEARCHERS.get(searcher)
    rules = constraints or Constraints()
    race = _Race(architecture, problem, rules, seed)
    with _Jobs(searcher, objective, timing, seed, workers, deadline, on_progress) as jobs:
        return _raced(race, jobs, budget)


def _raced(race: _Race, jobs: _Jobs, budget: int) -> Search:
    """A race between the choices of what is kept, and a search of the best of them."""
    objective = jobs.objective
    if jobs.searcher == "exhaustive":
        spaces = race.spaces(race.every())
        count = sum(where.size for where in spaces)
        if count > budget:
            raise InputError(
                f"there are {count:.3g} mappings, more than the budget of {budget}: raise --budget or take another "
                "--search"
            )
        tried = jobs.run([(where, budget, i) for i, where in enumerate(spaces)])
        known = float("inf") if jobs.interrupted else 1.0
        return _joined(tried, objective, (known, known))
    race.most = min(max(int(budget * RACE) // ROUNDS // LEAST, 2), CHOICES)
    choices = race.first()
    ranked: list[Dropped] = choices
    raced: list[_Island] = []
    for turn in range(ROUNDS if len(choices) > 1 else 0):
        each = max(int(budget * RACE) // ROUNDS // len(choices), 64)
        islands = jobs.run([
            (where, each, 1000 * (turn + 1) + i) for i, where in enumerate(race.spaces(choices))
        ])  # fmt: skip
        raced += islands
        race.tell(choices, islands)
        ranked = race.ranked()
        choices = race.next(ranked)
        if jobs.interrupted:
            break
    left = max(budget - sum(island.proposed for island in raced), 1)
    count = max(min(ISLANDS, left // 1000), 1)
    spaces = race.spaces(ranked[:count])
    parts = [(spaces[i % len(spaces)], max(left // count, 1), i) for i in range(count)]
    beside = jobs.run(parts)
    return _joined([*beside, *raced], objective, _spreads(beside, objective))


class _Race:
    """Choices of what each store keeps, where neither the design nor a constraint says it."""

    def __init__(self, architecture: Architecture, problem: Problem, rules: Constraints, seed: int) -> None:
        self.architecture, self.problem, self.rules = architecture, problem, rules
        self.base = keeps_under(architecture, problem, rules)
        self.free = free_pairs(architecture, problem, rules)
        self.random = np.random.default_rng([seed, 2**32])
        self.scores: dict[Dropped, float] = {}
        self.made: dict[Dropped, MappingSpace | InputError] = {}
        self.most = CHOICES  # that race at a time

    def every(self) -> list[Dropped]:
        """All choices that are possible.

        Raises:
            InputError: they are too many to be tried one by one, or none is possible.
        """
        if 2 ** len(self.free) > CHOICES:
            raise InputError(
                f"{2 ** len(self.free)} choices of what stores keep are too many for an exhaustive search: say what "
                "each keeps, in the design or in constraints"
            )
        subsets = itertools.chain.from_iterable(itertools.combinations(self.free, n) for n in range(len(self.free) + 1))
        return self._possible(frozenset(subset) for subset in subsets)

    def first(self) -> list[Dropped]:
        """Choices to begin with: all of them where they are few, else what keeps everything and others by chance."""
        if 2 ** len(self.free) <= self.most:
            return self.every()
        drawn = [frozenset(p for p in self.free if self.random.random() < 0.5) for _ in range(2 * CHOICES)]
        return self._possible([frozenset(), frozenset(self.free), *drawn])[: self.most]

    def next(self, ranked: list[Dropped]) -> list[Dropped]:
        """The best quarter, and neighbours of it that have not run."""
        kept = ranked[: max(len(ranked[: self.most]) // 4, 1)]
        fresh: list[Dropped] = []
        for _ in range(8 * CHOICES):
            if len(kept) + len(fresh) >= self.most or not self.free:
                break
            parent = kept[int(self.random.integers(len(kept)))]
            made = parent ^ {self.free[int(self.random.integers(len(self.free)))]}
            if made not in self.scores and made not in fresh and self._space(made) is not None:
                fresh.append(made)
        return kept + fresh

    def tell(self, choices: list[Dropped], islands: list[_Island]) -> None:
        """What each choice reached."""
        for choice, island in zip(choices, islands, strict=True):
            score = island.best[0] if island.best else float("inf")
            self.scores[choice] = min(score, self.scores.get(choice, float("inf")))

    def ranked(self) -> list[Dropped]:
        """Choices that have run, the best first."""
        return sorted(self.scores, key=lambda choice: (self.scores[choice], sorted(choice)))

    def spaces(self, choices: list[Dropped]) -> list[MappingSpace]:
        """Mappings under each choice."""
        return [where for choice in choices if (where := self._space(choice)) is not None]

    def _possible(self, choices: Iterable[Dropped]) -> list[Dropped]:
        found = [choice for choice in dict.fromkeys(choices) if self._space(choice) is not None]
        if not found:
            raise next(made for made in self.made.values() if isinstance(made, InputError))
        return found

    def _space(self, choice: Dropped) -> MappingSpace | None:
        if choice not in self.made:
            keeps = {
                store: tuple(t for t in kept if (store, t) not in choice) for store, kept in self.base.items()
            }  # fmt: skip
            try:
                self.made[choice] = space(self.architecture, self.problem, self.rules, keeps)
            except InputError as error:
                self.made[choice] = error
        made = self.made[choice]
        return made if isinstance(made, MappingSpace) else None


@dataclass
class _Jobs:
    """Islands, run here or in processes; after an interruption, those that had begun."""

    searcher: str
    objective: str
    timing: str
    seed: int
    workers: int
    deadline: float | None
    on_progress: Callable[[int], None] | None = None
    done: int = 0
    interrupted: bool = False
    pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> _Jobs:
        return self

    def __exit__(self, *_: object) -> None:
        if self.pool is not None:
            self.pool.shutdown()

    def run(self, parts: list[tuple[MappingSpace, int, int]]) -> list[_Island]:
        """Each (space, budget, number); in the order given, an empty one where nothing was run."""
        tasks = [
            (where, self.searcher, self.objective, budget, (self.seed, number), self.timing,
             _WEIGHTS[number % len(_WEIGHTS)], self.deadline)
            for where, budget, number in parts
        ]  # fmt: skip
        if self.workers > 1 and len(tasks) > 1:
            return self._in_processes(tasks)
        found = []
        for task in tasks:
            found.append(_Island() if self.interrupted else run_island(*task, self._tell))
            self.done += found[-1].proposed
            self.interrupted |= found[-1].interrupted
        return found

    def _tell(self, proposed: int) -> None:
        if self.on_progress is not None:
            self.on_progress(self.done + proposed)

    def _in_processes(self, tasks: list[tuple]) -> list[_Island]:
        from concurrent.futures import CancelledError, ProcessPoolExecutor, wait
        from multiprocessing import get_context

        if self.pool is None:
            self.pool = ProcessPoolExecutor(min(self.workers, len(tasks)), get_context("spawn"))
        futures = [self.pool.submit(_run, task) for task in tasks]
        self._tell(0)
        try:
            wait(futures)
        except KeyboardInterrupt:  # the processes are interrupted too, and return what they have
            self.interrupted = True
            for future in futures:
                future.cancel()
        found = []
        for future in futures:
            try:
                found.append(future.result())
            except (CancelledError, KeyboardInterrupt):
                found.append(_Island(interrupted=True))
        self.interrupted |= any(island.interrupted for island in found)
        return found


def _run(task: tuple) -> _Island:
    return run_island(*task)


def _spreads(islands: list[_Island], objective: str) -> tuple[float, float]:
    """Highest over lowest of what islands that searched side by side ended with (``Search.spread``), and of the
    joules that it takes."""
    if objective == "pareto":  # islands weigh energy and cycles differently: their fronts compare by the product
        rows = [min(island.front, key=lambda row: row[0] * row[1]) for island in islands if island.front]
        bests, joules = [float(np.log(row[0] * row[1])) for row in rows], [row[1] for row in rows]
    else:
        found = [island.best for island in islands if island.best is not None]
        bests, joules = [best[0] for best in found], [best[2] for best in found]
    if len(bests) < TELLING:
        return float("inf"), float("inf")
    return float(np.exp(max(bests) - min(bests))), max(joules) / min(joules)


def _joined(islands: list[_Island], objective: str, spreads: tuple[float, float]) -> Search:
    """What islands found together."""
    bests = [island.best for island in islands if island.best is not None]
    proposed = sum(island.proposed for island in islands)
    if not bests:
        if any(island.interrupted for island in islands):
            raise KeyboardInterrupt
        raise InputError(
            f"none of the {proposed} mappings that were tried fits its stores: raise --budget, or loosen constraints"
        )
    front = _non_dominated(row for island in islands for row in island.front)
    if objective == "pareto":
        cycles, energy, mapping = min(front, key=lambda row: row[0] * row[1])
        best = FoundMapping(mapping, energy, cycles)
    else:
        _, mapping, energy, cycles = min(bests, key=lambda b: b[0])
        best = FoundMapping(mapping, energy, cycles)
        front = [(cycles, energy, mapping)]
    return Search(
        best=best, front=tuple(FoundMapping(m, e, c) for c, e, m in front),
        evaluated=sum(island.evaluated for island in islands), proposed=proposed,
        finished=all(island.finished for island in islands), curve=tuple(islands[0].curve),
        spread=spreads[0], energy_spread=spreads[1],
    )  # fmt: skip


def as_json(found: Search, objective: str) -> dict[str, object]:
    """The search as JSON holds it."""
    return {
        "objective": objective,
        "proposed": found.proposed,
        "evaluated": found.evaluated,
        "finished": found.finished,
        "spread": found.spread if np.isfinite(found.spread) else None,
        "front": [{"cycles": point.cycles, "energy_j": point.energy_j} for point in found.front],
    }


def evaluated(
    architecture: Architecture, problem: Problem, found: FoundMapping, timing: str = "bandwidth"
) -> Evaluation:
    """The full evaluation of a mapping that was found."""
    from triosim.accelerator.nest import LoopNest

    nest = LoopNest.of(architecture, problem, found.mapping)
    return evaluation(nest, costs(nest, *nest.arrays([found.mapping]), timing), found.mapping, timing)


def with_keeps(constraints: Constraints, mapping: LoopMapping, problem: Problem) -> Constraints:
    """Constraints with what a mapping keeps."""
    keeps = [
        (level.node, t.name, t.name in level.keeps)
        for level in mapping.levels if level.keeps is not None for t in problem.tensors
    ]  # fmt: skip
    return replace(constraints, keeps=(*constraints.keeps, *keeps))
