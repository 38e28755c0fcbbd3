"""Serving under a power cap or a clock limit.

Kernels follow the one law of :mod:`triosim.hardware.power`: at a lower clock what computes takes longer, what waits for
memory or for a launch does not.  A governor averages over some hundred milliseconds, and stretches of prompts or of
decodes last as long; so under a cap each kernel has the clock at which it fits by itself: prompts slow down, decodes,
which read weights and caches, hardly do.  Joules follow the clocks that a step of prompts and one of decodes have.
"""

from __future__ import annotations

import math
from dataclasses import field, fields, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.energy.constants import EnergyConstants
from triosim.energy.device import DeviceEnergy, device_energy
from triosim.energy.governor import ClockedOperators, governed, governed_apart
from triosim.energy.work import OperatorWork, joined, kernel_work
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.estimate import Estimates
from triosim.kernels.physical.kinds import Work
from triosim.kernels.sustained import burst_clocks
from triosim.kernels.work.gemm import Gemm
from triosim.kernels.work.moe import ExpertCalls
from triosim.kernels.work.stream import Stream
from triosim.serving.kernel_times import Seconds, ServingKernels

PROMPT_TOKENS = 2048
"""Of a step of prompts: what engines compute at most, or about."""
DECODES, KEYS = 64, 1024
"""Of a step of decodes: sequences, and keys of each."""


@dataclass(frozen=True)
class ThrottledDevice:
    """A device under a power cap or a clock limit.

    Attributes:
        device: with its settings.
        energy: what it draws; None where nobody knows.
        prompts: clock of a step of these, over the boost clock.
        switching: joules of FLOP and of caches, over those at the full clock: the first of a step of prompts, which
            computes most, the second of one of decodes, which reads most.
    """

    device: Accelerator
    energy: DeviceEnergy | None
    prompts: float
    switching: tuple[float, float]

    def seconds(self, work: Work, found: Estimates) -> Seconds:
        """Times of kernels whose times at the full clock are ``found``."""
        return governed_apart(_operators(self.device, self.energy, work, found), self.device, self.energy)

    @property
    def most_w(self) -> float:
        """Watts that it draws at most; infinite where nothing says."""
        return math.inf if self.device.power_cap_w is None else self.device.power_cap_w


def under_limits(kernels: ServingKernels, cap_w: float | None, clock_hz: float | None) -> ServingKernels:
    """The same kernels at the clocks that a power cap and a limit of the clock leave their device.

    Args:
        kernels: at the full clock.
        cap_w: watts that the device may draw.
        clock_hz: its highest clock.

    Raises:
        InputError: the device cannot keep its cap or its clock.
    """
    device = replace(kernels.device, power_cap_w=cap_w, clock_limit_hz=clock_hz)
    energy = device_energy(device, EnergyConstants())
    same = {own.name: getattr(kernels, own.name) for own in fields(ServingKernels)}
    prompts, decodes = _Listing(**same), _Listing(**same)
    prompts.layer([PROMPT_TOKENS])
    prompts.prefill([PROMPT_TOKENS], [0])
    decodes.layer([DECODES])
    decodes.decode([DECODES], [KEYS])
    of_prompts, of_decodes = prompts.governed(device, energy), decodes.governed(device, energy)
    switching = of_prompts.left("flop_j"), of_decodes.left("cache_j")
    return replace(kernels, held=ThrottledDevice(device, energy, of_prompts.at.clock, switching))


class _Governed(NamedTuple):
    """A step at its clock: all of it at the full one, and at that."""

    full: OperatorWork
    at: ClockedOperators

    def left(self, name: str) -> float:
        """Joules of a kind over those at the full clock."""
        whole = float((getattr(self.full, name) * self.full.voltage**2).sum())
        return float(getattr(self.at, name).sum()) / whole if whole else 1.0


@dataclass(frozen=True)
class _Listing(ServingKernels):
    """Kernels that note what they were asked to price."""

    listed: list[tuple[Work, Estimates]] = field(default_factory=list)

    def _estimates(self, work: Work) -> Estimates:
        found = super()._estimates(work)
        self.listed.append((work, found))
        return found

    def governed(self, device: Accelerator, energy: DeviceEnergy | None) -> _Governed:
        """At the clock at which all of it fits on average."""
        whole = joined([_operators(device, energy, work, found) for work, found in self.listed])
        return _Governed(whole, governed(whole, device, energy, np.ones(len(whole.seconds))))


def _operators(device: Accelerator, energy: DeviceEnergy | None, work: Work, found: Estimates) -> OperatorWork:
    dtype: NDArray[np.int64]
    dtype = np.full(len(work), -1) if isinstance(work, Stream) else work.dtype.astype(np.int64)
    if isinstance(work, Gemm | ExpertCalls):  # what their own power has slowed already is slow in their times
        found = replace(found, clock=burst_clocks(work, device))
    return kernel_work(work.flop(), work.bytes(), dtype, device, energy, found)
