"""What the processes of a validation bring back, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.trace.tables import Trace

QUANTITIES = ("cpu_s", "wall_s")
"""Processor time of the process, and time on the wall; seconds."""

Z90 = 1.6448536269514722
NORMAL_QUARTILES = 1.349
"""Distance of the quartiles of a normal distribution in standard deviations."""


@dataclass(frozen=True)
class MeasuredSeries:
    """Times of one measurement, round by round, in every process.

    Attributes:
        cpu_s, wall_s: shape ``(ranks, rounds)``.
    """

    cpu_s: NDArray[np.float64]
    wall_s: NDArray[np.float64]

    @staticmethod
    def of(ranks: Sequence[Mapping[str, Sequence[float]]]) -> MeasuredSeries:
        """From each rank's lists."""
        return MeasuredSeries(*(np.array([rank[quantity] for rank in ranks], np.float64) for quantity in QUANTITIES))

    def median(self, quantity: str) -> NDArray[np.float64]:
        """Median over the rounds of each rank."""
        found: NDArray[np.float64] = np.median(getattr(self, quantity), axis=1)
        return found

    def spread(self, quantity: str) -> float:
        """Logarithm of the 90 % interval's factor of one round, from the quartiles; the mean over ranks."""
        low, middle, high = np.quantile(getattr(self, quantity), (0.25, 0.5, 0.75), axis=1)
        sigma = np.divide(high - low, NORMAL_QUARTILES * middle, out=np.zeros_like(middle), where=middle > 0)
        return float(Z90 * sigma.mean())

    def median_spread(self, quantity: str) -> float:
        """The same of the median of all rounds (a median of n scatters by sqrt(pi / 2 n) of one)."""
        rounds = self.cpu_s.shape[1]
        return self.spread(quantity) * float(np.sqrt(np.pi / (2 * rounds)))


@dataclass(frozen=True)
class MeasuredNetwork:
    """A network as it ran.

    Attributes:
        name: of it.
        layers: its blocks.
        whole: the recorded step at the whole batch.
        part: the recorded step at a pipeline's micro-batch; None where there is no pipeline.
        series: by mode; ``"alone"`` among them, and ``"parts"`` where there is a pipeline.
    """

    name: str
    layers: int
    whole: Trace
    part: Trace | None
    series: Mapping[str, MeasuredSeries]


@dataclass(frozen=True)
class MeasuredMachine:
    """What the processes measured of the machine.

    Attributes:
        device: ``"cpu"`` or ``"cuda"``.
        name: what its maker calls it.
        processes: how many talked.
        cores: that the processes may use.
        tables: by kind (of communication and of software) and bytes.
        versions: of what was used, by name.
        load: load average before and after, where the system tells.
    """

    device: str
    name: str
    processes: int
    cores: int
    tables: Mapping[str, Mapping[int, MeasuredSeries]]
    versions: Mapping[str, str]
    load: tuple[float, float] | None

    @property
    def judged(self) -> str:
        """The quantity that counts: processor time where other work shares the processors, else time."""
        return "wall_s" if self.device == "cuda" else "cpu_s"


def tables(ranks: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, MeasuredSeries]]:
    """Tables of all ranks by kind and bytes; those that did not take part in something are left out of it."""
    collected: dict[str, dict[int, list[Mapping[str, Sequence[float]]]]] = {}
    for rank in ranks:
        for row in rank["tables"]:
            collected.setdefault(row["kind"], {}).setdefault(row["bytes"], []).append(row)
    return {kind: {size: MeasuredSeries.of(rows) for size, rows in sizes.items()} for kind, sizes in collected.items()}
