"""1F1B: after a warm-up each stage alternates one forward and one backward (PipeDream-Flush, Narayanan et al. 2021)."""

from __future__ import annotations

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.schedule.actions import Action, Pass, Schedule


@registered
@dataclass(frozen=True)
class OneForwardOneBackward(Schedule):
    """One forward, one backward: as long as GPipe, but at most ``stages - stage`` micro-batches' activations are held.

    Attributes:
        combined: one more forward first, and one for each stage behind, so that a forward and the backward after it are
            of different micro-batches and run in turn, one computing while the other exchanges the tokens of experts.
    """

    combined: bool = False

    @property
    def combines(self) -> bool:
        """Whether a forward and the backward after it run in turn."""
        return self.combined

    def actions(self, stage: int, stages: int, micro_batches: int) -> list[Action]:
        """A forward for each stage behind (combined two, and one more), then one forward and one backward in turn, then
        the rest backward."""
        behind = stages - stage - 1
        warm_up = min(2 * behind + 1 if self.combined else behind, micro_batches)
        order = [Action(Pass.FORWARD, m) for m in range(warm_up)]
        for m in range(warm_up, micro_batches):
            order += [Action(Pass.FORWARD, m), Action(Pass.BACKWARD, m - warm_up)]
        return order + [Action(Pass.BACKWARD, m) for m in range(micro_batches - warm_up, micro_batches)]
