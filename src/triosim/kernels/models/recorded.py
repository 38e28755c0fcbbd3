"""Recorded operator times, used as they are."""

from __future__ import annotations

import numpy as np

from triosim.core.errors import InputError
from triosim.core.registry import registered
from triosim.kernels.changes import changed
from triosim.kernels.estimate import Estimates
from triosim.kernels.model import OperatorModel, PricingJob
from triosim.kernels.models._recording import estimates, recorded_seconds


@registered
class Recorded(OperatorModel):
    """Holds only while every operator has the shapes, and the device, of the recording."""

    def price(self, job: PricingJob) -> Estimates:
        """Recorded seconds.

        Raises:
            InputError: nothing was recorded, the device is another, or an operator's shapes are others.
        """
        seconds = recorded_seconds(job, "recorded")
        moved = changed(job.trace, job.recorded)
        if moved.any():
            row = int(np.flatnonzero(moved)[0])
            raise InputError(
                f"operator times 'recorded' hold only for the recorded shapes, and operator {row} "
                f"({job.trace.operators.name[row]}) has others, the first of {int(moved.sum())}: "
                "use --operator-times auto or proportional"
            )
        return estimates(job, seconds, np.ones(len(seconds)))
