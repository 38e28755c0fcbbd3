"""Spaces of named choices; a point is one place in each list of values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted

Value = float | int | str | bool
Point = tuple[int, ...]
"""A place in the values of each choice."""


@dataclass(frozen=True)
class VariedValue:
    """One of several values.

    Attributes:
        name: of what is chosen.
        values: in their order; numbers ascend.
    """

    name: str
    values: tuple[Value, ...]

    @property
    def ordered(self) -> bool:
        """Whether neighbours are alike: numbers are, names are not."""
        return all(isinstance(value, (int, float)) for value in self.values)


@dataclass(frozen=True)
class ChoiceSpace:
    """All combinations of some choices.

    Raises:
        InputError: there are none, a choice has no value or one twice, or a name comes twice.
    """

    choices: tuple[VariedValue, ...]

    def __post_init__(self) -> None:
        if not self.choices:
            raise InputError("nothing is varied: name at least one size and its values, as --vary rows=8,16,32")
        for choice in self.choices:
            if not choice.values or len(set(choice.values)) < len(choice.values):
                raise InputError(f"values of {choice.name} are {quoted(list(choice.values))}: give each once")
        names = [choice.name for choice in self.choices]
        if len(set(names)) < len(names):
            raise InputError(f"{next(n for n in names if names.count(n) > 1)} is varied twice: give all values at once")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Values of each choice."""
        return tuple(len(choice.values) for choice in self.choices)

    @property
    def size(self) -> int:
        """Points."""
        return math.prod(self.sizes)

    def values(self, point: Point) -> dict[str, Value]:
        """What a point chooses, by name."""
        return {choice.name: choice.values[at] for choice, at in zip(self.choices, point, strict=True)}

    def drawn(self, random: np.random.Generator) -> Point:
        """A point, all alike."""
        return tuple(int(at) for at in random.integers(0, self.sizes))

    def every(self) -> Iterator[Point]:
        """All points, the last choice changing fastest."""
        return product(*map(range, self.sizes))

    def features(self, points: list[Point]) -> NDArray[np.float64]:
        """Points as numbers from 0 to 1, (points, features): the place among numbers, one column for each name."""
        columns = []
        places = np.array(points, np.int64).reshape(len(points), len(self.choices))
        for at, choice in enumerate(self.choices):
            if choice.ordered:
                columns.append(places[:, at] / max(len(choice.values) - 1, 1))
            else:
                columns += [(places[:, at] == value).astype(float) for value in range(len(choice.values))]
        return np.array(columns, np.float64).T.reshape(len(points), -1)
