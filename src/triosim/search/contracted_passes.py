"""Contracted passes: a pass of a class of stages in a few rows, work that nothing else waits for being one row.

What a pass does in order is its script (:mod:`triosim.search.pass_script`); here it is run with what its operators
(:mod:`triosim.search.operator_chain`) and transfers take.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import field
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.core.units import picoseconds
from triosim.engine.contended import ContendedFragment, RowKind
from triosim.partition.gradients import Gradient
from triosim.partition.transfers import ALL_GATHER
from triosim.schedule._stage import StageFacts
from triosim.schedule.actions import Pass
from triosim.schedule.crossing import Boundary
from triosim.schedule.gathering import UngatheredUnits
from triosim.search.block_rows import (
    COLLECTIVE,
    EXPOSED,
    GAP,
    KIND,
    LABEL,
    LEADS,
    SLOWDOWN,
    STREAM,
    TICKS,
    WAITS,
)
from triosim.search.isolated_transfers import Call
from triosim.search.operator_chain import CallSpan, ChainSegment, OperatorChain
from triosim.search.pass_script import (
    COMPLETE,
    COMPUTE_STREAM,
    EARLY_STREAM,
    SEND_STREAM,
    GradientsReady,
    PassScript,
    PortTarget,
    StageScripts,
    StepKind,
    TiedGradientExchange,
    TiedGradientReady,
)


@dataclass
class ContractedPass:
    """Rows of a pass while they are collected, and what else is known of it.

    Attributes:
        ports: where rows that send or receive lead, in order.
        gap, exposed, waiting_exposed, collective_slowdown: as of :class:`triosim.engine.contended.ContendedFragment`.
        calls: collectives in its stretches of work.
        host: ticks for which the host issues it.
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


@dataclass(frozen=True)
class WrittenPass:
    """Rows of a pass of a script.

    Attributes:
        facts, host_delay: columns of its rows, as of :class:`triosim.search.block_rows.BlockRows`.
        before: what they wait for, one row after another: of each stream the last.
        ports, calls, host, waiting_exposed: as of :class:`ContractedPass`.
        reduces: the first row of what follows the last backward of a chunk, as many as there are without any.
    """

    facts: NDArray[np.int64]
    host_delay: NDArray[np.int64]
    before: NDArray[np.int64]
    ports: tuple[PortTarget, ...]
    calls: Counter[Call]
    host: int
    reduces: int
    waiting_exposed: float

    def fragment(self) -> ContendedFragment:
        """The rows as columns."""
        kind, stream, label, ticks, _, waits, _, gap, exposed, _ = np.ascontiguousarray(self.facts.T)
        slowdown, collective = (np.ascontiguousarray(self.facts[:, at]).view(float) for at in (SLOWDOWN, COLLECTIVE))
        return ContendedFragment(
            kind.astype(np.int8), stream.astype(np.int8), ticks, slowdown, collective, label.astype(np.int32),
            Ragged(self.before.astype(np.int32), np.append(0, np.cumsum(waits))), self.host_delay, gap, exposed,
            self.waiting_exposed,
        )  # fmt: skip


class StageContraction:
    """Writes the passes of a stage.

    Args:
        scripts: of its passes, whatever the sizes.
        facts: of the stage.
        chain: what its operators take.
        transfer_times: what it exchanges with others takes.
    """

    def __init__(
        self, scripts: StageScripts, facts: StageFacts, chain: OperatorChain, transfer_times: TransferTimes
    ) -> None:
        self.scripts, self.facts, self.chain, self.transfer_times = scripts, facts, chain, transfer_times
        self.job = facts.job

    def pass_of(
        self, chunk: int, what: Pass, final: bool, needs: UngatheredUnits, leads: bool | None = None
    ) -> WrittenPass:
        """A pass of a micro-batch through a chunk, with the reductions after the last; ``leads`` in place of that of
        the stage."""
        script = self.scripts.of(chunk, what, final, needs)
        return self.run(script, self.scripts.leads if leads is None else leads)

    def run(self, script: PassScript, leads: bool) -> WrittenPass:
        """The rows of a script, ``leads`` where a pass of the stage calls a collective before what it receives is
        there."""
        native = self.chain.native
        if native is None:
            return PassRun(self, script, leads).run()
        times = np.array(self.timed(script), np.int64).reshape(-1)
        facts, host_delay, before, ports, host, reduces, waits = native.contracted(script.columns, times, leads)
        to = tuple(script.ports[port] for port in ports.tolist())
        calls = Counter(self.chain.calls[call] for call in script.called)
        return WrittenPass(facts, host_delay, before, to, calls, host, reduces, waits)

    def timed(self, script: PassScript) -> list[tuple[int, int]]:
        """Ticks and number of each transfer of a script."""
        times, boundaries = self.transfer_times, self.job.stages.boundaries
        return [
            times.boundary(boundaries[of], script.backward) if isinstance(of, int)
            else (times.collective(of), times.label(of))
            for of in script.transfers
        ]  # fmt: skip

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


