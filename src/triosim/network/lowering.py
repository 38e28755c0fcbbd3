"""From programs of rank classes to one graph of tasks for the engine: who is where, and what meets what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from triosim.columns import Ragged
from triosim.engine.graph import Collective, Graph, Pattern, Task, Wires
from triosim.errors import InputError
from triosim.hardware.system import System
from triosim.network.placement import Placement
from triosim.network.routes import Router
from triosim.parallelism.program import AXES, COLLECTIVES, STREAMS, Op, Program
from triosim.units import PICOSECONDS_PER_SECOND

Scheduler = Callable[[str, int, int, int], tuple[Pattern, Sequence[int]]]
"""(kind, members, bytes, root) -> the pattern and which member of the group sits at each position."""


@dataclass(frozen=True)
class Lowered:
    """A job as the engine plays it, and how to find its parts again.

    Attributes:
        graph: the tasks; those of one rank are contiguous, in program order.
        wires: the network.
        first: first task of each rank, shape ``(ranks + 1,)``.
        class_of: program of each rank.
        group: for each task of a collective its row in ``groups``, else -1.
        groups: ranks of each communication group.
        pair: tasks of the same transfer (its sending and its arrival) share a number, else -1.
    """

    graph: Graph
    wires: Wires
    first: NDArray[np.int64]
    class_of: NDArray[np.int32]
    group: NDArray[np.int32]
    groups: Ragged
    pair: NDArray[np.int64]


def lower(programs: Sequence[Program], placement: Placement, system: System, schedule: Scheduler) -> Lowered:
    """Instantiate every rank's program on its device.

    Args:
        programs: one per rank class; together they name every rank once.
        placement: device of each rank.
        system: the machine.
        schedule: chooses the pattern of a collective.

    Raises:
        InputError: the system has no such place to fetch from, or no route.
    """
    return _Lowering(programs, placement, system, schedule).run()


class _Lowering:
    def __init__(self, programs: Sequence[Program], placement: Placement, system: System, schedule: Scheduler) -> None:
        self.programs, self.placement, self.system, self.schedule = programs, placement, system, schedule
        self.router = Router(system)
        self.pairs: dict[tuple[int, int, Task], int] = {}
        ranks = placement.ranks
        self.class_of = np.full(ranks, -1, np.int32)
        for number, program in enumerate(programs):
            self.class_of[program.ranks] = number
        lengths = np.array([len(programs[c]) for c in self.class_of.tolist()], np.int64)
        self.first = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self.groups: dict[tuple[int, ...], int] = {}
        self.collectives: list[Collective] = []
        self.instances: list[int] = []
        self._known: dict[tuple, int] = {}
        self._patterns: dict[tuple[str, int, int, int], tuple[Pattern, Sequence[int]]] = {}
        self._positions: dict[int, dict[int, int]] = {}

    def run(self) -> Lowered:
        n = int(self.first[-1])
        kind, stream = np.zeros(n, np.int8), np.full(n, -1, np.int32)
        amount, what, member = np.zeros(n, np.int64), np.full(n, -1, np.int32), np.zeros(n, np.int32)
        group, pair = np.full(n, -1, np.int32), np.full(n, -1, np.int64)
        lengths = np.zeros(n, np.int64)
        waiting: list[tuple[int, int]] = []  # (receiving task, sending task)
        task_kind = np.zeros(len(Op), np.int8)
        task_kind[[Op.COMPUTE, Op.ISSUE]] = Task.COMPUTE
        task_kind[Op.COLLECTIVE], task_kind[Op.RECEIVE] = Task.COLLECTIVE, Task.JOIN
        task_kind[[Op.SEND, Op.FETCH]] = Task.TRANSFER
        for program in self.programs:
            kinds = task_kind[program.op]
            own = np.where(kinds == Task.TRANSFER, program.bytes, 0)
            lasts = kinds == Task.COMPUTE
            own[lasts] = np.rint(program.seconds[lasts] * PICOSECONDS_PER_SECOND).astype(np.int64)
            for rank in program.ranks.tolist():
                at = slice(int(self.first[rank]), int(self.first[rank + 1]))
                kind[at] = kinds
                stream[at] = np.where(program.stream >= 0, program.stream.astype(np.int32) + rank * len(STREAMS), -1)
                amount[at] = own
                lengths[at] = program.before.lengths() + (program.op == Op.RECEIVE)
        self._transfers(what, pair, waiting)
        self._collect(what, member, group)
        before = self._dependencies(lengths, waiting)
        wires, delays = self._wires()
        graph = Graph(
            kind, stream, amount, what, member, before, self.placement.ranks * len(STREAMS),
            collectives=tuple(replace(c, delay=d) for c, d in zip(self.collectives, delays, strict=True)),
            instances=np.array(self.instances, np.int32),
        )  # fmt: skip
        groups = Ragged.of(list(self.groups), np.int32)
        return Lowered(graph, wires, self.first, self.class_of, group, groups, pair)

    def _wires(self) -> tuple[Wires, list[int]]:
        """The network, and the delay of each collective: the software cost of the dearest of its routes.

        Transfers pay that cost each; those inside a collective have paid it with the delay.
        """
        ends = [(source, target) for source, target, _ in self.pairs]
        wires, overhead = self.router.wires(ends), self.router.overhead(ends)
        delays = [int(overhead[c.route].max(initial=0)) for c in self.collectives]
        pays = np.array([kind == Task.TRANSFER for _, _, kind in self.pairs], bool)
        nodes = np.stack([self.system.edge_source, self.system.edge_target], axis=1).astype(np.int32)
        return replace(wires, latency=wires.latency + np.where(pays, overhead, 0), ends=nodes), delays

    def _route(self, source: int, target: int, kind: Task) -> int:
        return self.pairs.setdefault((source, target, kind), len(self.pairs))

    # --- transfers ----------------------------------------------------------------------------------------------------

    def _transfers(self, what: NDArray[np.int32], pair: NDArray[np.int64], waiting: list[tuple[int, int]]) -> None:
        device = self.placement.devices.tolist()
        width = self.placement.sizes[0] * self.placement.sizes[1]
        sent: dict[tuple[int, int], int] = {}
        for program in self.programs:
            sends = np.flatnonzero(program.op == Op.SEND).tolist()
            fetches = np.flatnonzero(program.op == Op.FETCH).tolist()
            for rank in program.ranks.tolist():
                base = int(self.first[rank])
                for row in sends:
                    peer = rank % width + int(program.peer[row]) * width
                    what[base + row] = self._route(device[rank], device[peer], Task.TRANSFER)
                    sent[(peer, int(program.tag[row]))] = base + row
                for row in fetches:
                    where = self._place(program.places[int(program.peer[row])], device[rank])
                    what[base + row] = self._route(where, device[rank], Task.TRANSFER)
        number = 0
        for program in self.programs:
            receives = np.flatnonzero(program.op == Op.RECEIVE).tolist()
            for rank in program.ranks.tolist():
                base = int(self.first[rank])
                for row in receives:
                    task = sent[(rank, int(program.tag[row]))]
                    waiting.append((base + row, task))
                    pair[base + row] = pair[task] = number
                    number += 1

    def _place(self, name: str, device: int) -> int:
        """The node of a place that values start in, as seen from a device."""
        system = self.system
        if name == "host":
            node = int(system.server_host[system.device_server[device]])
            if node < 0:
                raise InputError(
                    f"system {system.name!r} has no host memory to fetch from: give --host-link, for example 32GB/s"
                )
            return node
        if name == "pool":
            if system.pool < 0:
                raise InputError(
                    f"system {system.name!r} has no memory pool to fetch from: give --pool-link, for example 100GB/s"
                )
            return system.pool
        node = int(name.removeprefix("device:"))
        if node >= system.devices:
            raise InputError(f"system {system.name!r} has no device {node}: its devices are 0 to {system.devices - 1}")
        return node

    # --- collectives --------------------------------------------------------------------------------------------------

    def _collect(self, what: NDArray[np.int32], member: NDArray[np.int32], group: NDArray[np.int32]) -> None:
        """One collective for each group that meets.

        The collectives of a group along one axis are matched by their order, as communicators do: the k-th that one
        member issues is the k-th of every other.
        """
        for axis, name in enumerate(AXES):
            rows = [
                np.flatnonzero((p.op == Op.COLLECTIVE) & (p.axis == axis)).tolist() for p in self.programs
            ]  # per class
            if not any(rows):
                continue
            for ranks in self.placement.groups(name):
                lists = [rows[self.class_of[r]] for r in ranks]
                if len({len(found) for found in lists}) != 1:
                    raise AssertionError(f"members of {name} group {ranks} issue different numbers of collectives")
                for meeting in zip(*lists, strict=True):
                    self._meet(ranks, meeting, what, member, group)

    def _meet(
        self,
        ranks: list[int],
        rows: Sequence[int],
        what: NDArray[np.int32],
        member: NDArray[np.int32],
        group: NDArray[np.int32],
    ) -> None:
        program = self.programs[self.class_of[ranks[0]]]
        row = rows[0]
        kind, size, root = COLLECTIVES[program.what[row]], int(program.bytes[row]), int(program.root[row])
        number = self._collective(tuple(ranks), kind, size, root)
        instance = len(self.instances)
        self.instances.append(number)
        where = self.groups.setdefault(tuple(ranks), len(self.groups))
        for index, (rank, at) in enumerate(zip(ranks, rows, strict=True)):
            task = int(self.first[rank]) + at
            what[task] = instance
            member[task] = self._positions[number][index]
            group[task] = where

    def _collective(self, ranks: tuple[int, ...], kind: str, size: int, root: int) -> int:
        """The collective of a group, one for all that are alike."""
        key = (ranks, kind, size, root)
        if key not in self._known:
            alike = (kind, len(ranks), size, root)
            if alike not in self._patterns:
                self._patterns[alike] = self.schedule(*alike)
            pattern, order = self._patterns[alike]
            device = [int(self.placement.devices[ranks[m]]) for m in order]
            ends = zip(pattern.source.tolist(), pattern.target.tolist(), strict=True)
            route = [self._route(device[p], device[q], Task.COLLECTIVE) for p, q in ends]
            number = self._known[key] = len(self.collectives)
            self.collectives.append(Collective(pattern, np.array(route, np.int32)))
            self._positions[number] = {m: p for p, m in enumerate(order)}
        return self._known[key]

    # --- dependencies -------------------------------------------------------------------------------------------------

    def _dependencies(self, lengths: NDArray[np.int64], waiting: list[tuple[int, int]]) -> Ragged:
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        values = np.zeros(int(offsets[-1]), np.int32)
        for program in self.programs:
            rows = program.before.rows()
            within = np.arange(len(rows)) - program.before.offsets[:-1][rows]
            for rank in program.ranks.tolist():
                base = int(self.first[rank])
                values[offsets[base + rows] + within] = program.before.values + base
        for task, other in waiting:
            values[offsets[task + 1] - 1] = other
        return Ragged(values, offsets)
