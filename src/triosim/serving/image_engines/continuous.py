"""Batches of images that change between denoising steps: what Orca does for tokens."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.serving.policy import Batch, Policy


@registered
@dataclass
class Continuous(Policy):
    """Images join as soon as there is room and leave after their last step, whatever others have left to do.

    The denoiser is told how noisy each sample of a batch is, so that samples need not be at the same step.

    Attributes:
        max_running: images of a step.
    """

    max_running: int = 8

    pipelines: ClassVar[bool] = False
    receives: ClassVar[bool] = False

    def schedule(self) -> Batch:
        """One step of each image that runs, new ones included."""
        while self.waiting and len(self.running) < self.max_running and self.cache.start(self.waiting[0], 1):
            self.admit()
        return [(request, request.lacks) for request in self.running]
