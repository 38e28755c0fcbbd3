"""What a rank's attention reads and writes when it has its own part of keys and values, and not a gathered copy.

Propagation gathers keys and values that are divided along the sequence, and reduce-scatters their gradients.  Ulysses
and ring attention send something else instead: here the gathered copies and the summands are undone, and what else is
sent put in their place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from triosim.core.columns import Ragged
from triosim.core.errors import PlanError
from triosim.partition.facts import Facts
from triosim.partition.local_trace import with_copies
from triosim.partition.step import Step
from triosim.partition.transfers import Transfer, Transfers
from triosim.trace.calls import count_work
from triosim.trace.tables import ITEM_BYTES, NONE, Phase

HEADS, QUERIES, KEYS, WIDTHS = "h", "s", "t", ("d", "e")
"""Names of dimensions of an attention that is one operator (:mod:`triosim.operators.attention`)."""
Region = tuple[int, int, int]
"""Part of a storage: its number, version and offset."""


def is_sent(names: Sequence[str]) -> bool:
    """Whether a value of an attention travels between ranks: not biases and masks, which are made where they are
    needed, nor sums of exponentials."""
    return HEADS in names and bool({QUERIES, KEYS} & set(names)) and any(width in names for width in WIDTHS)


class AttentionShare:
    """The attentions of one step without what was gathered for them.

    Args:
        step: divided along the sequence, keys and values gathered before attention.
        size: ranks along the axis.
        axis: row of the mesh's axes.
        style: what the user calls it, for messages.

    Attributes:
        rows: operators that are attentions.
        inputs, outputs: value ids by operator, to be changed.
        shapes: of each value, what a rank has.
        sent: transfers to be added.
    """

    def __init__(self, step: Step, size: int, axis: int, style: str) -> None:
        self.of, self.size, self.axis, self.style = step, size, axis, style
        self.facts = Facts(step.trace, step.origin)
        self.version, self.offset = step.trace.values.version.tolist(), step.trace.values.offset.tolist()
        self.inputs = [list(row) for row in self.facts.inputs]
        self.outputs = [list(row) for row in self.facts.outputs]
        self.rows = [
            row for row, phase in enumerate(self.facts.phase)
            if phase != Phase.OPTIMIZER and self.facts.calls[row].kind == "attention"
        ]  # fmt: skip
        self.shapes = list(self.facts.shapes)
        self.sent: list[Transfer] = []
        self._copies: list[tuple[int, tuple[int, ...]]] = []  # what each is a copy of, and its shape
        self._gathered: set[Region] = set()
        self._summed: set[int] = set()
        self.names = {row: self._names(row) for row in self.rows}
        """Names of the dimensions of what each attention reads and of what it writes."""
        for row in self.rows:
            self._undo(row)
        for value, origin in self.facts.copy_of.items():
            if self.facts.storage[value] in self._summed:
                self.shapes[origin] = self._part(value, origin)
        for table in (self.inputs, self.outputs):
            for row, values in enumerate(table):
                table[row] = [
                    self.facts.copy_of[v] if v in self.facts.copy_of and self.facts.storage[v] in self._summed else v
                    for v in values
                ]

    def _names(self, row: int) -> tuple[list[list[str]], list[list[str]]]:
        dims = self.facts.dims(row)
        if not dims.known:
            raise PlanError(f"context: what the dimensions of {self.facts.calls[row].name} are is not known")
        names = (*dims.names, "")  # the last for none
        return (
            [[names[label] for label in labels] for labels in dims.inputs],
            [[names[label] for label in out.labels] for out in dims.outputs],
        )

    def _undo(self, row: int) -> None:
        """Let an attention read its own part of keys and values, and find what it writes as summands."""
        reads, writes = self.names[row]
        for at, value in enumerate(self.inputs[row]):
            base = self._base(value, reads[at])
            if base != value:
                self.inputs[row][at] = base
                self._gathered.add(self.region(base))
        for at, value in enumerate(self.outputs[row]):
            if self._base(value, writes[at]) != value:
                self._summed.add(self.facts.storage[value])

    def _base(self, value: int, names: Sequence[str]) -> int:
        """The part that a rank has of what a gathered copy or a summand is of; other values are themselves."""
        origin = self.facts.copy_of.get(value)
        if origin is None:
            return value
        shape, own = self.facts.shapes[value], self.facts.shapes[origin]
        cut = [at for at, name in enumerate(names) if name in (QUERIES, KEYS) and shape[at] == self.size * own[at]]
        return self._base(origin, names) if cut else value

    def _part(self, value: int, origin: int) -> tuple[int, ...]:
        """What a rank has of a summand: other axes have divided that, not what it is a summand of."""
        shape, whole = self.facts.shapes[value], self.facts.shapes[origin]
        at = min((d for d, n in enumerate(shape) if n % self.size == 0), key=lambda d: whole[d] / shape[d])
        return tuple(n // self.size if d == at else n for d, n in enumerate(shape))

    def region(self, value: int) -> Region:
        """Where a value is."""
        return self.facts.storage[value], self.version[value], self.offset[value]

    def copy(self, value: int, shape: tuple[int, ...]) -> int:
        """A new value, on a storage of its own."""
        self._copies.append((value, shape))
        return len(self.facts.shapes) + len(self._copies) - 1

    def shape_of(self, value: int) -> tuple[int, ...]:
        """Shape of a value, new ones too."""
        known = len(self.facts.shapes)
        return self.shapes[value] if value < known else self._copies[value - known][1]

    def writer(self, value: int, row: int) -> int:
        """The operator that last wrote a value before ``row``, -1 for none."""
        where, views = self.facts.storage[value], self.facts.trace.operators.view
        rows = (r for r in range(row - 1, -1, -1) if not views[r])
        return next((r for r in rows if any(self.facts.storage[v] == where for v in self.facts.outputs[r])), NONE)

    def reader(self, value: int, row: int) -> int | None:
        """The first operator after ``row`` that reads a value."""
        storage, where = self.facts.storage, self.facts.storage[value]
        rows = range(row + 1, len(self.inputs))
        return next((r for r in rows if any(v < len(storage) and storage[v] == where for v in self.inputs[r])), None)

    def send(
        self, value: int, what: int, after: int, before: int, parts: int = 1, axis: int = NONE, width: float = 0.0
    ) -> None:
        """Send a value, or a buffer of ``parts`` of its size, along the axis of the sequences or another one; elements
        are ``width`` bytes, 0 for those that they are kept in."""
        width = width or float(ITEM_BYTES[self.facts.trace.values.dtype[value]])
        size = math.ceil(math.prod(self.shapes[value]) * width) * parts
        self.sent.append(Transfer(after, before, what, self.axis if axis == NONE else axis, size, value))

    def _refusal(self, before: Sequence[int]) -> str:
        """Why what was gathered or summed for operators other than attention cannot be sent in this style."""
        facts, name = self.facts, self.facts.trace.meta.workload or "the trace"
        calls = [facts.calls[row] for row in before if row < len(facts.phase)]
        if any(call.kind == "index-scores" for call in calls):
            return (
                f"context: an indexer of {name} scores all keys of a sequence to choose those that each query attends "
                f"to, and cp-style {self.style} gives no rank all keys before that: give cp-style gather"
            )
        if not self.rows:
            return (
                f"context: attention of {name} is several operators, and {self.style} is for one that runs in blocks: "
                "give --attention flash2, or cp-style gather"
            )
        others = ", ".join(list(dict.fromkeys(call.full_name or call.name for call in calls))[:3]) or "the optimizer"
        return (
            f"context: not attention alone but {others} of {name} needs what other ranks have of a sequence, which "
            f"cp-style {self.style} does not send: give cp-style gather"
        )

    def step(self, args: Sequence[str] | None = None) -> Step:
        """The step with what is sent instead; ``args`` are the operators' arguments where they changed.

        Raises:
            PlanError: something else needs what was gathered.
        """
        sent, storage = self.of.transfers, self.facts.storage
        homes = {self.facts.home(v) for v in self.facts.copy_of if storage[v] in self._summed}
        own = sent.axis == self.axis
        undone = np.array(
            [
                bool(mine) and value >= 0 and (self.region(value) in self._gathered or storage[value] in homes)
                for mine, value in zip(own.tolist(), sent.value.tolist(), strict=True)
            ],
            bool,
        )
        if np.any(own & ~undone):
            raise PlanError(self._refusal(sent.before[own & ~undone].tolist()))
        trace, values = self.of.trace, replace(self.of.trace.values, shape=Ragged.of(self.shapes))
        first = int(values.storage.max(initial=-1)) + 1
        more = with_copies(values, self._copies, range(first, first + len(self._copies)))
        operators = replace(
            trace.operators, inputs=Ragged.of(self.inputs, np.int32), outputs=Ragged.of(self.outputs, np.int32),
            args=trace.operators.args if args is None else tuple(args),
        )  # fmt: skip
        return replace(
            self.of, trace=count_work(replace(trace, values=more, operators=operators)),
            transfers=sent.take(np.flatnonzero(~undone)).with_more(Transfers.of(self.sent)),
            origin=(*self.of.origin, *(value for value, _ in self._copies)),
        )  # fmt: skip
