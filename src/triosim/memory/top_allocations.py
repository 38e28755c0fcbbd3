"""The top allocations at one moment: bytes by category and module, repeated blocks taken together."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.memory.lifetimes import Lifetimes
from triosim.trace.blocks import blocks
from triosim.trace.tables import NONE, Category, Trace


@dataclass(frozen=True)
class TopAllocation:
    """Memory of one category that one module, or the repeated blocks together, made or own.

    Attributes:
        category: name of the category.
        module: module path; ``"model.layers.*"`` for all blocks of that name; ``""`` outside of modules.
        largest: what made the largest part: an operator's name, or a parameter's.
        bytes: size.
    """

    category: str
    module: str
    largest: str
    bytes: int


def holders(lifetimes: Lifetimes, row: int, trace: Trace) -> tuple[TopAllocation, ...]:
    """Who holds memory during a program row, largest first.

    Args:
        lifetimes: of a rank.
        row: program row; what begins with it counts, -1 for before the first.
        trace: the step that the storages are of.
    """
    alive = np.flatnonzero((lifetimes.start <= row) & (lifetimes.end >= row))
    size, category, storage = (column[alive] for column in (lifetimes.bytes, lifetimes.category, lifetimes.storages()))
    paths, module, largest = _origins(trace)
    where = np.where(storage >= 0, module[storage], 0)
    key = category.astype(np.int64) * len(paths) + where
    found: dict[int, list[int]] = {}
    for at in np.argsort(-size, kind="stable").tolist():
        entry = found.setdefault(int(key[at]), [0, int(storage[at])])
        entry[0] += int(size[at])
    return tuple(
        TopAllocation(
            Category(code // len(paths)).name.lower(),
            paths[code % len(paths)],
            largest(first) if first >= 0 else "gradient buckets",
            total,
        )
        for code, (total, first) in sorted(found.items(), key=lambda item: -item[1][0])
    )


class _Names:
    """What made a storage, in a word."""

    def __init__(self, trace: Trace, maker: NDArray[np.int64], first: NDArray[np.int64]) -> None:
        self.trace, self.maker, self.first = trace, maker, first

    def __call__(self, storage: int) -> str:
        value = int(self.first[storage])
        owner = int(self.trace.values.of[value])
        named = self.trace.values.name[owner if owner >= 0 else value]
        return named or (self.trace.operators.name[self.maker[storage]] if self.maker[storage] >= 0 else "")


def _origins(trace: Trace) -> tuple[list[str], NDArray[np.int64], _Names]:
    """Module paths (the first is ``""``), for each storage its row in them, and names."""
    values, operators = trace.values, trace.operators
    count = int(values.storage.max(initial=-1)) + 1
    first, maker = np.full(count, NONE, np.int64), np.full(count, NONE, np.int64)
    first[values.storage[::-1]] = np.arange(len(values))[::-1]
    rows = operators.outputs.rows()
    maker[values.storage[operators.outputs.values][::-1]] = rows[::-1]
    folded = _folded(trace.modules.path, trace)
    paths = {"": 0}
    of_module = np.array([paths.setdefault(path, len(paths)) for path in folded] + [0], np.int64)
    module = np.where(maker >= 0, of_module[np.append(operators.module, NONE)[maker]], 0)
    known = {path: i for i, path in enumerate(trace.modules.path)}
    for storage, value in enumerate(first.tolist()):
        owner = int(values.of[value]) if value >= 0 and values.of[value] >= 0 else value
        name = values.name[owner] if owner >= 0 else ""
        if name:
            path = name.rpartition(".")[0]
            module[storage] = of_module[known[path]] if path in known else paths.setdefault(path, len(paths))
    return list(paths), module, _Names(trace, maker, first)


def _folded(paths: Iterable[str], trace: Trace) -> list[str]:
    """Module paths, those within a repeated block as all blocks of its kind: ``model.layers.*``."""
    found = blocks(trace)
    shown = [found.path[b] if b >= 0 else path for path, b in zip(paths, found.of_module.tolist(), strict=True)]
    stem = {path: path.rstrip("0123456789") for path in found.path}
    return [f"{stem[path]}*" if path in stem else path for path in shown]
