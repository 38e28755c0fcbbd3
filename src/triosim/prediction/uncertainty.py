"""How sure an iteration time is, and what makes it unsure: errors of whole classes, played through the job.

Operators of a class err together: if the model takes the matrix products of a device for too fast, it does so for all
of them.  So a *cause* is one class of operators, the host, the software (:mod:`triosim.composition.software`), or the
network, each with one standard normal variable; an operator's time is multiplied by ``exp(z * spread / 1.645)`` with
the ``z`` of its class and its own spread (half-width of its 90 % interval, natural logarithm), link rates by the same
of the network, and the whole iteration by that of the software, the middle of which lies above the prediction
(:func:`triosim.composition.software.shift`).  The job is played with each cause moved by one
standard deviation, and with 200 draws of all together (from ``Plan.seed``): waiting, overlap and pipelines make of the
errors what they make of the times.

Where so many plays would take too long, transfers share links as they did in the prediction itself, and the rest is
played as the longest way (:mod:`triosim.engine.longest_path`), which the result says; of a pipeline of many turns, as
many as it takes to see their pace.  There are always draws, at least :data:`FEWEST`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from triosim.composition import software, update
from triosim.core.dataclass import dataclass
from triosim.engine.graph import EngineNetwork, Graph, GraphRun
from triosim.engine.monte_carlo import play_many
from triosim.engine.solver import NetworkModel
from triosim.hardware import catalog
from triosim.hardware.system import Labels, System, Tier
from triosim.kernels.classes import GROUPS, SCAN, by_name, group_of_name
from triosim.kernels.estimate import Z90, Source
from triosim.network.device_assignment import DeviceAssignment
from triosim.network.lowering import LoweredJob
from triosim.prediction.prepare import CompiledJob
from triosim.prediction.result import Cause
from triosim.prediction.steady import SteadyRun
from triosim.schedule.program import Op

if TYPE_CHECKING:
    from triosim.engine.longest_path import Durations
    from triosim.network.common_prefix import PrefixedJob

CATALOG_LINK_SPREAD = 0.3
"""Natural logarithm of the 90 % interval's factor of a transfer over links of the catalog of a family whose collectives
were measured on several machines: efficiency and latency are those of one collective library and message size each (see
the sources in the catalog).  Links that the user describes are taken at their word."""
MEASURED_FAMILIES = ("NVLink", "InfiniBand")
UNMEASURED_LINK_SPREAD = 0.7
"""The same of all other families: what PCIe servers (11 to 21 GB/s where a copy reaches 25.8, by how many sockets and
switches lie between: MooreThreads/SimuMax, configs/system/a100_pcie.json) and an Omni-Path cluster (5.1 to 10.6 GB/s of
50: BigScience, experiments/bandwidth) reach is within a factor of two of the middle."""

DRAWS = 200
FEWEST = 50
"""Draws below which quantiles say little; there are never fewer."""
TASK, EVENT = 1, 80
"""What playing a task takes, and solving the sharing of links at one instant, in units of the former: on the native
engine about 60 ns and 5 us.  How much is played on the side depends on these counts, and not on a clock or on the
engine, so that a prediction is the same every time."""
BUDGET = 6_500_000
"""Draws are as many as fit in this where links are shared anew, the causes one by one included: some 0.4 s on the
native engine, 15 s on the reference engine."""
REPLAYS = 1_200_000_000
"""Tasks of all draws together where transfers share links as they did: some 1.2 s on the native engine; draws are as
many as fit, or :data:`FEWEST`, which take no longer than the job itself."""
ANEW, AS_PREDICTED = "links shared anew", "links shared as predicted"
"""How transfers share links in a draw."""
TAIL = 0.05

HOST, UPDATE, SOFTWARE, NETWORK = "the host", "the host's update", "the software", "the network"
_WORDS = {
    "matrix": "matrix products", "convolution": "convolutions", "convolution_backward": "gradients of convolutions",
    "attention": "attention", "attention_backward": "gradients of attention", "rowwise": "softmax and normalization",
    "elementwise": "elementwise operators", "experts": "experts", "scan": "scans of states",
    "other": "other operators",
    "nothing": "other operators",
}  # fmt: skip
_RECORDED = (Source.RECORDED, Source.NOTHING)
SMALL = 1e-4
"""Causes with less than this part of the uncertainty are left out."""
LEAST = 3e-3
"""Causes with less than this part of what can be off are not played alone; draws move them all the same."""


@dataclass(frozen=True)
class Uncertainty:
    """Of an iteration time.

    Attributes:
        low, high: ends of the 90 % interval over the time itself, factors.
        causes: largest first.
        draws: times that the job was played with all causes at once.
        drawn: :data:`ANEW` or :data:`AS_PREDICTED`.
    """

    low: float
    high: float
    causes: tuple[Cause, ...]
    draws: int
    drawn: str


def uncertainty(
    job: CompiledJob, lowered: LoweredJob, played: GraphRun, amount: NDArray[np.int64], model: NetworkModel
) -> Uncertainty:
    """Uncertainty of a job that has been played.

    Args:
        job: as it was prepared.
        lowered: its tasks.
        played: when they ran.
        amount: of each task, as it was played.
        model: how links are shared.
    """
    graph = replace(lowered.graph, amount=amount)
    causes = _JobCauses.of_job(job, lowered, amount)
    each = TASK * len(graph) + EVENT * played.events
    draws = _draws(each, len(causes.one_by_one), BUDGET)
    if draws >= FEWEST:
        return causes.uncertainty(job, _played(graph, lowered, model, causes), draws, ANEW)
    return _replayed(job, graph, _took(graph, lowered.wires, model, played, causes), causes)


def too_large_to_draw(tasks: int) -> bool:
    """Whether links cannot be shared anew in draws of so many tasks, however few causes there are."""
    return tasks * TASK * FEWEST > BUDGET


def prefixed_uncertainty(
    job: CompiledJob, cut: PrefixedJob, played: GraphRun, amount: NDArray[np.int64], model: NetworkModel
) -> Uncertainty:
    """The same of a job that was played with its common prefix played once, links shared as they were.

    Such a job has too many tasks to be played anew so often.

    Args:
        job: as it was prepared.
        cut: its parts.
        played: when the tasks of both ran.
        amount: of each of them, as it was played.
        model: how links are shared.
    """
    graph = replace(cut.graph, amount=amount)
    causes = _JobCauses.of_job(job, cut, amount, cut.stands_for)
    return _replayed(job, graph, _took(graph, cut.wires, model, played, causes), causes)


def uncertainty_among_others(
    job: CompiledJob,
    lowered: LoweredJob,
    own: slice,
    graph: Graph,
    wires: EngineNetwork,
    played: GraphRun,
    model: NetworkModel,
) -> Uncertainty:
    """Uncertainty of a job that was played together with others, which stay as they are.

    Args:
        job, lowered: as of :func:`uncertainty`.
        own: its tasks among those of all jobs.
        graph, wires: of all jobs, the amounts as they were played.
        played: when all tasks ran.
        model: how links are shared.
    """
    from triosim.engine.longest_path import Durations

    amount = graph.amount[own]
    causes = _JobCauses.of_job(job, lowered, amount)
    took = _took(graph, wires, model, played, causes)
    part = Durations(took.fixed[own], took.shared[own])
    return _replayed(job, replace(lowered.graph, amount=amount), part, causes)


def steady_uncertainty(
    job: CompiledJob, run: SteadyRun, amount: NDArray[np.int64], model: NetworkModel
) -> Uncertainty | None:
    """The same of a job whose turns are alike, from the short one that was played; None where playing it all so often
    does not take long.

    Args:
        job: the whole one.
        run: the short one.
        amount: of its tasks, as they were played.
        model: how links are shared.
    """
    lowered, played = run.lowered, run.played
    causes = _JobCauses.of_job(job, lowered, amount)
    more = run.played_tasks / len(lowered.graph)
    each = int(more * (TASK * len(lowered.graph) + EVENT * played.events))
    if _draws(each, len(causes.one_by_one), BUDGET) >= FEWEST:
        return None
    graph = replace(lowered.graph, amount=amount)
    return _replayed(job, graph, _took(graph, lowered.wires, model, played, causes), causes, run)


def _draws(each: int, causes: int, budget: int) -> int:
    """Draws with links shared anew that fit, beside plays for the causes one by one; even."""
    return min(DRAWS, (budget // max(each, 1) - causes) // 2 * 2)


def _played(graph: Graph, lowered: LoweredJob, model: NetworkModel, causes: _JobCauses) -> _Ends:
    """Ends of draws in which links are shared anew."""

    def ends(z: NDArray[np.float64]) -> NDArray[np.float64]:
        return play_many(graph, lowered.wires, model, causes.column, *causes.factors(z)).astype(np.float64)

    return ends


def _took(
    graph: Graph, wires: EngineNetwork, model: NetworkModel, played: GraphRun, causes: _JobCauses
) -> Durations:  # fmt: skip
    """What tasks took, and the part of it that goes with the links."""
    slower = float(np.exp(-causes.network / Z90)) if causes.network else None
    from triosim.engine.longest_path import task_durations

    return task_durations(graph, wires, model, played, slower)


def _replayed(
    job: CompiledJob, graph: Graph, took: Durations, causes: _JobCauses, run: SteadyRun | None = None
) -> Uncertainty:  # fmt: skip
    """Uncertainty from draws in which links are shared as they were."""
    from triosim.engine.longest_path import longest_path

    draws = max(_draws(len(graph), len(causes.one_by_one), REPLAYS), FEWEST)
    at = np.zeros(0, np.int64) if run is None else run.landmarks.ravel()

    def ends(z: NDArray[np.float64]) -> NDArray[np.float64]:
        found, marks = longest_path(graph, took, causes.column, *causes.factors(z), at)
        return found if run is None else run.ends(found, marks)

    return causes.uncertainty(job, ends, draws, AS_PREDICTED)


_Ends = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Ticks at which draws end, from ``z`` of shape (draws, causes)."""


