"""Activation recomputation: what a block's forward would keep for its backward is dropped and made again before it.

The step becomes another step: the operators of a region run once more, in the phase ``recompute``, just before the
first backward operator that needs what they make, and the backward reads the second making.  Time and memory follow
from the new step alone.

* ``full`` (Chen et al., arXiv:1604.06174): the regions are the model's blocks; a block keeps what it was given.  The
  whole block runs again, as in Megatron-LM; ``torch.utils.checkpoint`` stops at the last operator whose inputs are
  needed and saves the block's last product.
* ``selective`` (Korthikanti et al., arXiv:2205.05198, section 5): the regions are the attention cores, from the scores
  to what they weigh: much memory and little work.  An attention in one kernel keeps no scores: there is little to gain.
* ``pointwise`` (``minimal`` of MaxText; ``save_from_policy`` with products in PyTorch): of each block what takes about
  as long as reading its operands (norms, activations, casts, sums); products, attention and the dispatch of tokens to
  experts are kept.
* ``operators`` (torchtitan's ``selective_ac_option = op``): that, and every second product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.core.columns import Ragged
from triosim.core.errors import PlanError
from triosim.operators import kind
from triosim.trace.blocks import blocks
from triosim.trace.tables import NONE, PERSISTENT, Category, Phase, Trace
from triosim.transform.rewriting import categorised

Recompute = Literal["none", "full", "selective", "pointwise", "operators"]

_FLOWS_ON = ("view", "copy", "elementwise", "softmax", "create")
"""Kinds of operator that may stand between the two products of an attention core."""


_CHEAP = ("view", "copy", "elementwise", "normalization", "create")
"""Kinds of operator that run again where products are kept."""
_PRODUCTS = ("linear", "matmul")


@kept(8)
def recomputed(trace: Trace, which: Recompute) -> Trace:
    """The step with regions of its forward run again before their backward.

    Args:
        trace: a training step.
        which: one of :data:`Recompute`; ``"none"`` returns the trace as it is.

    Raises:
        PlanError: there is nothing of the kind to run again, the step does so already, or an operator changes what its
            region was given, so that it cannot be run again.
    """
    if which == "none" or not np.any(trace.operators.phase == Phase.BACKWARD):
        return trace
    name = trace.meta.workload or "the trace"
    if np.any(trace.operators.phase == Phase.RECOMPUTE):
        raise PlanError(f"recompute {which}: {name!r} already runs operators again: leave --recompute out")
    facts = _Facts(trace)
    within = _attention_cores(facts) if which == "selective" else _blocks(facts)
    regions = within
    if which in ("pointwise", "operators"):
        regions = [_cheap(facts, block, which == "operators") for block in within]
    if not any(regions):
        what = "attention" if which == "selective" else "repeated blocks (numbered modules)"
        raise PlanError(f"recompute {which}: no {what} found in {name!r}: leave --recompute out")
    parts = [_Region(facts, rows, which, block).part() for rows, block in zip(regions, within, strict=True)]
    again = [part for part in parts if part is not None]
    if not again:
        raise PlanError(
            f"recompute {which}: no backward operator of {name!r} reads what its forward made: record the step with "
            "triosim trace record, or import it together with its execution trace"
        )
    made = _woven(facts, again)
    rows = sum(len(part.rows) for part in again)
    note = f"recompute {which}: {rows} operators of {len(again)} regions run again before their backward"
    return replace(made, meta=replace(made.meta, step_time_s=None)).noted(note)


# --- what is run again ------------------------------------------------------------------------------------------------


class _Facts:
    """A trace's columns as lists, and where each storage comes from."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        operators, values = trace.operators, trace.values
        self.inputs, self.outputs = operators.inputs.lists(), operators.outputs.lists()
        self.view, self.phase = operators.view.tolist(), operators.phase.tolist()
        self.storage, self.version = values.storage.tolist(), values.version.tolist()
        self.forward = np.flatnonzero(operators.phase == Phase.FORWARD).tolist()
        self.later = np.flatnonzero(operators.phase == Phase.BACKWARD).tolist()
        self.lasting = set(values.storage[np.isin(values.category, [int(c) for c in PERSISTENT])].tolist())
        self.weights = set(values.storage[values.category == Category.WEIGHT].tolist())
        self.kinds = [kind(text) for text in operators.name]
        self.made: dict[int, int] = {}
        """Storage -> the operator that made it, -1 where it was there before."""
        for row, (reads, writes) in enumerate(zip(self.inputs, self.outputs, strict=True)):
            for value in reads:
                self.made.setdefault(self.storage[value], NONE)
            for value in writes:
                self.made.setdefault(self.storage[value], row)
        self.read_by: dict[int, list[int]] = {}
        """Storage -> forward operators that read it, in order."""
        for row in self.forward:
            for value in self.inputs[row]:
                self.read_by.setdefault(self.storage[value], []).append(row)
        self.touched_by: dict[int, list[int]] = {}
        """Storage -> backward operators that read or write it, in order."""
        self.derivatives: dict[int, list[int]] = {}
        """Forward operator -> the backward operators that differentiate it."""
        forward = operators.forward.tolist()
        for row in self.later:
            self.derivatives.setdefault(forward[row], []).append(row)
            for where in {self.storage[v] for v in (*self.inputs[row], *self.outputs[row])}:
                self.touched_by.setdefault(where, []).append(row)
        self.bytes: list[int] = values.storage_bytes().tolist()
        """Of each storage."""
        # what this file adds
        self.origins: list[int] = []
        self.new_storage: list[int] = []
        self.new_version: list[int] = []
        self.storages = int(values.storage.max(initial=-1)) + 1
        self.last_version: dict[int, int] = {}
        for where, version in zip(self.storage, self.version, strict=True):
            self.last_version[where] = max(version, self.last_version.get(where, 0))

    def copied(self, value: int, storage: int, version: int) -> int:
        """A new value like ``value``."""
        self.origins.append(value)
        self.new_storage.append(storage)
        self.new_version.append(version)
        return len(self.storage) + len(self.origins) - 1


