"""Collectives of a job: which nodes of different ranks form one, which ranks take part, and by which algorithm."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted
from triosim.interop.astra.groups import EVERYBODY, checked
from triosim.interop.astra.network import AstraNetwork, Dimension
from triosim.interop.astra.stages import CollectivePlan
from triosim.interop.astra.system import AstraSystem, DimensionAlgorithm
from triosim.interop.chakra.trace import ABSENT, ChakraNodeType, ChakraTrace, Comm

REPLAYED = (Comm.BROADCAST, Comm.REDUCE, Comm.GATHER, Comm.SCATTER)
"""Collectives with a root take their recorded time: ASTRA-sim does so with a broadcast and refuses the others."""

_KINDS = {
    Comm.ALL_REDUCE: "all_reduce", Comm.ALL_GATHER: "all_gather", Comm.REDUCE_SCATTER: "reduce_scatter",
    Comm.ALL_TO_ALL: "all_to_all",
}  # fmt: skip


@dataclass(frozen=True)
class AstraGroup:
    """Who takes part.

    Attributes:
        members: ranks, in the order of their positions.
        involved: for each dimension whether it is used; None for a group that counts as one dimension.
    """

    members: tuple[int, ...]
    involved: tuple[bool, ...] | None


@dataclass(frozen=True)
class AstraCollective:
    """One collective that is run.

    Attributes:
        group: who takes part.
        kind, size: what is done with how many bytes of each rank.
        rows: node of each member.
        where: the first member's node in words, for messages.
    """

    group: AstraGroup
    kind: str
    size: int
    rows: tuple[int, ...]
    where: str


def meetings(
    traces: Sequence[ChakraTrace],
    orders: Sequence[Sequence[int]],
    network: AstraNetwork,
    groups: dict[str, tuple[int, ...]],
) -> list[AstraCollective]:
    """All collectives: the k-th that each member of a group issues is the same one.

    Args:
        traces: of all ranks.
        orders: rows of each trace in an order in which they can run.
        network: dimensions of the machine.
        groups: communicator groups; those that a trace declares come on top.

    Raises:
        InputError: a group is not known, or its members do not agree.
    """
    issued: dict[AstraGroup, dict[int, list[int]]] = {}
    for rank, trace in enumerate(traces):
        known = groups | {
            name: checked(list(members), f"{trace.file}: group {name}", len(traces))
            for name, members in trace.groups.items()
        }
        for row in orders[rank]:
            if trace.kind[row] == ChakraNodeType.COMM_COLL and trace.comm[row] not in REPLAYED:
                group = _group(rank, trace, row, network, known)
                issued.setdefault(group, {}).setdefault(rank, []).append(row)
    found = []
    for group, by_rank in issued.items():
        longest = max(by_rank, key=lambda rank: len(by_rank[rank]))
        for rank in group.members:
            if len(by_rank.get(rank, ())) != len(by_rank[longest]):
                where = traces[longest].where(by_rank[longest][len(by_rank.get(rank, ()))])
                raise InputError(f"{where}: rank {rank} of its group never takes part: it has fewer collectives")
        for rows in zip(*(by_rank[rank] for rank in group.members), strict=True):
            found.append(_meeting(traces, group, rows))
    return found


def _group(
    rank: int, trace: ChakraTrace, row: int, network: AstraNetwork, groups: dict[str, tuple[int, ...]]
) -> AstraGroup:
    """The group of a collective."""
    shape, name, ranks = network.shape, trace.group[row], network.npus
    everything = (True,) * len(shape)
    if name not in EVERYBODY:
        if name not in groups:
            raise InputError(
                f"{trace.where(row)} is among communicator group {quoted(name)}, which is not known: give --comm-group"
            )
        members = groups[name]
        if rank not in members:
            raise InputError(f"{trace.where(row)} is among communicator group {quoted(name)}, which lacks rank {rank}")
        return AstraGroup(members, everything if len(members) == ranks else None)
    flags = trace.dims[row].tolist()
    if not flags:
        return AstraGroup(tuple(range(ranks)), everything)
    if len(flags) < len(shape):
        raise InputError(
            f"{trace.where(row)}: involved_dim has {len(flags)} entries, the network {len(shape)} dimensions"
        )
    involved = tuple(flags[: len(shape)])
    at = np.unravel_index(rank, shape[::-1])
    index = tuple(slice(None) if flag else int(x) for flag, x in zip(involved[::-1], at, strict=True))
    return AstraGroup(tuple(np.arange(ranks).reshape(shape[::-1])[index].reshape(-1).tolist()), involved)


def _meeting(traces: Sequence[ChakraTrace], group: AstraGroup, rows: tuple[int, ...]) -> AstraCollective:
    """One collective, if its members agree about it."""
    trace, row = traces[group.members[0]], rows[0]
    code, size = int(trace.comm[row]), int(trace.size[row])
    for rank, other in zip(group.members, rows, strict=True):
        found = traces[rank]
        if (int(found.comm[other]), int(found.size[other])) != (code, size):
            raise InputError(
                f"{found.where(other)} and rank {group.members[0]}'s {trace.where(row)} should be one collective, but "
                "differ in comm_type or comm_size"
            )
    if code == ABSENT or size == ABSENT:
        raise InputError(f"{trace.where(row)} has no {'comm_type' if code == ABSENT else 'comm_size'}")
    if size * len(traces) >= 2**62:
        raise InputError(
            f"{trace.where(row)} has a comm_size of {size} bytes, more than can be counted among its ranks"
        )
    if code not in _KINDS:
        name = Comm(code).name if code in {int(c) for c in Comm} else str(code)
        raise InputError(f"{trace.where(row)} is of comm_type {name}, which ASTRA-sim does not simulate either")
    return AstraCollective(group, _KINDS[Comm(code)], size, rows, trace.where(row))


def plan(meeting: AstraCollective, network: AstraNetwork, system: AstraSystem) -> CollectivePlan:
    """How a collective is done.

    Raises:
        InputError: the system file does not say, or not for each dimension.
    """
    words, dimensions = meeting.kind.replace("_", "-"), network.dimensions
    choices, involved = system.choices[meeting.kind], meeting.group.involved
    if not choices:
        raise InputError(f"{meeting.where}: the system file has no {words}-implementation")
    if involved is None or system.flat[meeting.kind]:
        one = choices if len(choices) == 1 else (DimensionAlgorithm("ring"),)
        return CollectivePlan(meeting.kind, meeting.size, (len(meeting.group.members),), one, (_slowest(dimensions),))
    if len(choices) != len(dimensions):
        raise InputError(
            f"the system file names {len(choices)} implementations of {words}, but the network has {len(dimensions)} "
            "dimensions: name one for each"
        )
    taken = [number for number, flag in enumerate(involved) if flag]
    return CollectivePlan(
        meeting.kind,
        meeting.size,
        tuple(dimensions[number].npus for number in taken),
        tuple(choices[number] for number in taken),
        tuple(_hop(dimensions[number]) for number in taken),
    )


def _hop(dimension: Dimension) -> tuple[int, float, float]:
    return dimension.hops, dimension.latency, dimension.bandwidth


def _slowest(dimensions: Sequence[Dimension]) -> tuple[int, float, float]:
    """The worst of each figure, for a group that may lie anywhere."""
    hops, latency, bandwidth = zip(*map(_hop, dimensions), strict=True)
    return max(hops), max(latency), min(bandwidth)
