"""The gradients of the parameters: which there are, and which operator finishes each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from triosim.core.caching import kept
from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_CODE
from triosim.stacks import Stack
from triosim.trace.tables import ITEM_BYTES, Category, Phase, Trace


@dataclass(frozen=True)
class Gradient:
    """One parameter's gradient.

    Attributes:
        parameter: value id of the parameter.
        storage: storage of the gradient.
        ready: backward operator after which it is final.
        bytes: its size.
    """

    parameter: int
    storage: int
    ready: int
    bytes: int


@kept(16)
def gradients(trace: Trace) -> list[Gradient]:
    """Gradients of the parameters, in registration order of the parameters.

    A gradient that is summed from several (a tied weight) is ready when the last operator has written to it.
    """
    return list(_gradients(trace))


def reduced_gradients(trace: Trace, stack: Stack | None) -> list[Gradient]:
    """Gradients of the parameters, with the bytes that are reduced: a stack may say in which type."""
    found = gradients(trace)
    if stack is None or stack.reduce == "gradient":
        return found
    values, item = trace.values, float(ITEM_BYTES[DTYPE_CODE[stack.reduce]])
    own = np.zeros(int(values.storage.max(initial=-1)) + 1)  # bytes of an element of each storage
    np.maximum.at(own, values.storage, ITEM_BYTES[values.dtype])
    return [replace(one, bytes=round(one.bytes * item / float(own[one.storage]))) for one in found]


@kept(4)
def _gradients(trace: Trace) -> tuple[Gradient, ...]:
    values, operators = trace.values, trace.operators
    size, storage, of = values.bytes().tolist(), values.storage.tolist(), values.of.tolist()
    first = {}
    for value in trace.weights().tolist():
        first[storage[value]] = value
    found: dict[int, Gradient] = {}
    owner: dict[int, int] = {}  # gradient storage -> parameter
    for value in np.flatnonzero((values.category == Category.GRADIENT) & (values.of >= 0)).tolist():
        owner[storage[value]] = first.get(storage[of[value]], of[value])
    outputs, of_some = operators.outputs, np.zeros(max(storage, default=-1) + 1, bool)
    of_some[list(owner)] = True
    makes = ~np.isin(operators.phase, (Phase.FORWARD, Phase.OPTIMIZER)) & ~operators.view
    rows = outputs.rows()
    written = np.flatnonzero(makes[rows] & of_some[values.storage[outputs.values]])
    for row, value in zip(rows[written].tolist(), outputs.values[written].tolist(), strict=True):
        parameter = owner[storage[value]]
        before = found.get(parameter)
        whole = max(size[value], before.bytes if before and before.storage == storage[value] else 0)
        found[parameter] = Gradient(parameter, storage[value], row, whole)
    return tuple(found[p] for p in first.values() if p in found)


def total_bytes(grads: Iterable[Gradient]) -> int:
    """Bytes of all gradients together."""
    return sum(g.bytes for g in grads)