def _blocks(facts: _Facts) -> list[list[int]]:
    """Runs of forward operators in one block."""
    of = blocks(facts.trace).of(facts.trace).tolist()
    runs: list[list[int]] = []
    before = NONE
    for row in facts.forward:
        if of[row] != NONE and of[row] == before:
            runs[-1].append(row)
        elif of[row] != NONE:
            runs.append([row])
        before = of[row]
    return runs


def _cheap(facts: _Facts, block: list[int], products: bool) -> list[int]:
    """Operators of a block that run again: the cheap ones and, where asked for, every second product.

    What would have to keep more than it saves does not: an addition whose summands nobody else needs.
    """
    inside, found, again, multiplied = set(block), [], set[int](), 0
    for row in block:
        of_kind = facts.kinds[row]
        multiplied += of_kind in _PRODUCTS
        if of_kind not in _CHEAP and not (products and of_kind in _PRODUCTS and multiplied % 2 == 0):
            continue
        read, made = ({facts.storage[v] for v in values} for values in (facts.inputs[row], facts.outputs[row]))
        only_for_this = [
            where for where in read - made
            if facts.made[where] in inside and where not in again and where not in facts.touched_by
        ]  # fmt: skip
        if facts.view[row] or sum(facts.bytes[s] for s in only_for_this) < sum(facts.bytes[s] for s in made - read):
            found.append(row)
            again |= made
    return _needed(facts, found)


def _needed(facts: _Facts, rows: list[int]) -> list[int]:
    """Those of rows that the backward needs, or another that it needs."""
    wanted, found = set[int](), []
    for row in reversed(rows):
        made = {facts.storage[v] for v in facts.outputs[row]}
        if made & wanted or any(where in facts.touched_by for where in made):
            found.append(row)
            wanted |= {facts.storage[v] for v in facts.inputs[row]}
    return found[::-1]


def _attention_cores(facts: _Facts) -> list[list[int]]:
    """Forward operators of each attention core: one fused operator, or from the scores to the product with values."""
    writers = facts.trace.writers()
    position = {row: i for i, row in enumerate(facts.forward)}
    found = []
    for row in facts.forward:
        if facts.kinds[row] == "attention":
            found.append([row])
        elif facts.kinds[row] == "softmax":
            scores = _product(facts, row, lambda r: writers[r])
            weighed = _product(facts, row, lambda r: [n for v in facts.outputs[r] for n in _readers(facts, v, r)])
            if scores != NONE and weighed != NONE:
                found.append(facts.forward[position[scores] : position[weighed] + 1])
    return found


