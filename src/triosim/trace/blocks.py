"""The repeated blocks of a model: transformer layers, residual blocks, whatever its module tree numbers.

A block is an outermost module with a number for a name (``model.layers.7``, ``layer1.0``) that has a sibling and does
more than one thing; where nothing is numbered so, names that end in a number are taken (``denseblock2``, ``Block_3``).
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.core.dataclass import dataclass
from triosim.trace.tables import NONE, Modules, Phase, Trace

FEWEST_OPERATORS = 3
"""A numbered module with fewer operators is a layer (an entry of a ``Sequential``), not a block of them."""

_NUMBERED = re.compile(r"(.*?)_?(\d+)")


@dataclass(frozen=True)
class Blocks:
    """The blocks of a trace.

    Attributes:
        path: module paths, in order of first call.
        of_module: for each module of the trace the block that it is in, -1 for none, int32.
    """

    path: tuple[str, ...]
    of_module: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.path)

    def of(self, trace: Trace) -> NDArray[np.int32]:
        """For each operator the block that it runs in, -1 for none, shape ``(operators,)``."""
        return np.append(self.of_module, np.int32(NONE))[trace.operators.module]


def blocks(trace: Trace) -> Blocks:
    """Find the blocks; there may be none."""
    operators = trace.operators
    return _blocks(trace.modules, operators.phase, operators.view, operators.module)


@kept(16)
def _blocks(modules: Modules, phase: NDArray[np.int8], view: NDArray[np.bool_], module: NDArray[np.int32]) -> Blocks:
    """Blocks from what they depend on: the modules, and three columns of the operators."""
    work = _operators_within(modules, phase, view, module)
    found = _outermost(modules, work, numbers_only=True) or _outermost(modules, work, numbers_only=False)
    number = {path: i for i, path in enumerate(found)}
    of_module = [
        next((number[p] for p in _ancestors(path) if p in number), NONE) for path in modules.path
    ]  # fmt: skip
    return Blocks(tuple(found), np.array(of_module, np.int32))


def _ancestors(path: str) -> list[str]:
    """A path and all that it is in, outermost first."""
    parts = path.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _outermost(modules: Modules, work: dict[str, int], numbers_only: bool) -> list[str]:
    """Outermost numbered modules that have siblings, in order of first call.

    Args:
        modules: of a trace.
        work: operators within each path.
        numbers_only: take only names that are a number and nothing else.
    """
    siblings: dict[tuple[str, str], dict[str, None]] = {}
    for path in modules.path:
        for prefix in _ancestors(path):
            parent, _, name = prefix.rpartition(".")
            match = _NUMBERED.fullmatch(name)
            if match and not (numbers_only and match.group(1)) and work.get(prefix, 0) >= FEWEST_OPERATORS:
                siblings.setdefault((parent, match.group(1)), {})[prefix] = None
    repeated = {path for group in siblings.values() if len(group) > 1 for path in group}
    outermost = {path: None for paths in siblings.values() for path in paths if path in repeated}
    first = {p: i for i, path in reversed(list(enumerate(modules.path))) for p in _ancestors(path)}
    kept = [path for path in outermost if not any(p in repeated for p in _ancestors(path)[:-1])]
    return sorted(kept, key=lambda path: first[path])


def _operators_within(
    modules: Modules, phase: NDArray[np.int8], view: NDArray[np.bool_], module: NDArray[np.int32]
) -> dict[str, int]:
    """Forward operators that compute, by module path, those of the modules within included."""
    rows = (phase == Phase.FORWARD) & ~view & (module != NONE)
    count = np.bincount(module[rows], minlength=len(modules))
    within: dict[str, int] = {}
    for path, own in zip(modules.path, count.tolist(), strict=True):
        for prefix in _ancestors(path):
            within[prefix] = within.get(prefix, 0) + own
    return within
