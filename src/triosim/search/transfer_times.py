"""Times of the transfers between the ranks of a job without contention, and the links that they share.

Whatever one stage moves along the data axis is one class of transfers, and what it sends to another stage is one, or
several beside each other if its ranks do not share the same with others (two replicas in a server: a ring leaves
through the one's adapter and comes in through the other's).  A class fills parts of links: its bytes on a link, over
what the link could carry in the time in which they move.  Before that it waits for its latency: a send and a
collective that begin at once do not meet in that time.  Links on which classes together would fill more than all are
what they share (:mod:`triosim.engine.contended`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.collectives.communication import CollectiveCommunication
from triosim.core.caching import IdentityKey, kept
from triosim.core.result_cache import ResultCache
from triosim.core.units import PICOSECONDS_PER_SECOND
from triosim.engine.contended import TransferClasses
from triosim.hardware.system import System
from triosim.network.device_assignment import DeviceAssignment
from triosim.network.routes import Router
from triosim.partition.mesh import Mesh
from triosim.schedule._stage import ReplicaFacts
from triosim.schedule.crossing import Boundary
from triosim.schedule.program import COLLECTIVES
from triosim.search.isolated_transfers import Call, UnequalRanks, isolated_times

CAPACITY_PER_BYTE = 1024
"""The unit of :attr:`triosim.network.routes.Router.capacity`."""
LEAST_SHARED = 1.02
"""Links that are filled less by all together are not shared."""
LEAST_USE = 0.02
"""Parts of a link below which a class does not hold up others."""
MOST_USE = 0.05
"""Part of a link from which on collectives of the tensor axis are held up by what else moves there."""
FILLED = 8_000_000
"""Parts of links that are kept, of all collectives together."""
KEPT_MESHES = 32
"""Meshes whose transfer times are kept."""
SEND = -1
"""What stands for a kind of collective in the label of what is sent."""

How = tuple[str, str, bool]
StageLoad = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], int, int, int]
"""As of :meth:`MeshTransferTimes.load`."""


_ALONE = ResultCache[dict[tuple[int, int], int]](512, np.inf, len)
"""Ticks of collectives by kind and bytes, for the devices of a group on a system."""


class SharedLinks(NamedTuple):
    """What collectives of the tensor axis, and of the data axis, do to each other that use the same links.

    Attributes:
        average: how many times longer both take where they fill a link together, the time before bytes move included.
        filled: the same while both move bytes.
        met: how many times longer those of the tensor axis take while the others move: each sends in bursts, and as
            often as both do at once both halve.
    """

    average: float
    filled: float
    met: float


class MeshTransferTimes:
    """Times of transfers on a mesh of ranks without contention, worked out once for all jobs on it.

    Args:
        mesh, device: ranks, and the device of each.
        system, router, how, make: as of :class:`JobTransferTimes`.
    """

    def __init__(
        self, mesh: Mesh, device: NDArray[np.int64], system: System, router: Router, how: How,
        make: Callable[[System, Router, How], CollectiveCommunication],
    ) -> None:  # fmt: skip
        self.mesh, self.device, self.system, self.router, self.how, self.make = mesh, device, system, router, how, make
        self.means: CollectiveCommunication = make(system, router, how)
        self._called: dict[Call, int] = {}
        self._sent: dict[tuple[int, int, int], int] = {}
        self._latencies: dict[tuple[int, int, int], int] = {}
        self._delays: dict[Call, int] = {}
        self._loads: dict[tuple[int, int], StageLoad] = {}
        self._groups: dict[int, list[bytes]] = {}
        self.slowed: dict[tuple[Call | None, Call | None], SharedLinks] = {}

    def alone(self, call: Call) -> int:
        """Ticks of a collective.

        Raises:
            UnequalRanks: groups that lie differently do not take equally long.
        """
        self.precompute([call])
        if call not in self._called:
            raise UnequalRanks("groups of an axis are not alike")
        return self._called[call]

    def precompute(self, calls: Iterable[Call]) -> None:
        """Work out what some collectives take that are asked for later: all at once takes little more than one."""
        new: dict[int, list[tuple[int, int]]] = {}
        for what, size, axis in dict.fromkeys(calls):
            if (what, size, axis) not in self._called:
                new.setdefault(axis, []).append((what, size))
        for axis, own in new.items():
            found = [self._of_group(group, own) for group in self._groups_of(axis)]
            for what, size in own:
                ticks = {known[what, size] for known in found}
                if len(ticks) == 1:
                    self._called[what, size, axis] = ticks.pop()

    def _of_group(self, group: bytes, calls: list[tuple[int, int]]) -> dict[tuple[int, int], int]:
        """Ticks of collectives of one group on these devices (int64), some of them those asked for."""
        known = _ALONE.get((IdentityKey(self.system), group, self.how, self.make), dict)
        new = tuple((what, size, 0) for what, size in calls if (what, size) not in known)
        if new:
            order = tuple(np.frombuffer(group, np.int64).tolist())
            mesh = Mesh((("pp", 1), ("dp", len(order))))
            found = isolated_times(self.system, mesh, order, new, (), self.how, self.make)
            known.update(((what, size), ticks) for (what, size, _), ticks in found.calls.items())
        return known

    def sent(self, source: int, target: int, size: int) -> int:
        """Ticks of what one stage sends to another."""
        key = (source, target, size)
        if key not in self._sent:
            self._sent[key] = self.latency(source, target, size) + int(np.ceil(self._byte(source, target) * size))
        return self._sent[key]

    def latency(self, source: int, target: int, size: int) -> int:
        """Ticks before the bytes of what one stage sends to another move."""
        key = (source, target, size)
        if key not in self._latencies:
            *_, latency, one, other = self.load(source, target)
            self._latencies[key] = latency + self.means.transfer(one, other, size)
        return self._latencies[key]

    def delay(self, call: Call) -> int:
        """Ticks before the bytes of a collective move."""
        if call not in self._delays:
            what, size, axis = call
            table = self.device[self.mesh.table(self.mesh.names[axis])]
            self._delays[call] = int(self.means.collective(COLLECTIVES[what], table[0], size, 0).delay)
        return self._delays[call]

    def while_moving(self, call: Call) -> float:
        """How many times more of its links a collective fills while its bytes move than on average."""
        ticks = self.alone(call)
        return ticks / max(ticks - self.delay(call), 1)

    def load(self, source: int, target: int) -> StageLoad:
        """What the ranks of a stage use when each sends to that of another: links, the row of the rank, and ticks that
        a byte of it takes there, each for each link of a route; then the latency, and the ends of the first."""
        if (source, target) not in self._loads:
            mesh, device, router = self.mesh, self.device, self.router
            ranks = self._of_stage(source)
            ends = device[ranks], device[mesh.moved(ranks, "pp", target)]
            routes = router.routes(*ends)
            links = routes.values.astype(np.int64)
            self._loads[source, target] = (
                links, routes.rows(), _ticks_of_byte(router)[links], int(router.latency(routes).max()),
                int(ends[0][0]), int(ends[1][0]),
            )  # fmt: skip
        return self._loads[source, target]

    def _byte(self, source: int, target: int) -> float:
        """Ticks that a byte of what one stage sends to another takes on the fullest link, 0 where there is none."""
        links, _, ticks, *_ = self.load(source, target)
        return float(np.bincount(links, ticks).max(initial=0.0))

    def sent_use(self, source: int, target: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """What the ranks of a stage use while the bytes that they send to another move, however many: links, the row of
        the rank, and the part of the link that it fills; all together fill the fullest."""
        links, rank, ticks, *_ = self.load(source, target)
        return links, rank, ticks / self._byte(source, target)

    def link_use(self, call: Call) -> NDArray[np.float64]:
        """Parts of the links that a collective of each stage fills, shape ``(stages, links)``."""
        return _link_use(IdentityKey(self), call)

    def _of_stage(self, stage: int) -> NDArray[np.int64]:
        return np.flatnonzero(self._stage == stage)

    @cached_property
    def _stage(self) -> NDArray[np.int64]:
        """Stage of each rank."""
        return np.asarray(self.mesh.position(np.arange(self.mesh.ranks), "pp"), np.int64)

    def _groups_of(self, axis: int) -> list[bytes]:
        """Devices of groups along an axis that lie differently on servers, one of each."""
        if axis not in self._groups:
            table = self.device[self.mesh.table(self.mesh.names[axis])]
            server = self.system.device_server[table]
            like = np.concatenate([server - server[:, :1], self.system.device_model[table]], axis=1)
            _, first = np.unique(like, axis=0, return_index=True)
            self._groups[axis] = [table[row].tobytes() for row in np.sort(first).tolist()]
        return self._groups[axis]


_MESHES = ResultCache[MeshTransferTimes](KEPT_MESHES, np.inf, lambda transfer_times: 1)


class JobTransferTimes:
    """Times of the transfers of a job, and the links that they share.

    Args:
        job: what replicas share, and what is exchanged within one.
        stage: of each part of the model.
        system, assignment, router: on what.
        how: algorithm and protocol of collectives, and whether links are ideal.
        make: makes the means of a job.

    Attributes:
        labels: what is added up under which number: collectives, and sends with :data:`SEND` for their kind.
        called: ticks of the collectives of the step.
    """

    def __init__(
        self,
        job: ReplicaFacts,
        stage: Callable[[int], int],
        system: System,
        assignment: DeviceAssignment,
        router: Router,
        how: How,
        make: Callable[[System, Router, How], CollectiveCommunication],
    ) -> None:
        self.job, self.stage, self.mesh, self.router = job, stage, job.mesh, router
        plain = Mesh(job.mesh.axes, derived=job.mesh.derived)
        device = assignment.devices.astype(np.int64)
        key = (plain.axes, plain.derived, device.tobytes(), IdentityKey(system), IdentityKey(router), how, make)
        self.of = _MESHES.get(key, lambda: MeshTransferTimes(plain, device, system, router, how, make))
        self.labels: dict[Call, int] = {}
        self._sizes: dict[tuple[int, int], int] = {}
        calls = dict.fromkeys((what, size, axis) for size, what, axis in job.exchanged)
        self.of.precompute(calls)
        self.called = {call: self.alone(call) for call in calls}

    def alone(self, call: Call) -> int:
        """Ticks of a collective.

        Raises:
            UnequalRanks: groups that lie differently do not take equally long.
        """
        return self.of.alone(call)

    def precompute(self, calls: Iterable[Call]) -> None:
        """Work out what some collectives take that are asked for later."""
        self.of.precompute(calls)

    def collective(self, call: Call) -> int:
        """Ticks of a collective along the axis of the replicas."""
        return self.alone(call)

    def label(self, call: Call) -> int:
        """The number under which it is added up."""
        return self.labels.setdefault(call, len(self.labels))

    def boundary(self, boundary: Boundary, back: bool) -> tuple[int, int]:
        """Ticks and label of what crosses."""
        source, target = self.stage(boundary.source), self.stage(boundary.target)
        return self.send(target, source, boundary.bytes) if back else self.send(source, target, boundary.bytes)

    def send(self, source: int, target: int, size: int) -> tuple[int, int]:
        """Ticks and label of what one stage sends to another."""
        if self._sizes.get((source, target), -1) < size:
            self._sizes[source, target] = size
        return self.of.sent(source, target, size), self.label((SEND, size, self.mesh.pipeline_axis))

    def lags(self) -> list[int]:
        """Of each label the ticks before bytes move; of sends between different stages the fewest."""
        pairs: dict[int, list[tuple[int, int]]] = {}
        for pair, size in self._sizes.items():
            pairs.setdefault(size, []).append(pair)
        any_ = list(self._sizes)
        return [
            min((self.of.latency(*pair, size) for pair in pairs.get(size, any_)), default=0)
            if what == SEND else self.of.delay((what, size, axis))
            for what, size, axis in self.labels
        ]  # fmt: skip

    # --- what is shared -----------------------------------------------------------------------------------------------

    @property
    def _moving(self) -> Call | None:
        """The largest of what is reduced along the axis of the replicas."""
        job = self.job
        if job.sharing == 1 or not job.grads:
            return None
        largest = max(job.grads, key=lambda gradient: gradient.bytes)
        reductions = job.reductions(largest.parameter)
        if not reductions:
            return None
        what, axis, parts = reductions[0]
        return what, -(-largest.bytes // parts), axis

    @property
    def shared(self) -> SharedLinks:
        """What collectives of the tensor axis, and of the data axis, do to each other.

        Raises:
            UnequalRanks: groups of an axis hold up each other.
        """
        largest = max(self.called, key=lambda call: (self.called[call], call), default=None)
        key = (self._moving, largest)
        if key not in self.of.slowed:
            own, tensor = (None if call is None else self.of.link_use(call) for call in key)
            if any(part is not None and part.max(initial=0.0) > LEAST_SHARED for part in (own, tensor)):
                raise UnequalRanks("groups of an axis that share links")
            found = SharedLinks(1.0, 1.0, 1.0)
            if own is not None and tensor is not None:
                first, second = (self.of.while_moving(call) for call in key if call is not None)
                moving = own * first, tensor * second
                found = SharedLinks(_filled(own, tensor), _filled(*moving), 1 + _largest(moving[0] * moving[1], tensor))
            self.of.slowed[key] = found
        return self.of.slowed[key]

    def called_lags(self) -> dict[Call, int]:
        """Ticks before the bytes of the collectives of the step move."""
        return {call: self.of.delay(call) for call in self.called}

    def transfer_classes(self) -> tuple[TransferClasses, dict[tuple[int, int], int], int]:
        """What the classes use; classes of the pairs of stages that send; the class that shares nothing."""
        sending, moving = sorted(self._sizes), self._moving
        key = (IdentityKey(self.of), moving, tuple(sending))
        return _SHARED.get(key, lambda: self._uses(sending, moving))

    def _uses(self, sending: list[tuple[int, int]], moving: Call | None) -> _Used:
        """See :meth:`transfer_classes`."""
        own = None
        if moving is not None:
            own = self.of.link_use(moving) * self.of.while_moving(moving)
        first = 0 if own is None else len(own)
        sent = [self.of.sent_use(*pair) for pair in sending]
        links = len(self.router.capacity)
        total = np.zeros(links) if own is None else own.sum(axis=0)
        for used, _, filled in sent:
            total += np.bincount(used, filled, links)
        if own is None and not sent:
            return TransferClasses([[]], [0] * self.mesh.stages, 0), {}, 0
        shared = np.flatnonzero(total > LEAST_SHARED)
        place = np.full(links, -1, np.int64)
        place[shared] = np.arange(len(shared))
        sent = [(place[used[at]], rank[at], filled[at]) for used, rank, filled in sent for at in [place[used] >= 0]]
        rows = [] if own is None else list(own[:, shared])  # each (shared links,)
        rows += [np.bincount(used, filled, len(shared)) for used, _, filled in sent]
        alike = _alike(np.array(rows))
        beside: dict[int, list[int]] = {}
        for number, (used, rank, filled) in enumerate(sent):
            for part in _parts(alike[used], rank)[1:]:
                row = np.bincount(used[part], filled[part], len(shared))
                rows[first + number] = rows[first + number] - row
                beside.setdefault(first + number, []).append(len(rows))
                rows.append(row)
        columns = np.array(rows)
        columns = _different(np.round(columns, 3)) if columns.size else columns
        uses = [[(number, float(row[number])) for number in np.flatnonzero(row > LEAST_USE).tolist()]
                for row in columns]  # fmt: skip
        alone = len(uses)
        moves = [alone] * self.mesh.stages if own is None else list(range(first))
        pairs = {pair: first + number for number, pair in enumerate(sending)}
        return TransferClasses([*uses, []], moves, columns.shape[1], beside), pairs, alone


_Used = tuple[TransferClasses, dict[tuple[int, int], int], int]
_SHARED = ResultCache[_Used](512, np.inf, lambda used: len(used[0].uses))


def _filled(own: NDArray[np.float64], tensor: NDArray[np.float64]) -> float:
    """How many times longer collectives take that fill these parts of links together."""
    return max(1.0, _largest(tensor + own, tensor))


def _largest(parts: NDArray[np.float64], tensor: NDArray[np.float64]) -> float:
    """Largest of some parts of links, of those that collectives of the tensor axis fill."""
    return float(np.where(tensor > MOST_USE, parts, 0.0).max(initial=0.0))


def _alike(columns: NDArray[np.float64]) -> NDArray[np.int64]:
    """Of each link a number, alike for those that classes fill alike; columns of shape ``(classes, links)``."""
    known: dict[bytes, int] = {}
    rows = np.ascontiguousarray(np.round(columns, 3).T)
    return np.array([known.setdefault(row.tobytes(), len(known)) for row in rows], np.int64)


def _parts(alike: NDArray[np.int64], rank: NDArray[np.int64]) -> list[NDArray[np.bool_]]:
    """Which links of routes belong to ranks that share alike, of each kind of rank that shares anything."""
    if not len(rank):
        return []
    ranks, kinds = int(rank.max()) + 1, int(alike.max()) + 1
    count = np.bincount(rank * kinds + alike, minlength=ranks * kinds).reshape(ranks, kinds)
    if (count == count[:1]).all():
        return [np.ones(len(rank), bool)]
    _, kind = np.unique(count, axis=0, return_inverse=True)
    return [kind[rank] == number for number in np.unique(kind[rank]).tolist()]


def _different(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each column once, ascending, without those that another never uses less of: as many links as there are, few are
    used differently, and a slower link on the way is full first."""
    rows = np.ascontiguousarray(columns.T)
    few = dict.fromkeys(row.tobytes() for row in rows)
    table = np.unique(np.frombuffer(b"".join(few), np.float64).reshape(len(few), -1), axis=0)
    by: dict[bytes, list[int]] = {}
    for number, used in enumerate(table > LEAST_USE):
        by.setdefault(used.tobytes(), []).append(number)
    kept = [one for own in by.values() for one in own
            if not any((table[one] <= table[other]).all() for other in own if other != one)]  # fmt: skip
    return np.ascontiguousarray(table[sorted(kept)].T)


