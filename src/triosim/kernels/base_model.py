"""What a model says of a trace's operators from their shapes and a datasheet, before any recording is looked at."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.classes import OperatorClasses
from triosim.kernels.estimate import Source
from triosim.trace.tables import Trace


@dataclass(frozen=True)
class Prediction:
    """Predicted times of operators, one row each.

    Attributes:
        seconds: predicted time; 0 for operators that launch nothing.
        spread: half-width of the 90 % interval, natural logarithm.
        usual: the same on a device of a family that the constants were fitted on.
        limit: :class:`~triosim.kernels.estimate.Limit` codes.
        classified: class, engine and element type.
        source: which model says so.
        basis: name of the model whose residuals these are, for :mod:`triosim.kernels.anchoring`.
        notes: sentences for the reader of the prediction.
    """

    seconds: NDArray[np.float64]
    spread: NDArray[np.float64]
    usual: NDArray[np.float64]
    limit: NDArray[np.int8]
    classified: OperatorClasses
    source: Source
    basis: str
    notes: tuple[str, ...] = ()


class BaseOperatorModel(Protocol):
    """A model of operators that recorded times can be carried over by."""

    def predict(self, trace: Trace, device: Accelerator, launches: NDArray[np.int64] | None = None) -> Prediction:
        """Times of a trace's operators on ``device``.

        Args:
            trace: operators with FLOP and bytes counted.
            device: with the peaks and the memory bandwidth of its datasheet.
            launches: kernels that each operator launches; 1 where not given.

        Raises:
            InputError: the device has no compute peak or no memory bandwidth.
        """
        ...


def bandwidth(device: Accelerator) -> float:
    """Memory bandwidth of a device whose datasheet is enough to predict operator times, bytes per second.

    Raises:
        InputError: it has no compute peak or no memory bandwidth.
    """
    if device.memory_bandwidth is None or not device.peak_flops:
        missing = "compute peak" if not device.peak_flops else "memory bandwidth"
        raise InputError(
            f"device {device.name or '(unnamed)'!r} has no {missing}: name a device of the catalog (triosim devices) "
            "or add it to the device's file"
        )
    return device.memory_bandwidth
