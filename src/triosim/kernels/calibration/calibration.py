"""A calibrated device: what was learned of each class of kernels, and prices by it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import GPUS
from triosim.kernels.calibration.anchors import REACH
from triosim.kernels.calibration.fitting import ClassFit, MeasuredKernels, by_class, learned, operator_name
from triosim.kernels.pack import load
from triosim.kernels.physical.kinds import BY_NAME, KernelKind, KernelTimes, shipped

_STANDS_IN = "elementwise"
"""Streams of classes that were not measured are moved like these: they have the same constants."""

_ROUNDING = 1e-6
"""Powers of two by which a size may be beyond the range of those that were measured."""

_FIGURES = (
    "vendor", "kind", "architecture", "process", "peak_flops", "memory_bandwidth", "compute_units", "clock_hz",
    "cache_bytes", "tdp_w",
)  # fmt: skip


def same_figures(a: Accelerator, b: Accelerator) -> bool:
    """Whether the models make no difference between two devices, whatever they are called."""
    return all(getattr(a, name) == getattr(b, name) for name in _FIGURES)


@dataclass(frozen=True)
class Calibration:
    """Physical models brought closer to one device by measured kernels of it.

    Attributes:
        device: that was measured, with the figures of its datasheet.
        learned: of each class that was measured, by kind and class.
        drift: by how much a kernel that was repeated throughout the measurements differed; intervals are that wider.
    """

    device: Accelerator
    learned: Mapping[tuple[str, str], ClassFit] = field(default_factory=dict)
    drift: float = 0.0

    def priced(self, kind: KernelKind, work: Any, device: Accelerator, names: Sequence[str] = ()) -> KernelTimes:
        """Work of one kind on ``device``: calibrated on the device that was measured, else by the shipped constants.

        A class that was not measured keeps the shipped constants, streams those of elementwise operators.  On what is
        not a GPU it is left open (NaN), as the shipped constants say nothing there.  Far from all measured kernels the
        interval grows to the shipped one.

        Args:
            kind, work, device: what is to be priced.
            names: the framework's name of each row's operator; none if not known.

        Raises:
            InputError: the device has no compute peak or no memory bandwidth.
        """
        if not same_figures(device, self.device):
            return shipped(kind, work, device)
        seconds, spread = np.full(len(work), np.nan), np.full(len(work), np.nan)
        limit = np.zeros(len(work), np.int8)
        plain = {name: operator_name(name) for name in set(names)}
        for code, rows in by_class(kind, work):
            part, of = work.take(rows), [plain[names[row]] for row in rows.tolist()] if names else ()
            found = self.learned.get((kind.name, kind.classes[code]))
            if found is not None:
                seconds[rows], limit[rows], distance = found.seconds(kind, part, device, of)
                spread[rows] = self._spread(found, _usual(kind, part, limit[rows], device), distance)
            elif (other := self.learned.get((kind.name, _STANDS_IN))) is not None:
                seconds[rows], limit[rows] = kind.predict(part, device, other.constants(kind))
                spread[rows] = np.maximum(_usual(kind, part, limit[rows], device), other.spread or 0.0)
            elif device.kind in GPUS:
                seconds[rows], limit[rows], spread[rows] = shipped(kind, part, device)
        return KernelTimes(seconds, limit, spread)

    def check_range(self, kind: KernelKind, work: Any, names: Sequence[str], where: str) -> None:
        """Refuse kernels that lie outside of those that were measured: of a class without any, or with a size beyond
        the range of that size in its class.

        Args:
            kind, work: of the kernels.
            names: the framework's name of each row's operator.
            where: the calibration's file.

        Raises:
            InputError: one does, with its name, by how much, and what to do.
        """
        cure = "measure such kernels, or give --extrapolate"
        for code, rows in by_class(kind, work):
            name = kind.classes[code]
            found = self.learned.get((kind.name, name)) or self.learned.get((kind.name, _STANDS_IN))
            if found is None or not len(found.anchors):
                raise InputError(
                    f"{where}: {names[rows[0]]} is of class {name}, of which no kernel was measured: {cure}"
                )
            shape, known = kind.shape(work.take(rows)), found.anchors.shape
            beyond = np.maximum(shape - known.max(axis=0), known.min(axis=0) - shape).max(axis=1)
            worst = int(np.argmax(beyond))
            if beyond[worst] > _ROUNDING:
                raise InputError(
                    f"{where}: a size of {names[rows[worst]]} is {2 ** beyond[worst]:.3g} times beyond the "
                    f"{len(found.anchors)} kernels of class {name} that were measured: {cure}"
                )

    def _spread(
        self, found: ClassFit, usual: NDArray[np.float64], distance: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        near = usual if found.spread is None else np.full(len(usual), found.spread)
        away = -np.expm1(-np.maximum(distance - found.typical, 0.0) / REACH)
        spread = near + away * np.maximum(usual - near, 0.0)
        return np.asarray(np.hypot(spread, math.log1p(self.drift)))


def _usual(kind: KernelKind, work: Any, limit: NDArray[np.int8], device: Accelerator) -> NDArray[np.float64]:
    """Spread without measurements of the class; on what is not a GPU at least that of the roofline there."""
    spread = kind.spread(work, limit, device)
    return spread if device.kind in GPUS else np.maximum(spread, load().elsewhere)


def calibrated(
    device: Accelerator,
    measured: Mapping[str, MeasuredKernels],
    drift: float = 0.0,
    kinds: Mapping[str, KernelKind] = BY_NAME,
) -> Calibration:
    """A calibration of ``device`` from its measured kernels.

    Args:
        device: with its peaks and memory bandwidth.
        measured: kernels by the name of their kind.
        drift: see :class:`Calibration`.
        kinds: the kinds by name; others than the shipped ones to judge a calibration of other constants.

    Raises:
        InputError: the device has no compute peak or no memory bandwidth, or a time is not a positive number.
    """
    found = {
        (name, one.name): one for name, kernels in measured.items() for one in learned(kinds[name], kernels, device)
    }
    return Calibration(device, found, drift)
