"""What a plan asks for on a number of devices: the mesh of ranks, the batch, the rules."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import log2

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError, quoted
from triosim.core.options import configured, options_of
from triosim.partition.mesh import Mesh, RankDigit
from triosim.partition.replication import Replication
from triosim.partition.rule import RULES, M, Rule
from triosim.partition.rule_checks import checked_mesh, checked_replication, checked_step
from triosim.partition.rules.ddp import Ddp
from triosim.partition.step import Step
from triosim.plan import Plan, divisors, micro_batch_conflict, micro_batch_size_conflict
from triosim.trace.tables import Trace
from triosim.transform.rescale import key_head_copies


@dataclass(frozen=True)
class JobMesh(Mesh):
    """The mesh of a job on a number of devices, and the batch that runs on it: all sizes known.

    Attributes:
        devices: devices that the system has.
        batch_size: samples per replica and iteration.
        micro_batches: parts of it.
    """

    devices: int
    batch_size: int
    micro_batches: int

    @property
    def replicas(self) -> int:
        """Data-parallel replicas."""
        return self.size("dp")

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return self.size("pp")

    @property
    def pipeline_axis(self) -> int:
        """Row of the axis of the stages."""
        return self.row("pp")

    @property
    def global_batch_size(self) -> int:
        """Samples per iteration over all replicas."""
        return self.batch_size * self.replicas

    @property
    def micro_batch_size(self) -> int:
        """Samples that go through the model at once."""
        return self.batch_size // self.micro_batches

    def of_stage(self, stage: int) -> NDArray[np.int32]:
        """Ranks of a pipeline stage; not to be changed."""
        return _of_stages(self.axes, self.derived)[stage]


@kept(8)
def _of_stages(
    axes: tuple[tuple[str, int], ...], derived: tuple[tuple[str, tuple[RankDigit, ...]], ...]
) -> tuple[NDArray[np.int32], ...]:
    """Ranks of each pipeline stage of a mesh."""
    mesh = Mesh(axes, derived=derived)
    stage = mesh.position(np.arange(mesh.ranks), "pp")
    order = np.argsort(stage, kind="stable").astype(np.int32)
    return tuple(np.split(order, np.cumsum(np.bincount(stage, minlength=mesh.size("pp")))[:-1]))


def resolve(
    plan: Plan, devices: int, default_batch: int | None, recorded_parts: int = 1, rules: Sequence[Rule] = (),
    server: int = 0,
) -> JobMesh:  # fmt: skip
    """Fit a plan to the number of devices and the workload's batch.

    Args:
        plan: what was asked.
        devices: devices of the system.
        default_batch: the workload's own batch size, all its micro-batches together; None when it does not matter or
            is not known.
        recorded_parts: micro-batches of the workload's own step.
        rules: of the plan; those that take ranks of the data axis leave fewer replicas to share a global batch.
        server: devices of a server, 0 where they differ.

    Raises:
        PlanError: the plan does not fit; the message names the nearest plans that do.
    """
    inner = plan.replica_ranks
    if plan.dp is None:
        if devices % inner:
            raise PlanError(
                f"{devices} devices cannot be divided into tp {plan.tp} x pp {plan.pp} = {inner}: "
                f"{_nearest(plan, devices)}"
            )
        dp = devices // inner
    else:
        dp = plan.dp
        if dp * inner > devices:
            raise PlanError(
                f"dp {dp} x tp {plan.tp} x pp {plan.pp} = {dp * inner} ranks need more than the system's {devices} "
                f"device{'s' if devices > 1 else ''}: {_nearest(plan, devices)}"
            )
        if dp * inner < devices and not plan.idle_ok and plan.placement is None:
            ranks = dp * inner
            raise PlanError(
                f"dp {dp} x tp {plan.tp} x pp {plan.pp} = {ranks} rank{'s leave' if ranks > 1 else ' leaves'} "
                f"{devices - ranks} of the system's {devices} devices idle: {_nearest(plan, devices)}, or a system of "
                f"{ranks}, or --idle-ok (idle_ok of a Plan) to want it so"
            )
    of_size = plan.dp_style == "dataparallel" or plan.micro_batch_size is not None
    parts = plan.micro_batches or (1 if of_size else recorded_parts)
    sizes = {"dp": dp, "tp": plan.tp, "pp": plan.pp}
    axes = tuple((axis, sizes[axis]) for axis in plan.axis_order if axis in sizes)
    here = server if plan.placement is None else 0
    mesh = arranged(
        rules, JobMesh(axes, devices, batch_size=parts, micro_batches=parts, server=here, order=plan.axis_order)
    )
    if missing := [axis for axis in plan.axis_order if axis not in dict(mesh.axes)]:
        known = ", ".join(axis for axis, _ in mesh.axes)
        raise PlanError(f"axis-order names {missing[0]}, which is no axis of the plan: it has {known}")
    if plan.micro_batch_size is not None:
        batch = _batch(plan, mesh.replicas, default_batch if plan.micro_batches is None else None, parts)
        parts = _parts(plan, batch, plan.micro_batch_size)
    else:
        batch = _batch(plan, mesh.replicas, default_batch, parts)
    if batch % parts:
        raise PlanError(micro_batch_conflict(batch, parts, recorded=plan.micro_batches is None))
    return replace(mesh, batch_size=batch, micro_batches=parts)


def _batch(plan: Plan, dp: int, default: int | None, parts: int) -> int:
    if plan.global_batch_size is not None:
        if plan.global_batch_size % dp:
            lower = plan.global_batch_size // dp * dp
            near = " or ".join(str(b) for b in (lower, lower + dp) if b)
            raise PlanError(
                f"global batch size {plan.global_batch_size} does not divide by dp {dp}: nearest that do are {near}"
            )
        batch = plan.global_batch_size // dp
        if plan.batch_size is not None and plan.batch_size != batch:
            raise PlanError(
                f"batch size {plan.batch_size} and global batch size {plan.global_batch_size} contradict each other: "
                f"with dp {dp} they must be {plan.batch_size} and {plan.batch_size * dp}; give only one of them"
            )
        return batch
    if plan.batch_size is not None:
        return plan.batch_size
    return default if default is not None else parts * (plan.micro_batch_size or 1)


def _parts(plan: Plan, batch: int, size: int) -> int:
    """How many micro-batches of a size a replica's batch is."""
    if batch % size:
        raise PlanError(micro_batch_size_conflict(batch, size))
    if plan.micro_batches not in (None, batch // size):
        raise PlanError(
            f"micro-batches {plan.micro_batches} and micro-batch-size {size} contradict each other: the replica's "
            f"batch of {batch} is {batch // size} of that size; give only one of them"
        )
    return batch // size


def _nearest(plan: Plan, devices: int) -> str:
    """The nearest meshes that fill the devices, as options to type."""
    found = []
    for tp in divisors(devices):
        for pp in divisors(devices // tp):
            dp = devices // (tp * pp)
            asked = plan.dp or max(devices // plan.replica_ranks, 1)
            distance = sum(abs(log2(a) - log2(b)) for a, b in ((tp, plan.tp), (pp, plan.pp), (dp, asked)))
            found.append((distance, tp, pp, dp))
    options = [f"--dp {dp} --tp {tp} --pp {pp}" for _, tp, pp, dp in sorted(found)[:3]]
    return f"nearest that work on {devices} device{'s' if devices > 1 else ''}: {', or '.join(options)}"


def rules_of(plan: Plan, named: bool) -> list[Rule]:
    """The rules that a plan asks for, in order.

    Args:
        plan: what was asked.
        named: whether the workload is a model by name, whose vocabulary is divided too.

    Raises:
        InputError: a rule does not exist, or none takes an option that is given.
    """
    if plan.tp_plan is not None:
        from triosim.partition.rules.by_module import ByModule

        rules: list[Rule] = [ByModule(plan.tp_plan)]
    else:
        rules = [RULES.get(plan.tp_style)()]
        if named and plan.tp_style == "megatron":
            rules.append(RULES.get("vocabulary")())
    rules.append(_buckets(plan))
    if plan.zero != 0:
        from triosim.partition.rules.zero import Zero

        rules.append(Zero(plan.zero, plan.stack is not None and plan.stack.whole_parameters))
    if plan.dp_style == "dataparallel":
        from triosim.partition.rules.dataparallel import DataParallel

        rules.append(DataParallel())
    if plan.offload:
        from triosim.partition.rules.offload import Offload

        rules.append(Offload(plan.offload))
    asked = {name: RULES.chosen(name) for name in plan.parallelism}
    given, taken = plan.parallelism_options, {name: options_of(rule) for name, rule in asked.items()}
    for option in given:
        if not any(names is None or option.replace("-", "_") in names for names in taken.values()):
            raise PlanError(f"parallelism option {quoted(option)} {_taken_by(option, taken)}")
    optimizer = plan.optimizer.partition(",")[0].strip()
    for name, rule in asked.items():
        if rule.optimizers and optimizer and optimizer not in rule.optimizers:
            raise PlanError(
                f"{name}: what it exchanges are moments of {' or '.join(rule.optimizers)}, not of {optimizer}: leave "
                "one out"
            )
        names = taken[name]
        own = {key: value for key, value in given.items() if names is None or key.replace("-", "_") in names}
        of_stack = name == "experts" and plan.stack is not None and plan.stack.own_tokens and "sequence" in asked
        if of_stack and not {"own_tokens", "own-tokens"} & own.keys():
            own = {**own, "own_tokens": True}
        if name == "context" and plan.stack is not None and not {"cp_merges", "cp-merges"} & own.keys():
            own = {**own, "cp_merges": plan.stack.context_merges}
        rules.append(configured(rule, own, f"parallelism {name}"))
    return rules


def without_replica_rules(plan: Plan) -> Plan:
    """A plan without those of its named rules that only say what replicas exchange: what a replica runs is the same."""
    asked = {name: RULES.chosen(name) for name in plan.parallelism}
    left_out = {
        name for name, rule in asked.items()
        if (rule.place, rule.suited, rule.completed) == (Rule.place, Rule.suited, Rule.completed)
    }  # fmt: skip
    if not left_out:
        return plan
    theirs = {name.replace("_", "-") for rule in left_out for name in options_of(asked[rule]) or ()}
    options = {name: value for name, value in plan.parallelism_options.items() if name.replace("_", "-") not in theirs}
    rules = tuple(name for name in plan.parallelism if name not in left_out)
    return plan.replaced(parallelism=rules, parallelism_options=options)


def rules_for(workload: Trace, plan: Plan, named: bool) -> list[Rule]:
    """The rules that a plan asks for, and those that its workload then needs.

    Args:
        workload: what is divided.
        plan, named: as of :func:`rules_of`.

    Raises:
        InputError: as of :func:`rules_of`.
    """
    rules = rules_of(plan, named)
    if plan.tp > 1 and key_head_copies(workload, plan.tp) > 1:
        from triosim.partition.rules.copied_heads import copied_heads

        rules += copied_heads(workload, plan)
    return rules


_ASKED_FOR_BY = {"experts": "ep", "context": "cp", "sequence": "sequence-parallel"}
"""Rules that have an option of their own."""
_OF_FIELDS = {"ddp", "by-module", "zero", "offload", "dataparallel", "megatron", "gather", "vocabulary", "copied-heads"}
"""Rules that other fields of a plan ask for."""


def _taken_by(option: str, taken: Mapping[str, Collection[str] | None]) -> str:
    """What is wrong with an option that none of a plan's rules takes; which of all would."""
    named = [name for name in RULES if name not in _OF_FIELDS and name not in taken]
    holders = [name for name in named if option.replace("-", "_") in (options_of(RULES.get(name)) or ())]
    if holders:
        cure = [_ASKED_FOR_BY.get(name, f"parallelism {name}") for name in holders]
        return f"is of {' or '.join(holders)}, which the plan does not have: give {' or '.join(cure)} as well"
    known = sorted(name.replace("_", "-") for names in taken.values() for name in names or ())
    those = f"those are {', '.join(known)}" if known else "they take none"
    return f"is none of {', '.join(taken) or 'any rule'}: {those}"


def _buckets(plan: Plan) -> Ddp:
    """The buckets of gradients: of a size that is asked for, or as the stack has them."""
    stack = plan.stack
    if stack is None or plan.given & {"bucket_bytes", "first_bucket_bytes"}:
        return Ddp(plan.first_bucket_bytes, plan.bucket_bytes)
    return Ddp(
        plan.first_bucket_bytes, plan.bucket_bytes, stack.bucket_parameters, stack.bucket_parameters_per_replica,
        stack.later_buckets,
    )  # fmt: skip


def arranged(rules: Sequence[Rule], mesh: M) -> M:
    """The mesh with all axes that the rules need."""
    for rule in rules:
        more = rule.arranged(mesh)
        checked_mesh(rule, more, mesh)
        mesh = more
    return mesh


def suited(rules: Sequence[Rule], trace: Trace, mesh: Mesh) -> Trace:
    """The workload as all rules need it."""
    for rule in rules:
        trace = rule.suited(trace, mesh)
    return trace


def completed(rules: Sequence[Rule], step: Step, mesh: Mesh) -> Step:
    """The divided step with what all rules change in it."""
    for rule in rules:
        step = checked_step(rule, rule.completed(step, mesh), step)
    return step


def replication(rules: Sequence[Rule], mesh: Mesh) -> Replication:
    """What the rules place among the replicas.

    With a pipeline gradients in shards wait for the last micro-batch: ``torch.distributed.pipelining`` turns the
    reductions of every backward off and runs them when all are done (``stage.py``, ``perform_reduce_grad``).
    """
    placed = Replication()
    for rule in rules:
        placed = checked_replication(rule, rule.replicate(mesh, placed), mesh)
    return replace(placed, waits=True) if placed.weights and mesh.size("pp") > 1 else placed
