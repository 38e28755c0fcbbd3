"""Scans by heads between operators by tokens: state-space models and linear attention of sequences that ranks share.

A scan passes a state along the sequence, and so does the convolution before it a few tokens, so neither can be done on
a part of the positions.  All-to-alls give each rank all positions of a part of the heads: what it reads is exchanged
before it and its result after it, gradients likewise; a rank sends what it has.  B and C of fewer groups than ranks are
sent to each rank whose heads read them.  Of parameters by head a rank uses its part; their gradients are as large as
the parameters, as those of what was sliced are, and added up with those of the replicas.  The copies that put what was
received in order are not in the step.

Source: Megatron-LM's ``megatron/core/ssm/mamba_context_parallel.py``, whatever the attentions of a hybrid model do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from triosim.core.caching import kept
from triosim.core.columns import Ragged
from triosim.core.errors import PlanError
from triosim.operators.scan import grouped_channels
from triosim.partition.facts import Facts
from triosim.partition.local_trace import with_copies
from triosim.partition.step import Step
from triosim.partition.transfers import ALL_TO_ALL, Transfer, Transfers
from triosim.trace.calls import count_work
from triosim.trace.tables import ITEM_BYTES, Phase

ALONG_SEQUENCE = ("scan", "causal-convolution", "selective-scan")
"""Kinds of operator that need all positions."""


def rows_by_heads(facts: Facts) -> frozenset[int]:
    """Scans, short convolutions, and what is only between those (views, their gradients).

    Args:
        facts: of a step.
    """
    rows = [row for row, phase in enumerate(facts.phase) if phase != Phase.OPTIMIZER]
    kinds = {row for row in rows if facts.calls[row].kind in ALONG_SEQUENCE}
    if not kinds:
        return frozenset()
    made, after = set[int](), set[int]()
    for row in rows:
        reads = {facts.storage[value] for value in facts.inputs[row]}
        if row in kinds or (reads and reads <= made):
            after.add(row)
            made.update(facts.storage[value] for value in facts.outputs[row])
        else:  # another operator's storage is another value
            made.difference_update(facts.storage[value] for value in facts.outputs[row])
    readers: dict[int, list[int]] = {}
    found = set(kinds)
    for row in reversed(rows):
        others = [r for value in facts.outputs[row] for r in readers.get(value, ())]
        if row in after and others and found.issuperset(others):
            found.add(row)
        for value in facts.inputs[row]:
            readers.setdefault(value, []).append(row)
    return frozenset(found)


@kept(8)
def exchanged_scans(step: Step, size: int, axis: int) -> Step:
    """The step of a rank that scans all positions of a part of the heads.

    Args:
        step: divided along the sequence, scans too.
        size: ranks along the axis.
        axis: row of the mesh's axes.

    Raises:
        PlanError: heads do not divide.
    """
    facts = Facts(step.trace, step.origin)
    rows = rows_by_heads(facts)
    return _Exchange(step, facts, size, axis).along(sorted(rows)) if rows else step


class _Exchange:
    """The values of a step that scans see by heads."""

    def __init__(self, step: Step, facts: Facts, size: int, axis: int) -> None:
        self.of, self.facts, self.size, self.axis = step, facts, size, axis
        values = step.trace.values
        self.version, self.offset = values.version.tolist(), values.offset.tolist()
        self.inputs, self.outputs = [list(row) for row in facts.inputs], [list(row) for row in facts.outputs]
        self.copies: list[tuple[int, tuple[int, ...]]] = []
        self.storages: list[int] = []
        self.sent: list[Transfer] = []
        self.next = int(values.storage.max(initial=-1)) + 1
        self.by_heads: dict[tuple[int, int], int] = {}  # storage and version -> storage of the same by heads
        self.known: dict[tuple[int, tuple[int, ...]], int] = {}

    def along(self, rows: Sequence[int]) -> Step:
        """The step with what those operators read and write by heads."""
        inside, facts = set(rows), self.facts
        readers: dict[int, list[int]] = {}
        for row in range(len(self.inputs)):
            for value in facts.inputs[row] if row not in inside else ():
                readers.setdefault(facts.storage[value], []).append(row)
        for row in rows:
            self._check_norm(row)
            wide, apart = _sequences(facts, row), grouped_channels(facts.calls[row])
            for at, value in enumerate(facts.inputs[row]):
                if value in facts.parameter_of:
                    self.inputs[row][at] = self._slice(value, apart.get(facts.calls[row].roles[at], (0, 0)))
                elif at in wide:
                    self.inputs[row][at] = self._received(value, row, apart.get(facts.calls[row].roles[at], (0, 0)))
            for at in _made_along(facts, row, wide):
                value = facts.outputs[row][at]
                backward, roles = facts.calls[row].backward, facts.calls[row].roles[1:]  # in the order of gradients
                shared = apart.get(roles[at], (0, 0)) if backward and at < len(roles) else (0, 0)
                self.outputs[row][at] = own = self._copy(value, shared)
                reader = next((r for r in readers.get(facts.storage[value], ()) if r > row), None)
                if reader is not None and not self.of.trace.operators.view[row]:
                    self._send(value, own, row, reader)
            for tables, labels in ((self.inputs, facts.dims(row).inputs), (self.outputs, _labels(facts, row))):
                for at, dim in _by_channel(facts, row, labels, tables[row]):
                    tables[row][at] = self._cut(tables[row][at], dim)
        trace = self.of.trace
        more = with_copies(trace.values, self.copies, self.storages)
        operators = replace(
            trace.operators, inputs=Ragged.of(self.inputs, "int32"), outputs=Ragged.of(self.outputs, "int32")
        )
        return replace(
            self.of, trace=count_work(replace(trace, values=more, operators=operators)),
            transfers=self.of.transfers.with_more(Transfers.of(self.sent)),
            origin=(*self.of.origin, *(value for value, _ in self.copies)),
        )  # fmt: skip

    def _check_norm(self, row: int) -> None:
        """Refuse a norm within a scan that spans heads of several ranks.

        Raises:
            PlanError: it is one.
        """
        call = self.facts.calls[row]
        groups = grouped_channels(call).get("zxbcdt", (0, 0))[1]
        if call.find("rmsnorm_weight") >= 0 and groups % self.size:
            raise PlanError(
                f"context: {call.full_name or call.name} norms the heads of each of {groups} groups, which cp "
                f"{self.size} ranks have parts of: give --stack megatron-core, which norms behind the scan, or a cp "
                "that divides them"
            )

    def _received(self, value: int, row: int, shared: tuple[int, int]) -> int:
        """What was exchanged, or made by heads; sent where it is not there."""
        there = (self.facts.storage[value], self.version[value]) in self.by_heads
        own = self._copy(value, shared)
        if not there:
            before = self.of.trace.operators.view
            made = (
                r for r in range(row - 1, -1, -1)
                if not before[r] and any(self.facts.storage[v] == self.facts.storage[value] for v in self.outputs[r]
                                         if v < len(self.facts.storage))
            )  # fmt: skip
            self._send(value, own, next(made, -1), row)
        return own

    def _send(self, value: int, own: int, after: int, before: int) -> None:
        width = float(ITEM_BYTES[self.of.trace.values.dtype[value]])
        size = math.ceil(math.prod(self.copies[own - len(self.facts.shapes)][1]) * width)
        self.sent.append(Transfer(after, before, ALL_TO_ALL, self.axis, size, value))

    def _copy(self, value: int, shared: tuple[int, int]) -> int:
        """All positions of a part of the heads of an activation [samples, positions, channels or heads, ...]."""
        shape = list(self.facts.shapes[value])
        shape[1] *= self.size
        shape[2] = self._share(shape[2], shared)
        region = self.facts.storage[value], self.version[value]
        if region not in self.by_heads:
            self.by_heads[region] = self.next
            self.next += 1
        return self._value(value, tuple(shape), self.by_heads[region])

    def _cut(self, value: int, dim: int) -> int:
        """The part of a value whose channels, but no positions, are in one dimension: states at the ends of chunks."""
        shape, region = list(self.facts.shapes[value]), (self.facts.storage[value], self.version[value])
        shape[dim] = self._share(shape[dim], (0, 0))
        if region not in self.by_heads:
            self.by_heads[region] = self.next
            self.next += 1
        return self._value(value, tuple(shape), self.by_heads[region])

    def _slice(self, value: int, shared: tuple[int, int]) -> int:
        """A rank's part of a parameter by channel or head: a view."""
        shape = self.facts.shapes[value]
        return self._value(value, (self._share(shape[0], shared), *shape[1:]), self.facts.storage[value])

    def _value(self, value: int, shape: tuple[int, ...], storage: int) -> int:
        key = value, shape
        if key not in self.known:
            self.known[key] = len(self.facts.shapes) + len(self.copies)
            self.copies.append((value, shape))
            self.storages.append(storage)
        return self.known[key]

    def _share(self, extent: int, shared: tuple[int, int]) -> int:
        """Channels or heads of a rank.

        Args:
            extent: of all.
            shared: channels among them of groups of heads, and how many groups there are.
        """
        channels, groups = shared
        if channels and groups < self.size and self.size % groups == 0:
            extent, channels = extent - channels, channels // groups
        else:
            channels = 0
        if extent % self.size:
            raise PlanError(
                f"context: {extent} heads or channels of a scan that a rank has do not divide by cp {self.size}: scans "
                "are exchanged by heads, as Megatron-Core does: give a cp that divides the heads and their groups"
            )
        return extent // self.size + channels


