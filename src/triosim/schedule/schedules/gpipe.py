"""GPipe: all micro-batches forward, then all backward (Huang et al. 2019)."""

from __future__ import annotations

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.schedule.actions import Action, Pass, Schedule


@registered
@dataclass(frozen=True)
class GPipe(Schedule):
    """All forwards first; the pipeline drains once between forward and backward."""

    def actions(self, stage: int, stages: int, micro_batches: int) -> list[Action]:
        """Forward 0..m-1, then backward 0..m-1."""
        return [Action(what, m) for what in (Pass.FORWARD, Pass.BACKWARD) for m in range(micro_batches)]
