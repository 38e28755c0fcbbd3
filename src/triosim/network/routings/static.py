"""Routes that the user writes down."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from triosim.core import guarded
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted, unknown
from triosim.core.registry import registered
from triosim.hardware.system import System
from triosim.network.routing import Given, Routing

KEYS = ("from", "to", "via", "both")


@registered
@dataclass(frozen=True)
class Static(Routing):
    """Routes by a table; pairs that are not in it take the lowest of the best routes.

    The table is a TOML or YAML file::

        [[route]]
        from = "gpu0"
        to = "gpu3"
        via = ["gpu1", "gpu2"]      # the nodes between, in order
        both = false                # the way back too if true

    From each node the lowest-numbered link to the next is taken.

    Attributes:
        table: the file.
        pxn: see :class:`Routing`; for pairs that are not in the table.
    """

    table: str | None = None
    pxn: bool = True

    def given(self, system: System) -> Given:
        """See :meth:`Routing.given`."""
        if not self.table:
            raise InputError("routing static needs a table of routes: give option table, for example table=routes.toml")
        path = Path(self.table)
        rows = guarded.document(path, "a table of keys with [[route]] tables").get("route")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise InputError(f"{path}: must hold [[route]] tables with from, to and via")
        numbers = {name: number for number, name in enumerate(system.node_names)}
        found: dict[tuple[int, int], tuple[int, ...]] = {}
        for i, row in enumerate(rows):
            where = f"{path}: route #{i + 1}"
            for names in _routes(row, where):
                nodes = [_node(name, numbers, where) for name in names]
                if len(set(nodes)) < len(nodes):
                    raise InputError(f"{where}: passes {quoted(_twice(names))} twice: name each node once")
                if found.setdefault((nodes[0], nodes[-1]), ()):
                    raise InputError(f"{where}: {quoted(names[0])} to {quoted(names[-1])} is given twice: give it once")
                found[nodes[0], nodes[-1]] = tuple(_edge(system, a, b, where) for a, b in pairwise(nodes))
        return found


def _routes(row: dict[str, Any], where: str) -> list[list[str]]:
    """The nodes of a route by name, and of the way back if it is asked for."""
    for key in row:
        if key not in KEYS:
            raise unknown("key", str(key), KEYS, f"in {where}")
    via = row.get("via", [])
    names = [row.get("from"), *(via if isinstance(via, list) else [None]), row.get("to")]
    both = row.get("both", False)
    if not all(isinstance(name, str) for name in names):
        raise InputError(f"{where}: from and to must be names of nodes, and via a list of such names")
    if not isinstance(both, bool):
        raise InputError(f"{where}: both must be true or false, got {quoted(both)}")
    return [names, names[::-1]] if both else [names]


def _node(name: str, numbers: dict[str, int], where: str) -> int:
    if name not in numbers:
        raise unknown("node", name, numbers, f"in {where}")
    return numbers[name]


def _twice(names: list[str]) -> str:
    return next(name for name in names if names.count(name) > 1)


def _edge(system: System, a: int, b: int, where: str) -> int:
    edges = system.leaving[a]
    there = edges[system.edge_target[edges] == b]
    if not len(there):
        names = system.node_names
        reached = ", ".join(names[node] for node in np.unique(system.edge_target[edges])[:8].tolist())
        raise InputError(
            f"{where}: no link leads from {quoted(names[a])} to {quoted(names[b])}; links lead to {reached}"
        )
    return int(there[0])
