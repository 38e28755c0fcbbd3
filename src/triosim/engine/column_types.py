"""Columns as engines read them: one dimension, no gaps, whole numbers of a width that is known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from operator import index
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from triosim.core.columns import Ragged
from triosim.engine.graph import Collective, EngineNetwork, Graph, Pattern

T = TypeVar("T", Graph, EngineNetwork, Pattern, Collective, Ragged)

_WIDTHS: dict[str, DTypeLike] = {
    **dict.fromkeys(["kind"], np.int8),
    **dict.fromkeys(["stream", "what", "member", "need", "instances", "values", "weights"], np.int32),
    **dict.fromkeys(["source", "target", "count", "lag", "route"], np.int32),
    **dict.fromkeys(["amount", "tokens", "offsets", "capacity", "latency", "bytes", "pause"], np.int64),
}
_NUMBERS = ("streams", "members", "places", "delay")


def typed_columns(graph: Graph, wires: EngineNetwork) -> tuple[Graph, EngineNetwork]:
    """The same graph and network with every column, those of collectives included, as an engine reads it.

    Raises:
        ValueError: a column is no flat array of whole numbers that fit its width.
    """
    collectives = _last.of(graph.collectives)
    network = _fitted(wires, "wires.")
    if wires.ends is not None and np.shape(wires.ends) != (len(network.capacity), 2):
        raise ValueError(f"wires.ends has shape {np.shape(wires.ends)}, must have {(len(network.capacity), 2)}")
    return _fitted(replace(graph, collectives=collectives), "graph."), network


class _LastCollectives:
    """The collectives that were looked at last: a graph is played again and again with other amounts."""

    def __init__(self) -> None:
        self._known: tuple[tuple[Collective, ...], tuple[Collective, ...]] = ((), ())

    def of(self, given: tuple[Collective, ...]) -> tuple[Collective, ...]:
        """The same with every column as an engine reads it."""
        before, after = self._known
        if given is not before:
            after = _fitted_collectives(given)
            self._known = (given, after)
        return after


_last = _LastCollectives()


def _fitted_collectives(given: Iterable[Collective]) -> tuple[Collective, ...]:
    patterns: dict[int, Pattern] = {}
    collectives = []
    for row, c in enumerate(given):
        if id(c.pattern) not in patterns:
            patterns[id(c.pattern)] = _fitted(c.pattern, f"collective {row}: ")
        collectives.append(_fitted(replace(c, pattern=patterns[id(c.pattern)]), f"collective {row}: "))
    return tuple(collectives)


def _fitted(table: T, what: str) -> T:
    changed: dict[str, Any] = {}
    for field in fields(table):
        value, name = getattr(table, field.name), what + field.name
        if field.name in _NUMBERS:
            changed[field.name] = _number(value, name)
        elif isinstance(value, Ragged):
            changed[field.name] = _fitted(value, f"{name}.")
        elif value is not None and field.name in _WIDTHS:
            changed[field.name] = column(value, name, _WIDTHS[field.name])
    return replace(table, **changed)


def _number(value: object, name: str) -> int:
    try:
        number = index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"{name} must be a whole number, it is {type(value).__name__}") from None
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{name} must fit int64")
    return number


def column(given: NDArray[Any], name: str, dtype: DTypeLike) -> NDArray[Any]:
    """The column, without gaps and of this width; a ValueError where it cannot be."""
    if not isinstance(given, np.ndarray) or given.ndim != 1:
        raise ValueError(f"{name} must be an array of one dimension")
    if given.dtype == dtype and given.flags.c_contiguous and given.flags.aligned:
        return given
    fits = np.iinfo(dtype)
    if given.dtype.kind not in "iu" or (given.size and not fits.min <= given.min() <= given.max() <= fits.max):
        raise ValueError(f"{name} must hold whole numbers that fit {np.dtype(dtype)}, it is {given.dtype}")
    return np.require(given, dtype, ["C", "A"])


def joined(columns: Sequence[NDArray[Any]], dtype: DTypeLike) -> NDArray[Any]:
    """Columns one after another as one of this type; an empty one where there are none."""
    return np.concatenate([np.zeros(0, dtype), *columns]).astype(dtype)


def row_ends(lengths: Iterable[int]) -> NDArray[np.int64]:
    """Where rows of these lengths end that stand one after another, 0 ahead of them, shape ``(rows + 1,)``."""
    return np.cumsum([0, *lengths], dtype=np.int64)
