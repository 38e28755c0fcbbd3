"""Fusing: which gradients are reduced, and which parameters gathered, by one transfer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from triosim.partition.gradients import Gradient
from triosim.trace.blocks import blocks
from triosim.trace.tables import NONE, Trace


def by_bytes(grads: Sequence[Gradient], first_bytes: int, bytes_: int) -> list[list[Gradient]]:
    """DDP's buckets: reverse registration order, a bucket closing with the gradient that makes it reach its cap.

    Source: PyTorch ``compute_bucket_assignment_by_size`` with ``_DEFAULT_FIRST_BUCKET_BYTES`` (1 MiB) for the first and
    ``bucket_cap_mb`` (25 MiB) for the others.

    Args:
        grads: gradients in registration order.
        first_bytes: cap of the first bucket to be reduced.
        bytes_: cap of the others.
    """
    made: list[list[Gradient]] = []
    current: list[Gradient] = []
    held = 0
    for gradient in reversed(grads):
        current.append(gradient)
        held += gradient.bytes
        if held >= (bytes_ if made else first_bytes):
            made.append(current)
            current, held = [], 0
    return [*made, current] if current else made


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


class UnitsByModule:
    """The parameters of every repeated block of a step are one unit, and so is the rest.

    Args:
        trace: one rank's step.
        ways: parts into which parameters are cut, by rows: what is sent is padded to a multiple of them.
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
