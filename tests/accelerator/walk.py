"""A loop nest walked iteration by iteration: what counting rules are checked against.

Every iteration of the loops in time is visited in order, every instance in space.  An instance of a store fetches its
tile when the set of elements in it changes.  Nothing here uses the rules.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from triosim.accelerator.architecture import Architecture, Store
from triosim.accelerator.mapping import LoopMapping, keeps_of
from triosim.accelerator.problem import Operand, Problem

Point = dict[str, int]


@dataclass
class Walk:
    """Counts over all instances, by (store, tensor)."""

    reads: dict[tuple[str, str], int] = field(default_factory=dict)
    fills: dict[tuple[str, str], int] = field(default_factory=dict)
    updates: dict[tuple[str, str], int] = field(default_factory=dict)
    instances: dict[str, int] = field(default_factory=dict)
    steps: int = 0


def _loops(architecture: Architecture, mapping: LoopMapping) -> list[tuple[str, str, int, str]]:
    """(node, dimension, count, axis), outermost first."""
    return [(n.name, x.dimension, x.count, x.axis) for n in architecture.nodes for x in mapping.level(n.name).loops]


def walk(architecture: Architecture, problem: Problem, mapping: LoopMapping) -> Walk:
    """Walk the nest of a perfect mapping."""
    loops = _loops(architecture, mapping)
    places: dict[str, int] = {}  # loops above each store
    for node in architecture.nodes:
        if isinstance(node, Store):
            names = [n.name for n in architecture.nodes[: architecture.nodes.index(node)]]
            places[node.name] = sum(1 for loop in loops if loop[0] in names)
    steps_of = []
    for i, (_, dimension, _, _) in enumerate(loops):
        inner = 1
        for _, d, count, _ in loops[i + 1 :]:
            inner *= count if d == dimension else 1
        steps_of.append(inner)
    in_time = [i for i, loop in enumerate(loops) if not loop[3]]
    in_space = [i for i, loop in enumerate(loops) if loop[3]]
    found = Walk()
    keeps = keeps_of(architecture, problem, mapping)
    for tensor in problem.tensors:
        keepers = [s.name for s in architecture.stores if tensor.name in keeps[s.name]]
        _walk_tensor(tensor, keepers, loops, steps_of, places, in_time, in_space, problem, found)
    for node in architecture.stores:
        above = [loops[i][2] for i in in_space if i < places[node.name]]
        found.instances[node.name] = _product(above)
    found.steps = _product([loops[i][2] for i in in_time])
    return found


def _product(values: list[int]) -> int:
    made = 1
    for value in values:
        made *= value
    return made


def _elements(tensor: Operand, base: Point, extents: Point) -> frozenset[tuple[int, ...]]:
    axes = []
    for axis in tensor.axes:
        low = sum(c * base[d] for d, c in axis)
        size = 1 + sum(c * (extents[d] - 1) for d, c in axis)
        axes.append(range(low, low + size))
    return frozenset(itertools.product(*axes))


def _iterations(loops: list, indices: list[int]) -> Iterator[dict[int, int]]:
    for values in itertools.product(*(range(loops[i][2]) for i in indices)):
        yield dict(zip(indices, values, strict=True))


def _walk_tensor(tensor, keepers, loops, steps_of, places, in_time, in_space, problem, found) -> None:
    dims = problem.dimensions

    def tile(store: str | None, at: dict[int, int]) -> frozenset:
        place = places[store] if store else len(loops)
        base = dict.fromkeys(dims, 0)
        extents = dict.fromkeys(dims, 1)
        for i, (_, d, count, _) in enumerate(loops):
            if i < place:
                base[d] += at[i] * steps_of[i]
            else:
                extents[d] *= count
        return _elements(tensor, base, extents)

    chain = [*keepers, None]  # the compute unit is the last child
    for parent, child in itertools.pairwise(chain):
        above_parent = [i for i in in_space if i < places[parent]]
        between = [i for i in in_space if places[parent] <= i < (places[child] if child else len(loops))]
        reads = fills = updates = 0
        for parent_at in _iterations(loops, above_parent):
            before: dict[tuple, frozenset] = {}
            for time in _iterations(loops, in_time):
                arriving: set[tuple] = set()
                for space in _iterations(loops, between):
                    at = dict.fromkeys(range(len(loops)), 0) | parent_at | time | space
                    held = tile(child, at)
                    key = tuple(sorted(space.items()))
                    if child is not None and before.get(key) == held:
                        continue
                    if child is None:
                        new = held
                    else:
                        new = held - before.get(key, frozenset()) if not tensor.output else held
                        fills += len(new)
                    before[key] = held
                    arriving |= set(new) if not tensor.output else {(e,) for e in held}
                if not tensor.output:
                    reads += len(arriving)
                else:
                    updates += len(arriving)
        if not tensor.output:
            found.reads[parent, tensor.name] = reads
            if child is not None:
                found.fills[child, tensor.name] = fills
            found.fills.setdefault((keepers[0], tensor.name), 0)
            found.updates[parent, tensor.name] = 0
        else:
            found.updates[parent, tensor.name] = updates
            found.reads[parent, tensor.name] = updates - _seen(parent, tile, loops, places, in_time, in_space)
            if child is not None:
                found.fills[child, tensor.name] = fills - _seen(child, tile, loops, places, in_time, in_space)
            found.fills.setdefault((keepers[0], tensor.name), 0)


def _seen(store, tile, loops, places, in_time, in_space) -> int:
    """Distinct outputs that instances of a store ever see, summed over them."""
    total = 0
    for space in _iterations(loops, [i for i in in_space if i < places[store]]):
        seen: set = set()
        for time in _iterations(loops, in_time):
            for rest in _iterations(loops, [i for i in in_space if i >= places[store]]):
                at = dict.fromkeys(range(len(loops)), 0) | space | time | rest
                seen |= tile(store, at)
        total += len(seen)
    return total
