"""Optimizers that need more of a parameter than the part that a rank has: what ranks exchange for the update.

With ZeRO 2 and 3 a rank has some rows of each parameter, its gradient and its states.  Muon multiplies whole matrices:
of as many of one shape as there are ranks each is sent all parts of one, which it orthogonalises, and sends them back;
what is done element by element stays with the parts.  So ``Muon`` of Dion (github.com/microsoft/dion, also in
torchtitan's ``experiments/dion_optimizer`` and NeMo Automodel) does it, in 16 bits, with matrices that are missing for
a full exchange replaced by padding; Megatron-FSDP's ``FsdpMuon`` sends the same point to point.  What sums over the
rows, as Adafactor's means, is all-reduced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.core.dtypes import DTYPE_CODE
from triosim.partition.step import SharedUpdate
from triosim.partition.transfers import ALL_REDUCE, ALL_TO_ALL
from triosim.trace.calls import count_work
from triosim.trace.tables import ITEM_BYTES, Category, Trace
from triosim.transform.optimizing import StepOfParts
from triosim.transform.update_replay import LocalTensor, Shape, UpdateReplay, UpdatesOfOne


def shared_updates(
    trace: Trace, text: str, shards: NDArray[np.int64], dim: NDArray[np.int64]
) -> tuple[Trace, tuple[SharedUpdate, ...]]:
    """The step of a rank that has a part of each parameter.

    Args:
        trace: the step with whole parameters.
        text: the optimizer, as of :func:`triosim.transform.optimizing.optimizer`; ``""`` where it is the step's own.
        shards: ranks that have parts of each value, shape ``(values,)``.
        dim: the dimension that they divide, shape ``(values,)``.

    Returns:
        The step with what is between exchanges in the shapes that it has there, and the exchanges.

    Raises:
        PlanError: the step's own optimizer is none of :data:`~triosim.transform.optimizing.OPTIMIZERS`.
    """
    values, updates = trace.values, UpdatesOfOne[_ShardReplay](trace, text)
    known, storage = values.shape.lists(), values.storage.copy()
    temporary = values.category == Category.TEMPORARY
    own_storage = np.where(temporary, values.storage, -1).tolist()
    shapes, found = dict[int, Shape](), list[SharedUpdate]()
    for weight in updates.parameters:
        count, at = int(shards[weight]), int(dim[weight])
        if count == 1:
            continue
        whole = tuple(known[weight])
        part = tuple(-(-size // count) if n == at else size for n, size in enumerate(whole))

        def made(
            trace: Trace, rows: Sequence[int], whole: Shape = whole, at: int = at, count: int = count
        ) -> _ShardReplay:
            return _ShardReplay(trace, rows, whole, at, count, own_storage)

        replay = updates.replay(weight, part, made)
        ends = [after for after, _, _ in replay.exchanges]
        rows = updates.rows[weight]
        own = tuple(
            tuple(row for row in rows if low < row <= high)
            for low, high in zip([-1, *ends], [*ends, rows[-1]], strict=True)
        )
        exchanges = tuple((what, size) for _, what, size in replay.exchanges)
        found.append(SharedUpdate(weight, own, exchanges, count, (*whole, count, int(values.dtype[weight]))))
        shapes.update(replay.shapes)
        for value, copy in replay.copies.items():
            storage[value] = copy
    own_shapes = [shapes.get(v, shape) if temporary[v] else shape for v, shape in enumerate(known)]
    fresh, first = np.flatnonzero(storage < 0), int(values.storage.max(initial=-1)) + 1
    numbers = {copy: first + at for at, copy in enumerate(dict.fromkeys(storage[fresh].tolist()))}
    storage[fresh] = [numbers[copy] for copy in storage[fresh].tolist()]
    values = replace(values, shape=Ragged.of(own_shapes), storage=storage)
    return count_work(replace(trace, values=values)), tuple(found)


class _ShardReplay(UpdateReplay, StepOfParts):
    """An update of which the parameter is a part, with what is exchanged.

    Args:
        trace, rows: as of :class:`~triosim.transform.update_replay.UpdateReplay`.
        whole: shape of the parameter.
        dim: the dimension that ranks divide.
        shards: how many they are.
        storage: of each value that the optimizer makes for itself, -1 for the others.

    Attributes:
        exchanges: row after which it is made, kind and bytes of each.
        copies: values that are on another storage behind an exchange -> a number below 0 for that.
    """

    def __init__(
        self, trace: Trace, rows: Sequence[int], whole: Shape, dim: int, shards: int, storage: Sequence[int]
    ) -> None:
        super().__init__(trace, rows)
        self._whole, self._dim, self._shards, self._storage = whole, dim, shards, storage
        self._moved = 0  # all-to-alls so far
        self.exchanges: list[tuple[int, int, int]] = []
        self.copies: dict[int, int] = {}
        self._seen: dict[int, int] = {}  # storage -> exchanges before it was first touched

    def _inside(self) -> bool:
        """Whether the parts are of matrices, not whole ones of a stack."""
        return self._dim >= len(self._whole) - 2

    def whole(self, tensor: LocalTensor) -> LocalTensor:
        """See :class:`~triosim.transform.optimizing.StepOfParts`."""
        if not self._inside():
            return tensor
        self._exchange(ALL_TO_ALL, tensor, self._shards)
        shape = tuple(self._whole[n] if n == self._dim else size for n, size in enumerate(tensor.shape))
        return LocalTensor(tensor.value, shape, tensor.dtype)

    def part(self, tensor: LocalTensor) -> LocalTensor:
        """See :class:`~triosim.transform.optimizing.StepOfParts`."""
        if not self._inside():
            return tensor
        shape = tuple(-(-s // self._shards) if n == self._dim else s for n, s in enumerate(tensor.shape))
        given = LocalTensor(tensor.value, shape, tensor.dtype)
        self._exchange(ALL_TO_ALL, given, self._shards)
        return given

    def total(self, tensor: LocalTensor, dims: Sequence[int]) -> LocalTensor:
        """See :class:`~triosim.transform.optimizing.StepOfParts`."""
        if self._dim - len(self._whole) in dims:
            self._exchange(ALL_REDUCE, tensor, 1)
        return tensor

    def _exchange(self, what: int, tensor: LocalTensor, times: int) -> None:
        size = int(np.prod(tensor.shape, dtype=np.int64)) * float(ITEM_BYTES[DTYPE_CODE[tensor.dtype]])
        self.exchanges.append((self.row, what, round(size) * times))
        self._moved += what == ALL_TO_ALL

    def operator(
        self, name: str, roles: Sequence[str], inputs: Sequence[Any], outputs: Sequence[Any],
        args: Mapping[str, Any] | None = None,
    ) -> int:  # fmt: skip
        """See :class:`~triosim.transform.optimizing.StepBuilder`."""
        row = super().operator(name, roles, inputs, outputs, args)
        if row < 0:
            return row
        operators = self.trace.operators
        for table in (operators.inputs, operators.outputs):
            for value in table.lists()[row]:
                storage = self._storage[value]
                if storage >= 0 and self._seen.setdefault(storage, self._moved) != self._moved:
                    self.copies[value] = -2 - 4 * storage - self._moved  # sent, and received elsewhere
        return row
