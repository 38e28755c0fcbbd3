"""What the stages of a plan take at least, once they are known: their passes one by one, and what each holds.

The step is divided, priced and cut as for a prediction (:func:`triosim.prediction.prepare.arrange`), but no program is
written.  The pass of a part of a stage takes at least the recurrence of :mod:`triosim.search.bounds` over the part's
own operators, beginning with nothing under way.

**Time.**  Stage ``s`` has nothing to compute of what another stage sends before the first forward of the first chunk
has come through the stages before it, each of which computes at least what lies between the operator that first reads
what arrives and the one that makes what goes on: ``fill_s``.  Where a backward is not split, what the stage does last
is a backward of its first chunk, whose gradient then goes back through all stages before it: ``drain_s``.  In between
it runs ``m`` passes of each of its parts: ``T >= fill_s + m w_s + drain_s``, less what of the first forward may run
before anything arrives and of the last backward after its gradient has left.

**Memory.**  When a stage has most micro-batches under way it holds its parameters, its optimizer states, and what each
of those forwards has kept; and its gradients, once one backward of each part has run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from triosim.composition.host import issue_shares
from triosim.core.dataclass import dataclass
from triosim.partition.gradients import gradients
from triosim.prediction.prepare import Arranged
from triosim.schedule._stage import JobFacts
from triosim.schedule.actions import Pass, Schedule
from triosim.schedule.costs import ScheduleCosts
from triosim.schedule.pass_times import HeldBytes
from triosim.schedule.stages import Boundary
from triosim.search.order import Order, order_of
from triosim.trace.tables import Category, Phase, Trace

AloneTimes = Mapping[tuple[int, int, str], float]
"""Seconds of collectives where nothing else moves, by kind, bytes and name of the axis."""


@dataclass(frozen=True)
class LeastStages:
    """The stages of a plan; a part is a chunk of a stage, and parts follow one another through the stages.

    Attributes:
        pass_s: forward and backward of each part, seconds, shape ``(chunks, stages)``.
        host_s: in which the host of each stage issues them, shape ``(stages,)``.
        fill_s, drain_s: before a stage begins and after it has ended, shape ``(stages,)``.
        early_s, late_s: of a stage's first forward before it needs what arrives, and of its last backward after its
            gradient has left, shape ``(stages,)``.
        kept: bytes that the forward of each part keeps for its backward, shape ``(chunks, stages)``.
        freed, passed_on: bytes of them that the first half of a backward frees, and that it makes for the second,
            likewise; where backwards are split.
        weights, states: bytes of parameters and optimizer states of each stage, undivided, shape ``(stages,)``.
        gradients: bytes of those that each part makes, undivided, shape ``(chunks, stages)``.
    """

    pass_s: NDArray[np.float64]
    host_s: NDArray[np.float64]
    fill_s: NDArray[np.float64]
    drain_s: NDArray[np.float64]
    early_s: NDArray[np.float64]
    late_s: NDArray[np.float64]
    kept: NDArray[np.float64]
    freed: NDArray[np.float64]
    passed_on: NDArray[np.float64]
    weights: NDArray[np.float64]
    gradients: NDArray[np.float64]
    states: NDArray[np.float64]

    def seconds(self, micro_batches: int, unsplit: bool) -> float:
        """What an iteration takes at least.

        Args:
            micro_batches: of a replica.
            unsplit: whether backwards run in one piece, and those of the first chunk last.
        """
        work = micro_batches * self.pass_s.sum(axis=0)
        least = self.fill_s + work - self.early_s
        if unsplit:
            least = np.maximum(least, least - self.late_s + self.drain_s)
        return float(max(least.max(), work.max(), (micro_batches * self.host_s).max()))

    def bytes(self, schedule: Schedule, micro_batches: int, dp: int, zero: int, fixed: bool = True) -> int:
        """What the fuller of the first and the last stage holds at least.

        Args:
            schedule: in which order passes run.
            micro_batches: of a replica.
            dp: replicas.
            zero: what they divide among them, 0 to 3.
            fixed: whether parameters, gradients and optimizer states are on the device.
        """
        stages = len(self.fill_s)
        apart = dp if zero >= 2 else 1
        held = []
        for stage in {0, stages - 1}:
            grads = self.gradients[:, stage] / apart if fixed else 0 * self.gradients[:, stage]
            order = order_of(schedule, stage, stages, micro_batches)
            most = self._most_held(order, stage, grads.tolist())
            states = self.weights[stage] / apart + self.states[stage] / (dp if zero else 1)
            held.append(most + (states if fixed else 0.0))
        return int(max(held))

    def _most_held(self, order: Order, stage: int, grads: list[float]) -> float:
        """Most bytes that forwards of a stage have kept and backwards have left at one time.

        Args:
            order: what the stage runs.
            stage: its number.
            grads: by the first backward of each chunk, to the end of the iteration.
        """
        kept, freed, passed_on = (part[:, stage].tolist() for part in (self.kept, self.freed, self.passed_on))
        now = most = 0.0
        whole: set[int] = set()
        for action in order.actions:
            what, chunk = action.what, action.chunk
            if what is Pass.FORWARD:
                now += kept[chunk]
            elif what is Pass.BACKWARD:
                now -= kept[chunk]
            elif what is Pass.INPUT_GRADIENT:
                now += passed_on[chunk] - freed[chunk]
            else:
                now -= kept[chunk] - freed[chunk] + passed_on[chunk]
            if what not in (Pass.FORWARD, Pass.INPUT_GRADIENT) and chunk not in whole:
                whole.add(chunk)
                now += grads[chunk]
            most = max(most, now)
        return most


def stages_of(made: Arranged, alone: AloneTimes) -> LeastStages:
    """What the stages of a job take at least.

    Args:
        made: the job.
        alone: what collectives take where nothing else moves; those that are not in it count for nothing.
    """
    trace, stages, pipeline = made.step.trace, made.stages, made.mesh.stages
    chunks = stages.count // pipeline
    passes = _Passes(made, alone)
    ahead = {b.source: b for b in reversed(stages.boundaries) if b.target == b.source + 1}  # the first of each
    rows = [_rows(trace, stages.of == part) for part in range(stages.count)]
    pass_s = np.array([[passes.seconds(forward), passes.seconds(backward)] for forward, backward in rows])
    chain = [_Chain(passes, rows[part], ahead.get(part - 1), ahead.get(part)) for part in range(pipeline)]
    fill, drain = np.zeros(pipeline), np.zeros(pipeline)
    for s in range(1, pipeline):
        joined = s - 1 in ahead
        fill[s] = fill[s - 1] + chain[s - 1].forward_s if joined else 0.0
        drain[s] = drain[s - 1] + chain[s - 1].backward_s if joined else 0.0
    early = np.array([pass_s[s, 0] - chain[s].reading_s for s in range(pipeline)])
    late = np.array([pass_s[s, 1] - chain[s].returning_s for s in range(pipeline)])
    issued = issue_shares(trace, made.launching)
    host = np.bincount(stages.of[stages.of >= 0] % pipeline, issued[stages.of >= 0], pipeline)
    held = _Held(made)
    kept = np.array([held.kept(*own, made.schedule.splits_backward) for own in rows])
    grads = held.gradients(rows)
    weights, states = held.resident(rows, pipeline)
    kept_bytes, freed, passed_on = (kept[:, column].reshape(chunks, pipeline) for column in range(3))
    return LeastStages(
        pass_s=pass_s.sum(axis=1).reshape(chunks, pipeline), host_s=host.astype(np.float64), fill_s=fill, drain_s=drain,
        early_s=np.maximum(early, 0.0), late_s=np.maximum(late, 0.0), kept=kept_bytes, freed=freed, passed_on=passed_on,
        weights=weights, gradients=grads.reshape(chunks, pipeline), states=states,
    )  # fmt: skip


Rows = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Operators of a part: of its forward, and of its backward with what is run again."""


