"""The best plans from Python: what ``triosim search`` finds, as plans to simulate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.units import format_bytes, format_time
from triosim.fidelity import Fidelity
from triosim.hardware.system import System
from triosim.plan import Plan
from triosim.prediction.prepare import check_arguments
from triosim.search.branch_and_bound import FoundPlan, Objective, best_plans
from triosim.search.grid import with_fields
from triosim.search.outcome import Figures
from triosim.search.space import PlanSpace
from triosim.trace.tables import Trace

SHOWN = ("tp", "pp", "dp", "cp", "ep", "micro_batch_size")
"""Sizes that a line of a plan says where they are above 1."""


@dataclass(frozen=True)
class RankedPlan:
    """One of the best plans.

    Attributes:
        plan: to be simulated.
        fidelity: how it was predicted.
        devices: that it fills.
        figures: what it takes.
    """

    plan: Plan
    fidelity: Fidelity
    devices: int
    figures: Figures

    def __repr__(self) -> str:
        found = self.figures
        sizes = [f"{name.replace('_', ' ')} {found.sizes[name]}" for name in SHOWN if found.sizes.get(name, 1) > 1]
        plan = self.plan
        words = [*(sizes or ["one device"]), *([plan.schedule] if found.sizes.get("pp", 1) > 1 else [])]
        words += [f"recompute {plan.recompute}"] if plan.recompute != "none" else []
        words += [f"ZeRO {plan.zero}"] if plan.zero else []
        words += ["sequence parallel"] if "sequence" in plan.parallelism else []
        time, size = format_time(found.iteration_time_s), format_bytes(found.needed_bytes)
        return f"{time}, {size}: {', '.join(words)} ({found.binds} binds)"


@dataclass(frozen=True)
class RankedPlans:
    """The best plans of a model on a machine.

    Attributes:
        best: the best first; empty where none fits.
        front: those that no other beats in time, memory and device-seconds, the fastest first; None where it was not
            asked for.
        legal, predicted: how many plans there are, and how many of them were predicted.
        fell_out: why others were not or do not fit: how many, and a sentence.
    """

    best: tuple[RankedPlan, ...]
    front: tuple[RankedPlan, ...] | None
    legal: int
    predicted: int
    fell_out: tuple[tuple[int, str], ...]

    def __repr__(self) -> str:
        lines = [f"{rank:>3}  {one}" for rank, one in enumerate(self.best, 1)] or ["no plan fits"]
        out = sum(count for count, _ in self.fell_out)
        said = f"{self.predicted:,} of {self.legal:,} legal plans were predicted"
        return "\n".join([*lines, f"{said}, {out:,} fell out" if out else said])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "best": [_plain(one) for one in self.best],
            "front": None if self.front is None else [_plain(one) for one in self.front],
            "legal": self.legal, "predicted": self.predicted, "fell_out": [list(one) for one in self.fell_out],
        }  # fmt: skip


def _plain(one: RankedPlan) -> dict[str, Any]:
    given: dict[str, Any] = {name: getattr(one.plan, name) for name in one.plan.given}
    return {"devices": one.devices, "plan": given, "figures": asdict(one.figures)}


def find_plans(
    workload: Trace,
    systems: System | Sequence[System],
    batch_size: int,
    plan: Plan | None = None,
    fidelity: Fidelity | None = None,
    *,
    objective: Objective = "time",
    best: int = 10,
    among: Mapping[str, Sequence[Any]] | None = None,
    front: bool = False,
    memory_bytes: int | None = None,
    workers: int = 1,
    executor: str = "local",
    progress: Callable[[str], None] | None = None,
) -> RankedPlans:
    """The best ways to train a model on a machine, exactly, among all plans that its sizes allow (docs/search.md).

    Args:
        workload: one step on one device (:func:`triosim.model`, :func:`triosim.load`).
        systems: the machine, or machines of several sizes to choose from.
        batch_size: samples per iteration, of all replicas.
        plan: what no plan changes, as ``Plan(optimizer="lion", stack=...)``.
        fidelity: which models predict them.
        objective: ``"time"`` of an iteration, ``"tokens-per-dollar"``, or ``"memory"`` of the fullest device.
        best: plans to find.
        among: only such values of an axis, as ``{"tp": (1, 2, 4), "schedule": ("gpipe",)}``.
        front: also the Pareto front of time, memory and device-seconds.
        memory_bytes: what a plan may need of each device; what the device has if None.
        workers, executor: processes that predict plans, as of :func:`triosim.sweep`.
        progress: told how far it is, in a few words.

    Raises:
        InputError: an argument makes no sense, or no plan is legal.
    """
    machines = [systems] if isinstance(systems, System | str) else list(systems)
    if not machines:
        raise InputError("there is no system to search: give one, or several")
    for system in machines:
        check_arguments(workload, system, plan, fidelity)
    by_size = {system.devices: system.with_memory(memory_bytes) if memory_bytes else system for system in machines}
    if len(by_size) < len(machines):
        raise InputError("two systems have as many devices: give each number of devices once")
    base, fidelity = (plan or Plan()).replaced(global_batch_size=batch_size), fidelity or Fidelity()
    space = PlanSpace.of(workload, list(by_size), batch_size, among or {})
    found = best_plans(
        workload, by_size, space, base, fidelity, objective, best, front, workers, progress, executor=executor
    )

    def ranked(one: FoundPlan) -> RankedPlan:
        return RankedPlan(*with_fields(base, fidelity, one.candidate.asked), one.candidate.devices, one.figures)

    fronts = None if found.front is None else tuple(map(ranked, found.front))
    return RankedPlans(tuple(map(ranked, found.best)), fronts, found.legal, found.predicted, found.fell_out)
