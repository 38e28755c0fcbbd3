"""What a backward splits into: gradients of inputs, which the stage before waits for, and gradients of weights.

An operator belongs to the weight half if nothing but gradients of parameters comes of it: what it writes is the
gradient of a parameter (or a summand of one), or is read by operators of that half only.  All else is in the input
half, so what both need is made there.  An operator that writes both (the backward of a norm; a coarse autograd node of
an imported trace) cannot be split and is in the input half.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from triosim.core.caching import kept
from triosim.core.dataclass import dataclass
from triosim.operators import canonical
from triosim.trace.tables import Category, Phase, Trace

_SUMS = ("add", "clone", "copy", "to", "_to_copy", "detach")


@dataclass(frozen=True)
class BackwardHalves:
    """The two halves of one part's backward, operators in the order in which they run.

    Attributes:
        input_gradient: all of it where nothing is sent back (the first part of a pipeline).
        weight_gradient: the rest.
        fused: those of the first half that count FLOP and write the gradient of a parameter too.
    """

    input_gradient: tuple[int, ...]
    weight_gradient: tuple[int, ...]
    fused: tuple[int, ...]


@dataclass(frozen=True)
class _Uses:
    """What a step's operators make, and who reads it.

    Attributes:
        phase, view, outputs, counted: of each operator its phase, whether it is a view, the values it writes, and
            whether it counts FLOP.
        of_parameter: of each value whether it is on the gradient of a parameter.
        readers: of each operator those that read what it writes, the optimizer's and views left out.
        viewers: of each value the operators that read it.
        complete: operators all of whose outputs are gradients of parameters or summands of them.
    """

    phase: list[int]
    view: list[bool]
    outputs: list[list[int]]
    counted: list[bool]
    of_parameter: list[bool]
    readers: dict[int, set[int]]
    viewers: dict[int, list[int]]
    complete: set[int]


@kept(8)
def _uses(trace: Trace) -> _Uses:
    operators, values = trace.operators, trace.values
    inputs, outputs = operators.inputs.lists(), operators.outputs.lists()
    phase, view, writers = operators.phase.tolist(), operators.view.tolist(), trace.writers()
    readers: dict[int, set[int]] = {}
    viewers: dict[int, list[int]] = {}
    for row, reads in enumerate(inputs):
        for value, writer in zip(reads, writers[row], strict=True):
            viewers.setdefault(value, []).append(row)
            if not view[row] and phase[row] != Phase.OPTIMIZER:
                readers.setdefault(writer, set()).add(row)

    parameters = values.storage[(values.category == Category.GRADIENT) & (values.of >= 0)]
    of_parameter = np.isin(values.storage, parameters).tolist()
    sums: set[int] = set()  # operators that only add up gradients of parameters, wherever they are
    complete: set[int] = set()
    for row in np.flatnonzero((operators.phase == Phase.BACKWARD) & ~operators.view)[::-1].tolist():
        if outputs[row] and all(of_parameter[value] for value in outputs[row]):
            complete.add(row)
            if canonical(operators.name[row])[0] in _SUMS:
                sums.add(row)
        elif readers.get(row) and readers[row] <= sums:
            complete.add(row)
    counted = (np.nan_to_num(operators.flop) > 0).tolist()
    return _Uses(phase, view, outputs, counted, of_parameter, readers, viewers, complete)


def split_backward(trace: Trace, backward: Sequence[int]) -> BackwardHalves:
    """Split the backward of one part.

    Args:
        trace: one rank's step.
        backward: operators of the part in the order in which they run, recomputed ones included.
    """
    uses = _uses(trace)
    inside = set(backward)
    weight: set[int] = set()
    sent = False
    for row in reversed(backward):
        if uses.view[row]:
            read = [reader for value in uses.outputs[row] for reader in uses.viewers.get(value, ())]
            if read and all(reader in weight for reader in read):
                weight.add(row)
        elif uses.phase[row] == Phase.BACKWARD and uses.outputs[row]:
            used = uses.readers.get(row, set())
            if row in uses.complete or (used and used <= weight):
                weight.add(row)
            else:
                sent = sent or not used <= inside
    if not sent:
        return BackwardHalves(tuple(backward), (), ())
    first = tuple(row for row in backward if row not in weight)
    fused = tuple(
        row for row in first if uses.counted[row] and any(uses.of_parameter[value] for value in uses.outputs[row])
    )
    return BackwardHalves(first, tuple(row for row in backward if row in weight), fused)


def of_weights(trace: Trace) -> set[int]:
    """The operators of a backward that make nothing but gradients of parameters or summands of them."""
    return set(_uses(trace).complete)
