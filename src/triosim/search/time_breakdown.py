"""How the ranks of an evaluated job spent the iteration: in actions before the epilogue, and in the epilogue."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from triosim.core.spans import merged
from triosim.engine.contention_free import TimeCategory
from triosim.prediction.metrics import collective_rows
from triosim.prediction.played_run import Run, S, transfers
from triosim.prediction.result import Breakdown
from triosim.schedule.program import COLLECTIVES, Op
from triosim.search.evaluate import EvaluatedPlan

Spans = tuple[NDArray[np.int64], NDArray[np.int64]]


def breakdown(job: EvaluatedPlan) -> Breakdown:
    """Mean over the ranks, seconds; as :func:`triosim.prediction.metrics.breakdown` has it."""
    lowered, stages = job.lowered, [program.stage for program in job.programs]
    run = Run(job.programs, lowered, job.epilogue, 1)
    before = {stage: _before(job, stage) for stage in set(stages)}
    counts = lowered.count
    sums = np.zeros(5)
    for cell in range(lowered.cells):
        epilogue = _in_epilogue(run, cell, int(np.count_nonzero(job.steady_run.free[run.program(cell).stage])))
        both_times = zip(_together(before[run.program(cell).stage]), _together(epilogue), strict=True)
        compute, communication, both, all_three = (_union(merged(*turns), own) for turns, own in both_times)
        sums += counts[cell] * np.array([compute, communication, both - compute, all_three - both, job.end - all_three])
    seconds = (sums / counts.sum() * S).tolist()
    return Breakdown(*seconds)


def _together(spans: Sequence[Spans]) -> list[Spans]:
    """What computes, what moves, either, or either or the host at work."""
    compute, moving, host = spans
    both = _join(compute, moving)
    return [compute, moving, both, _join(both, host)]


def _join(a: Spans, b: Spans) -> Spans:
    return np.concatenate([a[0], b[0]]), np.concatenate([a[1], b[1]])


def _union(before: Spans, epilogue: Spans) -> int:
    """Length of the union of disjoint ascending spans and others that mostly come after them."""
    begin = int(epilogue[0].min(initial=np.iinfo(np.int64).max))
    ends = before[1] <= begin
    length = int((before[1][ends] - before[0][ends]).sum())
    start, end = merged(*_join((before[0][~ends], before[1][~ends]), epilogue))
    return length + int((end - start).sum())


def _before(job: EvaluatedPlan, stage: int) -> tuple[Spans, Spans, Spans]:
    """What a stage did before the epilogue: compute, transfers, host."""
    spans, steady_run = job.steady_run.spans[stage], job.steady_run
    came = (job.messages[:, 1] == stage) & (steady_run.sent >= 0)
    moving = _join(
        _join(spans[TimeCategory.COLLECTIVE], spans[TimeCategory.SEND]),
        (steady_run.sent[came], steady_run.arrived[came]),
    )
    return spans[TimeCategory.COMPUTE], moving, spans[TimeCategory.HOST]


def _in_epilogue(run: Run, cell: int, kept_busy: int) -> tuple[Spans, Spans, Spans]:
    """What a cell does in the epilogue: compute, transfers, host.

    Its first rows are left out: those keep streams busy until earlier actions end.
    """
    at, program, played = run.tasks(cell), run.program(cell), run.played
    start, finish = played.start[at], played.finish[at]
    computes = program.op == Op.COMPUTE
    issues = (program.op == Op.ISSUE) & (program.stream >= 0)
    issues[:kept_busy] = False
    return (start[computes], finish[computes]), transfers(run, cell), (start[issues], finish[issues])


def dominant_communication(job: EvaluatedPlan) -> str:
    """The axis and the kind of collective or send that took most time."""
    names = job.made.mesh.names
    run = Run(job.programs, job.lowered, job.epilogue, 1)
    seconds: dict[tuple[str, str, int], float] = {}
    for row in collective_rows(run, names):
        key = (row.axis, row.kind, row.bytes)
        seconds[key] = seconds.get(key, 0.0) + row.seconds
    for (what, size, axis), ticks in job.communication_ticks.items():
        key = (names[axis], COLLECTIVES[what] if what >= 0 else "send", size)
        seconds[key] = seconds.get(key, 0.0) + ticks * S
    if not seconds:
        return ""
    axis_name, kind, _ = max(seconds, key=seconds.__getitem__)
    return f"{axis_name} {kind.replace('_', '-')}"
