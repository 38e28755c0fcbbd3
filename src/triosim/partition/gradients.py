"""The gradients of the parameters: which there are, and which operator finishes each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from triosim.core.caching import kept
from triosim.trace.tables import Category, Phase, Trace


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


@kept(4)
def _gradients(trace: Trace) -> tuple[Gradient, ...]:
    values, operators = trace.values, trace.operators
    size, storage, of = values.bytes().tolist(), values.storage.tolist(), values.of.tolist()
    category, first = values.category.tolist(), {}
    for value in trace.weights().tolist():
        first[storage[value]] = value
    found: dict[int, Gradient] = {}
    phases = operators.phase.tolist()
    owner: dict[int, int] = {}  # gradient storage -> parameter
    for value, c in enumerate(category):
        if c == Category.GRADIENT and of[value] >= 0:
            owner[storage[value]] = first.get(storage[of[value]], of[value])
    for row, writes in enumerate(operators.outputs.lists()):
        if phases[row] in (Phase.FORWARD, Phase.OPTIMIZER) or operators.view[row]:
            continue
        for value in writes:
            parameter = owner.get(storage[value])
            if parameter is not None:
                before = found.get(parameter)
                whole = max(size[value], before.bytes if before and before.storage == storage[value] else 0)
                found[parameter] = Gradient(parameter, storage[value], row, whole)
    return tuple(found[p] for p in first.values() if p in found)


def total_bytes(grads: Iterable[Gradient]) -> int:
    """Bytes of all gradients together."""
    return sum(g.bytes for g in grads)
