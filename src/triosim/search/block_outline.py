"""An outline of a job of many equal blocks in block space: no stage of it sees all of them.

A step of few blocks is divided and priced once for all plans that divide a micro-batch alike
(:mod:`triosim.search.block_step`), and so are the passes of what stages consist of
(:mod:`triosim.search.block_passes`).  What is left to a plan is where its stages are cut, in blocks, what moves between
its ranks, and to run its actions (:mod:`triosim.engine.contended`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from triosim.composition.host import HostCosts
from triosim.composition.interference import interference
from triosim.core.caching import kept
from triosim.core.dataclass import dataclass
from triosim.core.registry import is_ours
from triosim.core.result_cache import ResultCache, content
from triosim.core.tiling import NotRepeating
from triosim.core.units import picoseconds
from triosim.engine.contended import RoutedPort, RowKind
from triosim.fidelity import Fidelity
from triosim.hardware.system import System
from triosim.memory.allocation_order import AllocationOrder
from triosim.network.device_assignment import DeviceAssignment, assign_devices
from triosim.partition.replication import Replication
from triosim.partition.resolve import JobMesh, replication, resolve, rules_for
from triosim.partition.shards import resident, sharded
from triosim.partition.step import Step
from triosim.partition.transfers import ALL_GATHER
from triosim.plan import Plan
from triosim.prediction.launching import launching_costs
from triosim.prediction.partitioning import FewBlocksWorkload, undivided
from triosim.prediction.priced_job import PricedJob
from triosim.prediction.pricing import priced_rows
from triosim.prediction.staged_job import StagedJob, schedule_of
from triosim.schedule._stage import JobFacts, ReplicaFacts, StageFacts
from triosim.schedule.actions import SCHEDULES, Action, Pass, Schedule
from triosim.schedule.costs import ScheduleCosts
from triosim.schedule.gathering import UngatheredUnits
from triosim.schedule.stages import cut
from triosim.search.block_passes import BoundPass, ChunkFacts, ChunkPasses
from triosim.search.block_step import BLOCKS, ModelChunk, NoBlocks, with_fewer_blocks
from triosim.search.contracted_passes import ContractedPass, PassRows
from triosim.search.evaluate import job_communication
from triosim.search.isolated_transfers import Call
from triosim.search.pass_script import COMPUTE_STREAM, GradientsReady, LocalTransfer, PortTarget, TiedGradientExchange
from triosim.search.peak_memory import deepest_stages, stage_reserved_bytes, ungathered
from triosim.search.shared_step import KEPT_STEPS, OF_ITS_OWN, divides_alike, shared_step
from triosim.search.stage_classes import MessagePort
from triosim.search.stage_order import ActionKind, StageOrder, stage_order
from triosim.search.transfer_times import JobTransferTimes
from triosim.stacks import ASSUMED
from triosim.trace.repeated import KEPT, repeated
from triosim.trace.tables import Trace
from triosim.transform.optimizing import needs_whole_tensors, optimized
from triosim.transform.recompute import recomputed

SUMMED = (1 << 30, 4)
"""Micro-batches for which passes are written, those of other numbers between them: in the first of them gradients are
made, in the others added to, so that what adding takes of a micro-batch depends on how many there are."""
LEAST_FULL = 0.8
"""Part of what the fullest stage reserves that another allocates at once at most from which on it may be that."""
SPARE = 7
"""Blocks beside those of a stage: each of two chunks has neighbours, and may have a block more than others."""
MUCH_LARGER = 1.5
"""How many times the blocks of a step another has from which on it is not used in its place."""

_Place = tuple[ModelChunk, Pass, bool, UngatheredUnits, bool]
Check = Callable[[JobMesh, Schedule, Replication], None]
CheckKind = Callable[[Step, Schedule, HostCosts], None]

_ROADS = ResultCache[FewBlocksWorkload](KEPT_STEPS, np.inf, lambda road: 1)
_SHARES = ResultCache[Step](2 * KEPT_STEPS, np.inf, lambda step: 1)
_WHOLES = ResultCache[Trace](8, np.inf, lambda trace: 1)
_NOT_OF_WHOLES = (*OF_ITS_OWN, "recompute")
"""Fields of a plan on which the undivided step does not depend, or that are told apart otherwise."""


def _supported(workload: Trace, plan: Plan) -> None:
    at_once = plan.stack is not None and not plan.stack.overlap_gradients
    reasons = (
        (workload.meta.made_by != "triosim.model", "a recorded step"),
        (at_once, "gradients that are reduced at once, the more of them the more blocks a stage has"),
        (plan.quantize != "none", "quantization"),
        (plan.placement is not None, "ranks that are placed by hand"),
        (not isinstance(plan.cuts, str), "stages by name"),
        (not plan.training, "inference"),
        (needs_whole_tensors(optimized(workload, plan.optimizer)), "an optimizer of whole matrices"),
        (not is_ours(SCHEDULES.chosen(plan.schedule)), "a schedule of one's own"),
    )
    for holds, why in reasons:
        if holds:
            raise NoBlocks(why)


class BlockJob:
    """A job in block space.

    Args:
        workload, system, plan, fidelity: as of :func:`triosim.simulate`.
        check, check_kind: refuse what is not outlined.

    Attributes:
        job: of few blocks, on the mesh of the plan.
        chunks: the parts of the model.

    Raises:
        NoBlocks: it is to be outlined otherwise.
        InputError: as of :func:`triosim.simulate`.
    """

    def __init__(
        self, workload: Trace, system: System, plan: Plan, fidelity: Fidelity, check: Check, check_kind: CheckKind
    ) -> None:  # fmt: skip
        _supported(workload, plan)
        self.rules = rules = rules_for(workload, plan, True)
        self.mesh = mesh = resolve(
            plan, system.devices, None, workload.meta.micro_batches, rules, system.devices_per_server
        )
        if mesh.stages == 1:
            raise NoBlocks("all blocks in one part")
        self.plan, self.schedule, self.stages = plan, schedule_of(plan, mesh), mesh.stages
        self.replication: Replication = replication(rules, mesh)
        if not self.schedule.looped(mesh.stages) or self.schedule.splits_backward or self.schedule.times_matter:
            raise NoBlocks("a schedule that does not loop, or splits the backward")
        check(mesh, self.schedule, self.replication)
        self.workload = workload
        self._divides = divides_alike(workload, plan, mesh, self.replication)
        self.shared = shared_step(workload, system, plan, fidelity, mesh, self.replication, self._divides)
        self.step = self.shared.of(mesh.micro_batches)
        common = self.shared.job
        self.assignment: DeviceAssignment = assign_devices(mesh, system.devices, None, torus=system.torus)
        placed = replace(common.step, replication=self.replication)
        self.priced: PricedJob = replace(common, step=placed, plan=plan, mesh=mesh, assignment=self.assignment)
        self.launching: HostCosts = launching_costs(self.priced, self.schedule.chunks_per_stage)
        check_kind(placed, self.schedule, self.launching)
        self.parts = mesh.stages * self.schedule.chunks_per_stage
        cuts = self.step.cuts(self.parts, self.priced.seconds_per_byte, self.launching.issue_s)
        self.chunks: list[ModelChunk] = self.step.chunks(cuts)
        self.facts = ReplicaFacts(placed, plan, mesh, self.step.grads)
        of_step = common.step.replication.reductions(mesh)
        self._reduced = {
            (written.what, written.axis): own.what
            for written, own in zip(of_step, self.replication.reductions(mesh), strict=True)
        }
        how = (fidelity.collective_algorithm, fidelity.collective_protocol, system.ideal)
        self.transfer_times = JobTransferTimes(
            self.facts, lambda part: part % mesh.stages, system, self.assignment, common.router, how, job_communication
        )
        self.slowdown = interference(system.models[common.models[0]], fidelity.slowdown).slowdown
        self.passes = self._passes()
        self._places: dict[_Place, None] = {}  # of passes that are to be written
        self.known: list[ChunkFacts] = [self.shared.stages.facts(chunk) for chunk in self.chunks]
        self.gathers = any(known.gathers for known in self.known)
        self._sends: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
            self._sends_of(part) for part in range(self.parts)
        ]

    def _passes(self) -> ChunkPasses:
        """The passes of its chunks, shared by plans whose exchanges within a group take equally long."""
        tensor, lags, shared = self.transfer_times.shared, self.transfer_times.called_lags(), self.shared
        key = (tuple(sorted(self.transfer_times.called.items())), tensor, tuple(sorted(lags.items())))
        if key not in shared.passes:
            seconds = [shared.of(count).seconds for count in SUMMED]
            shared.passes[key] = ChunkPasses(
                shared.stages, seconds, self.launching, self.slowdown, self.transfer_times.called, tensor, lags
            )
        return shared.passes[key]

    # --- where things lead --------------------------------------------------------------------------------------------

    @cached_property
    def first_boundary(self) -> list[int]:
        """Number of the first value that crosses each cut, and of all of them.

        Raises:
            NoBlocks: chunks do not fit together.
        """
        known = self.known
        if any(a.leaving != b.arriving for a, b in pairwise(known)):
            raise NoBlocks("chunks that do not fit together")
        return np.cumsum([0, *(len(one.leaving) for one in known[:-1])]).tolist()

    def boundary(self, part: int, port: MessagePort) -> tuple[int, tuple[int, int]]:
        """Number of what crosses at a port of a part, and the stages from and to which it goes."""
        arriving = len(self.known[part].arriving)
        at, number = (part - 1, port.boundary) if port.boundary < arriving else (part, port.boundary - arriving)
        ends = at % self.stages, (at + 1) % self.stages
        return self.first_boundary[at] + number, ends[::-1] if port.back else ends

    def tied(self, part: int, parameter: int) -> TiedGradientExchange:
        """The gradient of a parameter that another part has too, on its way there."""
        full = dict(self.known[part].tied)[parameter]
        size = -(-full // self.facts.shared[0].shards) if self.replication.states else full
        (other,) = self._users[parameter] - {part}
        return TiedGradientExchange(parameter, part % self.stages, other % self.stages, size)

    @cached_property
    def _users(self) -> dict[int, set[int]]:
        """Parts with gradients of parameters that another stage has too.

        Raises:
            NoBlocks: more than two have them.
        """
        found: dict[int, set[int]] = {}
        for part in range(self.parts):
            for parameter, _ in self.known[part].tied:
                found.setdefault(parameter, set()).add(part)
        if any(len({part % self.stages for part in users}) != 2 or len(users) != 2 for users in found.values()):
            raise NoBlocks("parameters of more than two stages")
        return found

    # --- passes -------------------------------------------------------------------------------------------------------

    def _needs(self, action: ActionKind, part: int) -> UngatheredUnits:
        """What has to be gathered for an action."""
        if not self.known[part].gathers:
            return UngatheredUnits()
        return ungathered(action, self.replication.regathers, True)

    def written(self, stage: int, action: ActionKind | None) -> tuple[Hashable, Callable[[], PassRows]]:
        """A pass of a stage, or what ends its iteration, and what tells it apart."""
        if action is None:
            key = (*(self.chunks[part] for part in self._parts(stage)), None)
            return key, lambda: self._update(stage)
        part = action.chunk * self.stages + stage
        place = self.chunks[part], action.what, action.final, self._needs(action, part), self._leads[stage]
        sent = self._sends[part][action.what is not Pass.FORWARD]
        self._places[place] = None
        return (place, sent), lambda: self._bound(part, place)

    def _bound(self, part: int, place: _Place) -> BoundPass:
        if self._places:
            calls = dict.fromkeys(call for known in self._places for call in self.passes.summed(*known).calls)
            self._places.clear()
            self.transfer_times.precompute(map(self._call, calls))
        # in the first of the micro-batches gradients are made, in the others they are added to
        much = SUMMED[1] / self.mesh.micro_batches if self.mesh.micro_batches > 1 else 0.0
        return self.passes.summed(*place).bound(much, lambda label, port: self._ticks(part, label, port), self._label)

    @cached_property
    def _leads(self) -> list[bool]:
        """Whether a pass of each stage calls a collective before what it receives is there."""
        return [any(self.known[part].leads for part in self._parts(stage)) for stage in range(self.stages)]

    def _sends_of(self, part: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ticks of what the forward of a part sends, and of what its backward does."""
        known = self.known[part]
        here, before, after = (at % self.stages for at in (part, part - 1, part + 1))
        return (
            tuple(self.transfer_times.send(here, after, size)[0] for size in known.leaving),
            tuple(self.transfer_times.send(here, before, size)[0] for size in known.arriving),
        )

    def _parts(self, stage: int) -> range:
        return range(stage, self.parts, self.stages)

    def _ticks(self, part: int, label: int, port: PortTarget | None) -> int:
        return self.transfer_times.collective(self._call(label)) if port is None else self._sent(part, port)

    def _label(self, label: int) -> int:
        return self.transfer_times.label(self._call(label))

    def _call(self, label: int) -> Call:
        """What is called in a pass, gradients being reduced as this plan does."""
        what, size, axis = self.passes.transfer_times.names[label]
        return self._reduced.get((what, axis), what), size, axis

    def _sent(self, part: int, port: PortTarget) -> int:
        """Ticks of what is sent, 0 for what is received."""
        if isinstance(port, MessagePort):
            if not port.sends:
                return 0
            arriving = len(self.known[part].arriving)
            return self._sends[part][port.back][port.boundary - (0 if port.back else arriving)]
        return 0

    def messages(self, pairs: dict[tuple[int, int], int], alone: int) -> BlockMessages:
        """Where rows lead."""
        return BlockMessages(self, pairs, alone)

    def _update(self, stage: int) -> ContractedPass:
        """What ends an iteration on a stage."""
        made, parts = ContractedPass(), self._parts(stage)
        rows, chain = self.passes.optimizer
        waits = []
        for chunk, part in enumerate(parts):
            waits.append(made.add(RowKind.RECEIVE, -1, 0, port=GradientsReady(chunk)))
            for parameter, _ in self.known[part].tied:
                own = self.tied(part, parameter)
                back = own._replace(source=own.target, target=own.source)
                waits.append(made.exchange(chunk, own, back, *self.transfer_times.send(*own[1:]), chain))
        share = sum(self.known[part].share for part in parts) / self._all_share
        ticks = picoseconds(self._optimizer_s * share, "the optimizer") + chain.gaps[rows]
        ticks, issue, gap = ticks[share > 0], chain.issue[rows][share > 0], chain.gaps[rows][share > 0]
        host_delay = made.host + int((np.cumsum(issue) + np.cumsum(ticks[::-1])[::-1]).max(initial=0)) - chain.launch
        made.host += int(issue.sum())
        made.work(chain.beside(int((ticks - gap).sum()), int(gap.sum()), ()), waits, max(host_delay, 0))
        if self.replication.states and not self.replication.weights and self.facts.sharing > 1:
            sizes = list(map(self.mesh.size, self.mesh.names))
            calls: list[Call] = [
                (ALL_GATHER, size, axis) for part in parts for size, axis in reversed(self.known[part].groups)
                if sizes[axis] > 1
            ]  # fmt: skip
            self.transfer_times.precompute(dict.fromkeys(calls))
            for call in calls:
                made.host += chain.launch
                made.add(
                    RowKind.COLLECTIVE, COMPUTE_STREAM, self.transfer_times.collective(call), (),
                    label=self.transfer_times.label(call), host_delay=made.host - chain.launch,
                )  # fmt: skip
        return made

    @cached_property
    def _all_share(self) -> NDArray[np.float64]:
        return np.sum([self.known[part].share for part in range(self.parts)], axis=0)

    @property
    def _optimizer_s(self) -> NDArray[np.float64]:
        """Seconds of the optimizer's rows for all parameters of a rank."""
        shards, known = self.replication.shards(self.mesh) if self.replication.states else 1, self.shared.of_any.updates
        if shards not in known:
            rows, _ = self.passes.optimizer
            found = self.step.seconds[rows]
            if self.replication.states:
                job = self.priced.jobs[self.priced.models[0]]
                job = replace(job, trace=sharded(self._share(BLOCKS), self.mesh, self.replication).trace)
                found = priced_rows(job, self.priced.fidelity, np.array(rows)).seconds
            known[shards] = np.asarray(found * self.step.growth, np.float64)
        return known[shards]

    # --- what its figures are made of ---------------------------------------------------------------------------------

    def arranged(self) -> StagedJob:
        """The job, but for the step of one micro-batch of a replica that of few blocks."""
        job, model = self.priced, self.priced.models[0]
        rest = content({name: getattr(self.plan, name) for name in sorted({*self.plan.given} - {*_NOT_OF_WHOLES})})
        whole = _WHOLES.get(
            self._divides._replace(asked=rest),
            lambda: undivided(self.workload, self.rules, self.mesh, self.plan, self.replication),
        )
        return StagedJob(
            **{**vars(job), "whole": whole}, slowest=model, stages=self.shared.uncut, launching=self.launching,
            schedule=self.schedule,
        )  # fmt: skip

    def reserved(self) -> int:
        """Bytes of the fullest stage: of stages of one kind that with most passes under way."""
        stages, m = self.stages, self.mesh.micro_batches
        orders = [stage_order(self.schedule, stage, stages, m) for stage in range(stages)]
        of = [tuple(self.chunks[part] for part in self._parts(stage)) for stage in range(stages)]
        deepest = [
            (kind, orders[stage]) for kind, own in deepest_stages(orders, of, self.gathers).items() for stage in own
        ]

        def within(one: tuple[ModelChunk, ...], order: StageOrder) -> bool:
            """Whether another stage needs no less."""
            return any(
                kind != one and _is_in(one, kind) and order.depth <= other.depth
                and (not self.gathers or order.successions == other.successions)
                for kind, other in deepest
            )  # fmt: skip

        possible = [one for one in deepest if not within(*one)]
        try:
            asked = [self.allocations_of(*one) for one in possible]
        except NoBlocks:  # all blocks of a stage are gone through
            return max(self.reserved_of(*one) for one in possible)
        reserved = 0
        for most, one in sorted(((one.most_live_bytes(), one) for one in asked), key=lambda pair: -pair[0]):
            if most >= LEAST_FULL * reserved:
                reserved = max(reserved, one.reserved_bytes())
        return reserved

    def allocations_of(self, kind: tuple[ModelChunk, ...], order: StageOrder) -> AllocationOrder:
        """What a stage allocates, from few blocks of its chunks.

        Raises:
            NoBlocks: it is more than that says.
        """
        return self.shared.memory.allocations(kind, order, self.facts, *self._storage_sizes)

    @cached_property
    def _storage_sizes(self) -> tuple[NDArray[np.int64], Hashable]:
        """Bytes of the storages of the step of few blocks on a rank, and what tells them apart."""
        placed, mesh, known, of_any = self.replication, self.mesh, self.shared.sizes, self.shared.of_any.sizes
        shards = (placed.shards(mesh), placed.of_apart().shards(mesh)) if placed.states else ()
        key = (placed.weights, *shards)
        if key not in known:
            whole = self.priced.share.trace.values.storage_bytes()
            if key not in of_any:
                size = self._sharded_bytes()
                of_any[key] = np.where(size == whole, -1, size)
            known[key] = np.where(of_any[key] < 0, whole, of_any[key])
        return known[key], key

    def _sharded_bytes(self) -> NDArray[np.int64]:
        """Bytes of the storages of the step of few blocks on a rank."""
        step = sharded(self.priced.share, self.mesh, self.replication)
        size = step.trace.values.storage_bytes()
        if self.facts.modules is not None:
            shards, shards_apart = self.replication.shards(self.mesh), self.facts.shared[1].shards
            cut, parts = resident(step.trace, shards, step.apart, shards_apart)
            size = size.copy()
            size[cut] = parts
        return size

    def reserved_of(self, kind: tuple[ModelChunk, ...], order: StageOrder) -> int:
        """Bytes of a stage, on a step that has its blocks and a few more."""
        least = sum(chunk.blocks for chunk in kind) + 2 * len(kind) + 1
        blocks = next((count for count in _sizes(self.step.blocks) if count >= least), self.step.blocks)
        step = sharded(self._share(blocks), self.mesh, self.replication)
        few = replace(self.step, step=step, seconds=np.zeros(len(step.trace)), count=blocks)
        places: list[int] = []
        placed: list[int] = []  # stage of each part, 0 for the own
        at = 1
        for number, chunk in enumerate(kind, start=1):
            if chunk.begin is not None:
                placed.append(number)
            own = few.places(chunk, chunk.blocks, at)
            places += own
            placed.append(0)
            at = (0 if chunk.before else at) + chunk.blocks + 2
        if kind[-1].end is not None:
            placed.append(len(kind) + 1)
        if sorted(set(places)) != places:
            raise NoBlocks("a stage of more parts than a short step has room for")
        axes = tuple((name, len(kind) + 2 if name == "pp" else size) for name, size in self.mesh.axes)
        job = JobFacts(
            step, ScheduleCosts(few.seconds), cut(step.trace, places, step.homes), FixedPlacement(tuple(placed)),
            self.plan, replace(self.mesh, axes=axes), few.grads,
        )  # fmt: skip
        return stage_reserved_bytes(StageFacts(job, 0), order)

    def _share(self, blocks: int) -> Step:
        """The step of so many blocks, before replicas divide anything."""
        if blocks == BLOCKS:
            return self.priced.share
        try:
            return _SHARES.get(
                (self._divides, blocks), lambda: self._road().step_of(blocks - KEPT, self.mesh, self.plan)
            )
        except NotRepeating as error:
            raise NoBlocks(str(error)) from None

    def _road(self) -> FewBlocksWorkload:
        """Few blocks of the step of a rank, of which steps of more are made."""
        mesh, plan, placed = self.mesh, self.plan, self.replication

        def road() -> FewBlocksWorkload:
            stack = plan.stack or ASSUMED
            of, few = (
                repeated(recomputed(optimized(one, plan.optimizer), plan.recompute, stack.recomputed))
                for one in (self.workload, with_fewer_blocks(self.workload))
            )
            if of is None:
                raise NoBlocks("no equal blocks when some are run again")
            if few is None or not _alike(few.short, of.short):
                few = of  # otherwise what was divided to be priced is found again
            found = FewBlocksWorkload.along(few, self.rules, mesh, plan, placed, stack)
            return replace(found, of=of)

        return _ROADS.get(self._divides, road)


