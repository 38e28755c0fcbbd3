"""What a prediction is told of energy and cost: constants of the user's, and devices that were calibrated."""

from __future__ import annotations

from dataclasses import field

from triosim.core.dataclass import dataclass
from triosim.energy.cost import CostOptions
from triosim.energy.device import DeviceEnergy


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
