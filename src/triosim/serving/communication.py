"""What the devices of a replica send each other: all-reduces, exchanges of tokens, and sends between stages.

Each is played alone on the replica's part of the system, by the same collectives and constants as training; engines
that have all-reduces of their own take these where they do (:mod:`triosim.serving.peer_all_reduce`).
"""

from __future__ import annotations

import math
from dataclasses import field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from triosim.collectives.group import Group
from triosim.collectives.groups import describe
from triosim.collectives.scheduling import Collectives
from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.units import PICOSECONDS_PER_SECOND, picoseconds
from triosim.engine.graph import Collective, Graph, Task
from triosim.engine.play import play
from triosim.hardware.system import System
from triosim.kernels.estimate import Z90
from triosim.network.routes import Router
from triosim.serving.peer_all_reduce import quicker

SIZES = 2.0 ** np.arange(8, 31)
"""Bytes at which all-reduces are played; between them the time is linear."""


def link_factor(system: System, moved: float) -> float:
    """By how much transfers take longer that are off by so many standard deviations; a user's own link is taken at its
    word."""
    from triosim.prediction.uncertainty import CATALOG_LINK_SPREAD  # which loads all of prediction

    spread = CATALOG_LINK_SPREAD if any(system.edge_name) else 0.0
    return math.exp(moved * spread / Z90)


@dataclass
class ReplicaCommunication:
    """Of a replica on neighbouring devices of a system, stage by stage.

    Attributes:
        system: the machine.
        tensor_parallel, stages: how the model is divided.
        first: device of the replica.
        stride: devices from one to the next of those that exchange or gather.
        moved: how far off transfers are taken to be, in standard deviations.
        kernels: name of the engine's own all-reduces; ``""``: it takes a library's.

    Raises:
        InputError: the system has fewer devices.
    """

    system: System
    tensor_parallel: int
    stages: int = 1
    first: int = 0
    moved: float = 0.0
    kernels: str = ""
    stride: int = 1
    _seconds: NDArray[np.float64] | None = field(init=False, repr=False, default=None)
    _exchanges: dict[tuple[str, int], NDArray[np.float64]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        needed = self.first + self.tensor_parallel * self.stages
        if needed > self.system.devices:
            raise InputError(
                f"replicas on {needed} devices (tp {self.tensor_parallel}, pp {self.stages}) do not fit on the "
                f"{self.system.devices} devices of {self.system.name or 'the system'}: name a larger one"
            )
        self._factor = link_factor(self.system, self.moved)
        self._router = Router(self.system)
        self._collectives = Collectives(ideal=self.system.ideal)

    def all_reduce(self, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds of all-reduces of so many bytes each."""
        if self.tensor_parallel == 1:
            return np.zeros(len(sizes))
        if self._seconds is None:
            group = self._group(list(range(self.first, self.first + self.tensor_parallel)))
            library = np.array([self._alone("all_reduce", group, int(size)) for size in SIZES])
            self._seconds = quicker(self.kernels, group, SIZES, library) if self.kernels else library
        return self._between(sizes, self._seconds)

    def all_to_all(self, sizes: NDArray[np.float64], devices: int) -> NDArray[np.float64]:
        """Seconds of exchanges among so many devices from the replica's first on, each of which sends so many bytes."""
        if devices == 1:
            return np.zeros(len(sizes))
        return self._between(sizes, self._played("all_to_all", devices))

    def gather_and_scatter(
        self, gathered: NDArray[np.float64], scattered: NDArray[np.float64], devices: int
    ) -> NDArray[np.float64]:
        """Seconds of gathering so many bytes, all parts together, on each of so many devices, and of adding up as many
        on all and leaving each its part."""
        if devices == 1:
            return np.zeros(len(gathered))
        there = self.all_gather(gathered, devices)
        return there + self._between(scattered, self._played("reduce_scatter", devices))

    def all_gather(self, sizes: NDArray[np.float64], devices: int) -> NDArray[np.float64]:
        """Seconds of gathering so many bytes, all parts together, on each of so many devices."""
        return self._between(sizes, self._played("all_gather", devices))

    def _played(self, kind: str, devices: int) -> NDArray[np.float64]:
        """Seconds of a collective at :data:`SIZES`."""
        if (kind, devices) not in self._exchanges:
            group = self._group([self.first + place * self.stride for place in range(devices)])
            whole = np.maximum(SIZES, devices).astype(np.int64)
            self._exchanges[kind, devices] = np.array([self._alone(kind, group, int(size)) for size in whole])
        return self._exchanges[kind, devices]

    def _between(self, sizes: NDArray[np.float64], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds of sizes between those that were played."""
        found = np.interp(sizes, SIZES, seconds)
        beyond = seconds[-1] * sizes / SIZES[-1]
        return np.asarray(self._factor * np.where(sizes > SIZES[-1], beyond, found), np.float64)

    def send(self, size: float) -> float:
        """Seconds from one stage's device to the next stage's, each sending its part."""
        if self.stages == 1:
            return 0.0
        own = size / self.tensor_parallel
        latency, bandwidth, pair = self._next_stage
        return self._factor * (latency + own / bandwidth + self._collectives.transfer(pair, int(own)))

    @cached_property
    def _next_stage(self) -> tuple[float, float, Group]:
        """Latency and bandwidth of the way from one stage's last device to the next stage's first, and both as a
        group."""
        target = self.first + self.tensor_parallel
        route = list(self._router.route(target - 1, target))
        latency, bandwidth = float(self.system.latency[route].sum()), float(self.system.bandwidth[route].min())
        return latency, bandwidth, self._group([target - 1, target])

    def _group(self, devices: list[int]) -> Group:
        return describe(self.system, self._router, np.array(devices))

    def _alone(self, kind: str, group: Group, size: int) -> float:
        made = self._collectives.schedule(kind, group, size)
        seat = np.array([*made.order, *made.nodes])
        ends = zip(seat[made.pattern.source].tolist(), seat[made.pattern.target].tolist(), strict=True)
        wires = self._router.wires(ends)
        delay = picoseconds(made.delay_s, f"what software adds to an {kind}")
        whole = Collective(made.pattern, np.arange(len(made.pattern), dtype=np.int32), delay)
        n = group.members
        graph = Graph(
            np.full(n, Task.COLLECTIVE, np.int8), np.full(n, -1, np.int32), np.zeros(n, np.int64),
            np.zeros(n, np.int32), np.arange(n, dtype=np.int32), Ragged.empty(n, np.int32), 0, collectives=(whole,),
            instances=np.zeros(1, np.int32),
        )  # fmt: skip
        return float(play(graph, wires).finish.max()) / PICOSECONDS_PER_SECOND
