"""Ring: every member sends to its neighbour only.

Reduction and gathering that are optimal in bandwidth (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
clusters of workstations", J. Parallel Distrib. Comput. 69(2), 2009), and broadcast and reduction pipelined along the
ring, as in NCCL.
"""

from __future__ import annotations

import numpy as np

from triosim.collectives.algorithm import Algorithm, CollectiveSchedule, part, rooted
from triosim.collectives.group import Group, blocks_of
from triosim.collectives.pattern import chain, ring, rings
from triosim.collectives.rails import rail_rings
from triosim.core.registry import registered

CHUNK_BYTES = 4 * 2**20 // 8
"""Most that moves on at once in a pipeline: a slot of NCCL's buffer, of 4 MiB by default (NCCL documentation,
``NCCL_BUFFSIZE``) in 8 slots (``NCCL_STEPS`` in its ``src/include/device.h``)."""


@registered
class Ring(Algorithm):
    """In each step everyone passes one of N chunks on to the next: N - 1 steps gather or reduce, 2 (N - 1) do both.

    Devices that are linked directly have a ring for every way round them.  Where several servers have as many members
    each there is one ring for every way out of a server
    (:mod:`triosim.collectives.rails`).

    Broadcast and reduce send the whole buffer along the chain that begins or ends at the root, in equal chunks of at
    most :data:`CHUNK_BYTES`.
    """

    kinds = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")

    def schedule(
        self, kind: str, members: int, size: int, root: int = 0, group: Group | None = None
    ) -> CollectiveSchedule:
        """See :meth:`Algorithm.schedule`."""
        if kind in ("broadcast", "reduce"):
            chunks = max(part(size, CHUNK_BYTES), 1)
            first = root if kind == "broadcast" else root + 1
            return CollectiveSchedule(chain(members, part(size, chunks), chunks), rooted(members, first))
        steps = (2 if kind == "all_reduce" else 1) * (members - 1)
        if group is not None and group.rings:
            return CollectiveSchedule(
                rings(group.rings, part(part(size, members), len(group.rings)), steps), tuple(range(members))
            )
        blocks = blocks_of(group, members)
        if len(blocks) > 1 and len(blocks[0]) > 1 and len({len(b) for b in blocks}) == 1:
            return CollectiveSchedule(rail_rings(np.stack(blocks), part(size, members), steps), tuple(range(members)))
        order = tuple(np.concatenate(blocks).tolist())
        return CollectiveSchedule(ring(members, part(size, members), steps), order)
