"""What a chunk of few blocks allocates and frees in its passes, whatever sizes storages have.

Which block of memory comes and goes when follows from the operators alone, and from what has to be gathered in a pass.
So it is put in order once for each way that micro-batches take through a chunk, for all steps of one structure
(:mod:`triosim.search.step_structure`): a row says which storage of the step it is about, or how many bytes where that
does not depend on the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.core.columns import distinct
from triosim.core.dataclass import dataclass
from triosim.memory.allocation_order import AllocationEvent, Undecided, allocation_order, undecided
from triosim.memory.blocks import StepStorages
from triosim.memory.footprint import ROUND_BYTES
from triosim.memory.liveness import BlockLifetime, BlockUses
from triosim.schedule._stage import JobFacts, StageFacts
from triosim.schedule.actions import Pass
from triosim.schedule.gathering import UngatheredUnits
from triosim.search.block_step import LONGEST, NoBlocks
from triosim.search.pass_memory import pass_uses, reduction_uses, update_uses
from triosim.trace.blocks import blocks as blocks_of
from triosim.trace.tables import Trace

_OWN = (AllocationEvent.ALLOCATE_OWN, AllocationEvent.FREE_OWN)
FORWARD, BACKWARD, ITERATION = range(3)
"""In which pass of its micro-batch a block is allocated, or that it is one of the iteration."""

SEVERAL = 3
"""Blocks that read what is no output of one for the next."""


class MicroBatchPath(NamedTuple):
    """The passes of a micro-batch through a chunk.

    Attributes:
        forward, backward: what they have to gather.
        final: whether gradients are complete after the backward.
    """

    forward: UngatheredUnits
    backward: UngatheredUnits
    final: bool


_Fragment = tuple[Pass, bool, UngatheredUnits]
"""A pass, whether gradients are complete after it, and what it has to gather."""


def _fragments(path: MicroBatchPath) -> tuple[_Fragment, _Fragment]:
    """The two passes of a path."""
    return (Pass.FORWARD, False, path.forward), (Pass.BACKWARD, path.final, path.backward)


List = tuple[int, int, int]
"""Which of the lists of a step a storage is in: its category, the how many of that of its parameter (optimizers have
lists of each of their states), and whether it comes before (-1) or after (1) those of repeated blocks."""


@dataclass(frozen=True, eq=False)
class PatternRows:
    """What a pass allocates and frees, or what is there before the first, in order.

    Attributes:
        what: codes of :class:`triosim.memory.allocation_order.AllocationEvent`.
        label: of whom each is: whether replicas have a part each, 1 for those of most parameters and 2 for those of
            which there are other replicas; of what is there before whether each micro-batch has one.
        run, named: which row allocates the block: the pass and the row, or the number of a block of the iteration.
        code: the storage of the step that the block is, -1 less its bytes where it is none.
    """

    what: NDArray[np.int8]
    label: NDArray[np.int8]
    run: NDArray[np.int8]
    named: NDArray[np.int32]
    code: NDArray[np.int64]

    @staticmethod
    def there(storages: NDArray[np.int64], given: NDArray[np.bool_]) -> PatternRows:
        """Storages that are there before."""
        zero = np.zeros(len(storages), np.int8)
        return PatternRows(zero, given.astype(np.int8), zero, zero.astype(np.int32), storages)

    def __len__(self) -> int:
        return len(self.what)

    def bytes_of(self, storages: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes of each where the storages of the step have so many."""
        return coded_bytes(self.code, storages)


