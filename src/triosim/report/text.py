"""Wording that the reports share: titles, shortened names, modules folded over repeated layers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from triosim.result import Cause, LayerRow, Memory, Result
from triosim.units import format_bytes

_SIZES = ("dp", "tp", "pp", "cp", "ep")


def title(result: Result) -> str:
    """``"llama3-8b on 4 x H100-SXM5-80GB"``."""
    what = str(result.workload.get("name") or result.workload.get("workload") or "workload")
    where = str(result.system.get("name") or "")
    return f"{what} on {where}" if where else what


def unsure(cause: Cause) -> str:
    """What makes a prediction most unsure: ``"80 % of the uncertainty is the host: record a trace on H100 ..."``."""
    words = f"{100 * cause.share:.0f} % of the uncertainty is {cause.name}"
    if not cause.cure:
        return words
    narrower = round(100 * (1 - cause.without))
    return f"{words}: {cause.cure}" + (f" and the interval narrows by up to {narrower} %" if narrower else "")


def plan_words(plan: dict[str, Any]) -> str:
    """What the plan asks for in a few words: ``"training, global batch 64, dp 2, pp 2, 4 micro-batches, 1f1b"``."""
    words = ["inference" if plan.get("training") is False else "training"]
    if _number(plan.get("global_batch_size")):
        words.append(f"global batch {plan['global_batch_size']}")
    if _number(plan.get("sequence_length")):
        words.append(f"{plan['sequence_length']} tokens")
    words += [f"{axis} {plan[axis]}" for axis in _SIZES if _number(plan.get(axis)) > 1] or ["one device"]
    if _number(plan.get("micro_batches")) > 1:
        words.append(f"{plan['micro_batches']} micro-batches")
    if _number(plan.get("pp")) > 1 and plan.get("schedule"):
        words.append(str(plan["schedule"]))
    if _number(plan.get("zero")) > 0:
        words.append(f"ZeRO {plan['zero']}")
    if plan.get("recompute", "none") != "none":
        words.append(f"recompute {plan['recompute']}")
    if plan.get("offload"):
        words.append(f"offload {' + '.join(plan['offload'])}")
    return ", ".join(words)


def _number(value: Any) -> float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0


def verdict(memory: Memory) -> str:
    """Whether it fits, in words: ``"9.3 GiB of 80 GiB: fits"``."""
    needed = memory.reserved_bytes + memory.context_bytes
    if memory.capacity_bytes is None:
        return f"{format_bytes(needed)} (capacity of the device not known)"
    text = f"{format_bytes(needed)} of {format_bytes(memory.capacity_bytes)}"
    if memory.fits:
        return f"{text}: fits"
    return f"{text}: does not fit, {format_bytes(needed - memory.capacity_bytes)} too much"


def number(value: float) -> str:
    """A count or rate as people write it: ``"65.43"``, ``"267,987"``."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def shorten(name: str, width: int, dots: str = "…") -> str:
    """The end of a name, which tells most about a module, in at most ``width`` characters."""
    return name if len(name) <= width else dots + name[len(name) - width + len(dots) :]


@dataclass
class ModuleTime:
    """Time of one module, or of the same module of all repeated layers, per iteration.

    Attributes:
        path: ``"layers.*.mlp.up"`` where layers were folded.
        count: how many modules it stands for.
        seconds: compute seconds by phase.
        communication_s: seconds of its communication.
    """

    path: str
    count: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    communication_s: float = 0.0

    @property
    def compute_s(self) -> float:
        """Compute seconds of all phases."""
        return sum(self.seconds.values())


def fold(paths: Iterable[str]) -> dict[str, str]:
    """For each module path the path with the numbers of repeated layers replaced by ``*``.

    A number counts as that of a layer if modules lie below it: ``layers.3.mlp`` is ``layers.*.mlp``, but
    ``features.3`` of a plain sequence stays.
    """
    paths = list(dict.fromkeys(paths))
    inner: set[str] = set()
    for path in paths:
        parts = path.split(".")
        inner.update(".".join(parts[:i]) for i in range(1, len(parts)))
    folded = {}
    for path in paths:
        parts = path.split(".")
        folded[path] = ".".join(
            "*" if part.isdigit() and ".".join(parts[: i + 1]) in inner else part for i, part in enumerate(parts)
        )
    return folded


def module_times(layers: Iterable[LayerRow]) -> list[ModuleTime]:
    """Time by module, repeated layers folded, longest first."""
    layers = list(layers)
    folded = fold(row.module for row in layers)
    found: dict[str, ModuleTime] = {}
    members: dict[str, set[str]] = {}
    for row in layers:
        path = folded[row.module]
        entry = found.setdefault(path, ModuleTime(path))
        entry.seconds[row.phase] = entry.seconds.get(row.phase, 0.0) + row.compute_s
        entry.communication_s += row.communication_s
        members.setdefault(path, set()).add(row.module)
    for path, entry in found.items():
        entry.count = len(members[path])
    return sorted(found.values(), key=lambda m: -(m.compute_s + m.communication_s))
