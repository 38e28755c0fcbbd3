"""Monte Carlo: the same graph played many times, each time with other durations and link rates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.engine.column_types import column
from triosim.engine.graph import BEYOND, UNLIMITED, EngineNetwork, Graph, Task, TimeOverflow
from triosim.engine.play import play, selected_engine
from triosim.engine.solver import NetworkModel


def play_many(
    graph: Graph,
    wires: EngineNetwork,
    model: NetworkModel,
    kind: NDArray[np.int32],
    factors: NDArray[np.float64],
    links: NDArray[np.float64],
) -> NDArray[np.int64]:
    """When the last task ends, for each draw; one call of the native engine where it is there.

    Args:
        graph: the tasks.
        wires: the network.
        model: how links are shared.
        kind: for each task that computes the column of ``factors`` that its amount is multiplied by; else, and where it
            stays as it is, -1; shape ``(tasks,)``.
        factors: 0 or more, shape ``(draws, kinds)``.
        links: factor of all capacities, 0 or more, shape ``(draws,)``.

    Returns:
        Ticks, shape ``(draws,)``; :data:`~triosim.engine.graph.BEYOND` for a draw that lasts longer than can be
        counted.

    Raises:
        Stuck, InputError, ValueError: as of :func:`triosim.engine.play.play`, or the factors make no sense.
    """
    kind = column(kind, "kind", np.int32)
    factors, links = _floats(factors), _floats(links)
    _check(graph, kind, factors, links)
    if selected_engine() == "native":
        from triosim.engine import native

        ends = native.play_many(graph, wires, model, kind, factors, links)
        if ends is not None and (ends >= 0).all():
            return ends
    found = []
    for row, link in zip(factors, links, strict=True):
        drawn = replace(graph, amount=scale_amounts(graph.amount, np.append(row, 1.0)[kind]))
        capacity = np.maximum(scale_amounts(wires.capacity, np.full(len(wires.capacity), link)), 1)
        network = replace(wires, capacity=np.where(wires.capacity == UNLIMITED, UNLIMITED, capacity))
        try:
            found.append(int(play(drawn, network, model).finish.max(initial=0)))
        except TimeOverflow:
            found.append(BEYOND)
    return np.array(found, np.int64)


def _floats(factors: NDArray[Any]) -> NDArray[np.float64]:
    if not isinstance(factors, np.ndarray) or factors.dtype.kind not in "fiu":
        raise ValueError("factors and links must be arrays of numbers")
    return np.require(factors, np.float64, ["C", "A"])


def _check(graph: Graph, kind: NDArray[np.int32], factors: NDArray[np.float64], links: NDArray[np.float64]) -> None:
    """As the native engine checks it."""
    tasks = len(graph)
    if factors.ndim != 2 or kind.shape != (tasks,) or links.shape != (len(factors),):
        raise ValueError(
            f"factors must have the shape (draws, kinds), kind (tasks,) and links (draws,); for {tasks} tasks they "
            f"have {factors.shape}, {kind.shape} and {links.shape}"
        )
    computes = graph.kind == Task.COMPUTE
    if ((kind < -1) | (kind >= np.where(computes, factors.shape[1], 0))).any():
        raise ValueError("kind must name a column of factors, and -1 for what does not compute")
    if not all(np.isfinite(factor).all() and (factor >= 0).all() for factor in (factors, links)):
        raise ValueError("factors and links must be finite and 0 or more")


def scale_amounts(amount: NDArray[np.int64], factor: NDArray[np.float64]) -> NDArray[np.int64]:
    """Amounts times factors, to the nearest whole number, halves up, at most :data:`~triosim.engine.graph.BEYOND`; a
    factor of 1 changes nothing."""
    with np.errstate(over="ignore"):
        product = np.floor(amount * factor + 0.5)
    fits = product < float(BEYOND)
    return np.where(factor == 1.0, amount, np.where(fits, np.where(fits, product, 0).astype(np.int64), BEYOND))
