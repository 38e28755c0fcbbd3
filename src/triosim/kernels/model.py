"""The interface of operator models: shapes and a device in, estimates out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from triosim.hardware.accelerator import Accelerator
from triosim.kernels.estimate import Estimates
from triosim.registry import Registry
from triosim.workload.trace import Trace

MODELS = Registry("triosim.kernels.models", "triosim.kernels", "operator model")
"""Operator models by name (``--operator-times``)."""


@dataclass(frozen=True)
class Job:
    """What is to be priced: the operators of ``trace`` on ``device``.

    Attributes:
        trace: operators with the shapes to be priced.
        device: what they run on.
        recorded: the trace as recorded, row for row the same operators with the shapes and times of the
            recording; ``trace`` itself where nothing was changed.
        recorded_on: the device of the recording, or None where nothing was measured.
    """

    trace: Trace
    device: Accelerator
    recorded: Trace
    recorded_on: Accelerator | None


class OperatorModel(ABC):
    """Predicts operator times.  One subclass a file in ``kernels/models``."""

    @abstractmethod
    def price(self, job: Job) -> Estimates:
        """Seconds of every operator of ``job.trace``.

        Raises:
            InputError: the model needs something that the job does not have (a recording, a peak).
        """
