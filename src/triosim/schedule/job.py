"""The Job: the programs of all rank classes, assembled from the step, its times and the plan.

Ranks are numbered with the tensor axis fastest, then data, then pipeline, so that the peers that talk most sit next to
each other.  Ranks of one pipeline stage do the same work and form one class.

What a stage does for one micro-batch is the same for each, so it is written once, as a :class:`Fragment`, and repeated
for all micro-batches and iterations at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.memory.lifetimes import MemoryLocation
from triosim.memory.liveness import BlockUses, ScheduledFragment, liveness
from triosim.partition.gradients import reduced_gradients
from triosim.partition.resolve import JobMesh
from triosim.partition.step import Step
from triosim.plan import Plan
from triosim.schedule._epilogue import LastPassRows, reductions, update
from triosim.schedule._stage import JobFacts, StageFacts
from triosim.schedule.actions import Pass, Schedule
from triosim.schedule.costs import ScheduleCosts as Costs
from triosim.schedule.fragments import Fragment, PlacedFragment, concatenate
from triosim.schedule.gathering import UngatheredUnits, missing
from triosim.schedule.interleaving import in_place, pairs, places, reordered
from triosim.schedule.pass_writer import MicroBatchPassWriter, PassKind
from triosim.schedule.program import COPY, DP, Op, Program, of_iteration
from triosim.schedule.stages import Stages
from triosim.trace.tables import Category, Phase

_HALVES = {Pass.BACKWARD: (Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT)}
"""What a whole pass consists of."""


@dataclass
class _FragmentedIteration:
    """The fragments of one iteration in order, and where they are.

    Attributes:
        fragments, micro_batch, start: what begins at which row and works on which micro-batch.
        length: rows.
        in_turn: fragments that are run in turn with the one after them -> where the rows of both go.
    """

    fragments: list[Fragment] = field(default_factory=list)
    micro_batch: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    length: int = 0
    in_turn: dict[int, NDArray[np.int64]] = field(default_factory=dict)

    def append(self, fragment: Fragment, micro_batch: int) -> int:
        """Put a fragment at the end; returns the row at which it begins."""
        self.fragments.append(fragment)
        self.micro_batch.append(micro_batch)
        self.start.append(self.length)
        self.length += len(fragment)
        return self.start[-1]

    def place(self) -> NDArray[np.int64]:
        """Where each row goes."""
        found = np.arange(self.length)
        for at, place in self.in_turn.items():
            found[self.start[at] : self.start[at] + len(place)] = self.start[at] + place
        return found

    def scheduled(self) -> list[ScheduledFragment]:
        """What the fragments use of memory, from where on."""
        found, moved = [], dict[tuple[int, int], BlockUses]()
        for at, (fragment, start, micro_batch) in enumerate(
            zip(self.fragments, self.start, self.micro_batch, strict=True)
        ):
            uses = fragment.uses
            for first in (at, at - 1):
                if first in self.in_turn:
                    place, begin = self.in_turn[first], self.start[first]
                    key = id(uses), id(place)  # micro-batches that do the same share what they use
                    uses = moved.setdefault(key, in_place(uses, place, start - begin))
                    start = begin
            found.append(ScheduledFragment(uses, start, micro_batch))
        return found


def programs(step: Step, costs: Costs, stages: Stages, schedule: Schedule, plan: Plan, mesh: JobMesh) -> list[Program]:
    """One program for each pipeline stage; see :func:`each_program`."""
    return list(each_program(step, costs, stages, schedule, plan, mesh))


def each_program(
    step: Step, costs: Costs, stages: Stages, schedule: Schedule, plan: Plan, mesh: JobMesh
) -> Iterator[Program]:
    """One program for each pipeline stage, written out when it is asked for.

    Args:
        step: one rank's share of a micro-batch.
        costs: what it takes.
        stages: the parts of the model, as many for each stage as the schedule has chunks.
        schedule: in which order a stage runs micro-batches.
        plan, mesh: how the work is divided.

    Raises:
        PlanError: data parallelism is asked for but the trace has no gradients to reduce, or the schedule cannot do it.
    """
    grads = reduced_gradients(step.trace, plan.stack) if plan.training else []
    if plan.training and mesh.replicas > 1 and not grads and np.any(step.trace.operators.phase == Phase.BACKWARD):
        raise PlanError(
            f"dp {mesh.replicas}: no gradient of a parameter was found in {step.trace.meta.workload!r}, so there is "
            "nothing to reduce: record the step with triosim trace record, or import it with its execution trace"
        )
    if step.replication.rooted:
        plan = replace(plan, overlap=False)  # one process waits for every transfer
    job = JobFacts(step, costs, stages, schedule, plan, mesh, grads)
    if schedule.splits_backward:
        away = job.replication.away
        whole = away[0].name if away else job.replication.name if job.modules else ""
        if whole:
            raise PlanError(
                f"schedule {plan.schedule} splits the backward in two, and {whole} is bound to whole ones: use "
                "1f1b or interleaved-1f1b, or leave it out"
            )
    kinds = ((True, False) if mesh.replicas > 1 else (True,)) if step.replication.rooted else (None,)
    written = [StageWriter(StageFacts(job, stage, root)) for stage in range(mesh.stages) for root in kinds]
    return (stage.program() for stage in written)  # tags are known when all stages have been written


class StageWriter:
    """Writes the fragments of one stage and puts them in order.

    Attributes:
        of: the stage.
        kinds: of each action.
        iterations: each of them.
        scattered: parts, one for each tensor-parallel rank, in which a value is sent to another stage.
        fetches: storage -> instruction of the iteration that fetches it.
        ahead: forward operator -> gathers of parameters that it is the first to read.
    """

    def __init__(self, of: StageFacts) -> None:
        self.of, self.job, self.plan, self.mesh = of, of.job, of.plan, of.mesh
        whole = "sequence" not in self.plan.parallelism  # else every rank has its part of the sequence anyway
        scatters = self.plan.stack is not None and self.plan.stack.scattered_transfers and whole
        self.scattered = self.mesh.size("tp") if scatters else 1
        self.builder = of.new()
        self.fetches: dict[int, int] = {}
        self.ahead: dict[int, list[int]] = {}
        self.kinds = self._kinds()
        self.written: dict[tuple[bool, bool], _FragmentedIteration] = {}
        self.iterations = [self._numbered(number) for number in range(self.plan.iterations)]

    def _numbered(self, number: int) -> _FragmentedIteration:
        """An iteration; later ones fetch only what is new in each, and not in all gradients are reduced."""
        kind = (not number or not self.plan.places, not (number + 1) % self.job.replication.every)
        if kind not in self.written:
            self.written[kind] = self._iteration(*kind)
        return self.written[kind]

    # --- order --------------------------------------------------------------------------------------------------------

    def program(self) -> Program:
        """All iterations, and what the first keeps in memory."""
        stride = len(self.job.tags)
        placed: list[PlacedFragment] = []
        end = 0
        for number in range(self.plan.iterations):
            iteration, begin = self.iterations[number], end
            for fragment, micro_batch in zip(iteration.fragments, iteration.micro_batch, strict=True):
                tag = (number * self.mesh.micro_batches + micro_batch) * stride
                placed.append(PlacedFragment(fragment, begin, micro_batch, number, tag))
            end += iteration.length
        made = concatenate(self.of.new().build(), placed)
        if any(iteration.in_turn for iteration in self.iterations):
            begins = np.cumsum([0, *(iteration.length for iteration in self.iterations)]).tolist()
            made = reordered(
                made, np.concatenate([it.place() + at for it, at in zip(self.iterations, begins, strict=False)])
            )
        held = liveness(self.of.blocks.build(), self.iterations[0].scheduled(), self.mesh.micro_batches, end)
        places = tuple(self.of.places)
        return replace(
            made, places=places, lifetimes=held.at(MemoryLocation.DEVICE),
            host_bytes=held.at(MemoryLocation.HOST).peak_bytes(),
            nvme_bytes=held.at(MemoryLocation.NVME).peak_bytes(),
        )  # fmt: skip

    def _iteration(self, first: bool, reduces: bool) -> _FragmentedIteration:
        """One iteration: what is fetched, the schedule's actions, and the optimizer.

        What reduces the gradients of a chunk comes right after its last backward, for it runs beside other chunks.
        """
        of, made = self.of, _FragmentedIteration()
        made.append(self._fetch(first), 0)
        fetched = self._fetched_for if self.fetches else None
        written = {
            kind: MicroBatchPassWriter(of, kind, self.scattered, self.ahead, fetched).fragment()
            for kind in sorted(set(self.kinds), key=lambda k: (k.final, k.what, k.chunk))
        }
        final = {part.chunk: LastPassRows(len(self.job.phase)) for part in of.parts}
        left = [sum(kind.chunk == part.chunk for kind in self.kinds) for part in of.parts]
        reduced: dict[int, int] = {}
        combined = set(pairs(of.actions)) if self.job.trains and self.job.schedule.combines else set()
        in_turn: dict[tuple[PassKind, PassKind], NDArray[np.int64]] = {}
        for number, (action, kind) in enumerate(zip(of.actions, self.kinds, strict=True)):
            fragment, part = written[kind], of.parts[action.chunk]
            if number in combined:
                both = kind, self.kinds[number + 1]
                if both not in in_turn:
                    in_turn[both] = places(*(written[one].rows for one in both))
                made.in_turn[len(made.fragments)] = in_turn[both]
            start = made.append(fragment, action.micro_batch)
            if kind.final:
                final[part.chunk].add(start, fragment, self.job.once)
            left[part.chunk] -= 1
            if not left[part.chunk] and reduces:
                offset = made.length
                following, known = reductions(of, part, offset, final[part.chunk])
                reduced.update(known)
                made.append(following, self.mesh.micro_batches - 1)
        last = update(of, made.length, final, reduced, self._fetched_for)
        made.append(last, self.mesh.micro_batches - 1)
        return made

    def _kinds(self) -> list[PassKind]:
        """The kind of each action."""
        actions, before = self.of.actions, [list[bool]() for _ in self.of.parts]
        last = {(half, a.chunk): number for number, a in enumerate(actions) for half in _HALVES.get(a.what, (a.what,))}
        kinds = []
        for number, action in enumerate(actions):
            needs, past = UngatheredUnits(), before[action.chunk]
            past.append(action.what is not Pass.FORWARD)
            if self.of.parts[action.chunk].units:
                needs = missing(past, len(past) - 1, self.job.replication.regathers, self.job.stages.count > 1)
            ends = action.what is not Pass.FORWARD or not self.job.trains
            half = _HALVES.get(action.what, (action.what,))[0]
            kinds.append(PassKind(action.what, action.chunk, ends and last[half, action.chunk] == number, needs))
        return kinds

    # --- what starts elsewhere ----------------------------------------------------------------------------------------

    def _fetch(self, first: bool) -> Fragment:
        """Bring what starts elsewhere: parameters and states once, inputs in every iteration."""
        self.builder, self.fetches = self.of.new(), {}
        wanted = {name: p for name, p in self.plan.places.items() if first or name in ("input", "label")}
        if wanted:
            self._fetch_from(wanted)
        self.ahead = self._gather_ahead() if self.job.gathers_ahead else {}
        return Fragment(self.builder.build())

    def _gather_ahead(self) -> dict[int, list[int]]:
        """Gather what the iteration before has updated, in the order in which the forward reads it.

        Gatherings follow each other from the begin of the iteration on; Megatron-Core launches each when the forward
        reaches what the one before has brought, which ends no earlier.

        Returns:
            For the first forward operator of each part that reads of a group, the rows of the iteration that gather it.
        """
        gathered = self.of.gather_parameters(self.builder, self.of.stream(DP))
        by_storage = {self.job.storage[parameter]: row for parameter, row in gathered.items()}
        found: dict[int, list[int]] = {}
        for part in self.of.parts:
            waited = set[int]()
            for row in part.rows[Pass.FORWARD]:
                storages = {self.job.storage[value] for value in self.job.inputs[row].tolist()}
                reads = {by_storage[storage] for storage in storages & by_storage.keys()}
                if reads - waited and not self.of.skipped[row]:
                    found[row] = [of_iteration(gather) for gather in sorted(reads - waited)]
                    waited |= reads
        return found

    def _fetch_from(self, wanted: dict[str, str]) -> None:
        values, operators = self.job.step.trace.values, self.job.step.trace.operators
        size = values.storage_bytes()
        category, of = values.category.tolist(), values.of.tolist()
        written: set[int] = set()
        mine = set(self.of.parameters)
        rows = [part.rows[what] for what in (Pass.FORWARD, Pass.BACKWARD) for part in self.of.parts]
        for row in (*(row for part in rows for row in part), *self.of.optimizer):
            for value in self.job.inputs[row].tolist():
                storage = self.job.storage[value]
                place = wanted.get(Category(category[value]).name.lower())
                if place is None or storage in written or storage in self.fetches:
                    continue
                owner = of[value] if category[value] == Category.OPTIMIZER_STATE else value
                if owner not in self.job.stages.parameters or owner in mine:
                    where = self.of.places.setdefault(place, len(self.of.places))
                    fetch = self.builder.add(
                        Op.FETCH, self.of.stream(COPY), operator=row, size=int(size[storage]), peer=where
                    )
                    self.fetches[storage] = fetch
            written.update(self.job.storage[v] for v in operators.outputs[row].tolist())

    def _fetched_for(self, row: int) -> list[int]:
        """The fetches that an operator needs, as rows of the iteration."""
        storages = {self.job.storage[v] for v in self.job.inputs[row].tolist()}
        return [of_iteration(self.fetches[s]) for s in storages if s in self.fetches]
