"""Which send and which receive are one message."""

from __future__ import annotations

from collections.abc import Sequence

from triosim.core.errors import InputError
from triosim.interop.chakra.trace import ABSENT, ChakraNodeType, ChakraTrace

Place = tuple[int, int]
"""(rank, node): a row of a rank's trace."""


def partners(traces: Sequence[ChakraTrace], orders: Sequence[Sequence[int]]) -> dict[Place, Place]:
    """The send of each receive: the k-th of one source, target and tag are a pair.

    Args:
        traces: of all ranks.
        orders: rows of each trace in an order in which they can run.

    Raises:
        InputError: a send or receive lacks an attribute, has no counterpart, or one of another size.
    """
    ends: dict[ChakraNodeType, dict[tuple[int, int, int], list[Place]]] = {
        ChakraNodeType.COMM_SEND: {},
        ChakraNodeType.COMM_RECV: {},
    }
    for rank, trace in enumerate(traces):
        for row in orders[rank]:
            kind = ChakraNodeType(int(trace.kind[row]))
            if kind in ends:
                ends[kind].setdefault(_ends(rank, trace, row, kind, len(traces)), []).append((rank, row))
    sends, receives = ends[ChakraNodeType.COMM_SEND], ends[ChakraNodeType.COMM_RECV]
    found = {}
    for key in {**sends, **receives}:
        here, there = sends.get(key, []), receives.get(key, [])
        if len(here) != len(there):
            rank, row = (here or there)[0]
            raise InputError(
                f"{traces[rank].where(row)}: from rank {key[0]} to rank {key[1]} with tag {key[2]} there are "
                f"{len(here)} sends but {len(there)} receives: each needs its counterpart"
            )
        for sender, receiver in zip(here, there, strict=True):
            sizes = [int(traces[rank].size[row]) for rank, row in (sender, receiver)]
            if sizes[0] != sizes[1]:
                raise InputError(
                    f"{traces[receiver[0]].where(receiver[1])} receives {sizes[1]} bytes, but rank {sender[0]} sends "
                    f"{sizes[0]}"
                )
            found[receiver] = sender
    return found


def _ends(rank: int, trace: ChakraTrace, row: int, kind: ChakraNodeType, ranks: int) -> tuple[int, int, int]:
    """(source, target, tag) of a send or receive; its own side may be left out."""
    source, target = int(trace.source[row]), int(trace.target[row])
    own, other = (source, target) if kind == ChakraNodeType.COMM_SEND else (target, source)
    key, side = ("comm_dst", "comm_src") if kind == ChakraNodeType.COMM_SEND else ("comm_src", "comm_dst")
    if own not in (ABSENT, rank):
        raise InputError(f"{trace.where(row)} has {side} {own}, but is in the trace of rank {rank}")
    for name, value in ((key, other), ("comm_tag", int(trace.tag[row])), ("comm_size", int(trace.size[row]))):
        if value == ABSENT:
            raise InputError(f"{trace.where(row)} has no {name}, which a send or receive needs")
    if other >= ranks:
        raise InputError(f"{trace.where(row)} names rank {other}, but ranks are 0 to {ranks - 1}")
    return (
        (rank, other, int(trace.tag[row])) if kind == ChakraNodeType.COMM_SEND else (other, rank, int(trace.tag[row]))
    )
