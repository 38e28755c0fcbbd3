"""A step cut into pipeline stages: who runs which operator, and what each stage has of the optimizer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.core.columns import distinct
from triosim.core.dataclass import dataclass
from triosim.schedule.crossing import Boundary, CrossingTensor, boundaries_of, crossing_items
from triosim.schedule.cutting import candidates, named_cuts, where_to_cut
from triosim.stacks import BALANCED
from triosim.trace.tables import NONE, Phase, Trace


@dataclass(frozen=True)
class Stages:
    """A step cut into ``count`` stages.

    Attributes:
        count: number of stages.
        of: stage of each forward, backward and recomputed operator; -1 for optimizer operators.
        share: for each optimizer operator the part of it that each stage runs, shape ``(operators, count)``; rows of
            other operators are zero.
        parameters: for each parameter (value id) the stages that use it.
        boundaries: what crosses.
        firsts: the module in which each stage begins, for people.
    """

    count: int
    of: NDArray[np.int32]
    share: NDArray[np.float64]
    parameters: dict[int, tuple[int, ...]]
    boundaries: tuple[Boundary, ...]
    firsts: tuple[str, ...]


def split(
    trace: Trace,
    seconds: NDArray[np.float64],
    count: int,
    begins: Sequence[str] | str = BALANCED,
    seconds_per_byte: float = 0.0,
    homes: Trace | None = None,
) -> Stages:
    """Cut a step into ``count`` stages of contiguous forward operators.

    Args:
        trace: one rank's step.
        seconds: time of each operator, shape ``(operators,)``; or ``(count, operators)`` where the stages run on
            different devices: time of each operator on the device of each stage.
        count: number of stages.
        begins: module paths at which the stages after the first begin, or one of :data:`triosim.stacks.CUTS`.
        seconds_per_byte: what sending a byte to the next stage costs, for balancing.
        homes: the step with its values as they cross (:attr:`triosim.partition.step.Step.homes`); ``trace`` if None.

    Raises:
        PlanError: there are fewer operators than stages, or a named module does not exist or is out of order.
    """
    forward = np.flatnonzero(trace.operators.phase == Phase.FORWARD)
    if count == 1:
        of = np.where(trace.operators.phase == Phase.OPTIMIZER, NONE, 0).astype(np.int32)
        share = (trace.operators.phase == Phase.OPTIMIZER).astype(np.float64)[:, None]
        return Stages(1, of, share, dict.fromkeys(trace.weights().tolist(), (0,)), (), ("",))
    items = crossing_items(trace if homes is None else homes)
    if not isinstance(begins, str):
        cuts = named_cuts(trace, forward, begins)
    else:
        cuts = where_to_cut(
            candidates(trace, seconds, forward, items), count, begins, seconds_per_byte, trace.meta.workload
        )
    return _cut(trace, forward, items, cuts)


def cut(trace: Trace, cuts: Sequence[int], homes: Trace) -> Stages:
    """A step cut where one says.

    Args:
        trace, homes: as of :func:`split`.
        cuts: places in the order of the forward operators at which the stages after the first begin.
    """
    return _cut(trace, np.flatnonzero(trace.operators.phase == Phase.FORWARD), crossing_items(homes), cuts)


def _cut(trace: Trace, forward: NDArray[np.int64], items: Sequence[CrossingTensor], cuts: Sequence[int]) -> Stages:
    rows, count = len(trace), len(cuts) + 1
    position = np.full(rows, -1, np.int64)
    position[forward] = np.arange(len(forward))
    of = np.full(rows, NONE, np.int32)
    of[forward] = np.searchsorted(np.array(cuts), np.arange(len(forward)), side="right")
    _place_backward(trace, of, count)
    parameters, share = _shared_out(trace, of.tobytes(), count)
    boundaries = boundaries_of(trace, of, items)
    firsts = tuple(_module(trace, forward, start) for start in (0, *cuts))
    return Stages(count, of, share, parameters, boundaries, firsts)


def _place_backward(trace: Trace, of: NDArray[np.int32], count: int) -> None:
    """Backward operators run where the operator that they differentiate ran, the rest where their neighbours do."""
    operators = trace.operators
    stage, module, forward = of.tolist(), operators.module.tolist(), operators.forward.tolist()
    rows = np.flatnonzero(operators.phase == Phase.FORWARD).tolist()
    module_stage = {module[row]: stage[row] for row in rows if module[row] >= 0}
    current = count - 1
    for row in np.flatnonzero(np.isin(operators.phase, (Phase.BACKWARD, Phase.RECOMPUTE))).tolist():
        current = stage[forward[row]] if forward[row] >= 0 else module_stage.get(module[row], current)
        of[row] = stage[row] = current


@kept(8)
def _shared_out(trace: Trace, of: bytes, count: int) -> tuple[dict[int, tuple[int, ...]], NDArray[np.float64]]:
    """Stages of each parameter, and what each stage runs of each operator of the optimizer.

    Args:
        trace: one rank's step.
        of: stage of each operator, int32.
        count: number of stages.
    """
    parameters = _stages_of_parameters(trace, np.frombuffer(of, np.int32))
    return parameters, _optimizer_share(trace, parameters, count)


def _stages_of_parameters(trace: Trace, of: NDArray[np.int32]) -> dict[int, tuple[int, ...]]:
    operators, storage = trace.operators, trace.values.storage
    weights = trace.weights()
    owner = np.full(int(storage.max(initial=NONE)) + 1, NONE, np.int64)
    owner[storage[weights]] = weights
    row = operators.inputs.rows()
    runs = ((operators.phase == Phase.FORWARD) & ~operators.view)[row]
    read = owner[storage[operators.inputs.values]]
    here = np.flatnonzero(runs & (read >= 0))
    least, span = int(of.min(initial=0)), int(of.max(initial=0)) - int(of.min(initial=0)) + 1
    used = distinct(read[here] * span + (of[row[here]] - least))  # by parameter, then by stage
    stages: dict[int, list[int]] = {v: [] for v in dict.fromkeys(owner[storage[weights]].tolist())}
    for parameter, stage in zip((used // span).tolist(), (used % span + least).tolist(), strict=True):
        stages[parameter].append(stage)
    return {parameter: tuple(own) or (0,) for parameter, own in stages.items()}


def _optimizer_share(trace: Trace, parameters: dict[int, tuple[int, ...]], count: int) -> NDArray[np.float64]:
    """Optimizer operators work on lists of tensors; each stage runs the part for its own parameters, by bytes."""
    values = trace.values
    size, storage = values.bytes(), values.storage
    by_storage = {int(storage[v]): v for v in parameters}
    overall = np.zeros(count)
    for parameter, stages in parameters.items():
        for stage in stages:
            overall[stage] += size[parameter]
    overall = overall / overall.sum() if overall.sum() else np.full(count, 1 / count)
    share = np.zeros((len(trace), count))
    known = np.zeros(int(values.storage.max(initial=-1)) + 2, np.int64)  # of each storage its parameter's row, or none
    part = np.zeros((len(by_storage) + 1, count))
    for row, (where, parameter) in enumerate(by_storage.items(), start=1):
        known[where] = row
        part[row, list(parameters[parameter])] = 1
    owner = known[values.storage]
    owner = np.where((owner == 0) & (values.of >= 0), owner[values.of], owner)
    sizes = size.astype(np.float64)
    inputs, outputs = trace.operators.inputs, trace.operators.outputs
    for row in np.flatnonzero(trace.operators.phase == Phase.OPTIMIZER).tolist():
        own = np.unique(np.concatenate([inputs[row], outputs[row]]))
        found = sizes[own] @ part[owner[own]]
        share[row] = found / found.sum() if found.sum() else overall
    return share


def _module(trace: Trace, forward: NDArray[np.int64], start: int) -> str:
    for row in forward[start:].tolist():
        if trace.operators.module[row] >= 0:
            return trace.modules.path[trace.operators.module[row]]
    return ""
