"""Sharded data parallelism: ZeRO 1 to 3 (Rajbhandari et al., arXiv:1910.02054, sections 5 and 7).

What is divided among the ``n`` data-parallel ranks, and what one rank sends and receives for parameters of ``P`` bytes:

* ZeRO 1, optimizer states: gradients are reduce-scattered in DDP's buckets, each rank updates its part of every
  parameter, and the parameters are all-gathered after the optimizer, as DeepSpeed's stage 1 and Megatron-LM's
  distributed optimizer do.  2 (n - 1) / n P an iteration.
* ZeRO 2, gradients too, and ZeRO 3, parameters too: PyTorch's ``fully_shard`` (FSDP2) of every repeated block and of
  the rest, with ``reshard_after_forward`` False and True.  The parameters of a block, a *unit*, are gathered before its
  forward; under ZeRO 3 they are freed after it and gathered again before its backward; after the backward its
  gradients are reduce-scattered.  2 and 3 (n - 1) / n P for each micro-batch.

ZeRO 1 cuts the elements of a parameter evenly; FSDP2 cuts its first dimension, and what it sends is padded to a
multiple of ``n`` rows.  Either way the optimizer works on a part of each tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from triosim.columns import Ragged
from triosim.errors import PlanError
from triosim.parallelism.gradients import Gradient
from triosim.parallelism.step import Step
from triosim.workload.blocks import blocks
from triosim.workload.builder import recount
from triosim.workload.trace import NONE, Category, Phase, Trace, Values

GATHERED = 2
"""From this level on parameters are gathered unit by unit."""


@dataclass(frozen=True)
class Unit:
    """Parameters of one pipeline stage that are gathered together.

    Attributes:
        path: module path of the block, ``""`` for the rest of the stage.
        parameters: value ids.
        gradients: storages of their gradients.
        gather_bytes: full buffer of an all-gather of the parameters, padding included.
        scatter_bytes: the same of a reduce-scatter of the gradients.
        forward, backward: its first and last operator in each phase, -1 for none; what is in no module (the loss) runs
            after the forward and before the backward of the whole.
    """

    path: str
    parameters: tuple[int, ...]
    gradients: tuple[int, ...]
    gather_bytes: int
    scatter_bytes: int
    forward: tuple[int, int]
    backward: tuple[int, int]

    @property
    def root(self) -> bool:
        """Whether it is what is in no block: gathered for as long as the stage's forward and backward last."""
        return not self.path


