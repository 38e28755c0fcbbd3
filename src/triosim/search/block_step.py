"""A step of many equal blocks as one of few: what its stages are made of is worked out once, however many there are.

Plans that divide a micro-batch alike differ in how many blocks their stages have.  So a step with :data:`BLOCKS` blocks
is divided and priced, once for all of them; where the long step would be cut is found on columns of its forward
operators, which repeat; and a *chunk* of the long step, a part of the model between two cuts, is looked up as one of
the same number of blocks, or of :data:`SHORTEST` and more, in the short one.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.core.dataclass import dataclass
from triosim.core.result_cache import ResultCache, content
from triosim.partition.gradients import Gradient, reduced_gradients
from triosim.partition.step import Step
from triosim.schedule.cutting import CutCandidates, cutting, where_to_cut
from triosim.stacks import Stack
from triosim.trace.blocks import blocks
from triosim.trace.repeated import KEPT, ROOM, repeated
from triosim.trace.tables import NONE, Phase, Trace

BLOCKS = 10
"""Blocks of a short step: one chunk of five has neighbours on both sides."""
SHORTEST = 3
"""Blocks of the shortest chunk from which longer ones are told, by what one and two more add."""
LONGEST = SHORTEST + 2
"""Blocks of the longest chunk that is looked up as it is."""
WITHIN = 2
"""The block of the short step in which a chunk begins that is not at the begin or the end of the model."""


class NoBlocks(Exception):
    """A step that is not made of equal blocks, or is not cut between and within them."""


class BlockCut(NamedTuple):
    """Where a chunk begins or ends: a block (-1 before all, as many as there are after all), operators of it."""

    block: int
    offset: int


class ModelChunk(NamedTuple):
    """A part of the model between two cuts, whatever blocks it consists of.

    Attributes:
        begin, end: offsets of the cuts; None at the begin and the end of the model.
        before, after: whether it begins before the first block, and ends after the last.
        blocks: blocks from the begin to the end; -1 where it ends before the first.
    """

    begin: int | None
    end: int | None
    before: bool
    after: bool
    blocks: int


def shorter(chunk: ModelChunk) -> list[ModelChunk]:
    """The chunks from which one of more than :data:`LONGEST` blocks is told."""
    return [chunk._replace(blocks=SHORTEST + more) for more in range(3)]


def count_equal_blocks(workload: Trace) -> int:
    """How many equal blocks a workload has; 0 where they are no more than :data:`BLOCKS`, or not alike."""
    of = repeated(workload)
    found = 0 if of is None or len(of.paths[0]) != 1 else of.copies + KEPT
    return found if found > BLOCKS else 0


@kept(64, room=ROOM, size=len)
def with_fewer_blocks(workload: Trace, blocks: int = BLOCKS) -> Trace:
    """A workload of equal blocks with fewer of them, at least :data:`BLOCKS`."""
    of = repeated(workload)
    assert of is not None
    if blocks == of.copies + KEPT:
        return workload
    few = replace(of, paths=(*of.paths[: blocks - KEPT + 1], of.paths[-1]))
    return few.long(of.short)


_PLACES = ResultCache[list[int]](512, np.inf, len)
"""Where steps are cut: the same for plans that differ in what replicas divide."""


@dataclass(frozen=True, eq=False)
class BlockStep:
    """A step of few blocks that stands for one of many.

    Attributes:
        step: of few blocks.
        seconds: of each of its operators.
        blocks: of the step that it stands for.
        cuts_by: how it is cut into stages, one of :data:`triosim.stacks.CUTS`.
        count: how many few are.
        stack: what says in which type gradients are reduced, None for their own.
    """

    step: Step
    seconds: NDArray[np.float64]
    blocks: int
    cuts_by: str
    count: int = BLOCKS
    stack: Stack | None = None

    @cached_property
    def grads(self) -> list[Gradient]:
        """Gradients of its parameters."""
        return reduced_gradients(self.step.trace, self.stack)

    @cached_property
    def _begins(self) -> NDArray[np.int64]:
        """Forward operator with which each block begins, and with which what follows the last does.

        Raises:
            NoBlocks: operators of blocks are not in order.
        """
        trace = self.step.trace
        of = blocks(trace).of(trace)[trace.operators.phase == Phase.FORWARD]
        inside = np.flatnonzero(of >= 0)
        between = of[inside[0] : inside[-1] + 1] if len(inside) else of[:0]
        if not len(between) or (np.diff(between) < 0).any() or (between < 0).any() or between[-1] != self.count - 1:
            raise NoBlocks("operators of blocks are not in order")
        return inside[0] + np.searchsorted(between, np.arange(self.count + 1))

    @cached_property
    def growth(self) -> float:
        """How many times the bytes of the parameters of the short step the long one has."""
        trace = self.step.trace
        of, weights = blocks(trace).of(trace), trace.weights()
        inputs = trace.operators.inputs
        size, within = trace.values.bytes(), np.full(len(trace.values), -1, np.int64)
        rows = inputs.rows()
        within[inputs.values[of[rows] >= 0]] = of[rows[of[rows] >= 0]]  # a parameter of a block is in no other
        one = size[weights[within[weights] == LONGEST]].sum()
        return 1 + (self.blocks - self.count) * float(one) / float(size[weights].sum())

    def _points(self, issue_s: NDArray[np.float64]) -> CutCandidates:
        """Where the long step may be cut.

        Raises:
            NoBlocks: blocks are not alike.
        """
        step, begins = self.step, self._begins
        few = cutting(step.trace, self.seconds, step.homes, issue_s)
        first, end = int(begins[LONGEST]), int(begins[LONGEST + 1])
        before = int(begins[LONGEST - 1])

        def long(column: NDArray) -> NDArray:
            if not np.array_equal(column[..., before:first], column[..., first:end]):
                raise NoBlocks("blocks are not alike")
            more = [column[..., first:end]] * (self.blocks - self.count)
            return np.concatenate([column[..., :first], *more, column[..., first:]], axis=-1)

        begins_anew = np.append(True, few.block[1:] != few.block[:-1])
        block = np.where(long(few.block < 0), NONE, np.cumsum(long(begins_anew))).astype(np.int64)
        issued = None if few.issued is None else long(few.issued)
        return CutCandidates(long(few.work), long(few.crossing), long(few.tensors), long(few.cuttable), block, issued)

    def _points_at(self, issue_s: NDArray[np.float64]) -> tuple[CutCandidates, Hashable]:
        """Where the long step may be cut, and what is equal where that is."""
        key = issue_s.tobytes()
        if key not in self._known:
            points = self._points(issue_s)
            self._known[key] = points, content(points)
        return self._known[key]

    @cached_property
    def _known(self) -> dict[bytes, tuple[CutCandidates, Hashable]]:
        return {}

    def cuts(self, parts: int, seconds_per_byte: float, issue_s: NDArray[np.float64]) -> tuple[BlockCut, ...]:
        """Where the long step is cut into so many parts.

        Args:
            parts: how many.
            seconds_per_byte: what sending a byte to the next part costs.
            issue_s: host seconds of each operator of the short step.

        Raises:
            NoBlocks: blocks are not alike.
            PlanError: as of :func:`triosim.schedule.stages.split`.
        """
        begins, (points, told) = self._begins, self._points_at(issue_s)
        length = int(begins[LONGEST + 1] - begins[LONGEST])
        more = np.arange(1, self.blocks - self.count + 1) * length
        starts = np.concatenate([begins[: LONGEST + 1], begins[LONGEST] + more, begins[LONGEST + 1 :] + more[-1]])
        key = (told, parts, self.cuts_by, seconds_per_byte)
        balanced = _PLACES.get(
            key, lambda: where_to_cut(points, parts, self.cuts_by, seconds_per_byte, self.step.trace.meta.workload)
        )
        places = np.array(balanced, np.int64)
        block = np.searchsorted(starts, places, side="right") - 1
        offset = places - np.where(block >= 0, starts[np.maximum(block, 0)], 0)
        return tuple(BlockCut(b, o) for b, o in zip(block.tolist(), offset.tolist(), strict=True))

    def chunks(self, cuts: tuple[BlockCut, ...]) -> list[ModelChunk]:
        """The parts between cuts.

        Raises:
            NoBlocks: one of them is the whole model.
        """
        found = []
        for begin, end in zip((None, *cuts), (*cuts, None), strict=True):
            before, after = begin is None or begin.block < 0, end is None or end.block >= self.blocks
            if before and after:
                raise NoBlocks("all blocks in one part")
            first = 0 if begin is None or before else begin.block
            last = self.blocks if end is None or after else end.block
            one, other = (None if cut is None else cut.offset for cut in (begin, end))
            found.append(ModelChunk(one, other, before, after, last - first))
        return found

    def places(self, of: ModelChunk, blocks: int, begin: int = WITHIN) -> list[int]:
        """Where the short step is cut to have a chunk with so many blocks as one part.

        Args:
            begin: block in which it begins, if it is not at the begin or the end of the model.

        Raises:
            NoBlocks: there is no room for it.
        """
        first = -1 if of.before else self.count - blocks if of.after else begin
        last = self.count if of.after else (0 if of.before else begin) + blocks
        if max(first, last) > self.count:
            raise NoBlocks("a stage of more parts than a short step has room for")
        ends = [(first, of.begin), (last, of.end)]
        return [
            offset + (int(self._begins[block]) if block >= 0 else 0) for block, offset in ends if offset is not None
        ]
