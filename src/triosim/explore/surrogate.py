"""A model of the costs of an exploration, and its error on points that it has not seen.

The model is a Gaussian process on logarithms of costs (Rasmussen and Williams, Gaussian Processes for Machine Learning,
2006, chapters 2 and 5).

It learns from points of a *box*: all values of a choice of names, all but the last quarter of one of numbers.  Its
error is told for points of the box that it was not shown, and for points outside.  That is error against our own model
of the thing, not against the thing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.explore.exploration import Exploration, Trial
from triosim.explore.space import ChoiceSpace, Point

HELD_OUT = 50
"""Points that are held out, inside and outside each, where there are so many."""

LEAST = 8
"""Points below which nothing is learned or told."""

BOX = 0.75
"""Of the values of a number those that are in the box, from the least on."""

_LENGTHS = (0.2, 0.4, 0.8, 1.6, 3.2)
_NOISES = (1e-6, 1e-4, 1e-2)  # of the variance
_RIDGE = 1e-3  # of the trend

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class GaussianProcess:
    """A linear trend and what a Gaussian process adds to it.

    Attributes:
        x: (n, features) where it was shown what there is.
        trend: of an intercept and the features.
        weights: (n) of the kernel's columns.
        length: of the kernel, exp(-distance^2 / 2 length^2).
    """

    x: Floats
    trend: Floats
    weights: Floats
    length: float

    @staticmethod
    def fitted(x: Floats, y: Floats) -> GaussianProcess:
        """Fit it; length and noise are those that err least on samples left out one by one."""
        ones = np.column_stack([np.ones(len(x)), x])
        trend = np.linalg.solve(ones.T @ ones + _RIDGE * np.eye(ones.shape[1]), ones.T @ y)
        rest = y - ones @ trend
        best: tuple[float, GaussianProcess] | None = None
        for length in _LENGTHS:
            kernel = _kernel(x, x, length)
            for noise in _NOISES:
                inverse = np.linalg.inv(kernel + noise * np.eye(len(x)))
                weights = inverse @ rest
                left_out = float(np.mean((weights / np.diag(inverse)) ** 2))
                if best is None or left_out < best[0]:
                    best = left_out, GaussianProcess(x, trend, weights, length)
        assert best is not None
        return best[1]

    def predicted(self, x: Floats) -> Floats:
        """What it takes points for."""
        ones = np.column_stack([np.ones(len(x)), x])
        found: Floats = ones @ self.trend + _kernel(x, self.x, self.length) @ self.weights
        return found


def _kernel(a: Floats, b: Floats, length: float) -> Floats:
    square = ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2)
    found: Floats = np.exp(-square / (2 * length**2))
    return found


@dataclass(frozen=True)
class HeldOut:
    """How wrong a surrogate is on points that it was not shown.

    Attributes:
        points: how many.
        mean, most: relative errors of each cost: the mean, and what nine of ten stay below.
    """

    points: int
    mean: tuple[float, ...]
    most: tuple[float, ...]


@dataclass(frozen=True)
class Surrogate:
    """What was learned.

    Attributes:
        shown: points that it learned from.
        models: one of each cost.
        inside, outside: the errors; None where fewer than :data:`LEAST` points are there to be held out, as outside
            where no number is varied.
    """

    shown: int
    models: tuple[GaussianProcess, ...]
    inside: HeldOut | None
    outside: HeldOut | None

    def predicted(self, space: ChoiceSpace, points: list[Point]) -> Floats:
        """(points, costs) what it takes points for."""
        x = space.features(points)
        return np.exp(np.column_stack([model.predicted(x) for model in self.models]))


def learned(
    what: Exploration, shown: int, seed: int = 0, on_trial: Callable[[int], None] | None = None
) -> Surrogate:  # fmt: skip
    """Learn what is explored from random points of the box.

    Args:
        what: is explored; its points are evaluated as far as they are not known.
        shown: points to learn from; those that cannot be run are replaced.
        seed: of the points.
        on_trial: told how many have been evaluated.

    Raises:
        InputError: fewer than :data:`LEAST` points are asked for, or are in the box and can be run, or are left there.
    """
    if shown < LEAST:
        raise InputError(f"a surrogate of {shown} points: the least is {LEAST}")
    random = np.random.default_rng(seed)
    box = [_within(choice.ordered, len(choice.values)) for choice in what.space.choices]
    done = 0

    def points(count: int, inside: bool, but: set[Point]) -> list[Trial]:
        nonlocal done
        found: dict[Point, Trial] = {}
        for _ in range(40 * count):
            point = what.space.drawn(random)
            if inside:
                point = tuple(int(at) for at in random.integers(0, box))
            if point in found or point in but or inside != all(at < n for at, n in zip(point, box, strict=True)):
                continue
            trial = what.trial(point)
            if trial.costs is not None:
                found[point] = trial
                done += 1
                if on_trial is not None:
                    on_trial(done)
            if len(found) == count:
                break
        return list(found.values())

    samples = points(shown, True, set())
    if len(samples) < LEAST:
        raise InputError(f"only {len(samples)} points to learn from can be run: vary more, or give more values")
    known = {trial.point for trial in samples}
    x, y = _arrays(what.space, samples)
    models = tuple(GaussianProcess.fitted(x, column) for column in y.T)
    made = Surrogate(len(samples), models, None, None)
    held = [_error(made, what.space, points(HELD_OUT, inside, known)) for inside in (True, False)]
    if held[0] is None:
        raise InputError(
            f"a surrogate of {len(samples)} points leaves fewer than {LEAST} of {math.prod(box):,} beside them to be "
            "judged on: learn from fewer, or vary more"
        )
    return Surrogate(len(samples), models, held[0], held[1])


def _within(ordered: bool, count: int) -> int:
    """Values in the box."""
    return max(int(BOX * count), 1) if ordered and count > 1 else count


def _arrays(space: ChoiceSpace, trials: list[Trial]) -> tuple[Floats, Floats]:
    costs = np.array([trial.costs for trial in trials], np.float64)
    return space.features([trial.point for trial in trials]), np.log(costs)


def _error(made: Surrogate, space: ChoiceSpace, trials: list[Trial]) -> HeldOut | None:
    if len(trials) < LEAST:
        return None
    true = np.array([trial.costs for trial in trials], np.float64)
    off = np.abs(made.predicted(space, [trial.point for trial in trials]) / true - 1)
    return HeldOut(len(trials), tuple(off.mean(axis=0).tolist()), tuple(np.quantile(off, 0.9, axis=0).tolist()))