class Sharding:
    """The units of a step on ``ways`` data-parallel ranks.

    Args:
        trace: one rank's step.
        ways: ranks on the data axis.
    """

    def __init__(self, trace: Trace, ways: int) -> None:
        self.trace, self.ways = trace, ways
        found = blocks(trace)
        self.paths = found.path
        self.block = found.of(trace).tolist()
        self.parameters = _blocks_of_parameters(trace, found.path, self.block)
        shapes, self._size = trace.values.shape.lists(), trace.values.bytes().tolist()
        self._rows = [max(shape[0], 1) if shape else 1 for shape in shapes]

    def padded(self, parameter: int, size: int) -> int:
        """Bytes of something of a parameter's shape when its first dimension is made a multiple of the ranks."""
        rows = self._rows[parameter]
        return size // rows * (-(-rows // self.ways) * self.ways)

    def units(
        self, parameters: Iterable[int], grads: Sequence[Gradient], forward: Sequence[int], backward: Sequence[int]
    ) -> list[Unit]:
        """Units of a stage: what is in no block first, if there is such, then blocks in the order of their forward.

        Args:
            parameters: those that the stage uses, value ids.
            grads: gradients of the stage.
            forward, backward: operators of the stage in the order in which they run.
        """
        in_forward, in_backward = self._reach(forward), self._reach(backward)
        mine: dict[int, list[int]] = {}
        for parameter in parameters:
            block = self.parameters[parameter]
            mine.setdefault(block if block in in_forward else NONE, []).append(parameter)
        reduced: dict[int, list[Gradient]] = {}
        for gradient in grads:
            block = self.parameters[gradient.parameter]
            reduced.setdefault(block if block in in_forward else NONE, []).append(gradient)
        order = [NONE] * (NONE in mine) + sorted(mine.keys() - {NONE}, key=lambda block: in_forward[block])
        module = self.trace.operators.module
        inside = [[row for row in rows if module[row] != NONE] or rows for rows in (forward, backward)]  # not the loss
        whole = (forward[0] if forward else NONE, inside[0][-1] if forward else NONE)
        after = (inside[1][0] if backward else NONE, backward[-1] if backward else NONE)
        return [
            Unit(
                "" if block == NONE else self.paths[block],
                tuple(mine[block]),
                tuple(g.storage for g in reduced.get(block, ())),
                sum(self.padded(p, self._size[p]) for p in mine[block]),
                sum(self.padded(g.parameter, g.bytes) for g in reduced.get(block, ())),
                whole if block == NONE else in_forward[block],
                after if block == NONE else in_backward.get(block, (NONE, NONE)),
            )
            for block in order
        ]

    def _reach(self, rows: Sequence[int]) -> dict[int, tuple[int, int]]:
        """First and last of some operators in each block."""
        reach: dict[int, tuple[int, int]] = {}
        for row in rows:
            block = self.block[row]
            if block != NONE:
                reach[block] = (reach.get(block, (row, row))[0], row)
        return reach


def _blocks_of_parameters(trace: Trace, paths: Sequence[str], block: Sequence[int]) -> dict[int, int]:
    """Block of each parameter, by its name or, if it has none, by the first operator that reads it; -1 for none."""
    values = trace.values
    storage, number = values.storage.tolist(), {path: i for i, path in enumerate(paths)}
    reader: dict[int, int] = {}
    for row, reads in enumerate(trace.operators.inputs.lists()):
        for value in reads:
            reader.setdefault(storage[value], block[row])
    found = {}
    for parameter in trace.weights().tolist():
        parts = values.name[parameter].split(".")
        prefixes = (".".join(parts[:n]) for n in range(1, len(parts)))
        named = next((number[p] for p in prefixes if p in number), NONE)
        found[parameter] = named if values.name[parameter] else reader.get(storage[parameter], NONE)
    return found


# --- the shard ------------------------------------------------------------------------------------------------------


def sharded(step: Step, ways: int, level: int) -> Step:
    """The step of one of ``ways`` data-parallel ranks under ZeRO ``level``.

    Raises:
        PlanError: the step has neither gradients nor an optimizer to divide.
    """
    if not level:
        return step
    if not np.any(step.trace.operators.phase == Phase.BACKWARD):
        raise PlanError(f"zero {level} divides gradients and optimizer states, which inference has not: use zero 0")
    notes = step.notes
    if level >= GATHERED and ways > 1 and not len(blocks(step.trace)):
        notes = (*notes, f"zero {level}: no repeated blocks were found, so all parameters are gathered at once")
    return replace(step, trace=shard_optimizer(step.trace, ways, level >= GATHERED), notes=notes)


