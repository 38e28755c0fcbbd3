"""Autoscaling: how many replicas of a pool there should be, from the requests that they have.

The rule is that of Kubernetes' Horizontal Pod Autoscaler: every so often, as many as bring the mean of outstanding
requests a replica to its target, unless that is within a tolerance; fewer only when so few have been enough for a
while (its stabilisation window).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import field
from typing import Annotated

from triosim.core.dataclass import dataclass
from triosim.core.options import AtLeast, GreaterThan, configured
from triosim.core.units import parse_time, picoseconds

_LEAST_TICKS = 1_000_000
"""A microsecond: who asks more often would wait for ever."""


@dataclass(frozen=True)
class AutoscalingPlan:
    """How a pool grows and shrinks; the times' defaults are those of Kubernetes.

    Attributes:
        target: outstanding requests, waiting or running, that a replica should have.
        least: replicas at any time, and at the beginning.
        every: seconds between two looks; 0: whenever a request arrives.
        down: seconds for which fewer must have been enough.
        tolerance: share by which the mean may be off its target before anything is done.
    """

    target: Annotated[float, GreaterThan(0)]
    least: Annotated[int, AtLeast(0)] = 1
    every: str = "15s"
    down: str = "300s"
    tolerance: Annotated[float, AtLeast(0)] = 0.1

    @property
    def every_ticks(self) -> int:
        """Picoseconds between two looks, 0 for every arrival."""
        ticks = picoseconds(parse_time(self.every, "autoscale every"), "autoscale every")
        return max(ticks, _LEAST_TICKS) if ticks else 0

    @property
    def down_ticks(self) -> int:
        """Picoseconds for which fewer must have been enough."""
        return picoseconds(parse_time(self.down, "autoscale down"), "autoscale down")


def parse_autoscaling(text: str) -> AutoscalingPlan:
    """As it is typed: ``target=32,least=1,every=15s,down=5min``.

    Raises:
        InputError: it makes no sense.
    """
    typed = dict(part.strip().partition("=")[::2] for part in text.split(","))
    plan = configured(AutoscalingPlan, typed, "--autoscale")
    _ = plan.every_ticks, plan.down_ticks  # which says what is wrong with them
    return plan


@dataclass
class Autoscaler:
    """Decides for one pool.

    Attributes:
        plan: how.
        most: replicas that the pool has room for.
    """

    plan: AutoscalingPlan
    most: int
    _wanted: deque[tuple[int, int]] = field(init=False, repr=False, default_factory=deque)

    def wanted(self, now: int, outstanding: int, there: int) -> int:
        """Replicas that there should be.

        Args:
            now: picoseconds.
            outstanding: requests that are not done, those included that no replica has yet.
            there: replicas that serve, or will.
        """
        plan = self.plan
        load = outstanding / plan.target
        needed = there if there and abs(load / there - 1) <= plan.tolerance else math.ceil(load)
        needed = min(max(needed, plan.least), self.most)
        seen = self._wanted
        while seen and seen[-1][1] <= needed:
            seen.pop()  # what asked for no more, and sooner, never counts again
        seen.append((now, needed))
        while seen[0][0] <= now - plan.down_ticks and len(seen) > 1:
            seen.popleft()
        return max(needed, min(there, seen[0][1]))