@kept(8)
def _alike(one: Trace, other: Trace) -> bool:
    """Whether two steps are the same but for what is told of them."""
    return all(
        content(getattr(one, name)) == content(getattr(other, name)) for name in ("operators", "values", "modules")
    )


def _is_in(one: tuple[ModelChunk, ...], other: tuple[ModelChunk, ...]) -> bool:
    """Whether each part of a stage is a part of another's."""
    return all(
        a.blocks <= b.blocks and a.before <= b.before and a.after <= b.after
        and (a.begin == b.begin or b.before > a.before) and (a.end == b.end or b.after > a.after)
        for a, b in zip(one, other, strict=True)
    )  # fmt: skip


def _sizes(blocks: int) -> list[int]:
    """Blocks of steps on which memory is looked at, ascending: halves of halves, and a few more, so that plans share
    them; of two that are nearly alike the larger, for making one takes longer than a few blocks more in each plan."""
    halves = (blocks >> often for often in range(1, blocks.bit_length()))
    sizes = sorted({BLOCKS, blocks, *(min(max(half + SPARE, BLOCKS), blocks) for half in halves)})
    found = [sizes.pop()]
    while sizes:
        if sizes[-1] == BLOCKS or found[-1] > MUCH_LARGER * sizes[-1]:
            found.append(sizes[-1])
        sizes.pop()
    return found[::-1]


