"""DualPipe: micro-batches enter a pipeline from both of its ends (Liu et al., arXiv:2412.19437, section 3.2.1).

Stage ``i`` of ``p`` has part ``i`` of one copy of the model and part ``p - 1 - i`` of another; half of the
micro-batches go down through the one, half up through the other.  A forward runs beside a backward of the other
direction, and where fewer than two passes are under way, backwards are run in halves.  Between a stage's first pass and
its last it waits ``(p / 2 - 1) (F&B + B - 3 W)``, of ``F&B`` for a forward and a backward in turn, ``B`` for a backward
and ``W`` for its second half.  Parameters, gradients and optimizer states are there twice, and gradients of the copies
are added up.

The order is that of ``dualpipe.py`` in DeepSeek's repository DualPipe: a stage and the one opposite do what a stage of
DualPipeV does, whose chunks lie on one device instead.
"""

from __future__ import annotations

from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.core.registry import registered
from triosim.schedule.actions import Action
from triosim.schedule.schedules.dualpipe_v import DualPipeV


@registered
@dataclass(frozen=True)
class DualPipe(DualPipeV):
    """Both directions: two copies of the model, and a forward beside each backward.

    Attributes:
        combined: whether these two run in turn, one computing while the other exchanges the tokens of experts.
    """

    @property
    def directions(self) -> int:
        """Two."""
        return 2

    def actions(self, stage: int, stages: int, micro_batches: int) -> list[Action]:
        """What a stage of the V does, of half as many stages and micro-batches, with a chunk for each direction.

        Raises:
            PlanError: stages are no pairs, or micro-batches are odd or fewer than two for each stage.
        """
        if stages % 2:
            raise PlanError(
                f"schedule dualpipe has pairs of stages, one from each end: use pp {stages - 1} or {stages + 1}, not "
                f"{stages}"
            )
        if micro_batches % 2 or micro_batches < 2 * stages:
            least = max(2 * stages, micro_batches + micro_batches % 2)
            raise PlanError(
                "schedule dualpipe runs an even number of micro-batches, at least two for each stage: use "
                f"micro-batches {least} or more on {stages} stages, not {micro_batches}"
            )
        up, each = stage >= stages // 2, micro_batches // 2
        order = super().actions(min(stage, stages - 1 - stage), stages // 2, each)
        return [
            Action(action.what, action.micro_batch + each * (action.chunk ^ up), action.chunk ^ up) for action in order
        ]
