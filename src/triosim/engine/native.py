"""The engine in C++: the same ticks as :mod:`triosim.engine.reference`, many times faster.

It is there where a compiler was when TrioSim was installed.  The network models max-min and equal-split are built in;
any other is asked in Python, once for each instant.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

import triosim.engine._native as _native
from triosim.columns import Ragged
from triosim.engine.check import check, too_long, why_stuck
from triosim.engine.graph import Collective, Graph, Pattern, Played, Stuck, Wires
from triosim.engine.solver import NetworkModel
from triosim.engine.solvers.equal_split import EqualSplit
from triosim.engine.solvers.max_min import MaxMin

T = TypeVar("T", Graph, Wires, Pattern, Collective, Ragged)

BUILT_IN: dict[type[NetworkModel], str] = {MaxMin: "max-min", EqualSplit: "equal-split"}
"""Network models that the engine need not ask in Python."""

_DTYPES: dict[str, DTypeLike] = {
    **dict.fromkeys(["kind"], np.int8),
    **dict.fromkeys(["stream", "what", "member", "need", "instances", "values", "weights"], np.int32),
    **dict.fromkeys(["source", "target", "count", "lag", "route"], np.int32),
    **dict.fromkeys(["amount", "tokens", "offsets", "capacity", "latency", "bytes", "pause"], np.int64),
}


def play(
    graph: Graph,
    wires: Wires,
    model: NetworkModel | None = None,
    *,
    _closed_form: bool = True,
    _formulas: bool = True,
) -> Played:
    """Play the graph from tick 0 until everything has ended; see :func:`triosim.engine.reference.play`.

    Args:
        graph: the tasks.
        wires: the network that their transfers use.
        model: how links are shared; max-min fair if None.
        _closed_form: for tests: if False, the model is asked about collectives that share no link as well.
        _formulas: for tests and benchmarks: if False, these are played transfer by transfer.

    Raises:
        Stuck: some tasks can never start or end.
        InputError: the run is longer than 64 bits of picoseconds, 106 days, or the model answers what cannot be.
        ValueError: the columns make no sense.
    """
    model = model or MaxMin()
    if wires.weights is not None and not model.weighted:
        check(graph, wires)
        raise ValueError(f"{type(model).__name__} does not understand weights: unfold the job")
    played = _native.play(_graph(graph), _columns(wires), BUILT_IN.get(type(model), model), _closed_form, _formulas)
    if played is None:
        raise _why_refused(graph, wires)
    start, begin, finish, link_bytes, flows, events, ended, counted = played
    if not counted:
        raise too_long()
    if not ended:
        raise Stuck(why_stuck(graph, start.tolist(), finish.tolist()))
    return Played(start, begin, finish, link_bytes, flows, events, "native")


def play_many(
    graph: Graph,
    wires: Wires,
    model: NetworkModel,
    kind: NDArray[np.int32],
    factors: NDArray[np.float64],
    links: NDArray[np.float64],
) -> NDArray[np.int64] | None:
    """When the last task ends in each of many draws; see :func:`triosim.engine.many.play_many`.

    None where the model is not built in or the columns make no sense; -1 for a draw that does not end.
    """
    if type(model) not in BUILT_IN:
        return None
    found: NDArray[np.int64] | None = _native.play_many(
        _graph(graph), _columns(wires), BUILT_IN[type(model)], kind, factors, links
    )
    return found


def _graph(graph: Graph) -> Graph:
    """The graph with every column, those of its collectives included, as the engine reads it."""
    patterns = {id(c.pattern): _columns(c.pattern) for c in graph.collectives}
    collectives = tuple(_columns(replace(c, pattern=patterns[id(c.pattern)])) for c in graph.collectives)
    return _columns(replace(graph, collectives=collectives))


def _columns(table: T) -> T:
    """The table with columns that are contiguous and of the width that the engine reads."""
    changed: dict[str, Any] = {}
    for field in fields(table):
        column = getattr(table, field.name)
        if isinstance(column, Ragged):
            changed[field.name] = _columns(column)
        elif column is not None and field.name in _DTYPES:
            changed[field.name] = _column(column, field.name, _DTYPES[field.name])
    return replace(table, **changed)


def _column(column: NDArray, name: str, dtype: DTypeLike) -> NDArray:
    if column.dtype == dtype and column.flags.c_contiguous:
        return column
    fits = np.iinfo(dtype)
    if column.dtype.kind not in "iu" or (column.size and not fits.min <= column.min() <= column.max() <= fits.max):
        raise ValueError(f"{name} must hold whole numbers that fit {np.dtype(dtype)}, it is {column.dtype}")
    return np.ascontiguousarray(column, dtype)


def _why_refused(graph: Graph, wires: Wires) -> ValueError:
    """What makes no sense in columns that the engine did not take."""
    ragged = {"graph.before": graph.before, "wires.routes": wires.routes}
    ragged |= {f"collective {row}: needs": c.pattern.needs for row, c in enumerate(graph.collectives)}
    for name, rows in ragged.items():
        steps = np.diff(rows.offsets, prepend=0, append=len(rows.values))
        if not len(rows.offsets) or rows.offsets[0] != 0 or (steps < 0).any() or steps[-1] != 0:
            return ValueError(f"{name}: offsets must go up from 0 to the number of values")
    check(graph, wires)
    return ValueError("there are more than 2**30 tasks or edges, the most that the native engine can count")