def coded_bytes(code: NDArray[np.int64], storages: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes of blocks by their :attr:`PatternRows.code`."""
    return np.where(code >= 0, storages[np.maximum(code, 0)], -1 - code)


class PatternOfBlocks:
    """Rows of a chunk of any number of blocks, from those of three, four and five.

    Args:
        few: these.
        storages: bytes of the storages of a step.

    Raises:
        NoBlocks: the last block does not add what the one before does.
    """

    def __init__(self, few: Sequence[PatternRows], storages: NDArray[np.int64]) -> None:
        least, old, new = few
        self.new, self.period = new, len(old) - len(least)
        facts = [np.stack([own.what, own.label, own.run, own.bytes_of(storages)]) for own in few]
        length = min(len(least), len(old))
        same = (facts[0][:, :length] == facts[1][:, :length]).all(axis=0)
        self.first = first = int(np.argmin(same)) if not same.all() else length
        until = first + self.period
        if (
            len(new) != len(old) + self.period
            or not 0 <= self.period <= first
            or not np.array_equal(facts[0][:, first:], facts[1][:, until:])
            or not np.array_equal(facts[1][:, :until], facts[2][:, :until])
            or not np.array_equal(facts[1][:, first:], facts[2][:, until:])
        ):
            raise NoBlocks("rows that do not repeat")
        pairs = [(least.code[first:], old.code[until:]), (least.code[:first], old.code[:first]),
                 (old.code[:until], new.code[:until]), (old.code[first:], new.code[until:])]  # fmt: skip
        self.alike = _different([np.concatenate(column) for column in zip(*pairs, strict=True)])
        self._head = new.named[:first] - old.named[:first]
        self._tail = new.named[until:] - old.named[first:]
        if self.period:
            before = slice(first - self.period, first)
            self._step = new.named[first:until] - new.named[before]
            self._middle = new.named[before] - old.named[before]
        elif self._head.any() or self._tail.any():
            raise NoBlocks("rows that are not alike")

    def of(self, blocks: int) -> PatternRows:
        """Those of so many blocks: the same rows again with each block more."""
        new, first, until, more = self.new, self.first, self.first + self.period, blocks - LONGEST
        if not self.period:
            return new
        at = np.concatenate(
            [np.arange(first), np.tile(np.arange(first, until), more + 1), np.arange(until, len(new))]
        )  # fmt: skip
        repeats = new.named[first:until] + np.arange(more + 1)[:, None] * self._step + more * self._middle
        named = [new.named[:first] + more * self._head, repeats.reshape(-1), new.named[until:] + more * self._tail]
        return PatternRows(
            new.what[at], new.label[at], new.run[at], np.concatenate(named).astype(np.int32), new.code[at]
        )


def _different(pairs: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Different storages of some pairs, shape ``(2, pairs)``."""
    found = np.stack(pairs)
    found = found[:, (found[0] != found[1]) & (found[0] >= 0) & (found[1] >= 0)]
    return np.unique(found, axis=1)


class AllocationPattern:
    """What a chunk of few blocks allocates.

    Args:
        facts: the chunk as a stage.
        regathers: whether a backward gathers again what the forward has.

    Attributes:
        resident: what is there before the first pass, by lists.
        reduced: bytes of its gradients, of parameters that all replicas have and of those of which they have others.
        after: what reduces the gradients after the last pass.
        shares: whether passes use what all blocks read, as rotary tables: another chunk of its stage may have it.

    Raises:
        NoBlocks: something depends on more than the chunk.
    """

    def __init__(self, facts: StageFacts, regathers: bool) -> None:
        self.facts, self.regathers = facts, regathers
        (part,), blocks = facts.parts, facts.blocks.build()
        job, storages = facts.job, facts.job.storages
        size, self._part = blocks.size.copy(), np.zeros(len(blocks.size), np.int64)
        of_step = np.arange(len(size)) < len(storages)
        whole = of_step.copy()
        whole[of_step] = size[of_step] == storages.size
        for unit, of_unit in zip(part.units, part.blocks, strict=True):
            self._part[of_unit.shard] = 1 + (unit.parameters[0] in job.step.apart)
            size[of_unit.shard], whole[of_unit.shard] = unit.scatter_bytes, False
        self._code = np.where(whole, np.arange(len(size)), -1 - size)
        known = np.isin(np.arange(len(size)), [block for of_unit in part.blocks for block in of_unit])
        resident, taken = blocks.scope == BlockLifetime.RESIDENT, blocks.size > 0
        if (~of_step & ~known & ~resident & taken).any() or (blocks.home != 0).any():
            raise NoBlocks("blocks that are elsewhere, or no storages of the step")
        self._of_pass = taken & (blocks.scope == BlockLifetime.MICRO_BATCH)
        self._once = taken & (blocks.scope == BlockLifetime.ITERATION)
        self._number = np.cumsum(self._once) - 1  # of blocks of the iteration
        # sizes that tell blocks apart
        told = ROUND_BYTES * np.where(taken, np.arange(len(size)) + 1, 0)
        self._blocks = replace(blocks, size=told)
        self._passes: dict[MicroBatchPath, tuple[PatternRows, PatternRows]] = {}
        self._used_alike: dict[tuple[bytes, ...], tuple[PatternRows, PatternRows]] = {}  # by what they use
        self._within: dict[Pass, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        self._decided: dict[_Fragment, BlockUses] = {}  # uses of blocks of the iteration
        self._checked: set[frozenset[MicroBatchPath]] = set()
        self._reduction, self._update = reduction_uses(facts, part).uses, update_uses(facts).uses
        if len(facts.blocks.build().size) > len(size):
            raise NoBlocks("an update that needs memory")
        if any(self._of_pass[uses.block].any() for uses in (self._reduction, self._update)):
            raise NoBlocks("reductions or updates that use what a micro-batch has")
        (self.after,) = self._ordered([self._reduction])
        apart = [0, 0]
        for gradient in part.grads:
            apart[gradient.parameter in job.step.apart] += gradient.bytes
        self.reduced = apart[0], apart[1]
        self.resident = _listed(job, np.flatnonzero(resident & taken & of_step))
        self.shares = False

    def passes(self, path: MicroBatchPath) -> tuple[PatternRows, PatternRows]:
        """What the forward and the backward of a path allocate and free: the same rows for paths that use blocks alike.

        Raises:
            NoBlocks: lifetimes decide, or passes use other blocks where other parameters are gathered.
        """
        if path not in self._passes:
            uses = [_used_in(self.facts, *fragment, self.regathers) for fragment in _fragments(path)]
            for fragment, own in zip(_fragments(path), uses, strict=True):
                self._decided[fragment] = own.of(self._once[own.block])
            alike = tuple(column.tobytes() for own in uses for column in (own.block, own.first, own.last, own.frees))
            if alike not in self._used_alike:
                self._check(uses)
                forward, backward = self._ordered(uses)
                self._used_alike[alike] = forward, backward
            self._passes[path] = self._used_alike[alike]
        return self._passes[path]

    def check(self, paths: Sequence[MicroBatchPath]) -> None:
        """Refuse paths that a schedule may not take side by side.

        Raises:
            NoBlocks: lifetimes decide which of two blocks comes first.
        """
        checked = frozenset(paths)
        if checked in self._checked:
            return
        for path in paths:
            self.passes(path)
        once = list({fragment: self._decided[fragment] for path in paths for fragment in _fragments(path)}.values())
        once += [uses.of(self._once[uses.block]) for uses in (self._reduction, self._update)]
        freed = np.zeros(len(self._once), bool)
        for uses in once:
            freed[uses.block[uses.frees]] = True
        if any(undecided(uses, freed) for uses in once):
            raise NoBlocks("blocks of which lifetimes decide")
        self._checked.add(checked)

    def _check(self, uses: Sequence[BlockUses]) -> None:
        """When a block of a micro-batch goes must not depend on which other paths are taken.

        Raises:
            NoBlocks: it does.
        """
        for what, all_uses in zip((Pass.FORWARD, Pass.BACKWARD), uses, strict=True):
            own = all_uses.of(self._of_pass[all_uses.block])
            used, freed = distinct(own.block), distinct(own.block[own.frees])
            known = self._within.setdefault(what, (used, freed))
            if not np.array_equal(known[0], used) or not np.array_equal(known[1], freed):
                raise NoBlocks("passes that use other blocks where other parameters are gathered")
            used = distinct(all_uses.block)
            used = used[(self._blocks.scope[used] == BlockLifetime.MICRO_BATCH) & (used < len(self.facts.job.storages))]
            self.shares |= bool((_readers(self.facts.job.step.trace)[used] >= SEVERAL).any())

    def _ordered(self, uses: Sequence[BlockUses]) -> list[PatternRows]:
        """The rows of passes of one micro-batch."""
        try:
            made = allocation_order(self._blocks, uses, np.arange(len(uses)), np.zeros(len(uses), np.int64))
        except Undecided:
            raise NoBlocks("blocks of which lifetimes decide") from None
        place = np.zeros((2, int(made.which.max(initial=0)) + 1), np.int64)  # pass and row that allocates each block
        found = []
        for at, kind in enumerate(made.order.tolist()):
            own = slice(int(made.ends[kind]), int(made.ends[kind + 1]))
            what, which, block = (column[own].astype(np.int64) for column in (made.what, made.which, made.size))
            block = block // ROUND_BYTES - 1
            new = np.flatnonzero(what == AllocationEvent.ALLOCATE_OWN)
            place[0, which[new]], place[1, which[new]] = at, new
            mine = np.isin(what, _OWN)
            run = np.where(mine, place[0, which], ITERATION)
            named = np.where(mine, place[1, which], self._number[block])
            small = [column.astype(np.int8) for column in (what, self._part[block], run)]
            found.append(PatternRows(small[0], small[1], small[2], named.astype(np.int32), self._code[block]))
        return found


@kept(64)
def _used_in(facts: StageFacts, what: Pass, final: bool, needs: UngatheredUnits, regathers: bool) -> BlockUses:
    """What a pass of a chunk uses, whichever others a micro-batch takes through it."""
    return pass_uses(facts, facts.parts[0], what, final, needs, regathers).uses


@kept(16)
def _readers(trace: Trace) -> NDArray[np.int64]:
    """How many repeated blocks read each storage of a step."""
    inputs, storage = trace.operators.inputs, trace.values.storage
    of = blocks_of(trace).of(trace)[inputs.rows()].astype(np.int64)
    count = int(of.max(initial=0)) + 1
    pairs = distinct((storage[inputs.values].astype(np.int64) * count + of)[of >= 0])
    return np.bincount(pairs // count, minlength=int(storage.max(initial=-1)) + 1)


def _listed(job: JobFacts, there: NDArray[np.int64]) -> dict[List, PatternRows]:
    """Some storages of a step, ascending, by their lists."""
    lists, given = _lists(job.storages), job.storages.given & ~job.storages.persistent
    by: dict[List, list[int]] = {}
    for storage in there.tolist():
        by.setdefault(lists[storage], []).append(storage)
    return {name: PatternRows.there(np.array(own, np.int64), given[own]) for name, own in by.items()}


def in_order(spans: dict[List, tuple[int, int]]) -> list[List]:
    """Lists in the order of their storages, of which each has the lowest and the highest.

    Raises:
        NoBlocks: some lie between those of another.
    """
    ascending = sorted(spans, key=spans.__getitem__)
    if any(spans[a][1] >= spans[b][0] for a, b in pairwise(ascending)):
        raise NoBlocks("storages of several lists between each other")
    return ascending


@kept(16)
def _lists(storages: StepStorages) -> list[List]:
    """In which list each storage of a step is."""
    trace = storages.trace
    shown, weights = storages.shown, np.zeros(len(trace.values) + 1, bool)
    weights[trace.weights()] = True
    owner = np.where(weights[shown], shown, trace.values.of[shown])
    inputs, of = trace.operators.inputs, blocks_of(trace).of(trace)
    repeated = np.zeros(len(trace.values) + 1, bool)
    repeated[inputs.values[of[inputs.rows()] >= 0]] = True
    repeated[-1] = False  # of nobody
    number, lists = Counter[tuple[int, int]](), []
    first: dict[tuple[int, int], int] = {}
    for storage, one in enumerate(zip(storages.category.tolist(), owner.tolist(), strict=True)):
        own = one[0], number[one] if one[1] >= 0 else 0
        number[one] += 1
        if repeated[one[1]]:
            first.setdefault(own, storage)
        lists.append(own)
    return [
        (*own, 0 if repeated[value] else -1 if storage < first.get(own, -1) else 1)
        for storage, (own, value) in enumerate(zip(lists, owner.tolist(), strict=True))
    ]