@dataclass(frozen=True)
class _JobCauses:
    """What can be off in a job.

    Attributes:
        names: of the causes, the software and the network last.
        of, reach: cause and spread of each kind of task.
        column: kind of each task, -1 for those that nothing moves.
        software: shift and spread of what runs it.
        network: spread of the links.
        matter: which causes are played alone.
    """

    names: list[str]
    of: NDArray[np.int64]
    reach: NDArray[np.float64]
    column: NDArray[np.int32]
    software: tuple[float, float]
    network: float
    matter: NDArray[np.bool_]

    @classmethod
    def of_job(
        cls,
        job: CompiledJob,
        lowered: LoweredJob | PrefixedJob,
        amount: NDArray[np.int64],
        stands_for: NDArray[np.int64] | int = 1,
    ) -> _JobCauses:
        """Those of a job with such amounts, of tasks that each stand for so many."""
        names, of, reach, column = _tasks(job, lowered)
        network = link_spread(job.system, job.assignment)
        matter = np.append(_weights(column, of, reach, amount * stands_for, len(names)) > LEAST, [False, network > 0])
        return cls([*names, SOFTWARE, NETWORK], of, reach, column, _software(job), network, matter)

    @property
    def one_by_one(self) -> NDArray[np.float64]:
        """Draws that move nothing, and then each cause that matters, shape (1 + of these, causes).

        The software is not played: it stretches a whole iteration.
        """
        return np.vstack([np.zeros(len(self.names)), np.eye(len(self.names))[self.matter]])

    def factors(self, z: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Factors of kinds of tasks, and of link rates, in draws of shape (draws, causes)."""
        return np.exp(z[:, self.of] * self.reach / Z90), np.exp(-z[:, -1] * self.network / Z90)

    def uncertainty(self, job: CompiledJob, ends: _Ends, draws: int, drawn: str) -> Uncertainty:
        """What so many draws say, with every draw its mirror image."""
        singly = self.one_by_one
        half = np.random.default_rng(job.fidelity.seed).standard_normal((draws // 2, len(self.names)))
        logs = np.log(np.maximum(ends(np.vstack([singly, half, -half])), 1.0))
        alone = logs[: len(singly)]
        moved = np.zeros(len(self.names))
        moved[self.matter] = alone[1:] - alone[0]
        shift, spread = self.software
        moved[-2] = spread / Z90
        together = logs[len(singly) :] - alone[0] + shift + np.concatenate([half[:, -2], -half[:, -2]]) * moved[-2]
        found = np.sort(together)
        low, high = found[int(np.floor(TAIL * (draws + 1))) - 1], found[int(np.ceil((1 - TAIL) * (draws + 1))) - 1]
        factors = float(np.exp(min(low, 0.0))), float(np.exp(max(high, 0.0)))
        return Uncertainty(*factors, _causes(job, self.names, moved), draws, drawn)


def _software(job: CompiledJob) -> tuple[float, float]:
    """Shift and spread of the software; none of a recording, nor of what is not trained."""
    if job.whole.meta.made_by != "triosim.model" or not job.plan.training:
        return 0.0, 0.0
    named = "" if job.plan.stack is None else job.plan.stack.name
    return software.shift(), software.spread(job.step.trace, named)


def link_spread(system: System, assignment: DeviceAssignment) -> float:
    """Natural logarithm of the 90 % interval's factor of transfers between the devices of a job; 0 of links as given.

    Args:
        system: with its links.
        assignment: the devices that take part.
    """
    if not any(system.edge_name):
        return 0.0
    found = _families(system, Tier.SCALE_UP)
    if np.ptp(system.device_server[assignment.devices]):
        found |= _families(system, Tier.SCALE_OUT) - {"PCIe"}  # a NIC's slot is as wide as its port
    return CATALOG_LINK_SPREAD if found <= set(MEASURED_FAMILIES) else UNMEASURED_LINK_SPREAD


def _families(system: System, tier: Tier) -> set[str]:
    """Families of the links of a tier."""
    edges = np.flatnonzero(system.edge_tier == tier)
    if isinstance(system.edge_name, Labels):
        edges = edges[np.unique(system.edge_name.rows[edges], return_index=True)[1]]
    names = {system.edge_name[edge] for edge in edges.tolist()}
    return {catalog.link_facts(name).family for name in names if name}


def _weights(
    column: NDArray[np.int32], of: NDArray[np.int64], reach: NDArray[np.float64], amount: NDArray[np.int64], causes: int
) -> NDArray[np.float64]:
    """Each cause's part of all ticks that can be off, each counting with its spread."""
    caused = column >= 0
    ticks = np.bincount(column[caused], amount[caused].astype(np.float64), len(of)) * reach
    found = np.bincount(of, ticks, causes)
    return np.asarray(found / max(float(found.sum()), 1e-300))


def _tasks(
    job: CompiledJob, lowered: LoweredJob | PrefixedJob
) -> tuple[list[str], NDArray[np.int64], NDArray[np.float64], NDArray[np.int32]]:
    """Causes but the network, and the tasks that they move.

    Returns:
        Names of the causes; cause and spread of each kind of task; and the kind of each task, -1 for those that nothing
        moves.
    """
    trace, times = job.step.trace, job.times
    words = [_WORDS[name] for name in GROUPS]
    group = by_name(trace.operators.name, group_of_name)
    rare = (
        set() if np.any(group == SCAN) else {_WORDS["scan"]}
    )  # a cause more has draws of its own, and moves the others'
    known = [word for word in dict.fromkeys(words) if word not in rare]
    code = np.array([known.index(word) if word in known else -1 for word in words])[group]
    pairs = np.column_stack([code, np.round(times.spread, 4)])
    host = [[len(known), job.launching.spread], [len(known) + 1, update.SPREAD]]
    kinds, kind = _distinct_pairs(np.vstack([pairs, host]))
    kind = np.where(kinds[kind, 1] > 0, kind, -1).astype(np.int32)
    columns = []
    for program in job.programs:
        computes = (program.op == Op.COMPUTE) & (program.operator >= 0)
        moved = np.where(computes, kind[np.maximum(program.operator, 0)], -1)
        columns.append(np.where(program.op == Op.ISSUE, np.where(program.peer < 0, kind[-2], kind[-1]), moved))
    column = lowered.of_rows(columns).astype(np.int32, copy=False)
    return [*known, HOST, UPDATE], kinds[:, 0].astype(np.int64), kinds[:, 1], column


def _distinct_pairs(table: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The different rows of whole number and spread, sorted, and which of them each row is.

    As :func:`numpy.unique` along an axis, which compares rows byte by byte and takes ten times as long.
    """
    spread, at = np.unique(table[:, 1], return_inverse=True)
    code, row = np.unique(table[:, 0].astype(np.int64) * len(spread) + at.ravel(), return_inverse=True)
    return np.stack([code // len(spread), spread[code % len(spread)]], axis=1), row.ravel()


def _causes(job: CompiledJob, names: list[str], moved: NDArray[np.float64]) -> tuple[Cause, ...]:
    variance = moved**2
    total = float(variance.sum())
    if not total > 0:
        return ()
    share = variance / total
    order = [int(i) for i in np.argsort(-share, kind="stable") if share[i] > SMALL]
    unnamed = job.plan.stack is None and SOFTWARE in names and share[names.index(SOFTWARE)] > SMALL
    part = {SOFTWARE: software.nameable(job.step.trace)} if unnamed else {}
    return tuple(
        Cause(
            names[i],
            float(share[i]),
            float(np.sqrt(max(1 - share[i] * part.get(names[i], 1.0), 0.0))),
            _cure(job, names[i]),
        )
        for i in order
    )


def _cure(job: CompiledJob, name: str) -> str:
    device, design = job.job.device.name or "the device", job.job.device.design is not None
    if name == HOST and design:  # nobody records a trace on a chip that does not exist
        return "say how it launches (--host graph, or none)"
    if name == HOST:
        return "" if job.launching.mode == "recorded" else f"record a trace on {device}"
    if name == UPDATE:
        return ""
    if name == SOFTWARE:
        return "" if job.plan.stack is not None else "name it (--stack)"
    if name == NETWORK:
        return "describe the links with measured bandwidth and latency"
    group = by_name(job.step.trace.operators.name, group_of_name)
    source = job.times.source[np.array([_WORDS[one] == name for one in GROUPS])[group]]
    if np.isin(source, _RECORDED).all():
        return ""
    if design:
        return "try more mappings (--operator-option budget=N)"
    if job.job.recorded_on is None:
        return f"record a trace on {device}, or calibrate it (triosim calibrate)"
    return f"record the trace on {device} at these shapes, or calibrate it (triosim calibrate)"
