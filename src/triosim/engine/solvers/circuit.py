"""Circuit switching: a transfer needs a circuit between its two devices, which takes time to set up.

The photonic network of the TrioSim paper (ISCA 2025, the case study of wafer-scale GPUs): each device has a number of
ports; a circuit joins a port of one device to a port of another, both ways at once; setting it up takes time; when a
device has no port left, the circuit that has been idle longest is torn down, never one that is in use.

What the paper leaves open is decided so.  A circuit stays until its port is wanted.  Each direction of it runs at the
capacity of the link, shared equally by the transfers that use it.  The receiving device holds a transfer's bytes in a
buffer, reserved before the first byte moves and until the last has come; a transfer larger than the whole buffer
streams through all of it.  Transfers are admitted in the order in which they come, and one that is held up keeps later
ones from the port or the buffer that it needs, so that none waits for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted
from triosim.core.registry import registered
from triosim.core.units import parse_bytes, parse_time, picoseconds
from triosim.engine.graph import EngineNetwork
from triosim.engine.solver import WORK_PER_BYTE, Flow, Sharing


@dataclass(frozen=True)
class CircuitRules:
    """Circuits on a network, in numbers of 64 bits: what an engine must know that need not ask.

    Attributes:
        setup: ticks.
        ports: of each device.
        receive_buffer: bytes; 0 for no limit.
        ends: the two devices of each link, numbered from 0 in their order, one link after another, int32.
    """

    setup: int
    ports: int
    receive_buffer: int
    ends: NDArray[np.int32]


@dataclass(frozen=True, order=True)
class _Request:
    """A transfer that wants a circuit; in the order in which they are admitted.

    ``number`` is not compared: transfers that are alike in all else are admitted together.
    """

    since: int
    source: int
    target: int
    link: int
    bytes: int
    number: int = field(compare=False)

    @property
    def pair(self) -> tuple[int, int]:
        """The two devices, the lower first."""
        return min(self.source, self.target), max(self.source, self.target)


@dataclass
class _Circuit:
    """A circuit that is there or being set up.

    Attributes:
        ready: tick from which bytes can move.
        users: transfers admitted to it, link -> their numbers.
        idle_since: tick at which the last transfer left it.
    """

    ready: int
    users: dict[int, set[int]] = field(default_factory=dict)
    idle_since: int = 0

    def idle(self) -> bool:
        """Whether no transfer has been admitted to it."""
        return not any(self.users.values())


@registered
class Circuit(Sharing):
    """Circuits between devices, on a network in which each pair of devices has a link of its own.

    Args:
        setup: time from asking for a circuit to its first byte: seconds, or text with a unit.
        ports: of each device, each of which holds the end of one circuit.
        receive_buffer: bytes that each device can have reserved for what is on its way to it; None for no limit.

    Raises:
        InputError: a value that cannot be; or, in a run, a transfer that crosses more than one link.
    """

    alone_at_capacity = False

    def __init__(
        self, setup: float | str = "20ms", ports: int | str = 8, receive_buffer: int | str | None = None
    ) -> None:
        self.setup = picoseconds(parse_time(setup, "circuit set-up time"), "circuit set-up time")
        self.ports = _count(ports, "circuit ports")
        self.receive_buffer = None if receive_buffer is None else parse_bytes(receive_buffer, "receive buffer")
        if self.receive_buffer == 0:
            raise InputError("receive buffer of 0 bytes: a device must be able to take something in, give 1B or more")

    def start(self, network: EngineNetwork) -> None:
        """See :meth:`NetworkModel.start`; ``network.ends`` must be known."""
        super().start(network)
        if network.ends is None:
            raise InputError(
                "circuit switching must know which two devices each link joins, and this network does not say"
            )
        self._ends: list[list[int]] = network.ends.tolist()
        self._circuits: dict[tuple[int, int], _Circuit] = {}
        self._held: dict[int, set[tuple[int, int]]] = {}  # device -> circuits that hold one of its ports
        self._reserved: dict[int, int] = {}  # device -> bytes of its buffer
        self._requests: dict[int, _Request] = {}  # of all transfers under way, by number
        self._waiting: list[_Request] = []
        self._setting_up: list[tuple[int, int]] = []
        self.circuits_made = 0
        self.wake = None

    def rules(self, network: EngineNetwork) -> CircuitRules | None:
        """What this model does on a network; None where it must be asked, or must refuse."""
        ends, most = network.ends, max(self.ports, self.receive_buffer or 0)
        if ends is None or most > np.iinfo(np.int64).max or int(network.routes.lengths().max(initial=0)) > 1:
            return None
        if (ends[:, 0] == ends[:, 1]).any():
            return None
        _, device = np.unique(ends, return_inverse=True)
        return CircuitRules(self.setup, self.ports, self.receive_buffer or 0, device.reshape(-1).astype(np.int32))

    def rates(self, now: int, joined: Sequence[Flow], left: Collection[int]) -> Mapping[int, int]:
        """See :meth:`Sharing.rates`."""
        touched = self._release(now, left)
        rates = {}
        for flow in joined:
            request = self._requests[flow.number] = self._request(now, flow)
            self._waiting.append(request)
            rates[flow.number] = 0
        self._admit(now, touched)
        touched |= {pair for pair in self._setting_up if self._circuits[pair].ready <= now}
        self._setting_up = [pair for pair in self._setting_up if self._circuits[pair].ready > now]
        self.wake = min((self._circuits[pair].ready for pair in self._setting_up), default=None)
        for pair in touched:
            circuit = self._circuits.get(pair)
            if circuit is not None and circuit.ready <= now:
                rates.update(self._shares(circuit))
        return rates

    def _request(self, now: int, flow: Flow) -> _Request:
        if len(flow.links) > 1:
            raise InputError(
                "circuit switching needs a direct link between any two devices that exchange something: "
                "use a topology in which each pair has one, for example --topology full"
            )
        source, target = self._ends[flow.links[0]]
        return _Request(now, source, target, flow.links[0], -(-flow.work // WORK_PER_BYTE), flow.number)

    def _shares(self, circuit: _Circuit) -> Iterator[tuple[int, int]]:
        """Equal parts of each direction of a circuit."""
        for link, users in circuit.users.items():
            for number in users:
                yield number, max(self.capacity[link] // len(users), 1)

    # --- what is given back -------------------------------------------------------------------------------------------

    def _release(self, now: int, left: Collection[int]) -> set[tuple[int, int]]:
        """Transfers have ended; the circuits that they used."""
        touched = set()
        for number in left:
            request = self._requests.pop(number)
            circuit = self._circuits[request.pair]
            circuit.users[request.link].discard(number)
            circuit.idle_since = now
            self._reserved[request.target] -= self._room(request.bytes)
            touched.add(request.pair)
        return touched

    def _room(self, size: int) -> int:
        """What a transfer of that size reserves."""
        return size if self.receive_buffer is None else min(size, self.receive_buffer)

    # --- what is given out --------------------------------------------------------------------------------------------

    def _admit(self, now: int, touched: set[tuple[int, int]]) -> None:
        """Admit what can be; what cannot keeps for itself the ports and the buffer that it will need."""
        ports_wanted: set[int] = set()
        buffers_wanted: set[int] = set()
        still = []
        for _, alike in groupby(sorted(self._waiting)):
            together = list(alike)
            first = together[0]
            has_port = ports_wanted.isdisjoint(first.pair) and self._can_have_circuit(first.pair)
            if has_port and first.target not in buffers_wanted and self._has_room(together):
                self._use(now, together)
                touched.add(first.pair)
                continue
            still += together
            if first.pair not in self._circuits:
                ports_wanted.update(first.pair)
            if self.receive_buffer is not None:
                buffers_wanted.add(first.target)
        self._waiting = still

    def _has_room(self, together: Sequence[_Request]) -> bool:
        """Whether the receiving device can take in all of these; one device's empty buffer takes in anything."""
        if self.receive_buffer is None:
            return True
        reserved = self._reserved.get(together[0].target, 0)
        return not reserved or reserved + sum(self._room(r.bytes) for r in together) <= self.receive_buffer

    def _can_have_circuit(self, pair: tuple[int, int]) -> bool:
        return pair in self._circuits or all(self._has_port(device) for device in pair)

    def _has_port(self, device: int) -> bool:
        held = self._held.get(device, ())
        return len(held) < self.ports or any(self._circuits[pair].idle() for pair in held)

    def _use(self, now: int, together: Sequence[_Request]) -> None:
        pair = together[0].pair
        circuit = self._circuits.get(pair) or self._set_up(now, pair)
        circuit.users.setdefault(together[0].link, set()).update(request.number for request in together)
        target = together[0].target
        self._reserved[target] = self._reserved.get(target, 0) + sum(self._room(r.bytes) for r in together)

    def _set_up(self, now: int, pair: tuple[int, int]) -> _Circuit:
        for device in pair:
            if len(self._held.setdefault(device, set())) == self.ports:
                self._tear_down_one(device)
        circuit = self._circuits[pair] = _Circuit(now + self.setup)
        for device in pair:
            self._held[device].add(pair)
        self._setting_up.append(pair)
        self.circuits_made += 1
        return circuit

    def _tear_down_one(self, device: int) -> None:
        """Free a port: of the idle circuits the one that has been so longest, of equals the lowest-numbered."""
        idle = [pair for pair in self._held[device] if self._circuits[pair].idle()]
        longest = min(idle, key=lambda pair: (self._circuits[pair].idle_since, pair))
        del self._circuits[longest]
        for end in longest:
            self._held[end].remove(longest)


def _count(value: int | str, what: str) -> int:
    """A whole number of at least 1."""
    text = str(value).strip()
    if isinstance(value, bool) or not text.isdecimal() or int(text) < 1:
        raise InputError(f"{what} must be a whole number of at least 1, got {quoted(value)}")
    return int(text)
