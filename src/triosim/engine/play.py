"""Playing a graph: what the rest of the program calls."""

from __future__ import annotations

from collections.abc import Callable

from triosim.engine import reference
from triosim.engine.graph import Graph, Played, Wires
from triosim.engine.solver import SOLVERS, NetworkModel

ENGINES: dict[str, Callable[[Graph, Wires, NetworkModel | None], Played]] = {"reference": reference.play}
"""The engines that are here, fastest first.  All give the same ticks."""


def play(graph: Graph, wires: Wires, solver: NetworkModel | str = "max-min") -> Played:
    """Play the graph from tick 0 until everything has ended, on the fastest engine that is here.

    Args:
        graph: the tasks.
        wires: the network that their transfers use.
        solver: how links are shared: a network model or the name of one.

    Raises:
        Stuck: some tasks can never start or end.
        InputError: no network model has that name, or the run is longer than 64 bits of picoseconds, 106 days.
        ValueError: the columns of the graph make no sense, or the model answers what cannot be.
    """
    engine = next(iter(ENGINES.values()))
    return engine(graph, wires, SOLVERS.get(solver)() if isinstance(solver, str) else solver)
