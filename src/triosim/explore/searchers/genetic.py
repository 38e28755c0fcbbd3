"""A genetic search for the whole front: good points exchange choices, and some change.

Of two parents drawn the one is taken that fewer others beat (Goldberg's ranking by dominance); of equal ones the one
whose costs are rarer.  A child has each choice from one of two such parents; a choice changes to a neighbour of its
value, or to any other where values have no order.
"""

from __future__ import annotations

import numpy as np

from triosim.core.registry import registered
from triosim.explore.exploration import AskTell, Trial
from triosim.explore.space import ChoiceSpace, Point
from triosim.search.pareto import dominates

POPULATION = 32
BROOD = 8
"""Children of one population at most, which workers can share; and an eighth of the children that came before, since
the first ones learn most from each other."""

FAR = 0.2  # of the changes, those that go anywhere


@registered
class GeneticPoints(AskTell):
    """Crossing and mutation of a population."""

    def __init__(self, space: ChoiceSpace, objectives: int, seed: int) -> None:
        super().__init__(space, objectives, seed)
        self.people: dict[Point, Trial] = {}
        self.beaten: dict[Point, int] = {}
        self.told = 0

    @property
    def batch(self) -> int:
        """The first population at once, then broods that grow."""
        children = self.told - POPULATION
        return -children if children < 0 else min(max(children // BROOD, 1), BROOD)

    def ask(self) -> Point:
        """A random point at first, then a child."""
        if self.told < POPULATION or len(self.people) < 2:
            return self.space.drawn(self.random)
        mother, father = self._parent(), self._parent()
        child = [a if self.random.random() < 0.5 else b for a, b in zip(mother, father, strict=True)]
        chance = 1.0 / len(child)
        for at, choice in enumerate(self.space.choices):
            if self.random.random() < chance:
                child[at] = self._changed(child[at], len(choice.values), choice.ordered)
        return tuple(child)

    def tell(self, trial: Trial) -> None:
        """Keep it if it is among the best; what cannot be run is not kept."""
        self.told += 1
        if trial.costs is None or trial.point in self.people:
            return
        self.people[trial.point] = trial
        self._rank()
        if len(self.people) > POPULATION:
            worst = max(self.people, key=lambda point: (self.beaten[point], point))
            del self.people[worst]
            self._rank()

    def _rank(self) -> None:
        costs = {point: trial.costs for point, trial in self.people.items() if trial.costs is not None}
        self.beaten = {
            point: sum(dominates(other, own) and other != own for other in costs.values())
            for point, own in costs.items()
        }

    def _parent(self) -> Point:
        points = list(self.people)
        one, other = (points[int(at)] for at in self.random.integers(0, len(points), 2))
        return min(one, other, key=lambda point: self.beaten[point])

    def _changed(self, at: int, count: int, ordered: bool) -> int:
        if not ordered or self.random.random() < FAR:
            return int(self.random.integers(count))
        return int(np.clip(at + self.random.choice([-1, 1]), 0, count - 1))
