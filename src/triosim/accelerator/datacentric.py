"""Data-centric mappings, as MAESTRO's directives give them, as loops.

A directive says how a dimension is cut: ``TemporalMap(size, offset) D`` into pieces that follow each other,
``SpatialMap`` into pieces for the units of a level.  ``Cluster(n, P)`` groups units, and the directives after it cut
what one cluster has.  Directives of a level stand in the order of their loops, outermost first.  A piece of input rows
(Y) under R rows of filter is a piece of output rows; ``Y'`` names those themselves.

The design is one memory shared by all units (L2), and one in each of them (L1).  L2 holds what all units need for one
step of the outer directives, so that those are loops of the memory outside; loops between clusters have no memory of
their own.
"""

from __future__ import annotations

import math

from triosim.accelerator.architecture import Architecture, Compute, FanOut, Store
from triosim.accelerator.mapping import Level, Loop, LoopMapping
from triosim.accelerator.problem import Problem
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError

WINDOWS = {"Y": ("P", "R"), "X": ("Q", "S")}
"""Dimensions of the input: of the output and of the filter."""


@dataclass(frozen=True)
class Hardware:
    """An array of units: how many, words of L1 and L2 (None unlimited), words a cycle between them."""

    units: int
    l1_words: int | None = None
    l2_words: int | None = None
    noc_words: float | None = None


@dataclass(frozen=True)
class DimensionDirective:
    """One data-centric directive: a dimension in tiles of ``size``, in time or over units."""

    dimension: str
    size: int
    spatial: bool


@dataclass(frozen=True)
class Dataflow:
    """Directives of each level, and the sizes of the clusters between them; ``stride`` of rows and columns."""

    levels: tuple[tuple[DimensionDirective, ...], ...]
    clusters: tuple[int, ...]
    stride: tuple[int, int] = (1, 1)


def case(name: str, hardware: Hardware, problem: Problem, dataflow: Dataflow) -> tuple[Architecture, LoopMapping]:
    """The design and the loops that directives are for one problem.

    Raises:
        InputError: clusters that do not divide the units, or directives that cut two dimensions over one level.
    """
    inside = math.prod(dataflow.clusters)
    if hardware.units % inside:
        raise InputError(
            f"{name}: clusters of {' x '.join(map(str, dataflow.clusters))} do not divide {hardware.units} units: "
            "change NumPEs or a Cluster"
        )
    counts = (hardware.units // inside, *dataflow.clusters)
    nodes: list[Store | FanOut] = [
        Store("DRAM", kind="DRAM"), Store("L2", hardware.l2_words, read_bandwidth=hardware.noc_words),
    ]  # fmt: skip
    levels: list[Level] = []
    extents = problem.bound
    home = "DRAM"
    for i, (cuts, units) in enumerate(zip(dataflow.levels, counts, strict=True)):
        if i:
            home = f"cluster_{i}"
            nodes.append(Store(home, keeps=()))
        fan = f"units_{i}"
        nodes.append(FanOut(fan, units))
        loops, spread, extents = _level(name, cuts, units, extents, dataflow.stride)
        levels += [Level(home, tuple(loops)), Level(fan, tuple(spread))]
    nodes.append(Store("L1", hardware.l1_words))
    rest = tuple(Loop(d, n) for d, n in extents.items() if n > 1)
    levels.append(Level("L1", rest))
    made = Architecture(f"{hardware.units} units", tuple(nodes), Compute("mac"))
    return made, LoopMapping(tuple(levels), ragged=True)


def _level(
    name: str, cuts: tuple[DimensionDirective, ...], units: int, extents: dict[str, int], stride: tuple[int, int]
) -> tuple[list[Loop], list[Loop], dict[str, int]]:
    """Loops in time and over units of one level, and what one unit has left."""
    left = dict(extents)
    sizes = {cut.dimension: cut.size for cut in cuts}
    spatial = [cut for cut in cuts if cut.spatial]
    together = {cut.dimension for cut in spatial}
    for window, (_, filter_) in WINDOWS.items():
        if together == {window, filter_}:  # a unit has one row of filter and the rows that meet it
            spatial = [cut for cut in spatial if cut.dimension == filter_]
    if len(spatial) > 1:
        raise InputError(
            f"{name}: {' and '.join(cut.dimension for cut in spatial)} are both spread over one level: put a Cluster "
            "between them"
        )
    loops: list[Loop] = []
    spread: list[Loop] = []
    for cut in cuts:
        dimension, size = cut.dimension, cut.size
        if dimension in WINDOWS:
            output, filter_ = WINDOWS[dimension]
            rows = min(sizes.get(filter_, left[filter_]), extents[filter_])
            size = max((size - rows) // stride[dimension == "X"] + 1, 1)
            dimension = output
        dimension = dimension.rstrip("'")
        size = min(size, left[dimension])
        pieces = math.ceil(left[dimension] / size)
        if cut in spatial:
            across = min(pieces, units)
            loops.append(Loop(dimension, math.ceil(pieces / across)))
            spread.append(Loop(dimension, across, "x"))
        else:
            loops.append(Loop(dimension, pieces))
        left[dimension] = size
    return [loop for loop in loops if loop.count > 1], [loop for loop in spread if loop.count > 1], left
