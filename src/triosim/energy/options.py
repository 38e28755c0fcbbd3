"""What a prediction is told of energy and cost: constants of the user's, and devices that were calibrated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from triosim.core.dataclass import dataclass
from triosim.energy.constants import EnergyConstants
from triosim.energy.cost import CostOptions
from triosim.energy.device import DeviceEnergy, device_energy
from triosim.hardware.accelerator import Accelerator


@dataclass(frozen=True)
class EnergyOptions:
    """Options of a prediction's energy.

    Attributes:
        overrides: names and values of constants beside the table's.
        cost: where the job runs and how it is paid.
        calibrated: names of devices, and what they draw as measured.
    """

    overrides: tuple[tuple[str, float], ...] = ()
    cost: CostOptions = field(default_factory=CostOptions)
    calibrated: tuple[tuple[str, DeviceEnergy], ...] = ()

    def known(self) -> dict[str, DeviceEnergy]:
        """What calibrated devices draw, by name."""
        return dict(self.calibrated)

    def of_capped(self, devices: Iterable[Accelerator]) -> dict[str, DeviceEnergy]:
        """What devices under a power cap draw with the user's constants, and calibrated ones, by name."""
        found = {}
        for device in devices:
            if device.power_cap_w is not None and self.overrides:
                energy = device_energy(device, EnergyConstants(dict(self.overrides)))
                if energy is not None:
                    found[device.name] = energy
        return {**found, **self.known()}
