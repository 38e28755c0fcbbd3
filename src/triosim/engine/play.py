"""Playing a graph: what the rest of the program calls."""

from __future__ import annotations

import os
from collections.abc import Callable

from triosim.core.errors import InputError
from triosim.engine.graph import EngineNetwork, Graph, GraphRun
from triosim.engine.solver import SOLVERS, NetworkModel

Engine = Callable[[Graph, EngineNetwork, NetworkModel | None], GraphRun]

VARIABLE = "TRIOSIM_ENGINE"
"""Environment variable that names the engine to use instead of the fastest."""


def _installed() -> dict[str, Engine]:
    try:
        from triosim.engine import native
    except ImportError as error:
        if error.name != "triosim.engine._native":
            raise
        return {"reference": _reference}  # there was no compiler when TrioSim was installed
    return {"native": native.play, "reference": _reference}


def _reference(graph: Graph, wires: EngineNetwork, model: NetworkModel | None = None, **how: bool) -> GraphRun:
    from triosim.engine import reference  # a thousand lines, which are seldom needed where the native engine is

    return reference.play(graph, wires, model, **how)


ENGINES: dict[str, Engine] = _installed()
"""The engines that are here, fastest first.  All give the same ticks."""


def selected_engine() -> str:
    """Name of the engine that plays: the fastest that is here, or the one that :data:`VARIABLE` names.

    Raises:
        InputError: the variable names an engine that is not here.
    """
    name = os.environ.get(VARIABLE, "").strip().lower()
    if not name:
        return next(iter(ENGINES))
    if name == "native" and name not in ENGINES:
        raise InputError(
            f"{VARIABLE}=native: the native engine was not built when TrioSim was installed; install it again with a "
            f"C++20 compiler, or unset {VARIABLE}"
        )
    if name not in ENGINES:
        raise InputError(f"{VARIABLE}={name}: unknown engine, known are native and reference")
    return name


def play(graph: Graph, wires: EngineNetwork, solver: NetworkModel | str = "max-min") -> GraphRun:
    """Play the graph from tick 0 until everything has ended, on the fastest engine that is here.

    Args:
        graph: the tasks.
        wires: the network that their transfers use.
        solver: how links are shared: a network model or the name of one.

    Raises:
        Stuck: some tasks can never start or end.
        InputError: no network model or engine has that name, or the run lasts more than 106 days (64 bits).
        ValueError: the columns of the graph make no sense, or the model answers what cannot be.
    """
    return ENGINES[selected_engine()](graph, wires, SOLVERS.get(solver)() if isinstance(solver, str) else solver)
