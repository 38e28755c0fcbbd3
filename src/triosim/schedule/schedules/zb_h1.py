"""ZB-H1: 1F1B with the backward split, so that the half which nobody waits for fills the end of the pipeline.

Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (arXiv:2401.10241), section 2.2: as 1F1B, with weight
gradients that start ``stage`` micro-batches later than input gradients.  Every stage then holds the activations of at
most ``stages`` micro-batches, no more than the first stage of 1F1B, and the bubble is ``(p - 1) (T_F + T_B - T_W)``
instead of ``(p - 1) (T_F + T_B + T_W)``, for the times of forward, input gradient and weight gradient.
"""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.schedule.actions import Action, Pass, Schedule


@registered
@dataclass(frozen=True)
class ZeroBubbleH1(Schedule):
    """The zero-bubble schedule that needs no more memory than 1F1B."""

    splits_backward: ClassVar[bool] = True

    def actions(self, stage: int, stages: int, micro_batches: int) -> list[Action]:
        """1F1B of forwards and input gradients; weight gradients lag ``stage`` micro-batches behind the latter."""
        warm_up = min(stages - stage - 1, micro_batches)
        order = [Action(Pass.FORWARD, m) for m in range(warm_up)]
        for m in range(micro_batches):
            order += [Action(Pass.FORWARD, m + warm_up)] if m + warm_up < micro_batches else []
            order.append(Action(Pass.INPUT_GRADIENT, m))
            order += [Action(Pass.WEIGHT_GRADIENT, m - stage)] if m >= stage else []
        return order + [Action(Pass.WEIGHT_GRADIENT, m) for m in range(max(micro_batches - stage, 0), micro_batches)]
