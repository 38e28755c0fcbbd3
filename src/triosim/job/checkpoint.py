"""Checkpoints: how large one is, how long it stops the job, and when it is safe."""

from __future__ import annotations

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint of a job, written by all devices together, each part once.

    Attributes:
        bytes: of parameters and optimizer states.
        devices: that share the writing.
        storage: bytes per second that the storage takes from all of them together.
        staging: bytes per second at which a device copies its part to host memory; None where it is written directly.
    """

    bytes: float
    devices: int
    storage: float
    staging: float | None = None

    def __post_init__(self) -> None:
        if not (self.bytes >= 0 and self.devices >= 1 and self.storage > 0):
            raise InputError("a checkpoint has at least 0 bytes, and storage takes more than 0 B/s")
        if self.staging is not None and not self.staging > 0:
            raise InputError("a device copies more than 0 B/s to host memory")

    @property
    def written_s(self) -> float:
        """Seconds that storage needs for it; reading it back takes as long."""
        return self.bytes / self.storage

    @property
    def blocking_s(self) -> float:
        """Seconds for which the job stands still."""
        return self.written_s if self.staging is None else self.bytes / self.devices / self.staging

    @property
    def background_s(self) -> float:
        """Seconds for which it is written beside training: until then the checkpoint before it is the last safe one."""
        return 0.0 if self.staging is None else self.written_s
