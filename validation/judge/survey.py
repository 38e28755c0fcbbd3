"""What a scenario of the 2026 survey of performance tools is: its commands, and the figures that are looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Document = Mapping[str, Any]
"""What a command wrote with ``--json``."""


@dataclass(frozen=True)
class Published:
    """A figure to hold a prediction against.

    Attributes:
        value: the figure.
        within: relative difference that passes.
        source: where it is from.
    """

    value: float
    within: float
    source: str


@dataclass(frozen=True)
class Figure:
    """A figure of a scenario.

    Attributes:
        name: what it is.
        of: finds it in the results of the commands, in their order.
        unit: behind the number; ``%`` shows parts of a whole.
        published: what it should be, None where nobody says.
        holds: a condition in words, for figures that are only right or wrong.
    """

    name: str
    of: Callable[[Sequence[Document]], float]
    unit: str = ""
    published: Published | None = None
    holds: Callable[[float], bool] | None = None


@dataclass(frozen=True)
class Scenario:
    """One of the survey's.

    Attributes:
        id: its number there.
        title: what it is.
        commands: what is typed, without ``triosim`` and ``--json``.
        figures: what is looked at.
        note: what a reader should know.
    """

    id: str
    title: str
    commands: tuple[str, ...]
    figures: tuple[Figure, ...]
    note: str = ""
