"""Preemption by swapping: blocks of requests that give way are copied to the host, and back when these run again.

The copies run one after another on one stream, and the step that is scheduled with them waits for them, as in vLLM
until its first version was given up: a copy takes the latency of its route and its bytes at the route's bandwidth.
Each device copies what it holds of a block.  A request for which the host has no room is computed again.
"""

from __future__ import annotations

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.units import PICOSECONDS_PER_SECOND, format_bytes, picoseconds
from triosim.hardware.system import System
from triosim.hardware.wiring import own_host_link
from triosim.serving.kv_cache import KVCache
from triosim.serving.requests import Request

SWAP_BYTES = 4 * 2**30
"""Of host memory for each device (``swap_space``, whose default was 4 GiB)."""


@dataclass(frozen=True)
class HostCopies:
    """How long a device copies to or from the memory of its host, when nobody else uses the links between.

    Attributes:
        latency: of the route, software included, in picoseconds.
        bandwidth: of its slowest link, bytes per second.
    """

    latency: int
    bandwidth: float

    def ticks(self, size: float) -> int:
        """Picoseconds for so many bytes."""
        return self.latency + round(size / self.bandwidth * PICOSECONDS_PER_SECOND)

    @staticmethod
    def of(system: System, device: int, slower: float = 1.0) -> HostCopies:
        """Between a device and the host of its server, whose links are slower by a factor than they say.

        Where the system has no host, the device's own link leads to one.

        Raises:
            InputError: no such link is known.
        """
        from triosim.network.routes import router_of  # nobody else needs a network

        host = int(system.server_host[int(system.device_server[device])])
        if host < 0:
            model = system.model(device)
            if not model.host_link:
                raise InputError(
                    f"{system.name or 'the system'} has no host memory to copy to: name a system that has one, or a "
                    "device whose host link is known"
                )
            link = own_host_link(model).link()
            return HostCopies(picoseconds(link.latency + link.overhead, "a latency"), link.bandwidth / slower)
        routes = router_of(system)
        route = routes.routes([device], [host])
        latency = int(routes.latency(route)[0] + routes.overhead(route)[0])
        return HostCopies(latency, float(system.bandwidth[route.values].min()) / slower)


class SwappingCache(KVCache):
    """A cache whose blocks can be away on the host.

    Args:
        blocks, block_tokens: as of any cache.
        host_blocks: that the host has room for.
        block_bytes: that a device holds of a block.
        copies: between a device and its host.

    Attributes:
        host_blocks, host_free: blocks of the host, and those that nobody's are in.
        moved: blocks copied, there and back, by each device.

    Raises:
        InputError: as of any cache, or the host has room for no block.
    """

    waits = True

    def __init__(
        self, blocks: int, block_tokens: int, host_blocks: int, block_bytes: float, copies: HostCopies
    ) -> None:
        super().__init__(blocks, block_tokens)
        if host_blocks < 1:
            raise InputError(
                f"the swap space holds not even one block of {format_bytes(block_bytes)}: give more (--swap-space)"
            )
        self.host_free = self.host_blocks = host_blocks
        self.block_bytes, self.copies = block_bytes, copies
        self._due = 0

    def put_away(self, request: Request) -> bool:
        """Copy what a request has computed to the host, if there is room."""
        blocks = self._blocks(request.computed)
        if not blocks or blocks > self.host_free:
            return False
        self.host_free -= blocks
        self._copy(blocks)
        return True

    def match(self, request: Request) -> int:
        """Tokens that are on the host."""
        return request.away

    def start(self, request: Request, tokens: int) -> bool:
        """As of any cache; what is on the host is copied back and counts as computed."""
        if not self.hold(request, max(tokens, request.away)):
            return False
        if request.away:
            blocks = self._blocks(request.away)
            self.host_free += blocks
            self._copy(blocks)
            request.computed, request.away = request.away, 0
        return True

    def copying(self) -> int:
        """Picoseconds that the step waits which is scheduled with the copies since the last one."""
        due, self._due = self._due, 0
        return due

    def forget(self) -> None:
        """As of any cache; what was on the host is lost too."""
        super().forget()
        self.host_free, self._due = self.host_blocks, 0

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def _copy(self, blocks: int) -> None:
        self._due += self.copies.ticks(blocks * self.block_bytes)
        self.moved += blocks