class PassRun:
    """Runs one script: what :mod:`native` does in C++, to the same rows."""

    def __init__(self, of: StageContraction, script: PassScript, leads: bool) -> None:
        self.of, self.chain, self.script, self.leads = of, of.chain, script, leads
        self.made = ContractedPass()
        self.port: list[int] = []  # of each row that leads somewhere
        self.row = list[int]()  # the last of each step
        self.complete = -1  # see COMPLETE
        self.exchanged: dict[int, int] = {}  # row in which each collective of complete gradients ends
        self.reduces = -1
        self.rows: list[int] = script.rows.tolist()
        self.under_way: dict[int, CallSpan] = {}  # collectives between operators that have not ended
        self.since = 0  # ticks since then

    def run(self) -> WrittenPass:
        """All of it."""
        script, times = self.script, self.of.timed(self.script)
        steps = {
            StepKind.LEAD: self._lead, StepKind.COPY: self._copy, StepKind.PLAY: self._play, StepKind.WORK: self._work,
            StepKind.FOLLOW: self._follow, StepKind.REDUCE: self._reduce,
        }  # fmt: skip
        columns = zip(script.steps.tolist(), script.before.lists(), script.late.lists(), strict=True)
        for (kind, one, two, stream, port), waits, late in columns:
            before = [self.complete if step == COMPLETE else self.row[step] for step in waits]
            if kind in steps:
                row = steps[StepKind(kind)](one, two, port, before)
            elif kind == StepKind.RECEIVE:
                row = self._port(RowKind.RECEIVE, -1, 0, before, port)
            elif kind == StepKind.CALL:
                ticks, label = times[one]
                before += [self.exchanged[call] for call in late if call in self.exchanged]
                self.made.host += self.chain.launch
                host_delay = self.made.host - self.chain.launch  # from the release, one launch after the host begins
                row = self.made.add(RowKind.COLLECTIVE, stream, ticks, before, label=label, host_delay=host_delay)
            elif kind == StepKind.SEND:
                ticks, label = times[one]
                row = self._send(ticks, label, two, late, before, port)
            elif kind == StepKind.READY or self.leads:
                on = stream if kind == StepKind.READY else EARLY_STREAM
                row = self._port(RowKind.SEND, on, 0, before, port)
            else:
                row = -1
            self.row.append(row)
        return self._written()

    def _written(self) -> WrittenPass:
        made, script = self.made, self.script
        before = [_last(made, own) for own in made.before]
        facts = np.zeros((len(before), 10), np.int64)
        for at, column in (
            (KIND, made.kind), (STREAM, made.stream), (LABEL, made.label), (TICKS, made.ticks),
            (WAITS, list(map(len, before))), (LEADS, [kind >= RowKind.SEND for kind in made.kind]), (GAP, made.gap),
            (EXPOSED, made.exposed),
        ):  # fmt: skip
            facts[:, at] = column
        facts[:, SLOWDOWN].view(np.float64)[:] = made.slowdown
        facts[:, COLLECTIVE].view(np.float64)[:] = made.collective_slowdown
        return WrittenPass(
            facts, np.array(made.host_delay, np.int64), np.array([row for own in before for row in own], np.int64),
            tuple(script.ports[at] for at in self.port), Counter(self.chain.calls[call] for call in script.called),
            made.host, len(facts) if self.reduces < 0 else self.reduces, made.waiting_exposed,
        )  # fmt: skip

    def _port(
        self, kind: RowKind, stream: int, ticks: int, before: Sequence[int], port: int, label: int = -1,
        host_delay: int = 0,
    ) -> int:  # fmt: skip
        """One more row that leads somewhere."""
        self.port.append(port)
        return self.made.add(kind, stream, ticks, before, label=label, host_delay=host_delay)

    def _lead(self, call: int, _: int, port: int, before: list[int]) -> int:
        return self._port(RowKind.SEND, EARLY_STREAM, int(self.chain.call_ticks[call]), before, port)

    def _copy(self, ticks: int, gap: int, _: int, before: list[int]) -> int:
        self.made.host += self.chain.launch
        spans = [span.after(self.since) for span in self.under_way.values()]
        segments = self.chain.beside(ticks, self.chain.gap * gap, spans)
        self.since += sum(segment.ticks for segment in segments)
        return self.made.work(segments, before)

    def _play(self, first: int, last: int, _: int, before: list[int]) -> int:
        under_way = {call: span.after(self.since) for call, span in self.under_way.items() if span.end > self.since}
        chained = self.chain.play(self.rows[first:last], self.script.final, under_way)
        self.first, self.chained = first, chained
        self.issues = self.made.host - self.chain.launch  # from the release of the pass
        self.made.host += chained.host
        self.made.waiting_exposed = max(self.made.waiting_exposed, chained.waiting_exposed)
        self.once = {call: chained.ended([call]) for call in self.script.once.tolist()} if self.script.final else {}
        self.left = max(max(self.once.values(), default=0) - chained.at(last - first), 0)  # after the last operator
        return -1

    def _work(self, place: int, mark: int, port: int, before: list[int]) -> int:
        chained, first, fine = self.chained, self.first, self.script.fine
        segments = chained.segments(place - first, mark - first) if fine else self._coarse(place, mark)
        host_delay = max(self.issues + int(chained.host_delay[mark - first - 1]), 0) if mark > first else 0
        self.sending = self.issues + int(chained.issued[mark - first - 1]) if mark > first else self.issues
        if len(segments) > 1 and not fine:
            row = self.made.work(segments[:1], before)
            self._port(RowKind.SEND, EARLY_STREAM, 0, [row], port)
            return self.made.work(segments[1:], (), host_delay)
        row = self.made.work(segments, before, host_delay)
        if fine:
            begin, before_it = chained.at(place - first), row - len(segments)
            later = {call: ended - begin for call, ended in self.once.items() if begin < ended}
            self.exchanged.update({call: before_it + _reached(segments, ticks) for call, ticks in later.items()})
        return row

    def _coarse(self, place: int, mark: int) -> list[ChainSegment]:
        """Work as one stretch; or two, the collectives of the next pass coming between.

        Where another chunk's gradients are reduced beside a pass they are so for most of it, so that each stretch takes
        as much longer as its operators and its waiting for collectives do on average.
        """
        chained = self.chained
        begin, end = chained.at(place), chained.at(mark)
        ended = int(chained.end.max(initial=0))
        times = [begin, ended, end] if self.leads and begin < ended < end else [begin, end]
        return [chained.average(a, b) for a, b in pairwise(times)]

    def _follow(self, place: int, _: int, __: int, before: list[int]) -> int:
        more = [call for call, _ in self.chain.leading(self.rows[place:], self.script.final)]
        self.under_way, self.since = self.chain.follow(self.chained.under_way, more), 0
        return -1

    def _send(self, ticks: int, label: int, mark: int, late: list[int], before: list[int], port: int) -> int:
        more = max(self.chained.ended(late) - self.chained.at(mark - self.first), 0)
        self.made.host += self.chain.send_launch
        self.sending = max(self.sending + self.chain.send_launch, 0)
        return self._port(RowKind.SEND, SEND_STREAM, ticks + more, before, port, label, self.sending)

    def _reduce(self, _: int, __: int, ___: int, before: list[int]) -> int:
        self.reduces, (self.complete,) = len(self.made.kind), before
        if self.left:
            self.complete = self.made.add(RowKind.COMPUTE, COMPUTE_STREAM, self.left, exposed=self.left)
            free = self.chained.at(len(self.chained.free))
            self.exchanged.update({call: self.complete for call, ended in self.once.items() if ended > free})
        return -1


def _last(made: ContractedPass, before: list[int]) -> list[int]:
    """Of what a row waits for the last of each stream."""
    if len(before) < 2:
        return before
    of_stream = {made.stream[b]: b for b in sorted(before) if made.kind[b] != RowKind.RECEIVE}
    return sorted({*of_stream.values(), *(b for b in before if made.kind[b] == RowKind.RECEIVE)})


def _reached(segments: Sequence[ChainSegment], ticks: int) -> int:
    """How many segments have ended, or the last has begun, after so many ticks of them."""
    ends = np.cumsum([segment.ticks for segment in segments])
    return min(int(np.searchsorted(ends, ticks)) + 1, len(segments))
