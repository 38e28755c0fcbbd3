"""Which parameter a value belongs to, and which operators of the optimizer work on one parameter alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.trace.tables import NONE, Category, Phase, Trace, Values


def owners(values: Values) -> NDArray[np.int64]:
    """Storage of the parameter that each value belongs to, -1 for none, shape ``(values,)``."""
    own = np.where(values.of >= 0, values.storage[np.maximum(values.of, 0)], NONE).astype(np.int64)
    weights = values.category == Category.WEIGHT
    own[weights] = values.storage[weights]
    of_storage = np.full(int(values.storage.max(initial=-1)) + 1, NONE, np.int64)
    of_storage[values.storage[own >= 0]] = own[own >= 0]
    return of_storage[values.storage]


def updates_of_one(trace: Trace) -> dict[int, int]:
    """Operators of the optimizer that work on one parameter and no other, with the storage of that parameter."""
    operators, owner = trace.operators, owners(trace.values)
    reads, writes = operators.inputs.lists(), operators.outputs.lists()
    alone: dict[int, int] = {}
    for row in np.flatnonzero((operators.phase == Phase.OPTIMIZER) & ~operators.view).tolist():
        of = {int(owner[value]) for value in (*reads[row], *writes[row])} - {NONE}
        if len(of) == 1:
            alone[row] = of.pop()
    return alone
