"""Attention by heads between operators by tokens: all-to-alls instead of gathered keys and values.

Source: Jacobs et al., "DeepSpeed Ulysses" (arXiv:2309.14509), section 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from triosim.core.caching import kept
from triosim.core.columns import Ragged
from triosim.core.errors import PlanError
from triosim.partition.facts import Facts
from triosim.partition.local_trace import with_copies
from triosim.partition.step import Step
from triosim.partition.transfers import ALL_TO_ALL, Transfer, Transfers
from triosim.trace.calls import count_work
from triosim.trace.tables import ITEM_BYTES, NONE, Phase, Trace

HEADS, QUERIES, KEYS, WIDTHS = "h", "s", "t", ("d", "e")
"""Names of dimensions of an attention that is one operator (:mod:`triosim.operators.attention`)."""
Region = tuple[int, int, int]
"""Part of a storage: its number, version and offset."""


@kept(8)
def exchanged(step: Step, size: int, axis: int) -> Step:
    """The step of a rank that within attention has all positions of a part of the heads.

    Queries, keys and values are exchanged before the forward and its result after it, the gradient of the result before
    the backward and those of queries, keys and values after it; of each a rank sends what it has.  The copies that put
    what was received in order are not in the step.

    Args:
        step: divided along the sequence, keys and values gathered before attention.
        size: ranks along the axis.
        axis: row of the mesh's axes.

    Raises:
        PlanError: attention is several operators, or its heads do not divide.
    """
    exchange = _Exchange(step, size, axis)
    for row in exchange.rows:
        exchange.attention(row)
    return exchange.step()


class _Exchange:
    """The exchanges of one step."""

    def __init__(self, step: Step, size: int, axis: int) -> None:
        self.of, self.size, self.axis = step, size, axis
        self.facts = Facts(step.trace, step.origin)
        self.version, self.offset = step.trace.values.version.tolist(), step.trace.values.offset.tolist()
        self.inputs = [list(row) for row in self.facts.inputs]
        self.outputs = [list(row) for row in self.facts.outputs]
        self.rows = [
            row for row, phase in enumerate(self.facts.phase)
            if phase != Phase.OPTIMIZER and self.facts.calls[row].kind == "attention"
        ]  # fmt: skip
        self.by_heads: dict[tuple[Region, tuple[int, ...]], int] = {}
        """Part of a storage and shape by tokens -> the value by heads."""
        self.shapes = list(self.facts.shapes)
        """With those that a rank has of what nobody wrote but as summands."""
        self.extra: list[tuple[int, tuple[int, ...]]] = []  # what each is made of, and its shape
        self.sent: list[Transfer] = []
        self.gathered: set[Region] = set()
        self.summed: set[int] = set()
        """What was gathered and summed up along the axis, and is exchanged instead."""
        for row in self.rows:
            self._undo(row)
        for value, origin in self.facts.copy_of.items():
            if self.facts.storage[value] in self.summed:
                self.shapes[origin] = self._part(value, origin)

    def _part(self, value: int, origin: int) -> tuple[int, ...]:
        """What a rank has of a summand: other axes have divided that, not what it is a summand of."""
        shape, whole = self.facts.shapes[value], self.facts.shapes[origin]
        at = min((d for d, n in enumerate(shape) if n % self.size == 0), key=lambda d: whole[d] / shape[d])
        return tuple(n // self.size if d == at else n for d, n in enumerate(shape))

    def _undo(self, row: int) -> None:
        """Let an attention read and write its own part of keys and values, not a gathered copy and not summands."""
        names = self._names(row)
        for at, value in enumerate(self.inputs[row]):
            base = self._base(value, names[0][at])
            if base != value:
                self.inputs[row][at] = base
                self.gathered.add(self._region(base))
        for at, value in enumerate(self.outputs[row]):
            base = self._base(value, names[1][at])
            if base != value:
                self.summed.add(self.facts.storage[value])

    def attention(self, row: int) -> None:
        """What one attention reads and writes, by heads, and what is sent for it."""
        reads, writes = self._names(row)
        before = self.facts.trace.writers()[row]
        for at, (value, names) in enumerate(zip(list(self.inputs[row]), reads, strict=True)):
            if not {QUERIES, KEYS} & set(names):
                continue
            known, self.inputs[row][at] = self._exchanged(value, names)
            if not known and _sent(names):
                made = before[at] if before[at] != NONE else self._writer(value, row)
                self._send(value, made, row)
        for at, (value, names) in enumerate(zip(list(self.outputs[row]), writes, strict=True)):
            value = self._base(value, names)
            self.outputs[row][at] = value
            if HEADS in names and {QUERIES, KEYS} & set(names):
                _, self.outputs[row][at] = self._exchanged(value, names)
                last = self._reader(value, row) if _sent(names) else None
                if last is not None:
                    self._send(value, row, last)

    def _names(self, row: int) -> tuple[list[list[str]], list[list[str]]]:
        """Names of the dimensions of an attention's inputs and outputs."""
        dims = self.facts.dims(row)
        if not dims.known:
            raise PlanError(f"context: what the dimensions of {self.facts.calls[row].name} are is not known")
        names = (*dims.names, "")
        return (
            [[names[label] for label in labels] for labels in dims.inputs],
            [[names[label] for label in out.labels] for out in dims.outputs],
        )

    def _base(self, value: int, names: Sequence[str]) -> int:
        """The part that a rank has of what a gathered copy or a summand is of; other values are themselves."""
        origin = self.facts.copy_of.get(value)
        if origin is None:
            return value
        shape, own = self.facts.shapes[value], self.facts.shapes[origin]
        cut = [at for at, name in enumerate(names) if name in (QUERIES, KEYS) and shape[at] == self.size * own[at]]
        return self._base(origin, names) if cut and self.size > 1 else value

    def _exchanged(self, value: int, names: Sequence[str]) -> tuple[bool, int]:
        """The same value by heads, and whether it was there already.

        Raises:
            PlanError: the heads do not divide.
        """
        own = self.shapes[value]
        shape = list(own)
        for at, name in enumerate(names):
            if name == HEADS and shape[at] % self.size:
                heads = shape[at]
                fits = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
                raise PlanError(
                    f"context: the {heads} heads of keys or queries that a rank has do not divide by cp {self.size} "
                    f"for cp-style ulysses: sizes that do are {fits}; gather takes any"
                )
            if name == HEADS:
                shape[at] //= self.size
            elif name in (QUERIES, KEYS):
                shape[at] *= 1 if names.count(QUERIES) and name == KEYS else self.size
        key = (self._region(value), own)
        known = key in self.by_heads
        if not known:
            self.by_heads[key] = len(self.facts.shapes) + len(self.extra)
            self.extra.append((value, tuple(shape)))
        return known, self.by_heads[key]

    def _region(self, value: int) -> Region:
        return self.facts.storage[value], self.version[value], self.offset[value]

    def _writer(self, value: int, row: int) -> int:
        """The operator that last wrote a value before ``row``."""
        where, views = self.facts.storage[value], self.facts.trace.operators.view
        rows = (r for r in range(row - 1, -1, -1) if not views[r])
        return next((r for r in rows if any(self.facts.storage[v] == where for v in self.facts.outputs[r])), NONE)

    def _reader(self, value: int, row: int) -> int | None:
        """The first operator after ``row`` that reads a value."""
        where = self.facts.storage[value]
        copies = {where, *(self.facts.storage[v] for v in self.facts.copy_of if self.facts.home(v) == where)}
        return next(
            (
                r
                for r in range(row + 1, len(self.inputs))
                if any(self.facts.storage[v] in copies for v in self.inputs[r])
            ),
            None,
        )

    def _send(self, value: int, after: int, before: int) -> None:
        width = float(ITEM_BYTES[self.facts.trace.values.dtype[value]])
        size = math.ceil(math.prod(self.shapes[value]) * width)
        self.sent.append(Transfer(after, before, ALL_TO_ALL, self.axis, size, value))

    def step(self) -> Step:
        """The step with what was exchanged.

        Raises:
            PlanError: something else needs what was gathered.
        """
        self._pass_on()
        sent = self.of.transfers
        storage = self.facts.storage
        homes = {storage[v] for v in range(len(storage)) if storage[v] in self.summed}
        homes |= {self.facts.home(v) for v in self.facts.copy_of if storage[v] in self.summed}
        own = sent.axis == self.axis
        gone = [
            bool(mine) and value >= 0 and (self._region(value) in self.gathered or storage[value] in homes)
            for mine, value in zip(own.tolist(), sent.value.tolist(), strict=True)
        ]
        if not self.rows or np.any(own & ~np.array(gone, bool)):
            raise PlanError(
                f"context: attention of {self.facts.trace.meta.workload or 'the trace'} is several operators, and "
                "ulysses exchanges what goes into one: give --attention flash2, or cp-style gather"
            )
        rest = sent.take(np.flatnonzero(~np.array(gone, bool)))
        return replace(
            self.of, trace=self._trace(), transfers=rest.with_more(Transfers.of(self.sent)),
            origin=(*self.of.origin, *(value for value, _ in self.extra)),
        )  # fmt: skip

    def _pass_on(self) -> None:
        """What was a summand is the rank's own part for who reads it."""
        for table in (self.inputs, self.outputs):
            for row, values in enumerate(table):
                table[row] = [
                    self.facts.copy_of[v] if v in self.facts.copy_of and self.facts.storage[v] in self.summed else v
                    for v in values
                ]

    def _trace(self) -> Trace:
        trace, values = self.of.trace, self.of.trace.values
        first = int(values.storage.max(initial=-1)) + 1
        values = replace(values, shape=Ragged.of(self.shapes))
        more = with_copies(values, self.extra, range(first, first + len(self.extra)))
        operators = replace(
            trace.operators, inputs=Ragged.of(self.inputs, np.int32), outputs=Ragged.of(self.outputs, np.int32)
        )
        return count_work(replace(trace, values=more, operators=operators))


def _sent(names: Sequence[str]) -> bool:
    """Whether a value is sent: not biases and masks, which are made where they are needed, nor sums of exponentials."""
    return HEADS in names and bool({QUERIES, KEYS} & set(names)) and any(width in names for width in WIDTHS)
