"""How a problem runs on a design: the loops of every level, in order, and what each store keeps.

A mapping cuts the bound of every dimension into factors.  A factor at a store is a loop in time; a factor at a fan-out
is spread over its instances, along X or Y.  Where the factors of a dimension multiply to its bound the mapping is
perfect.  A *ragged* one may exceed it: its last tile is cut off where the bound ends.
"""

from __future__ import annotations

from collections.abc import Mapping

from triosim.accelerator.architecture import Architecture, FanOut, Store, tensors_kept
from triosim.accelerator.problem import Problem
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, unknown

AXES = ("", "x", "y")
"""Where a loop runs: in time, or over the instances of a fan-out."""


@dataclass(frozen=True)
class Loop:
    """One loop: ``count`` iterations of ``dimension``, in time (``axis`` is ``""``) or along ``"x"`` or ``"y"``."""

    dimension: str
    count: int
    axis: str = ""


@dataclass(frozen=True)
class Level:
    """Loops of one node, outermost first, and which tensors it keeps (None: as the design says)."""

    node: str
    loops: tuple[Loop, ...] = ()
    keeps: tuple[str, ...] | None = None


@dataclass(frozen=True)
class LoopMapping:
    """A mapping: levels from the outermost, one for each node of the design that has loops or keeps something else.

    Attributes:
        levels: see :class:`Level`.
        ragged: whether the factors of a dimension may exceed its bound.
    """

    levels: tuple[Level, ...]
    ragged: bool = False

    def level(self, node: str) -> Level:
        """Loops of a node; none where the mapping does not name it."""
        return next((level for level in self.levels if level.node == node), Level(node))


def keeps_of(
    architecture: Architecture, problem: Problem, mapping: LoopMapping | None = None
) -> dict[str, tuple[str, ...]]:
    """Tensors that each store keeps, by its name.

    Raises:
        InputError: a tensor that is not there or is kept nowhere, or that the outermost store does not hold.
    """
    names = [tensor.name for tensor in problem.tensors]
    found: dict[str, tuple[str, ...]] = {}
    for store in architecture.stores:
        chosen = mapping.level(store.name).keeps if mapping else None
        if chosen is None:
            chosen = tensors_kept(store, problem)
        for name in chosen:
            if name not in names:
                raise unknown(f"tensor that {store.name} keeps:", name, names)
        found[store.name] = tuple(name for name in names if name in chosen)
    check_keeps(found, architecture, problem)
    return found


def check_keeps(found: Mapping[str, tuple[str, ...]], architecture: Architecture, problem: Problem) -> None:
    """Refuse what stores cannot keep together.

    Raises:
        InputError: a tensor that is kept nowhere or not by the outermost store, or by two stores side by side.
    """
    names = [tensor.name for tensor in problem.tensors]
    for name in names:
        where = [store for store in found if name in found[store]]
        outermost = architecture.stores[0].name
        if not where:
            raise InputError(f"tensor {name} is kept nowhere: let {outermost} keep it")
        if where[0] != outermost:
            raise InputError(
                f"tensor {name} is kept by {where[0]} but not by {outermost}, the outermost store, where all begins: "
                f"let {outermost} keep it"
            )
    groups: dict[int, list[Store]] = {}
    for store in architecture.stores:
        groups.setdefault(store.aside, []).append(store)
    for aside, members in groups.items():
        for name in names if aside else ():
            both = [store.name for store in members if name in found[store.name]]
            if len(both) > 1:
                raise InputError(f"{both[0]} and {both[1]} stand side by side and both keep {name}: let one pass it by")


def check(mapping: LoopMapping, architecture: Architecture, problem: Problem) -> None:
    """Refuse a mapping that cannot run, but for capacity, which :mod:`evaluate` knows.

    Raises:
        InputError: an unknown node or dimension, loops whose product is not the bound, or a fan-out exceeded.
    """
    nodes = {node.name: node for node in architecture.nodes}
    seen: set[str] = set()
    product = dict.fromkeys(problem.dimensions, 1)
    for level in mapping.levels:
        if level.node not in nodes:
            raise unknown(f"node of {architecture.name} in the mapping:", level.node, nodes)
        if level.node in seen:
            raise InputError(f"mapping: {level.node} is mapped twice: join the two")
        seen.add(level.node)
        node = nodes[level.node]
        spread = {"x": 1, "y": 1}
        for loop in level.loops:
            if loop.dimension not in product:
                raise unknown(f"dimension in the loops of {level.node}:", loop.dimension, problem.dimensions)
            if loop.axis not in AXES:
                raise unknown(f"direction of a loop of {level.node}:", loop.axis, AXES[1:])
            if loop.count < 1:
                raise InputError(f"mapping, {level.node}: loop {loop.dimension}={loop.count}: the least is 1")
            if isinstance(node, FanOut) != bool(loop.axis):
                kind = "a fan-out, which has no loops in time" if isinstance(node, FanOut) else "a store, not a fan-out"
                raise InputError(f"mapping: {level.node} is {kind}: move its loop of {loop.dimension}")
            product[loop.dimension] *= loop.count
            if loop.axis:
                spread[loop.axis] *= loop.count
        if isinstance(node, FanOut):
            for axis, there in (("x", node.x), ("y", node.y)):
                if spread[axis] > there:
                    raise InputError(
                        f"mapping: {level.node} is spread over {spread[axis]} along {axis.upper()}, of which there are "
                        f"{there}: make its loops smaller"
                    )
    for dimension, bound in problem.bound.items():
        if product[dimension] != bound and not (mapping.ragged and product[dimension] > bound):
            why = ", and it has to be at least that" if mapping.ragged else ""
            raise InputError(
                f"mapping: the loops of {dimension} multiply to {product[dimension]}, and its bound is {bound}{why}: "
                "change a factor"
            )


def nest_lines(mapping: LoopMapping, architecture: Architecture, problem: Problem) -> list[str]:
    """The loop nest as text, outermost first, one line for each loop above 1 and each store."""
    keeps = keeps_of(architecture, problem, mapping)
    lines: list[str] = []
    indent = 0
    for node in architecture.nodes:
        if isinstance(node, Store):
            held = ", ".join(keeps[node.name]) or "nothing"
            lines.append(f"{'  ' * indent}[{node.name}: {held}]")
        for loop in mapping.level(node.name).loops:
            if loop.count > 1:
                word = f"parallel {loop.axis.upper()} {node.name}:" if loop.axis else "for"
                lines.append(f"{'  ' * indent}{word} {loop.dimension} in {loop.count}")
                indent += 1
    lines.append(f"{'  ' * indent}{architecture.compute.name}")
    return lines
