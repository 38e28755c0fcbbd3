"""DualPipeV: DualPipe cut in half, a V of two chunks on each stage (Liu et al., arXiv:2412.19437, section 3.2.1).

Each stage alternates a forward of one chunk and a backward of the other, for DeepSeek's kernels to exchange tokens of
the one while they compute the other; where fewer than two passes are under way, backwards are run in halves.  The order
is that of ``dualpipev.py`` in DeepSeek's repository DualPipe, and of PyTorch's ``ScheduleDualPipeV``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.core.registry import registered
from triosim.schedule._v import VPlacement
from triosim.schedule.actions import Action, Pass, numbered

F0, F1 = (Pass.FORWARD, 0), (Pass.FORWARD, 1)
B0, B1 = (Pass.BACKWARD, 0), (Pass.BACKWARD, 1)
I0, I1 = (Pass.INPUT_GRADIENT, 0), (Pass.INPUT_GRADIENT, 1)
LATER = (Pass.WEIGHT_GRADIENT, -1)
"""The weight gradient that has been due for longest."""


@registered
@dataclass(frozen=True)
class DualPipeV(VPlacement):
    """DualPipe in a V: half the parameters on each device, and a forward beside each backward.

    Attributes:
        combined: whether these two run in turn, one computing while the other exchanges the tokens of experts.
    """

    combined: bool = True

    @property
    def combines(self) -> bool:
        """Whether a forward and the backward beside it run in turn."""
        return self.combined

    def actions(self, stage: int, stages: int, micro_batches: int) -> list[Action]:
        """Forwards until the first backward, forward and backward in turn, and halves where nothing else is left.

        Raises:
            PlanError: there are fewer than two micro-batches for each stage.
        """
        if micro_batches < 2 * stages:
            raise PlanError(
                f"schedule dualpipe-v runs at least two micro-batches for each stage: use micro-batches {2 * stages} "
                f"or more on {stages} stages, not {micro_batches}"
            )
        ahead, behind = stage + 1, stages - stage - 1
        order = 2 * behind * [F0] + ahead * [F0, F1] + behind * [I1, LATER, F1]
        order += (micro_batches - 2 * stages + ahead) * [F0, B1, F1, B0] + behind * [B1, F1, B0]
        order += (ahead * [B1, B0])[:ahead] + (ahead * [I1, I0])[ahead:] + behind * [LATER, I0] + ahead * [LATER]
        return numbered(_due(order))


def _due(order: list[tuple[Pass, int]]) -> Iterator[tuple[Pass, int]]:
    """The order with the chunks of weight gradients; those that nothing is left for are left out."""
    due = deque[int]()
    for what, chunk in order:
        if (what, chunk) == LATER:
            if due:
                yield Pass.WEIGHT_GRADIENT, due.popleft()
            continue
        if what is Pass.INPUT_GRADIENT:
            due.append(chunk)
        yield what, chunk
