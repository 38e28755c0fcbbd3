"""ZB-H2: ZB-H1 with twice the warm-up, so that no stage waits between its first pass and its last.

Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (arXiv:2401.10241), section 2.2 and table 2: up to
``2 p - 1`` micro-batches' activations are held, against ``p`` of ZB-H1, and the time that a stage waits is
``(p - 1) (T_F + T_B - 2 T_W)`` for the times of forward, input gradient and weight gradient: none if these are equal.
A stage then ends as much later than the one before as it began later, so an iteration whose optimizers do not wait for
each other follows the one before without a gap.
"""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.schedule.actions import Action, Pass, Schedule


@registered
@dataclass(frozen=True)
class ZeroBubbleH2(Schedule):
    """The zero-bubble schedule that takes about twice the memory of 1F1B."""

    splits_backward: ClassVar[bool] = True

    def actions(self, stage: int, stages: int, micro_batches: int) -> list[Action]:
        """``2 (stages - stage) - 1`` forwards before the first backward; weight gradients lag ``2 stage`` behind."""
        warm_up, lag = min(2 * (stages - stage - 1), micro_batches), min(2 * stage, micro_batches)
        order = [Action(Pass.FORWARD, m) for m in range(warm_up)]
        for m in range(micro_batches):
            order += [Action(Pass.FORWARD, m + warm_up)] if m + warm_up < micro_batches else []
            order.append(Action(Pass.INPUT_GRADIENT, m))
            order += [Action(Pass.WEIGHT_GRADIENT, m - lag)] if m >= lag else []
        return order + [Action(Pass.WEIGHT_GRADIENT, m) for m in range(micro_batches - lag, micro_batches)]
