"""The same graph played many times, each time with other durations and link rates: how sure its end is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from triosim.engine.graph import UNLIMITED, Graph, Wires
from triosim.engine.play import chosen, play
from triosim.engine.solver import NetworkModel


def play_many(
    graph: Graph,
    wires: Wires,
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
        kind: for each task the column of ``factors`` that its amount is multiplied by, or -1.
        factors: shape ``(draws, kinds)``.
        links: factor of all capacities, shape ``(draws,)``.

    Returns:
        Ticks, shape ``(draws,)``.

    Raises:
        Stuck, InputError, ValueError: as of :func:`triosim.engine.play.play`.
    """
    kind, factors = np.ascontiguousarray(kind, np.int32), np.ascontiguousarray(factors, np.float64)
    links = np.ascontiguousarray(links, np.float64)
    if chosen() == "native":
        from triosim.engine import native

        ends = native.play_many(graph, wires, model, kind, factors, links)
        if ends is not None and (ends >= 0).all():
            return ends
    found = []
    for row, link in zip(factors, links, strict=True):
        drawn = replace(graph, amount=scaled(graph.amount, np.where(kind < 0, 1.0, row[kind])))
        capacity = np.maximum(scaled(wires.capacity, np.full(len(wires.capacity), link)), 1)
        lines = replace(wires, capacity=np.where(wires.capacity == UNLIMITED, UNLIMITED, capacity))
        found.append(int(play(drawn, lines, model).finish.max(initial=0)))
    return np.array(found, np.int64)


def scaled(amount: NDArray[np.int64], factor: NDArray[np.float64]) -> NDArray[np.int64]:
    """Amounts times factors, to the nearest whole number, halves up; a factor of 1 changes nothing."""
    return np.where(factor == 1.0, amount, np.floor(amount * factor + 0.5)).astype(np.int64)
