"""The interface of operator models: shapes and a device in, estimates out."""

from __future__ import annotations

from abc import ABC, abstractmethod

from triosim.core.dataclass import dataclass
from triosim.core.registry import Registry
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.estimate import Estimates
from triosim.trace.tables import Trace


@dataclass(frozen=True)
class MeasuredTrace:
    """A trace with measured times, and the device that they were measured on."""

    trace: Trace
    device: Accelerator


@dataclass(frozen=True)
class PricingJob:
    """What is to be priced: the operators of ``trace`` on ``device``.

    Attributes:
        trace: operators with the shapes to be priced.
        device: what they run on.
        recorded: the trace as recorded, row for row the same operators with the shapes and times of the
            recording; ``trace`` itself where nothing was changed.
        recorded_on: the device of the recording, or None where nothing was measured.
        others: more recordings, on other devices, row for row of the same operators.
    """

    trace: Trace
    device: Accelerator
    recorded: Trace
    recorded_on: Accelerator | None
    others: tuple[MeasuredTrace, ...] = ()

    def recordings(self) -> list[MeasuredTrace]:
        """Everything that was measured, the first one first."""
        first = [] if self.recorded_on is None else [MeasuredTrace(self.recorded, self.recorded_on)]
        return [*first, *self.others]


class OperatorModel(ABC):
    """Predicts operator times.  One subclass a file in ``kernels/models``."""

    @abstractmethod
    def price(self, job: PricingJob) -> Estimates:
        """Seconds of every operator of ``job.trace``.

        Raises:
            InputError: the model needs something that the job does not have (a recording, a peak).
        """


MODELS = Registry("triosim.kernels.models", "triosim.kernels", "operator model", OperatorModel)
"""Operator models by name (``--operator-times``)."""