def _readers(facts: _Facts, value: int, after: int) -> list[int]:
    return [row for row in facts.read_by.get(facts.storage[value], ()) if row > after]


def _product(facts: _Facts, start: int, steps: Callable[[int], Iterable[int]]) -> int:
    """The nearest product without a weight that is reached over elementwise operators, -1 for none."""
    waiting, seen = [start], {start}
    while waiting:
        for row in steps(waiting.pop(0)):
            if row == NONE or row in seen or facts.phase[row] != Phase.FORWARD:
                continue
            seen.add(row)
            if facts.kinds[row] == "matmul" and not any(facts.storage[v] in facts.weights for v in facts.inputs[row]):
                return row
            if facts.kinds[row] in _FLOWS_ON:
                waiting.append(row)
    return NONE


# --- one region -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """A region as it is run again.

    Attributes:
        rows: its forward operators.
        inputs, outputs: what they read and write the second time.
        before: backward operator before which they run.
        reads, writes: of backward operators, what they read and write instead, by row.
    """

    rows: list[int]
    inputs: list[list[int]]
    outputs: list[list[int]]
    before: int
    reads: dict[int, list[int]]
    writes: dict[int, list[int]]


class _Region:
    """Works out what is made again and who reads it."""

    def __init__(self, facts: _Facts, rows: list[int], which: str, block: list[int]) -> None:
        self.facts, self.rows, self.which = facts, rows, which
        inside, around = set(rows), set(block)
        self.inner = {
            facts.storage[v]
            for row in rows for v in facts.outputs[row]
            if facts.made[facts.storage[v]] in inside and facts.storage[v] not in facts.lasting
        }  # fmt: skip
        self.given_on = {s for s in self.inner if any(row not in around for row in facts.read_by.get(s, ()))}
        """Storages that forward operators of later blocks read: they are kept for those, whatever happens here."""
        self.storages: dict[int, int] = {}  # storage -> the one that it is made in again
        self.values: dict[int, int] = {}

    def part(self) -> _Part | None:
        """The region run again; None where no backward operator needs it."""
        facts = self.facts
        needed, own = self.inner - self.given_on, self._own()
        found = {row for where in needed for row in facts.touched_by.get(where, ())}
        found |= {row for where in self.given_on for row in facts.touched_by.get(where, ()) if row in own}
        users = sorted(found)
        if not users:
            return None
        inputs, outputs = [], []
        for row in self.rows:
            inputs.append([self._again(v) for v in facts.inputs[row]])
            outputs.append([self._written(v, row) for v in facts.outputs[row]])
        reads, writes = {}, {}
        for row in users:
            swapped = self.inner if row in own else needed
            reads[row] = [self._again(v) if facts.storage[v] in swapped else v for v in facts.inputs[row]]
            writes[row] = [self._again(v) if facts.storage[v] in swapped else v for v in facts.outputs[row]]
        return _Part(self.rows, inputs, outputs, users[0], reads, writes)

    def _own(self) -> set[int]:
        """Backward operators of the region."""
        return {row for made in self.rows for row in self.facts.derivatives.get(made, ())}

    def _again(self, value: int) -> int:
        """The value that stands for ``value`` the second time."""
        known = self.values.get(value)
        if known is not None:
            return known
        where = self.facts.storage[value]
        if where not in self.inner:
            return value
        made = self.facts.copied(value, self._storage(where), self.facts.version[value])
        self.values[value] = made
        return made

    def _written(self, value: int, row: int) -> int:
        facts, where = self.facts, self.facts.storage[value]
        if where in self.inner:
            return self._again(value)
        version = facts.version[value]
        if not facts.view[row]:
            if where not in facts.lasting:
                raise PlanError(
                    f"recompute {self.which}: {facts.trace.operators.name[row]} in {self._module(row)!r} writes into "
                    "what its block was given, so the block cannot be run again: leave --recompute out"
                )
            version = facts.last_version[where] = facts.last_version[where] + 1
        self.values[value] = facts.copied(value, where, version)
        return self.values[value]

    def _storage(self, where: int) -> int:
        if where not in self.storages:
            self.storages[where] = self.facts.storages
            self.facts.storages += 1
        return self.storages[where]

    def _module(self, row: int) -> str:
        module = int(self.facts.trace.operators.module[row])
        return self.facts.trace.modules.path[module] if module >= 0 else self.facts.trace.meta.workload


# --- the new step -----------------------------------------------------------------------------------------------------


def _woven(facts: _Facts, parts: Sequence[_Part]) -> Trace:
    """The trace with the parts in their places."""
    trace, count = facts.trace, len(facts.trace)
    values, operators = trace.values, trace.operators
    origins = np.array(facts.origins, np.int64)
    more = replace(
        values,
        storage=np.concatenate([values.storage, np.array(facts.new_storage, np.int32)]),
        version=np.concatenate([values.version, np.array(facts.new_version, np.int32)]),
        offset=np.concatenate([values.offset, values.offset[origins]]),
        shape=Ragged.stacked([values.shape, values.shape.take(origins)]),
        dtype=np.concatenate([values.dtype, values.dtype[origins]]),
        category=np.concatenate([values.category, values.category[origins]]),
        of=np.concatenate([values.of, values.of[origins]]),
        name=(*values.name, *(values.name[v] for v in facts.origins)),
        symbols=Ragged.stacked([values.symbols, values.symbols.take(origins)]),
    )
    source = np.concatenate([np.arange(count), *(np.array(part.rows) for part in parts)])
    place = np.concatenate([np.arange(count) + 0.5, *(np.full(len(part.rows), float(part.before)) for part in parts)])
    order = np.argsort(place, kind="stable")
    source, is_copy = source[order], (order >= count)
    inputs, outputs = list(facts.inputs), list(facts.outputs)
    for part in parts:
        for row, reads in part.reads.items():
            inputs[row] = _merged(facts.inputs[row], inputs[row], reads)
        for row, writes in part.writes.items():
            outputs[row] = _merged(facts.outputs[row], outputs[row], writes)
    inputs += [reads for part in parts for reads in part.inputs]
    outputs += [writes for part in parts for writes in part.outputs]
    new_row = np.full(count + 1, NONE, np.int32)  # the last for none
    new_row[source[~is_copy]] = np.flatnonzero(~is_copy)
    taken = replace(
        operators,
        name=_picked(operators.name, source.tolist()),
        phase=np.where(is_copy, np.int8(Phase.RECOMPUTE), operators.phase[source]).astype(np.int8),
        inputs=Ragged.of([inputs[i] for i in order.tolist()], np.int32),
        outputs=Ragged.of([outputs[i] for i in order.tolist()], np.int32),
        roles=operators.roles.take(source),
        args=_picked(operators.args, source.tolist()),
        forward=np.where(is_copy, new_row[source], new_row[operators.forward[source]]).astype(np.int32),
        **{
            column: getattr(operators, column)[source]
            for column in ("module", "view", "sync", "device_s", "host_s", "flop", "bytes")
        },
    )
    kernels = trace.kernels
    if len(kernels):
        of, again = _kernels(kernels.operator, source, is_copy, new_row)
        kernels = replace(
            kernels, operator=of, name=_picked(kernels.name, again.tolist()), device_s=kernels.device_s[again],
            stream=kernels.stream[again],
        )  # fmt: skip
    communications = trace.communications.unplaced()
    return categorised(replace(trace, values=more, operators=taken, kernels=kernels, communications=communications))


def _merged(first: Sequence[int], now: Sequence[int], then: Sequence[int]) -> list[int]:
    """An operator may read what several regions made: each swaps its own."""
    return [b if b != a else c for a, b, c in zip(first, then, now, strict=True)]


def _picked(texts: tuple[str, ...], rows: Iterable[int]) -> tuple[str, ...]:
    return tuple([texts[row] for row in rows])


def _kernels(
    of: NDArray[np.int32], source: NDArray[np.int64], is_copy: NDArray[np.bool_], new_row: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Operator and origin of each kernel, those of what runs again included."""
    by_row: dict[int, list[int]] = {}
    for kernel, row in enumerate(of.tolist()):
        by_row.setdefault(row, []).append(kernel)
    extra = [(new, k) for new in np.flatnonzero(is_copy).tolist() for k in by_row.get(int(source[new]), ())]
    rows = np.array([*new_row[of].tolist(), *(new for new, _ in extra)], np.int32)
    return rows, np.array([*range(len(of)), *(k for _, k in extra)], np.int64)
