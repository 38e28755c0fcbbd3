"""Classes of ranks, transfers and links (*cells*) that nothing in a job tells apart, found by colour refinement.

What happens to a rank depends on what came before and on what shares links with it, on nothing else.  So two ranks are
told apart if they run different programs, if one meets in a collective those whom none of the other's kind meets, if
one gets what was sent by a rank that is told apart from the other's sender, or if a transfer goes over links that carry
something else.  Whom two ranks send to does not tell them apart, nor does the place in a ring of a slow member of their
group: a collective begins when the last of its members has come, whoever that is.  Colours are refined by those of such
neighbours until no colour splits any more (the one-dimensional Weisfeiler-Leman algorithm, Weisfeiler and Leman 1968).
Everything of one colour starts and ends at the same ticks, so one of each can be played for all.

Then transfers of a collective that end at different ranks are parted, for a pattern has ends, and links that those do
not cross equally often with them; what that parts of ranks and groups is refined again.  In the end links of a cell are
crossed by equally many transfers of each cell, and one can stand for all where links are shared as well.

Colours are 64-bit hashes of what a thing is and of the sum of its neighbours' hashes.
"""

from __future__ import annotations

from collections.abc import Callable

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
    """Everything that can be sent in a job, each route once: ``w`` routes between ``p`` endpoints.

    Attributes:
        endpoint_like: endpoints with different numbers are never alike, shape ``(p,)``, int64.  They are the
            ranks, then whatever else sends or receives.
        source, target: endpoints of each route, shape ``(w,)``.
        begun_by: the endpoint that begins each route, or -1 - g where group g does together, shape ``(w,)``, int64.
        way_like: routes with different numbers are never alike, shape ``(w,)``, int64.
        needs: routes that each route waits for.
        lag: by how many transfers those are ahead, one for each entry of ``needs``, int64.
        routes: links of each route, in order.
        link_like: links with different numbers are never alike, shape ``(links,)``, int64.
        members: endpoints of each group that acts together.
    """

    endpoint_like: NDArray[np.int64]
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    begun_by: NDArray[np.int64]
    way_like: NDArray[np.int64]
    needs: Ragged
    lag: NDArray[np.int64]
    routes: Ragged
    link_like: NDArray[np.int64]
    members: Ragged


@dataclass(frozen=True)
class RankClasses:
    """The cell of every rank, route, link and group; cells are equivalence classes, in the order
    of their first members.

    Attributes:
        endpoint, route, link, group: cell of each; links that no route uses have cell -1.
    """

    endpoint: NDArray[np.int64]
    route: NDArray[np.int64]
    link: NDArray[np.int64]
    group: NDArray[np.int64]


def separate(traffic: Traffic) -> RankClasses:
    """A cell for everything: nothing is folded."""
    sizes = (traffic.endpoint_like, traffic.source, traffic.link_like, traffic.members)
    return RankClasses(*(np.arange(len(size)) for size in sizes))


def refine(traffic: Traffic) -> RankClasses:
    """The coarsest cells whose members nothing tells apart."""
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
        column(t.endpoint_like), column(t.source), column(t.target), column(t.begun_by), column(t.way_like), needs,
        column(t.lag), routes, column(t.link_like), members,
    )  # fmt: skip


def refined(traffic: Traffic) -> RankClasses:
    """The same, without a compiler."""
    return _Refinement(traffic).run()


