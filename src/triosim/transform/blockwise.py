"""The update of a part of a matrix, by an optimizer that multiplies whole ones: each rank takes its part for a matrix.

Megatron-LM's Muon does so by default (``--muon-tp-mode blockwise``), and any optimizer that knows nothing of other
ranks does.  Nothing is sent; the products are those of the parts, which are smaller than a share of the whole matrix's.
"""

from __future__ import annotations

from dataclasses import replace

from triosim.core.caching import kept
from triosim.core.columns import Ragged
from triosim.trace.calls import count_work
from triosim.trace.repeated import ROOM
from triosim.trace.tables import Trace
from triosim.transform.optimizing import Shape
from triosim.transform.update_replay import UpdateReplay, UpdatesOfOne


@kept(16, room=ROOM, size=len)
def updated_in_parts(trace: Trace, text: str, cut: frozenset[int]) -> Trace:
    """One rank's step in which what it has of each parameter is updated as a matrix of that shape.

    Args:
        trace: the step, parameters with the shapes that the rank has, all that belongs to the optimizer with those of
            the undivided step.
        text: the optimizer, as of :func:`triosim.transform.optimizing.optimizer`; ``""`` where it is the step's own.
        cut: parameters of which the rank has a part, value ids.

    Raises:
        PlanError: the step's own optimizer is none of :data:`~triosim.transform.optimizing.OPTIMIZERS`.
    """
    values, updates = trace.values, UpdatesOfOne[UpdateReplay](trace, text)
    known = values.shape.lists()
    shapes: dict[int, Shape] = {}
    for weight in cut.intersection(updates.parameters):
        shapes.update(updates.replay(weight, tuple(known[weight]), UpdateReplay).shapes)
    own = [shapes.get(value, shape) for value, shape in enumerate(known)]
    return count_work(replace(trace, values=replace(values, shape=Ragged.of(own))))
