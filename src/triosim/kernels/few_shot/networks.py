"""What networks of a search space are made of, read from their names.

Three ways to write a network:

* a *cell* of operators between numbered nodes, as NAS-Bench-201 writes it (Dong, Yang: ICLR 2020):
  ``|conv~0|+|none~0|skip~1|+|pool~0|conv~1|conv~2|`` says what leads from nodes 0, 1, 2 to nodes 1, 2, 3;
* *blocks* in a row, as FBNet's: ``k3_e1|skip|k5_e6``, equally many in every network;
* a *name*, of which only what was measured is known.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted

CELLS, BLOCKS, NAMES = "cells", "blocks", "names"
"""The ways to write a network."""
ABSENT = "none"
"""Operator of a cell that stands for no edge."""
_MOST_PLACES = 512


@dataclass(frozen=True)
class NetworkSet:
    """Networks of one search space.

    Attributes:
        space: one of :data:`CELLS`, :data:`BLOCKS`, :data:`NAMES`.
        names: as they were written.
        operators: all that occur, sorted; :data:`ABSENT` is none.
        edges: of a cell, from which node to which; of blocks ``(i, i + 1)``.
        codes: index of the operator on each edge, -1 for none; shape ``(networks, edges)``.
        live: whether what the operator makes reaches the end; shape ``(networks, edges)``.  Converters drop what
            is not.
        connected: whether any path leads from the beginning to the end; without one the result is a constant.
    """

    space: str
    names: tuple[str, ...]
    operators: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]
    codes: NDArray[np.int64]
    live: NDArray[np.bool_]
    connected: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.names)

    def counts(self, operators: Sequence[str], only_live: bool) -> NDArray[np.float64]:
        """How often each network runs each of these operators.

        Returns:
            Shape ``(networks, operators)``.
        """
        codes = self._codes(operators, only_live)
        return (codes[:, :, None] == np.arange(len(operators))).sum(axis=1).astype(np.float64)

    def one_hot(self, operators: Sequence[str], only_live: bool) -> NDArray[np.float64]:
        """Which of these operators each network runs on each edge.

        Returns:
            Shape ``(networks, edges * operators)``, 0 or 1.
        """
        codes = self._codes(operators, only_live)
        return (codes[:, :, None] == np.arange(len(operators))).reshape(len(self), -1).astype(np.float64)

    def unknown(self, operators: Sequence[str]) -> list[str | None]:
        """For each network an operator that is not among these, None where all are."""
        known = set(operators)
        strange = np.array([*(name not in known for name in self.operators), False])[self.codes]
        found: list[str | None] = [None] * len(self)
        for row in np.flatnonzero(strange.any(axis=1)):
            found[row] = self.operators[self.codes[row, strange[row].argmax()]]
        return found

    def _codes(self, operators: Sequence[str], only_live: bool) -> NDArray[np.int64]:
        """Index among ``operators`` of what runs on each edge, -1 for nothing and for what is not among them."""
        at = {name: code for code, name in enumerate(operators)}
        codes = np.array([*(at.get(name, -1) for name in self.operators), -1])[self.codes]
        return np.where(self.live, codes, -1) if only_live else codes


def parse(names: Sequence[str], where: str) -> NetworkSet:
    """Networks by their names.

    Args:
        names: at least one, all of one search space.
        where: they were found, for messages.

    Raises:
        InputError: they are not of one search space, or too large.
    """
    first = names[0]
    if "~" in first:
        return _cells(names, where)
    if "|" in first:
        return _blocks(names, where)
    for name in names:
        if "|" in name:
            raise _mixed(name, first, where)
    empty = np.zeros((len(names), 0))
    return NetworkSet(
        NAMES, tuple(names), (), (), empty.astype(np.int64), empty.astype(bool), np.ones(len(names), bool)
    )


def _cells(names: Sequence[str], where: str) -> NetworkSet:
    rows: list[dict[tuple[int, int], str]] = []
    for name in names:
        row: dict[tuple[int, int], str] = {}
        for node, group in enumerate(name.split("+"), start=1):
            for word in group.strip("|").split("|"):
                operator, _, source = word.rpartition("~")
                if not operator or not source.isdecimal() or len(source) > 4 or int(source) >= node:
                    raise InputError(
                        f"{where}: {quoted(name)} is no cell such as |conv~0|+|none~0|conv~1|: write all networks alike"
                    )
                if row.setdefault((int(source), node), operator) is not operator or len(row) > _MOST_PLACES:
                    raise InputError(
                        f"{where}: {quoted(name)} has an edge twice, or over {_MOST_PLACES}: give each once"
                    )
        rows.append(row)
    edges = {edge: place for place, edge in enumerate(sorted({edge for row in rows for edge in row}))}
    operators = tuple(sorted({operator for row in rows for operator in row.values()} - {ABSENT}))
    at = {name: code for code, name in enumerate(operators)} | {ABSENT: -1}
    codes = np.full((len(names), len(edges)), -1)
    for number, row in enumerate(rows):
        for edge, operator in row.items():
            codes[number, edges[edge]] = at[operator]
    live, connected = _reach(codes >= 0, tuple(edges))
    return NetworkSet(CELLS, tuple(names), operators, tuple(edges), codes, live, connected)


def _reach(there: NDArray[np.bool_], edges: tuple[tuple[int, int], ...]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which edges lead to the last node, and whether the first one does; ``there``: (networks, edges)."""
    last = max(node for _, node in edges)
    arrives = np.zeros((len(there), last + 1), bool)  # at the last node, from each node
    arrives[:, last] = True
    for edge in sorted(range(len(edges)), key=lambda one: -edges[one][0]):
        source, node = edges[edge]
        arrives[:, source] |= there[:, edge] & arrives[:, node]
    live = there & arrives[:, [node for _, node in edges]]
    return live, arrives[:, 0]


def _blocks(names: Sequence[str], where: str) -> NetworkSet:
    rows = [name.split("|") for name in names]
    for name, row in zip(names, rows, strict=True):
        if len(row) != len(rows[0]) or not all(row) or "~" in name:
            raise _mixed(name, names[0], where)
    if len(rows[0]) > _MOST_PLACES:
        raise InputError(f"{where}: {quoted(names[0])} has more than {_MOST_PLACES} blocks: give smaller networks")
    operators = tuple(sorted({block for row in rows for block in row}))
    at = {name: code for code, name in enumerate(operators)}
    codes = np.array([[at[block] for block in row] for row in rows])
    everywhere = np.ones(codes.shape, bool)
    places = tuple((place, place + 1) for place in range(codes.shape[1]))
    return NetworkSet(BLOCKS, tuple(names), operators, places, codes, everywhere, np.ones(len(names), bool))


def _mixed(name: str, first: str, where: str) -> InputError:
    return InputError(f"{where}: {quoted(name)} is not of the search space of {quoted(first)}: give networks of one")