def _sequences(facts: Facts, row: int) -> set[int]:
    """Places at which an operator reads activations by position."""
    if facts.calls[row].kind not in ALONG_SEQUENCE:
        return set(range(len(facts.inputs[row])))
    names = (*facts.dims(row).names, "")
    return {at for at, labels in enumerate(facts.dims(row).inputs) if "l" in (names[label] for label in labels)}


def _labels(facts: Facts, row: int) -> list[tuple[int, ...]]:
    return [out.labels for out in facts.dims(row).outputs]


def _by_channel(
    facts: Facts, row: int, labels: Sequence[tuple[int, ...]], values: Sequence[int]
) -> list[tuple[int, int]]:
    """Places and dimensions of what a selective scan has of its channels that is by no position and no parameter."""
    if facts.calls[row].kind != "selective-scan":
        return []
    l, d = (facts.dims(row).label(name) for name in ("l", "d"))
    known = len(facts.shapes)
    return [
        (at, own.index(d)) for at, (own, value) in enumerate(zip(labels, values, strict=True))
        if d in own and l not in own and value < known and len(own) > 2 and value not in facts.parameter_of
    ]  # fmt: skip


def _made_along(facts: Facts, row: int, wide: Iterable[int]) -> list[int]:
    """Places at which an operator writes activations by position."""
    if facts.calls[row].kind not in ALONG_SEQUENCE:
        return list(range(len(facts.outputs[row])))
    names = (*facts.dims(row).names, "")
    return [
        at for at, out in enumerate(facts.dims(row).outputs) if "l" in (names[label] for label in out.labels)
    ]  # fmt: skip
