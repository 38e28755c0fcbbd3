"""What the physical models of attention and mixtures of experts share: constants by kernel family, and the device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.physical import _constants

T = TypeVar("T")
N = TypeVar("N", float, NDArray[np.float64])


class Cached(Protocol):
    """Constants of a kernel's way to the memory."""

    @property
    def bandwidth_fraction(self) -> float: ...
    @property
    def cache_fraction(self) -> float: ...
    @property
    def cache_rate(self) -> float: ...


@dataclass(frozen=True)
class FamilyConstants(Generic[T]):
    """Constants of one phase by kernel family.

    Attributes:
        families: constants by name.
        default: family that stands in for one that is not there.
        spread: half-width of the 90 % interval (natural logarithm) on devices whose families were fitted.
        spread_unseen: the same on other devices and for families that are not there.
        spread_between: what devices of a family that was fitted differ by beside that.
    """

    families: Mapping[str, T]
    default: str
    spread: float = math.nan
    spread_unseen: float = math.nan
    spread_between: float = 0.0

    def of(self, family: str) -> T:
        """Constants of a family, or of the one that stands in for it."""
        return self.families.get(family, self.families[self.default])


def load(kind: str, phase: str, cls: type[T]) -> FamilyConstants[T]:
    """Constants of one phase of one kind of kernel, from the program's data."""
    found = _constants.document(kind)
    families = {
        name: cls(**{f.name: float(row[f.name]) for f in fields(cls)})  # type: ignore[arg-type]
        for name, row in found["constants"][phase].items()
    }
    spread = found["spread"][phase]
    seen, unseen, between = (float(spread.get(name, 0.0)) for name in ("seen", "unseen", "between"))
    return FamilyConstants(families, next(iter(families)), seen, unseen, between)


@dataclass(frozen=True)
class Device:
    """A device's datasheet with every figure that the models need; class defaults stand in for what it leaves out.

    Attributes:
        units: multiprocessors.
        clock: Hz.
        bandwidth: bytes per second.
        cache: bytes of the last-level cache.
        shared: bytes of shared memory in a multiprocessor.
        tdp: watts, infinite where not known.
    """

    units: float
    clock: float
    bandwidth: float
    cache: float
    shared: float
    tdp: float

    def sustained(
        self, peak: NDArray, efficiency: float | NDArray, joule_per_flop: float | NDArray
    ) -> NDArray[np.float64]:
        """FLOP per second that last, given the power budget."""
        reach, power = efficiency * peak, self.tdp / joule_per_flop
        return (reach**-6.0 + power**-6.0) ** (-1 / 6)

    def launch(self, seconds: N) -> N:
        """Shortest time of a kernel, from that at 1.8 GHz."""
        return seconds * math.sqrt(1.8e9 / self.clock)

    def bytes_s(self, held: NDArray, warm: NDArray[np.bool_], c: Cached) -> NDArray[np.float64]:
        """Seconds per byte where ``held`` bytes compete for the cache."""
        miss = np.where(warm, 1 / (1 + (c.cache_fraction * self.cache / np.maximum(held, 1.0)) ** 4), 1.0)
        return miss / (c.bandwidth_fraction * self.bandwidth) + (1 - miss) / (c.cache_rate * self.clock * self.units)


UNITS, CLOCK, CACHE = 108.0, 1.6e9, 32e6
"""Class defaults of a GPU: multiprocessors, clock in Hz, last-level cache in bytes (those of an A100 or near it)."""
SHARED = (
    ("Pascal GP100", 64), ("Pascal", 96), ("Volta", 96), ("Turing", 64), ("Ampere GA100", 164), ("Ampere GA10B", 164),
    ("Ampere", 100), ("Ada", 100), ("Hopper", 228), ("Blackwell GB100", 228), ("Blackwell GB10", 100),
    ("Blackwell GB20", 100), ("Blackwell", 228), ("CDNA4", 160), ("CDNA", 64),
)  # fmt: skip
"""KiB of shared memory in a multiprocessor, by the beginning of the architecture's name (CUDA C++ Programming Guide,
"Technical Specifications per Compute Capability"; AMD CDNA whitepapers).  100 elsewhere."""


def device_of(device: Accelerator) -> Device:
    """The figures of a device.

    Raises:
        InputError: it has no memory bandwidth.
    """
    return Device(
        float(device.compute_units or UNITS), device.clock_hz or CLOCK, _constants.bandwidth(device),
        float(device.cache_bytes or CACHE), 1024.0 * shared_kib(device.architecture), device.tdp_w or math.inf,
    )  # fmt: skip


def shared_kib(architecture: str) -> int:
    """KiB of shared memory in a multiprocessor (:data:`SHARED`)."""
    return next((kib for name, kib in SHARED if architecture.startswith(name)), 100)


def waves(blocks_per_unit: NDArray, drift: float) -> NDArray[np.float64]:
    """Rounds in which blocks are worked off; ``drift`` of the last one's idle time is hidden once there are several."""
    whole = np.ceil(blocks_per_unit)
    return np.where(blocks_per_unit > 1, whole - drift * (whole - blocks_per_unit), whole)
