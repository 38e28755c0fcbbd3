"""The Plan: what the user asks for, validated, and the mesh of ranks that it makes on a given number of devices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from triosim.core.errors import InputError, PlanError, quoted
from triosim.stacks import Stack

AXES = ("pp", "dp", "tp")
"""Axes of the mesh in their default order, outermost first: those that talk most are next to each other."""

MOST = 10**12
"""More of anything that a plan counts is a slip."""

Count = Annotated[int, Field(ge=1, le=MOST)]

HOST_MODES = ("recorded", "eager", "large-model", "compiled", "graph", "none")
PLACES = "host, pool or device:N"


class Plan(BaseModel):
    """How a workload is run.

    Sizes of the mesh axes, the batch, the schedule and so on; every field has the meaning of the command-line option
    of the same name.  Unset fields (None) are filled in from the workload or the system.

    Attributes:
        dp, tp, pp: ranks along the data, tensor and pipeline axes; ``dp`` unset fills the devices.
        idle_ok: whether devices of the system may be left without a rank; otherwise a plan that leaves some is refused,
            unless ``placement`` says which devices it wants.
        axis_order: the axes of the mesh, outermost first: ranks along the last are neighbours in the machine.
        batch_size: samples per data-parallel replica and iteration (default: those of the recorded step, all
            micro-batches together; for a model by name, ``micro_batches``).
        global_batch_size: ``batch_size * dp``, given instead of it.
        sequence_length: tokens per sample (default: the workload's).
        micro_batches: parts of a replica's batch; gradient accumulation when ``pp`` is 1.  Unset takes as many as the
            recorded step accumulates the gradients of, 1 where it does not.
        iterations: iterations played one after the other.
        schedule: pipeline schedule by name, as ``"1f1b"`` or ``"gpipe"`` (:mod:`triosim.schedule.schedules`).
        schedule_options: what that schedule takes, by name.
        stages: where pipeline stages begin (all but the first), as module paths; unset balances time.
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
            activations, ``"selective"`` the attention cores only; ``"none"`` keeps them.
        offload: what is in host memory until it is needed: ``"optimizer"`` states, which the host's processor updates,
            ``"activations"`` and ``"parameters"`` of the repeated blocks.
        host: how the cost of launching is taken into account; unset follows the devices that run the job.
        interference: what computes beside a collective takes so many times as long, at least 1; ``"auto"`` is that of
            the device, ``"off"`` is 1.
        composition: file of a residual fitted to measured iterations (:mod:`triosim.composition.residual`), which then
            says what launching costs.
        operator_times: operator model.
        operator_options: what that model takes, by name.
        places: value category -> where its values start: ``"host"``, ``"pool"`` or ``"device:N"``.
        collective_algorithm: algorithm of collectives, ``"auto"`` to choose as NCCL does.
        collective_protocol: protocol of collectives, ``"LL"``, ``"LL128"``, ``"Simple"`` or ``"auto"``.
        placement: device of each rank; unset puts rank i on device i.
        solver: network model, which says how transfers share the network.
        solver_options: what that model takes, by name: ``{"setup": "80us"}``.
        fold: play ranks that nothing tells apart once; the result is the same.
        seed: of the draws that the interval comes from.
        training: whether gradients and the optimizer are part of the step.
        stack: what the framework does besides, see :mod:`triosim.stacks`; unset assumes plain PyTorch.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    dp: Count | None = None
    tp: Count = 1
    pp: Count = 1
    axis_order: tuple[str, ...] = AXES
    idle_ok: bool = False
    batch_size: Count | None = None
    global_batch_size: Count | None = None
    sequence_length: Count | None = None
    micro_batches: Count | None = None
    iterations: Count = 1
    schedule: str = "1f1b"
    schedule_options: dict[str, str | bool | int | float] = Field(default_factory=dict)
    stages: tuple[str, ...] | None = None
    overlap: bool = True
    dp_style: Literal["ddp", "dataparallel"] = "ddp"
    zero: Literal[0, 1, 2, 3] = 0
    bucket_bytes: Count = 26_214_400
    first_bucket_bytes: Count = 1_048_576
    tp_style: Literal["megatron", "gather"] = "megatron"
    tp_plan: dict[str, Literal["colwise", "rowwise", "gather", "vocab", "replicate"]] | None = None
    parallelism: tuple[str, ...] = ()
    parallelism_options: dict[str, str | bool | int | float] = Field(default_factory=dict)
    recompute: Literal["none", "full", "selective"] = "none"
    offload: tuple[Literal["optimizer", "activations", "parameters"], ...] = ()
    host: Literal["recorded", "eager", "large-model", "compiled", "graph", "none"] | None = None
    interference: Annotated[float, Field(ge=1)] | Literal["auto", "off"] = "auto"
    composition: str | None = None
    operator_times: str = "auto"
    operator_options: dict[str, str | bool | int | float] = Field(default_factory=dict)
    places: dict[str, str] = Field(default_factory=dict)
    collective_algorithm: str = "auto"
    collective_protocol: str = "auto"
    placement: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    solver: str = "max-min"
    solver_options: dict[str, str | bool | int | float] = Field(default_factory=dict)
    fold: bool = True
    seed: Annotated[int, Field(ge=0)] = 0
    training: bool = True
    stack: Stack | None = None

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise PlanError(_sentence(error)) from None

    @field_validator("places")
    @classmethod
    def _places_exist(cls, places: dict[str, str]) -> dict[str, str]:
        categories = ("weight", "buffer", "input", "label", "optimizer_state")
        for category, place in places.items():
            if category not in categories:
                raise ValueError(
                    f"{quoted(category)} cannot be placed; what can start elsewhere is {', '.join(categories)}"
                )
            number = place.removeprefix("device:")
            if place not in ("host", "pool") and not (place.startswith("device:") and number.isdigit()):
                raise ValueError(f"{quoted(place)} is no place; use {PLACES}")
        return places

    @field_validator("interference", mode="before")
    @classmethod
    def _slows_down(cls, asked: Any) -> Any:
        number = isinstance(asked, (int, float)) and not isinstance(asked, bool)
        if (number and 1 <= asked < float("inf")) or asked in ("auto", "off"):
            return asked
        raise ValueError(f"interference must be auto, off or a number of at least 1, got {quoted(asked)}")

    @field_validator("axis_order")
    @classmethod
    def _orders_all_axes(cls, order: tuple[str, ...]) -> tuple[str, ...]:
        if sorted(order) != sorted(AXES):
            raise ValueError(
                f"axis-order must name each of {', '.join(AXES)} once, outermost first, got {quoted(','.join(order))}"
            )
        return order

    @property
    def replica_ranks(self) -> int:
        """Ranks that share the samples of one replica."""
        return self.tp * self.pp

    @model_validator(mode="after")
    def _consistent(self) -> Plan:
        if self.dp_style == "dataparallel" and (self.tp > 1 or self.pp > 1):
            raise ValueError(
                f"dp-style dataparallel is one process over whole replicas and cannot be combined with tp {self.tp} "
                f"and pp {self.pp}: use dp-style ddp, or tp 1 and pp 1"
            )
        if self.dp_style == "dataparallel" and (self.micro_batches or 1) > 1:
            raise ValueError("dp-style dataparallel runs the batch in one piece: use micro-batches 1, or dp-style ddp")
        if self.zero and self.dp_style == "dataparallel":
            raise ValueError(
                f"dp-style dataparallel keeps everything whole and cannot be combined with zero {self.zero}: use "
                "dp-style ddp, or zero 0"
            )
        if self.zero >= 2 and "weight" in self.places:
            raise ValueError(
                f"zero {self.zero} gathers parameters from their shards and cannot be combined with weights placed "
                f"on {self.places['weight']}: use zero 1 or 0, or leave weights where they are"
            )
        self._offload_is_possible()
        if self.composition is not None and self.host is not None:
            raise ValueError(f"composition says what launching costs, and so does host {self.host}: give only one")
        if self.stages is not None and (len(self.stages) + 1) % self.pp:
            raise ValueError(
                f"stages names {len(self.stages)} cut(s) but pp {self.pp} needs {self.pp - 1}: name the module at "
                "which each stage but the first begins"
            )
        if self.batch_size is not None and self.micro_batches and self.batch_size % self.micro_batches:
            raise ValueError(micro_batch_conflict(self.batch_size, self.micro_batches))
        return self

    def _offload_is_possible(self) -> None:
        if self.offload and self.dp_style == "dataparallel":
            raise ValueError("dp-style dataparallel keeps everything on its devices: use dp-style ddp, or no offload")
        if "parameters" in self.offload and "optimizer" not in self.offload:
            raise ValueError(
                "offload parameters needs them updated where they are: use offload optimizer as well, or not parameters"
            )
        if "parameters" in self.offload and self.zero >= 2:
            raise ValueError(
                f"offload parameters and zero {self.zero} both say where parameters come from: use zero 1 or 0, or "
                "offload optimizer only"
            )
        for name, category in (("optimizer", "optimizer_state"), ("parameters", "weight")):
            if name in self.offload and category in self.places:
                raise ValueError(f"offload {name} and a place for {category} both say where they are: give only one")

    @property
    def slowdown(self) -> float | None:
        """What ``interference`` asks for, None for that of the device."""
        if isinstance(self.interference, str):
            return {"auto": None, "off": 1.0}[self.interference]
        return self.interference


class RunPlan(Plan):
    """A plan as it was run: every size known, ``host`` the mode that was used.

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


def closest(values: Iterable[int], to: int, n: int = 2) -> list[int]:
    """The ``n`` values that are closest to one, in ascending order."""
    return sorted(sorted(values, key=lambda v: (abs(v - to), v))[:n])


def _sentence(error: ValidationError) -> str:
    """One sentence for the first thing that pydantic found wrong."""
    first = error.errors()[0]
    where = "-".join(p for p in first["loc"] if isinstance(p, str)).replace("_", "-")
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    if first["type"] == "extra_forbidden":
        known = ", ".join(sorted(Plan.model_fields))
        return f"a plan has no field {quoted(first['loc'][0])}; its fields are {known}"
    given = first.get("input")
    if first["type"] in ("greater_than_equal", "int_parsing", "int_type", "int_from_float"):
        least = 0 if where == "seed" else 1
        return f"{where} must be a whole number of at least {least}, got {quoted(given)}"
    if first["type"] in ("less_than_equal", "int_parsing_size"):
        return f"{where} must be at most {MOST:,}, got {quoted(given)}"
    if first["type"] == "literal_error":
        return f"{where} must be {first['ctx']['expected']}, got {quoted(given)}"
    return f"{where}: {first['msg']} (got {quoted(given)})"


__all__ = ["AXES", "HOST_MODES", "InputError", "Plan", "RunPlan", "closest", "divisors", "micro_batch_conflict"]
