"""The engine in C++: the same ticks as :mod:`triosim.engine.reference`, many times faster.

It is there where a compiler was when TrioSim was installed.  The network models max-min and equal-split are built in,
and circuits where every route is one link; any other is asked in Python, once for each instant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

import triosim.engine._native as _native
from triosim.engine.column_types import typed_columns
from triosim.engine.graph import EngineNetwork, Graph, GraphRun, Stuck
from triosim.engine.solver import NetworkModel
from triosim.engine.solvers.equal_split import EqualSplit
from triosim.engine.solvers.max_min import MaxMin

if TYPE_CHECKING:
    from triosim.engine.solvers.circuit import CircuitRules

BUILT_IN: dict[type[NetworkModel], str] = {MaxMin: "max-min", EqualSplit: "equal-split"}
"""Network models that the engine need not ask in Python on any network."""

CIRCUIT = "circuit"
"""One that it need not ask on some."""

WAYS = ("ripples", "levels", "turns")
"""How max-min fair rates can be found: around what changes (native/maxmin.hpp), from the lowest level that changes
upwards (native/levels.hpp), or by these in turn."""


def play(
    graph: Graph,
    wires: EngineNetwork,
    model: NetworkModel | None = None,
    *,
    _closed_form: bool = True,
    _formulas: bool = True,
    _rates: str = "",
) -> GraphRun:
    """Play the graph from tick 0 until everything has ended; see :func:`triosim.engine.reference.play`.

    Args:
        graph: the tasks.
        wires: the network that their transfers use.
        model: how links are shared; max-min fair if None.
        _closed_form: for tests: if False, the model is asked about collectives that share no link as well.
        _formulas: for tests and benchmarks: if False, these are played transfer by transfer.
        _rates: for tests: one of :data:`WAYS`, how max-min fair rates are found; as seems quickest if not given.

    Raises:
        Stuck: some tasks can never start or end.
        TimeOverflow: the run is longer than 64 bits of picoseconds, 106 days.
        InputError: more bytes cross a link than 64 bits can count, or the model answers what cannot be.
        ValueError: the columns make no sense.
    """
    model = model or MaxMin()
    if wires.weights is not None and not model.weighted:
        from triosim.engine.check import check

        check(graph, wires)
        raise ValueError(f"{type(model).__name__} does not understand weights: unfold the job")
    fit = typed_columns(graph, wires)
    how, rules = built_in(model, fit[1]) or (model, None)
    if _rates and how == BUILT_IN[MaxMin]:
        how = f"{how} by {_rates}"
    try:
        played = _native.play(*fit, how, _closed_form, _formulas, rules)
    except _native.Refused as error:
        raise _why_refused(graph, wires, error) from None
    start, begin, finish, link_bytes, flows, events, ended, counted, over = played
    if not counted:
        from triosim.engine.check import too_long

        raise too_long()
    if not ended:
        from triosim.engine.check import why_stuck

        raise Stuck(why_stuck(graph, start.tolist(), finish.tolist()))
    if over >= 0:
        from triosim.engine.check import too_much

        raise too_much(over)
    return GraphRun(start, begin, finish, link_bytes, flows, events, "native")


def built_in(model: NetworkModel, wires: EngineNetwork) -> tuple[str, CircuitRules | None] | None:
    """Name of a network model that need not be asked in Python on this network, and its rules; None for any other."""
    if type(model) in BUILT_IN:
        return BUILT_IN[type(model)], None
    from triosim.engine.solvers.circuit import Circuit  # few runs ask for circuits

    rules = model.rules(wires) if type(model) is Circuit else None  # another class may do something else
    return None if rules is None else (CIRCUIT, rules)


def play_many(
    graph: Graph,
    wires: EngineNetwork,
    model: NetworkModel,
    kind: NDArray[np.int32],
    factors: NDArray[np.float64],
    links: NDArray[np.float64],
) -> NDArray[np.int64] | None:
    """When the last task ends in each of many draws; see :func:`triosim.engine.monte_carlo.play_many`.

    Args:
        graph: the tasks.
        wires: the network.
        model: how links are shared.
        kind, factors, links: as there.

    Returns:
        -1 for a draw of which not all tasks end; None for a model that must be asked in Python.

    Raises:
        ValueError: the columns make no sense.
    """
    fit = typed_columns(graph, wires)
    found = built_in(model, fit[1])
    if found is None:
        return None
    how, rules = found
    try:
        return _native.play_many(*fit, how, kind, factors, links, rules)
    except _native.Refused as error:
        raise _why_refused(graph, wires, error) from None


def replay(
    graph: Graph,
    kind: NDArray[np.int32],
    fixed: NDArray[np.float64],
    shared: NDArray[np.float64],
    factors: NDArray[np.float64],
    longer: NDArray[np.float64],
    at: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], bool]:
    """The longest way through the tasks in each of many draws; see :func:`triosim.engine.longest_path.longest_path`.

    Returns:
        Ends of the draws, those of the tasks asked for, flat, and whether all tasks end.

    Raises:
        ValueError: the columns make no sense.
    """
    return _native.replay(graph, kind, fixed, shared, factors, longer, at)


def _why_refused(graph: Graph, wires: EngineNetwork, error: ValueError) -> ValueError:
    """What makes no sense in columns that the engine did not take."""
    from triosim.engine.check import check

    check(graph, wires)
    return error
