"""Tiers of KV cache behind a device's own: host memory, the memory of a peer, NVMe and a remote store.

Full blocks are written to every tier as soon as they are computed, beside the steps that follow.  When a request comes
to be admitted, blocks that its device has given up are looked for in the tiers, in the order in which these are given,
and sent back.  Until they are there the request waits and others run: a reload blocks no step.  Then it is in the
queue again, finds them like any prefix, and computes the rest.

All of it are transfers on the simulated network, which share their links (:class:`triosim.engine.live.LiveNetwork`).
A drive or a remote store is one more link behind the host.  Each device of a replica sends its own part of a block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted
from triosim.core.options import configured
from triosim.core.units import format_bytes, parse_bandwidth, parse_bytes, parse_time, picoseconds
from triosim.engine.graph import CAPACITY_PER_BYTE, UNLIMITED
from triosim.engine.live import LiveNetwork
from triosim.hardware.system import System
from triosim.hardware.wiring import own_host_link
from triosim.network.routes import Router
from triosim.serving.denoiser import Denoiser
from triosim.serving.kv_cache import PrefixCache
from triosim.serving.replica import Replica
from triosim.serving.requests import Request

if TYPE_CHECKING:
    from triosim.serving.pool import AnyModel, Pool

TIERS = ("host", "peer", "nvme", "remote")
"""Where blocks are kept."""


@dataclass(frozen=True)
class CacheTier:
    """A store of blocks.

    Attributes:
        kind: one of :data:`TIERS`.
        size: bytes that it holds: a host's and a drive's for each server, a remote one's in all, a peer's on its
            device.
        device: whose memory a peer's is.
        bandwidth: of a drive or of a server's way to a remote store, bytes per second.
        latency: of these, seconds.
    """

    kind: str
    size: float
    device: int | None = None
    bandwidth: float | None = None
    latency: float = 0.0


@dataclass(frozen=True)
class _TierOptions:
    """What may follow a tier's size."""

    device: int | None = None
    bandwidth: str | None = None
    latency: str | None = None


def parse_tier(text: str) -> CacheTier:
    """A tier as it is typed: ``host:200GB``, ``peer:40GB,device=7``, ``nvme:2TB,bandwidth=7GB/s,latency=80us``.

    Raises:
        InputError: it is none.
    """
    kind, _, rest = text.partition(":")
    size, *options = rest.split(",")
    if kind not in TIERS or not size:
        raise InputError(
            f"tier {quoted(text)} is not known: give {', '.join(TIERS)} with a size, as host:200GB or "
            "nvme:2TB,bandwidth=7GB/s"
        )
    pairs = dict(one.partition("=")[::2] for one in options)
    typed = configured(_TierOptions, pairs, f"tier {text}")
    far = kind in ("nvme", "remote")
    if (typed.device is None) == (kind == "peer"):
        raise InputError(f"tier {quoted(text)}: a peer, and nothing else, has a device: as peer:40GB,device=7")
    if (typed.bandwidth is None) == far or (typed.latency is not None and not far):
        raise InputError(
            f"tier {quoted(text)}: a drive and a remote store, and nothing else, have a bandwidth: as "
            "nvme:2TB,bandwidth=7GB/s"
        )
    return CacheTier(
        kind,
        parse_bytes(size, f"tier {kind}"),
        typed.device,
        None if typed.bandwidth is None else parse_bandwidth(typed.bandwidth, f"tier {kind}: bandwidth"),
        0.0 if typed.latency is None else parse_time(typed.latency, f"tier {kind}: latency"),
    )


