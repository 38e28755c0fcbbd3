"""1F1B: after a warm-up each stage alternates one forward and one backward (PipeDream-Flush, Narayanan et al. 2021)."""

from __future__ import annotations

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.schedule.actions import Action, Pass, Schedule


@registered
@dataclass(frozen=True)
class OneForwardOneBackward(Schedule):
    """As long as GPipe, with at most ``stages - stage`` micro-batches' activations held at a time."""

    def actions(self, stage: int, stages: int, micro_batches: int) -> list[Action]:
        """``stages - stage - 1`` forwards, then one forward and one backward in turn, then the rest backward."""
        warm_up = min(stages - stage - 1, micro_batches)
        order = [Action(Pass.FORWARD, m) for m in range(warm_up)]
        for m in range(warm_up, micro_batches):
            order += [Action(Pass.FORWARD, m), Action(Pass.BACKWARD, m - warm_up)]
        return order + [Action(Pass.BACKWARD, m) for m in range(micro_batches - warm_up, micro_batches)]
