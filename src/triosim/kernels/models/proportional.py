"""Recorded operator times scaled with the work: twice the FLOP, twice the time."""

from __future__ import annotations

from triosim.core.registry import registered
from triosim.kernels.changes import work_ratio
from triosim.kernels.estimate import Estimates
from triosim.kernels.model import OperatorModel, PricingJob
from triosim.kernels.models._recording import estimates, recorded_seconds


@registered
class Proportional(OperatorModel):
    """No floors and no saturation: what the released TrioSim does to operators, but only to those that change."""

    def price(self, job: PricingJob) -> Estimates:
        """Recorded seconds x FLOP(new) / FLOP(recorded), or bytes where FLOP are not counted.

        Exactly the recorded time where the work is the same; exact for ratios that are powers of two.

        Raises:
            InputError: nothing was recorded, or the device is another.
        """
        seconds = recorded_seconds(job, "proportional")
        ratio = work_ratio(job.trace.operators, job.recorded.operators)
        return estimates(job, seconds * ratio, ratio)