class _Refinement:
    """Colours of everything, and how they are refined."""

    def __init__(self, traffic: Traffic) -> None:
        t = self.traffic = traffic
        self.endpoints, self.route_count, self.links, self.groups = (
            len(column) for column in (t.endpoint_like, t.source, t.link_like, t.members)
        )
        self.route_of, self.need_of, self.group_of = t.routes.rows(), t.needs.rows(), t.members.rows()
        along = np.arange(len(self.route_of))
        self.place = along - np.repeat(t.routes.offsets[:-1], t.routes.lengths())  # in the route
        self.alone = t.begun_by >= 0
        self.used = np.zeros(self.links, bool)
        self.used[t.routes.values] = True
        self.endpoint, self.link = _mixed(_plain(t.endpoint_like)), _mixed(_plain(t.link_like))
        self.kind = _mixed(_plain(t.way_like))
        self.route: Colours = self.kind
        self.group = np.zeros(self.groups, np.uint64)

    def run(self) -> RankClasses:
        """Refine until nothing splits any more."""
        while True:
            self.route = self.kind
            self._until_stable(self._by_the_past)
            known, link = (_count(self.endpoint), _count(self.group)), self.link
            self._part()
            if (_count(self.endpoint), _count(self.group)) == known:
                break
            self.link = link  # how links were parted tells nothing of the past
        cell = np.full(self.links, -1, np.int64)
        cell[self.used] = _numbered(self.link[self.used])
        return RankClasses(_numbered(self.endpoint), _numbered(self.route), cell, _numbered(self.group))

    def _until_stable(self, refine: Callable[[], None]) -> None:
        known: tuple[int, ...] = ()
        while (found := self._counts()) != known:
            known = found
            refine()

    def _counts(self) -> tuple[int, ...]:
        return tuple(map(_count, (self.endpoint, self.route, self.link[self.used], self.group)))

    def _by_the_past(self) -> None:
        """One round: every colour with those of what comes before, or shares links."""
        t = self.traffic
        self.group = _joined(self.group, _sums(self.group_of, self.endpoint[t.members.values], self.groups))
        begun = np.empty(self.route_count, np.uint64)
        begun[self.alone] = self.endpoint[t.begun_by[self.alone]]
        begun[~self.alone] = self.group[-1 - t.begun_by[~self.alone]]
        before = _sums(self.need_of, _mixed(self.route[t.needs.values] + _mixed(_plain(t.lag))), self.route_count)
        self.route = _joined(self.kind, begun, self._over(), before)
        self.endpoint = _joined(
            self.endpoint, self._at(t.source), self._at(t.target),
            _sums(t.members.values, self.group[self.group_of], self.endpoints),
        )  # fmt: skip
        self.link = self._crossed()

    def _part(self) -> None:
        """Routes of groups by their ends, links and routes by each other; groups and endpoints by what they begin."""
        t = self.traffic
        ends = self.endpoint[t.source], self.endpoint[t.target]
        self.route = np.where(self.alone, self.route, _joined(self.route, *ends))
        self._until_stable(self._by_links)
        together = -1 - t.begun_by[~self.alone]
        self.group = _joined(self.group, _sums(together, self.route[~self.alone], self.groups))
        begun = _sums(t.begun_by[self.alone], self.route[self.alone], self.endpoints)
        self.endpoint = _joined(
            self.endpoint, begun, _sums(t.members.values, self.group[self.group_of], self.endpoints)
        )  # fmt: skip

    def _by_links(self) -> None:
        self.link = self._crossed()
        self.route = _joined(self.route, self._over())

    def _at(self, ends: NDArray[np.int64]) -> Colours:
        """A hash of the routes that each endpoint is at this end of."""
        return _sums(ends, self.route, self.endpoints)

    def _over(self) -> Colours:
        """A hash of the links that each route crosses."""
        links = self.link[self.traffic.routes.values]
        return _sums(self.route_of, _mixed(links + _plain(self.place)), self.route_count)

    def _crossed(self) -> Colours:
        """Links with the routes that cross them."""
        return _joined(self.link, _sums(self.traffic.routes.values, self.route[self.route_of], self.links))


def weights(traffic: Traffic, cells: RankClasses) -> tuple[Ragged, NDArray[np.int32]]:
    """Cells of routes over cells of links, and how often a flow of each counts on each.

    A flow stands for all of its cell, a link for all of its: it counts as often as each link is crossed by them.

    Returns:
        cells of links for each cell of routes, in the order of the route; and the weights, one for each entry.
    """
    routes = int(cells.route.max(initial=-1)) + 1
    links = int(cells.link.max(initial=-1)) + 1
    crossed = cells.link[traffic.routes.values]
    pair = cells.route[traffic.routes.rows()] * links + crossed
    if routes * links <= len(pair):  # few cells: counting is faster than sorting
        count = np.bincount(pair, minlength=routes * links)
        first = np.empty(routes * links, np.int64)
        first[pair[::-1]] = np.arange(len(pair))[::-1]  # what is written last stays: the first of each
        pairs = np.flatnonzero(count)
        first, count = first[pairs], count[pairs]
    else:
        pairs, first, count = np.unique(pair, return_index=True, return_counts=True)
    size = np.bincount(cells.link[cells.link >= 0], minlength=links)
    weight, rest = np.divmod(count, size[pairs % links])
    if rest.any():
        raise AssertionError("cells are not equitable: links of one cell are crossed by different numbers of flows")
    # The first entry of a pair is on the route of the first route of its cell, so this is the order of that route.
    order = np.lexsort((first, pairs // links))
    lengths = np.bincount(pairs // links, minlength=routes)
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
