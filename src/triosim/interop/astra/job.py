"""From the traces of all ranks to one graph of tasks.

A rank runs one computation, one communication and one host operation at a time (receives exempt): slots, each a counter
of the engine with one token.  Who waits for a slot gets it in the order of being ready, the lowest id first of those
that are ready together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.units import picoseconds, whole_ticks
from triosim.engine.graph import Collective, EngineNetwork, Graph, Pattern, Task
from triosim.interop.astra import stages
from triosim.interop.astra.collective_groups import REPLAYED, AstraCollective, AstraGroup, meetings, plan
from triosim.interop.astra.memory import RemoteMemory
from triosim.interop.astra.network import AstraNetwork
from triosim.interop.astra.partners import Place, partners
from triosim.interop.astra.system import AstraSystem
from triosim.interop.astra.wires import wires
from triosim.interop.chakra.trace import ABSENT, ChakraNodeType, ChakraTrace

SLOTS = ("one", "recorded")
"""Rules of how many things a rank does at once: ``one`` is ASTRA-sim's; ``recorded`` gives each stream that the trace
names a slot of its own."""

_COMMUNICATIONS = (ChakraNodeType.COMM_SEND, ChakraNodeType.COMM_RECV, ChakraNodeType.COMM_COLL)
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

    traces: Sequence[ChakraTrace]
    network: AstraNetwork
    system: AstraSystem
    groups: dict[str, tuple[int, ...]]
    slots: str = "one"
    stagger_ps: int = 0
    memory: RemoteMemory | None = None


@dataclass(frozen=True)
class AstraGraph:
    """The graph, and where each rank's nodes are in it.

    Attributes:
        graph, wires: what the engine plays.
        work: for each rank the task that does the work of each node.
        collectives: collectives that are run.
    """

    graph: Graph
    wires: EngineNetwork
    work: tuple[NDArray[np.int64], ...]
    collectives: int


def lower(job: Job) -> AstraGraph:
    """The tasks of all ranks.

    Raises:
        InputError: a trace does not make sense, or the ranks do not agree about what they send each other.
    """
    return _AstraLowering(job).run()


class _AstraLowering:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.pairs: dict[tuple[int, int], int] = {}
        self.tasks: list[tuple[int, int, int, int]] = []  # kind, amount, what, member
        self.before: list[list[int]] = []
        self.counters: dict[tuple[int, str, int], int] = {}
        self.orders = [trace.order() for trace in job.traces]
        self.patterns: dict[stages.CollectivePlan, Pattern | None] = {}
        self.made: dict[tuple[AstraGroup, str, int], Collective | None] = {}
        self.rows: dict[tuple[AstraGroup, str, int], int] = {}  # rows of the collectives that send something
        self.instances: list[int] = []
        self.where: dict[tuple[int, int], tuple[int, int] | None] = {}  # (rank, node) -> (instance, member)

    def run(self) -> AstraGraph:
        job = self.job
        partner: dict[Place, Place] = {}
        if not job.system.replay:
            partner = partners(job.traces, self.orders)
            for meeting in meetings(job.traces, self.orders, job.network, job.groups):
                self._meet(meeting)
        work: list[NDArray[np.int64]] = []
        for rank, trace in enumerate(job.traces):
            work.append(self._rank(rank, trace))
        for receiver, sender in partner.items():
            self.before[int(work[receiver[0]][receiver[1]])].append(int(work[sender[0]][sender[1]]))
        try:
            columns = np.array(self.tasks, np.int64).reshape(-1, 4)
        except OverflowError:
            raise InputError("a node lasts longer than 106 days: look for a wrong unit in the traces") from None
        n = len(columns)
        graph = Graph(
            kind=columns[:, 0].astype(np.int8),
            stream=np.full(n, -1, np.int32),
            amount=columns[:, 1].copy(),
            what=columns[:, 2].astype(np.int32),
            member=columns[:, 3].astype(np.int32),
            before=Ragged.of(self.before, np.int32),
            streams=0,
            collectives=tuple(found for key in self.rows if (found := self.made[key]) is not None),
            instances=np.array(self.instances, np.int32),
            tokens=np.ones(len(self.counters), np.int64),
        )
        return AstraGraph(graph, wires(job.network, self.pairs), tuple(work), len(self.instances))

    # --- tasks --------------------------------------------------------------------------------------------------------

    def _add(self, kind: Task, amount: int = 0, what: int = -1, member: int = 0, before: Iterable[int] = ()) -> int:
        self.tasks.append((int(kind), amount, what, member))
        self.before.append(list(before))
        return len(self.tasks) - 1

    def _rank(self, rank: int, trace: ChakraTrace) -> NDArray[np.int64]:
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

    def _slot(self, rank: int, trace: ChakraTrace, row: int) -> int | None:
        """The counter of the slot that a node takes, None for what takes none."""
        kind = int(trace.kind[row])
        if kind in (ChakraNodeType.COMM_SEND, ChakraNodeType.COMM_COLL):
            name = "communication"
        elif kind == ChakraNodeType.COMP:
            name = "host" if trace.cpu[row] else "device"
        elif kind in (ChakraNodeType.MEM_LOAD, ChakraNodeType.MEM_STORE):
            place = self.job.memory.place(rank) if self.job.memory is not None else rank
            return self.counters.setdefault((place, "memory", ABSENT), len(self.counters))
        else:
            return None
        stream = int(trace.stream[row]) if self.job.slots == "recorded" else ABSENT
        return self.counters.setdefault((rank, name, stream), len(self.counters))

    def _work(self, rank: int, trace: ChakraTrace, row: int) -> tuple[Task, int, int, int]:
        """Kind, amount, what and member of the task that does a node's work."""
        kind = int(trace.kind[row])
        if kind in _COMMUNICATIONS and trace.cpu[row]:
            raise InputError(f"{trace.where(row)} communicates on the host (is_cpu_op), which cannot be simulated")
        if kind in (ChakraNodeType.INVALID, ChakraNodeType.METADATA):
            return Task.JOIN, 0, -1, 0
        if self.job.system.replay:
            return Task.COMPUTE, _recorded(trace, row), -1, 0
        if kind == ChakraNodeType.COMP:
            return Task.COMPUTE, self._computation(trace, row), -1, 0
        if kind == ChakraNodeType.COMM_RECV:
            return Task.JOIN, 0, -1, 0
        if kind == ChakraNodeType.COMM_SEND:
            return Task.TRANSFER, int(trace.size[row]), self._route(rank, int(trace.target[row])), 0
        if kind == ChakraNodeType.COMM_COLL:
            if int(trace.comm[row]) in REPLAYED:
                return Task.COMPUTE, _recorded(trace, row), -1, 0
            place = self.where[rank, row]
            return (Task.JOIN, 0, -1, 0) if place is None else (Task.COLLECTIVE, 0, *place)
        if self.job.memory is not None:
            if trace.tensor_size[row] == ABSENT:
                raise InputError(f"{trace.where(row)} has no tensor_size, which a memory node needs")
            taken = self.job.memory.nanoseconds(int(trace.tensor_size[row]))
            return Task.COMPUTE, whole_ticks(taken * _PS_PER_NS, trace.where(row)), -1, 0
        if trace.ticks[row] != ABSENT or trace.micros[row]:
            return Task.COMPUTE, _recorded(trace, row), -1, 0
        raise InputError(
            f"{trace.where(row)} loads or stores remote memory and has no recorded time: give a memory with "
            "--remote-memory"
        )

    def _computation(self, trace: ChakraTrace, row: int) -> int:
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
        rate = min(system.peak_flops, system.costs.memory_bandwidth * 1e9 * operations / moved)
        seconds = operations / rate if operations and rate else math.inf if operations else 0.0
        picoseconds(seconds, trace.where(row))  # refuses what cannot be counted
        return math.floor(seconds * 1e9) * _PS_PER_NS

    def _route(self, source: int, target: int) -> int:
        return self.pairs.setdefault((source, target), len(self.pairs))

    # --- collectives --------------------------------------------------------------------------------------------------

    def _meet(self, meeting: AstraCollective) -> None:
        """Make room for one collective and note where its members are in it."""
        group = meeting.group
        key = (group, meeting.kind, meeting.size)
        if key not in self.made:
            self.made[key] = self._collective(meeting)
        collective = self.made[key]
        for position, place in enumerate(zip(group.members, meeting.rows, strict=True)):
            self.where[place] = None if collective is None else (len(self.instances), position)
        if collective is not None:
            self.instances.append(self.rows.setdefault(key, len(self.rows)))

    def _collective(self, meeting: AstraCollective) -> Collective | None:
        """The pattern of a collective on its routes; None where there is nothing to send."""
        job = self.job
        wanted = plan(meeting, job.network, job.system)
        if wanted not in self.patterns:
            self.patterns[wanted] = stages.pattern(wanted, job.system, job.stagger_ps)
        pattern = self.patterns[wanted]
        if pattern is None:
            return None
        ranks = np.array(meeting.group.members, np.int64)
        ends = ranks[pattern.source] * len(job.traces) + ranks[pattern.target]
        distinct, back = np.unique(ends, return_inverse=True)
        routes = [self._route(*divmod(end, len(job.traces))) for end in distinct.tolist()]
        return Collective(pattern, np.array(routes, np.int32)[back])


def _recorded(trace: ChakraTrace, row: int) -> int:
    """Picoseconds as recorded; a node without a duration takes a nanosecond, as in ASTRA-sim."""
    if trace.ticks[row] != ABSENT:
        return whole_ticks(int(trace.ticks[row]), trace.where(row))
    return whole_ticks(int(trace.micros[row]) * _PS_PER_US, trace.where(row)) or _PS_PER_NS