@kept(128, room=FILLED, size=lambda filled: filled.size)
def _link_use(transfer_times: IdentityKey, call: Call) -> NDArray[np.float64]:
    """See :meth:`MeshTransferTimes.link_use`."""
    of: MeshTransferTimes = transfer_times.what  # type: ignore[assignment]
    mesh, device, router, (what, size, axis) = of.mesh, of.device, of.router, call
    stages, links = mesh.size("pp"), len(router.capacity)
    table = mesh.table(mesh.names[axis])  # (groups, members)
    made = of.means.collective(COLLECTIVES[what], device[table[0]], size, 0)
    pattern, nodes = made.pattern, device[table[:, np.array(made.order, np.int64)]]
    inside = (pattern.source < pattern.members) & (pattern.target < pattern.members)
    source, target = nodes[:, pattern.source[inside]].ravel(), nodes[:, pattern.target[inside]].ravel()
    sent = np.tile((pattern.bytes * pattern.count)[inside].astype(np.float64), len(table))
    stage = np.repeat(mesh.position(table[:, 0], "pp"), int(inside.sum())) if "pp" in mesh.names else 0 * source
    routes = router.routes(source, target)
    row = np.repeat(stage, routes.lengths()) * links + routes.values
    load = np.bincount(row, np.repeat(sent, routes.lengths()), stages * links)
    return np.asarray(load.reshape(stages, -1) * _ticks_of_byte(router) / of.alone(call), np.float64)


def _ticks_of_byte(router: Router) -> NDArray[np.float64]:
    """Ticks that a byte takes on each link."""
    return np.asarray(PICOSECONDS_PER_SECOND * CAPACITY_PER_BYTE / router.capacity.astype(np.float64), np.float64)
