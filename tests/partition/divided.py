"""A step divided on the tensor axis by the built-in rules, for tests."""

from __future__ import annotations

from collections.abc import Mapping

from triosim.partition.mesh import Mesh
from triosim.partition.partition import partition
from triosim.partition.resolve import rules_of
from triosim.partition.step import Step
from triosim.plan import Plan
from triosim.trace.tables import Trace


def divided(
    trace: Trace, size: int, style: str = "megatron", plan: Mapping[str, str] | None = None, vocabulary: bool = False
) -> Step:
    """One rank's share on ``size`` ranks."""
    return partition(trace, mesh_of(tp=size), rules_of(Plan(tp=size, tp_style=style, tp_plan=plan), vocabulary))


def mesh_of(dp: int = 1, tp: int = 1, pp: int = 1) -> Mesh:
    """A mesh in the default order."""
    return Mesh((("pp", pp), ("dp", dp), ("tp", tp)))
