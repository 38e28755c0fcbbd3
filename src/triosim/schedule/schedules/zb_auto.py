"""ZB-1p and ZB-2p: the zero-bubble schedule that fits the times of the passes, within a limit of memory.

Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (arXiv:2401.10241), section 3: forwards and input
gradients in turn after a warm-up, weight gradients where a stage would wait, no more activations at a time than there
is memory for.  ``memory`` is what a stage may hold, in multiples of what the first stage of 1F1B does: 1 is ZB-1p, 2 is
ZB-2p of the paper.

Orders are those of ZB-H1 and ZB-H2 with slopes of their own: ``1 + a (p - 1 - s)`` forwards of warm-up, and weight
gradients ``d s`` behind the input gradients, or sooner where a forward would find no memory.  An activation counts
whole until its input gradient, and from then on with the share that the weight gradient still reads.  The slopes are
those for which the stage that takes longest from its first pass to its last takes least: optimizers need not wait for
each other (section 4).  With the times of the paper's table 11 its bubbles are those of the paper within 0.2 % of an
iteration (``tests/schedule/test_zero_bubble.py``).
"""

from __future__ import annotations

from copy import copy
from functools import lru_cache
from itertools import product
from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.core.registry import registered
from triosim.schedule.actions import Action, Pass, PassTimes, Schedule

WARM_UP = (1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5)
"""Slopes of the warm-up: ZB-H1 has 1, ZB-H2 has 2."""
BEHIND = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)
"""Slopes of what weight gradients lag behind: ZB-H1 has 1, ZB-H2 has 2."""
PASSES = (Pass.FORWARD, Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT)


@registered
@dataclass(frozen=True)
class ZeroBubbleAuto(Schedule):
    """The zero-bubble schedule for given times and memory.

    Attributes:
        memory: that a stage may hold, in multiples of what the first of 1F1B does.
    """

    memory: float = 2.0

    splits_backward: ClassVar[bool] = True
    times_matter: ClassVar[bool] = True
    times: ClassVar[PassTimes | None] = None

    def __post_init__(self) -> None:
        if not 1 <= self.memory < float("inf"):
            raise PlanError(f"schedule zb-auto: memory must be 1 or more times that of 1f1b, got {self.memory:g}")

    def timed(self, times: PassTimes) -> Schedule:
        """The schedule for these times."""
        made = copy(self)
        object.__setattr__(made, "times", times)
        return made

    def actions(self, stage: int, stages: int, micro_batches: int) -> list[Action]:
        """In the order that fits best; where no times are known, all passes take the same and sends nothing."""
        same = (1.0,) * stages
        times = self.times or PassTimes(same, same, same, send=0.0, kept=1.0)
        order = _best(times, stages, self.memory * stages, micro_batches)[stage]
        return [Action(PASSES[what], number) for what, number in order]


Order = tuple[tuple[int, int], ...]
"""Passes of a stage: which of :data:`PASSES`, and of which micro-batch."""


@lru_cache(16)
def _best(times: PassTimes, stages: int, limit: float, micro_batches: int) -> tuple[Order, ...]:
    """The orders of all stages under which the one that takes longest takes least."""
    tried: dict[tuple[Order, ...], float] = {}
    for ahead, behind in product(WARM_UP, BEHIND):
        orders = tuple(
            _order(1 + round(ahead * (stages - 1 - stage)), round(behind * stage), limit, times.kept, micro_batches)
            for stage in range(stages)
        )
        if orders not in tried:
            tried[orders] = _longest(orders, times, micro_batches)
    return min(tried, key=tried.__getitem__)


@lru_cache(4096)
def _order(warm_up: int, behind: int, limit: float, kept: float, micro_batches: int) -> Order:
    """Of a stage: forwards of warm-up, then backwards and forwards in turn, with weight gradients so far behind.

    Args:
        warm_up, behind: forwards, and weight gradients that may be due.
        limit: activations that it may hold.
        kept: what of one is held until its weight gradient.
        micro_batches: of an iteration.
    """
    forwards = min(warm_up, micro_batches, int(limit))
    order = [(0, number) for number in range(forwards)]
    weights = 0
    for backwards in range(1, micro_batches + 1):
        order.append((1, backwards - 1))
        while weights < backwards:
            full = forwards - backwards + 1 + kept * (backwards - weights) > limit + 1e-9
            if not (backwards - weights > behind or (full and forwards < micro_batches)):
                break
            order.append((2, weights))
            weights += 1
        if forwards < micro_batches and forwards - backwards + 1 + kept * (backwards - weights) <= limit + 1e-9:
            order.append((0, forwards))
            forwards += 1
    return (*order, *((2, number) for number in range(weights, micro_batches)))


def _longest(orders: tuple[Order, ...], times: PassTimes, micro_batches: int) -> float:
    """Seconds from the first pass to the last of the stage that takes longest."""
    last = len(orders) - 1
    took = list(zip(times.forward, times.input_gradient, times.weight_gradient, strict=True))
    forth = [[0.0] * micro_batches, *([-1.0] * micro_batches for _ in orders)]  # when what a stage reads is there
    back = [[-1.0] * micro_batches for _ in range(last + 2)]  # likewise what stage s - 1 waits for of stage s
    at, free, begin = [0] * (last + 1), [0.0] * (last + 1), [-1.0] * (last + 1)
    left = sum(map(len, orders))
    while left:
        before = left
        for stage, order in enumerate(orders):
            place, now, arrives, returns = at[stage], free[stage], forth[stage], back[stage + 1]
            send = times.send if stage < last else 0.0
            while place < len(order):
                what, number = order[place]
                if what < 2:
                    ready = returns[number] if what else arrives[number]
                    if ready < 0:
                        break
                    now = max(now, ready)
                begin[stage] = now if begin[stage] < 0 else begin[stage]
                now += took[stage][what]
                if what == 0:
                    (forth[stage + 1] if stage < last else returns)[number] = now + send
                elif what == 1 and stage:
                    back[stage][number] = now + times.send
                place += 1
                left -= 1
            at[stage], free[stage] = place, now
        if left == before:
            return float("inf")
    return max(end - first for end, first in zip(free, begin, strict=True))
