"""Prefill and decode on different replicas: prompts are computed here, and their KV cache is sent there.

A prompt is computed by a replica that prefills, which also gives the first token.  Its KV cache goes over the network
to a replica that decodes, as soon as that has blocks for it; until it is there the first replica keeps its blocks.  It
is sent whole when the prompt is computed, or layer by layer: each layer of a chunk when it is computed, evenly over the
step, and those before it have come (an assumption: no source says so).  What the other has in its cache is not sent.  A
request that is evicted while it decodes computes everything again where it is.

Which replica decodes is chosen when there is first something to send (prefill first), or when the request arrives,
before it is chosen who prefills (decode first).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field
from heapq import heappop, heappush
from typing import NamedTuple, cast

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.engine.live import LiveNetwork
from triosim.network.routes import Router as Routes
from triosim.serving.policy import Batch
from triosim.serving.replica import Replica
from triosim.serving.requests import Request
from triosim.serving.router import RequestRouter


class CacheSlice(NamedTuple):
    """What one device of a replica sends to one device of another.

    Attributes:
        source, target: devices, counted within their replicas.
        first, last: layers, from and up to.
        bytes: of a token in one of these layers.
    """

    source: int
    target: int
    first: int
    last: int
    bytes: float


def shares(
    layers: int, kv_heads: int, head_bytes: float, source: tuple[int, int], target: tuple[int, int]
) -> list[CacheSlice]:
    """Who sends what, between replicas that are divided in other ways.

    Args:
        layers, kv_heads: of the model.
        head_bytes: of the keys and values of one head of one layer for one token.
        source, target: tensor parallelism and pipeline stages of each.  Heads fewer than devices are repeated, and each
            device that needs them gets them once.
    """
    out = []
    for target_stage in range(target[1]):
        for source_stage in range(source[1]):
            first = max(target_stage * layers // target[1], source_stage * layers // source[1])
            last = min((target_stage + 1) * layers // target[1], (source_stage + 1) * layers // source[1])
            if first >= last:
                continue
            for rank in range(target[0]):
                for other, heads in _heads(kv_heads, source[0], target[0], rank):
                    from_, to = source_stage * source[0] + other, target_stage * target[0] + rank
                    out.append(CacheSlice(from_, to, first, last, heads * head_bytes))
    return out


def _heads(kv_heads: int, source: int, target: int, rank: int) -> list[tuple[int, float]]:
    """Devices that hold what a device needs, and how many heads of each."""
    copies, wanted = max(source // kv_heads, 1), max(target // kv_heads, 1)
    holders, takers = source // copies, target // wanted
    low, high = rank // wanted * kv_heads / takers, (rank // wanted + 1) * kv_heads / takers
    found = []
    for holder in range(holders):
        heads = min(high, (holder + 1) * kv_heads / holders) - max(low, holder * kv_heads / holders)
        if heads > 0:
            found.append((holder * copies + rank % copies, heads))
    return found


@dataclass
class ReplicaPlacement:
    """Devices of a replica, and how its model is divided over them.

    Attributes:
        first: device of the network at which the replica begins.
        tensor_parallel, stages: how it is divided.
        layers, kv_heads: of the model.
        head_bytes: of the keys and values of one head of one layer for one token.
    """

    first: int
    tensor_parallel: int
    stages: int
    layers: int
    kv_heads: int
    head_bytes: float


@dataclass(eq=False)
class _PendingTransfer:
    """A request on its way.

    Attributes:
        request: where its prompt is computed.
        output: tokens.
        source, target: replicas; the latter None until it is chosen.
        whole: where it decodes; None until its prompt is computed.
        held: for which the target holds blocks, None until it has some.
        found: tokens that the target had already, -1 before it holds blocks.
        begun: tokens whose layers are, or will be, on their way.
        waiting: (first token, last token, first layer, last layer) that are computed, and cannot be sent yet.
        under_way: layers to come and flows that have not ended.
        flowing: of these, flows.
    """

    request: Request
    output: int
    source: Replica
    target: Replica | None = None
    whole: Request | None = None
    held: Request | None = None
    found: int = -1
    begun: int = 0
    waiting: list[tuple[int, int, int, int]] = field(default_factory=list)
    under_way: int = 0
    flowing: int = 0


class KVCacheTransfer:
    """Sends the KV caches of requests from replicas that prefill to those that decode.

    Args:
        prefill, decode: the replicas, at least one each.
        places: of each replica by its number.
        routes: of the network between them; None: nothing is sent, and the KV cache is there at once.
        router: chooses who decodes.
        by_layer: send layer by layer, not whole.
        decode_first: choose who decodes before who prefills.
        local: prompt tokens that a decoding replica computes itself if it lacks no more; only if ``decode_first``.
        network: transfers of others may be on it too.

    Attributes:
        delivered: called with each request that goes on elsewhere, the replica and the tick.
        transfer: ticks from the end of its prompt until its KV cache was there, by row.
        bytes: sent.

    Raises:
        InputError: replicas have KV caches of different shapes, or an engine cannot go on with others' requests.
    """

    def __init__(
        self, prefill: Sequence[Replica], decode: Sequence[Replica], places: dict[int, ReplicaPlacement],
        routes: Routes | None,
        router: RequestRouter, *, by_layer: bool = False, decode_first: bool = False, local: int = 0,
        network: LiveNetwork | None = None,
    ) -> None:  # fmt: skip
        self.prefill, self.decode, self.places, self.router = prefill, decode, places, router
        self.by_layer, self.decode_first, self.local = by_layer, decode_first, local
        self.routes = routes
        self.network = network or (None if routes is None else LiveNetwork(routes.capacity))
        self.delivered: Callable[[Request, Replica, int], None] = lambda request, replica, now: None
        self.transfer: dict[int, int] = {}
        self.bytes = 0
        self.touched: list[Replica] = []
        self._sending: dict[int, _PendingTransfer] = {}
        self._inbox: dict[int, deque[_PendingTransfer]] = {replica.number: deque() for replica in decode}
        self._layers: list[tuple[int, int, int, tuple[int, int, int, int]]] = []  # (tick, number, row, what)
        self._count = 0
        self._shares: dict[tuple[int, int], list[tuple[CacheSlice, tuple[int, ...], int]]] = {}
        for replica in decode:
            if not replica.policy.receives:
                raise InputError(
                    f"the engine {type(replica.policy).__name__} chooses a batch once and cannot go on with requests "
                    "whose prompts were computed elsewhere: decode with another engine"
                )
            for other in prefill:
                own, its = places[replica.number], places[other.number]
                if (own.layers, own.kv_heads, own.head_bytes) != (its.layers, its.kv_heads, its.head_bytes):
                    raise InputError(
                        "replicas that prefill and replicas that decode keep KV caches of different shapes: give both "
                        "the same model and --kv-cache"
                    )
        for replica in prefill:
            replica.keeps = True
            if by_layer:
                replica.on_step = lambda batch, begin, end, replica=replica: self._computing(batch, begin, end)

    # --- what the loop over time asks ---------------------------------------------------------------------------------

    @property
    def next(self) -> int | None:
        """The tick at which something happens next; None where nothing will."""
        due = [self._layers[0][0]] if self._layers else []
        later = None if self.network is None else self.network.next
        return min([*due, *([] if later is None else [later])], default=None)

    def arrive(self, request: Request, output: int, router: RequestRouter) -> Replica:
        """A request is routed.

        Args:
            request: with one output token.
            output: tokens.
            router: chooses who prefills.

        Returns:
            The replica that it has come to.
        """
        target = None
        if self.decode_first and output > 1:
            target = self._chosen(request, output)
            if request.prompt - target.cache.match(request) <= self.local:
                request.end = request.prompt + output
                target.outstanding -= 1  # it counts again as it arrives
                target.arrive(request)
                return target
        source = router.choose(request, self.prefill) if len(self.prefill) > 1 else self.prefill[0]
        source.arrive(request)
        if output > 1:
            sending = self._sending[request.row] = _PendingTransfer(request, output, source, target)
            if self.by_layer and target is not None:
                self._inbox[target.number].append(sending)
        return source

    def prefilled(self, request: Request, now: int) -> bool:
        """A prompt is computed; returns whether the request goes on elsewhere."""
        sending = self._sending.get(request.row)
        if sending is None:
            return False
        whole = sending.whole = request.handed_over(sending.output)
        if sending.held is not None:
            held = sending.held
            whole.blocks, whole.held, whole.stored = held.blocks, held.held, held.stored
            self._arrived(sending, now)
        elif sending.target is None or not self.by_layer:
            if sending.target is None:
                sending.target = self._chosen(whole, sending.output)
            self._inbox[sending.target.number].append(sending)
        if not self.by_layer:
            sending.waiting.append((0, request.prompt, 0, self.places[sending.source.number].layers))
        self.pump(sending.target, now) if sending.target is not None else None
        return True

    def at(self, now: int) -> None:
        """All that is computed or has come at this tick."""
        while self._layers and self._layers[0][0] == now:
            _, _, row, what = heappop(self._layers)
            sending = self._sending[row]
            sending.under_way -= 1
            sending.waiting.append(what)
            if sending.found >= 0:
                self._send(sending, now)
            self._arrived(sending, now)
        if self.network is not None:
            for sent in self.network.ended(now):
                sending = self._sending[cast(int, sent)]
                sending.under_way -= 1
                sending.flowing -= 1
                self._send(sending, now)
                self._arrived(sending, now)

    def pump(self, target: Replica, now: int) -> None:
        """Let those come, in order, for whom there is room."""
        inbox = self._inbox[target.number]
        while inbox:
            sending = inbox[0]
            held = sending.whole or sending.request.handed_over(sending.output)
            found = target.reserve(held)
            if found < 0:
                return
            inbox.popleft()
            sending.held, sending.found = held, found
            self._send(sending, now)
            self._arrived(sending, now)

    # --- sending ------------------------------------------------------------------------------------------------------

    def _chosen(self, request: Request, output: int) -> Replica:
        target = self.router.choose(request, self.decode) if len(self.decode) > 1 else self.decode[0]
        target.check(request.handed_over(output))
        target.outstanding += 1
        return target

    def _computing(self, batch: Batch, begin: int, end: int) -> None:
        """A step begins in which prompts are computed: when each of their layers is there."""
        for request, count in batch:
            sending = self._sending.get(request.row)
            if sending is None:
                continue
            if sending.target is None:
                sending.target = self._chosen(request, sending.output)
                self._inbox[sending.target.number].append(sending)
                self.touched.append(sending.target)
            known = min(request.computed + count, request.prompt)
            if known <= sending.begun:
                continue  # it was evicted, and computes again what is there
            layers = self.places[sending.source.number].layers
            for layer in range(layers):
                self._count += 1
                tick = begin + (layer + 1) * (end - begin) // layers
                heappush(self._layers, (tick, self._count, request.row, (sending.begun, known, layer, layer + 1)))
            sending.under_way += layers
            sending.begun = known

    def _send(self, sending: _PendingTransfer, now: int) -> None:
        """Send what is computed, to where blocks are held for it; what a request has on the links already goes first,
        so that layers leave in order, and those that queue meanwhile leave together."""
        target = sending.target
        if target is None or not sending.waiting or sending.flowing:
            return
        pieces, sending.waiting = sending.waiting, []
        for share, links, latency in self._ways(sending.source, target):
            tokens = 0
            for first, last, low, high in pieces:
                tokens += max(last - max(first, sending.found), 0) * max(
                    min(high, share.last) - max(low, share.first), 0
                )
            size = round(tokens * share.bytes)
            if size and self.network is not None:
                self.bytes += size
                sending.flowing += self.network.send(now, links, latency, size, sending.request.row)
        sending.under_way += sending.flowing

    def _arrived(self, sending: _PendingTransfer, now: int) -> None:
        """If everything is there, the request goes on."""
        whole, target = sending.whole, sending.target
        if whole is None or target is None or sending.found < 0 or sending.under_way or sending.waiting:
            return
        del self._sending[sending.request.row]
        self.transfer[whole.row] = now - whole.first_token
        target.receive(whole, now)
        sending.source.let_go(sending.request)
        self.touched += [sending.source, target]
        self.delivered(whole, target, now)

    def _ways(self, source: Replica, target: Replica) -> list[tuple[CacheSlice, tuple[int, ...], int]]:
        """What each device sends to which, over which links and with which latency."""
        key = source.number, target.number
        if key not in self._shares:
            own, its = self.places[source.number], self.places[target.number]
            found = []
            for share in shares(
                own.layers, own.kv_heads, own.head_bytes, (own.tensor_parallel, own.stages),
                (its.tensor_parallel, its.stages),
            ):  # fmt: skip
                links: tuple[int, ...] = ()
                latency = 0
                if self.routes is not None:
                    route = self.routes.routes([own.first + share.source], [its.first + share.target])
                    links = tuple(route.values.tolist())
                    latency = int(self.routes.latency(route)[0] + self.routes.overhead(route)[0])
                found.append((share, links, latency))
            self._shares[key] = found
        return self._shares[key]
