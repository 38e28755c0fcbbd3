"""A plan's figures without its graph: what repeats is played once, the end of the iteration as it is.

A full prediction writes, lowers, plays and adds up every instruction of every micro-batch.  Where no transfer meets
another, nothing but the schedule decides when a pass begins, and passes of one kind take equally long:

1. The step is divided, priced and cut as for a full prediction (:func:`triosim.prediction.staged_job.stage_job`).
2. Each *kind* of stage is written once (:mod:`triosim.search.stage_classes`).
3. What collectives and sends take alone is played once for each mesh (:mod:`triosim.search.isolated_transfers`).
4. All actions before the epilogue are run row by row, without a graph (:mod:`triosim.engine.contention_free`).
5. From the first reduction of gradients on, where buckets, sends and collectives share links, each stage's rows are
   real and the engine plays them (:mod:`triosim.search.epilogue`).

What that cannot do exactly is refused (:class:`NotEvaluated`) and for the caller to simulate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from triosim.collectives.communication import CollectiveCommunication
from triosim.collectives.scheduling import Collectives
from triosim.composition.interference import MOST_PLAYS, Interference, Tasks, interference, settle
from triosim.composition.issuing import launch
from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.core.spans import covered, merged
from triosim.core.units import PICOSECONDS_PER_SECOND, picoseconds, whole_ticks
from triosim.engine import contention_free
from triosim.engine.contention_free import (
    ContentionFreeRun,
    ContentionFreeSchedule,
    MessageOp,
    PortedFragment,
    TimeCategory,
    TimedFragment,
)
from triosim.engine.graph import GraphRun
from triosim.engine.play import play
from triosim.fidelity import Fidelity
from triosim.hardware.system import System
from triosim.network.lowering import LoweredJob, lower
from triosim.network.routes import Router
from triosim.network.sharing import network_model
from triosim.partition.gradients import reduced_gradients
from triosim.partition.mesh import Mesh
from triosim.plan import Plan
from triosim.prediction.priced_job import price_job
from triosim.prediction.staged_job import StagedJob, stage_job
from triosim.schedule._stage import JobFacts
from triosim.schedule.actions import Action, Pass
from triosim.schedule.costs import ScheduleCosts
from triosim.schedule.program import HOST, STREAMS, TP, Op, Program
from triosim.search.epilogue import EpilogueWriter, epilogue_starts
from triosim.search.isolated_transfers import Call, IsolatedTimes, Send, UnequalRanks, isolated_times
from triosim.search.peak_memory import fullest_stage_bytes
from triosim.search.stage_classes import MessagePort, StageClasses
from triosim.search.stage_order import StageOrder, stage_order
from triosim.stacks import Stack
from triosim.trace.tables import Trace

S = 1 / PICOSECONDS_PER_SECOND
CONTENTION_TOLERANCE = 1e-3
"""What sends that meet may cost before they are left to a full simulation, part of the time until the epilogue."""


UNSTEADY = 5e-4
"""Part of a pass's computation by which what collectives add to it may depend on whether another pass precedes it: one
that waits for its host lies differently beside its collectives."""

GATHERED = "gathered parameters"
"""Why plans with parameters in shards are not evaluated but outlined (:mod:`triosim.search.outline`)."""

ROUNDS = 8
"""How often the epilogue may turn out to begin earlier."""


class NotEvaluated(Exception):
    """A plan that has to be simulated, and why."""


def unsupported_reason(plan: Plan, fidelity: Fidelity) -> str:
    """Why a plan has to be simulated, ``""`` where it need not."""
    reasons = (
        (plan.iterations > 1, "several iterations"),
        (bool(plan.places), "values that start elsewhere"),
        (bool(plan.offload), "offload"),
        (plan.dp_style != "ddp", "DataParallel"),
        (fidelity.solver != "max-min", "a network model of one's own"),
        (fidelity.composition is not None, "a residual of composition"),
        (not plan.training, "inference"),
        (not plan.overlap, "no overlap"),
        (fidelity.host == "graph", "a graph that is launched once"),
        (plan.zero >= 2 and _own_gathering(plan.stack), "parameters gathered as a stack says"),
        (plan.zero == 1 and _gathers_ahead(plan.stack), "parameters gathered beside the next forward"),
        (plan.zero >= 2, GATHERED),
        (plan.stack is not None and plan.stack.blocking_launches, "launches that wait for their kernels"),
        (plan.stack is not None and plan.stack.blocking_transfers, "a host that waits for transfers"),
        (plan.stack is not None and plan.stack.scattered_transfers, "transfers in parts"),
    )
    return next((why for holds, why in reasons if holds), "")


def _gathers_ahead(stack: Stack | None) -> bool:
    return stack is not None and stack.overlap_parameters


def _own_gathering(stack: Stack | None) -> bool:
    """Whether parameters are gathered, or their gradients reduced, otherwise than ``fully_shard`` does."""
    if stack is None:
        return False
    waits = stack.listed_collectives or stack.blocking_gathers or not stack.overlap_gradients
    return stack.gathers != "block" or stack.whole_parameters or waits


@dataclass(frozen=True)
class EvaluatedPlan:
    """A job that was evaluated.

    Attributes:
        made: the job before its programs.
        steady_run: the run of all actions before the epilogue.
        epilogue: the epilogue as the engine played it, and its programs.
        lowered, programs: of the epilogue.
        messages: for each message of :attr:`steady_run` the stages that send and receive it.
        communication_ticks: ticks of each kind of collective (kind, bytes, axis) before the epilogue, and of sends
            (kind -1).
        reserved: bytes of the fullest stage.
        contended_sends: sends that shared a link with others, whose times are within :data:`CONTENTION_TOLERANCE` and
            not exact.
    """

    made: StagedJob
    steady_run: ContentionFreeRun
    epilogue: GraphRun
    lowered: LoweredJob
    programs: Sequence[Program]
    messages: NDArray[np.int64]
    communication_ticks: dict[Call, int]
    reserved: int
    contended_sends: int

    @property
    def end(self) -> int:
        """End of the iteration, picoseconds."""
        return int(self.epilogue.finish.max(initial=0))


def evaluate_plan(
    workload: Trace,
    system: System,
    plan: Plan,
    fidelity: Fidelity | None = None,
    other_recordings: Sequence[Trace] = (),
) -> EvaluatedPlan:
    """Evaluate a plan.

    Args:
        workload, system, plan, fidelity, other_recordings: as of :func:`triosim.simulate`.

    Raises:
        InputError: as of :func:`triosim.simulate`.
        NotEvaluated: the plan has to be simulated.
    """
    fidelity = fidelity or Fidelity()
    why = unsupported_reason(plan, fidelity)
    if why:
        raise NotEvaluated(why)
    made = stage_job(price_job(workload, system, plan, fidelity, other_recordings=other_recordings))
    return _Evaluation(made).run()


class _Evaluation:
    def __init__(self, made: StagedJob) -> None:
        self.made, self.plan, self.mesh = made, made.plan, made.mesh
        self.fidelity = made.fidelity
        trace = made.step.trace
        if len(made.models) > 1:
            raise NotEvaluated("devices of several kinds")
        placed = made.step.replication
        if placed.weights or placed.away or placed.rooted:
            raise NotEvaluated("parameters, states or activations that a rule keeps elsewhere")
        if placed.compression is not None or placed.outer is not None:
            raise NotEvaluated("gradients that are compressed, or steps that are local")
        if not made.plan.training or made.launching.mode == "graph":
            raise NotEvaluated("inference" if not made.plan.training else "a graph that is launched once")
        if not made.schedule.looped(made.mesh.stages):
            raise NotEvaluated("chunks that are not placed in turn")
        if made.schedule.combines or made.step.transfers.beside.any():
            raise NotEvaluated("passes that are run in turn, or exchanges beside each other")
        if (made.step.transfers.pieces != 1).any():
            raise NotEvaluated("collectives that are made beside products")
        if made.launching.waits(trace).any() and made.launching.mode != "none":
            raise NotEvaluated("operators at which the host waits")
        costs = ScheduleCosts(made.all_times[made.models[0]].seconds)
        grads = reduced_gradients(trace, made.plan.stack)
        if not grads:
            raise NotEvaluated("no gradients")
        self.job = JobFacts(made.step, costs, made.stages, made.schedule, made.plan, made.mesh, grads)
        self.launching = replace(made.launching, delay_s=0.0)
        self.kinds = StageClasses(self.job, made.launching)
        self.written = {stage: self.kinds.written(stage) for stage in sorted(set(self.kinds.of))}
        self.stages = range(self.mesh.stages)

    # --- the order ----------------------------------------------------------------------------------------------------

    @cached_property
    def orders(self) -> list[StageOrder]:
        """What each stage runs."""
        return [
            stage_order(self.made.schedule, stage, self.mesh.stages, self.mesh.micro_batches) for stage in self.stages
        ]

    def ports(self, stage: int, what: Pass, chunk: int) -> tuple[MessagePort, ...]:
        """Messages of a pass."""
        return self.kinds.ports[what, chunk * self.mesh.stages + stage]

    # --- all of it ----------------------------------------------------------------------------------------------------

    def run(self) -> EvaluatedPlan:
        m, boundaries = self.mesh.micro_batches, self.job.stages.boundaries
        tags = {(n, back): (2 * n + back) * m for n in range(len(boundaries)) for back in (False, True)}
        stage = self.job.stage
        peers = {
            MessagePort(n, back, sends): stage(b.target if sends != back else b.source)
            for n, b in enumerate(boundaries) for back in (False, True) for sends in (False, True)
        }  # fmt: skip
        reserved = fullest_stage_bytes(self.job, self.made.schedule, self.kinds.of)
        for _ in range(ROUNDS):
            steady_run, contended_sends = self._turns(tags, len(boundaries) * 2 * m)
            programs = self._epilogues(tags, peers, steady_run)
            played, lowered = self._played(programs)
            late = self._late(steady_run, played, lowered, programs)
            if not late:
                break
            self._begin_earlier(late)
        else:
            raise NotEvaluated("sends that meet the reduction of gradients")
        ends = np.array([[stage(b.source), stage(b.target)] for b in boundaries], np.int64).reshape(-1, 2)
        both = np.stack([ends, ends[:, ::-1]], axis=1).reshape(-1, 2)
        return EvaluatedPlan(
            self.made,
            steady_run,
            played,
            lowered,
            programs,
            np.repeat(both, m, axis=0),
            self._communication_ticks(steady_run),
            reserved,
            contended_sends,
        )

    def _epilogues(
        self, tags: dict[tuple[int, bool], int], peers: dict[MessagePort, int], steady_run: ContentionFreeRun
    ) -> list[Program]:
        """Programs of the epilogue."""
        programs = []
        for s in self.stages:
            order, first = self.orders[s], self.first[s]
            ports = {
                (what, chunk): self.ports(s, what, chunk) for chunk in range(self.job.chunks) for what in self._passes
            }  # fmt: skip
            actions = list(zip(order.actions[first:], order.final[first:], order.last[first:], strict=True))
            epilogue = EpilogueWriter(self.written[self.kinds.of[s]], actions, ports, tags, peers, steady_run.arrived)
            programs.append(epilogue.program(s, self.mesh.of_stage(s), steady_run.free[s]))
        return launch(programs, self.made.step.trace, self.launching)

    def _late(
        self, steady_run: ContentionFreeRun, played: GraphRun, lowered: LoweredJob, programs: list[Program]
    ) -> list[tuple[int, Pass, int, int]]:
        """Actions that send what is still under way when a stage at either end moves something in its epilogue.

        Returns:
            stage, pass, chunk and micro-batch of each.
        """
        at: list[list[tuple[NDArray[np.int64], NDArray[np.int64]]]] = [[] for _ in self.stages]
        for cell in range(lowered.cells):
            own = slice(int(lowered.first[cell]), int(lowered.first[cell + 1]))
            program = programs[int(lowered.program[cell])]
            begin, finish = played.begin[own], played.finish[own]
            reduces = (program.op == Op.COLLECTIVE) & (program.stream != TP)
            at[program.stage].append((begin[reduces], finish[reduces]))
            for peer in np.unique(program.peer[program.op == Op.SEND]).tolist():
                sends = (program.op == Op.SEND) & (program.peer == peer)
                at[peer].append((begin[sends], finish[sends]))  # what one stage sends follows in order
        spans = []
        for pairs in at:
            begin, finish = (np.concatenate(columns) for columns in zip(*pairs, strict=True))
            spans.append(merged(begin, 2 * finish - begin))  # with what they meet they take up to twice as long
        m, found = self.mesh.micro_batches, []
        back = Pass.INPUT_GRADIENT if self.made.schedule.splits_backward else Pass.BACKWARD
        for n, b in enumerate(self.job.stages.boundaries):
            here, there = self.job.stage(b.source), self.job.stage(b.target)
            for which, part, what in ((0, b.source, Pass.FORWARD), (1, b.target, back)):
                rows = slice((2 * n + which) * m, (2 * n + which + 1) * m)
                sent, arrived = steady_run.sent[rows], steady_run.arrived[rows]
                beside = covered(sent, arrived, *spans[here]) + covered(sent, arrived, *spans[there])
                late = np.flatnonzero((sent >= 0) & (beside > 0))
                found += [(part % self.mesh.stages, what, part // self.mesh.stages, k) for k in late.tolist()]
        return found

    def _begin_earlier(self, late: list[tuple[int, Pass, int, int]]) -> None:
        """Let epilogues begin with actions that have been found to be a part of them."""
        first = list(self.first)
        for stage, what, chunk, number in late:
            first[stage] = min(first[stage], self.orders[stage].actions.index(Action(what, number, chunk)))
        self.first = self._epilogue_starts(first)

    @cached_property
    def _passes(self) -> tuple[Pass, ...]:
        split = self.made.schedule.splits_backward
        return (Pass.FORWARD, Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT) if split else (Pass.FORWARD, Pass.BACKWARD)

    @cached_property
    def first(self) -> list[int]:
        """The first action of the epilogue of each stage: of what reduces gradients, or comes after it."""
        return self._epilogue_starts(
            [own.final.index(True) if True in own.final else len(own.final) for own in self.orders]
        )

    def _epilogue_starts(self, first: list[int]) -> list[int]:
        """Tails that begin there, or earlier where they must."""
        places = [(s, what, chunk) for s in self.stages for what in self._passes for chunk in range(self.job.chunks)]
        talks = {place: self.ports(*place) for place in places}
        receives, sends = (
            {place: [(p.boundary, p.back) for p in ports if p.sends == which] for place, ports in talks.items()}
            for which in (False, True)
        )
        return epilogue_starts([o.actions for o in self.orders], first, receives, sends)

    # --- what comes before the epilogue -------------------------------------------------------------------------------

    @cached_property
    def alone(self) -> IsolatedTimes:
        """What moves without being disturbed."""
        calls: dict[Call, None] = {}
        for kind in self.written.values():
            for written in kind.passes.values():
                rows = written.rows
                calls.update(dict.fromkeys(_calls(rows)))
        sends: dict[Send, None] = {}
        for b in self.job.stages.boundaries:
            here, there = self.job.stage(b.source), self.job.stage(b.target)
            if here != there:
                sends[here, there, b.bytes] = None
                if b.returned >= 0:
                    sends[there, here, b.bytes] = None
        how = (self.fidelity.collective_algorithm, self.fidelity.collective_protocol, self.made.system.ideal)
        mesh = Mesh(self.mesh.axes, derived=self.mesh.derived)
        try:
            return isolated_times(
                self.made.system, mesh, self.plan.placement, tuple(calls), tuple(sends), how, job_communication
            )  # fmt: skip
        except UnequalRanks as error:
            raise NotEvaluated(str(error)) from None

    @cached_property
    def interferes(self) -> Interference:
        """What collectives cost what computes beside them."""
        return interference(self.made.system.models[self.made.models[0]], self.fidelity.slowdown)

    def _turns(self, tags: dict[tuple[int, bool], int], messages: int) -> tuple[ContentionFreeRun, int]:
        """Play what comes before the epilogue; and how many sends shared links with others."""
        fragments: list[TimedFragment] = []
        casts: list[PortedFragment] = []
        of_kind: dict[tuple, int] = {}
        cast, number = [], []
        for s in self.stages:
            own = self.orders[s].actions[: self.first[s]]
            mine: dict[tuple[Pass, int], int] = {}
            delay = self._delay(s)
            begins: list[int] = []
            if delay is not None:
                begins = [len(casts)]
                casts.append(PortedFragment(len(fragments), ()))
                fragments.append(delay)
            numbers = []
            for action in own:
                place = (action.what, action.chunk)
                if place not in mine:
                    ports = self.ports(s, *place)
                    bytes_ = tuple(self._sent_ticks(s, p) for p in ports if p.sends)
                    key = (self.kinds.of[s], *place, bytes_)
                    if key not in of_kind:
                        of_kind[key] = len(fragments)
                        rows = self.written[self.kinds.of[s]].pass_of(*place).rows
                        fragments.append(self._fragment(rows, bytes_))
                    mine[place] = len(casts)
                    casts.append(PortedFragment(of_kind[key], tuple(tags[p.boundary, p.back] for p in ports)))
                numbers.append(mine[place])
            cast.append(np.array(begins + numbers, np.int32))
            number.append(np.array([0] * len(begins) + [action.micro_batch for action in own], np.int32))
        return self._with_contention(
            ContentionFreeSchedule(fragments, casts, cast, number, np.zeros(messages, np.int64), len(STREAMS))
        )

    def _with_contention(self, what: ContentionFreeSchedule) -> tuple[ContentionFreeRun, int]:
        """The run with sends that share a link taking longer.

        Two flows that share a link get half of it each for as long as both are under way, so each takes half of that
        time longer.  How much two sends overlap depends on when they begin; what is found after one more play is
        taken, if that moves no stage by more than :data:`CONTENTION_TOLERANCE` of the time until then.

        Raises:
            NotEvaluated: it does.
        """
        steady_run = contention_free.contention_free_run(what)
        extra_ticks = self._contention_ticks(steady_run)
        if not extra_ticks.any():
            return steady_run, 0
        again = contention_free.contention_free_run(replace(what, extra_ticks=extra_ticks))
        moved = int(np.abs(again.free - steady_run.free).max(initial=0))
        if moved > CONTENTION_TOLERANCE * int(again.free.max(initial=0)):
            raise NotEvaluated("sends that meet on a link and hold up others")
        return again, int(np.count_nonzero(extra_ticks))

    def _contention_ticks(self, steady_run: ContentionFreeRun) -> NDArray[np.int64]:
        """Ticks that each send takes longer for others on its links."""
        extra_ticks = np.zeros(len(steady_run.sent), np.int64)
        if not self.alone.shared:
            return extra_ticks
        m, rows = self.mesh.micro_batches, dict[tuple[int, int], list[NDArray[np.int64]]]()
        for n, b in enumerate(self.job.stages.boundaries):
            here, there = self.job.stage(b.source), self.job.stage(b.target)
            for back, pair in ((0, (here, there)), (1, (there, here))):
                rows.setdefault(pair, []).append((2 * n + back) * m + np.arange(m))
        of = {pair: np.concatenate(own) for pair, own in rows.items()}
        for one, other in chain(self.alone.shared, ((b, a) for a, b in self.alone.shared)):
            if one in of and other in of:
                own = of[one][steady_run.sent[of[one]] >= 0]
                others = of[other][steady_run.sent[of[other]] >= 0]
                beside = covered(
                    steady_run.sent[own],
                    steady_run.arrived[own],
                    *merged(steady_run.sent[others], steady_run.arrived[others]),
                )
                extra_ticks[own] += beside // 2
        return extra_ticks

    def _sent_ticks(self, stage: int, port: MessagePort) -> int:
        b = self.job.stages.boundaries[port.boundary]
        here, there = (b.target, b.source) if port.back else (b.source, b.target)
        return self.alone.sends[self.job.stage(here), self.job.stage(there), b.bytes]

    def _delay(self, stage: int) -> TimedFragment | None:
        """What the first thing that a host issues takes longer."""
        delay = self.made.launching.delay_s
        if not delay or self.made.launching.mode == "none":
            return None
        order = self.orders[stage]
        first = order.actions[0]
        rows = self.written[self.kinds.of[stage]].passes[first.what, first.chunk, order.final[0]].rows
        (issued,) = launch([rows], self.made.step.trace, self.launching)
        begin = float(issued.seconds[int(np.argmax(issued.op == Op.ISSUE))])
        ticks = picoseconds(begin + delay, "launching") - picoseconds(begin, "launching")
        one = np.zeros(1, np.int8)
        return TimedFragment(
            one,
            one + HOST,
            one + TimeCategory.HOST,
            np.array([ticks]),
            np.zeros(1, np.int64),
            Ragged.empty(1, np.int32),
        )

    def _fragment(self, rows: Program, sends: Sequence[int]) -> TimedFragment:
        """A pass as it is played alone, slowed down by its own collectives."""
        (program,) = launch([rows], self.made.step.trace, self.launching)
        op = program.op
        gap = np.where((op == Op.COMPUTE) & (program.seconds > 0), picoseconds(program.gap_s, "the gap"), 0)
        ticks = picoseconds(program.seconds, "an operator") + gap
        moves = np.flatnonzero(op == Op.COLLECTIVE)
        ticks[moves] = [self.alone.calls[call] for call in _calls(program)]
        ticks[op == Op.SEND] = sends
        category = np.full(len(op), -1, np.int8)
        for code, as_ in _SHOWN:
            category[op == code] = as_
        kind = np.where(op == Op.SEND, MessageOp.SEND, np.where(op == Op.RECEIVE, MessageOp.RECEIVE, MessageOp.NONE))
        fragment = TimedFragment(
            kind.astype(np.int8), program.stream, category, ticks.astype(np.int64), gap.astype(np.int64), program.before
        )  # fmt: skip
        return _slowed(fragment, op, self.interferes.slowdown)

    def _communication_ticks(self, steady_run: ContentionFreeRun) -> dict[Call, int]:
        """Ticks of collectives and sends before the epilogue, those of one rank of each stage."""
        found: dict[Call, int] = {}
        for s in self.stages:
            runs = Counter((action.what, action.chunk) for action in self.orders[s].actions[: self.first[s]])
            for place, count in runs.items():
                rows = self.written[self.kinds.of[s]].pass_of(*place).rows
                for call, times in Counter(_calls(rows)).items():
                    found[call] = found.get(call, 0) + self.alone.calls[call] * times * count
        m, axis = self.mesh.micro_batches, self.mesh.pipeline_axis
        took = np.where(steady_run.sent >= 0, steady_run.arrived - steady_run.sent, 0).reshape(-1, 2 * m).sum(axis=1)
        for b, ticks in zip(self.job.stages.boundaries, took.tolist(), strict=True):
            found[-1, b.bytes, axis] = found.get((-1, b.bytes, axis), 0) + ticks
        return found

    # --- the epilogue -------------------------------------------------------------------------------------------------

    def _played(self, programs: list[Program]) -> tuple[GraphRun, LoweredJob]:
        how = (self.fidelity.collective_algorithm, self.fidelity.collective_protocol, self.made.system.ideal)
        router = self.made.router
        means = job_communication(self.made.system, router, how)
        lowered = lower(programs, self.made.assignment, router, means, fold=self.fidelity.fold)
        graph = lowered.graph
        tasks = Tasks(
            first=lowered.first, slowdown=np.full(lowered.cells, self.interferes.slowdown),
            computes=lowered.by_cell([program.op == Op.COMPUTE for program in programs]),
            moves=lowered.by_cell([program.op == Op.COLLECTIVE for program in programs]), amount=graph.amount,
            after=lowered.by_cell(lowered.gaps),
        )  # fmt: skip
        model = network_model(self.fidelity.solver, self.fidelity.solver_options)
        played = settle(tasks, lambda amount: play(replace(graph, amount=amount), lowered.wires, model))
        return lowered.worked(played), lowered


_SHOWN = (
    (Op.COMPUTE, TimeCategory.COMPUTE), (Op.COLLECTIVE, TimeCategory.COLLECTIVE), (Op.SEND, TimeCategory.SEND),
    (Op.ISSUE, TimeCategory.HOST),
)  # fmt: skip


def _calls(rows: Program) -> list[Call]:
    """The collectives of a program, in order."""
    at = np.flatnonzero(rows.op == Op.COLLECTIVE)
    return list(zip(rows.what[at].tolist(), rows.bytes[at].tolist(), rows.axis[at].tolist(), strict=True))


def job_communication(system: System, router: Router, how: tuple[str, str, bool]) -> CollectiveCommunication:
    """How the ranks of a job talk."""
    return CollectiveCommunication(system, router, Collectives(*how))


def _slowed(fragment: TimedFragment, op: NDArray[np.int8], slowdown: float) -> TimedFragment:
    """A fragment whose computation takes as long as its own collectives let it."""
    computes, moves = np.flatnonzero(op == Op.COMPUTE), op == Op.COLLECTIVE
    if slowdown <= 1 or not moves.any():
        return fragment
    alone, ticks = fragment.ticks[computes] - fragment.gap[computes], fragment.ticks

    def wanted(ticks: NDArray[np.int64], times: int) -> NDArray[np.int64]:
        start, finish = contention_free.steady_state(replace(fragment, ticks=ticks), len(STREAMS), times=times)
        begin, worked = start[computes], finish[computes] - fragment.gap[computes]
        beside = covered(begin, worked, *merged(start[moves], finish[moves]))
        extra_ticks = np.where(beside == worked - begin, alone * (slowdown - 1), beside * (1 - 1 / slowdown))
        found = fragment.ticks.copy()
        found[computes] += whole_ticks(extra_ticks, "what a collective adds to an operator beside it")
        return found

    for _ in range(MOST_PLAYS):
        found = wanted(ticks, 2)
        if np.abs(found - ticks).max() <= 1:
            break
        ticks = found
    if np.abs(wanted(ticks, 1) - ticks).sum() > UNSTEADY * int(ticks[computes].sum()):
        raise NotEvaluated("passes of one kind that collectives slow down differently")
    return replace(fragment, ticks=ticks)
