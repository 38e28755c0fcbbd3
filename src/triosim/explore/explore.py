"""Runs a searcher on an exploration: it asks for points, which are evaluated, and is told their costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from triosim.core.errors import InputError, quoted
from triosim.explore.exploration import STRATEGIES, AskTell, Exploration, ExplorationResult, Trial, pareto
from triosim.explore.space import Point
from triosim.explore.trials import Trials

STALE = 50
"""Points in a row that were asked for before, after which a searcher is taken to have seen what it can."""


def explore(
    what: Exploration, searcher: str = "genetic", budget: int = 200, seed: int = 0,
    on_trial: Callable[[int, Trial], None] | None = None, workers: int = 1,
) -> ExplorationResult:  # fmt: skip
    """Let a searcher look for points of little cost.

    Args:
        what: is explored.
        searcher: one of :data:`STRATEGIES`.
        budget: distinct points to evaluate at most; where the space has no more, all are, and nobody is asked.
        seed: of the searcher.
        on_trial: told how many points there are, and the last.
        workers: processes that evaluate points; what is found is the same with any number.

    Returns:
        what was found until the budget was used, the searcher asked for nothing new, or it was interrupted.

    Raises:
        InputError: no such searcher, a budget, seed or number of workers that is none, workers of a searcher that is
            asked for one point at a time, or no point can be run (the last one's sentence).
    """
    if budget < 1:
        raise InputError(f"a budget of {budget} points: the least is 1")
    if seed < 0:
        raise InputError(f"a seed of {seed}: give 0 or more")
    if workers < 1:
        raise InputError(f"--workers must be at least 1, got {workers}")
    asks = STRATEGIES.get(searcher)(what.space, len(what.objectives), seed)
    if workers > 1 and asks.batch == 1 and what.space.size > budget:
        raise InputError(
            f"searcher {quoted(searcher)} needs the costs of each point before it asks for the next, which workers "
            "cannot share: leave --workers out, or take genetic"
        )
    found: dict[Point, Trial] = {}
    asked = since = 0
    finished = True
    try:
        with Trials(what, workers) as trials:
            if what.space.size <= budget:
                for trial in trials.of(list(what.space.every())):
                    found[trial.point] = trial
                    if on_trial is not None:
                        on_trial(len(found), trial)
                budget = len(found)
            patience = STALE * len(what.space.choices)
            while len(found) < budget and since < patience:
                for trial in trials.of(_asked(asks, found, budget - len(found), patience - since)):
                    asks.tell(trial)
                    asked += 1
                    since += 1
                    if trial.point not in found:
                        found[trial.point], since = trial, 0
                        if on_trial is not None:
                            on_trial(len(found), trial)
    except KeyboardInterrupt:
        if not any(trial.costs is not None for trial in found.values()):
            raise
        finished = False
    made = tuple(found.values())
    return ExplorationResult(made, asked, pareto(made), finished)


def _asked(asks: AskTell, found: Mapping[Point, Trial], new: int, most: int) -> list[Point]:
    """Points of one batch: until so many are new, and at most so many."""
    points: list[Point] = []
    fresh: set[Point] = set()
    while len(points) < min(asks.batch, most) and len(fresh) < new:
        points.append(asks.ask())
        if points[-1] not in found:
            fresh.add(points[-1])
    return points