def shard_optimizer(trace: Trace, ways: int, by_rows: bool) -> Trace:
    """The step with an optimizer that updates one rank's part of every parameter.

    Operators of the optimizer work element by element, so each tensor that they touch is replaced by the part of the
    lowest rank, the largest.  Parameters and gradients keep their storages and sizes for the rest of the step.

    Args:
        trace: one rank's step.
        ways: ranks on the data axis.
        by_rows: cut the first dimension (FSDP2), else all elements evenly.
    """
    operators, values = trace.operators, trace.values
    update = operators.phase == Phase.OPTIMIZER
    if ways == 1 or not update.any():
        return trace
    count = len(values)
    touched, made, elsewhere = np.zeros(count, bool), np.zeros(count, bool), np.zeros(count, bool)
    for table in (operators.inputs, operators.outputs):
        inside = update[table.rows()]
        touched[table.values[inside]] = True
        elsewhere[table.values[~inside]] = True
    made[operators.outputs.values[update[operators.outputs.rows()]]] = True
    own = made | np.isin(values.category, [int(Category.OPTIMIZER_STATE), int(Category.TEMPORARY)])
    viewed = np.flatnonzero(touched & (elsewhere | ~own))  # of these the optimizer sees a part, the rest all
    shapes = _parts(values.shape, ways, by_rows)
    cut = touched & ~elsewhere & own
    kept = np.where(cut[values.shape.rows()], shapes.values, values.shape.values)
    number = np.arange(count)
    number[viewed] = count + np.arange(len(viewed))

    def seen(table: Ragged) -> Ragged:
        ids = np.where(update[table.rows()], number[table.values], table.values)
        return Ragged(ids.astype(np.int32), table.offsets)

    operators = replace(operators, inputs=seen(operators.inputs), outputs=seen(operators.outputs))
    extended = _extended(replace(values, shape=Ragged(kept, values.shape.offsets)), viewed, shapes.take(viewed))
    return recount(replace(trace, values=extended, operators=operators))


def _parts(shape: Ragged, ways: int, by_rows: bool) -> Ragged:
    """Shapes of the lowest rank's parts: fewer rows, or as many elements in the first dimension."""
    extents, starts = shape.values.astype(np.int64), shape.offsets[:-1][shape.lengths() > 0]
    if by_rows:
        first = extents[starts]
    else:
        first = shape.products()[shape.lengths() > 0]
        extents = np.minimum(extents, 1)  # an empty tensor stays empty
    extents[starts] = -(-first // ways)
    return Ragged(extents, shape.offsets)


def _extended(values: Values, origins: NDArray[np.int64], shapes: Ragged) -> Values:
    """The values and, after them, views of some with other shapes."""
    return Values(
        storage=np.append(values.storage, values.storage[origins]),
        version=np.append(values.version, values.version[origins]),
        offset=np.append(values.offset, np.zeros(len(origins), np.int64)),
        shape=Ragged.stacked([values.shape, shapes]),
        dtype=np.append(values.dtype, values.dtype[origins]),
        category=np.append(values.category, values.category[origins]),
        of=np.append(values.of, values.of[origins]),
        name=(*values.name, *("" for _ in range(len(origins)))),
        symbols=Ragged.stacked([values.symbols, values.symbols.take(origins)]),
    )


def resident(trace: Trace, ways: int, reduced: Iterable[int]) -> Trace:
    """The step as memory sees it from ZeRO 2 on: parameters as shards, gradients of parameters nowhere.

    What is gathered, and gradients before and after they are scattered, is added by
    :func:`triosim.parallelism.gathered.gathered_lifetimes`.

    Args:
        trace: one rank's step.
        ways: ranks on the data axis.
        reduced: storages of the gradients that are scattered.
    """
    values = trace.values
    weights, gone = trace.weights(), np.zeros(int(values.storage.max(initial=-1)) + 1, bool)
    gone[values.storage[weights]] = True
    gone[list(reduced)] = True
    elements = np.where(gone[values.storage], 0, values.elements())
    elements[weights] = _parts(values.shape, ways, by_rows=True).products()[weights]
    flat = Ragged(elements, np.arange(len(values) + 1, dtype=np.int64))
    summands = (values.category == Category.GRADIENT) & ~gone[values.storage]  # freed when they have been added up
    return replace(
        trace,
        values=replace(
            values, shape=flat, symbols=Ragged(np.zeros(len(values), np.int64), flat.offsets),
            offset=np.where(gone[values.storage], 0, values.offset), of=np.where(summands, NONE, values.of),
        ),
    )  # fmt: skip
