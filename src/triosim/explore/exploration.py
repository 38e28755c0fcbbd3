"""What can be explored, and who looks for its points."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.registry import Registry
from triosim.explore.space import ChoiceSpace, Point, Value
from triosim.search.pareto import pareto_front

Costs = tuple[float, ...]


@dataclass(frozen=True)
class Trial:
    """A point that was evaluated.

    Attributes:
        point: of the space.
        costs: one of each objective, all above 0 and finite, less is better; None where the point is none.
        why: the sentence why it is none.
    """

    point: Point
    costs: Costs | None
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"point": self.point, "costs": self.costs, "why": self.why}

    @staticmethod
    def from_dict(plain: dict[str, Any]) -> Trial:
        """What :meth:`to_dict` made, as a trial again.

        Raises:
            KeyError, TypeError: it did not make that.
        """
        costs = plain["costs"]
        return Trial(tuple(plain["point"]), None if costs is None else tuple(costs), plain["why"])


class Exploration(ABC):
    """Something of which many variants can be evaluated.

    Attributes:
        space: what is chosen.
        objectives: names of the costs.
    """

    space: ChoiceSpace
    objectives: tuple[str, ...]

    def __init__(self) -> None:
        self.known: dict[Point, Trial] = {}

    @abstractmethod
    def evaluated(self, values: dict[str, Value]) -> Costs:
        """Costs of one variant.

        Raises:
            InputError: it cannot be built or run.
        """

    def drawn(self, random: np.random.Generator) -> Point:
        """A point to begin with; any of the space where an exploration knows no better."""
        return self.space.drawn(random)

    def fitted(self, point: Point) -> Point:
        """The point that can be run where a point was asked for; the point itself where an exploration knows no
        better."""
        return point

    def trial(self, point: Point) -> Trial:
        """A point with its costs; each is evaluated once."""
        found = self.known.get(point)
        if found is None:
            try:
                found = Trial(point, self._checked(self.evaluated(self.space.values(point))))
            except InputError as error:
                found = Trial(point, None, str(error))
            self.known[point] = found
        return found

    def _checked(self, costs: Costs) -> Costs:
        for name, cost in zip(self.objectives, costs, strict=True):
            if not 0 < cost < math.inf:
                raise InputError(f"{name} is {cost:g}, which cannot be compared: say what it costs, or leave it out")
        return costs


class AskTell(ABC):
    """A searcher: it is asked for points and told what came of them, in the order in which it was asked.

    Args:
        space: to search.
        objectives: how many costs a point has.
        seed: of all that it draws.
    """

    def __init__(self, space: ChoiceSpace, objectives: int, seed: int) -> None:
        self.space, self.objectives = space, objectives
        self.random = np.random.default_rng(seed)

    @property
    def batch(self) -> int:
        """Points that it may be asked for before it is told of the first of them; so many workers can share."""
        return 1

    @abstractmethod
    def ask(self) -> Point:
        """The next point to evaluate; it may be one that was before."""

    @abstractmethod
    def tell(self, trial: Trial) -> None:
        """What came of the first point that it was asked for and not told of yet."""


STRATEGIES: Registry[AskTell] = Registry("triosim.explore.searchers", "triosim.explorers", "searcher", AskTell)
"""Searchers by name."""


@dataclass(frozen=True)
class ExplorationResult:
    """Result of a searcher: its trials and their Pareto front.

    Attributes:
        trials: distinct points in the order in which they were first asked for.
        asked: how often it was asked.
        front: trials that no other is at least as good as in all costs, by the first.
        finished: False where it was interrupted.
    """

    trials: tuple[Trial, ...]
    asked: int
    front: tuple[Trial, ...] = field(default=())
    finished: bool = True


def pareto(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """Trials that no other beats, by their first cost.

    Raises:
        InputError: none could be run.
    """
    run = [(trial, trial.costs) for trial in trials if trial.costs is not None]
    if not run:
        why = f", the last because: {trials[-1].why}" if trials else ""
        raise InputError(f"none of {len(trials)} points can be run{why}")
    return tuple(run[place][0] for place in pareto_front([costs for _, costs in run]))
