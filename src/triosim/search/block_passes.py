"""Passes of model chunks in few rows, those of many blocks extrapolated from those of three, four and five.

A pass of a chunk (:mod:`triosim.search.block_step`) is written as that of a stage is
(:mod:`triosim.search.contracted_passes`), with what it moves and sends named but not timed: that differs from mesh to
mesh. What a block more adds is the same rows again, or the same ticks; it has to be so for the fourth and the fifth
block, or the chunk is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from triosim.composition.host import HostCosts
from triosim.core.columns import Ragged, distinct
from triosim.core.dataclass import dataclass
from triosim.engine.contended import ContendedFragment, RowKind
from triosim.partition.gradients import Gradient
from triosim.prediction.priced_job import PricedJob
from triosim.schedule._stage import JobFacts, PartFacts, StageFacts
from triosim.schedule.actions import SCHEDULES, Pass
from triosim.schedule.costs import ScheduleCosts
from triosim.schedule.crossing import Boundary
from triosim.schedule.gathering import UngatheredUnits
from triosim.schedule.stages import cut
from triosim.search.block_rows import LEADS, WAITS, BlockRows, RowsOfBlocks, extrapolate, joined
from triosim.search.block_step import LONGEST, BlockStep, ModelChunk, NoBlocks, shorter
from triosim.search.contracted_passes import StageContraction, WrittenPass
from triosim.search.isolated_transfers import Call
from triosim.search.operator_chain import OperatorChain
from triosim.search.pass_script import PortTarget, StageScripts
from triosim.search.transfer_times import SEND, SharedLinks
from triosim.trace.tables import Phase


class SymbolicTransferTimes:
    """Numbers the collectives and sends of passes, whose times are not known yet (0).

    Args:
        axis: row of the axis of the stages.
    """

    def __init__(self, axis: int) -> None:
        self.axis = axis
        self.labels: dict[Call, int] = {}
        self.names: list[Call] = []

    def collective(self, call: Call) -> int:
        """Ticks of a collective."""
        return 0

    def label(self, call: Call) -> int:
        """The number of a collective or send."""
        if call not in self.labels:
            self.labels[call] = len(self.names)
            self.names.append(call)
        return self.labels[call]

    def boundary(self, boundary: Boundary, back: bool) -> tuple[int, int]:
        """Ticks and number of what crosses."""
        return self.send(boundary.source, boundary.target, boundary.bytes)

    def send(self, source: int, target: int, size: int) -> tuple[int, int]:
        """Ticks and number of what one stage sends to another."""
        return 0, self.label((SEND, size, self.axis))


Runs = tuple[BlockRows, BlockRows]
_PassKey = tuple[int, ModelChunk, Pass, bool, UngatheredUnits, bool]
"""As of :meth:`ChunkPasses.pass_of`."""


@dataclass(frozen=True)
class BlockPass:
    """A pass of a model chunk.

    Attributes:
        runs: its rows, and those of the reductions after it.
        calls, host, waiting_exposed: as of :class:`triosim.search.contracted_passes.WrittenPass`.
    """

    runs: Runs
    calls: Counter[Call]
    host: int
    waiting_exposed: float

    @staticmethod
    def of(made: WrittenPass) -> BlockPass:
        """A pass as it was written."""
        split, facts = made.reduces, made.facts
        ends, leads = int(facts[:split, WAITS].sum()), int(facts[:split, LEADS].sum())
        late = (made.before >= split).astype(np.int64)
        before = made.before - split * late
        runs = (
            BlockRows(facts[:split], made.host_delay[:split], late[:ends], before[:ends], made.ports[:leads]),
            BlockRows(facts[split:], made.host_delay[split:], late[ends:], before[ends:], made.ports[leads:]),
        )
        return BlockPass(runs, made.calls, made.host, made.waiting_exposed)

    @cached_property
    def columns(self) -> ContendedFragment:
        """Its rows; labels are numbers of :class:`SymbolicTransferTimes`."""
        all_of = joined(self.runs)
        before = Ragged((all_of.before + all_of.run * len(self.runs[0])).astype(np.int32), all_of.ends)
        return ContendedFragment(
            all_of.kind.astype(np.int8), all_of.stream.astype(np.int8), all_of.ticks.copy(), all_of.slowdown.copy(),
            all_of.collective_slowdown.copy(), all_of.label.astype(np.int32), before, all_of.host_delay,
            all_of.gap.copy(), all_of.exposed.copy(), self.waiting_exposed,
        )  # fmt: skip

    @cached_property
    def ports(self) -> tuple[PortTarget, ...]:
        """Where its rows lead, in order."""
        return tuple(port for run in self.runs for port in run.ports)


class SummedPass:
    """A pass as it is on average: gradients are made in the first micro-batch and added to in the others.

    Args:
        one, other: the pass where there are two numbers of micro-batches; ``one`` where it is the same in both.

    Raises:
        NoBlocks: the two are not made of the same rows.
    """

    def __init__(self, one: BlockPass, other: BlockPass | None) -> None:
        rows = one.columns
        self.rows, self.ports, self._calls = rows, one.ports, one.calls
        self._hosts = [of.host for of in (one, other) if of is not None]
        self._more: tuple[NDArray[np.int64], NDArray[np.float64]] | None = None
        if other is not None:
            two = other.columns
            if not _same_rows(rows, two) or one.ports != other.ports:
                raise NoBlocks("passes of other rows where gradients are made")
            self._more = _whole(two) - _whole(rows), two.slowdown - rows.slowdown
        leads = rows.kind >= RowKind.SEND
        moves = np.where(leads, -1, rows.label)
        self._moves = [(number, np.flatnonzero(moves == number)) for number in distinct(moves).tolist() if number >= 0]
        sent = zip(np.flatnonzero(leads).tolist(), one.ports, strict=True)
        self._sent = [(number, row, port) for row, port in sent if (number := int(rows.label[row])) >= 0]

    @property
    def calls(self) -> list[int]:
        """Numbers of :class:`SymbolicTransferTimes` of the collectives among its rows."""
        return [number for number, _ in self._moves]

    def bound(
        self, part: float, ticks: Callable[[int, PortTarget | None], int], label: Callable[[int], int]
    ) -> BoundPass:
        """The pass on a mesh, ``part`` of the way from the one to the other, 2 for as far again beyond it.

        Args:
            ticks: of what moves, by its number of :class:`SymbolicTransferTimes` and where it leads.
            label: the number of the mesh for those.

        Raises:
            NoBlocks: a row beyond the other would take less than nothing.
        """
        rows, host = self.rows, self._hosts[0]
        whole, slowdown = _whole(rows), rows.slowdown
        if part and self._more is not None:
            more, slower = self._more
            whole = np.rint(whole + part * more).astype(np.int64)
            slowdown = slowdown + part * slower
            host = round(host + part * (self._hosts[1] - host))
            if (whole < 0).any() or (slowdown < 1).any():  # launching hides what is between
                raise NoBlocks("passes that do not go on as they begin")
        took, host_delay, gap, exposed = whole
        gap = np.minimum(gap, took)
        exposed = np.minimum(exposed, took - gap)  # each was rounded on its own
        named = np.full(len(rows), -1, np.int32)
        for number, at in self._moves:
            took[at] += ticks(number, None)
            named[at] = label(number)
        for number, row, port in self._sent:
            took[row] += ticks(number, port)
            named[row] = label(number)
        fragment = ContendedFragment(
            rows.kind, rows.stream, took, slowdown, rows.collective_slowdown, named, rows.before, host_delay, gap,
            exposed, rows.waiting_exposed,
        )  # fmt: skip
        return BoundPass(fragment, self.ports, self._calls, host)


@dataclass(frozen=True)
class BoundPass:
    """A pass of a model chunk on a mesh.

    Attributes:
        rows: of the pass.
        ports, calls, host: as of :class:`triosim.search.contracted_passes.ContractedPass`.
    """

    rows: ContendedFragment
    ports: tuple[PortTarget, ...]
    calls: Counter[Call]
    host: int

    def fragment(self) -> ContendedFragment:
        """Its rows."""
        return self.rows


def _whole(rows: ContendedFragment) -> NDArray[np.int64]:
    """The ticks of rows that other numbers of micro-batches have more or less of, shape ``(4, rows)``: of the row, of
    its host, and those in which it does nothing or moves something."""
    return np.stack([rows.ticks, rows.host_delay, rows.gap, rows.exposed])


def _same_rows(one: ContendedFragment, other: ContendedFragment) -> bool:
    """Whether two passes differ in times only."""
    columns = ("kind", "stream", "label")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in columns) and (
        np.array_equal(one.before.offsets, other.before.offsets)
        and np.array_equal(one.before.values, other.before.values)
    )


class PassOfBlocks:
    """A pass of any number of blocks, from those of three, four and five.

    Args:
        few: passes with :data:`SHORTEST` blocks and one and two more.

    Raises:
        NoBlocks: the last block does not add what the one before does.
    """

    def __init__(self, few: Sequence[BlockPass]) -> None:
        self.few = few
        adds = [len(few[1].runs[run]) - len(few[0].runs[run]) for run in (0, 1)]
        self.runs = tuple(RowsOfBlocks([one.runs[run] for one in few], adds) for run in (0, 1))

    def of(self, blocks: int) -> BlockPass:
        """That of so many blocks.

        Raises:
            NoBlocks: as of the class.
        """
        one, other = (run.rows(blocks) for run in self.runs)
        calls = {call: extrapolate([own.calls[call] for own in self.few], blocks) for call in self.few[-1].calls}
        host = extrapolate([own.host for own in self.few], blocks)
        return BlockPass((one, other), Counter(calls), host, self.few[-1].waiting_exposed)


@dataclass(frozen=True, eq=False)
class ChunkFacts:
    """Properties of a chunk besides its passes, where it has so many blocks.

    Attributes:
        leads: whether a pass calls a collective before anything that it receives is there.
        gathers: whether parameters are gathered in its passes.
        arriving, leaving: bytes of each value that crosses its begin and its end.
        share: what it has of each row of the optimizer, part of the short step's.
        groups: bytes of the parameters of each group of gradients that are reduced together, with their axis.
        tied: parameters, and bytes, of gradients that the other end of the model has too.
    """

    leads: bool
    gathers: bool
    arriving: tuple[int, ...]
    leaving: tuple[int, ...]
    share: NDArray[np.float64]
    groups: tuple[tuple[int, int], ...]
    tied: tuple[tuple[int, int], ...]


class ChunkStages:
    """The chunks of a step as stages of a pipeline, however long what they exchange takes.

    Args:
        job: that the step is of.
        step: of few blocks.
        copies: seconds for copying a byte on the device, where parameters are gathered.
        alike: the chunks of steps that differ from this one in the samples of a micro-batch only, as far as any are
            known: a chunk that is there is taken in the sizes of this step, and runs what it does there.

        facts: what is known besides of chunks of those steps.

    Attributes:
        known: those that were asked for.
    """

    def __init__(
        self, job: PricedJob, step: BlockStep, copies: float, alike: dict[ModelChunk, StageScripts],
        facts: dict[ModelChunk, ChunkFacts],
    ) -> None:  # fmt: skip
        self.job, self.step, self.alike = job, step, alike
        self.costs = ScheduleCosts(step.seconds, copy_s_per_byte=copies)
        self.known: dict[ModelChunk, StageFacts] = {}
        self._facts_alike, self._facts = facts, dict[ModelChunk, ChunkFacts]()

    def of(self, chunk: ModelChunk) -> StageFacts:
        """A chunk as a stage between its neighbours.

        Raises:
            NoBlocks: values cross several stages.
        """
        if chunk not in self.known:
            first = self.first_of(chunk)
            self.known[chunk] = first if first.job.step is self.step.step else self._resized(first)
        return self.known[chunk]

    def first_of(self, chunk: ModelChunk) -> StageFacts:
        """The chunk of the first step of its structure of which it was asked for; errors as of :meth:`of`."""
        return self.scripts(chunk).facts

    def scripts(self, chunk: ModelChunk) -> StageScripts:
        """What the passes of a chunk do, whatever the sizes; errors as of :meth:`of`."""
        if chunk not in self.alike:
            self.alike[chunk] = StageScripts(self._stage(chunk))
        return self.alike[chunk]

    def facts(self, chunk: ModelChunk) -> ChunkFacts:
        """What is known of a chunk besides.

        Raises:
            NoBlocks: blocks do not add alike.
        """
        if chunk not in self._facts:
            if chunk not in self._facts_alike:
                self._facts_alike[chunk] = self._known(chunk)
            few = [_crossing(self.of(one)) for one in (shorter(chunk) if chunk.blocks > LONGEST else (chunk,))]
            if any(one != few[-1] for one in few):
                raise NoBlocks("blocks that send differently")
            arriving, leaving = few[-1]
            self._facts[chunk] = replace(self._facts_alike[chunk], arriving=arriving, leaving=leaving)
        return self._facts[chunk]

    def _known(self, chunk: ModelChunk) -> ChunkFacts:
        if chunk.blocks <= LONGEST:
            return self._few_facts(chunk)
        few = [self._few_facts(one) for one in shorter(chunk)]
        last = few[-1]
        share = last.share + (chunk.blocks - LONGEST) * (last.share - few[1].share)
        runs = []
        for one in few:
            sizes, axes = ([group[at] for group in one.groups] for at in (0, 1))
            runs.append(BlockRows.of(axes, 0, np.zeros(len(axes), np.int64), sizes, 1.0, 0))
        longest = RowsOfBlocks(runs).rows(chunk.blocks)
        groups = tuple(zip(longest.ticks.tolist(), longest.kind.tolist(), strict=True))
        if sorted(groups) != sorted(self._groups_of(chunk)):
            raise NoBlocks("gradients that are reduced in other groups the more blocks there are")
        return replace(last, share=share, groups=groups)

    def _few_facts(self, chunk: ModelChunk) -> ChunkFacts:
        if chunk not in self._facts_alike:
            self._facts_alike[chunk] = _facts_of(self.scripts(chunk))
        return self._facts_alike[chunk]

    def _groups_of(self, chunk: ModelChunk) -> list[tuple[int, int]]:
        """Bytes of the parameters, and the axis, of each group of gradients that a long chunk reduces together.

        Groups need not end where blocks do, so that three numbers of blocks may grow alike and a fourth not.
        """
        old, new = (self.first_of(one).parts[0] for one in shorter(chunk)[1:])
        job = new.job
        if job.sharing == 1:
            return []
        kinds = [[(g.bytes, g.parameter in job.step.apart) for g in part.grads] for part in (old, new)]
        pairs = enumerate(zip(*kinds, strict=False))
        first = next((place for place, (a, b) in pairs if a != b), len(kinds[0]))
        end = first + len(kinds[1]) - len(kinds[0])
        if kinds[1][end:] != kinds[0][first:]:
            raise NoBlocks("blocks whose gradients differ")
        own = new.grads
        return _groups(new, [*own[:first], *own[first:end] * (chunk.blocks - LONGEST + 1), *own[end:]])

    def _resized(self, first: StageFacts) -> StageFacts:
        mesh = replace(self.job.mesh, axes=first.mesh.axes)
        return first.resized(self.step.step, self.costs, self.job.plan, mesh)

    def _stage(self, chunk: ModelChunk) -> StageFacts:
        step, priced = self.step.step, self.job
        stages = cut(step.trace, self.step.places(chunk, chunk.blocks), step.homes)
        axes = tuple((name, stages.count if name == "pp" else size) for name, size in priced.mesh.axes)
        schedule = SCHEDULES.get("1f1b")()
        job = JobFacts(
            step, self.costs, stages, schedule, priced.plan, replace(priced.mesh, axes=axes), self.step.grads
        )  # fmt: skip
        if any(abs(b.target - b.source) != 1 for b in stages.boundaries):
            raise NoBlocks("values that cross several stages")
        return StageFacts(job, 0 if chunk.begin is None else 1)


class ChunkPasses:
    """The passes of the chunks of a step.

    Args:
        stages: its chunks.
        seconds: of each of its operators, for two numbers of micro-batches.
        launching: what launching costs.
        slowdown, called, tensor, lags: as of :class:`triosim.search.operator_chain.OperatorChain`.
    """

    def __init__(
        self, stages: ChunkStages, seconds: Sequence[NDArray[np.float64]], launching: HostCosts, slowdown: float,
        called: dict[Call, int], tensor: SharedLinks, lags: dict[Call, int],
    ) -> None:  # fmt: skip
        self.stages, self.step, self.seconds, self.launching = stages, stages.step, seconds, launching
        self.slowdown, self.called, self.tensor, self.lags = slowdown, called, tensor, lags
        self.transfer_times = SymbolicTransferTimes(stages.job.mesh.pipeline_axis)
        forward = self.step.step.trace.operators.phase == Phase.FORWARD
        self._same_forward = all(np.array_equal(own[forward], seconds[0][forward]) for own in seconds)
        self._stages: dict[ModelChunk, tuple[list[StageContraction], PartFacts]] = {}
        self._chains: dict[Hashable, OperatorChain] = {}
        self._few: dict[_PassKey, BlockPass] = {}
        self._any: dict[_PassKey, PassOfBlocks] = {}  # whatever their blocks
        self._summed: dict[tuple[ModelChunk, Pass, bool, UngatheredUnits, bool], SummedPass] = {}

    def summed(
        self, chunk: ModelChunk, what: Pass, final: bool, needs: UngatheredUnits, leads: bool
    ) -> SummedPass:  # fmt: skip
        """A pass of a chunk for whatever number of micro-batches; arguments and errors as of :meth:`pass_of`."""
        key = chunk, what, final, needs, leads
        if key not in self._summed:
            one = self.pass_of(0, *key)
            alike = what is Pass.FORWARD and self._same_forward
            self._summed[key] = SummedPass(one, None if alike else self.pass_of(1, *key))
        return self._summed[key]

    def pass_of(
        self, which: int, chunk: ModelChunk, what: Pass, final: bool, needs: UngatheredUnits, leads: bool
    ) -> BlockPass:  # fmt: skip
        """A pass of a chunk.

        Args:
            which: of the seconds.
            leads: whether any pass of its stage calls a collective before what it receives is there.

        Raises:
            NoBlocks: blocks do not add alike.
        """
        key = (which, chunk, what, final, needs, leads)
        if chunk.blocks <= LONGEST:
            return self._pass(*key)
        alike = (which, chunk._replace(blocks=LONGEST), *key[2:])
        if alike not in self._any:
            self._any[alike] = PassOfBlocks([self._pass(which, one, *key[2:]) for one in shorter(chunk)])
        return self._any[alike].of(chunk.blocks)

    @cached_property
    def optimizer(self) -> tuple[list[int], OperatorChain]:
        """Rows of the optimizer that run, and the chain that knows them."""
        (of, *_), _ = self._stage(next(iter(self.stages.known)))
        phase = self.step.step.trace.operators.phase
        rows = np.flatnonzero((phase == Phase.OPTIMIZER) & ~np.array(of.job.skipped)).tolist()
        return rows, of.chain

    def _pass(
        self, which: int, chunk: ModelChunk, what: Pass, final: bool, needs: UngatheredUnits, leads: bool
    ) -> BlockPass:  # fmt: skip
        key = (which, chunk, what, final, needs, leads)
        if key not in self._few:
            of, part = self._stage(chunk)
            self._few[key] = BlockPass.of(of[which].pass_of(part.chunk, what, final, needs, leads))
        return self._few[key]

    def _stage(self, chunk: ModelChunk) -> tuple[list[StageContraction], PartFacts]:
        if chunk not in self._stages:
            self._stages[chunk] = self._contraction(chunk)
        return self._stages[chunk]

    def _contraction(self, chunk: ModelChunk) -> tuple[list[StageContraction], PartFacts]:
        facts, scripts, found = self.stages.of(chunk), self.stages.scripts(chunk), []
        for which, own in enumerate(self.seconds):
            key = which, scripts.calling, tuple(facts.job.exchanged)
            if key not in self._chains:
                self._chains[key] = OperatorChain(
                    facts.job, self.launching, self.slowdown, self.called, self.tensor, self.lags, own
                )  # fmt: skip
            found.append(StageContraction(scripts, facts, self._chains[key], self.transfer_times))
        return found, facts.parts[0]


def _facts_of(scripts: StageScripts) -> ChunkFacts:
    facts = scripts.facts
    (part,), job = facts.parts, facts.job
    updates = np.flatnonzero(job.step.trace.operators.phase == Phase.OPTIMIZER)
    arriving, leaving = _crossing(facts)
    return ChunkFacts(
        leads=scripts.leads,
        gathers=bool(part.units),
        arriving=arriving,
        leaving=leaving,
        share=facts.share[updates],
        groups=tuple(_groups(part, part.grads) if job.sharing > 1 else ()),
        tied=tuple((g.parameter, g.bytes) for g in part.grads if facts.elsewhere(g)),
    )


def _crossing(facts: StageFacts) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes of each value that crosses the begin and the end of a chunk."""
    (part,), crossing = facts.parts, facts.job.stages.boundaries
    return (
        tuple(b.bytes for b in crossing if b.target == part.number),
        tuple(b.bytes for b in crossing if b.source == part.number),
    )


def _groups(part: PartFacts, grads: Sequence[Gradient]) -> list[tuple[int, int]]:
    """Bytes of the parameters, and the axis, of each group of some gradients that a part would reduce together."""
    job, size = part.job, part.job.step.trace.values.bytes()
    return [
        (int(sum(size[g.parameter] for g in group)), job.mesh.row(job.gathering_axis(group[0].parameter)))
        for group in part.grouped(grads)
    ]
