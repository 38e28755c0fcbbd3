"""ZB-V: no stage waits where passes are equally long, in the memory of 1F1B; each stage has two chunks in a V.

Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024 (arXiv:2401.10241), section 6.  A micro-batch goes down
through the first chunks and up again through the second, so that its backward begins on the stage where its forward
began, and every stage holds the activations of at most ``2 p`` passes through a chunk: as much as the first stage of
1F1B.  The order is that of PyTorch's ``ScheduleZBVZeroBubble``.
"""

from __future__ import annotations

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.schedule._v import VPlacement
from triosim.schedule.actions import Action, Pass, numbered

F0, F1 = (Pass.FORWARD, 0), (Pass.FORWARD, 1)
I0, I1 = (Pass.INPUT_GRADIENT, 0), (Pass.INPUT_GRADIENT, 1)
W0, W1 = (Pass.WEIGHT_GRADIENT, 0), (Pass.WEIGHT_GRADIENT, 1)


@registered
@dataclass(frozen=True)
class ZeroBubbleV(VPlacement):
    """The zero-bubble schedule of two chunks in a V."""

    def actions(self, stage: int, stages: int, micro_batches: int) -> list[Action]:
        """That of ``2 stages - 1`` micro-batches or more, of which those that there are not are left out."""
        total, behind = max(micro_batches, 2 * stages - 1), stages - stage
        begun = stages + behind - 1  # forwards of the first chunk before its first backward
        order = (2 * behind - 1) * [F0] + stage * [F1, F0] + behind * [F1, I1, W1]
        order += (total - begun) * [F0, I0, W0, F1, I1, W1] + (begun - stages) * [I0, W0, F1, I1, W1]
        order += stage * [I0, I1] + behind * [I0, W0] + stage * [W1] + stage * [W0]
        return [action for action in numbered(order) if action.micro_batch < micro_batches]
