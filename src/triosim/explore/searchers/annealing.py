"""Simulated annealing: steps to neighbours, worse ones ever more rarely (Kirkpatrick et al., Science 1983).

Several costs are one number, the sum of their logarithms, each with a weight.  A run begins at a random point with
weights drawn anew, so that runs end at different places of the front.
"""

from __future__ import annotations

import math

import numpy as np

from triosim.core.registry import registered
from triosim.explore.exploration import AskTell, Trial
from triosim.explore.space import ChoiceSpace, Point

STEPS = 60
"""Points of a run."""

HOT, COLD = 0.5, 0.01
"""First and last temperature, in logarithms of cost: at first e^-1 of the steps to a cost 65 % higher are taken."""


@registered
class Annealing(AskTell):
    """One point that wanders."""

    def __init__(self, space: ChoiceSpace, objectives: int, seed: int) -> None:
        super().__init__(space, objectives, seed)
        self._begin()

    def _begin(self) -> None:
        self.weights = self.random.dirichlet(np.ones(self.objectives))
        self.at: Point | None = None
        self.cost = math.inf
        self.step = 0

    def ask(self) -> Point:
        """A neighbour of where it is: one choice with another value."""
        if self.at is None:
            return self.space.drawn(self.random)
        open_ = [place for place, size in enumerate(self.space.sizes) if size > 1]
        if not open_:
            return self.at
        place = open_[int(self.random.integers(len(open_)))]
        choice = self.space.choices[place]
        if choice.ordered:
            steps = [at for at in (self.at[place] - 1, self.at[place] + 1) if 0 <= at < len(choice.values)]
        else:
            steps = [at for at in range(len(choice.values)) if at != self.at[place]]
        new = steps[int(self.random.integers(len(steps)))]
        return (*self.at[:place], new, *self.at[place + 1 :])

    def tell(self, trial: Trial) -> None:
        """Go there, or stay."""
        cost = math.inf
        if trial.costs is not None:
            cost = float(self.weights @ np.log(np.array(trial.costs)))
        heat = HOT * (COLD / HOT) ** (self.step / STEPS)
        if cost < math.inf and (cost <= self.cost or self.random.random() < math.exp((self.cost - cost) / heat)):
            self.at, self.cost = trial.point, cost
        self.step += 1
        if self.step >= STEPS:
            self._begin()
