"""The V placement: a stage has the part that comes as far from the beginning of the model as its other from the end."""

from __future__ import annotations

from typing import ClassVar

from triosim.schedule.actions import Schedule


class VPlacement(Schedule):
    """Two chunks on each stage: down through the stages and up again, so that the first has both ends of the model."""

    splits_backward: ClassVar[bool] = True

    @property
    def chunks_per_stage(self) -> int:
        """Two."""
        return 2

    def stage_of(self, part: int, stages: int) -> int:
        """``part`` on the way down, ``2 stages - 1 - part`` on the way up."""
        return min(part, 2 * stages - 1 - part)
