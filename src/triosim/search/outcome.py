"""What one plan of a sweep gave: its figures, or the sentence why there are none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any

from triosim.core.dataclass import dataclass
from triosim.plan import RunPlan
from triosim.prediction.result import Breakdown, Result

_ENERGY = ("energy_j", "tokens_per_j")
"""Figures that are written where they are known."""


@dataclass(frozen=True)
class Figures:
    """What plans are compared by.

    Attributes:
        sizes: every axis of the mesh, ranks, batch and micro-batches, as they were run.
        iteration_time_s: seconds per iteration.
        samples_per_s, tokens_per_s: of the global batch; None where not known.
        mfu: model FLOP utilization, None where not known.
        compute_s, exposed_communication_s, host_s, idle_s: mean over devices; they add up to the iteration time.
        binds: the largest of these four; communication names the axis and the kind that take most of it.
        reserved_bytes, capacity_bytes: memory of the fullest device, and what it has (None where not known).
        context_bytes: what the device's context takes beside that.
        fits: whether that is enough, None where not known.
        warnings: what the user should know, one sentence each.
        energy_j: joules of an iteration, of all devices, links and hosts; None where nobody asks (a sweep of clocks or
            power caps does) or a device's power is not known.
        tokens_per_j: of the global batch; None where either is not known.
        way: ``"simulated"`` as a single prediction is, ``"outlined"`` (:mod:`triosim.search.outline`) or
            ``"evaluated"`` (:mod:`triosim.search.evaluate`).
    """

    sizes: dict[str, int]
    iteration_time_s: float
    samples_per_s: float | None
    tokens_per_s: float | None
    mfu: float | None
    compute_s: float
    exposed_communication_s: float
    host_s: float
    idle_s: float
    binds: str
    reserved_bytes: int
    context_bytes: int
    capacity_bytes: int | None
    fits: bool | None
    warnings: tuple[str, ...] = ()
    way: str = "simulated"
    energy_j: float | None = None
    tokens_per_j: float | None = None

    @property
    def needed_bytes(self) -> int:
        """What the plan needs of the fullest device."""
        return self.reserved_bytes + self.context_bytes


@dataclass(frozen=True)
class PlanOutcome:
    """What one plan gave.

    Attributes:
        number: its place among the plans, from 0.
        asked: the fields of the plan that the sweep gave, as it gave them.
        figures: what it gave, None where the plan cannot be formed.
        why: the sentence why it cannot, ``""`` where it can.
        result: everything, as :meth:`triosim.prediction.result.Result.to_dict` has it; None unless ``detail="all"``.
    """

    number: int
    asked: dict[str, Any]
    figures: Figures | None
    why: str = ""
    result: dict[str, Any] | None = None

    @property
    def fits(self) -> bool:
        """Whether the plan can be formed and is not known to be too large for memory."""
        return self.figures is not None and self.figures.fits is not False

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        figures = asdict(self.figures) if self.figures else None
        for name in _ENERGY:
            if figures is not None and figures[name] is None:
                del figures[name]
        plain = {"number": self.number, "asked": self.asked, "why": self.why, "figures": figures}
        return plain if self.result is None else {**plain, "result": self.result}

    @staticmethod
    def from_dict(plain: dict[str, Any]) -> PlanOutcome:
        """What :meth:`to_dict` made, as an outcome again.

        Raises:
            KeyError, TypeError: it did not make that.
        """
        found = plain["figures"]
        figures = None
        if found is not None:
            named = {
                one.name: found[one.name] for one in fields(Figures)
                if one.name not in ("way", *_ENERGY) or one.name in found
            }  # fmt: skip
            figures = Figures(**{**named, "warnings": tuple(named["warnings"])})
        return PlanOutcome(plain["number"], plain["asked"], figures, plain["why"], plain.get("result"))


def figures(result: Result, with_energy: bool = False) -> Figures:
    """What plans are compared by, of one result; energy has to be worked out, where it is wanted."""
    parts, tokens = result.breakdown_s, result.throughput.tokens_per_s
    used = result.energy if with_energy else None
    energy_j = None if used is None else used.node_j
    return Figures(
        sizes=sizes_of(result.plan),
        iteration_time_s=result.iteration_time_s,
        samples_per_s=result.throughput.samples_per_s,
        tokens_per_s=tokens,
        mfu=result.efficiency.mfu,
        compute_s=parts.compute,
        exposed_communication_s=parts.exposed_communication,
        host_s=parts.host,
        idle_s=parts.idle,
        binds=binding(parts, lambda: _most(result)),
        reserved_bytes=result.memory.reserved_bytes,
        context_bytes=result.memory.context_bytes,
        capacity_bytes=result.memory.capacity_bytes,
        fits=result.memory.fits,
        warnings=result.warnings,
        energy_j=energy_j,
        tokens_per_j=tokens * result.iteration_time_s / energy_j if tokens is not None and energy_j else None,
    )


def sizes_of(run: RunPlan) -> dict[str, int]:
    """Axes, ranks and batch of a plan as it was run."""
    return sizes_in(run.asdict())


def sizes_in(known: Mapping[str, Any]) -> dict[str, int]:
    """Axes, ranks and batch among the fields of a plan as it was run."""
    axes = [name for name, size in known.items() if name in known["axis_order"] and isinstance(size, int)]
    more = ("ranks", "batch_size", "global_batch_size", "micro_batches", "micro_batch_size")
    return {name: known[name] for name in (*axes, *more)}


def binding(parts: Breakdown, talk: Callable[[], str]) -> str:
    """The part that takes most of an iteration; ``talk`` says what takes most of communication."""
    found = {
        "compute": parts.compute, "communication": parts.exposed_communication, "host": parts.host, "idle": parts.idle,
    }  # fmt: skip
    largest = max(found, key=found.__getitem__)
    most = talk() if largest == "communication" else ""
    return f"{largest} ({most})" if most else largest


def _most(result: Result) -> str:
    """The axis and the kind of collective that take most time."""
    if not result.collectives:
        return ""
    most = max(result.collectives, key=lambda row: row.seconds)
    return f"{most.axis} {most.kind.replace('_', '-')}"
