"""Wording that the reports share: shortened names, modules folded over repeated layers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import TYPE_CHECKING

from triosim.core.dataclass import dataclass

if TYPE_CHECKING:
    from triosim.prediction.result import LayerRow


def shorten(name: str, width: int, dots: str = "…") -> str:
    """The end of a path, which tells most about a module, in at most ``width`` characters: from a dot if it can be."""
    if len(name) <= width:
        return name
    end = name[len(name) - width + len(dots) :]
    dot = end.find(".")
    return dots + (end[dot:] if 0 <= dot <= len(end) // 2 else end)


@dataclass
class ModuleTime:
    """Time of one module, or of the same module of all repeated layers, per iteration.

    Attributes:
        path: ``"layers.*.mlp.up"`` where layers were folded.
        count: how many modules it stands for.
        seconds: compute seconds by phase.
        exposed_s: seconds of its transfers while the device computed nothing.
    """

    path: str
    count: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    exposed_s: float = 0.0

    @property
    def compute_s(self) -> float:
        """Compute seconds of all phases."""
        return sum(self.seconds.values())

    @property
    def total_s(self) -> float:
        """What the module adds to the time of its device: no instant is counted twice."""
        return self.compute_s + self.exposed_s


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
        entry.exposed_s += row.exposed_communication_s
        members.setdefault(path, set()).add(row.module)
    for path, entry in found.items():
        entry.count = len(members[path])
    return sorted(found.values(), key=lambda m: -m.total_s)
