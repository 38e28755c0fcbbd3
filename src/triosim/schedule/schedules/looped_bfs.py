"""Looped breadth-first: GPipe over several chunks of the model on each stage, all micro-batches of a chunk at a time.

Source: Lamy-Poirier, "Breadth-First Pipeline Parallelism", MLSys 2023 (arXiv:2211.05953), section 3: the bubble is that
of interleaved 1F1B, ``(p - 1) (T_F + T_B) / v`` for the times of all ``v`` chunks of a stage together, and with as many
micro-batches as stages or more no stage waits between chunks.  Activations are held until their backward, and gradients
of a chunk are complete early: they can be reduced beside other chunks.  The order is that of PyTorch's
``ScheduleLoopedBFS``, which goes backward through the micro-batches from the last to the first.
"""

from __future__ import annotations

from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.core.registry import registered
from triosim.schedule.actions import Action, Pass, Schedule


@registered
@dataclass(frozen=True)
class LoopedBreadthFirst(Schedule):
    """All micro-batches through one chunk, then through the next.

    Attributes:
        chunks: of each stage (virtual stages).
    """

    chunks: int = 2

    def __post_init__(self) -> None:
        if self.chunks < 1:
            raise PlanError(f"schedule looped-bfs: chunks must be at least 1, got {self.chunks}")

    @property
    def chunks_per_stage(self) -> int:
        """As asked for."""
        return self.chunks

    def actions(self, stage: int, stages: int, micro_batches: int) -> list[Action]:
        """Forward chunk by chunk, then backward from the last chunk to the first; the same on every stage."""
        forward = [Action(Pass.FORWARD, m, chunk) for chunk in range(self.chunks) for m in range(micro_batches)]
        return forward + [Action(Pass.BACKWARD, m, chunk) for _, m, chunk in reversed(forward)]
