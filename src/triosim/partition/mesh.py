"""The mesh: ranks arranged along named axes, and the groups that communicate along each.

The order of the axes is the placement on the machine: ranks are numbered with the last axis fastest, so its neighbours
are neighbours in the machine.  An axis is digits of the rank number, each a stride and a size; one that is made of
others (``dp`` of ``dp_replicate`` and ``dp_shard``) or cuts the same ranks anew (``ep`` out of ``dp x tp``, as
torchtitan's ``ParallelDims`` does) is digits too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from math import prod
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError

M = TypeVar("M", bound="Mesh")
Ranks = TypeVar("Ranks", int, NDArray[np.int64])


class RankDigit(NamedTuple):
    """Part of a rank number: ``rank // stride % size``."""

    stride: int
    size: int


@dataclass(frozen=True)
class Mesh:
    """Ranks along named axes.

    Attributes:
        axes: names and sizes, outermost first.
        derived: more axes over the same ranks: name and digits, outermost first.
        server: ranks of each server, which are neighbours; 0 where that is not known or differs.
        order: axes outermost first, those too that are to be carved from others; empty leaves them where they are cut.
    """

    axes: tuple[tuple[str, int], ...]
    derived: tuple[tuple[str, tuple[RankDigit, ...]], ...] = field(default=(), kw_only=True)
    server: int = field(default=0, kw_only=True)
    order: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return prod(size for _, size in self.axes)

    @property
    def names(self) -> tuple[str, ...]:
        """All axes, innermost first, then the derived ones.  Programs name an axis by its row here."""
        return (*(name for name, _ in reversed(self.axes)), *(name for name, _ in self.derived))

    def row(self, axis: str) -> int:
        """The row of an axis in :attr:`names`."""
        return self.names.index(axis)

    def digits(self, axis: str) -> tuple[RankDigit, ...]:
        """The digits of an axis, outermost first."""
        stride = 1
        for name, size in reversed(self.axes):
            if name == axis:
                return (RankDigit(stride, size),)
            stride *= size
        return dict(self.derived)[axis]

    def size(self, axis: str) -> int:
        """Ranks along an axis; 1 where there is no such axis."""
        return prod(digit.size for digit in self.digits(axis)) if axis in self.names else 1

    def joined(self: M, name: str, axes: Sequence[str]) -> M:
        """With one more axis that is several others, the first outermost."""
        return replace(self, derived=(*self.derived, (name, tuple(d for axis in axes for d in self.digits(axis)))))

    def carved(self: M, axis: str, name: str, size: int) -> M:
        """With an axis of its own that takes ``size`` from another and lies inside of it, or where the order has it.

        Ranks along it share what those along ``axis`` have one each of: a sample's sequence, for one.

        Raises:
            PlanError: the axis does not divide so.
        """
        whole = dict(self.axes)[axis]
        if size < 1 or whole % size or name in self.names:
            near = ", ".join(str(n) for n in range(1, whole + 1) if whole % n == 0)
            raise PlanError(f"{axis} {whole} has no room for an axis {name} of {size}: sizes that fit are {near}")
        rest = [(n, s // size) if n == axis else (n, s) for n, s in self.axes]
        names = [n for n, _ in rest]
        at = names.index(axis) + 1
        if name in self.order:
            inside = self.order[self.order.index(name) + 1 :]
            at = min((names.index(n) for n in inside if n in names), default=len(rest))
        return replace(self, axes=(*rest[:at], (name, size), *rest[at:]))

    def resplit(self: M, axes: Sequence[str], into: Sequence[tuple[str, int]]) -> M:
        """With more axes that divide the ranks of some others anew.

        Args:
            axes: which, the first outermost.
            into: names and sizes, outermost first; their product is that of the sizes of ``axes``.

        Raises:
            PlanError: the products differ, or an axis would take part of one and part of another that does not divide.
        """
        digits = [digit for axis in axes for digit in self.digits(axis)]
        whole, asked = prod(d.size for d in digits), prod(size for _, size in into)
        if whole != asked:
            sizes = " x ".join(f"{name} {size}" for name, size in into)
            raise PlanError(f"{sizes} makes {asked} ranks, but {' x '.join(axes)} has {whole}")
        found: list[tuple[str, tuple[RankDigit, ...]]] = []
        for name, size in reversed(into):
            own: list[RankDigit] = []
            while size > 1:
                stride, left = digits.pop()
                taken = min(size, left)
                if size % taken or left % taken:
                    raise PlanError(f"{name} {size} and what it is cut from, {left}, do not divide each other")
                own.insert(0, RankDigit(stride, taken))
                size //= taken
                if left > taken:
                    digits.append(RankDigit(stride * taken, left // taken))
            found.insert(0, (name, tuple(own) or (RankDigit(1, 1),)))
        return replace(self, derived=(*self.derived, *found))

    def position(self, rank: Ranks, axis: str) -> Ranks:
        """The place of ranks along an axis."""
        place = rank * 0
        for stride, size in self.digits(axis):
            place = place * size + rank // stride % size
        return place

    def moved(self, rank: Ranks, axis: str, place: int) -> Ranks:
        """The ranks that differ from these only in being at ``place`` along an axis."""
        for stride, size in reversed(self.digits(axis)):
            rank = rank + (place % size - rank // stride % size) * stride
            place //= size
        return rank

    def table(self, axis: str) -> NDArray[np.int64]:
        """The ranks that differ only in their place along an axis, in its order, shape ``(groups, size)``; groups by
        lowest rank."""
        ranks = np.arange(self.ranks)
        first = ranks[self.position(ranks, axis) == 0]
        step = np.zeros(1, np.int64)
        for stride, size in self.digits(axis):
            step = (step[:, None] + np.arange(size) * stride).reshape(-1)
        table: NDArray[np.int64] = first[:, None] + step
        return table

    def on_server(self, axis: str) -> int:
        """Ranks of a group of an axis that are on one server; 0 where that is not known or differs."""
        if not self.server:
            return 0
        found = {int(n) for group in self.table(axis) // self.server for n in np.unique(group, return_counts=True)[1]}
        return found.pop() if len(found) == 1 else 0

    def groups(self, axis: str) -> list[list[int]]:
        """The rows of :meth:`table` as lists."""
        return [group.tolist() for group in self.table(axis)]
