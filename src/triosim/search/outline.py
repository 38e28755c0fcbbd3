"""A plan's figures from an outline of what its ranks run: passes of a few rows, links as shares.

A full prediction writes, lowers and plays every instruction of every micro-batch on every link.  Here

1. the step is divided, priced and cut as for a full prediction (:func:`triosim.prediction.staged_job.stage_job`);
2. each kind of stage is written from event to event (:mod:`triosim.search.contracted_passes`), what lies between two
   events having been played once (:mod:`triosim.search.operator_chain`);
3. what collectives and sends take alone, and which of them share links, is worked out once for a mesh
   (:mod:`triosim.search.transfer_times`);
4. all actions of all stages are run, with rates instead of flows (:mod:`triosim.engine.contended`).

It is exact but for what shares links, which goes at equal rates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from triosim.composition.host import HostCosts
from triosim.composition.interference import interference
from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.core.units import picoseconds
from triosim.engine import contended
from triosim.engine.contended import ContendedRun, ContendedSchedule, RoutedFragment
from triosim.engine.contended import RoutedPort as LeadingCollective
from triosim.fidelity import Fidelity
from triosim.hardware.system import System
from triosim.kernels.copying import copy_s_per_byte
from triosim.partition.gradients import reduced_gradients
from triosim.partition.replication import Replication
from triosim.partition.resolve import JobMesh
from triosim.partition.step import Step
from triosim.partition.wire_format import WireFormat
from triosim.plan import Plan
from triosim.prediction.priced_job import price_job
from triosim.prediction.staged_job import StagedJob, stage_job
from triosim.schedule._stage import JobFacts, StageFacts
from triosim.schedule.actions import Schedule
from triosim.schedule.costs import ScheduleCosts
from triosim.search.block_outline import BlockJob
from triosim.search.block_step import NoBlocks
from triosim.search.contracted_passes import PassRows, StageContraction
from triosim.search.evaluate import GATHERED, NotEvaluated, job_communication, unsupported_reason
from triosim.search.isolated_transfers import Call, UnequalRanks
from triosim.search.operator_chain import OperatorChain
from triosim.search.pass_script import (
    STREAMS,
    GradientsReady,
    LocalTransfer,
    PortTarget,
    StageScripts,
    TiedGradientExchange,
    TiedGradientReady,
)
from triosim.search.peak_memory import fullest_stage_bytes, parameters_to_gather
from triosim.search.stage_classes import MessagePort, StageClasses
from triosim.search.stage_order import ActionKind, PipelineOrder, pipeline_order
from triosim.search.transfer_times import JobTransferTimes
from triosim.trace.tables import Trace

MOSTLY_COMPUTES = 0.25
"""Part of the work of a stage in which nothing may be computed, its collectives being waited for: what they share with
messages is left out, and counts where there is more of them."""

SHARED_AGAIN = 1.1
"""How many times longer collectives of the tensor axis may take beside what is gathered again in each pass of chunks
that run in turn: beyond it when exactly they meet decides (llama-3.2-1b, ZeRO 3: 6e-4 to 7e-3 early at 1.5)."""

FEWEST, FEWEST_GATHERED = 2, 3
"""Micro-batches, and those of a pipeline whose parameters are gathered or that runs chunks in turn: of fewer a full
prediction costs little, and what meets at the end is too much of the iteration to be said by rates (llama-3.2-1b, ZeRO
2, 2 on 4 stages: 1.1e-3)."""

FEWEST_IN_TURN = 8
"""Micro-batches of a pipeline that runs chunks in turn, if nothing is gathered (of fewer stages than that as many): of
fewer, most of the iteration is its begin and its end, where sends and reductions of all stages meet (GPT-3 175B on
1,024 GPUs, 6 micro-batches: 1.3e-3 early on 16 stages; llama-3.2-1b, 2 on 2 stages, recomputed: 1.6e-3 late)."""


@dataclass(frozen=True)
class OutlinedPlan:
    """A job that was outlined.

    Attributes:
        made: the job before its programs.
        run: how it went.
        labels: under which number collectives and sends are added up.
        calls: ticks of the collectives within passes, those of one rank of each stage.
        reserved: bytes of the fullest stage.
    """

    made: StagedJob
    run: ContendedRun
    labels: dict[Call, int]
    calls: dict[Call, int]
    reserved: int


def outline_plan(
    workload: Trace,
    system: System,
    plan: Plan,
    fidelity: Fidelity | None = None,
    other_recordings: Sequence[Trace] = (),
) -> OutlinedPlan:
    """Outline a plan.

    Args:
        workload, system, plan, fidelity, other_recordings: as of :func:`triosim.simulate`.

    Raises:
        InputError: as of :func:`triosim.simulate`.
        NotEvaluated: the plan has to be simulated.
    """
    fidelity = fidelity or Fidelity()
    why = unsupported_reason(plan, fidelity)
    if why and why != GATHERED:
        raise NotEvaluated(why)
    try:
        if not other_recordings:
            try:
                return outline_in_blocks(workload, system, plan, fidelity)
            except NoBlocks:
                pass
        job = price_job(workload, system, plan, fidelity, other_recordings=other_recordings)
        return _OutlineBuilder(stage_job(job)).run()
    except UnequalRanks as error:
        raise NotEvaluated(str(error)) from None


def job_facts(made: StagedJob) -> JobFacts:
    """What is run.

    Raises:
        NotEvaluated: there is nothing of the kind to outline.
    """
    if len(made.models) > 1:
        raise NotEvaluated("devices of several kinds")
    if not made.plan.training:
        raise NotEvaluated("inference")
    _check_kind(made.step, made.schedule, made.launching)
    grads = reduced_gradients(made.step.trace, made.plan.stack)
    if not grads:
        raise NotEvaluated("no gradients")
    device = made.system.models[made.models[0]]
    copies = copy_s_per_byte(device) if made.step.replication.weights else 0.0
    costs = ScheduleCosts(made.all_times[made.models[0]].seconds, copy_s_per_byte=copies)
    return JobFacts(made.step, costs, made.stages, made.schedule, made.plan, made.mesh, grads)


def _check_kind(step: Step, schedule: Schedule, launching: HostCosts) -> None:
    """Refuse steps that are not outlined.

    Raises:
        NotEvaluated: something is elsewhere, compressed, local, run in turn, or waits for its host.
    """
    placed = step.replication
    if placed.away or placed.rooted:
        raise NotEvaluated("states or activations that a rule keeps elsewhere")
    if placed.compression is not None or placed.outer is not None or placed.travel != WireFormat():
        raise NotEvaluated("gradients or parameters that travel as something else, or steps that are local")
    if step.updates:
        raise NotEvaluated("parameters that are brought together while they are updated")
    if schedule.combines or step.transfers.beside.any():
        raise NotEvaluated("passes that are run in turn, or exchanges beside each other")
    if (step.transfers.pieces != 1).any():
        raise NotEvaluated("collectives that are made beside products")
    if schedule.directions > 1:
        raise NotEvaluated("several copies of the model in one pipeline")
    if (
        launching.blocking
        or launching.mode == "graph"
        or (launching.waits(step.trace).any() and launching.mode != "none")
    ):
        raise NotEvaluated("operators or launches at which the host waits, or a graph")


def outline_in_blocks(workload: Trace, system: System, plan: Plan, fidelity: Fidelity) -> OutlinedPlan:
    """Outline a plan in block space.

    Args:
        workload, system, plan, fidelity: as of :func:`outline_plan`.

    Raises:
        NoBlocks: it is to be outlined otherwise.
        NotEvaluated, UnequalRanks, InputError: as of :func:`outline_plan`.
    """
    job = BlockJob(workload, system, plan, fidelity, _check, _check_kind)
    made = job.arranged()
    return _simulated(job, made, job.reserved())


def _check(mesh: JobMesh, schedule: Schedule, placed: Replication) -> None:
    """Refuse what is not outlined.

    Raises:
        NotEvaluated: the backward is split, or there are few micro-batches.
    """
    if schedule.splits_backward:
        raise NotEvaluated("a backward in two halves")
    fewest = FEWEST_GATHERED if placed.weights and mesh.stages > 1 else FEWEST
    if schedule.chunks_per_stage > 1:
        fewest = max(fewest, 0 if placed.weights else max(FEWEST_GATHERED, min(mesh.stages, FEWEST_IN_TURN)))
    if mesh.micro_batches < fewest:
        raise NotEvaluated("few micro-batches, of which nothing repeats")


class _OutlineBuilder:
    def __init__(self, made: StagedJob) -> None:
        _check(made.mesh, made.schedule, made.step.replication)
        self.made, self.mesh, self.launching = made, made.mesh, made.launching
        self.job = job_facts(made)
        fidelity = made.fidelity
        how = (fidelity.collective_algorithm, fidelity.collective_protocol, made.system.ideal)
        self.transfer_times = JobTransferTimes(
            self.job, self.job.stage, made.system, made.assignment, made.router, how, job_communication
        )
        slowdown = interference(made.system.models[made.models[0]], fidelity.slowdown).slowdown
        self.chain = OperatorChain(
            self.job, made.launching, slowdown, self.transfer_times.called, self.transfer_times.shared,
            self.transfer_times.called_lags(),
        )  # fmt: skip
        self.kinds = StageClasses(self.job, replace(made.launching, delay_s=0.0))
        self.stages = range(self.mesh.stages)
        self.schedule, self.gathers = made.schedule, self.job.modules is not None
        self.kind = self._kinds()
        self._contractions: dict[Hashable, StageContraction] = {}

    def run(self) -> OutlinedPlan:
        """Write, play, and see what memory it needs."""
        return _simulated(self, self.made, self._reserved())

    def written(self, stage: int, action: ActionKind | None) -> tuple[Hashable, Callable[[], PassRows]]:
        """A pass of a stage, or what ends its iteration, and what tells it apart."""
        kind = self.kind[stage]
        if kind not in self._contractions:
            facts = StageFacts(self.job, stage)
            self._contractions[kind] = StageContraction(StageScripts(facts), facts, self.chain, self.transfer_times)
        of = self._contractions[kind]
        if action is None:
            return (kind, None), of.update
        needs = parameters_to_gather(action, of.facts)
        key = (kind, (action.what, action.chunk, action.final), needs)
        return key, lambda: of.pass_of(action.chunk, action.what, action.final, needs)

    def messages(self, pairs: dict[tuple[int, int], int], alone: int) -> _OutlineMessages:
        """Where rows lead."""
        return _OutlineMessages(self, pairs, alone)

    def _reserved(self) -> int:
        """Bytes of the fullest stage."""
        return fullest_stage_bytes(self.job, self.made.schedule, self.kinds.of)

    def _kinds(self) -> list[Hashable]:
        """Of each stage, alike for stages that do the same and whose messages take equally long."""
        sent: list[list[int]] = [[] for _ in self.stages]
        for b in self.job.stages.boundaries:
            source, target = self.job.stage(b.source), self.job.stage(b.target)
            if source != target:
                sent[source].append(self.transfer_times.boundary(b, back=False)[0])
                sent[target].append(self.transfer_times.boundary(b, back=True)[0])
        return [(of, *own) for of, own in zip(self.kinds.of, sent, strict=True)]


class PassWriter(Protocol):
    """Passes of a job, whoever writes them.

    Attributes:
        gathers: whether parameters are gathered in passes, as far as those before have not.
    """

    mesh: JobMesh
    gathers: bool
    schedule: Schedule
    launching: HostCosts
    transfer_times: JobTransferTimes

    def written(self, stage: int, action: ActionKind | None) -> tuple[Hashable, Callable[[], PassRows]]:
        """A pass of a stage, or what ends its iteration, and what tells it apart."""
        ...

    def messages(self, pairs: dict[tuple[int, int], int], alone: int) -> MessageNumbering:
        """Where rows lead."""
        ...


class MessageNumbering(Protocol):
    """Message numbers of rows that send or receive."""

    @property
    def count(self) -> int:
        """Messages, with room for every number."""
        ...

    def ports(
        self, leads: Sequence[PortTarget], stage: int, action: ActionKind | None
    ) -> tuple[LeadingCollective, ...]:
        """Where the rows of a pass lead."""
        ...


def _simulated(of: PassWriter, made: StagedJob, reserved: int) -> OutlinedPlan:
    """Play what is written.

    Raises:
        NotEvaluated: it waits for what moves, so that rates do not say what it takes.
    """
    mesh, launching, transfer_times = of.mesh, of.launching, of.transfer_times
    order = pipeline_order(of.schedule, mesh.stages, mesh.micro_batches, of.gathers)
    known: dict[Hashable, int] = {}
    writes: list[Callable[[], PassRows]] = []
    fragment_of_cast: list[int] = []
    for stage, action in order.casts:
        key, write = of.written(stage, action)
        if key not in known:
            known[key] = len(writes)
            writes.append(write)
        fragment_of_cast.append(known[key])
    passes = [write() for write in writes]  # once all of them are known
    fragments = [one.fragment() for one in passes]
    which = np.array(fragment_of_cast, np.int64)
    waits = np.array([fragment.exposed.sum() for fragment in fragments], np.int64)[which]
    exposed = np.add.reduceat(waits * order.often, order.first)
    release, host = _issued(order, np.array([one.host for one in passes], np.int64)[which], launching)
    calls: Counter[Call] = Counter()
    for fragment, often in zip(fragment_of_cast, order.often.tolist(), strict=True):
        for call, count in passes[fragment].calls.items():
            calls[call] += count * often * transfer_times.called[call]
    shared, pairs, alone = transfer_times.transfer_classes()
    messages = of.messages(pairs, alone)
    ported = [
        RoutedFragment(fragment, messages.ports(passes[fragment].ports, stage, action))
        for fragment, (stage, action) in zip(fragment_of_cast, order.casts, strict=True)
    ]
    run = contended.contended_run(
        ContendedSchedule(
            fragments, ported, order.cast, order.micro_batch, release, shared, host, STREAMS, messages.count,
            len(transfer_times.labels), transfer_times.lags(),
        )
    )  # fmt: skip
    again = made.step.replication.regathers and made.schedule.chunks_per_stage > 1 and mesh.stages > 1
    if again and transfer_times.shared.average > SHARED_AGAIN:
        raise NotEvaluated("collectives of tensors on links on which parameters are gathered again in each pass")
    if (exposed > MOSTLY_COMPUTES * (run.work + exposed)).any():
        raise NotEvaluated("passes that wait for their collectives most of the time")
    return OutlinedPlan(made, run, transfer_times.labels, dict(calls), reserved)


def _issued(order: PipelineOrder, issue: NDArray[np.int64], launching: HostCosts) -> tuple[Ragged, NDArray[np.int64]]:
    """When the host of each stage has issued each action, which then is released, and when all of them.

    Args:
        order: of the actions.
        issue: ticks that issuing an action of each cast takes.
        launching: what launching costs.
    """
    hosted = launching.mode != "none"
    begin = picoseconds(launching.delay_s + launching.fixed_s, "launching") if hosted else 0
    launch = picoseconds(launching.launch_s, "launching") if hosted else 0
    ends, took = order.cast.offsets, issue[order.cast.values]
    before = np.append(0, np.cumsum(took))
    of_stage = before[ends[:-1]]  # what stands ahead is of other stages
    release = before[:-1] - np.repeat(of_stage, np.diff(ends)) + (begin + launch)
    return Ragged(release, ends), before[ends[1:]] - of_stage + begin


class _OutlineMessages:
    """Numbers of what is sent: a run of micro-batches for each boundary each way, then what is sent once."""

    def __init__(self, of: _OutlineBuilder, pairs: dict[tuple[int, int], int], alone: int) -> None:
        self.of, self.pairs, self.alone = of, pairs, alone
        self.m = of.mesh.micro_batches
        self.number: dict[Hashable, int] = {}
        first: dict[Hashable, int] = {}
        self.first = [
            first.setdefault(kind, stage) for stage, kind in enumerate(of.kind)
        ]  # what passes are written for

    @property
    def count(self) -> int:
        """Messages, with room for every number."""
        return (2 * len(self.of.job.stages.boundaries) + len(self.number) + 1) * self.m

    def ports(
        self, leads: Sequence[PortTarget], stage: int, action: ActionKind | None
    ) -> tuple[LeadingCollective, ...]:
        """Where the rows of a pass lead, written for a stage of its kind, for this stage."""
        job, kinds = self.of.job, self.of.kinds
        found = []
        for lead in leads:
            if isinstance(lead, MessagePort):
                assert action is not None
                part = action.chunk * self.of.mesh.stages
                at = kinds.ports[action.what, part + self.first[stage]].index(lead)
                own = kinds.ports[action.what, part + stage][at]
                b = job.stages.boundaries[own.boundary]
                ends = job.stage(b.source), job.stage(b.target)
                pair = ends[::-1] if own.back else ends
                message = (2 * own.boundary + own.back) * self.m
                found.append(LeadingCollective(message, self.pairs[pair], pair[1] if own.sends else pair[0]))
            elif isinstance(lead, TiedGradientExchange):
                pair = (lead.source, lead.target)
                found.append(
                    LeadingCollective(self._once(lead), self.pairs[pair], pair[1] if stage == pair[0] else pair[0])
                )
            elif isinstance(lead, (GradientsReady, TiedGradientReady)):
                found.append(LeadingCollective(self._once((stage, lead)), self.alone, stage))
            elif isinstance(lead, LocalTransfer):
                found.append(LeadingCollective(self._once((stage, "aside")), self.alone, stage))
        return tuple(found)

    def _once(self, key: Hashable) -> int:
        return (2 * len(self.of.job.stages.boundaries) + self.number.setdefault(key, len(self.number))) * self.m
