"""Tables whose columns refer to rows of each other, and all of them with one part repeated or left out.

What :mod:`triosim.core.tiling` says of one sequence is done here to tables that belong together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged, distinct
from triosim.core.dataclass import dataclass
from triosim.core.tiling import NO_UNIT, Contraction, Tiling

Change = Tiling | Contraction
Column = NDArray[Any] | Ragged | tuple[str, ...]


@dataclass(frozen=True)
class RelatedTable:
    """A table.

    Attributes:
        unit: label of each row, shape ``(rows,)``.
        columns: by name.
        refers: columns that hold rows of a table, and its name: negative for none, its length for after all.
        along: lists that have an entry for each entry of another column's lists.
        named: columns of texts that name a unit.
    """

    unit: NDArray[np.int64]
    columns: Mapping[str, Column]
    refers: Mapping[str, str] = field(default_factory=dict)
    along: Mapping[str, str] = field(default_factory=dict)
    named: frozenset[str] = frozenset()


Renaming = Sequence[Sequence[tuple[str, str]]]
"""For each copy beside the original, names of the pattern's parts and what they are called there."""


@dataclass(frozen=True)
class ChangedTables:
    """Tables after a change.

    Attributes:
        columns: by table and name.
        change: of each table.
        spanning: rows of the changed tables whose lists have become longer or shorter.
    """

    columns: Mapping[str, Mapping[str, Any]]
    change: Mapping[str, Change]
    spanning: Mapping[str, NDArray[np.int64]]


def changed(tables: Mapping[str, RelatedTable], change: Mapping[str, Change], renaming: Renaming = ()) -> ChangedTables:
    """All tables, each with its change.

    Raises:
        NotRepeating: something refers to what is repeated or left out that is not next to it.
    """
    found: dict[str, dict[str, Any]] = {}
    spanning: dict[str, NDArray[np.int64]] = {}
    for name, table in tables.items():
        own = change[name]
        by, copy = table.unit[own.source], own.copy
        new: dict[str, Any] = {}
        taken: dict[str, _Lists] = {}
        for title, column in table.columns.items():
            to = table.refers.get(title)
            if isinstance(column, tuple):
                new[title] = _texts(column, own, renaming if title in table.named else ())
            elif isinstance(column, Ragged):
                lists = taken.get(table.along.get(title, ""))
                if lists is None:
                    other = change[to] if to else None
                    lists = taken[title] = _Lists.of(column, own, table.unit, other)
                values = column.values[lists.entries]
                if to is not None:
                    rows = np.repeat(np.arange(len(own)), np.diff(lists.offsets))
                    values = _refer(
                        values, change[to], by[rows], np.where(lists.exact, lists.copy, copy[rows]), lists.exact
                    )
                new[title] = Ragged(values, lists.offsets)
            elif to is not None:
                new[title] = _refer(column[own.source], change[to], by, copy, np.zeros(len(own), bool))
            else:
                new[title] = column[own.source]
        longer = [one.rows for one in taken.values()]
        spanning[name] = distinct(np.concatenate(longer)) if longer else np.zeros(0, np.int64)
        found[name] = new
    return ChangedTables(found, change, spanning)


def _refer(
    column: NDArray[Any], to: Change, by: NDArray[np.int64], copy: NDArray[np.int64], exact: NDArray[np.bool_]
) -> NDArray[Any]:
    """Rows of a changed table instead of the rows of the table; negative ones and the end stay."""
    at = np.flatnonzero((column >= 0) & (column < len(to.unit)))
    out = np.where(column >= 0, len(to), column)
    out[at] = to.find(column[at].astype(np.int64), by[at], copy[at], exact[at])
    return out.astype(column.dtype)


def _texts(column: tuple[str, ...], own: Change, renaming: Renaming) -> tuple[str, ...]:
    """Texts of the changed table, those of copies with the copy's names."""
    taken = [column[row] for row in own.source.tolist()]
    if renaming:
        filled = np.fromiter(map(bool, column), bool, len(column))
        at = np.flatnonzero(filled[own.source] & (own.copy > 0))
        for row, copy in zip(at.tolist(), own.copy[at].tolist(), strict=True):
            taken[row] = renamed(taken[row], renaming[copy - 1])
    return tuple(taken)


def renamed(text: str, names: Sequence[tuple[str, str]]) -> str:
    """A text that begins with the path of something, with its new path."""
    for old, new in names:
        if text.startswith(old) and text[len(old) : len(old) + 1] in ("", ".", " "):
            return new + text[len(old) :]
    return text


@dataclass(frozen=True)
class _Lists:
    """Which entries of a column's lists a changed table has.

    Attributes:
        entries: of the flat column.
        offsets: where each row's begin.
        copy, exact: of each entry: the copy that it is of, where that is known from its place in the list.
        rows: rows whose lists are longer or shorter.
    """

    entries: NDArray[np.int64]
    offsets: NDArray[np.int64]
    copy: NDArray[np.int64]
    exact: NDArray[np.bool_]
    rows: NDArray[np.int64]

    @staticmethod
    def of(column: Ragged, own: Change, unit: NDArray[np.int64], to: Change | None) -> _Lists:
        """Entries of a column; what is in no unit lists all units, so its lists change with them."""
        numbers = Ragged(np.arange(len(column.values)), column.offsets)
        source, copies, spanning = own.source, [np.zeros(len(column.values), np.int64)], np.zeros(0, np.int64)
        exact = [np.zeros(len(column.values), bool)]
        if to is not None:
            labels = to.unit[column.values]
            lists = unit[column.rows()] == NO_UNIT
            gone = labels > to.pattern if isinstance(to, Contraction) else labels == to.pattern
            if isinstance(to, Contraction):
                gone &= labels <= to.pattern + to.dropped
            rows = distinct(column.rows()[lists & gone])
            parts = [numbers]
            source = source.copy()
            for row in rows.tolist():
                begin, end = int(column.offsets[row]), int(column.offsets[row + 1])
                places, copy = to.laid(labels[begin:end])
                source[source == row] = len(column) + len(parts) - 1
                parts.append(Ragged(begin + places, np.array([0, len(places)], np.int64)))
                copies.append(copy)
                exact.append(np.ones(len(copy), bool))
            if len(parts) > 1:
                numbers = Ragged.stacked(parts)
            spanning = np.flatnonzero(source >= len(column))
        where = Ragged(np.arange(len(numbers.values)), numbers.offsets).take(source)
        flat = where.values
        return _Lists(
            numbers.values[flat], where.offsets, np.concatenate(copies)[flat], np.concatenate(exact)[flat], spanning
        )