def tiers_of(
    pools: Sequence[Pool], models: Sequence[AnyModel], replicas: Sequence[Replica], slower: float = 1.0
) -> TierTraffic:
    """The tiers of a fleet.

    Args:
        pools, models: those of the fleet.
        replicas: of all pools, one after another.
        slower: by which factor links are slower than they say.

    Raises:
        InputError: pools are on several machines, prefill or decode only, or a tier cannot be where it is said to be.
    """
    system = pools[0].system
    if any(pool.role != "both" or pool.system is not system for pool in pools):
        raise InputError(
            "tiers are of replicas on one machine that both prefill and decode: leave tiers out, or the other pools"
        )
    traffic = TierTraffic(system, slower)
    serving = {device for pool in pools for device in range(pool.first, pool.first + pool.devices)}
    number = 0
    for place, (pool, model) in enumerate(zip(pools, models, strict=True)):
        tiers = [parse_tier(text) for text in pool.tiers]
        for tier in tiers:
            _check_peer(tier, system, serving)
        for one in range(pool.cores):
            replica = replicas[number]
            number += 1
            if tiers and not isinstance(model, Denoiser):
                block = pool.block_bytes(model, replica.cache.block_tokens)
                traffic.attach(replica, pool.first + one * pool.size, pool.size, tiers, block, place)
    return traffic


def _check_peer(tier: CacheTier, system: System, serving: Collection[int]) -> None:
    """Whether a peer has memory to give.

    Raises:
        InputError: it has not.
    """
    device = tier.device
    if device is None:
        return
    if not 0 <= device < system.devices:
        raise InputError(f"the tier peer is on device {device} of {system.devices}: name one of them, from 0")
    if device in serving:
        raise InputError(f"the tier peer is on device {device}, which serves itself: name one that is idle (--idle-ok)")
    memory = system.model(device).memory_bytes
    if memory is not None and tier.size > memory:
        raise InputError(
            f"the tier peer takes {format_bytes(tier.size)} of a device that has {format_bytes(memory)}: give less"
        )


class TieredCache(PrefixCache):
    """A cache that remembers which keys are new, so that their blocks can be written to other tiers.

    Attributes:
        fresh: keys of blocks that were computed since somebody took them from here.
    """

    fresh: list[int]

    def __init__(self, blocks: int, block_tokens: int, radix: bool = False, eviction: str = "lru") -> None:
        super().__init__(blocks, block_tokens, radix, eviction)
        self.fresh = []

    def store(self, request: Request) -> None:
        """As of any cache."""
        before = request.stored
        super().store(request)
        self.fresh.extend(request.keys[before : request.stored])


@dataclass
class _Store:
    """The blocks of a tier in one place, least recently used first."""

    blocks: int
    held: OrderedDict[int, None] = field(default_factory=OrderedDict)
    coming: set[int] = field(default_factory=set)

    def write(self, keys: Sequence[int]) -> None:
        for key in keys:
            self.coming.discard(key)
            self.held[key] = None
            self.held.move_to_end(key)
        while len(self.held) > self.blocks:
            self.held.popitem(last=False)


class _TierRoute(NamedTuple):
    """From a device to a tier and back."""

    there: tuple[int, ...]
    back: tuple[int, ...]
    latency: int


@dataclass(frozen=True)
class _ReplicaTiers:
    """The tiers of one replica, with the ways of each of its devices."""

    stores: tuple[_Store, ...]
    ways: tuple[tuple[_TierRoute, ...], ...]
    bytes: float


@dataclass
class _Transfer:
    """Blocks under way, as many transfers as devices and tiers have a part in it."""

    replica: Replica
    under_way: int = 0
    request: Request | None = None
    store: _Store | None = None
    keys: tuple[int, ...] = ()


