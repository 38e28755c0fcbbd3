"""Measured iterations to learn composition from: jobs that are prepared once and played under other terms.

A residual (:mod:`triosim.composition.residual`) is fitted by playing the jobs that were measured again and again with
other costs of the host, gaps and scales.  Only durations change: what each rank runs, and over which links, is worked
out once, and a playback takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

import numpy as np
from numpy.typing import NDArray

from triosim.composition.interference import Tasks, settle
from triosim.composition.residual import CalibratedOverhead, Coefficients, JobSizes, fit, sizes
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.units import PICOSECONDS_PER_SECOND, picoseconds
from triosim.engine.graph import EngineNetwork, Graph, GraphRun
from triosim.engine.play import play
from triosim.engine.solver import NetworkModel
from triosim.fidelity import Fidelity
from triosim.hardware.system import System
from triosim.network.lowering import LoweredJob
from triosim.network.sharing import network_model
from triosim.plan import Plan
from triosim.prediction.playing import lowered_job
from triosim.prediction.prepare import prepare
from triosim.prediction.priced_job import Progress
from triosim.schedule.program import Op, Program
from triosim.trace.tables import Trace


@dataclass(frozen=True)
class MeasuredIteration:
    """One measured iteration: what ran, where, how it was divided, its seconds, and where that is written."""

    workload: Trace
    system: System
    plan: Plan
    seconds: float
    fidelity: Fidelity = field(default_factory=Fidelity)
    where: str = ""


@dataclass(frozen=True)
class Iteration:
    """A job ready to be played under any terms.

    Attributes:
        graph, wires, model: what is played, and how links are shared.
        seconds: of each task that computes, operator times as they are priced; 0 for others.
        issues, sends, firsts: tasks of the host: all, those of transfers between stages, the first of each rank.
        tasks: what computes beside collectives.
        sizes: how large the job is.
    """

    graph: Graph
    wires: EngineNetwork
    model: NetworkModel
    seconds: NDArray[np.float64]
    issues: NDArray[np.int64]
    sends: NDArray[np.int64]
    firsts: NDArray[np.int64]
    tasks: Tasks
    sizes: JobSizes

    def played(self, terms: Coefficients) -> float:
        """Seconds of the iteration under some terms."""
        own = self.seconds * terms.scale
        own[self.issues], own[self.sends] = terms.issue_s, terms.send_s
        own[self.firsts] += terms.fixed_s
        computes = self.seconds > 0
        gap = np.where(computes, picoseconds(terms.gap_s, "the gap between two kernels"), 0).astype(np.int64)
        set_here = computes.copy()
        set_here[self.issues] = True
        amount = np.where(set_here, picoseconds(own, "an operator's time") + gap, self.graph.amount)
        more = picoseconds(terms.collective_s, "what each collective takes more")
        collectives = tuple(replace(c, delay=c.delay + more) for c in self.graph.collectives)
        graph = replace(self.graph, collectives=collectives)

        def again(amount: NDArray[np.int64]) -> GraphRun:
            return play(replace(graph, amount=amount), self.wires, self.model)

        after = np.split(gap, self.tasks.first[1:-1])
        finish = settle(replace(self.tasks, amount=amount, after=after), again).finish - gap
        return int(finish.max(initial=0)) / PICOSECONDS_PER_SECOND


def iteration(
    programs: Sequence[Program], made: LoweredJob, slowdown: Sequence[float], model: NetworkModel | None = None
) -> Iteration:
    """What is played for one iteration of a job.

    Args:
        programs: one for each rank class, the host's work included.
        made: their tasks.
        slowdown: of each program, what a collective does to what computes beside it.
        model: how links are shared; max-min if None.
    """
    own = [programs[number] for number in made.program.tolist()]
    op = np.concatenate([program.op for program in own])
    issues = np.flatnonzero(op == Op.ISSUE)
    firsts = issues[np.searchsorted(issues, made.first[:-1])]
    tasks = Tasks(
        first=made.first,
        slowdown=np.array(slowdown)[made.program],
        computes=[program.op == Op.COMPUTE for program in own],
        moves=[program.op == Op.COLLECTIVE for program in own],
        amount=made.graph.amount,
        after=made.by_cell(made.gaps),
    )
    return Iteration(
        graph=made.graph,
        wires=made.wires,
        model=model or network_model("max-min", {}),
        seconds=np.concatenate([np.where(program.op == Op.COMPUTE, program.seconds, 0.0) for program in own]),
        issues=issues,
        sends=issues[op[issues + 1] == Op.SEND],
        firsts=firsts,
        tasks=tasks,
        sizes=sizes(programs),
    )


def learn(
    measured: Sequence[MeasuredIteration],
    source: str,
    progress: Progress = lambda words: None,
    operator_times: str = "auto",
) -> CalibratedOverhead:
    """A residual of composition from measured iterations.

    Args:
        measured: iterations of one framework on one kind of machine.
        source: where they are from, in words.
        progress: called with what is being done.
        operator_times: operator model, the same for all.

    Raises:
        InputError: there are too few of them, or one cannot be formed; the message says which.
    """
    ready = []
    for number, one in enumerate(measured, start=1):
        progress(f"preparing iteration {number} of {len(measured)}")
        fidelity = one.fidelity.replaced(host="large-model", composition=None, operator_times=operator_times)
        try:
            job = prepare(one.workload, one.system, one.plan.replaced(iterations=1), fidelity)
        except InputError as error:
            raise InputError(f"{one.where or f'iteration {number}'}: {error}") from None
        if not one.seconds > 0:
            raise InputError(f"{one.where or f'iteration {number}'}: {one.seconds:g} s is no time of an iteration")
        model = network_model(fidelity.solver, fidelity.solver_options)
        made, _ = lowered_job(job, fidelity.fold and model.weighted)
        ready.append(iteration(job.programs, made, [i.slowdown for i in job.interferes], model))
    progress("fitting")
    return fit(
        lambda terms, rows: np.array([ready[row].played(terms) for row in rows]),
        [one.seconds for one in measured],
        [one.sizes for one in ready],
        operator_times=operator_times,
        source=source,
    )
