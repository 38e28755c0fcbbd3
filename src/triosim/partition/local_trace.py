"""The step as one rank runs it: values cut to their placements, and copies of what was gathered or is a summand."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from triosim.core.columns import Ragged
from triosim.partition.placements import Placement, Shard
from triosim.trace.calls import count_work
from triosim.trace.tables import NONE, Trace, Values


def cut(trace: Trace, shards: Mapping[int, int], size: int) -> Trace:
    """A step whose values are cut into ``size`` parts: value -> dimension."""
    values = trace.values
    extents = values.shape.values.copy()
    extents[values.shape.offsets[list(shards)] + np.array(list(shards.values()), np.int64)] //= size
    return replace(trace, values=replace(values, shape=Ragged(extents, values.shape.offsets)))


def with_copies(values: Values, copies: Sequence[tuple[int, tuple[int, ...]]], storage: Sequence[int]) -> Values:
    """With more values at the end.

    Args:
        values: those that there are.
        copies: of each more value the one that it is a copy of, and its shape.
        storage: of each, the number of its storage.
    """
    origins = np.array([origin for origin, _ in copies], np.int64)
    return Values(
        storage=np.concatenate([values.storage, np.array(storage, np.int32)]).astype(np.int32),
        version=np.concatenate([values.version, values.version[origins]]),
        offset=np.concatenate([values.offset, np.zeros(len(origins), np.int64)]),
        shape=Ragged.stacked([values.shape, Ragged.of([shape for _, shape in copies])]),
        dtype=np.concatenate([values.dtype, values.dtype[origins]]),
        category=np.concatenate([values.category, values.category[origins]]),
        of=np.concatenate([values.of, np.full(len(origins), NONE, np.int32)]),
        name=(*values.name, *("" for _ in origins)),
        symbols=Ragged.stacked([values.symbols, values.symbols.take(origins)]),
    )


class LocalTrace:
    """Collects what differs from the undivided step.

    Attributes:
        inputs, outputs: value ids by operator.
        alias: value -> the local value that later readers get instead.
        made_as: value -> placement in which it was made, where that changed later.
    """

    def __init__(self, trace: Trace, inputs: list[list[int]], outputs: list[list[int]]) -> None:
        self.trace = trace
        self.inputs, self.outputs = list(inputs), list(outputs)
        self.alias: dict[int, int] = {}
        self.made_as: dict[int, Placement] = {}
        self._shapes = [tuple(s) for s in trace.values.shape.lists()]
        self._wholes: dict[tuple[Hashable, tuple[int, ...], int], int] = {}
        self._parts: dict[tuple[int, Shard], int] = {}
        self._extra: list[tuple[int, tuple[int, ...], Hashable]] = []  # origin, shape, key of its storage
        self._regions: set[Hashable] = set()

    def gathered(self, region: Hashable) -> bool:
        """Whether a region has been gathered."""
        return region in self._regions

    def whole(self, value: int, region: Hashable) -> int:
        """A value in the whole copy of a region of a storage."""
        self._regions.add(region)
        shape = self._shapes[value]
        square = len(shape) == 2 and shape[0] == shape[1]  # may be the transpose of another value there
        key = (region, shape, value if square else NONE)
        if key not in self._wholes:
            self._wholes[key] = self._add(value, shape, region)
        return self._wholes[key]

    def part(self, value: int, own: Shard, size: int) -> int:
        """The own part of a whole value: a view."""
        key = (value, own)
        if key not in self._parts:
            origin = value if value < len(self._shapes) else self._extra[value - len(self._shapes)][0]
            shape = list(self._shapes[origin])
            shape[own.dim] //= size
            self._parts[key] = self._add(origin, tuple(shape), None)
        return self._parts[key]

    def summands(self, rows: Sequence[int], storage: int, of: Sequence[int]) -> None:
        """What the operators ``rows`` have on a storage are summands, which are not what later readers get.

        Args:
            rows: operators so far that made or read the summands.
            storage: where they were.
            of: storage of each value.
        """
        for row in rows:
            for table in (self.inputs, self.outputs):
                table[row] = [
                    self.whole(v, ("summand", storage)) if v < len(self._shapes) and of[v] == storage else v
                    for v in table[row]
                ]

    def _add(self, origin: int, shape: tuple[int, ...], storage: Hashable) -> int:
        self._extra.append((origin, shape, storage))
        return len(self._shapes) + len(self._extra) - 1

    def homes(self, placed: Mapping[int, Placement], size: int) -> Trace:
        """The undivided step with shapes cut."""
        return cut(self.trace, self.shards(placed), size)

    def shards(self, placed: Mapping[int, Placement]) -> dict[int, int]:
        """Values that are made Shard, and the dimension of each."""
        return {v: p.dim for v, p in {**placed, **self.made_as}.items() if isinstance(p, Shard)}

    @property
    def origin(self) -> tuple[int, ...]:
        """The value that each of the extra values is of."""
        return tuple(origin for origin, _, _ in self._extra)

    def build(self, homes: Trace) -> Trace:
        """The local trace: extra values appended, inputs and outputs as read and written locally."""
        values = homes.values
        keys = list(dict.fromkeys(key for _, _, key in self._extra if key is not None))
        number = {key: int(values.storage.max(initial=-1)) + 1 + at for at, key in enumerate(keys)}
        storage = [
            number[key] if key is not None else int(values.storage[origin]) for origin, _, key in self._extra
        ]  # fmt: skip
        extended = with_copies(values, [(origin, shape) for origin, shape, _ in self._extra], storage)
        operators = replace(
            homes.operators, inputs=Ragged.of(self.inputs, np.int32), outputs=Ragged.of(self.outputs, np.int32)
        )
        return count_work(replace(homes, values=extended, operators=operators))
