"""A small exploration whose front is known."""

from __future__ import annotations

from triosim.core.errors import InputError
from triosim.explore.exploration import Exploration
from triosim.explore.space import ChoiceSpace, VariedValue

SPACE = ChoiceSpace((
    VariedValue("x", tuple(range(1, 13))), VariedValue("y", tuple(range(1, 9))),
    VariedValue("kind", ("cheap", "fast", "broken")),
))  # fmt: skip


class Quadratic(Exploration):
    """Costs fall in x and rise in x; y is best at 5; one kind cannot be run."""

    space = SPACE
    objectives = ("cycles", "energy")

    def evaluated(self, values):
        """Both costs."""
        x, y, kind = values["x"], values["y"], values["kind"]
        if kind == "broken":
            raise InputError("broken cannot be run")
        off = 1 + (y - 5) ** 2 / 10
        return off * (2 if kind == "cheap" else 1) * 100 / x, off * (1 if kind == "cheap" else 3) * (x + 1)
