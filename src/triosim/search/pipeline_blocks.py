"""The stages of every pipeline of a shape, told from a short step with each kind of block once.

A shape (:mod:`triosim.search.bounds`) of many equal blocks is divided and priced as a short one
(:mod:`triosim.trace.repeated`).  All that its pipelines are cut by is a column of its forward operators, laid out for
all blocks; so the cuts are those of the whole model.  A part between two cuts is then a stretch of the short step: it
begins and ends within the blocks in which it does in the whole model, and where it has more blocks than the short step,
one of them, the *pattern*, stands for those left out.  Parts that begin and end alike are read once, whichever stages
of whichever pipelines they are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from triosim.composition.issuing import issue_shares
from triosim.core.dataclass import dataclass
from triosim.core.tiling import NotRepeating
from triosim.partition.gradients import gradients
from triosim.partition.step import Step
from triosim.prediction.staged_job import StagedJob
from triosim.schedule.crossing import crossing_items, floating_storages
from triosim.schedule.cutting import CutCandidates, cutting, where_to_cut
from triosim.schedule.pass_times import RetainedBytes
from triosim.search.recurrence import PassRecurrence, RepeatedBlock
from triosim.trace.repeated import KEPT, PATTERN, RepeatedTrace, RepeatedUnits
from triosim.trace.tables import NONE, Category, Phase

R = TypeVar("R")

EDGE = 2
"""Blocks at either end of the short step that stand for themselves only, so that the pattern has neighbours."""


@dataclass(frozen=True)
class ChunkRange:
    """A part of a pipeline as a range of the short step.

    Attributes:
        begin, end: of its forward operators, places among those of the short step.
        more: blocks that the pattern stands for beside itself.
    """

    begin: int
    end: int
    more: int


@dataclass(frozen=True)
class PartBound:
    """Least seconds and bytes of a part.

    Attributes:
        forward_s, backward_s: seconds of its passes.
        loose_s: of the backward that may be left to do, for its collectives, when its operators have run.
        host_s: in which the host issues them.
        reading_s: of the forward from what arrives to its end.
        returning_s: of the backward from its begin to what goes back.
        through_s, back_s: of the forward and of the backward, from what arrives to what goes on.
        sends, receives, returns: whether something goes on to the next part, comes from the one before, and has a
            gradient that goes back.
        sent: bytes of what goes on.
        kept, freed, passed_on: bytes that the forward keeps for the backward; of them what the first half of a backward
            frees, and what that makes for the second.
        weights, states, gradients: bytes of parameters and optimizer states that it alone uses, and of gradients of
            which it is the first to use the parameter.
        shared: storages of parameters that other parts use as well.
        reduced, gathered: bytes of those gradients, and of those parameters as far as they have any; of parameters that
            all replicas have, and of those that only some have.
    """

    forward_s: float
    backward_s: float
    loose_s: float
    host_s: float
    reading_s: float
    returning_s: float
    through_s: float
    back_s: float
    sends: bool
    receives: bool
    returns: bool
    sent: int
    kept: float
    freed: float
    passed_on: float
    weights: float
    states: float
    gradients: float
    shared: frozenset[int]
    reduced: tuple[float, float]
    gathered: tuple[float, float]


class _BlockLayout:
    """How the forward operators of a short step are laid out for all blocks.

    Args:
        unit: of each forward operator of the short step.
        copies: blocks that the pattern stands for beside itself.

    Raises:
        NotRepeating: blocks do not follow one another, each with equally many operators.
    """

    def __init__(self, unit: NDArray[np.int64], copies: int) -> None:
        self.copies, self.short = copies, len(unit)
        inside = np.flatnonzero((unit >= 1) & (unit <= KEPT))
        self.first = int(inside[0]) if copies else self.short
        self.length = len(inside) // KEPT if copies else 1
        if copies and not np.array_equal(unit[inside], np.repeat(np.arange(1, KEPT + 1), self.length)):
            raise NotRepeating("blocks of unequal length")
        if copies and int(inside[-1]) - self.first + 1 != len(inside):
            raise NotRepeating("something between two blocks")
        at = self.first + np.array([PATTERN - 1, PATTERN]) * self.length
        repeats = np.tile(np.arange(*at), copies + 1)
        self.source = np.concatenate([np.arange(at[0]), repeats, np.arange(at[1], self.short)]) if copies else inside
        if not copies:
            self.source = np.arange(self.short)
        copy = np.zeros(len(self.source), np.int64)
        if copies:
            copy[at[0] : at[0] + len(repeats)] = np.repeat(np.arange(copies + 1), self.length)
        self.copy = copy

    def unit(self, place: int) -> int:
        """The block that a forward operator of the short step is in: 0 before the first, and one more than the last."""
        return min(max((place - self.first) // self.length + 1, 0), KEPT + 1) if self.copies else 0

    def stretch(self, begin: int, end: int) -> ChunkRange:
        """Forward operators ``begin .. end - 1`` of all blocks as a stretch of the short step."""
        if not self.copies:
            return ChunkRange(begin, end, 0)
        units, tail = KEPT + self.copies, len(self.source) - self.short
        i, first = self._within(begin)
        j, last = self._within(end - 1)
        n, front, back = j - i, i <= EDGE, units + 1 - j <= EDGE
        if front:
            u = i
            v = j - self.copies if back else min(u + n, KEPT - 1)
        else:
            v = j - self.copies if back else min(EDGE + n, KEPT - 1)
            u = max(v - n, EDGE)
        here = first if u == 0 else begin - tail if u == KEPT + 1 else self.first + (u - 1) * self.length + first
        there = last if v == 0 else end - 1 - tail if v == KEPT + 1 else self.first + (v - 1) * self.length + last
        return ChunkRange(here, there + 1, n - (v - u))

    def _within(self, place: int) -> tuple[int, int]:
        """Block and place in it of a forward operator of all blocks."""
        units = KEPT + self.copies
        if place < self.first:
            return 0, place
        if place >= self.first + units * self.length:
            return units + 1, place
        return 1 + (place - self.first) // self.length, (place - self.first) % self.length


class PipelineBlocks:
    """The pipelines of a shape.

    Args:
        made: the job, on one stage.
        recurrence: of its operators.
        of: what its workload is a short one of, None where it is whole.

    Attributes:
        lone_states: bytes of optimizer states of each storage that is a parameter of no block that repeats.

    Raises:
        NotRepeating: blocks are not alike.
    """

    def __init__(self, made: StagedJob, recurrence: PassRecurrence, of: RepeatedTrace | None) -> None:
        step, trace = made.step, made.step.trace
        operators = trace.operators
        self.made, self.trace, self.recurrence = made, trace, recurrence
        unit = np.zeros(len(trace), np.int64)
        storage_unit: NDArray[np.int64] | None = None
        if of is not None:
            homes = RepeatedUnits.of(step.homes, of.unit)
            units = homes if step.homes is trace else RepeatedUnits.of(trace, of.unit, homes, step.origin)
            unit, storage_unit = units.operators, units.storages
        phase = operators.phase
        self.forward = np.flatnonzero(phase == Phase.FORWARD)
        self.backward = np.flatnonzero(np.isin(phase, (Phase.BACKWARD, Phase.RECOMPUTE)))
        self.layout = _BlockLayout(unit[self.forward], of.copies if of is not None else 0)
        self.place = self._places()
        self.pattern = (unit == PATTERN) if of is not None else np.zeros(len(trace), bool)
        for rows in (self.forward, self.backward):
            own = np.flatnonzero(self.pattern[rows])
            if len(own) and own[-1] - own[0] + 1 != len(own):
                raise NotRepeating("operators of other blocks among those of one")
        self.held = _PartBytes(step)
        of_pattern = storage_unit == PATTERN if storage_unit is not None else np.zeros(len(self.held.storages), bool)
        self.stands = of_pattern.astype(np.float64)
        repeats = np.zeros(len(of_pattern), bool) if storage_unit is None else np.isin(storage_unit, range(1, KEPT + 1))
        self.lone_states = np.where(repeats, 0.0, self.held.state_bytes)
        self.issued = issue_shares(trace, made.launching)
        self._items = [
            (self._at(item.made), np.array([self._at(row) for row in item.reads]), item)
            for item in crossing_items(step.homes)
        ]
        self._floating = floating_storages(trace)
        self._last_backward = self._differentiated()
        self._parts: dict[Hashable, PartBound] = {}
        self._found: dict[Hashable, Any] = {}  # of parts, whatever is before and after them
        self._cuttings: dict[bytes, CutCandidates] = {}

    # --- the cuts -----------------------------------------------------------------------------------------------------

    def cuts(self, seconds: NDArray[np.float64], count: int, seconds_per_byte: float, how: str) -> list[int]:
        """Where the parts after the first begin, among the forward operators of all blocks.

        Args:
            seconds: of each operator.
            count: number of parts.
            seconds_per_byte: what sending a byte to the next part costs.
            how: one of :data:`triosim.stacks.CUTS`.

        Raises:
            PlanError: there are fewer operators than parts.
        """
        key = seconds.tobytes()
        if key not in self._cuttings:
            device_s, issue_s = self.made.launching.apart(seconds)
            few = cutting(self.trace, device_s, self.made.step.homes, issue_s)
            source = self.layout.source
            apart = (1 + few.block.max(initial=0)) * self.layout.copy
            block = np.where(few.block[source] >= 0, few.block[source] + apart, NONE)
            self._cuttings.clear()
            self._cuttings[key] = CutCandidates(
                few.work[:, source], few.crossing[source], few.tensors[source], few.cuttable[source], block,
                None if few.issued is None else few.issued[source],
            )  # fmt: skip
        return where_to_cut(self._cuttings[key], count, how, seconds_per_byte, self.trace.meta.workload)

    def parts(self, cuts: Sequence[int], seconds: NDArray[np.float64], splits_backward: bool) -> list[PartBound]:
        """The parts between cuts.

        Args:
            cuts: where the parts after the first begin.
            seconds: of each operator.
            splits_backward: whether a backward runs in two halves.
        """
        ends = [0, *cuts, len(self.layout.source)]
        alike = seconds.tobytes()
        found = []
        for number in range(len(ends) - 1):
            begin, end = ends[number], ends[number + 1]
            before = begin - ends[number - 1] if number else 0
            after = ends[number + 2] - end if number + 2 < len(ends) else 0
            of = self.layout.stretch(begin, end)
            key = (of, splits_backward, alike, before, after, before == begin)
            if key not in self._parts:
                self._parts[key] = self._part(of, seconds, alike, splits_backward, before, after, begin, end)
            found.append(self._parts[key])
        return found

    # --- one part -----------------------------------------------------------------------------------------------------

    def _part(
        self, of: ChunkRange, seconds: NDArray[np.float64], alike: bytes, halves: bool, before: int, after: int,
        begin: int, end: int,
    ) -> PartBound:  # fmt: skip
        """What a part takes and holds.

        Args:
            of: the part.
            seconds: of each operator.
            alike: the same as bytes.
            halves: whether its backward is split.
            before, after: forward operators of the part before and of the part after, 0 for none.
            begin, end: of the part, among the forward operators of all blocks.
        """
        forward, place = self.forward[of.begin : of.end], self.place[self.backward]
        backward = self.backward[(place >= of.begin) & (place < of.end)]
        inside = np.zeros(len(self.trace) + 1, bool)
        inside[-1] = inside[forward] = inside[backward] = True
        sizes = [int(np.count_nonzero(self.pattern[rows])) for rows in (forward, backward)]
        ahead, behind = (RepeatedBlock(self.pattern, size, of.more) for size in sizes)

        def takes(rows: NDArray[np.int64], block: RepeatedBlock, slowdown: float | None = None) -> float:
            if not len(rows):
                return 0.0
            key = (of, alike, int(rows[0]), int(rows[-1]), len(rows), slowdown)
            return self._once(key, lambda: self.recurrence.seconds(rows, seconds, inside, block, slowdown))

        arrives = self._arrives(of, before, begin, backward)
        made, alone, sent = self._leaves(of, after)
        reads = forward[forward >= arrives[0]] if arrives else forward
        until = backward[backward <= arrives[1]] if arrives and arrives[1] >= 0 else backward
        whole, through, back = takes(backward, behind), 0.0, 0.0
        if made >= 0:
            through = takes(reads[reads <= made], ahead, 1.0)
            given = until[self.trace.operators.phase[until] == Phase.BACKWARD]
            if not alone:  # what comes back may come along another way
                given = given[self.trace.operators.forward[given] == made]
            back = takes(until[until >= given[0]], behind, 1.0) if len(given) else 0.0
        rows = np.concatenate([forward, backward])
        often = 1.0 + of.more * self.stands
        kept, freed, passed_on = self._once((of, halves), lambda: self.held.kept(forward, backward, halves, often))
        own, grads, shared = self._once(
            of, lambda: self.held.fixed(forward, backward, inside, self.place, of.begin)
        )  # fmt: skip
        size = self.held.storages.size * often
        return PartBound(
            forward_s=takes(forward, ahead), backward_s=whole, loose_s=max(whole - takes(backward, behind, 1.0), 0.0),
            host_s=float((self.issued[rows] * np.where(self.pattern[rows], 1 + of.more, 1)).sum()),
            reading_s=takes(reads, ahead) if arrives else 0.0, returning_s=takes(until, behind), through_s=through,
            back_s=back, sends=made >= 0, receives=arrives is not None,
            returns=arrives is not None and arrives[1] >= 0, sent=sent, kept=kept, freed=freed, passed_on=passed_on,
            weights=float(size[own].sum()), states=float((self.held.state_bytes * often)[own].sum()),
            gradients=float(size[grads].sum()), shared=shared, reduced=_pair(self.held.reduced * often, grads),
            gathered=_pair(self.held.gathered * often, own),
        )  # fmt: skip

    def _once(self, key: Hashable, make: Callable[[], R]) -> R:
        if key not in self._found:
            self._found[key] = make()
        found: R = self._found[key]
        return found

    def _arrives(
        self, of: ChunkRange, before: int, begin: int, backward: NDArray[np.int64]
    ) -> tuple[int, int] | None:  # fmt: skip
        """Of what is made first of all that the part before sends: the operator that reads it, and the one after which
        its gradient goes back (-1 where none does); None where nothing comes."""
        for made, reads, item in self._items:  # in the order in which they are made
            own = reads[(reads >= of.begin) & (reads < of.end)]
            if made >= of.begin or not len(own):
                continue
            away = begin - made if not self.layout.unit(made) else of.begin - made
            if away > before:
                continue
            returned = NONE
            if item.storage in self._floating:
                last = self._last_backward[own]
                last = last[last >= 0]
                phase = self.trace.operators.phase
                every = backward[phase[backward] == Phase.BACKWARD]
                returned = int(last.max()) if len(last) else int(every[-1]) if len(every) else NONE
            return int(self.forward[own[0]]), returned
        return None

    def _leaves(self, of: ChunkRange, after: int) -> tuple[int, bool, int]:
        """The operator that makes the first of what goes on to the next part, -1 for none, whether nothing else is sent
        to whatever part, and its bytes."""
        first, sent, size = NONE, 0, 0
        here = self.layout.unit(of.end - 1)
        for made, reads, item in self._items:
            if not of.begin <= made < of.end or reads[-1] < of.end:
                continue
            beyond = reads[reads >= of.end]
            far = beyond - of.end >= after
            if here <= KEPT - EDGE:  # further on the short step is not what stands there
                far |= np.array([self.layout.unit(place) > here + 1 for place in beyond.tolist()])
            sent += 1 if not far.any() else 2
            if first == NONE and not far.all():
                first, size = item.made, item.bytes
        return first, sent == 1, size

    # --- what belongs to what -----------------------------------------------------------------------------------------

    def _at(self, row: int) -> int:
        """Place of a forward operator among the forward ones."""
        return int(np.searchsorted(self.forward, row))

    def _places(self) -> NDArray[np.int64]:
        """For each operator of a pass the place of the forward operator with which it is cut (:func:`split`)."""
        operators = self.trace.operators
        found = np.full(len(self.trace), NONE, np.int64)
        found[self.forward] = np.arange(len(self.forward))
        module, forward, place = operators.module.tolist(), operators.forward.tolist(), found.tolist()
        last = {module[row]: place[row] for row in self.forward.tolist() if module[row] >= 0}
        current = len(self.forward) - 1
        for row in self.backward.tolist():
            current = place[forward[row]] if forward[row] >= 0 else last.get(module[row], current)
            found[row] = place[row] = current
        return found

    def _differentiated(self) -> NDArray[np.int64]:
        """For each forward operator the last that differentiates it, -1 for none."""
        operators = self.trace.operators
        found = np.full(len(self.forward), NONE, np.int64)
        rows = np.flatnonzero((operators.phase == Phase.BACKWARD) & (operators.forward >= 0))
        found[np.searchsorted(self.forward, operators.forward[rows])] = rows  # the last of several counts
        return found


class _PartBytes(RetainedBytes):
    """Bytes of a shape's storages by part."""

    def __init__(self, step: Step) -> None:
        super().__init__(step)
        trace, storages = step.trace, self.storages
        values = trace.values
        state = (values.category == Category.OPTIMIZER_STATE) & (values.of >= 0)
        _, once = np.unique(values.storage[state], return_index=True)
        owner = values.storage[values.of[state][once]]
        self.state_bytes = np.bincount(owner, storages.size[values.storage[state][once]], len(storages))
        self.weight = storages.category == Category.WEIGHT
        self.passes = np.flatnonzero(trace.operators.phase != Phase.OPTIMIZER)
        size = values.bytes()
        self.reduced, self.gathered = (np.zeros((2, len(storages))) for _ in range(2))
        for gradient in gradients(trace):
            apart = int(gradient.parameter in step.apart)
            self.reduced[apart, gradient.storage] = min(gradient.bytes, int(storages.size[gradient.storage]))
            self.gathered[apart, values.storage[gradient.parameter]] = size[gradient.parameter]

    def fixed(
        self, forward: NDArray[np.int64], backward: NDArray[np.int64], inside: NDArray[np.bool_],
        place: NDArray[np.int64], begin: int,
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_], frozenset[int]]:  # fmt: skip
        """Which storages are parameters that a part alone uses, and which gradients of which it is the first to use the
        parameter; and parameters that it shares.

        Args:
            forward, backward: operators of the part.
            inside: which operators are of the part.
            place: with which forward operator each is cut.
            begin: the first forward operator of the part.
        """
        storages = self.storages
        used, elsewhere, grads, earlier = (np.zeros(len(storages), bool) for _ in range(4))
        used[storages.touched(np.concatenate([forward, backward]))[0]] = True
        elsewhere[storages.touched(self.passes[~inside[self.passes]])[0]] = True
        grads[storages.touched(backward)[0]] = True
        earlier[storages.touched(self.passes[place[self.passes] < begin])[0]] = True
        return (
            used & self.weight & ~elsewhere, grads & storages.gradient & ~earlier,
            frozenset(np.flatnonzero(used & self.weight & elsewhere).tolist()),
        )  # fmt: skip


def _pair(size: NDArray[np.float64], which: NDArray[np.bool_]) -> tuple[float, float]:
    """Sums of two rows over some of their columns."""
    return float(size[0, which].sum()), float(size[1, which].sum())
