"""ASTRA-sim's analytical network file: dimensions of NPUs, each a ring, a switch or fully connected.

Four lists of equal length: ``topology``, ``npus_count``, ``bandwidth`` (the file says GB/s, the simulator takes GiB/s,
per link and direction) and ``latency`` (ns per hop).  Dimension 0 varies fastest in the number of an NPU.  In each
dimension every NPU has links of its own; a way over a switch is two hops and pays the latency twice.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from triosim.core import guarded
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted, unknown
from triosim.hardware.accelerator import UNNAMED
from triosim.hardware.system import Edges, Link, System, Tier, assemble
from triosim.interop.astra.tables import LARGEST

BYTES_PER_GB = 2**30
"""ASTRA-sim's analytical back end takes a GB/s as 2^30 bytes per second (found from 192 of its runs: exact)."""

TOPOLOGIES = ("Ring", "Switch", "FullyConnected")
_KEYS = ("topology", "npus_count", "bandwidth", "latency")
_MOST_NPUS = 1 << 17
_MOST_LATENCY_NS = 1e12


@dataclass(frozen=True)
class Dimension:
    """One dimension.

    Attributes:
        topology: one of :data:`TOPOLOGIES`.
        npus: NPUs along it.
        bandwidth: bytes per second of a link, one direction.
        latency: seconds per hop.
    """

    topology: str
    npus: int
    bandwidth: float
    latency: float

    @property
    def hops(self) -> int:
        """Hops between neighbours."""
        return 2 if self.topology == "Switch" else 1


@dataclass(frozen=True)
class AstraNetwork:
    """Dimensions, the first varying fastest in the number of an NPU."""

    name: str
    dimensions: tuple[Dimension, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """NPUs along each dimension."""
        return tuple(d.npus for d in self.dimensions)

    @property
    def npus(self) -> int:
        """NPUs in all."""
        return math.prod(self.shape)

    def line(self, dimension: int) -> np.ndarray:
        """NPUs that differ in this dimension only, shape ``(lines, npus along it)``."""
        grid = np.arange(self.npus).reshape(self.shape[::-1])
        return np.moveaxis(grid, len(self.shape) - 1 - dimension, -1).reshape(-1, self.shape[dimension])

    def system(self) -> System:
        """The network as a System of accelerators that nobody named.

        Raises:
            InputError: a dimension is larger than its topology can be built.
        """
        names = [f"npu{i}" for i in range(self.npus)]
        edges: list[Edges] = []
        for number, dimension in enumerate(self.dimensions):
            link = Link(dimension.bandwidth, dimension.latency, name=f"dim{number}")
            tier = Tier.SCALE_UP if number == 0 else Tier.SCALE_OUT
            for line in self.line(number):
                edges.append(_joined(dimension, line, link, tier, len(names)))
                if dimension.topology == "Switch" and dimension.npus > 1:
                    names.append(f"switch{len(names) - self.npus}")
        servers = np.arange(self.npus) // self.shape[0]
        system = assemble(
            self.name, [UNNAMED], np.zeros(self.npus, np.int32), servers, names,
            np.full(self.npus // self.shape[0], -1), Edges.join(edges),
        )  # fmt: skip
        return replace(system, topology=self.describe())

    def route(self, source: int, target: int, switches: dict[tuple[int, int], int]) -> list[int]:
        """Nodes from one NPU to another, both included: dimension by dimension, around a ring the shorter way, and
        upwards where both ways are as long.

        Args:
            source, target: NPUs.
            switches: node of the switch of each (dimension, lowest NPU of the line).
        """
        nodes, stride = [source], 1
        for number, dimension in enumerate(self.dimensions):
            n, at = dimension.npus, nodes[-1]
            here, there = at // stride % n, target // stride % n
            if here != there and dimension.topology == "Switch":
                nodes.append(switches[number, at - here * stride])
            if here != there and dimension.topology == "Ring":
                step = 1 if (there - here) % n <= (here - there) % n else -1
                count = (there - here) * step % n
                nodes.extend(at + ((here + step * k) % n - here) * stride for k in range(1, count))
            if here != there:
                nodes.append(at + (there - here) * stride)
            stride *= n
        return nodes

    def describe(self) -> str:
        """``"Switch 8 x Ring 4"``."""
        return " x ".join(f"{d.topology} {d.npus}" for d in self.dimensions)


def _joined(dimension: Dimension, line: np.ndarray, link: Link, tier: Tier, switch: int) -> Edges:
    """The links of one line of NPUs."""
    n = len(line)
    if n == 1:
        return Edges.of([])
    if dimension.topology == "Switch":
        return Edges.both_ways(line, np.full(n, switch), link, tier=tier)
    if dimension.topology == "Ring":
        first = np.arange(n if n > 2 else 1)
        return Edges.both_ways(line[first], line[(first + 1) % n], link, tier=tier)
    if n > 4096:
        raise InputError(f"a FullyConnected dimension of {n} NPUs has too many links: take at most 4096")
    a, b = np.triu_indices(n, 1)
    return Edges.both_ways(line[a], line[b], link, tier=tier)


def read(path: str | Path) -> AstraNetwork:
    """The network that a YAML file describes.

    Raises:
        InputError: the file cannot be read, or a key is missing, unknown or makes no sense.
    """
    path = Path(path)
    table = guarded.document(path, f"a network file: it must hold {', '.join(_KEYS)}", form=".yaml")
    for key in table:
        if key not in _KEYS:
            raise unknown(f"key in {path}", str(key), _KEYS)
    missing = [key for key in _KEYS if key not in table]
    if missing:
        raise InputError(f"{path}: key {quoted(missing[0])} is missing: an analytical network has {', '.join(_KEYS)}")
    lists = {key: value if isinstance(value, list) else [value] for key, value in table.items()}
    count = len(lists["topology"])
    for key, values in lists.items():
        if len(values) != count or not count:
            raise InputError(f"{path}: {key} has {len(values)} entries, topology has {count}: one for each dimension")
    found = [_dimension(path, number, *(lists[key][number] for key in _KEYS)) for number in range(count)]
    network = AstraNetwork(path.stem, tuple(found))
    if network.npus > _MOST_NPUS:
        raise InputError(f"{path}: {network.npus} NPUs are more than the {_MOST_NPUS} that can be simulated one by one")
    return network


def _dimension(path: Path, number: int, topology: Any, npus: Any, bandwidth: Any, latency: Any) -> Dimension:
    where = f"{path}: dimension {number}"
    names = {name.lower(): name for name in TOPOLOGIES}
    if str(topology).lower() not in names:
        raise unknown(f"topology in {where}", str(topology), TOPOLOGIES)
    if not isinstance(npus, int) or isinstance(npus, bool) or npus < 1:
        raise InputError(f"{where}: npus_count must be a whole number of 1 or more, got {quoted(npus)}")
    rate, delay = _number(where, "bandwidth", bandwidth), _number(where, "latency", latency)
    if not rate > 0:
        raise InputError(f"{where}: bandwidth must be above zero (GB/s), got {quoted(bandwidth)}")
    if not 0 <= delay <= _MOST_LATENCY_NS:
        raise InputError(f"{where}: latency must be from 0 to {_MOST_LATENCY_NS:.0e} ns, got {quoted(latency)}")
    return Dimension(names[str(topology).lower()], npus, rate * BYTES_PER_GB, delay * 1e-9)


def _number(where: str, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -LARGEST < value < LARGEST:
        raise InputError(f"{where}: {key} must be a number, got {quoted(value)}")
    return float(value)
