"""What is known of a job, its pipeline stages and the parts of the model on them, before programs are written.

A stage runs one *part* of the model, or several (chunks) under schedules that interleave them, which say where each is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property

import numpy as np

from triosim.memory.blocks import ExtraBlock, RankBlocks
from triosim.memory.liveness import BlockLifetime, BlockUseRecorder
from triosim.partition.gradients import Gradient, total_bytes
from triosim.partition.local_steps import OUTER_STATE
from triosim.partition.passes.fuse import GatherUnit, UnitsByModule, by_bytes, modules_of_their_own, units_by_module
from triosim.partition.passes.host_copies import (
    HostCopy,
    HostUpdate,
    activation_copies,
    gradient_copies,
    parameter_copies,
    update_of,
)
from triosim.partition.replication import GradientReduction
from triosim.partition.residence import HOST, GatheredModules
from triosim.partition.resolve import JobMesh
from triosim.partition.shards import resident
from triosim.partition.step import Step
from triosim.partition.transfers import ALL_GATHER, BESIDE_WEIGHTS, Transfers
from triosim.plan import Plan
from triosim.schedule.actions import Action, Pass, Schedule, forward_only
from triosim.schedule.backward import of_weights, split_backward
from triosim.schedule.costs import ScheduleCosts
from triosim.schedule.crossing import Boundary, crossing_items
from triosim.schedule.fragments import MessageTags
from triosim.schedule.gathering import Gathering, UngatheredUnits, UnitBlocks
from triosim.schedule.host_copies import HOMES, on_host
from triosim.schedule.program import BESIDE, COMPUTE, ENGINES, TP, Op, ProgramBuilder
from triosim.schedule.redistribution import redistribution
from triosim.schedule.stages import Stages
from triosim.schedule.uncut_step import uncut_step
from triosim.trace.tables import NONE, Category, Phase


def _exchanged(sent: Transfers) -> list[tuple[int, int, int]]:
    """Bytes, kind and axis of some transfers."""
    return list(zip(sent.bytes.tolist(), sent.what.tolist(), sent.axis.tolist(), strict=True))


class ReplicaFacts:
    """What replicas share.

    Args:
        step: one rank's share of a micro-batch.
        plan, mesh: of the job.
        grads: gradients that are reduced.

    Attributes:
        replication: where replicas have what.
        sharing: ranks whose gradients are added up.
        bits: of an element of a parameter in the mean, and of a gradient as it is reduced.
        shared: how parameters are shared that all replicas have, and those of which they have different ones.
        modules: units of parameters that are gathered together, None where none are.
        gathered: which modules those are.
        exchanged: bytes, kind and axis of what is exchanged within a replica.
    """

    def __init__(self, step: Step, plan: Plan, mesh: JobMesh, grads: list[Gradient]) -> None:
        self.step, self.plan, self.mesh, self.grads = step, plan, mesh, grads
        self.replication = step.replication
        self.sharing = self.replication.ranks(mesh)
        apart = self.replication.of_apart() if step.apart else self.replication
        self.bits = self._bits()
        self.shared = (self.replication.sharing(mesh, *self.bits), apart.sharing(mesh, *self.bits))
        if apart.ranks(mesh) == 1:
            self.shared = (self.shared[0], replace(self.shared[1], reductions=()))
        self.modules: UnitsByModule | None = None
        self.gathered = self.replication.modules
        if self.replication.weights and self.sharing > 1:
            shards, shards_apart = (shared.shards for shared in self.shared)
            if plan.stack is not None and plan.stack.gathers == "module" and not self.gathered.modules:
                self.gathered = GatheredModules(modules_of_their_own(step.trace), 1, 1)
            self.modules = units_by_module(step.trace, shards, self.gathered.modules, step.apart, shards_apart)
        self.exchanged = _exchanged(step.transfers)

    def _bits(self) -> tuple[float, float]:
        values, own = self.step.trace.values, [gradient.parameter for gradient in self.grads]
        elements = max(int(values.elements()[own].sum()), 1) if own else 1
        weights = float(values.bytes()[own].sum()) if own else 2.0
        return 8 * weights / elements, 8 * total_bytes(self.grads) / elements if own else 16.0

    @property
    def copies_gradients(self) -> bool:
        """Whether gradients are copied to buckets; main gradients are reduced where they are (Megatron-LM's
        ``param_and_grad_buffer.py``)."""
        plan, main = self.plan, self.plan.stack is not None and self.plan.stack.gradients != "parameter"
        return self.sharing > 1 and plan.training and plan.overlap and not self.replication.states and not main

    def gathering_axis(self, parameter: int) -> str:
        """The axis along which the shards of an updated parameter are brought together."""
        return self.replication.apart if parameter in self.step.apart else self.replication.axis

    def reductions(self, parameter: int) -> tuple[GradientReduction, ...]:
        """What becomes of the gradient of a parameter, in order."""
        return self.shared[parameter in self.step.apart].reductions

    def compressible(self, group: Sequence[Gradient]) -> tuple[list[tuple[int, ...]], float]:
        """Shapes of the gradients of a group, and bytes of an element."""
        values = self.step.trace.values
        shapes = [tuple(int(extent) for extent in values.shape[gradient.parameter]) for gradient in group]
        return shapes, total_bytes(group) / max(sum(math.prod(shape) for shape in shapes), 1)


class JobFacts(ReplicaFacts):
    """What all stages share."""

    def __init__(
        self,
        step: Step,
        costs: ScheduleCosts,
        stages: Stages,
        schedule: Schedule,
        plan: Plan,
        mesh: JobMesh,
        grads: list[Gradient],
    ) -> None:
        super().__init__(step, plan, mesh, grads)
        self.stages, self.costs = stages, costs
        self.schedule, self.pipeline = schedule, mesh.stages
        parts = stages.count * schedule.directions
        self.chunks = parts // self.pipeline
        self._placed = [schedule.stage_of(part, self.pipeline) for part in range(parts)]
        operators = step.trace.operators
        self.tags = MessageTags()
        self._parts: dict[int, PartFacts] = {}
        known = uncut_step(step.trace, step.transfers, step.root_only)
        self.phase, self.skipped, self.skipped_elsewhere = known.phase, known.skipped, known.skipped_elsewhere
        self.trains = known.trains
        self._price(costs)
        self.scatters_beside = plan.stack is None or plan.stack.overlap_gradients
        updated_in_parts = self.replication.gathered_after_update and self.sharing > 1
        self.gathers_ahead = bool(
            updated_in_parts and plan.overlap and plan.stack is not None and plan.stack.overlap_parameters
        )
        """Whether what ranks have updated in parts is gathered beside the forward of the next iteration."""
        self.inputs = operators.inputs
        cut = redistribution(step, stages.of)
        transfers, self.returned = cut.transfers, cut.returned
        overlaps = plan.overlap
        self.pieces: list[int] = np.where(overlaps, transfers.pieces, 1).tolist()
        self.copied: list[bool] = transfers.copied.tolist()
        self.sums = cut.summands
        self.of_weights = of_weights(step.homes) if any(pieces != 1 for pieces in self.pieces) else set[int]()
        self.readers = {
            number: [row for row in rows if not known.skipped[row] and row not in self.of_weights]
            for number, rows in cut.readers.items() if overlaps
        }  # fmt: skip
        if transfers is not step.transfers:
            self.exchanged = _exchanged(transfers)
        streams = np.where(transfers.beside, BESIDE, TP)
        if plan.stack is not None and not plan.stack.overlap_tensor:
            streams[(transfers.axis == mesh.row("tp")) & (transfers.pieces == 1)] = COMPUTE
        self.exchange_stream: list[int] = np.where(transfers.copied, ENGINES, streams).tolist()
        self._users_of: dict[tuple[int, ...], list[int]] = {}
        self.grads_of = self._grads_of()
        self.after: list[int] = transfers.after.tolist()
        self.values: list[int] = transfers.value.tolist()
        self.first_read: list[int] = transfers.before.tolist()
        self.issued_after: dict[int, list[int]] = {}
        self.issued_before: dict[int, list[int]] = {}
        self.needed_before: dict[int, list[int]] = {}
        self.once: set[int] = set()
        pairs = zip(transfers.after.tolist(), transfers.before.tolist(), strict=True)
        for number, (after, before) in enumerate(pairs):
            before = self.readers[number][0] if self.readers.get(number) else before
            gathers = self.exchanged[number][1] == ALL_GATHER
            if after < 0 or (gathers and before < len(self.phase) and stages.of[after] != stages.of[before]):
                self.issued_before.setdefault(before, []).append(number)  # what another stage made crosses as it is
            else:
                self.issued_after.setdefault(after, []).append(number)
            self.needed_before.setdefault(before, []).append(number)
            if before < len(self.phase) and self.phase[before] == Phase.OPTIMIZER:
                self.once.add(number)  # gradients are exchanged when they are complete
        self.around = np.zeros(len(operators) + 1, bool)  # operators next to which something is exchanged
        for rows in (self.issued_after, self.issued_before, self.needed_before):
            self.around[list(rows)] = True

    def exchanged_storage(self, number: int) -> int:
        """Storage of what an exchange within the step sends, -1 for what is no value of it."""
        value = self.values[number]
        return int(self.storage[value]) if value >= 0 else -1

    def running(self, schedule: Schedule, mesh: JobMesh) -> JobFacts:
        """The same job under another schedule, with other micro-batches."""
        other = copy(self)
        other.schedule, other.mesh = schedule, mesh
        return other

    def resized(self, step: Step, costs: ScheduleCosts, plan: Plan, mesh: JobMesh) -> JobFacts:
        """The same job where a micro-batch has other samples.

        Args:
            step: of the same structure (:func:`triosim.search.step_structure.step_structure`).
            costs, plan, mesh: of the other job; the mesh has the same axes.
        """
        other = copy(self)
        other.step, other.costs, other.plan, other.mesh = step, costs, plan, mesh
        other.inputs = step.trace.operators.inputs
        other._price(costs)
        size = {(item.storage, item.made): item.bytes for item in crossing_items(step.homes)}
        found = tuple(replace(b, bytes=size[b.storage, b.made]) for b in self.stages.boundaries)
        other.stages = replace(self.stages, boundaries=found)
        transfers = redistribution(step, self.stages.of).transfers
        other.exchanged = _exchanged(transfers)
        of = {id(old): new for old, new in zip(self.stages.boundaries, found, strict=True)}
        other._parts = {number: part.resized(plan, of) for number, part in self._parts.items()}
        return other

    def _price(self, costs: ScheduleCosts) -> None:
        """What depends on sizes and times."""
        known = uncut_step(self.step.trace, self.step.transfers, self.step.root_only)
        self.storage, self.storages = known.storage, known.storages
        seconds = costs.seconds if costs.gathered_seconds is None else costs.gathered_seconds
        self.takes_s = np.where(known.at_once, seconds, costs.seconds)
        self.seconds, self.copy_s_per_byte = self.takes_s.tolist(), costs.copy_s_per_byte
        self.update_s_per_byte, self.nvme_s_per_byte = costs.update_s_per_byte, costs.nvme_s_per_byte

    def _grads_of(self) -> dict[int, list[Gradient]]:
        """Gradients by the part that completes them: on each stage the first part that uses a parameter is the last
        to add to its gradient."""
        found: dict[int, list[Gradient]] = {}
        completing: dict[tuple[int, ...], tuple[int, ...]] = {}
        for gradient in self.grads:
            used = self.stages.parameters.get(gradient.parameter, ())
            if used not in completing:
                first: dict[int, int] = {}
                for part in self._users(gradient.parameter):
                    first.setdefault(self.stage(part), part)
                completing[used] = tuple(first.values())
            for part in completing[used]:
                found.setdefault(part, []).append(gradient)
        return found

    def _users(self, parameter: int) -> list[int]:
        """The parts that use a parameter, in every copy of the model, by their place in it."""
        used = self.stages.parameters.get(parameter, ())
        if used not in self._users_of:
            copies, count = range(self.schedule.directions), self.stages.count
            self._users_of[used] = [part + copy * count for part in sorted(used) for copy in copies]
        return self._users_of[used]

    def summands(self, number: int) -> tuple[int, ...]:
        """The operators that make what a transfer sends, or add it up."""
        return self.sums.get(number, (self.after[number],))

    def stages_using(self, parameter: int) -> set[int]:
        """The stages that use a parameter."""
        return {self.stage(part) for part in self._users(parameter)}

    def part(self, number: int) -> PartFacts:
        """A part of the model, worked out once for all who write it; its blocks of memory are their own."""
        if number not in self._parts:
            made = PartFacts(self, number)
            del made.job  # a job and its parts would keep each other until somebody looks for such circles
            self._parts[number] = made
        found = copy(self._parts[number])
        found.job = self
        return found

    def stage(self, part: int) -> int:
        """The stage that runs a part of the model."""
        return self._placed[part]

    def chunk(self, part: int) -> int:
        """Which of the parts of its stage a part is."""
        return self._placed[:part].count(self._placed[part])

    def parts(self, stage: int) -> list[int]:
        """The parts of the model that a stage runs, in the order of their forward."""
        return [part for part, own in enumerate(self._placed) if own == stage]


class PartFacts:
    """What a stage runs of one part of the model, and what crosses to and from other stages.

    Attributes:
        number: which part of the model.
        copy: the first part of its copy of the model, 0 where there is one.
    """

    def __init__(self, job: JobFacts, part: int) -> None:
        self.job, self.chunk, self.plan = job, job.chunk(part), job.plan
        number = self.number = part % job.stages.count
        self.copy = part - number
        trace, stages = job.step.trace, job.stages
        mine, phases = stages.of == number, trace.operators.phase
        self.forward = np.flatnonzero(mine & (phases == Phase.FORWARD)).tolist()
        self.backward = np.flatnonzero(mine & ((phases == Phase.BACKWARD) | (phases == Phase.RECOMPUTE))).tolist()
        self.in_pieces: dict[int, tuple[int, tuple[int, ...]]] = {}
        """First of some products -> the transfer that is gathered in pieces for them, and all of them."""
        if any(pieces != 1 for pieces in job.pieces):
            self._arrange_pieces()
        self.rows: dict[Pass, list[int]] = {Pass.FORWARD: self.forward, Pass.BACKWARD: self.backward}
        if job.schedule.splits_backward:
            halves = split_backward(job.step.homes, self.backward)
            self.rows[Pass.INPUT_GRADIENT] = list(halves.input_gradient)
            self.rows[Pass.WEIGHT_GRADIENT] = list(halves.weight_gradient)
        self.grads = job.grads_of.get(part, [])
        self.summands = self._summands()
        self.arriving: dict[int, list[Boundary]] = {}
        self.leaving: dict[int, list[Boundary]] = {}
        self.returning: dict[int, list[Boundary]] = {}
        for boundary in stages.boundaries:
            if self.stage_of(boundary.source) == self.stage_of(boundary.target):
                continue
            if boundary.target == number:
                self.arriving.setdefault(boundary.read, []).append(boundary)
                if boundary.returned >= 0:
                    self.returning.setdefault(self._returned(boundary), []).append(boundary)
            if boundary.source == number:
                self.leaving.setdefault(boundary.made, []).append(boundary)
        self.units: list[GatherUnit] = []
        self.blocks: list[UnitBlocks] = []
        if job.modules is not None:
            used = [p for p, users in stages.parameters.items() if number in users]
            self.units = job.modules.units(used, self.grads, self.forward, self.backward)
            if job.replication.whole:
                self.units = [replace(unit, gather_bytes=0) for unit in self.units]
        self.host_copies = self._host_copies()

    def resized(self, plan: Plan, boundaries: Mapping[int, Boundary]) -> PartFacts:
        """The same part where a micro-batch has other samples, without a job; its blocks of memory are this one's.

        Args:
            plan: of the other job, of :meth:`JobFacts.resized`.
            boundaries: its boundaries by the identity of those of this one's job.
        """
        other = copy(self)
        other.plan = plan
        for name in ("arriving", "leaving", "returning"):
            table = getattr(self, name)
            setattr(other, name, {row: [boundaries[id(b)] for b in own] for row, own in table.items()})
        return other

    def stage_of(self, number: int) -> int:
        """The stage that has a part of the same copy of the model."""
        return self.job.stage(self.copy + number)

    def _arrange_pieces(self) -> None:
        """Find the products for which something is gathered in pieces, and let weight gradients wait for what is done
        beside or before them."""
        job, mine = self.job, set(self.forward) | set(self.backward)
        weights = job.of_weights & mine
        forward = job.step.trace.operators.forward.tolist()
        later: dict[int, int] = {}  # weight gradient -> the operator after which it is run
        for number, rows in job.readers.items():
            if rows and rows[0] in mine:
                self.in_pieces[rows[0]] = (number, tuple(rows))
                first = job.first_read[number]
                later.update({row: rows[-1] for row in weights if first <= row < rows[-1]})
        of_parameter = {forward[row]: row for row in sorted(weights, reverse=True) if forward[row] >= 0}
        for number, pieces in enumerate(job.pieces):
            if pieces == BESIDE_WEIGHTS and job.after[number] in mine:
                end = job.after[number]
                own = [of_parameter[forward[row]] for row in job.summands(number) if forward[row] in of_parameter]
                later.update({row: end for row in weights if min(own, default=end) <= row < end})
        place = {row: (later.get(row, row), row in later, row) for row in self.backward}
        self.backward = sorted(self.backward, key=place.__getitem__)

    def _summands(self) -> dict[int, int]:
        """Storages of gradients -> those of the summands that this part has of them.

        The step adds up what several parts make of a parameter's gradient on one of them.
        """
        job, found = self.job, dict[int, int]()
        if job.mesh.stages == 1:
            return found
        touched = set(job.storages.touched(self.backward)[0].tolist())
        for gradient in self.grads:
            if gradient.storage not in touched:
                here = [job.storage[v] for v in job.inputs[gradient.ready].tolist() if job.storage[v] in touched]
                if here:
                    found[gradient.storage] = here[0]
        return found

    def _returned(self, boundary: Boundary) -> int:
        """Operator after which the gradient of what was received goes back: in the half that makes it."""
        rows = self.rows.get(Pass.INPUT_GRADIENT, self.backward)
        last = max((row for row in rows if row <= boundary.returned), default=boundary.returned)
        return max([last, *(self.job.after[number] for number in self.scattered(boundary))])

    def scattered(self, boundary: Boundary) -> tuple[int, ...]:
        """What scatters the gradient of what was received before it goes back."""
        return self.job.returned.get((self.number, boundary.storage), ())

    def _host_copies(self) -> dict[bool, list[HostCopy]]:
        """What travels to the host and back in forwards (False) and backwards (True)."""
        trace, placed = self.job.step.trace, self.job.replication
        copies: dict[bool, list[HostCopy]] = {False: [], True: []}
        if (stay := placed.stay(Category.ACTIVATION)) is not None:
            sent = {b.storage for boundaries in self.leaving.values() for b in boundaries}
            kept = activation_copies(trace, self.forward, self.backward, sent, stay)
            copies[False] += kept
            copies[True] += kept
        if (stay := placed.stay(Category.WEIGHT)) is not None and self.job.modules is None:
            mine = {p: users for p, users in self.job.stages.parameters.items() if self.number in users}
            for backward, own in zip(
                (False, True), parameter_copies(trace, self.forward, self.backward, mine, stay), strict=True
            ):
                copies[backward] += own
        return copies

    def groups(self) -> list[list[Gradient]]:
        """Gradients that are reduced together."""
        return self.grouped(self.grads)

    def grouped(self, grads: Sequence[Gradient]) -> list[list[Gradient]]:
        """Those of some gradients, in registration order, that this part would reduce together."""
        if not grads:
            return []
        apart, placed = self.job.step.apart, self.job.replication
        first, others = placed.first_bytes, placed.bytes
        beside = self.plan.overlap and (self.plan.stack is None or self.plan.stack.overlap_gradients)
        beside = beside and (placed.later_groups or self.copy + self.number == 0)
        if placed.elements:
            first = others = round(placed.elements * self.job.bits[1] / 8)
        if not apart:
            return by_bytes(grads, first, others) if beside else [list(grads)]
        found = []
        for own in ([g for g in grads if g.parameter not in apart], [g for g in grads if g.parameter in apart]):
            found += by_bytes(own, first, others) if beside else [own] * bool(own)
        return sorted(found, key=lambda group: max(g.ready for g in group))


class StageFacts:
    """What one stage runs, in which order, and what it shares with others.

    Args:
        job: of which job.
        stage: which one.
        root: whether these are the ranks of the first replica or those of the others; None for all, which do the same.
    """

    def __init__(self, job: JobFacts, stage: int, root: bool | None = None) -> None:
        self.job, self.stage, self.plan, self.mesh = job, stage, job.plan, job.mesh
        self.ranks = job.mesh.of_stage(stage)
        if root is not None:
            self.ranks = self.ranks[:1] if root else self.ranks[1:]
        self.skipped = job.skipped if root is not False else job.skipped_elsewhere
        parts = job.parts(stage)
        numbers = [part % job.stages.count for part in parts]
        self.parts = [job.part(part) for part in parts]
        self.share = job.stages.share[:, numbers].sum(axis=1)
        updates = job.step.trace.operators.phase == Phase.OPTIMIZER
        own = np.flatnonzero(updates & (self.share > 0)).tolist()
        self.optimizer = [row for row in own if root is not False or row not in job.step.root_only]
        self.grads = [g for part in self.parts for g in part.grads]
        self.parameters = [p for p, users in job.stages.parameters.items() if set(users) & set(numbers)]
        self.sharded = any(part.units for part in self.parts)
        self.places: dict[str, int] = {}
        if job.replication.away:
            for place in dict.fromkeys((HOST, *(stay.place for stay in job.replication.away))):
                self.places.setdefault(place, len(self.places))
        self.sent = self._sent_gradients()
        if self.sharded:
            for part in self.parts:
                part.blocks = [UnitBlocks.of(unit, (part.number, n), self.blocks) for n, unit in enumerate(part.units)]

    def resized(self, step: Step, costs: ScheduleCosts, plan: Plan, mesh: JobMesh) -> StageFacts:
        """The same stage where a micro-batch has other samples, to be written and priced; its blocks of memory are this
        one's.  Arguments as of :meth:`JobFacts.resized`."""
        other = copy(self)
        other.job, other.plan, other.mesh = self.job.resized(step, costs, plan, mesh), plan, mesh
        other.parts = [other.job.part(part) for part in self.job.parts(self.stage)]
        for part, own in zip(other.parts, self.parts, strict=True):
            part.blocks = own.blocks
        return other

    @cached_property
    def actions(self) -> list[Action]:
        """What it runs, in order."""
        job = self.job
        if job.trains:
            return job.schedule.actions(self.stage, job.mesh.stages, job.mesh.micro_batches)
        return forward_only(job.schedule, self.stage, job.mesh.stages, job.mesh.micro_batches)

    @cached_property
    def blocks(self) -> RankBlocks:
        """What can occupy memory; worked out when somebody asks, as nobody does who only wants times."""
        job, trace = self.job, self.job.step.trace
        numbers = [part.number for part in self.parts]
        rows = np.flatnonzero(np.isin(job.stages.of, numbers))
        mine = {p: not set(users).isdisjoint(numbers) for p, users in job.stages.parameters.items()}
        blocks = RankBlocks(job.storages, mine, rows, 0 in numbers, self.mesh.micro_batches)
        if job.modules is not None:
            shards, shards_apart = (shared.shards for shared in job.shared)
            sharded, sizes = resident(trace, shards, job.step.apart, shards_apart)
            if not job.replication.whole:
                blocks.shrinks(sharded, sizes)
            if (stay := job.replication.stay(Category.WEIGHT)) is not None:
                own = np.isin(sharded, job.step.trace.values.storage[self.parameters])
                blocks.leaves(sharded[own].tolist())
                whole = ExtraBlock(
                    int(sizes[own].sum()), Category.WEIGHT, NONE, BlockLifetime.RESIDENT, HOMES[stay.place]
                )
                blocks.add("shards", whole)
            blocks.stays([gradient.storage for gradient in self.grads if gradient.parameter in job.modules])
        elif job.copies_gradients:
            reduced = [gradient for gradient in self.grads if job.reductions(gradient.parameter)]
            buckets = ExtraBlock(total_bytes(reduced), Category.COMMUNICATION, scope=BlockLifetime.RESIDENT)
            blocks.add("buckets", buckets)  # what gradients are copied to
        if (compression := job.replication.compression) is not None and job.sharing > 1:
            kept = sum(compression.kept(*job.compressible(group)) for group in self.groups())
            blocks.add("compression", ExtraBlock(kept, Category.COMMUNICATION, scope=BlockLifetime.RESIDENT))
        if job.replication.travel.again and job.modules is not None:
            second = sum(unit.gather_bytes for part in self.parts for unit in part.units)
            near = self.mesh.size(job.replication.travel.again)
            blocks.add("second", ExtraBlock(-(-second // near), Category.WEIGHT, scope=BlockLifetime.RESIDENT))
        if job.replication.outer is not None:
            kept = OUTER_STATE * self.own_parameters()[0]
            blocks.add("outer", ExtraBlock(kept, Category.OPTIMIZER_STATE, scope=BlockLifetime.RESIDENT))
        for part in self.parts:
            blocks.gradients_here(part.summands)
        if job.replication.away:
            copies = [copy for part in self.parts for copy in part.host_copies[False]]
            states = job.replication.stay(Category.OPTIMIZER_STATE)
            on_host(blocks, copies, self.update() if states else None, states.place if states else HOST)
        return blocks

    def own_parameters(self) -> tuple[int, float]:
        """Elements of the trained parameters that a rank updates, and bytes of one."""
        trained = {gradient.parameter for gradient in self.grads}
        own = np.array([p for p in self.parameters if p in trained], np.int64)
        elements, size = (column[own] for column in (
            self.job.step.trace.values.elements(), self.job.step.trace.values.bytes(),
        ))  # fmt: skip
        apart = np.isin(own, list(self.job.step.apart))
        updated = 0
        for here, sharing in zip((~apart, apart), self.job.shared, strict=True):
            updated += -(-int(elements[here].sum()) // (sharing.shards if self.job.replication.states else 1))
        return updated, float(size.sum() / max(int(elements.sum()), 1))

    def elsewhere(self, gradient: Gradient) -> list[int]:
        """The other stages that use the parameter of a gradient."""
        return sorted(self.job.stages_using(gradient.parameter) - {self.stage})

    def groups(self) -> list[list[Gradient]]:
        """Gradients that are reduced together, the last chunk's first."""
        return [group for part in reversed(self.parts) for group in part.groups()]

    def gather_parameters(self, builder: ProgramBuilder, stream: int) -> dict[int, int]:
        """All-gather the parameters that each rank has updated a part of, in the groups of their gradients.

        Args:
            builder: of the fragment being written.
            stream: on which they run, one after the other.

        Returns:
            For each parameter that is gathered its instruction.
        """
        size, found = self.job.step.trace.values.bytes(), {}
        for group in reversed(self.groups()):
            axis = self.job.gathering_axis(group[0].parameter)
            if self.mesh.size(axis) == 1:
                continue
            row = builder.add(
                Op.COLLECTIVE, stream, operator=self.optimizer[-1] if self.optimizer else group[0].ready,
                size=int(sum(size[g.parameter] for g in group)), what=ALL_GATHER, axis=self.mesh.row(axis),
            )  # fmt: skip
            found.update({g.parameter: row for g in group})
        return found

    def _sent_gradients(self) -> list[HostCopy]:
        """Gradients that go to the host beside the last backward: those that no other rank has a part of."""
        stay = self.job.replication.stay(Category.OPTIMIZER_STATE)
        if stay is None:
            return []
        shared = any(self.elsewhere(g) for g in self.grads)
        whole = len(self.parts) == 1 and not self.job.schedule.splits_backward
        alone = self.job.sharing == 1 and not shared
        if not alone or not self.plan.overlap or not whole:
            return []
        return gradient_copies(
            self.groups(),
            self.update().gradients,
            [row for row in self.parts[0].backward if not self.job.skipped[row]],
            stay.waiting,
        )

    def update(self) -> HostUpdate:
        """What the host updates."""
        return update_of(self.job.step.trace, self.parameters)

    def new(self) -> ProgramBuilder:
        """An empty program of this stage."""
        return ProgramBuilder(self.stage, self.ranks, self.places)

    def stream(self, own: int) -> int:
        """Where a transfer runs: with overlap off every transfer blocks compute."""
        return own if self.plan.overlap else COMPUTE

    def gathering(
        self,
        part: PartFacts,
        builder: ProgramBuilder,
        recorder: BlockUseRecorder,
        backward: bool,
        needs: UngatheredUnits,
        scatters: bool,
        start: int = -1,
    ) -> Gathering:
        """Writes what belongs to the units of a part into a fragment, see :class:`Gathering`."""
        stay = self.job.replication.stay(Category.WEIGHT)
        return Gathering(
            part.units, part.blocks, self.blocks.stands_for, builder, recorder, backward, needs, scatters,
            self.plan.overlap, self.job.copy_s_per_byte, self.job.shared, self.job.gathered, start,
            self.job.scatters_beside, -1 if stay is None else self.places[stay.place],
        )  # fmt: skip
