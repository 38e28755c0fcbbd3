"""Several jobs that share a network, each there for as long as its iterations take: arriving, leaving, following."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, PlanError, quoted
from triosim.core.units import PICOSECONDS_PER_SECOND, picoseconds
from triosim.engine.check import link_loads
from triosim.engine.graph import GraphRun
from triosim.engine.join import LateStart, delay_jobs, join
from triosim.engine.stats import Stopwatch
from triosim.fidelity import Fidelity
from triosim.hardware.system import System
from triosim.network.lowering import LoweredJob
from triosim.network.sharing import network_model
from triosim.plan import Plan
from triosim.prediction.played_run import Run
from triosim.prediction.playing import lowered_job, settled
from triosim.prediction.prepare import CompiledJob, check_arguments, prepare
from triosim.prediction.priced_job import Progress
from triosim.prediction.result import Result
from triosim.prediction.summary import Summary
from triosim.prediction.uncertainty import uncertainty_among_others
from triosim.trace.tables import Trace


@dataclass(frozen=True)
class SharedJob:
    """A job beside others.

    Attributes:
        workload, plan, fidelity: as of :func:`triosim.simulate`; ``plan.iterations`` says how long it stays,
            ``plan.placement`` where its ranks are.  Without a placement it gets the devices after those of the jobs
            before it, or those of the job that it follows.
        arrives_s: when it begins, seconds.
        after: number of a job before it in the list that must have left, whose devices it may take; None for none.
        name: for messages and tables.
    """

    workload: Trace
    plan: Plan = field(default_factory=Plan)
    fidelity: Fidelity | None = None
    arrives_s: float = 0.0
    after: int | None = None
    name: str = ""


@dataclass(frozen=True)
class JobSpan:
    """A job from its arrival until it leaves.

    Attributes:
        name: of the job.
        devices: that it runs on.
        begins_s, leaves_s: seconds from the beginning of all.
        iteration_times_s: of each iteration beside the others.
        alone_s: an iteration in the mean with the machine to itself.
        result: what :func:`triosim.simulate` says of a job; times count from its own beginning, and the traffic of
            links is that of all jobs.
    """

    name: str
    devices: tuple[int, ...]
    begins_s: float
    leaves_s: float
    iteration_times_s: tuple[float, ...]
    alone_s: float
    result: Result

    @property
    def slowdown(self) -> float:
        """The mean iteration beside the others over that alone."""
        return self.result.iteration_time_s / self.alone_s


def simulate_together(
    jobs: Sequence[SharedJob | tuple[Trace, Plan] | tuple[Trace, Plan, Fidelity]],
    system: System,
    progress: Progress | None = None,
) -> list[Result]:
    """Predict several jobs that run at the same time on devices of their own and share the network.

    Every rank of every job is played.  The link traffic of each result is that of all jobs together.

    Args:
        jobs: what runs; a workload and a plan, perhaps with a fidelity, is a job that begins at once.  All must name
            the same network model.
        system: the machine.
        progress: called with what is being done, in a few words.

    Raises:
        InputError: a job does not fit what the jobs before it leave, or two are on one device at a time; or as of
            :func:`triosim.simulate`.
    """
    return [stay.result for stay in stays(jobs, system, progress, alone=False)]


def stays(
    jobs: Sequence[SharedJob | tuple[Trace, Plan] | tuple[Trace, Plan, Fidelity]],
    system: System,
    progress: Progress | None = None,
    alone: bool = True,
) -> list[JobSpan]:
    """The same, from each job's arrival until it leaves.

    Args:
        jobs, system, progress: as of :func:`simulate_together`.
        alone: play each job by itself too; otherwise ``alone_s`` is NaN.

    Raises:
        InputError: as of :func:`simulate_together`.
    """
    clock = Stopwatch()
    progress = progress or (lambda words: None)
    asked = [job if isinstance(job, SharedJob) else SharedJob(*job) for job in jobs]
    for job in asked:
        check_arguments(job.workload, system, job.plan, job.fidelity)
    starts = _starts(asked)
    prepared: list[CompiledJob] = []
    for number, job in enumerate(asked):
        plan = _placed(asked, number, prepared, system.devices)
        prepared.append(prepare(job.workload, system, plan, job.fidelity, progress))
    named = {(job.fidelity.solver, job.fidelity.solver_options) for job in prepared}
    if len(named) != 1:
        raise PlanError(f"jobs on one network need one network model, but {len(named)} are named: give all the same")
    model = network_model(*named.pop())

    progress("playing the jobs")
    parts = [lowered_job(job, fold=False) for job in prepared]
    graph, wires = join([(lowered.graph, lowered.wires) for lowered, _ in parts])
    last = np.cumsum([0, *(len(lowered.graph) for lowered, _ in parts)]).tolist()
    own = [slice(*pair) for pair in pairwise(last)]
    waits = any(start != LateStart() for start in starts)
    shared = [(job, lowered) for job, (lowered, _) in zip(prepared, parts, strict=True)]
    graph = delay_jobs(graph, own, starts) if waits else graph
    played, amount, _ = settled(shared, graph, wires, model)
    graph = replace(graph, amount=amount)
    begins = [int(played.finish[last[-1] + len(own) + number]) if waits else 0 for number in range(len(own))]

    progress("adding up")
    found: list[JobSpan] = []
    for made, of, (lowered, sources), mine, begin in zip(prepared, asked, parts, own, begins, strict=True):
        flows = link_loads(lowered.graph, lowered.wires)[1]
        part = GraphRun(
            played.start[mine] - begin, played.begin[mine] - begin, played.finish[mine] - begin, played.link_bytes,
            flows, played.events, played.engine,
        )  # fmt: skip
        run = Run(made.programs, lowered, lowered.worked(part), made.plan.iterations)
        single = float("nan")
        if alone:
            by_itself, *_ = settled([(made, lowered)], lowered.graph, lowered.wires, model)
            single = int(lowered.worked(by_itself).finish.max()) / PICOSECONDS_PER_SECOND / made.plan.iterations
        times = np.diff(_ends(made, lowered, run.played), prepend=0) / PICOSECONDS_PER_SECOND
        found.append(
            JobSpan(
                of.name or f"job {len(found)}", tuple(made.assignment.devices.tolist()), begin / PICOSECONDS_PER_SECOND,
                (begin + int(run.played.finish.max())) / PICOSECONDS_PER_SECOND, tuple(times.tolist()), single,
                Summary(
                    made, run, sources, partial(clock.stats, played.engine),
                    partial(uncertainty_among_others, made, lowered, mine, graph, wires, played, model),
                ).result(),
            )
        )  # fmt: skip
    return found


def _ends(job: CompiledJob, lowered: LoweredJob, played: GraphRun) -> NDArray[np.int64]:
    """When the last task of each iteration ends, ticks, shape ``(iterations,)``."""
    ends = np.zeros(job.plan.iterations, np.int64)
    for cell, number in enumerate(lowered.program.tolist()):
        finish = played.finish[lowered.first[cell] : lowered.first[cell + 1]]
        np.maximum.at(ends, job.programs[number].iteration, finish)
    return np.maximum.accumulate(ends)


def _starts(jobs: Sequence[SharedJob]) -> list[LateStart]:
    """When jobs begin.

    Raises:
        InputError: one arrives before the beginning, or follows what is not before it.
    """
    found = []
    for number, job in enumerate(jobs):
        if job.arrives_s < 0:
            raise InputError(f"{_said(job, number)} arrives at {job.arrives_s:g} s: give a time from 0 on")
        if job.after is not None and job.after not in range(number):
            raise InputError(f"{_said(job, number)} follows job {job.after}, which is not before it: order them so")
        ticks = int(picoseconds(np.array([job.arrives_s]), "the arrival of a job")[0])
        found.append(LateStart(ticks, -1 if job.after is None else job.after))
    return found


def _said(job: SharedJob, number: int) -> str:
    return f"job {quoted(job.name)}" if job.name else f"job {number}"


def _placed(jobs: Sequence[SharedJob], number: int, before: Sequence[CompiledJob], devices: int) -> Plan:
    """The plan with a place for each rank that no job has at the time.

    Raises:
        PlanError: there is none.
    """
    job, plan = jobs[number], jobs[number].plan
    gone, follows = set[int](), job.after
    while follows is not None:  # what it follows has left, and what that followed
        gone.add(follows)
        follows = jobs[follows].after
    taken = np.zeros(devices, bool)
    for other, prepared in enumerate(before):
        if other not in gone:
            taken[prepared.assignment.devices] = True
    if plan.placement is not None:
        twice = [device for device in plan.placement if device < devices and taken[device]]
        if twice:
            said = _said(job, number)
            raise PlanError(f"{said} is placed on device {twice[0]}, which another job has: choose another")
        return plan if plan.dp else plan.replaced(dp=len(plan.placement) // plan.replica_ranks or 1)
    free = np.flatnonzero(~taken)
    if job.after is not None:
        inherited = before[job.after].assignment.devices
        free = np.array([*inherited.tolist(), *np.setdiff1d(free, inherited).tolist()], np.int64)
        free = free[~taken[free]]
    width = plan.replica_ranks
    most = len(before[job.after].assignment.devices) if job.after is not None else len(free)
    ranks = (plan.dp or max(most // width, 1)) * width
    if ranks > len(free):
        raise PlanError(
            f"{_said(job, number)} needs {ranks} devices, but the jobs before it leave {len(free)}: use fewer"
        )
    return plan.replaced(placement=tuple(sorted(free[:ranks].tolist())), dp=ranks // width)


__all__ = ["JobSpan", "SharedJob", "simulate_together", "stays"]