@dataclass(frozen=True)
class FixedPlacement(Schedule):
    """Parts of the model on stages as one says; what stages run is asked for elsewhere.

    Attributes:
        placed: stage of each part.
    """

    placed: tuple[int, ...]

    def stage_of(self, part: int, stages: int) -> int:
        return self.placed[part]

    def actions(self, stage: int, stages: int, micro_batches: int) -> list[Action]:
        raise NotImplementedError("these parts are not run")


class BlockMessages:
    """Numbers of what is sent: a run of micro-batches for each boundary each way, then what is sent once."""

    def __init__(self, of: BlockJob, pairs: dict[tuple[int, int], int], alone: int) -> None:
        self.of, self.pairs, self.alone = of, pairs, alone
        self.number: dict[Hashable, int] = {}

    @property
    def count(self) -> int:
        """Messages, with room for every number."""
        return (2 * self.of.first_boundary[-1] + len(self.number) + 1) * self.of.mesh.micro_batches

    def ports(self, leads: Sequence[PortTarget], stage: int, action: ActionKind | None) -> tuple[RoutedPort, ...]:
        """Where the rows of a pass of a stage lead."""
        of, found = self.of, []
        part = stage if action is None else action.chunk * of.stages + stage
        for lead in leads:
            if isinstance(lead, MessagePort):
                number, pair = of.boundary(part, lead)
                to = pair[1] if lead.sends else pair[0]
                found.append(RoutedPort((2 * number + lead.back) * of.mesh.micro_batches, self.pairs[pair], to))
            elif isinstance(lead, TiedGradientExchange):
                pair = (lead.source, lead.target)
                found.append(RoutedPort(self._once(lead), self.pairs[pair], pair[stage == pair[0]]))
            else:
                if action is not None and not isinstance(lead, LocalTransfer):  # written for a stage of one chunk
                    lead = lead._replace(chunk=action.chunk)
                found.append(RoutedPort(self._once((stage, lead)), self.alone, stage))
        return tuple(found)

    def _once(self, key: Hashable) -> int:
        number = self.number.setdefault(key, len(self.number))
        return (2 * self.of.first_boundary[-1] + number) * self.of.mesh.micro_batches
