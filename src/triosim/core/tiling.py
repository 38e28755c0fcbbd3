"""Repeating one part of a sequence: where every item of the longer sequence comes from, and what refers to what.

A sequence (of operators, values, modules) is labelled with the *unit* that each item is in.  Units numbered one after
another are alike and refer to themselves, to the unit before and to the one after.  One of them, the *pattern*, is
repeated: whatever stands in it stands once more in each copy, next to it where the units ascend (a forward) or before
it where they descend (a backward).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass

NO_UNIT = -1
"""Label of what is in no unit."""


class NotRepeating(Exception):
    """The units are not alike, or refer to others than their neighbours."""


@dataclass(frozen=True)
class Tiling:
    """A sequence and the longer one in which its pattern is repeated.

    Attributes:
        unit: label of each item of the short sequence, shape ``(short,)``.
        pattern: label of the unit that is repeated.
        copies: how often it is repeated beside the original, which is copy 0.
        source, copy: for each item of the long sequence the short item that it comes from and the copy that it is in,
            shape ``(long,)``; copy 0 for what is not repeated.
    """

    unit: NDArray[np.int64]
    pattern: int
    copies: int
    source: NDArray[np.int64]
    copy: NDArray[np.int64]

    @staticmethod
    def of(unit: NDArray[np.int64], pattern: int, copies: int) -> Tiling:
        """The long sequence.

        Raises:
            NotRepeating: where the pattern stands neither ascending nor descending.
        """
        source, copy = laid(unit, pattern, copies)
        return Tiling(unit, pattern, copies, source, copy)

    def __len__(self) -> int:
        return len(self.source)

    def laid(self, unit: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Places of a list of labelled entries once the pattern's are repeated, and their copies.

        Raises:
            NotRepeating: as of :func:`laid`.
        """
        return laid(unit, self.pattern, self.copies)

    def _placed(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Where items that are not repeated stand; place of an item within its unit; where copies of those stand."""
        found = self.__dict__.get("_where")
        if found is None:
            first = np.zeros(len(self.unit), np.int64)
            original = self.copy == 0
            first[self.source[original]] = np.flatnonzero(original)
            within = within_unit(self.unit)
            inside = self.unit[self.source] == self.pattern
            items = int(np.count_nonzero(self.unit == self.pattern))
            copied = np.zeros((items, self.copies + 1), np.int64)
            copied[within[self.source[inside]], self.copy[inside]] = np.flatnonzero(inside)
            found = self.__dict__["_where"] = first, within, copied
        return found

    def find(
        self, items: NDArray[np.int64], by: NDArray[np.int64], copy: NDArray[np.int64], exact: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Where what short items refer to stands in the long sequence.

        Args:
            items: what is referred to, of the short sequence.
            by: label of what refers to it.
            copy: the copy in which that is.
            exact: where ``copy`` is that of the item itself, whatever refers to it.

        Raises:
            NotRepeating: something refers to the pattern that is neither in it nor next to it.
        """
        first, within, copied = self._placed()
        to, last, inside = self.unit[items], self.copies, by == self.pattern
        wanted = np.where(exact | inside, copy, np.where(by > self.pattern, last, 0))
        own = to == self.pattern
        if np.any(own & ~exact & (np.abs(by - self.pattern) > 1)) or np.any(own & ~exact & (by == NO_UNIT)):
            raise NotRepeating("what is not next to it refers to the pattern")
        before = inside & ~exact & (to == self.pattern - 1) & (copy > 0)
        after = inside & ~exact & (to == self.pattern + 1) & (copy < last)
        repeated = own | before | after
        wanted = wanted - before + after
        found = first[items]
        place = within[items[repeated]]
        if np.any(place >= len(copied)):
            raise NotRepeating("a unit has more than the pattern")
        found[repeated] = copied[place, wanted[repeated]]
        return found


def within_unit(unit: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of each item among those of its unit, in order."""
    order = np.argsort(unit, kind="stable")
    ordered = unit[order]
    begins = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
    lengths = np.diff(np.append(begins, len(unit)))
    place = np.empty(len(unit), np.int64)
    place[order] = np.arange(len(unit)) - np.repeat(begins, lengths)
    return place


def laid(unit: NDArray[np.int64], pattern: int, copies: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Source and copy of each item once the pattern is repeated (:attr:`Tiling.source`, :attr:`Tiling.copy`).

    Raises:
        NotRepeating: where the pattern stands neither ascending nor descending.
    """
    inside = np.concatenate([[False], unit == pattern, [False]])
    change = np.flatnonzero(inside[1:] != inside[:-1])
    source, copy, done = [], [], 0
    for begin, end in zip(change[::2].tolist(), change[1::2].tolist(), strict=True):
        left = int(unit[begin - 1]) if begin else NO_UNIT
        right = int(unit[end]) if end < len(unit) else NO_UNIT
        ascends = left == pattern - 1 or right == pattern + 1
        descends = left == pattern + 1 or right == pattern - 1
        if ascends == descends:
            raise NotRepeating("a pattern without neighbours")
        numbers = np.arange(copies + 1) if ascends else np.arange(copies, -1, -1)
        source += [np.arange(done, begin), np.tile(np.arange(begin, end), copies + 1)]
        copy += [np.zeros(begin - done, np.int64), np.repeat(numbers, end - begin)]
        done = end
    source.append(np.arange(done, len(unit)))
    copy.append(np.zeros(len(unit) - done, np.int64))
    return np.concatenate(source), np.concatenate(copy)


@dataclass(frozen=True)
class Contraction:
    """A sequence and the shorter one in which units between two others are left out.

    Attributes:
        unit: label of each item of the long sequence, shape ``(long,)``.
        pattern: label of the last unit before those that are left out.
        dropped: how many are.
        source: for each item of the short sequence the long item that it is, shape ``(short,)``.
    """

    unit: NDArray[np.int64]
    pattern: int
    dropped: int
    source: NDArray[np.int64]

    @staticmethod
    def of(unit: NDArray[np.int64], pattern: int, dropped: int) -> Contraction:
        """The short sequence.

        Raises:
            NotRepeating: the units do not have equally many items.
        """
        inside = unit[(unit >= pattern) & (unit <= pattern + dropped + 1)] - pattern
        if len(inside) and len(set(np.bincount(inside, minlength=dropped + 2).tolist())) > 1:
            raise NotRepeating("units have different numbers of items")
        out = (unit > pattern) & (unit <= pattern + dropped)
        return Contraction(unit, pattern, dropped, np.flatnonzero(~out))

    def __len__(self) -> int:
        return len(self.source)

    @property
    def copy(self) -> NDArray[np.int64]:
        """Nothing is repeated."""
        return np.zeros(len(self.source), np.int64)

    @property
    def units(self) -> NDArray[np.int64]:
        """Labels of the short sequence."""
        unit = self.unit[self.source]
        return np.where(unit > self.pattern, unit - self.dropped, unit)

    def laid(self, unit: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Places of a list that stay, and their copy."""
        stay = np.flatnonzero((unit <= self.pattern) | (unit > self.pattern + self.dropped))
        return stay, np.zeros(len(stay), np.int64)

    def find(
        self, items: NDArray[np.int64], by: NDArray[np.int64], copy: NDArray[np.int64], exact: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Where what long items refer to stands in the short sequence; arguments as of :meth:`Tiling.find`.

        Raises:
            NotRepeating: something refers to what is left out that is not next to it.
        """
        number = np.full(len(self.unit), NO_UNIT, np.int64)
        number[self.source] = np.arange(len(self.source))
        found = number[items]
        away = np.flatnonzero(found == NO_UNIT)
        if not away.size:
            return found
        to, by, last = self.unit[items[away]], by[away], self.pattern + self.dropped + 1
        on = (by == self.pattern) & (to == self.pattern + 1)
        back = (by == last) & (to == last - 1)
        if not np.all(on | back):
            raise NotRepeating("what is not next to them refers to units that are left out")
        within = within_unit(self.unit)
        table = np.stack([np.flatnonzero(self.unit == self.pattern), np.flatnonzero(self.unit == last)])
        found[away] = number[table[on.astype(np.int64), within[items[away]]]]
        return found
