"""Contracted passes: a pass of a class of stages in a few rows, work that nothing else waits for being one row.

What :class:`triosim.schedule.pass_writer.MicroBatchPassWriter` writes operator by operator is written here from event
to event: work until something is sent, received, gathered or reduced.  Parameters that are gathered and gradients that
are scattered come from the same :class:`triosim.schedule.gathering.Gathering`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import field
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.core.units import picoseconds
from triosim.engine.contended import ContendedFragment, RowKind
from triosim.memory.liveness import BlockUseRecorder
from triosim.partition.gradients import Gradient, total_bytes
from triosim.partition.transfers import ALL_GATHER
from triosim.schedule._stage import PartFacts, StageFacts
from triosim.schedule.actions import Pass
from triosim.schedule.crossing import Boundary
from triosim.schedule.gathering import Gathering, UngatheredUnits
from triosim.schedule.program import COMPUTE, DP, Op, ProgramBuilder
from triosim.search.isolated_transfers import Call
from triosim.search.operator_chain import CallSpan, ChainSegment, OperatorChain, OperatorChainRun
from triosim.search.stage_classes import MessagePort

COMPUTE_STREAM, DATA_STREAM, SEND_STREAM, REPLICA_STREAM, EARLY_STREAM, READY_STREAM, TIED_STREAM = range(7)
STREAMS = 7
"""Streams of a worker: what it computes, the data axis, its sends, between groups of replicas, collectives that begin
before their pass, and two that tell the update that gradients are there, and those that another stage has too: they
hold up none of the others."""


class GradientsReady(NamedTuple):
    """Signal to the optimizer that the gradients of a chunk are complete."""

    chunk: int


class TiedGradientReady(NamedTuple):
    """Signal to the optimizer that the gradient of a parameter that another stage shares is complete."""

    chunk: int
    parameter: int


class TiedGradientExchange(NamedTuple):
    """Transfer of the gradient of a parameter that two stages share (a tied embedding)."""

    parameter: int
    source: int
    target: int
    bytes: int


class LocalTransfer(NamedTuple):
    """A transfer of a stage to itself beside its passes."""


PortTarget = MessagePort | GradientsReady | TiedGradientReady | TiedGradientExchange | LocalTransfer


@dataclass
class ContractedPass:
    """Rows of a pass while they are collected, and what else is known of it.

    Attributes:
        ports: where rows that send or receive lead, in order.
        gap, exposed, waiting_exposed, collective_slowdown: as of :class:`triosim.engine.contended.ContendedFragment`.
        calls: collectives in its stretches of work.
        host: ticks for which the host issues it.
        reduces: the first row of what follows the last backward of a chunk, -1 without any.
        host_delay: as of :class:`triosim.engine.contended.ContendedFragment`.
    """

    kind: list[int] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)
    ticks: list[int] = field(default_factory=list)
    slowdown: list[float] = field(default_factory=list)
    collective_slowdown: list[float] = field(default_factory=list)
    label: list[int] = field(default_factory=list)
    before: list[list[int]] = field(default_factory=list)
    host_delay: list[int] = field(default_factory=list)
    gap: list[int] = field(default_factory=list)
    exposed: list[int] = field(default_factory=list)
    waiting_exposed: float = 0.0
    ports: list[PortTarget] = field(default_factory=list)
    calls: Counter[Call] = field(default_factory=Counter)
    host: int = 0
    reduces: int = -1

    def add(
        self, kind: RowKind, stream: int, ticks: int, before: Sequence[int] = (), slowdown: float = 1.0,
        label: int = -1,
        port: PortTarget | None = None, host_delay: int = 0, gap: int = 0, exposed: int = 0,
        collective_slowdown: float = 1.0,
    ) -> int:  # fmt: skip
        """One more row; returns its number."""
        self.kind.append(int(kind))
        self.stream.append(stream)
        self.ticks.append(int(ticks))
        self.slowdown.append(slowdown)
        self.collective_slowdown.append(collective_slowdown)
        self.label.append(label)
        self.before.append(sorted({row for row in before if row >= 0}))
        self.host_delay.append(host_delay)
        self.gap.append(int(gap))
        self.exposed.append(int(exposed))
        if port is not None:
            self.ports.append(port)
        return len(self.kind) - 1

    def work(self, segments: Sequence[ChainSegment], before: Sequence[int], host_delay: int = 0) -> int:
        """Work that begins when some rows have ended, and ends when its host is that far; returns its last row."""
        first, count = len(self.kind), len(segments)
        self.kind += [int(RowKind.COMPUTE)] * count
        self.stream += [COMPUTE_STREAM] * count
        self.ticks += [int(segment.ticks) for segment in segments]
        self.slowdown += [segment.slowdown for segment in segments]
        self.collective_slowdown += [segment.collective_slowdown for segment in segments]
        self.label += [-1] * count
        self.before += [sorted({row for row in before if row >= 0}), *([] for _ in range(1, count))]
        self.host_delay += [*[0] * (count - 1), host_delay]
        self.gap += [segment.gap for segment in segments]
        self.exposed += [segment.exposed for segment in segments]
        return first + count - 1

    def exchange(
        self,
        chunk: int,
        there: TiedGradientExchange,
        back: TiedGradientExchange,
        ticks: int,
        label: int,
        chain: OperatorChain,
    ) -> int:
        """Sends the gradient of a parameter to a stage that has it too; returns the arrival of that of the other."""
        ready = self.add(RowKind.RECEIVE, -1, 0, port=TiedGradientReady(chunk, there.parameter))
        self.host += chain.send_launch
        host_delay = max(self.host - chain.launch, 0)
        self.add(RowKind.SEND, SEND_STREAM, ticks, [ready], label=label, port=there, host_delay=host_delay)
        return self.add(RowKind.RECEIVE, -1, 0, port=back)

    def fragment(self) -> ContendedFragment:
        """The rows as columns."""
        return ContendedFragment(
            np.array(self.kind, np.int8), np.array(self.stream, np.int8), np.array(self.ticks, np.int64),
            np.array(self.slowdown, np.float64), np.array(self.collective_slowdown, np.float64),
            np.array(self.label, np.int32), Ragged.of(self.before, np.int32), np.array(self.host_delay, np.int64),
            np.array(self.gap, np.int64), np.array(self.exposed, np.int64), self.waiting_exposed,
        )  # fmt: skip


class PassRows(Protocol):
    """Rows of a pass; attributes as of :class:`ContractedPass`."""

    @property
    def ports(self) -> Sequence[PortTarget]: ...
    @property
    def calls(self) -> Counter[Call]: ...
    @property
    def host(self) -> int: ...

    def fragment(self) -> ContendedFragment:
        """The rows as columns."""
        ...


class TransferTimes(Protocol):
    """Says what is moved and sent takes, and under which number it is added up."""

    def collective(self, call: Call) -> int:
        """Ticks of a collective."""
        ...

    def label(self, call: Call) -> int:
        """Number of a collective."""
        ...

    def boundary(self, boundary: Boundary, back: bool) -> tuple[int, int]:
        """Ticks and number of what crosses."""
        ...

    def send(self, source: int, target: int, size: int) -> tuple[int, int]:
        """Ticks and number of what one stage sends to another."""
        ...


class StageContraction:
    """Writes the passes of a stage.

    Args:
        facts: of the stage.
        chain: what its operators take.
        transfer_times: what it exchanges with others takes.
        boundaries: row of each boundary, by its identity.
    """

    def __init__(
        self, facts: StageFacts, chain: OperatorChain, transfer_times: TransferTimes, boundaries: dict[int, int]
    ) -> None:
        self.facts, self.chain, self.transfer_times, self.boundaries, self.job = (
            facts,
            chain,
            transfer_times,
            boundaries,
            facts.job,
        )
        self.leads = any(chain.leads(rows) for part in facts.parts for rows in part.rows.values())

    def pass_of(self, chunk: int, what: Pass, final: bool, needs: UngatheredUnits) -> ContractedPass:
        """A pass of a micro-batch through a chunk, with the reductions after the last."""
        return _PassContraction(self, self.facts.parts[chunk], what, final, needs).run()

    def update(self) -> ContractedPass:
        """What ends an iteration."""
        facts, job, chain, made = self.facts, self.job, self.chain, ContractedPass()
        waits = []
        for part in facts.parts:
            waits.append(made.add(RowKind.RECEIVE, -1, 0, port=GradientsReady(part.chunk)))
            for gradient in part.grads:
                tied = self.tied_bytes(gradient)
                for peer in facts.elsewhere(gradient):
                    sent = self.transfer_times.send(facts.stage, peer, tied)
                    there, back = ((gradient.parameter, *ends) for ends in ((facts.stage, peer), (peer, facts.stage)))
                    waits.append(
                        made.exchange(
                            part.chunk,
                            TiedGradientExchange(*there, tied),
                            TiedGradientExchange(*back, tied),
                            *sent,
                            chain,
                        )
                    )
        rows = [row for row in facts.optimizer if not job.skipped[row]]
        seconds = np.array([job.seconds[row] for row in rows]) * facts.share[rows]
        ticks = picoseconds(seconds, "the optimizer") + chain.gaps[rows]
        left = np.cumsum(ticks[::-1])[::-1]  # from each of them on
        host_delay = made.host + int((np.cumsum(chain.issue[rows]) + left).max(initial=0)) - chain.launch
        made.host += int(chain.issue[facts.optimizer].sum())
        gap = int(chain.gaps[rows].sum())
        made.work(chain.beside(int(ticks.sum()) - gap, gap, ()), waits, max(host_delay, 0))
        if job.replication.states and not facts.sharded and job.sharing > 1:
            size = job.step.trace.values.bytes()
            for group in reversed(facts.groups()):
                axis = job.gathering_axis(group[0].parameter)
                if facts.mesh.size(axis) > 1:
                    self.collective(
                        made,
                        (ALL_GATHER, int(sum(size[g.parameter] for g in group)), facts.mesh.row(axis)),
                        COMPUTE_STREAM,
                    )
        return made

    def collective(self, made: ContractedPass, call: Call, stream: int, before: Sequence[int] = ()) -> int:
        """One more collective of another axis than that which divides operators."""
        made.host += self.chain.launch
        host_delay = made.host - self.chain.launch  # from the release, which is one launch after the host begins
        return made.add(
            RowKind.COLLECTIVE,
            stream,
            self.transfer_times.collective(call),
            before,
            label=self.transfer_times.label(call),
            host_delay=host_delay,
        )

    def tied_bytes(self, gradient: Gradient) -> int:
        """What is exchanged of the gradient of a parameter that several stages have."""
        return -(-gradient.bytes // self.job.shared[0].shards) if self.job.replication.states else gradient.bytes


class _PassContraction:
    """Writes one pass."""

    def __init__(self, of: StageContraction, part: PartFacts, what: Pass, final: bool, needs: UngatheredUnits) -> None:
        self.of, self.part, self.what, self.final, self.job = of, part, what, final, of.job
        self.backward = what is not Pass.FORWARD
        self.rows = part.rows[what]
        self.index = {row: place for place, row in enumerate(self.rows)}
        self.made = ContractedPass()
        self.receives: dict[int, list[int]] = {}  # place of the operator that needs it -> rows
        self.going = part.returning if self.backward else part.leaving
        self.ended = {0: -1}  # place after which a stretch of work ended -> its row
        self.exchanged = -1  # row in which complete gradients have been exchanged along the axis that divides operators
        self.left = 0  # ticks of that after the last operator
        self.under_way: dict[int, CallSpan] = {}  # collectives between operators that have not ended
        self.since = 0  # ticks since then
        self.builder = ProgramBuilder(of.facts.stage, of.facts.ranks)
        self.written: list[int] = []  # rows of the builder as rows of the pass
        self.units: Gathering | None = None
        if part.units:
            scatters = self.backward and self.job.stages.count == 1
            self.units = of.facts.gathering(part, self.builder, BlockUseRecorder(), self.backward, needs, scatters)

    def run(self) -> ContractedPass:
        """All of it."""
        self._receive()
        groups = self._groups() if self.final else []
        ready = [max((self.index[g.ready] + 1 for g in group if g.ready in self.index), default=0) for group in groups]
        starts = self._starts()
        for first, last in zip(starts, [*starts[1:], len(self.rows)], strict=True):
            self._range(first, last, ready)
        if self.final:
            self._reduce(groups, ready)
        return self.made

    def _groups(self) -> list[list[Gradient]]:
        """Gradients that are reduced together, but for those that are scattered unit by unit."""
        if self.job.sharing == 1:
            return []
        gathered = self.job.modules if self.part.units else None
        groups = self.part.groups()
        return [group for group in groups if gathered is None or group[0].parameter not in gathered]

    def _receive(self) -> None:
        if self.backward:
            boundaries = [(0, b) for own in self.part.leaving.values() for b in own if b.returned >= 0]
        else:
            boundaries = [(self.index[row], b) for row, own in sorted(self.part.arriving.items()) for b in own]
        for place, boundary in boundaries:
            row = self.made.add(RowKind.RECEIVE, -1, 0, port=self._port(boundary, sends=False))
            self.receives.setdefault(place, []).append(row)

    def _port(self, boundary: Boundary, sends: bool) -> MessagePort:
        return MessagePort(self.of.boundaries[id(boundary)], self.backward, sends)

    def _starts(self) -> list[int]:
        """Places where work begins anew, as something is gathered or scattered there."""
        begins = {0}
        if self.units is not None:
            begins |= {self.index[row] for row in {self.units.prefetch_at, *self.units.begins} - {-1}}
            begins |= {self.index[row] + 1 for row in self.units.ends} - {len(self.rows)}
        return sorted(begins)

    def _range(self, first: int, last: int, ready: Sequence[int]) -> None:
        """Work between two places at which parameters are gathered, or all of it."""
        before: list[int] = []
        if self.units is not None:
            self.units.before(self.rows[first], len(self.builder) - 1)
            self._take_over()
        under_way = {call: span.after(self.since) for call, span in self.under_way.items() if span.end > self.since}
        chained = self.of.chain.play(self.rows[first:last], self.final, under_way)
        issues = self.made.host - self.of.chain.launch  # from the release of the pass
        self.made.host += chained.host
        self.made.calls.update(self.of.chain.calls[call] for call in chained.calls.tolist())
        self.made.calls.update(self.of.chain.calls[call] for call, _ in chained.leading)
        self.made.waiting_exposed = max(self.made.waiting_exposed, chained.waiting_exposed)
        marks = {last, *(place for place in (*ready, *self.receives) if first < place < last)}
        events = [*self.going, *(self.units.ends if self.units is not None else ())]
        marks |= {self.index[row] + 1 for row in events if first <= self.index[row] < last}
        before += self._lead(chained) if not first else []
        fine, place = self.final or self.units is not None, first
        exchanged = chained.ended(sorted(self.job.once)) if self.final else 0
        for mark in sorted(marks):
            before += self.receives.get(place, ())
            segments = chained.segments(place - first, mark - first) if fine else self._coarse(chained, place, mark)
            host_delay = max(issues + int(chained.host_delay[mark - first - 1]), 0) if mark > first else 0
            if len(segments) > 1 and not fine:
                row = self.made.work(segments[:1], before)
                self.made.add(RowKind.SEND, EARLY_STREAM, 0, [row], port=LocalTransfer())
                row = self.made.work(segments[1:], (), host_delay)
            else:
                row = self.made.work(segments, before, host_delay)
            if fine and chained.at(place - first) < exchanged:
                self.exchanged = row - len(segments) + _reached(segments, exchanged - chained.at(place - first))
            self.ended[mark], before, place = row, [], mark
            if self.units is not None:
                self._goes_on(chained, mark)
                self.written.append(row)
                self.builder.add(Op.COMPUTE, COMPUTE, operator=self.rows[mark - 1])
                self.units.after(self.rows[mark - 1])
                self._take_over()
            self._send(chained, mark, first, issues)
        self.left = max(exchanged - chained.at(last - first), 0)
        if fine and self.of.leads and last == len(self.rows):
            self.made.add(RowKind.SEND, EARLY_STREAM, 0, [self.ended[last]], port=LocalTransfer())

    def _coarse(self, chained: OperatorChainRun, place: int, mark: int) -> list[ChainSegment]:
        """Work as one stretch; or two, the collectives of the next pass coming between.

        Where another chunk's gradients are reduced beside a pass they are so for most of it, so that each stretch takes
        as much longer as its operators and its waiting for collectives do on average.
        """
        begin, end = chained.at(place), chained.at(mark)
        ended = int(chained.end.max(initial=0))
        times = [begin, ended, end] if self.of.leads and begin < ended < end else [begin, end]
        return [chained.average(a, b) for a, b in pairwise(times)]

    def _lead(self, chained: OperatorChainRun) -> list[int]:
        """Collectives that wait for no operator of the pass; returns what its work waits for."""
        row = -1
        for call, waits in chained.leading:
            before = [row, *(self.receives.get(0, ()) if waits else ())]
            row = self.made.add(
                RowKind.SEND, EARLY_STREAM, int(self.of.chain.call_ticks[call]), before, port=LocalTransfer()
            )
        return [row] if row >= 0 else []

    def _goes_on(self, chained: OperatorChainRun, place: int) -> None:
        """What is under way when the operators before a place have ended, or begins then."""
        more = [call for call, _ in self.of.chain.leading(self.rows[place:], self.final)]
        self.under_way, self.since = self.of.chain.follow(chained.under_way, more), 0

    def _take_over(self) -> None:
        """What the units have written."""
        chain = self.of.chain
        for number in range(len(self.written), len(self.builder)):
            op, stream, _, _, _, seconds, size, what, axis, *_ = self.builder.row(number)
            before = [self.written[row] for row in self.builder.before(number)]
            if op == Op.COMPUTE:
                ticks, gap = int(picoseconds(seconds, "a copy")), chain.gap if seconds > 0 else 0
                self.made.host += chain.launch
                segments = chain.beside(ticks, gap, [span.after(self.since) for span in self.under_way.values()])
                self.since += sum(segment.ticks for segment in segments)
                row = self.made.work(segments, before)
            else:
                on = COMPUTE_STREAM if stream == COMPUTE else DATA_STREAM if stream == DP else REPLICA_STREAM
                row = self.of.collective(self.made, (what, size, axis), on, before)
            self.written.append(row)

    def _send(self, chained: OperatorChainRun, mark: int, first: int, issues: int) -> None:
        row = self.rows[mark - 1] if mark else -1  # of a part none of whose operators has a backward there is no row
        if row not in self.going:
            return
        late = max(chained.ended(self.job.issued_after.get(row, ())) - chained.at(mark - first), 0)
        host_delay = issues + int(chained.issued[mark - first - 1])
        for boundary in self.going[row]:
            self.made.host += self.of.chain.send_launch
            host_delay = max(host_delay + self.of.chain.send_launch, 0)
            ticks, label = self.of.transfer_times.boundary(boundary, self.backward)
            self.made.add(
                RowKind.SEND, SEND_STREAM, ticks + late, [self.ended[mark]], label=label, port=self._port(boundary,
                True),
                host_delay=host_delay,
            )  # fmt: skip

    def _reduce(self, groups: Sequence[Sequence[Gradient]], ready: Sequence[int]) -> None:
        """What follows the last backward of a chunk, and what the update waits for."""
        of, made, job, facts = self.of, self.made, self.job, self.of.facts
        made.reduces = len(made.kind)
        last = self.ended[len(self.rows)]
        if self.left:
            last = made.add(RowKind.COMPUTE, COMPUTE_STREAM, self.left, exposed=self.left)
            self.exchanged = last
        reduced: dict[int, int] = {}
        if self.units is not None and job.stages.count > 1:
            self.units = facts.gathering(self.part, self.builder, BlockUseRecorder(), True, UngatheredUnits(), False)
            for number, unit in enumerate(self.part.units):
                if unit.scatter_bytes:
                    row = self.units.reduce(number, max(unit.backward[1], -1))
                    self._take_over()
                    reduced.update(dict.fromkeys(unit.gradients, self.written[row]))
        for group, place in zip(groups, ready, strict=True):
            before, stream, row = [self.ended[place], self.exchanged], DATA_STREAM, -1
            for what, axis, parts in job.reductions(group[0].parameter):
                row = of.collective(made, (what, -(-total_bytes(group) // parts), axis), stream, before)
                before, stream = [row], REPLICA_STREAM
            if row >= 0:
                reduced.update({gradient.storage: row for gradient in group})
        away = {gradient.storage for gradient in self.part.grads if facts.elsewhere(gradient)}
        waits = [row for storage, row in reduced.items() if storage not in away]
        made.add(RowKind.SEND, READY_STREAM, 0, [last, *waits], port=GradientsReady(self.part.chunk))
        for gradient in self.part.grads:
            if gradient.storage in away:
                port = TiedGradientReady(self.part.chunk, gradient.parameter)
                made.add(RowKind.SEND, TIED_STREAM, 0, [reduced.get(gradient.storage, last)], port=port)


def _reached(segments: Sequence[ChainSegment], ticks: int) -> int:
    """How many segments have ended, or the last has begun, after so many ticks of them."""
    ends = np.cumsum([segment.ticks for segment in segments])
    return min(int(np.searchsorted(ends, ticks)) + 1, len(segments))
