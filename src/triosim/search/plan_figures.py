"""The figures of a plan that was evaluated or outlined."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from triosim.prediction.efficiency import efficiency
from triosim.prediction.largest_batch import needed
from triosim.prediction.played_run import S
from triosim.prediction.prepare import CompiledJob
from triosim.prediction.result import Breakdown
from triosim.prediction.staged_job import StagedJob
from triosim.prediction.summary import Summary
from triosim.schedule.program import COLLECTIVES
from triosim.search.evaluate import EvaluatedPlan
from triosim.search.isolated_transfers import Call
from triosim.search.outcome import Figures, binding, sizes_in
from triosim.search.outline import OutlinedPlan
from triosim.search.time_breakdown import breakdown, dominant_communication


def evaluated_figures(job: EvaluatedPlan) -> Figures:
    """What plans are compared by, of a plan that was evaluated."""
    return _figures(job.made, job.end, job.reserved, breakdown(job), lambda: dominant_communication(job), "evaluated")


def outlined_figures(job: OutlinedPlan) -> Figures:
    """What plans are compared by, of a plan that was outlined."""
    return _figures(
        job.made, job.run.end, job.reserved, _breakdown(job), lambda: _dominant_communication(job), "outlined"
    )


def _breakdown(job: OutlinedPlan) -> Breakdown:
    """Mean over the ranks, seconds; stages have equally many."""
    run, end = job.run, job.run.end
    columns = (run.work, run.communication, run.hosted, end - run.work - run.communication - run.hosted)
    compute, exposed, host, rest = (float(column.mean()) * S for column in columns)
    talking = (sum(map(float, _moved(job).values())) + sum(job.calls.values())) * S / len(run.work)
    return Breakdown(compute, talking, exposed, host, rest)


def _moved(job: OutlinedPlan) -> dict[Call, int]:
    """Ticks of what all stages move beside their passes."""
    ticks: list[int] = job.run.label_ticks.sum(axis=0).tolist()
    return {call: ticks[label] for call, label in job.labels.items()}


def _dominant_communication(job: OutlinedPlan) -> str:
    """The axis and the kind of collective or send that took most time."""
    names = job.made.mesh.names
    ticks = _moved(job)
    for call, more in job.calls.items():
        ticks[call] = ticks.get(call, 0) + more
    if not ticks:
        return ""
    what, _, axis = max(ticks, key=ticks.__getitem__)
    return f"{names[axis]} {(COLLECTIVES[what] if what >= 0 else 'send').replace('_', '-')}"


def _figures(
    made: StagedJob, end: int, reserved: int, parts: Breakdown, communication: Callable[[], str], way: str
) -> Figures:
    prepared = CompiledJob(**vars(made), programs=[], footprints=[], interferes=[])
    summary = Summary(prepared, None, (), _nobody_asks, _nobody_asks)  # type: ignore[arg-type]
    seconds = end * S
    memory = needed(0, reserved, made.system.models[made.models[0]])
    throughput = summary.throughput(seconds)
    return Figures(
        sizes=sizes_in(summary.run_fields()),
        iteration_time_s=seconds,
        samples_per_s=throughput.samples_per_s,
        tokens_per_s=throughput.tokens_per_s,
        mfu=efficiency(prepared, seconds, throughput.tokens_per_s).mfu,
        compute_s=parts.compute,
        exposed_communication_s=parts.exposed_communication,
        host_s=parts.host,
        idle_s=parts.idle,
        binds=binding(parts, communication),
        reserved_bytes=reserved,
        context_bytes=memory.context_bytes,
        capacity_bytes=memory.capacity_bytes,
        fits=memory.fits,
        warnings=summary.warnings(memory.fits),
        way=way,
    )


def _nobody_asks() -> NoReturn:
    raise NotImplementedError("an evaluated plan has not been played")
