"""From the traces of all ranks to one graph of tasks.

A rank runs one computation, one communication and one host operation at a time (receives exempt): slots, each a counter
of the engine with one token.  Who waits for a slot gets it in the order of being ready, the lowest id first of those
that are ready together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triosim.columns import Ragged
from triosim.engine.graph import Collective, Graph, Task, Wires
from triosim.errors import InputError
from triosim.interop.astra import stages
from triosim.interop.astra.groups import EVERYBODY, checked
from triosim.interop.astra.memory import RemoteMemory
from triosim.interop.astra.network import Network
from triosim.interop.astra.system import AstraSystem, Choice
from triosim.interop.astra.wires import wires
from triosim.interop.chakra.trace import ABSENT, Comm, ExecutionTrace, Node

SLOTS = ("one", "recorded")
"""Rules of how many things a rank does at once: ``one`` is ASTRA-sim's; ``recorded`` gives each stream that the trace
names a slot of its own."""

_KINDS = {
    Comm.ALL_REDUCE: "all_reduce", Comm.ALL_GATHER: "all_gather", Comm.REDUCE_SCATTER: "reduce_scatter",
    Comm.ALL_TO_ALL: "all_to_all",
}  # fmt: skip
_REPLAYED = (Comm.BROADCAST, Comm.REDUCE, Comm.GATHER, Comm.SCATTER)
"""Collectives with a root take their recorded time: ASTRA-sim does so with a broadcast and refuses the others."""

_COMMUNICATIONS = (Node.COMM_SEND, Node.COMM_RECV, Node.COMM_COLL)
_PS_PER_US, _PS_PER_NS = 10**6, 1000


@dataclass(frozen=True)
class Job:
    """What is to be played.

    Attributes:
        traces: one for each rank, rank 0 first.
        network: dimensions of the machine; as many NPUs as there are traces.
        system: the system layer.
        groups: communicator groups by name; those that traces declare come on top.
        slots: one of :data:`SLOTS`.
        stagger_ps: see :class:`triosim.interop.astra.implementation.Stage`.
        memory: what memory nodes use; without it they take their recorded time.
    """

    traces: Sequence[ExecutionTrace]
    network: Network
    system: AstraSystem
    groups: dict[str, tuple[int, ...]]
    slots: str = "one"
    stagger_ps: int = 0
    memory: RemoteMemory | None = None


@dataclass(frozen=True)
class Lowered:
    """The graph, and where each rank's nodes are in it.

    Attributes:
        graph, wires: what the engine plays.
        work: for each rank the task that does the work of each node.
        collectives: collectives that are run.
    """

    graph: Graph
    wires: Wires
    work: tuple[NDArray[np.int64], ...]
    collectives: int


def lower(job: Job) -> Lowered:
    """The tasks of all ranks.

    Raises:
        InputError: a trace does not make sense, or the ranks do not agree about what they send each other.
    """
    return _Lowering(job).run()


class _Lowering:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.pairs: dict[tuple[int, int], int] = {}
        self.tasks: list[tuple[int, int, int, int]] = []  # kind, amount, what, member
        self.before: list[list[int]] = []
        self.counters: dict[tuple[int, str, int], int] = {}
        self.orders = [trace.order() for trace in job.traces]
        self.made: dict[tuple, Collective | None] = {}
        self.shapes: dict[stages.Plan, object] = {}
        self.rows: dict[int, int] = {}  # id of a Collective -> its row
        self.collectives: list[Collective] = []
        self.instances: list[int] = []
        self.where: dict[tuple[int, int], tuple[int, int] | None] = {}  # (rank, node) -> (instance, member)

    def run(self) -> Lowered:
        job = self.job
        self._meet()
        partner = self._pair_up()
        first: dict[tuple[int, int], int] = {}
        work: list[NDArray[np.int64]] = []
        for rank, trace in enumerate(job.traces):
            work.append(self._rank(rank, trace, first))
        for receiver, sender in partner.items():
            self.before[int(work[receiver[0]][receiver[1]])].append(int(work[sender[0]][sender[1]]))
        columns = np.array(self.tasks, np.int64).reshape(-1, 4)
        n = len(columns)
        graph = Graph(
            kind=columns[:, 0].astype(np.int8),
            stream=np.full(n, -1, np.int32),
            amount=columns[:, 1].copy(),
            what=columns[:, 2].astype(np.int32),
            member=columns[:, 3].astype(np.int32),
            before=Ragged.of(self.before, np.int32),
            streams=0,
            collectives=tuple(self.collectives),
            instances=np.array(self.instances, np.int32),
            tokens=np.ones(len(self.counters), np.int64),
        )
        return Lowered(graph, wires(job.network, self.pairs), tuple(work), len(self.instances))

    # --- tasks --------------------------------------------------------------------------------------------------------

    def _add(self, kind: Task, amount: int = 0, what: int = -1, member: int = 0, before: Iterable[int] = ()) -> int:
        self.tasks.append((int(kind), amount, what, member))
        self.before.append(list(before))
        return len(self.tasks) - 1

    def _rank(self, rank: int, trace: ExecutionTrace, first: dict[tuple[int, int], int]) -> NDArray[np.int64]:
        """Tasks of one rank, in the order of the ids; returns the task that does the work of each node."""
        work = np.zeros(len(trace), np.int64)
        waits: list[int] = []  # the first task of each node, which waits for the nodes before it
        for row in range(len(trace)):
            kind, amount, what, member = self._work(rank, trace, row)
            slot = self._slot(rank, trace, row)
            if slot is None:
                work[row] = self._add(kind, amount, what, member)
                waits.append(int(work[row]))
                continue
            take = self._add(Task.TAKE, what=slot)
            work[row] = self._add(kind, amount, what, member, [take])
            self._add(Task.PUT, what=slot, before=[int(work[row])])
            waits.append(take)
        for row, before in enumerate(trace.before.lists()):
            self.before[waits[row]].extend(int(work[other]) for other in before)
        return work

    def _slot(self, rank: int, trace: ExecutionTrace, row: int) -> int | None:
        """The counter of the slot that a node takes, None for what takes none."""
        kind = int(trace.kind[row])
        if kind in (Node.COMM_SEND, Node.COMM_COLL):
            name = "communication"
        elif kind == Node.COMP:
            name = "host" if trace.cpu[row] else "device"
        elif kind in (Node.MEM_LOAD, Node.MEM_STORE):
            place = self.job.memory.place(rank) if self.job.memory is not None else rank
            return self.counters.setdefault((place, "memory", ABSENT), len(self.counters))
        else:
            return None
        stream = int(trace.stream[row]) if self.job.slots == "recorded" else ABSENT
        return self.counters.setdefault((rank, name, stream), len(self.counters))

    def _work(self, rank: int, trace: ExecutionTrace, row: int) -> tuple[Task, int, int, int]:
        """Kind, amount, what and member of the task that does a node's work."""
        kind = int(trace.kind[row])
        if kind in _COMMUNICATIONS and trace.cpu[row]:
            raise InputError(f"{trace.where(row)} communicates on the host (is_cpu_op), which cannot be simulated")
        if kind in (Node.INVALID, Node.METADATA):
            return Task.JOIN, 0, -1, 0
        if self.job.system.replay:
            return Task.COMPUTE, _recorded(trace, row), -1, 0
        if kind == Node.COMP:
            return Task.COMPUTE, self._computation(trace, row), -1, 0
        if kind == Node.COMM_RECV:
            return Task.JOIN, 0, -1, 0
        if kind == Node.COMM_SEND:
            return Task.TRANSFER, int(trace.size[row]), self._route(rank, int(trace.target[row])), 0
        if kind == Node.COMM_COLL:
            if int(trace.comm[row]) in _REPLAYED:
                return Task.COMPUTE, _recorded(trace, row), -1, 0
            place = self.where[rank, row]
            return (Task.JOIN, 0, -1, 0) if place is None else (Task.COLLECTIVE, 0, *place)
        if self.job.memory is not None:
            if trace.tensor_size[row] == ABSENT:
                raise InputError(f"{trace.where(row)} has no tensor_size, which a memory node needs")
            taken = self.job.memory.nanoseconds(int(trace.tensor_size[row]))
            return Task.COMPUTE, taken * _PS_PER_NS, -1, 0
        if trace.ticks[row] != ABSENT or trace.micros[row]:
            return Task.COMPUTE, _recorded(trace, row), -1, 0
        raise InputError(
            f"{trace.where(row)} loads or stores remote memory and has no recorded time: give a memory with "
            "--remote-memory"
        )

    def _computation(self, trace: ExecutionTrace, row: int) -> int:
        """Picoseconds of a computation: as recorded, or by the roofline."""
        system = self.job.system
        if not system.roofline or trace.cpu[row]:
            return _recorded(trace, row)
        operations, moved = int(trace.num_ops[row]), int(trace.tensor_size[row])
        if operations == ABSENT or moved == ABSENT:
            raise InputError(
                f"{trace.where(row)} has no num_ops and tensor_size, which roofline-enabled needs: switch it off"
            )
        if not moved:
            return 0
        rate = min(system.peak_flops, system.memory_bandwidth * 1e9 * operations / moved)
        return math.floor(operations / rate * 1e9) * _PS_PER_NS if operations else 0

    def _route(self, source: int, target: int) -> int:
        return self.pairs.setdefault((source, target), len(self.pairs))

    # --- sends and receives -------------------------------------------------------------------------------------------

    def _pair_up(self) -> dict[tuple[int, int], tuple[int, int]]:
        """(rank, node) of each receive -> that of its send: the k-th of one source, target and tag are a pair."""
        if self.job.system.replay:
            return {}
        ends: dict[Node, dict[tuple[int, int, int], list[tuple[int, int]]]] = {Node.COMM_SEND: {}, Node.COMM_RECV: {}}
        for rank, trace in enumerate(self.job.traces):
            for row in self.orders[rank]:
                kind = Node(int(trace.kind[row]))
                if kind in ends:
                    ends[kind].setdefault(self._ends(rank, trace, row, kind), []).append((rank, row))
        sends, receives = ends[Node.COMM_SEND], ends[Node.COMM_RECV]
        partner = {}
        for key in {**sends, **receives}:
            here, there = sends.get(key, []), receives.get(key, [])
            if len(here) != len(there):
                rank, row = (here or there)[0]
                raise InputError(
                    f"{self.job.traces[rank].where(row)}: from rank {key[0]} to rank {key[1]} with tag {key[2]} there "
                    f"are {len(here)} sends but {len(there)} receives: each needs its counterpart"
                )
            for sender, receiver in zip(here, there, strict=True):
                sizes = [int(self.job.traces[rank].size[row]) for rank, row in (sender, receiver)]
                if sizes[0] != sizes[1]:
                    raise InputError(
                        f"{self.job.traces[receiver[0]].where(receiver[1])} receives {sizes[1]} bytes, but rank "
                        f"{sender[0]} sends {sizes[0]}"
                    )
                partner[receiver] = sender
        return partner

    def _ends(self, rank: int, trace: ExecutionTrace, row: int, kind: Node) -> tuple[int, int, int]:
        """(source, target, tag) of a send or receive; its own side may be left out."""
        source, target = int(trace.source[row]), int(trace.target[row])
        own, other = (source, target) if kind == Node.COMM_SEND else (target, source)
        key, side = ("comm_dst", "comm_src") if kind == Node.COMM_SEND else ("comm_src", "comm_dst")
        if own not in (ABSENT, rank):
            raise InputError(f"{trace.where(row)} has {side} {own}, but is in the trace of rank {rank}")
        for name, value in ((key, other), ("comm_tag", int(trace.tag[row])), ("comm_size", int(trace.size[row]))):
            if value == ABSENT:
                raise InputError(f"{trace.where(row)} has no {name}, which a send or receive needs")
        if other >= len(self.job.traces):
            raise InputError(f"{trace.where(row)} names rank {other}, but ranks are 0 to {len(self.job.traces) - 1}")
        return (rank, other, int(trace.tag[row])) if kind == Node.COMM_SEND else (other, rank, int(trace.tag[row]))

    # --- collectives --------------------------------------------------------------------------------------------------

    def _meet(self) -> None:
        """Find who meets whom: the k-th collective that each member of a group issues is the same one."""
        if self.job.system.replay:
            return
        issued: dict[tuple, dict[int, list[int]]] = {}
        for rank, trace in enumerate(self.job.traces):
            groups = self.job.groups | {
                name: checked(list(members), f"{trace.file}: group {name}", len(self.job.traces))
                for name, members in trace.groups.items()
            }
            for row in self.orders[rank]:
                if trace.kind[row] == Node.COMM_COLL and trace.comm[row] not in _REPLAYED:
                    key = self._group(rank, trace, row, groups)
                    issued.setdefault(key, {}).setdefault(rank, []).append(row)
        for (members, involved), by_rank in issued.items():
            longest = max(by_rank, key=lambda rank: len(by_rank[rank]))
            for rank in members:
                if len(by_rank.get(rank, ())) != len(by_rank[longest]):
                    where = self.job.traces[longest].where(by_rank[longest][len(by_rank.get(rank, ()))])
                    raise InputError(f"{where}: rank {rank} of its group never takes part: it has fewer collectives")
            for rows in zip(*(by_rank[rank] for rank in members), strict=True):
                self._instance(members, involved, rows)

    def _group(
        self, rank: int, trace: ExecutionTrace, row: int, groups: dict[str, tuple[int, ...]]
    ) -> tuple[tuple[int, ...], tuple[bool, ...] | None]:
        """Members of a collective's group, and which dimensions it takes; None for a group that is one dimension."""
        shape = self.job.network.shape
        name, ranks = trace.group[row], len(self.job.traces)
        if name not in EVERYBODY:
            if name not in groups:
                raise InputError(
                    f"{trace.where(row)} is among communicator group {name!r}, which is not known: give it with "
                    "--comm-group"
                )
            members = groups[name]
            if rank not in members:
                raise InputError(f"{trace.where(row)} is among communicator group {name!r}, which lacks rank {rank}")
            return members, (True,) * len(shape) if len(members) == ranks else None
        flags = trace.dims[row].tolist()
        if not flags:
            return tuple(range(ranks)), (True,) * len(shape)
        if len(flags) < len(shape):
            raise InputError(
                f"{trace.where(row)}: involved_dim has {len(flags)} entries, the network {len(shape)} dimensions"
            )
        involved = tuple(flags[: len(shape)])
        grid = np.arange(ranks).reshape(shape[::-1])
        at = np.unravel_index(rank, shape[::-1])
        index = tuple(slice(None) if flag else int(x) for flag, x in zip(involved[::-1], at, strict=True))
        return tuple(grid[index].reshape(-1).tolist()), involved

    def _instance(self, members: tuple[int, ...], involved: tuple[bool, ...] | None, rows: Sequence[int]) -> None:
        """One collective that is run."""
        job = self.job
        trace, row = job.traces[members[0]], rows[0]
        code, size = int(trace.comm[row]), int(trace.size[row])
        for rank, other in zip(members, rows, strict=True):
            found = job.traces[rank]
            if (int(found.comm[other]), int(found.size[other])) != (code, size):
                raise InputError(
                    f"{found.where(other)} and rank {members[0]}'s {trace.where(row)} should be one collective, but "
                    "differ in comm_type or comm_size"
                )
        if code == ABSENT or size == ABSENT:
            raise InputError(f"{trace.where(row)} lacks {'comm_type' if code == ABSENT else 'comm_size'}")
        if code not in _KINDS:
            name = Comm(code).name if code in {int(c) for c in Comm} else str(code)
            raise InputError(f"{trace.where(row)} is of comm_type {name}, which ASTRA-sim does not simulate either")
        key = (members, involved, code, size)
        if key not in self.made:
            self.made[key] = self._collective(members, involved, _KINDS[Comm(code)], size, trace.where(row))
        collective = self.made[key]
        for position, (rank, other) in enumerate(zip(members, rows, strict=True)):
            self.where[rank, other] = None if collective is None else (len(self.instances), position)
        if collective is not None:
            if id(collective) not in self.rows:
                self.rows[id(collective)] = len(self.collectives)
                self.collectives.append(collective)
            self.instances.append(self.rows[id(collective)])

    def _collective(
        self, members: tuple[int, ...], involved: tuple[bool, ...] | None, kind: str, size: int, where: str
    ) -> Collective | None:
        plan = self._plan(members, involved, kind, size, where)
        if plan not in self.shapes:
            self.shapes[plan] = stages.pattern(plan, self.job.system, self.job.stagger_ps)
        made: stages.Pattern | None = self.shapes[plan]  # type: ignore[assignment]
        if made is None:
            return None
        ranks = np.array(members, np.int64)
        ends = ranks[made.source] * len(self.job.traces) + ranks[made.target]
        distinct, back = np.unique(ends, return_inverse=True)
        routes = [self._route(*divmod(end, len(self.job.traces))) for end in distinct.tolist()]
        return Collective(made, np.array(routes, np.int32)[back])

    def _plan(
        self, members: tuple[int, ...], involved: tuple[bool, ...] | None, kind: str, size: int, where: str
    ) -> stages.Plan:
        system, dimensions = self.job.system, self.job.network.dimensions
        choices = system.choices[kind]
        if not choices:
            raise InputError(f"{where}: the system file has no {kind.replace('_', '-')}-implementation")
        slowest = (
            max(d.hops for d in dimensions),
            max(d.latency for d in dimensions),
            min(d.bandwidth for d in dimensions),
        )
        if involved is None or system.flat[kind]:
            one = choices[:1] if len(choices) == 1 else (Choice("ring"),)
            return stages.Plan(kind, size, (len(members),), one, (slowest,))
        if len(choices) != len(dimensions):
            raise InputError(
                f"the system file names {len(choices)} implementations of {kind.replace('_', '-')}, but the network "
                f"has {len(dimensions)} dimensions: name one for each"
            )
        taken = [number for number, flag in enumerate(involved) if flag]
        return stages.Plan(
            kind,
            size,
            tuple(dimensions[number].npus for number in taken),
            tuple(choices[number] for number in taken),
            tuple((d.hops, d.latency, d.bandwidth) for d in (dimensions[number] for number in taken)),
        )


def _recorded(trace: ExecutionTrace, row: int) -> int:
    """Picoseconds as recorded; a node without a duration takes a nanosecond, as in ASTRA-sim."""
    if trace.ticks[row] != ABSENT:
        return int(trace.ticks[row])
    return int(trace.micros[row]) * _PS_PER_US or _PS_PER_NS
