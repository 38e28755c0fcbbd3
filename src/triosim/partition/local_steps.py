"""What groups of replicas that train by themselves exchange once in many iterations.

Between two exchanges each group takes ``every`` steps of its own optimizer.  Then the difference of its parameters to
those of the last exchange is averaged over the groups, and an outer optimizer (SGD with Nesterov momentum) applies it.
Of what that takes a part of one in ``every`` is counted in each iteration, so that an iteration is the mean one; a
collective of that part pays its latency as often, some tens of microseconds too much of an iteration.

Source: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models" (arXiv:2311.08105).
"""

from __future__ import annotations

from triosim.core.dataclass import dataclass

OUTER_STATE = 8
"""Bytes an element of the parameters of the last exchange and of the momentum, float32."""


@dataclass(frozen=True)
class OuterStep:
    """An exchange between groups.

    Attributes:
        axis: of the groups.
        every: iterations from one to the next.
        item: bytes of an element that is exchanged.
    """

    axis: str
    every: int
    item: float

    def before(self, elements: int, parameter: float) -> float:
        """Bytes that are read and written to make the difference, in the mean iteration.

        Args:
            elements: of the parameters that a rank has.
            parameter: bytes of one.
        """
        return elements * (parameter + OUTER_STATE / 2 + self.item) / self.every

    def after(self, elements: int, parameter: float) -> float:
        """Bytes that the outer optimizer moves in the mean iteration: states both ways, and parameters as they are
        written."""
        return elements * (self.item + 2 * OUTER_STATE + parameter) / self.every

    def sent(self, elements: int) -> float:
        """Bytes that are all-reduced in the mean iteration."""
        return elements * self.item / self.every
