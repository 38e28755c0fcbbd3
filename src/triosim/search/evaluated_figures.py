"""The figures of a plan that was evaluated."""

from __future__ import annotations

from triosim.engine.stats import Stats
from triosim.prediction.efficiency import efficiency
from triosim.prediction.largest_batch import needed
from triosim.prediction.metrics import S
from triosim.prediction.result import Breakdown
from triosim.prediction.summary import Summary
from triosim.search.evaluate import Evaluated
from triosim.search.outcome import Figures, binding, sizes_of
from triosim.search.time_spent import breakdown, most_talked


def evaluated_figures(job: Evaluated) -> Figures:
    """What plans are compared by, of a plan that was evaluated."""
    made = job.made
    prepared = made.prepared([], [], [])
    summary = Summary(prepared, None, (), _no_stats)  # type: ignore[arg-type]
    seconds = job.end * S
    memory = needed(0, job.reserved, made.system.models[made.models[0]])
    parts: Breakdown = breakdown(job)
    throughput = summary.throughput(seconds)
    return Figures(
        sizes=sizes_of(summary.run_plan()),
        iteration_time_s=seconds,
        samples_per_s=throughput.samples_per_s,
        tokens_per_s=throughput.tokens_per_s,
        mfu=efficiency(prepared, seconds, throughput.tokens_per_s).mfu,
        compute_s=parts.compute,
        exposed_communication_s=parts.exposed_communication,
        host_s=parts.host,
        idle_s=parts.idle,
        binds=binding(parts, lambda: most_talked(job)),
        reserved_bytes=job.reserved,
        capacity_bytes=memory.capacity_bytes,
        fits=memory.fits,
        warnings=summary.warnings(memory.fits),
        way="evaluated",
    )


def _no_stats() -> Stats:
    raise NotImplementedError("an evaluated plan has no statistics of a play")
