"""Collectives and transfers as they were measured on the machine itself: a table over bytes instead of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError

SEND = "send"
"""The kind under which transfers between two devices are."""


@dataclass(frozen=True)
class Table:
    """Seconds over bytes.

    Linear between points; below the first what the first takes, above the last at the last one's rate.  A smaller
    buffer never takes longer than a larger one: where it was measured so, it takes what the larger one takes.

    Attributes:
        bytes: ascending, above zero, shape ``(n,)``.
        seconds: beside ``bytes``.
    """

    bytes: NDArray[np.float64]
    seconds: NDArray[np.float64]

    @staticmethod
    def of(points: Mapping[int, float]) -> Table:
        """From seconds by bytes.

        Raises:
            InputError: no points, or one that is not above zero bytes and at least zero seconds.
        """
        if not points or min(points) <= 0 or not all(s >= 0 for s in points.values()):
            raise InputError("a table of measured transfers needs points above zero bytes with seconds from zero up")
        sizes = sorted(points)
        seconds = np.array([points[size] for size in sizes], np.float64)
        return Table(np.array(sizes, np.float64), np.minimum.accumulate(seconds[::-1])[::-1])

    def __call__(self, size: float) -> float:
        """Seconds for ``size`` bytes; nothing for none."""
        if size <= 0:
            return 0.0
        if size > self.bytes[-1]:
            return float(self.seconds[-1] * size / self.bytes[-1])
        return float(np.interp(size, self.bytes, self.seconds))


@dataclass(frozen=True)
class MeasuredCollectives:
    """Tables of one machine.

    What is played takes what the table says beside what the links of the System take; a System for such tables has
    links that never limit.

    Attributes:
        members: processes in the group that was measured; larger and smaller groups are not what was measured.
        tables: by kind of :data:`triosim.schedule.program.COLLECTIVES`, bytes being those of the full buffer; and
            :data:`SEND`.
        source: where they are from, in words.
    """

    members: int
    tables: Mapping[str, Table]
    source: str

    def collective(self, kind: str, devices: Sequence[int] | NDArray, size: int) -> float:
        """Seconds of one collective from the arrival of its last member.

        Raises:
            InputError: this kind, or a group of this size, was not measured.
        """
        if len(devices) < 2:
            return 0.0
        if kind not in self.tables or len(devices) != self.members:
            known = ", ".join(self.tables)
            raise InputError(
                f"{kind} of {len(devices)} devices was not measured: measured are {known} of {self.members} devices"
            )
        return self.tables[kind](size)

    def transfer(self, size: int) -> float:
        """Seconds of one transfer.

        Raises:
            InputError: transfers were not measured.
        """
        if SEND not in self.tables:
            raise InputError(f"transfers were not measured: measured are {', '.join(self.tables)}")
        return self.tables[SEND](size)
