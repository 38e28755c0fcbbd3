"""Cells: ranks, transfers and links that nothing in a job tells apart, found by colour refinement.

Two ranks are told apart if they run different programs, or if one talks over a faster link than the other, or to a rank
that is told apart from the other's peer, and so on: colours are refined by those of the neighbours until no
colour splits any more (the one-dimensional Weisfeiler-Leman algorithm, Weisfeiler and Leman 1968).  What is left is
the coarsest *equitable* partition: all members of a cell have equally many neighbours in each other cell.  Playing a
job and sharing links then never distinguish the members of a cell, so one of each can be played for all: start and end
of everything are exactly those of the whole job.

Colours are 64-bit hashes of what a thing is and of the sum of its neighbours' hashes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass

try:
    from triosim.engine._native import refine as _refine
except ImportError:  # there was no compiler when TrioSim was installed
    _refine = None  # type: ignore[assignment]

Colours = NDArray[np.uint64]


@dataclass(frozen=True)
class Traffic:
    """Everything that can be sent in a job, each way once: ``w`` ways between ``p`` parties.

    Attributes:
        party_like: parties with different numbers are never alike, shape ``(p,)``, int64.  Parties are the ranks, then
            whatever else sends or receives.
        source, target: parties of each way, shape ``(w,)``.
        way_like: ways with different numbers are never alike, shape ``(w,)``, int64.
        needs: ways that each way waits for.
        routes: links of each way, in order.
        link_like: links with different numbers are never alike, shape ``(links,)``, int64.
        members: parties of each group that acts together.
    """

    party_like: NDArray[np.int64]
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    way_like: NDArray[np.int64]
    needs: Ragged
    routes: Ragged
    link_like: NDArray[np.int64]
    members: Ragged


@dataclass(frozen=True)
class RankClasses:
    """Which cell everything is in; cells are numbered in the order of their first members.

    Attributes:
        party, way, link, group: cell of each; links that no way uses have cell -1.
    """

    party: NDArray[np.int64]
    way: NDArray[np.int64]
    link: NDArray[np.int64]
    group: NDArray[np.int64]


def separate(traffic: Traffic) -> RankClasses:
    """A cell for everything: nothing is folded."""
    sizes = (traffic.party_like, traffic.source, traffic.link_like, traffic.members)
    return RankClasses(*(np.arange(len(size)) for size in sizes))


def refine(traffic: Traffic) -> RankClasses:
    """The coarsest cells that are equitable."""
    return refined(traffic) if _refine is None else RankClasses(*_refine(_fitted(traffic)))


def _fitted(t: Traffic) -> Traffic:
    """Columns as C++ reads them."""

    def column(values: NDArray, dtype: type = np.int64) -> NDArray:
        return np.require(values, dtype, ["C", "A"])

    needs, members, routes = (
        Ragged(column(rows.values, dtype), column(rows.offsets))
        for rows, dtype in ((t.needs, np.int64), (t.members, np.int64), (t.routes, np.int32))
    )
    return Traffic(
        column(t.party_like), column(t.source), column(t.target), column(t.way_like), needs, routes,
        column(t.link_like), members,
    )  # fmt: skip


def refined(traffic: Traffic) -> RankClasses:
    """The same, without a compiler."""
    t = traffic
    parties, ways, links, groups = len(t.party_like), len(t.source), len(t.link_like), len(t.members)
    route_of, need_of, group_of = t.routes.rows(), t.needs.rows(), t.members.rows()
    place = np.arange(len(route_of)) - np.repeat(t.routes.offsets[:-1], t.routes.lengths())  # in the route
    party, link = _mixed(_plain(t.party_like)), _mixed(_plain(t.link_like))
    kind = _mixed(_plain(t.way_like))
    way, group = kind, np.zeros(groups, np.uint64)
    used = np.zeros(links, bool)
    used[t.routes.values] = True
    known = (_count(party), _count(kind), _count(link[used]), min(groups, 1))
    while True:
        over = _sums(route_of, _mixed(link[t.routes.values] + _plain(place)), ways)
        before = _sums(need_of, way[t.needs.values], ways)
        way = _joined(kind, party[t.source], party[t.target], over, before)
        group = _sums(group_of, party[t.members.values], groups)
        party = _joined(
            party, _sums(t.source, way, parties), _sums(t.target, way, parties),
            _sums(t.members.values, group[group_of], parties),
        )  # fmt: skip
        link = _joined(link, _sums(t.routes.values, way[route_of], links))
        found = (_count(party), _count(way), _count(link[used]), _count(group))
        if found == known:
            break
        known = found
    link_cell = np.full(links, -1, np.int64)
    link_cell[used] = _numbered(link[used])
    return RankClasses(_numbered(party), _numbered(way), link_cell, _numbered(group))


def weights(traffic: Traffic, cells: RankClasses) -> tuple[Ragged, NDArray[np.int32]]:
    """Routes of the ways' cells over the links' cells, and how often a flow of each counts on each.

    A flow stands for all of its cell, a link for all of its: it counts as often as each link is crossed by them.

    Returns:
        cells of links for each cell of ways, in the order of the route; and the weights, one for each entry.
    """
    ways = int(cells.way.max(initial=-1)) + 1
    links = int(cells.link.max(initial=-1)) + 1
    crossed = cells.link[traffic.routes.values]
    pair = cells.way[traffic.routes.rows()] * links + crossed
    if ways * links <= len(pair):  # few cells: counting is faster than sorting
        count = np.bincount(pair, minlength=ways * links)
        first = np.empty(ways * links, np.int64)
        first[pair[::-1]] = np.arange(len(pair))[::-1]  # what is written last stays: the first of each
        pairs = np.flatnonzero(count)
        first, count = first[pairs], count[pairs]
    else:
        pairs, first, count = np.unique(pair, return_index=True, return_counts=True)
    size = np.bincount(cells.link[cells.link >= 0], minlength=links)
    weight, rest = np.divmod(count, size[pairs % links])
    if rest.any():
        raise AssertionError("cells are not equitable: links of one cell are crossed by different numbers of flows")
    # The first entry of a pair is on the route of the first way of its cell, so this is the order of that route.
    order = np.lexsort((first, pairs // links))
    lengths = np.bincount(pairs // links, minlength=ways)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Ragged((pairs[order] % links).astype(np.int32), offsets), weight[order].astype(np.int32)


def alike(*columns: NDArray) -> NDArray[np.int64]:
    """A number for each row of columns of numbers, the same for equal rows."""
    return _joined(*(np.ascontiguousarray(c, np.float64).view(np.uint64) for c in columns)).view(np.int64)


# --- hashes ---------------------------------------------------------------------------------------------------------

_LOW = np.uint64((1 << 26) - 1)
_ODD = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def _plain(numbers: NDArray[np.int64]) -> Colours:
    return np.ascontiguousarray(numbers, np.int64).view(np.uint64)


def _mixed(x: Colours) -> Colours:
    """Every bit of the result depends on every bit of the number (the finaliser of splitmix64, Steele et al. 2014)."""
    x = x + _ODD[0]
    x = (x ^ (x >> np.uint64(30))) * _ODD[1]
    x = (x ^ (x >> np.uint64(27))) * _ODD[2]
    return x ^ (x >> np.uint64(31))


def _joined(*columns: Colours) -> Colours:
    """One hash of several, in this order."""
    joined = columns[0]
    for column in columns[1:]:
        joined = _mixed(joined * _ODD[0] + column)
    return joined


def _sums(row: NDArray[np.int64], colours: Colours, rows: int) -> Colours:
    """A hash of what is in each row, whatever the order: sums of two parts of 26 bits, exact in floating point."""
    mixed = _mixed(colours)
    low = np.bincount(row, (mixed & _LOW).astype(np.float64), rows)
    high = np.bincount(row, ((mixed >> np.uint64(26)) & _LOW).astype(np.float64), rows)
    return _mixed(low.astype(np.uint64) * _ODD[1] + high.astype(np.uint64))


def _count(colours: Colours) -> int:
    return len(np.unique(colours))


def _numbered(colours: Colours) -> NDArray[np.int64]:
    """Numbers for colours, in the order in which they first appear."""
    distinct = np.unique(colours)
    row = np.searchsorted(distinct, colours)
    first = np.empty(len(distinct), np.int64)
    first[row[::-1]] = np.arange(len(row))[::-1]  # what is written last stays: the first of each
    number = np.empty(len(distinct), np.int64)
    number[np.argsort(first)] = np.arange(len(distinct))
    return number[row]
