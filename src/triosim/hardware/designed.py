"""Devices that nobody has built, from the files of their design.

What such files hold is read by a package that stands after this one; its reader is found by name, as every part is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from triosim.core.registry import Registry
from triosim.hardware.accelerator import Accelerator


class DesignReader(ABC):
    """Reads designs.  One subclass a file in ``accelerator/device_readers``."""

    @abstractmethod
    def recognises(self, name: str) -> bool:
        """Whether this names a ready design, or a file that holds one; never raises."""

    @abstractmethod
    def device(self, files: Sequence[str], clock_hz: float | None, vector_flops: float | None) -> Accelerator:
        """The device that the files describe together.

        Args:
            files: paths, or the name of a ready design.
            clock_hz: instead of the design's.
            vector_flops: FLOP/s of what is no product; None for one of each column of units in a cycle.

        Raises:
            InputError: a file cannot be read, or they hold no design.
        """


READERS = Registry("triosim.accelerator.device_readers", "triosim.device_readers", "reader of designs", DesignReader)
"""Readers of designs by name."""


def is_design(name: str) -> bool:
    """Whether any reader takes this for a design."""
    return any(READERS.get(reader)().recognises(name) for reader in READERS.names())


def device(files: Sequence[str], clock_hz: float | None = None, vector_flops: float | None = None) -> Accelerator:
    """The device that is a design; see :meth:`DesignReader.device`.

    Raises:
        InputError: as there.
    """
    readers = [READERS.get(name)() for name in READERS.names()]
    found = next((one for one in readers if one.recognises(files[0])), readers[0])
    return found.device(files, clock_hz, vector_flops)
