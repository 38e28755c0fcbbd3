"""What a framework is told of a plan, and the sentence where it has no words for a part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, unknown
from triosim.plan import Plan

FRAMEWORKS = ("torchtitan", "megatron")
"""Those that a plan can be written for, each a file beside this one."""

CHUNKS = "chunks"
ASYNC_TP = "async-tp"
"""Rule of tensor parallelism whose collectives run beside products."""

HYBRID = "hsdp"
"""Rule of groups of replicas that have all shards."""

EVERYWHERE = (
    "dp", "tp", "pp", "batch_size", "global_batch_size", "sequence_length", "micro_batches", "micro_batch_size",
    "schedule", "schedule_options", "zero", "parallelism", "parallelism_options", "recompute",
)  # fmt: skip
"""Fields of a plan that each framework reads."""
NO_MATTER = ("training", "stack", "iterations", "idle_ok")
"""Fields of a plan that change nothing of how a framework is set up."""


@dataclass(frozen=True)
class ConfiguredJob:
    """A plan with what a framework has to know beside it.

    Attributes:
        plan: what is run; ``dp``, the batch and the micro-batches are given.
        workload: the model's name.
        devices, servers: of the machine.
        blocks: repeated blocks of the model, 0 where none are known.
        sequence: tokens per sample, None for a model without.
        precision: of the products: ``"float32"``, ``"bfloat16"`` or ``"float16"``.
        sizes: fields of the model's configuration, nothing where it has none.
        family: of the model, ``""`` where it is not known.
    """

    plan: Plan
    workload: str
    devices: int
    servers: int
    blocks: int
    sequence: int | None
    precision: str
    sizes: Mapping[str, Any]
    family: str

    @property
    def dp(self) -> int:
        """Ranks of the data axis, those of ``cp`` and ``ep`` among them."""
        return self.plan.dp or self.devices // self.plan.replica_ranks

    def degree(self, axis: str) -> int:
        """Ranks of ``cp`` or ``ep``."""
        return int(self.plan.parallelism_options.get(axis, 1))

    @property
    def experts_tp(self) -> int:
        """Ranks that divide each expert."""
        return self.degree("etp") if "etp" in self.plan.parallelism_options else self.plan.tp

    @property
    def cp_style(self) -> str:
        """How attention gets what other ranks have."""
        options = self.plan.parallelism_options
        return str(options.get("cp-style", options.get("cp_style", "gather")))

    def overlaps_tp(self, framework: str, style: str) -> bool:
        """Whether collectives of tensor parallelism run beside products.

        Args:
            framework: its name.
            style: in which way it does so.

        Raises:
            InputError: the plan has them in another way.
        """
        if ASYNC_TP not in self.plan.parallelism:
            return False
        options = self.plan.parallelism_options
        asked = str(options.get("overlap-style", options.get("overlap_style", "torch")))
        if asked != style:
            raise cannot(framework, f"async-tp as {asked} has it", f"give --parallelism-option overlap-style={style}")
        return True

    @property
    def groups(self) -> int:
        """Groups of replicas that have all shards."""
        options = self.plan.parallelism_options
        usual = 2 if HYBRID in self.plan.parallelism else 1
        return int(options.get("dp-replicate", options.get("dp_replicate", usual)))

    @property
    def replicas(self) -> int:
        """Those that have samples of their own."""
        return self.dp // self.degree("cp")

    @property
    def global_batch(self) -> int:
        """Samples of an iteration."""
        return self.plan.global_batch_size or (self.plan.batch_size or 1) * self.dp

    @property
    def micro_batch(self) -> int:
        """Samples that go through the model at once."""
        return self.plan.micro_batch_size or self.global_batch // self.replicas // (self.plan.micro_batches or 1)

    @property
    def pieces(self) -> int:
        """Micro-batches of a replica."""
        return self.global_batch // self.replicas // self.micro_batch

    @property
    def chunks(self) -> int:
        """Parts of the model that each stage has."""
        return int(self.plan.schedule_options.get(CHUNKS, 2)) if self.plan.schedule == "interleaved-1f1b" else 1

    @property
    def layers_of_part(self) -> int:
        """Blocks of each part of each stage.

        Raises:
            InputError: they are not equally many.
        """
        parts = self.plan.pp * self.chunks
        if not self.blocks or self.blocks % parts:
            raise InputError(f"{self.blocks} blocks are not divided equally among {parts} parts of the pipeline")
        return self.blocks // parts

    def check(self, framework: str, rules: Iterable[str], fields: Iterable[str] = ()) -> None:
        """Refuse what no configuration of a framework says.

        Args:
            framework: its name.
            rules: of parallelism that it has.
            fields: of a plan that it reads beside those that every framework does.

        Raises:
            InputError: the plan asks for something else.
        """
        plain, read = Plan(), (*EVERYWHERE, *NO_MATTER, *fields)
        for name in Plan.names():
            if name not in read and getattr(self.plan, name) != getattr(plain, name):
                raise cannot(framework, f"{name.replace('_', '-')} {getattr(self.plan, name)}", "leave it out")
        for rule in self.plan.parallelism:
            if rule not in rules:
                raise cannot(framework, f"the rule of parallelism {rule}", "leave it out")


def cannot(framework: str, what: str, suggestion: str) -> InputError:
    """The sentence that a framework has no words for a part of a plan."""
    return InputError(f"{framework} cannot say {what}: {suggestion}")


def configuration(framework: str, job: ConfiguredJob) -> str:
    """A plan as a framework's own configuration.

    Args:
        framework: one of :data:`FRAMEWORKS`.
        job: the plan.

    Raises:
        InputError: there is no such framework, or it cannot say the plan.
    """
    if framework not in FRAMEWORKS:
        raise unknown("framework", framework, FRAMEWORKS)
    write: Callable[[ConfiguredJob], str] = import_module(f"triosim.interop.frameworks.{framework}").write
    return write(job)