class TierTraffic:
    """All that goes between the devices of a system and the tiers behind them.

    Args:
        system: the machine.
        slower: by which factor links are slower than they say.

    Attributes:
        network: of the machine, with one more link for each drive and remote store, and direction.
        touched: replicas at which something has come to pass.
        loaded, written: bytes from and to the tiers.
        reloads: requests whose blocks were sent back.
    """

    def __init__(self, system: System, slower: float = 1.0) -> None:
        self.system = system
        self.routes = Router(system)
        self._slower = slower
        limited = self.routes.capacity != UNLIMITED
        scaled = np.maximum(np.rint(self.routes.capacity / slower), 1)
        self._capacity = np.where(limited, scaled, self.routes.capacity).astype(np.int64).tolist()
        self._network: LiveNetwork | None = None
        self._stores: dict[tuple[int, str, int, int], _Store] = {}
        self._extra: dict[tuple[object, ...], tuple[int, int]] = {}
        self._homes: dict[int, _ReplicaTiers] = {}
        self._transfers: dict[int, _Transfer] = {}
        self._count = 0
        self.touched: list[Replica] = []
        self.loaded = self.written = self.reloads = 0

    def attach(
        self, replica: Replica, first: int, devices: int, tiers: Sequence[CacheTier], block: float, pool: int
    ) -> None:
        """Give a replica its tiers.

        Args:
            replica: fresh, with a :class:`TieredCache`.
            first, devices: of the system, on which it runs.
            tiers: in the order in which blocks are looked for.
            block: bytes that each of its devices holds of a block.
            pool: replicas of one pool share what is in the same place.

        Raises:
            InputError: a tier holds no block, or cannot be reached.
        """
        server = int(self.system.device_server[first])
        stores, ways = [], []
        for place, tier in enumerate(tiers):
            blocks = int(tier.size // (block * devices))
            if blocks < 1:
                size = format_bytes(block * devices)
                raise InputError(f"the tier {tier.kind} holds not even one block of {size}: give it more")
            where = -1 if tier.kind in ("remote", "peer") else server
            stores.append(self._stores.setdefault((pool, tier.kind, place, where), _Store(blocks)))
            ways.append(tuple(self._way(device, tier, place) for device in range(first, first + devices)))
        self._homes[replica.number] = _ReplicaTiers(tuple(stores), tuple(ways), block)
        replica.tiers = self

    def _way(self, device: int, tier: CacheTier, place: int) -> _TierRoute:
        if tier.kind == "peer":
            assert tier.device is not None
            return self._between(device, tier.device)
        way = self._to_host(device)
        if tier.bandwidth is None:
            return way
        server = int(self.system.device_server[device])
        out, back = self._link((tier.kind, place, server), tier.bandwidth)
        latency = way.latency + picoseconds(tier.latency, "latency of a tier")
        return _TierRoute((*way.there, out), (back, *way.back), latency)

    def _between(self, device: int, other: int) -> _TierRoute:
        there, back = self.routes.routes([device], [other]), self.routes.routes([other], [device])
        latency = int(self.routes.latency(back)[0] + self.routes.overhead(back)[0])
        return _TierRoute(tuple(there.values.tolist()), tuple(back.values.tolist()), latency)

    def _to_host(self, device: int) -> _TierRoute:
        host = int(self.system.server_host[int(self.system.device_server[device])])
        if host >= 0:
            return self._between(device, host)
        model = self.system.model(device)
        if not model.host_link:
            raise InputError(
                f"{self.system.name or 'the system'} has no host memory for a tier: name a system that has one, or a "
                "device whose host link is known"
            )
        link = own_host_link(model).link()
        out, back = self._link(("own", device), link.bandwidth)
        return _TierRoute((out,), (back,), picoseconds(link.latency + link.overhead, "latency of a host link"))

    def _link(self, name: tuple[object, ...], bandwidth: float) -> tuple[int, int]:
        """One more link of the network, there and back."""
        if name not in self._extra:
            number = len(self._capacity)
            self._capacity += [max(int(bandwidth / self._slower * CAPACITY_PER_BYTE), 1)] * 2
            self._extra[name] = number, number + 1
        return self._extra[name]

    @property
    def network(self) -> LiveNetwork:
        """See the class; no link is added once it was asked for."""
        if self._network is None:
            capacity: NDArray[np.int64] = np.array(self._capacity, np.int64)
            self._network = LiveNetwork(capacity)
        return self._network

    @property
    def next(self) -> int | None:
        """The tick at which something happens next."""
        return self.network.next

    def at(self, now: int) -> None:
        """Take note of what has arrived."""
        for sent in self.network.ended(now):
            self._arrived(cast(int, sent), now)

    def fetch(self, replica: Replica, now: int) -> None:
        """Send back what the tiers hold of the requests that would be admitted next: as many as there is room for, now
        that nobody computes them.  What comes for others would be given up again before its turn."""
        policy, cache = replica.policy, replica.cache
        if not policy.waiting:
            return
        assert isinstance(cache, TieredCache)
        home = self._homes[replica.number]
        room, free = policy.max_running - len(policy.running) - replica.loading, cache.free
        for request in list(policy.waiting):
            free -= cache.takes(request)
            if room <= 0 or free < 0:
                return
            room -= 1
            if request.asked > request.restarts:
                continue
            first = cache.match(request) // cache.block_tokens
            found = self._found(home, request, first, (request.known - 1) // cache.block_tokens)
            if found:
                if cache.receive(request, (first + len(found)) * cache.block_tokens) < 0:
                    return  # nobody overtakes
                policy.waiting.remove(request)
                replica.loading += 1
                self._load(replica, home, request, first, found, now)
            request.asked = request.restarts + 1

    def _found(self, home: _ReplicaTiers, request: Request, first: int, most: int) -> list[int]:
        """For each block that follows on from the first, the place of the tier that has it."""
        out = []
        for key in request.keys[first:most]:
            place = next((place for place, store in enumerate(home.stores) if key in store.held), -1)
            if place < 0:
                break
            out.append(place)
        return out

    def _load(
        self, replica: Replica, home: _ReplicaTiers, request: Request, first: int, found: list[int], now: int
    ) -> None:
        transfer = _Transfer(replica, request=request)
        number = self._begun(transfer)
        self.reloads += 1
        for place, store in enumerate(home.stores):
            keys = [key for key, at in zip(request.keys[first:], found, strict=False) if at == place]
            for key in keys:
                store.held.move_to_end(key)
            if keys:
                self.loaded += self._send(home, place, len(keys), now, number, back=True)
        self._arrived(number, now)

    def write(self, replica: Replica, now: int) -> None:
        """Send what was computed in a step to the tiers that do not have it."""
        cache = replica.cache
        assert isinstance(cache, TieredCache)
        if not cache.fresh:
            return
        home = self._homes[replica.number]
        fresh, cache.fresh = cache.fresh, []
        for place, store in enumerate(home.stores):
            keys = tuple(key for key in fresh if key not in store.held and key not in store.coming)
            if keys:
                store.coming.update(keys)
                number = self._begun(_Transfer(replica, store=store, keys=keys))
                self.written += self._send(home, place, len(keys), now, number, back=False)
                self._arrived(number, now)

    def _begun(self, transfer: _Transfer) -> int:
        """Its number; it is under way until it is told that nothing more is sent, too."""
        self._count += 1
        transfer.under_way = 1
        self._transfers[self._count] = transfer
        return self._count

    def _send(self, home: _ReplicaTiers, place: int, blocks: int, now: int, number: int, back: bool) -> int:
        size, total = round(home.bytes * blocks), 0
        for way in home.ways[place]:
            links = way.back if back else way.there
            self._transfers[number].under_way += self.network.send(now, links, way.latency, size, number)
            total += size
        return total

    def _arrived(self, number: int, now: int) -> None:
        """A part of it is there."""
        transfer = self._transfers[number]
        transfer.under_way -= 1
        if transfer.under_way:
            return
        del self._transfers[number]
        if transfer.store is not None:
            transfer.store.write(transfer.keys)
            return
        assert transfer.request is not None
        transfer.replica.loaded(transfer.request)
        if transfer.replica not in self.touched:
            self.touched.append(transfer.replica)
