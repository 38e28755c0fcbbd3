"""A step of few blocks, divided and priced once for all plans that divide a micro-batch alike, and what they share.

What a rank has of a micro-batch, and what that takes, is worked out once whatever replicas divide; its passes and its
memory (:class:`SharedStep`) once for all plans whose replicas gather equally much of each parameter.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import IdentityKey
from triosim.core.dataclass import dataclass
from triosim.core.result_cache import ResultCache, content
from triosim.fidelity import Fidelity
from triosim.hardware.system import System
from triosim.kernels.copying import copy_s_per_byte
from triosim.partition.gradients import gradients
from triosim.partition.main_gradients import often
from triosim.partition.passes.fuse import UnitsByModule
from triosim.partition.replication import Replication
from triosim.partition.resolve import JobMesh, replication, rules_of
from triosim.partition.shards import sharded
from triosim.plan import Plan
from triosim.prediction.priced_job import PricedJob, price_job
from triosim.prediction.pricing import BY_CALL
from triosim.schedule.stages import Stages, cut
from triosim.search.block_passes import ChunkFacts, ChunkPasses, ChunkStages
from triosim.search.block_step import BlockStep, ModelChunk, NoBlocks, count_equal_blocks, with_fewer_blocks
from triosim.search.chunk_memory import ChunkMemory, StructurePatterns
from triosim.search.pass_script import StageScripts
from triosim.search.step_structure import step_structure
from triosim.stacks import ASSUMED
from triosim.trace.tables import Trace

OF_ITS_OWN = ("pp", "dp", "schedule", "schedule_options", "micro_batches", "micro_batch_size",
              "batch_size", "global_batch_size", "zero")  # fmt: skip
"""Fields of a plan that steps of one micro-batch do not depend on, or that are told apart otherwise."""
KEPT_STEPS = 8
"""Steps of few blocks that are kept, and what plans share of them."""
KEPT_STRUCTURES = 16
"""Structures of such steps of which is kept what does not depend on the samples of a micro-batch."""


@dataclass(frozen=True, eq=False)
class StructureResults:
    """What steps have in common that differ in the samples of a micro-batch only.

    Attributes:
        stages: their chunks, in the sizes of the first that asked, and what they do.
        facts: what is known besides of chunks of any length, but for what crosses their ends.
        patterns: what these allocate, in no sizes.
        updates: seconds of the rows of the optimizer for all parameters of a rank, by how many ranks share its states.
        sizes: bytes of the storages of the step on a rank, by what replicas divide; -1 for those that they do not.
    """

    stages: dict[ModelChunk, StageScripts] = field(default_factory=dict)
    facts: dict[ModelChunk, ChunkFacts] = field(default_factory=dict)
    patterns: StructurePatterns = field(default_factory=StructurePatterns)
    updates: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    sizes: dict[Hashable, NDArray[np.int64]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class SharedStep:
    """What plans that divide a micro-batch alike have in common.

    Attributes:
        job: of few blocks.
        step: of the job.
        once: part of the micro-batches in which each of its operators runs, by the number of micro-batches that it was
            priced for.
        uncut: the step as one stage.
        stages: its chunks.
        memory: what they allocate.
        of_any: what it shares with other sizes of a micro-batch.
        passes: their passes for a few numbers of micro-batches, by what else they depend on.
        steps: the step by the number of micro-batches.
        sizes: bytes of its storages on a rank, by what replicas divide.
    """

    job: PricedJob
    step: BlockStep
    once: NDArray[np.float64]
    uncut: Stages
    stages: ChunkStages
    memory: ChunkMemory
    of_any: StructureResults
    passes: dict[Hashable, ChunkPasses] = field(default_factory=dict)
    steps: dict[int, BlockStep] = field(default_factory=dict)
    sizes: dict[Hashable, NDArray[np.int64]] = field(default_factory=dict)

    def of(self, micro_batches: int) -> BlockStep:
        """The step where there are so many micro-batches."""
        if micro_batches not in self.steps:
            job = self.job
            share = often(job.step.trace, job.plan.stack or ASSUMED, micro_batches)
            self.steps[micro_batches] = replace(self.step, seconds=self.step.seconds / self.once * share)
        return self.steps[micro_batches]


_FEW = ResultCache[PricedJob](KEPT_STEPS, np.inf, lambda job: 1)
_STEPS = ResultCache[SharedStep](KEPT_STEPS, np.inf, lambda step: 1)
_STRUCTURES = ResultCache[StructureResults](KEPT_STRUCTURES, np.inf, lambda of: 1)
_PADDINGS = ResultCache[Hashable](256, np.inf, lambda sizes: 1)


class AlikeDivision(NamedTuple):
    """What a micro-batch is divided by, whatever is divided among replicas.

    Attributes:
        workload: the step.
        asked: the fields of the plan that say how.
        micro_batch_size: samples.
        several: whether there is more than one micro-batch.
        axes: names of the axes of the mesh.
        scattered: whether replicas have parts of gradients.
    """

    workload: Hashable
    asked: Hashable
    micro_batch_size: int
    several: bool
    axes: tuple[str, ...]
    scattered: bool


def divides_alike(workload: Trace, plan: Plan, mesh: JobMesh, placed: Replication) -> AlikeDivision:
    """Equal for plans that divide a micro-batch alike, whatever is divided among replicas."""
    asked = content({name: getattr(plan, name) for name in sorted(plan.given) if name not in OF_ITS_OWN})
    scattered = placed.weights and placed.ranks(mesh) > 1
    names = tuple(name for name, _ in mesh.axes)
    several = mesh.micro_batches > 1
    return AlikeDivision(IdentityKey(workload), asked, mesh.micro_batch_size, several, names, scattered)


def shared_step(
    workload: Trace, system: System, plan: Plan, fidelity: Fidelity, mesh: JobMesh, placed: Replication,
    alike: AlikeDivision,
) -> SharedStep:  # fmt: skip
    """What a plan has in common with those that divide a micro-batch alike.

    Args:
        workload, system, plan, fidelity: as of :func:`triosim.simulate`.
        mesh, placed: of the plan.
        alike: as of :func:`divides_alike`.

    Raises:
        NoBlocks: the workload is not made of enough equal blocks, or something depends on more than the micro-batch.
        InputError: as of :func:`triosim.simulate`.
    """
    blocks = count_equal_blocks(workload)
    if not blocks:
        raise NoBlocks("no equal blocks")
    plan = plan.replaced(zero=_shared_zero(plan, placed))
    key = (alike, IdentityKey(system), content(fidelity), plan.zero, placed.ranks(mesh) > 1, placed.elements)
    few = _FEW.get(key, lambda: _priced_few(with_fewer_blocks(workload), system, plan, fidelity))
    padding = _padding(few, mesh, placed, key)
    by_call = fidelity.operator_times in BY_CALL  # else an operator may take what others of its step say
    structure = (alike._replace(micro_batch_size=0) if by_call else alike, *key[1:], padding)
    return _STEPS.get((key, padding), lambda: _shared(few, plan, mesh, blocks, structure))


def _shared_zero(plan: Plan, placed: Replication) -> int:
    """The stage of ZeRO whose passes a plan has, but for what reduces (1), or when parameters are gathered (2)."""
    if plan.zero == 1 and not placed.replicas and not placed.path:
        return 0
    return 3 if plan.zero == 2 else plan.zero


def _priced_few(few: Trace, system: System, plan: Plan, fidelity: Fidelity) -> PricedJob:
    """A job of few blocks, priced: what its optimizer takes is that of its own replicas."""
    job = price_job(few, system, plan, fidelity)
    slower = any(system.models[model].slowdown != 1 for model in job.models)
    if slower or len(job.models) > 1 or job.clocks or job.residual is not None or job.mesh.derived:
        raise NoBlocks("devices of several kinds, or that are held back, or axes that are made of others")
    if not gradients(job.step.trace):
        raise NoBlocks("no gradients")
    return job


def _padding(few: PricedJob, mesh: JobMesh, placed: Replication, key: Hashable) -> Hashable:
    """What is gathered of each parameter where replicas have parts of it: so many rows each, all alike."""
    if not placed.weights or placed.ranks(mesh) == 1:
        return ()
    shards, modules = placed.shards(mesh), placed.modules.modules

    def padded() -> Hashable:
        step = few.share
        units = UnitsByModule(step.trace, shards, modules, step.apart)
        size = step.trace.values.bytes()
        return tuple(units.padded(weight, int(size[weight])) for weight in step.trace.weights().tolist())

    return _PADDINGS.get((key, shards, content(modules)), padded)


def _shared(few: PricedJob, plan: Plan, mesh: JobMesh, blocks: int, alike: Hashable) -> SharedStep:
    """What the plans on a mesh share of a priced job; ``alike`` for all sizes of a micro-batch."""
    placed = replication(rules_of(plan, True), mesh)
    job = replace(few, plan=plan, mesh=mesh, step=sharded(few.share, mesh, placed))
    model = job.models[0]
    once = often(job.step.trace, plan.stack or ASSUMED, few.mesh.micro_batches)
    short = BlockStep(job.step, job.all_times[model].seconds, blocks, str(plan.cuts), stack=plan.stack)
    copies = copy_s_per_byte(job.system.models[model]) if placed.weights else 0.0
    of_any = _STRUCTURES.get((alike, step_structure(job.step)), StructureResults)
    chunks = ChunkStages(job, short, copies, of_any.stages, of_any.facts)
    uncut, memory = cut(job.step.trace, (), job.step.homes), ChunkMemory(chunks, of_any.patterns)
    return SharedStep(job, short, once, uncut, chunks, memory, of_any)
