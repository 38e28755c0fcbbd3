"""Operator times with a calibration: recorded where a recording says so, else calibrated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.base_model import Prediction
from triosim.kernels.calibration.calibration import Calibration, same_figures
from triosim.kernels.calibration.figures import MEASURED
from triosim.kernels.calibration.fusing import run_by
from triosim.kernels.calibration.pack import CalibrationPack, load
from triosim.kernels.changes import same_device
from triosim.kernels.estimate import Estimates, Source
from triosim.kernels.model import OperatorModel, PricingJob
from triosim.kernels.models.auto import Auto
from triosim.kernels.models.physical import PhysicalBaseModel
from triosim.kernels.models.roofline import RooflineBaseModel
from triosim.kernels.physical.kinds import KernelKind, KernelTimes
from triosim.trace.tables import Trace

NETWORKS = ("onnx", "nn-meter")
"""Who made the trace of a network from a file, of whose times nothing but measured kernels tells."""


@dataclass(frozen=True)
class CalibratedBaseModel:
    """Calibrated physical models as a :class:`~triosim.kernels.base_model.BaseOperatorModel`.

    On devices other than the calibrated one the models are as shipped: recorded times may have to be carried over from
    there.  What was not measured of a device that is not a GPU is priced by the roofline.

    Attributes:
        calibration: prices kernels.
        within: file of the calibration, where what lies outside of what was measured is refused; ``""`` where it is
            extrapolated.
    """

    calibration: Calibration
    within: str = ""

    def predict(self, trace: Trace, device: Accelerator, launches: NDArray[np.int64] | None = None) -> Prediction:
        """See :meth:`triosim.kernels.models.physical.PhysicalBaseModel.modelled`.

        Raises:
            InputError: the device has no compute peak or no memory bandwidth, or a kernel is outside of what was
                measured and that is refused.
        """
        if not same_figures(device, self.calibration.device):
            return PhysicalBaseModel().predict(trace, device, launches)
        found = replace(PhysicalBaseModel(self._priced).predict(trace, device, launches), source=Source.CALIBRATED)
        unknown = np.isnan(found.seconds)
        if not unknown.any():
            return found
        other = RooflineBaseModel().predict(trace, device, launches)
        columns = {
            name: np.where(unknown, getattr(other, name), getattr(found, name))
            for name in ("seconds", "spread", "usual", "limit")
        }
        return replace(found, **columns)

    def _priced(self, kind: KernelKind, work: Any, device: Accelerator, names: Sequence[str] = ()) -> KernelTimes:
        if self.within:
            self.calibration.check_range(kind, work, names, self.within)
        return self.calibration.priced(kind, work, device, names)


@dataclass(frozen=True)
class RangeOptions:
    """What the user may say of a calibration's range (``--extrapolate``)."""

    extrapolate: bool = False


class AutoCalibrated(OperatorModel):
    """``auto`` with the calibration of a file.

    Args:
        name: the file.
        extrapolate: whether a network from a file may have kernels outside of those that were measured.

    Raises:
        InputError: as :func:`triosim.kernels.calibration.pack.load`.
    """

    def __init__(self, name: str, extrapolate: bool = False) -> None:
        self.name, self.extrapolate = name, extrapolate
        self.pack = load(name)

    def price(self, job: PricingJob) -> Estimates:
        """See :class:`~triosim.kernels.models.auto.Auto`.

        Raises:
            InputError: the device is another than the calibrated one, or a network from a file has kernels outside of
                those that were measured, or ``extrapolate`` is said of what is no network from a file.
        """
        network = job.trace.meta.made_by in NETWORKS
        if self.extrapolate and not network:
            raise InputError(
                "--extrapolate is of networks from files (ONNX, nn-Meter), whose kernels must be like those that were "
                f"measured; kernels of {job.trace.meta.workload or 'this workload'} need not be: leave it out"
            )
        strict = network and not self.extrapolate
        model = Auto(CalibratedBaseModel(self.pack.calibration, self.name if strict else ""))
        found = model.price(_on_the_calibrated_device(self.pack, job, self.name))
        if network and self.pack.rules is not None:
            found = run_by(self.pack.rules, job.trace, found)
        return replace(found, notes=(*found.notes, *_description(self.pack, self.name, job.device)))


def _on_the_calibrated_device(pack: CalibrationPack, job: PricingJob, name: str) -> PricingJob:
    """The job, with the calibration's figures of a device that has none of its own.

    Raises:
        InputError: the device has other figures than the calibrated one.
    """
    device, given = pack.calibration.device, job.device
    if same_figures(given, device):
        return job
    if not _stands_for(given, device):
        cure = f"give --device {device.name}" if device.confidence != MEASURED else "leave --device out"
        raise InputError(
            f"calibration {name} is of {device.name!r}, not of {given.name or '(unnamed)'!r}: calibrate on that "
            f"device, or {cure}"
        )
    recorded_on = job.recorded_on
    if recorded_on is not None and (same_device(recorded_on, given) or _stands_for(recorded_on, device)):
        recorded_on = device
    return replace(job, device=device, recorded_on=recorded_on)


def _stands_for(given: Accelerator, device: Accelerator) -> bool:
    """Whether a device is the calibrated one by name, and the calibration knows more about it."""
    named = given.name in ("", device.name)
    return named and (not given.priced or device.confidence == MEASURED)


def _description(pack: CalibrationPack, name: str, given: Accelerator) -> list[str]:
    calibration = pack.calibration
    kernels = sum(len(one.anchors) for one in calibration.learned.values())
    words = [
        f"calibration {name}{f' of {pack.date}' if pack.date else ''}: {kernels} kernels measured on "
        f"{calibration.device.name}"
        + (", fitted anew because the constants have changed since" if pack.refitted else "")
    ]
    if not given.priced:
        words.append(
            f"the device has no datasheet: its figures are those of the calibration ({calibration.device.name})"
        )
    return words