def _rows(trace: Trace, own: NDArray[np.bool_]) -> Rows:
    phase = trace.operators.phase
    return np.flatnonzero(own & (phase == Phase.FORWARD)), np.flatnonzero(
        own & np.isin(phase, (Phase.BACKWARD, Phase.RECOMPUTE))
    )


class _Passes:
    """What operators take one after another, with the collectives that they wait for."""

    def __init__(self, made: Arranged, alone: AloneTimes) -> None:
        trace = made.step.trace
        self.trace = trace
        self.job = JobFacts(
            made.step, ScheduleCosts(made.times.seconds), made.stages, made.schedule, made.plan, made.mesh,
            gradients(trace),
        )  # fmt: skip
        sources = np.bincount([b.source for b in made.stages.boundaries], minlength=made.stages.count)
        self.sends_once = sources == 1
        self.takes = np.where(trace.operators.view, 0.0, made.times.seconds)
        names = made.mesh.names
        self.alone = [alone.get((what, size, names[axis]), 0.0) for size, what, axis in self.job.exchanged]

    def seconds(self, rows: NDArray[np.int64]) -> float:
        """What operators take, nothing being under way when the first begins."""
        job, alone = self.job, self.alone
        done: dict[int, float] = {}
        clock = busy = 0.0
        events = np.flatnonzero(job.around[rows])
        ends = np.concatenate([[0.0], np.cumsum(self.takes[rows])])
        at = 0.0
        for place, row in zip(events.tolist(), rows[events].tolist(), strict=True):
            clock += float(ends[place]) - at
            for number in job.issued_before.get(row, ()):
                busy = done[number] = max(busy, clock) + alone[number]
            for number in job.needed_before.get(row, ()):
                if number not in job.once:
                    clock = max(clock, done.get(number, 0.0))
            at = float(ends[place + 1])
            clock += at - float(ends[place])
            for number in job.issued_after.get(row, ()):
                if number not in job.once:
                    busy = done[number] = max(busy, clock) + alone[number]
        return clock + float(ends[-1]) - at


