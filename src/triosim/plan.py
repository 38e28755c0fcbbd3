"""The Plan: what is run, validated; how it is predicted is said by :class:`~triosim.fidelity.Fidelity`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, PlanError, quoted
from triosim.core.validated_fields import FrozenDict, ValidatedFields, ValueRange, asked
from triosim.fidelity import NETWORK, PREDICTION
from triosim.stacks import ASSUMED, CUTS, Stack

AXES = ("pp", "dp", "tp")
"""Axes of the mesh in their default order, outermost first: those that talk most are next to each other."""

MOST = 10**12
"""More of anything that a plan counts is a slip."""

WORKLOAD, DIVISION, BATCH, MEMORY = "Workload", "How it is divided", "Batch", "Memory"
"""Groups of options as help lists them."""

Count = Annotated[int, ValueRange(1, MOST)]
Options = Mapping[str, str | bool | int | float]
ModuleStyle = Literal["colwise", "rowwise", "gather", "vocab", "replicate"]
"""How tensor parallelism divides a module."""
PLACES = "host, nvme, pool or device:N"


@dataclass(frozen=True, init=False)
class Plan(ValidatedFields):
    """How a workload is run.

    Sizes of the mesh axes, the batch, the schedule and so on; every field has the meaning of the command-line option
    of the same name.  Unset fields (None) are filled in from the workload or the system.  ``cp``, ``cp_style``, ``ep``,
    ``etp`` and ``sequence_parallel`` may be given too (:class:`NamedRules`).

    Attributes:
        dp, tp, pp: ranks along the data, tensor and pipeline axes; ``dp`` unset fills the devices.
        idle_ok: whether devices of the system may be left without a rank; otherwise a plan that leaves some is refused,
            unless ``placement`` says which devices it wants.
        axis_order: the axes of the mesh, outermost first: ranks along the last are neighbours in the machine.  ``cp``,
            which takes ranks of ``dp``, may be among them; otherwise it lies inside of ``dp``.
        batch_size: samples per data-parallel replica and iteration (default: those of the recorded step, all
            micro-batches together; for a model by name, ``micro_batches``).
        global_batch_size: ``batch_size * dp``, given instead of it.
        sequence_length: tokens per sample (default: the workload's).
        micro_batches: parts of a replica's batch; gradient accumulation when ``pp`` is 1.  Unset takes as many as the
            recorded step accumulates the gradients of, 1 where it does not.
        micro_batch_size: samples that go through the model at once, given instead of ``micro_batches``.
        iterations: iterations played one after the other.
        schedule: pipeline schedule by name, as ``"1f1b"`` or ``"gpipe"`` (:mod:`triosim.schedule.schedules`).
        schedule_options: what that schedule takes, by name.
        stages: where pipeline stages begin (all but the first), as module paths; or one of
            :data:`triosim.stacks.CUTS`, ``("even",)``; unset does as the stack does, and balances time without one.
        overlap: whether communication may run while the device computes.
        dp_style: ``"ddp"``, or ``"dataparallel"`` for torch's single-process ``DataParallel``.
        zero: what data-parallel ranks divide among them: 1 optimizer states, 2 gradients too, 3 parameters too
            (FSDP); 0 nothing.
        bucket_bytes, first_bucket_bytes: capacity of DDP's gradient buckets.
        tp_style: ``"megatron"`` (column then row parallel) or ``"gather"`` (each layer's output gathered).
        tp_plan: module path pattern -> ``"colwise"``, ``"rowwise"``, ``"gather"``, ``"vocab"`` or ``"replicate"``.
        parallelism: more rules of parallelism, by name (:mod:`triosim.partition.rules`) as ``"sequence"``, or as the
            path of a file of one's own that ends in ``.py``.
        parallelism_options: what those rules take, by name.
        recompute: ``"full"`` runs each repeated block's forward again before its backward instead of keeping its
            activations, ``"selective"`` the attention cores only, ``"pointwise"`` all but products, attention and
            routing, ``"operators"`` that and every second product, ``"projections"`` all but queries, keys and values;
            ``"full/2"`` every second block; parts of blocks by name joined by ``+``
            (:mod:`triosim.transform.recompute`); ``"none"`` keeps them.
        quantize: products of the repeated blocks in 8 or 4 bits, by the recipe of that name
            (:mod:`triosim.transform.quantization`); ``"none"`` leaves them as they are.
        quantize_attention: whether attention of the blocks multiplies in 8 bits too.
        layout: how images of convolutions lie, ``"channels_last"`` or ``"contiguous"``
            (:mod:`triosim.transform.layout`); ``"recorded"`` leaves them as they are.
        optimizer: another optimizer than the step's own (:mod:`triosim.transform.optimizers`), perhaps with options, as
            ``"sgd,momentum=off"``; ``""`` leaves the step as it is.
        offload: what is in host memory until it is needed: ``"optimizer"`` states, which the host's processor updates,
            ``"activations"`` and ``"parameters"`` of the repeated blocks, ``"activations:N"`` of the first N of them;
            with ``=nvme`` on the server's drives.
        places: value category -> where its values start: ``"host"``, ``"nvme"``, ``"pool"`` or ``"device:N"``.
        placement: device of each rank; unset puts rank i on device i.
        training: whether gradients and the optimizer are part of the step.
        stack: what the framework does besides, see :mod:`triosim.stacks`; unset assumes plain PyTorch.
    """

    error: ClassVar[type[InputError]] = PlanError
    noun: ClassVar[str] = "a plan"

    dp: Count | None = asked(None, DIVISION, "N", "Data-parallel replicas (default: fills the devices).")
    tp: Count = asked(1, DIVISION, "N", "Tensor-parallel ranks (default 1).")
    pp: Count = asked(1, DIVISION, "N", "Pipeline stages (default 1).")
    axis_order: tuple[str, ...] = asked(
        AXES, DIVISION, "LIST",
        "Axes of the mesh, outermost first; the last has neighbours in the machine (default pp,dp,tp; cp inside dp).",
    )  # fmt: skip
    idle_ok: bool = asked(False, DIVISION, None, "Leave devices without a rank if the plan needs fewer.")
    batch_size: Count | None = asked(
        None, BATCH, "N", "Samples per replica and iteration (default: the trace's; of a model, its micro-batches)."
    )
    global_batch_size: Count | None = asked(None, BATCH, "N", "Samples over all replicas, instead of --batch-size.")
    sequence_length: Count | None = asked(
        None, WORKLOAD, "N", "Tokens per sample (default: the workload's).", option="seq-len"
    )
    micro_batches: Count | None = asked(
        None, BATCH, "N", "Parts of a replica's batch (default: those of the recorded step, else 1)."
    )
    micro_batch_size: Count | None = asked(
        None, BATCH, "N", "Samples that go through the model at once, instead of --micro-batches."
    )
    iterations: Count = asked(1, BATCH, "N", "Iterations to play (default 1).")
    schedule: str = asked(
        "1f1b", DIVISION, "NAME|FILE.py",
        "Of a pipeline: 1f1b, gpipe, interleaved-1f1b, looped-bfs, zb-h1, zb-h2, zb-v, zb-auto, dualpipe-v or one of "
        "yours (default 1f1b).",
        offers="triosim.schedule.actions:SCHEDULES", own=True,
    )  # fmt: skip
    schedule_options: Options = asked(
        FrozenDict(), DIVISION, "NAME=VALUE", "Of the schedule, as chunks=4 of interleaved-1f1b; repeatable.",
        option="schedule-option", repeats=True, example="chunks=4",
    )  # fmt: skip
    stages: tuple[str, ...] | None = asked(
        None, DIVISION, "LIST",
        "Modules at which stages after the first begin, comma separated; or balanced (by time), even (equally many "
        "layers) or even-with-ends (embedding and head count as layers) (default: the stack's, else balanced).",
    )  # fmt: skip
    overlap: bool = asked(
        True, NETWORK, "on|off", "on: communicate while computing; off: every transfer blocks (default on)."
    )
    dp_style: Literal["ddp", "dataparallel"] = asked(
        "ddp", DIVISION, "STYLE", "ddp, or dataparallel for torch's DataParallel."
    )
    zero: Literal[0, 1, 2, 3] = asked(
        0, DIVISION, "0..3",
        "What data-parallel ranks divide: 1 optimizer states, 2 gradients too, 3 parameters too, as FSDP "
        "(default 0, nothing).",
    )  # fmt: skip
    bucket_bytes: Count = asked(
        26_214_400, DIVISION, "SIZE", "Capacity of DDP's gradient buckets (default the stack's, else 25MiB).",
        option="bucket-size", text=True,
    )  # fmt: skip
    first_bucket_bytes: Count = 1_048_576
    tp_style: Literal["megatron", "gather"] = asked(
        "megatron", DIVISION, "STYLE", "megatron (column, then row) or gather (every layer) (default megatron)."
    )
    tp_plan: Mapping[str, ModuleStyle] | None = asked(
        None, DIVISION, "FILE", "TOML, YAML or JSON: module pattern -> colwise, rowwise, gather, vocab or replicate.",
        text=True, offers="files",
    )  # fmt: skip
    parallelism: tuple[str, ...] = asked(
        (), DIVISION, "NAME|FILE.py", "Another rule of parallelism, also one of yours; repeatable.", repeats=True,
        offers="files",
    )  # fmt: skip
    parallelism_options: Options = asked(
        FrozenDict(), DIVISION, "NAME=VALUE", "Of such a rule, as regather=off of sequence; repeatable.",
        option="parallelism-option", repeats=True, example="regather=off",
    )  # fmt: skip
    recompute: str = asked(
        "none", MEMORY, "WHAT",
        "Run again instead of keeping activations: full (repeated blocks; full/2 every second), selective (attention), "
        "pointwise (norms, activations), operators (those and every second product), projections (all but q, k, v), "
        "parts of blocks (layernorm+moe_act) or none.",
        words=("none", "full", "selective", "pointwise", "operators", "projections"),
    )  # fmt: skip
    quantize: Literal["none", "fp8-delayed", "fp8-current", "fp8-block", "fp8-row", "mxfp8", "nvfp4"] = asked(
        "none", WORKLOAD, "RECIPE",
        "Multiply in 8 or 4 bits in the blocks: fp8-delayed, fp8-current, fp8-block, fp8-row, mxfp8, nvfp4 or none.",
    )  # fmt: skip
    quantize_attention: bool = asked(
        False, WORKLOAD, None, "Beside --quantize, compute attention in 8 bits too (fp8_dot_product_attention).",
        option="quantize-attention",
    )  # fmt: skip
    layout: Literal["recorded", "contiguous", "channels_last"] = asked(
        "recorded", WORKLOAD, "LAYOUT",
        "Of images in memory: contiguous (channel by channel), channels_last, or as recorded; models by name are "
        "contiguous (default recorded).",
    )  # fmt: skip
    optimizer: str = asked(
        "", WORKLOAD, "NAME",
        "Instead of the step's own: adafactor, adagrad, adam, adam8bit, adamw, lion, muon or sgd, with options as "
        "sgd,momentum=off.",
    )  # fmt: skip
    offload: tuple[str, ...] = asked(
        (), MEMORY, "WHAT", "Keep in host memory: optimizer, activations or parameters (of the blocks), activations:N "
        "of the first N; with =nvme on the server's drives; repeatable.", repeats=True,
    )  # fmt: skip
    places: Mapping[str, str] = asked(
        FrozenDict(), MEMORY, "WHAT=WHERE",
        "Where values start: CATEGORY=host|nvme|pool|device:N, as weight=host; repeatable.", option="place",
        repeats=True,
    )  # fmt: skip
    placement: tuple[Annotated[int, ValueRange(0)], ...] | None = asked(
        None, DIVISION, "LIST",
        "Devices of the ranks in order, as 0,2,1,3 or 0-7,16-23; or grid-cycle: along a ring through the --shape of a "
        "mesh.",
    )  # fmt: skip
    training: bool = True
    stack: Stack | None = asked(
        None, PREDICTION, "NAME|FILE.toml",
        "What the framework does around a model by name: megatron-core, llm-foundry, ... (docs/stacks.md; default: "
        "plain PyTorch).",
        text=True, offers="stacks",
    )  # fmt: skip

    @property
    def replica_ranks(self) -> int:
        """Ranks that share the samples of one replica."""
        return self.tp * self.pp

    @property
    def cuts(self) -> str | tuple[str, ...]:
        """How stages are cut: one of :data:`triosim.stacks.CUTS`, or where those after the first begin."""
        given = self.stages or ((self.stack or ASSUMED).stages,)
        return given[0] if len(given) == 1 and given[0] in CUTS else given

    def __init__(self, **values: Any) -> None:
        """The fields by name, and those of :class:`NamedRules`, which become rules and their options."""
        named = {name: values.pop(name) for name in NamedRules.names() if name in values}
        if named:
            rules = NamedRules(**named)
            values["parallelism"] = rules.among(values.get("parallelism", ()))
            values["parallelism_options"] = {**rules.options, **values.get("parallelism_options", {})}
        super().__init__(**values)

    def check(self) -> None:
        """Raise where fields do not go together.

        Raises:
            PlanError: in one sentence.
        """
        self._places_exist()
        if len(set(self.axis_order)) < len(self.axis_order) or not set(AXES) <= set(self.axis_order):
            asked = quoted(",".join(self.axis_order))
            raise PlanError(f"axis-order must name each of {', '.join(AXES)} once, outermost first, got {asked}")
        if self.dp_style == "dataparallel" and (self.tp > 1 or self.pp > 1):
            raise PlanError(
                f"dp-style dataparallel is one process over whole replicas and cannot be combined with tp {self.tp} "
                f"and pp {self.pp}: use dp-style ddp, or tp 1 and pp 1"
            )
        if self.dp_style == "dataparallel" and (self.micro_batches or 1) > 1:
            raise PlanError("dp-style dataparallel runs the batch in one piece: use micro-batches 1, or dp-style ddp")
        if self.zero >= 2 and "weight" in self.places:
            raise PlanError(
                f"zero {self.zero} gathers parameters from their shards and cannot be combined with weights placed "
                f"on {self.places['weight']}: use zero 1 or 0, or leave weights where they are"
            )
        for name, category in (("optimizer", "optimizer_state"), ("parameters", "weight")):
            if any(one.partition("=")[0] == name for one in self.offload) and category in self.places:
                raise PlanError(f"offload {name} and a place for {category} both say where they are: give only one")
        if not isinstance(self.cuts, str) and (len(self.cuts) + 1) % self.pp:
            raise PlanError(
                f"stages names {len(self.cuts)} cut(s) but pp {self.pp} needs {self.pp - 1}: name the module at "
                "which each stage but the first begins"
            )
        if self.batch_size is not None and self.micro_batches and self.batch_size % self.micro_batches:
            raise PlanError(micro_batch_conflict(self.batch_size, self.micro_batches))
        if self.batch_size is not None and self.micro_batch_size and self.batch_size % self.micro_batch_size:
            raise PlanError(micro_batch_size_conflict(self.batch_size, self.micro_batch_size))

    def _places_exist(self) -> None:
        categories = ("weight", "buffer", "input", "label", "optimizer_state")
        for category, place in self.places.items():
            if category not in categories:
                raise PlanError(
                    f"{quoted(category)} cannot be placed; what can start elsewhere is {', '.join(categories)}"
                )
            number = place.removeprefix("device:")
            if place not in ("host", "nvme", "pool") and not (place.startswith("device:") and number.isdigit()):
                raise PlanError(f"place {category}={quoted(place)} is no place; use {PLACES}")

    @classmethod
    def unknown(cls, name: str, known: Iterable[str]) -> InputError:
        from triosim.fidelity import Fidelity

        if name in Fidelity.names():
            return PlanError(
                f"{name.replace('_', '-')} says how a plan is predicted, not what is run: give it to "
                f"Fidelity({name}=...), which triosim.simulate takes beside the plan"
            )
        return super().unknown(name, known)


@dataclass(frozen=True, init=False)
class NamedRules(ValidatedFields):
    """Rules of parallelism that are asked for so often that the command line has options for them beside a plan's.

    In a plan they are :attr:`Plan.parallelism` and :attr:`Plan.parallelism_options`; the fields are those of the rules
    (:mod:`triosim.partition.rules`).

    Attributes:
        sequence_parallel: whether the rule ``sequence`` applies.
        cp, cp_style: of ``context``, which applies where ``cp`` is not 1.
        ep, etp: of ``experts``, which applies where ``ep`` is not 1 or ``etp`` not 0.
    """

    error: ClassVar[type[InputError]] = PlanError
    noun: ClassVar[str] = "a plan"

    sequence_parallel: bool = asked(
        False, DIVISION, None, "Also divide what is between the layers that --tp divides, along the sequence."
    )
    cp: Count = asked(1, DIVISION, "N", "Ranks of the data axis that share each sequence (context parallelism).")
    cp_style: Literal["gather", "ring", "ulysses", "usp"] = asked(
        "gather", DIVISION, "STYLE",
        "How attention gets what other ranks have: gather, ring, ulysses or usp, both of these (default gather).",
    )  # fmt: skip
    ep: Count = asked(1, DIVISION, "N", "Ranks of the data axis that have the experts of each layer among them.")
    etp: Annotated[int, ValueRange(0, MOST)] = asked(
        0, DIVISION, "N",
        "Ranks that divide each expert: --tp, or 1 for whole experts, which --ep then divides over --tp too "
        "(default --tp).",
    )  # fmt: skip

    def check(self) -> None:
        """Refuse what says how something is done that is not asked for.

        Raises:
            PlanError: the option, and the one that it needs.
        """
        if self.cp == 1 and self.cp_style != "gather":
            raise PlanError(f"cp-style {self.cp_style} says how ranks share sequences, and cp is 1: give cp as well")

    def among(self, others: Iterable[str]) -> tuple[str, ...]:
        """Names of all rules in the order in which they are applied, ``others`` with them."""
        last = {"context": self.cp != 1, "experts": self.ep != 1 or self.etp != 0}
        first = ["sequence"] if self.sequence_parallel else []
        return tuple(dict.fromkeys([*first, *others, *(name for name, applies in last.items() if applies)]))

    @property
    def options(self) -> dict[str, str]:
        """What the rules that apply are given, as it is typed."""
        rules = self.among(())
        asked = {"cp": "context", "ep": "experts", "cp_style": "context", "etp": "experts" if self.etp else ""}
        return {name.replace("_", "-"): str(getattr(self, name)) for name, rule in asked.items() if rule in rules}


@dataclass(frozen=True, init=False, kw_only=True)
class RunPlan(Plan):
    """A plan as it was run: every size known.

    Attributes:
        micro_batch_size: samples that go through the model at once.
        ranks: ranks that take part.
        stages: the module at which each stage begins, the first included; None for one stage.
    """

    dp: int
    batch_size: int
    global_batch_size: int
    micro_batches: int
    micro_batch_size: int
    ranks: int

    def check(self) -> None:
        """What was run was checked before."""


def without_effect(plan: Plan) -> list[str]:
    """What a plan asks for that changes nothing, one sentence each."""
    default = type(plan).__dataclass_fields__
    return [
        f"{option} changes nothing {why}"
        for name, option, idle, why in (
            ("schedule", "schedule", plan.pp == 1, "without stages (pp 1)"),
            ("tp_style", "tp-style", plan.tp == 1, "without tensor-parallel ranks (tp 1)"),
            ("bucket_bytes", "bucket-size", plan.zero >= 2, f"where blocks are reduced (zero {plan.zero})"),
            ("bucket_bytes", "bucket-size", not plan.overlap, "where gradients are reduced at once (overlap off)"),
        )
        if idle and getattr(plan, name) != default[name].default
    ]


def divisors(n: int) -> list[int]:
    """Divisors of ``n`` in ascending order."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]


def micro_batch_conflict(batch: int, parts: int, recorded: bool = False) -> str:
    """The sentence that a batch does not divide into micro-batches, with the numbers that do."""
    near = closest(divisors(batch), parts)
    said = " (as recorded)" if recorded else ""
    return (
        f"micro-batches {parts}{said} does not divide the replica's batch size {batch}: nearest that do are "
        f"{' or '.join(map(str, near))}, or batch size {-(-batch // parts) * parts}"
    )


def micro_batch_size_conflict(batch: int, size: int) -> str:
    """The sentence that a batch is not made of whole micro-batches, with the sizes that it could be made of."""
    near = closest(divisors(batch), size)
    return (
        f"micro-batch-size {size} does not divide the replica's batch size {batch}: nearest that do are "
        f"{' or '.join(map(str, near))}, or batch size {-(-batch // size) * size}"
    )


def closest(values: Iterable[int], to: int, n: int = 2) -> list[int]:
    """The ``n`` values that are closest to one, in ascending order."""
    return sorted(sorted(values, key=lambda v: (abs(v - to), v))[:n])


__all__ = [
    "AXES", "NamedRules", "Plan", "RunPlan", "closest", "divisors", "micro_batch_conflict", "micro_batch_size_conflict",
]  # fmt: skip
