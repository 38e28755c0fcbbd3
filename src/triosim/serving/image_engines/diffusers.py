"""Fixed batches of images, as a pipeline of Hugging Face's ``diffusers`` behind a queue makes them."""

from __future__ import annotations

from typing import ClassVar

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.serving.policy import Batch, Policy


@registered
@dataclass
class Diffusers(Policy):
    """Images of equal numbers of steps begin together and end together; nobody joins between.

    The image that has waited longest says how many steps; others of so many go with it, whoever waits between them.
    A pipeline is called with one number of steps for all of its batch.

    Attributes:
        max_running: images of a batch.
    """

    max_running: int = 8

    pipelines: ClassVar[bool] = False
    receives: ClassVar[bool] = False

    def schedule(self) -> Batch:
        """The next step of the batch, else a new batch."""
        if not self.running and self.waiting:
            steps = self.waiting[0].remaining
            for request in [one for one in self.waiting if one.remaining == steps][: self.max_running]:
                if not self.cache.start(request, 1):
                    break
                self.waiting.remove(request)
                self.waiting.appendleft(request)
                self.admit()
        return [(request, request.lacks) for request in self.running]