class _Chain:
    """What a stage takes between what arrives and what it sends on, of the first chunk.

    Args:
        passes: of the job.
        rows: of the part.
        before, after: what crosses from the stage before, and to the stage after; None where nothing does.

    Attributes:
        forward_s, backward_s: from what arrives to what goes on.
        reading_s: of the forward from what arrives to its end.
        returning_s: of the backward from its begin to what goes back.
    """

    def __init__(self, passes: _Passes, rows: Rows, before: Boundary | None, after: Boundary | None) -> None:
        forward, backward = rows
        first = before.read if before else -1
        reads = forward[forward >= first]
        self.reading_s = passes.seconds(reads)
        self.forward_s = passes.seconds(reads[reads <= after.made]) if after else 0.0
        returned = before.returned if before else -1
        until = backward[backward <= returned] if returned >= 0 else backward
        self.returning_s = passes.seconds(until)
        self.backward_s = 0.0
        if after is not None:
            operators = passes.trace.operators
            given = until[operators.phase[until] == Phase.BACKWARD]
            if not passes.sends_once[after.source]:  # what comes back may come along another way
                given = given[operators.forward[given] == after.made]
            self.backward_s = passes.seconds(until[until >= given[0]]) if len(given) else 0.0


class _Held(HeldBytes):
    """Bytes of a job's storages by part and by stage."""

    def __init__(self, made: Arranged) -> None:
        super().__init__(made.step)
        self.trace = made.step.trace

    def gradients(self, rows: Sequence[Rows]) -> NDArray[np.float64]:
        """Gradients of parameters that each part makes, shape ``(parts,)``; of several parts' the first."""
        part = np.full(len(self.storages), len(rows))
        for number in reversed(range(len(rows))):
            part[self.storages.touched(rows[number][1].tolist())[0]] = number
        size = np.where(self.storages.gradient, self.storages.size, 0)
        return np.asarray(np.bincount(part, size.astype(np.float64), len(rows) + 1)[:-1], np.float64)

    def resident(self, rows: Sequence[Rows], pipeline: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Parameters and optimizer states of each stage, shape ``(stages,)``; states of what several share left out."""
        values, storages = self.trace.values, self.storages
        uses = np.zeros((pipeline, len(storages)), bool)
        for number, own in enumerate(rows):
            uses[number % pipeline, storages.touched(np.concatenate(own).tolist())[0]] = True
        uses &= storages.category == Category.WEIGHT
        state = (values.category == Category.OPTIMIZER_STATE) & (values.of >= 0)
        _, once = np.unique(values.storage[state], return_index=True)
        owner = values.storage[values.of[state][once]]
        size = np.bincount(owner, storages.size[values.storage[state][once]], len(storages))
        alone = uses.sum(axis=0) == 1
        return uses @ storages.size.astype(np.float64), (uses & alone) @ size
