"""Who takes part in a collective, and over what links: all that algorithms and the tuner know of a machine."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import distinct
from triosim.core.dataclass import dataclass

if TYPE_CHECKING:
    from triosim.network.torus_box import TorusBox


@dataclass(frozen=True)
class LinkClass:
    """The way between two members, as one of them sees it.

    Attributes:
        bandwidth: bytes per second that one member can send (and at the same time receive).
        latency: seconds of the whole way.
        overhead: seconds of software cost, once, where nothing better is known.
        name: of the link in the catalog, ``""`` for one that the user described by its figures.
        family: of the link in the catalog ("NVLink"), or ``""``.
        rated: bandwidth by which a library knows the link, whatever it reaches; None where it does not know the link.
        usual_latency, usual_overhead: latency and overhead of such links, which constants that hold for them include;
            None for those of this very link.
    """

    bandwidth: float
    latency: float = 0.0
    overhead: float = 0.0
    name: str = ""
    family: str = ""
    rated: float | None = None
    usual_latency: float | None = None
    usual_overhead: float | None = None


@dataclass(frozen=True)
class Group:
    """The members of a collective.

    Attributes:
        server: server of each member, shape ``(members,)``, int32; any numbers.
        intra: between members of one server; None where no two share one.
        inter: between members of different servers; None where all are in one.  Its bandwidth is one member's share
            when all send at once.
        switch: node of the system that reduces and multicasts for all members, or -1.
        architecture: of the devices ("Hopper"), or ``""``.
        rings: ways round all members over links of their own, each a ring that shares the bandwidth of ``intra``
            evenly; none where a switch joins them or members are in several servers.
        box: of a torus, that the members form; None where they do not, or are in several servers.
    """

    server: NDArray[np.int32]
    intra: LinkClass | None = None
    inter: LinkClass | None = None
    switch: int = -1
    architecture: str = ""
    rings: tuple[tuple[int, ...], ...] = ()
    box: TorusBox | None = None

    @property
    def members(self) -> int:
        """Number of members."""
        return len(self.server)

    @cached_property
    def servers(self) -> int:
        """Number of servers that they are in."""
        return len(distinct(self.server))

    @property
    def as_rated(self) -> Group | None:
        """The group with the bandwidths by which a library knows its links; None where it does not know them."""
        rated: list[LinkClass | None] = []
        for link in (self.intra, self.inter):
            if link is None:
                rated.append(None)
            elif link.rated is None:
                return None
            else:
                rated.append(replace(link, bandwidth=link.rated))
        return replace(self, intra=rated[0], inter=rated[1])

    @property
    def slowest(self) -> LinkClass:
        """The link that a ring through all members is as fast as.

        Raises:
            ValueError: the group has no link.
        """
        link = self.inter or self.intra
        if link is None:
            raise ValueError("a group of one member has no link")
        return link


def blocks_of(group: Group | None, members: int) -> list[NDArray[np.int64]]:
    """Members of each server, servers in the order of their first member; all in one where no group is given."""
    if group is None:
        return [np.arange(members, dtype=np.int64)]
    _, first, row = np.unique(group.server, return_index=True, return_inverse=True)
    start = first[row]
    order = np.argsort(start, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(start[order])) + 1)
