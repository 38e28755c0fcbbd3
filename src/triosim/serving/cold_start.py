"""Cold start: what passes until a replica that was off serves, most of it its weights on their way to the devices."""

from __future__ import annotations

import numpy as np

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted
from triosim.core.options import configured
from triosim.core.units import PICOSECONDS_PER_SECOND, parse_bandwidth, parse_time, picoseconds
from triosim.hardware.system import System
from triosim.serving.swap import HostCopies

SOURCES = ("host", "network")
"""Where weights may be: in the memory of the devices' own host, or in that of another server."""


@dataclass(frozen=True)
class ColdStart:
    """Where weights come from, and what else a start takes.

    Attributes:
        source: one of :data:`SOURCES`, ``storage``, or ``""``: nothing is loaded.
        bandwidth: of the storage, bytes per second to one replica; 0 elsewhere.
        start_s: seconds beside: processes, compilation, captured graphs.
    """

    source: str = "host"
    bandwidth: float = 0.0
    start_s: float = 0.0

    def ticks(self, system: System, first: int, devices: int, weights: float, slower: float = 1.0) -> int:
        """Picoseconds until a replica serves, if nobody else uses the links.

        The devices load their parts at the same time and share the links that their routes have in common.

        Args:
            system, first, devices: where the replica is.
            weights: bytes on each device.
            slower: by which factor links are slower than they say.

        Raises:
            InputError: there is no such source, or no way from there.
        """
        beside = picoseconds(self.start_s, "the start of a replica")
        if not self.source:
            return beside
        if self.source == "storage":
            return beside + picoseconds(weights * devices / self.bandwidth, "loading the weights")
        every = range(first, first + devices)
        servers = [int(system.device_server[device]) for device in every]
        if self.source == "network":
            if system.servers < 2 or (system.server_host < 0).any():
                raise InputError(
                    f"{system.name or 'the system'} has no host of another server to load weights from: give "
                    "cold-start host, or the bandwidth of a storage, as 5GB/s"
                )
            servers = [(server + 1) % system.servers for server in servers]
        hosts = [int(system.server_host[server]) for server in servers]
        if min(hosts) < 0:
            return beside + max(HostCopies.of(system, device, slower).ticks(weights) for device in every)
        from triosim.network.routes import router_of  # nobody else needs a network

        routes = router_of(system)
        ways = routes.routes(hosts, list(every))
        links, sharing = np.unique(ways.values, return_counts=True)
        latency = int((routes.latency(ways) + routes.overhead(ways)).max())
        seconds = float((sharing / system.bandwidth[links]).max()) * weights * slower
        return beside + latency + round(seconds * PICOSECONDS_PER_SECOND)


@dataclass(frozen=True)
class _Beside:
    """What may follow the source."""

    start: str = "0"


def parse_cold_start(text: str) -> ColdStart:
    """As it is typed: ``host``, ``network``, ``5GB/s`` of a storage or ``0s`` for nothing, and ``start=30s`` beside.

    Raises:
        InputError: it is none of these.
    """
    source, *options = (part.strip() for part in text.split(","))
    typed = configured(_Beside, dict(one.partition("=")[::2] for one in options), f"cold start {text}")
    start = parse_time(typed.start, "cold-start start")
    if source in SOURCES:
        return ColdStart(source, 0.0, start)
    if "/s" in source:
        return ColdStart("storage", parse_bandwidth(source, "cold-start"), start)
    if source[:1].isdigit():
        return ColdStart("", 0.0, parse_time(source, "cold-start") + start)
    raise InputError(
        f"cold-start {quoted(text)} is not known: give host, network, the bandwidth of a storage, as 5GB/s, or a time, "
        "as 90s; and start=30s for what is not loading"
    )
