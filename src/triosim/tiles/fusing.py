"""Layers that follow each other as tiles: each is cut along its rows, and a tile starts when the rows of the layer
before that it reads are there, instead of when that whole layer is.

Rows are those of the output image of a convolution (P) and of the left matrix of a product (M).  A convolution reads
more rows than it makes, so that neighbouring tiles read some rows twice; padding is read from nowhere.  Cycles of a
tile are those of its part of the layer on the design, without the memory outside, which all cores share as a link.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from triosim.accelerator.designs import CLOCK_HZ, MappingSearch, cost
from triosim.accelerator.problem import Operand, Problem
from triosim.accelerator.reading import Contents
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, unknown
from triosim.tiles.graph import UNLIMITED_MEMORY, UNLIMITED_NETWORK, CoreNetwork, SharedMemory, Tile, TileGraph

ASSIGNMENTS = ("greedy", "rows", "layers")
"""Cores of tiles: whichever is done first; one for the same rows of all layers; one for all rows of a layer."""

Cycles = Callable[[Problem], float]


@dataclass(frozen=True)
class RowLayer:
    """A layer as rows.

    Attributes:
        problem: the whole layer.
        dimension: of the loops, along which it is cut.
        rows: of the output.
        step, window: row r of the output reads ``window`` rows of the input from ``step * r`` on.
        row_words: words of a row of the output, and of the input.
        channels, columns: of the output, and of the input, which tell whether layers follow each other.
        weight_words: of what is no image.
    """

    problem: Problem
    dimension: str
    rows: int
    step: int
    window: int
    row_words: tuple[int, int]
    channels: tuple[int, int]
    columns: tuple[int, int]
    column_window: tuple[int, int]
    weight_words: int

    @property
    def input_rows(self) -> int:
        """Rows of the input that the whole layer reads, padding included."""
        return self.step * (self.rows - 1) + self.window

    def part(self, rows: int) -> Problem:
        """The layer with so many rows."""
        bounds = tuple(
            rows if name == self.dimension else bound
            for name, bound in zip(self.problem.dimensions, self.problem.bounds, strict=True)
        )
        return replace(self.problem, bounds=bounds)


def row_layer(problem: Problem) -> RowLayer:
    """A layer as rows.

    Raises:
        InputError: it is neither a convolution nor one matrix product.
    """
    bound, output = problem.bound, problem.output
    parts = {role: next(t for t in problem.tensors if t.name == name) for role, name in problem.roles.items()}
    dimension = "P" if {"P", "Q", "R", "S"} <= set(bound) else "M"
    others, weights = parts.get("Inputs"), parts.get("Weights")
    if output.name != "Outputs" or others is None or weights is None or dimension not in others.dimensions:
        raise InputError(f"layer {problem.name}: only convolutions and matrix products are cut into rows")
    if dimension == "M" and set(bound) != {"M", "N", "K"}:
        raise InputError(f"layer {problem.name}: only convolutions and single matrix products are cut into rows")
    step, window = _window(others, dimension, bound)
    columns, column_window = (1, 1), (1, 1)
    channels = bound.get("N", 1), bound.get("K", 1)
    if dimension == "P":
        groups = bound.get("G", 1)
        channels = groups * bound["M"], groups * bound["C"]
        column_window = _window(others, "Q", bound)
        columns = bound["Q"], column_window[0] * (bound["Q"] - 1) + column_window[1]
    rows = bound[dimension]
    read = step * (rows - 1) + window
    return RowLayer(
        problem, dimension, rows, step, window, (problem.words(output) // rows, problem.words(others) // read),
        channels, columns, column_window, problem.words(weights),
    )  # fmt: skip


def _window(tensor: Operand, dimension: str, bound: dict[str, int]) -> tuple[int, int]:
    """By how much a step along a dimension moves the window in a tensor, and how long the window is."""
    axis = next(axis for axis in tensor.axes if any(name == dimension for name, _ in axis))
    step = next(factor for name, factor in axis if name == dimension)
    return step, 1 + sum(factor * (bound[name] - 1) for name, factor in axis if name != dimension)


def chain(problems: Sequence[Problem]) -> list[RowLayer]:
    """Layers each of which reads what the one before makes.

    Raises:
        InputError: two that do not; the message names what does not fit.
    """
    layers = [row_layer(problem) for problem in problems]
    for before, after in itertools.pairwise(layers):
        where = f"layer {after.problem.name} does not follow {before.problem.name}"
        if after.channels[1] != before.channels[0]:
            raise InputError(f"{where}: it reads {after.channels[1]} channels of the {before.channels[0]} made there")
        for what, read, made, step, window in (
            ("rows", after.input_rows, before.rows, after.step, after.window),
            ("columns", after.columns[1], before.columns[0], *after.column_window),
        ):
            if not -step < read - made < window:
                raise InputError(f"{where}: it reads {read} {what}, padding included, of the {made} made there")
    return layers


def fused(
    layers: Sequence[RowLayer], cycles: Cycles, *, name: str, cores: int, tiles: int, assignment: str = "greedy",
    depth: int | None = None, word_bytes: float = 1, memory: SharedMemory = UNLIMITED_MEMORY,
    network: CoreNetwork = UNLIMITED_NETWORK, clock_hz: float | None = None, buffers: int = 2,
) -> TileGraph:  # fmt: skip
    """A tile graph of layers.

    Args:
        layers: of :func:`chain`.
        cycles: of a part of a layer on one core.
        name: of the graph.
        cores: how many run it.
        tiles: parts that each layer is cut into, as equal as rows allow; at most one for each row.
        assignment: one of :data:`ASSIGNMENTS`.
        depth: layers that are fused; what leaves the last of so many goes to the memory and comes back.  None for
            all, 1 for layer by layer.
        word_bytes: of an element.
        memory, network, clock_hz, buffers: of the graph.

    Raises:
        InputError: an unknown assignment, or fewer than one of anything.
    """
    if assignment not in ASSIGNMENTS:
        raise unknown("assignment", assignment, ASSIGNMENTS)
    depth = len(layers) if depth is None else depth
    for what, count in (("cores", cores), ("tiles of a layer", tiles), ("fused layers", depth)):
        if count < 1:
            raise InputError(f"{count} {what}: the least is 1")

    def size(words: float) -> int:
        return math.ceil(words * word_bytes)

    cuts = [_cuts(layer.rows, tiles) for layer in layers]
    made: list[Tile] = []
    number: dict[tuple[int, int], int] = {}
    known: dict[tuple[int, int], float] = {}
    turns = cores if assignment == "rows" else 1
    for at, part in _order(layers, cuts, depth, turns):
        layer, (first, last) = layers[at], cuts[at][part]
        if (at, last - first) not in known:
            known[at, last - first] = cycles(layer.part(last - first))
        read = _read_rows(layers, at, first, last)
        from_memory = at % depth == 0
        overlaps = _overlaps(cuts[at - 1], read) if at else []
        earlier = tuple((number[at - 1, other], rows) for other, rows in overlaps)
        row_words = layers[at - 1].row_words[0] if at else layer.row_words[1]
        ends = at % depth == depth - 1 or at == len(layers) - 1
        number[at, part] = len(made)
        core = {"greedy": None, "rows": part * cores // len(cuts[at]), "layers": at % cores}[assignment]
        made.append(Tile(
            f"{layer.problem.name}.{part}", known[at, last - first], core,
            size((read[1] - read[0]) * row_words) if from_memory else 0,
            () if from_memory else tuple((other, size(rows * row_words)) for other, rows in earlier),
            (_weights(at, layer),), size((last - first) * layer.row_words[0]) if ends else 0,
            tuple(other for other, _ in earlier) if from_memory else (),
        ))  # fmt: skip
    kept = tuple((_weights(at, layer), size(layer.weight_words)) for at, layer in enumerate(layers))
    names = tuple(f"core{core}" for core in range(cores))
    return TileGraph(name, names, tuple(made), kept, memory, network, buffers, clock_hz)


def _weights(at: int, layer: RowLayer) -> str:
    return f"weights of {layer.problem.name}"


def _cuts(rows: int, tiles: int) -> list[tuple[int, int]]:
    """First row and the one behind the last of each part."""
    tiles = min(tiles, rows)
    edges = [part * rows // tiles for part in range(tiles + 1)]
    return list(itertools.pairwise(edges))


def _read_rows(layers: Sequence[RowLayer], at: int, first: int, last: int) -> tuple[int, int]:
    """Rows of the input that rows of the output need, without padding, of which an odd row lies above."""
    layer = layers[at]
    there = layers[at - 1].rows if at else layer.input_rows
    above = (max(layer.input_rows - there, 0) + 1) // 2
    begin = layer.step * first - above
    return max(begin, 0), min(layer.step * (last - 1) - above + layer.window, there)


def _overlaps(cuts: Sequence[tuple[int, int]], read: tuple[int, int]) -> list[tuple[int, int]]:
    """Parts that hold some of the rows, and how many."""
    found = [(part, min(last, read[1]) - max(first, read[0])) for part, (first, last) in enumerate(cuts)]
    return [(part, rows) for part, rows in found if rows > 0]


def _order(
    layers: Sequence[RowLayer], cuts: Sequence[Sequence[tuple[int, int]]], depth: int, turns: int
) -> list[tuple[int, int]]:
    """(layer, part) such that the last fused layer gets on as early as it can; so many cores take turns, each from
    the first of its own rows on, so that none waits for the last rows of another."""
    order: dict[tuple[int, int], None] = {}
    for first in range(0, len(layers), depth):
        group = range(first, min(first + depth, len(layers)))
        count = len(cuts[group[-1]])
        firsts: dict[int, int] = {}
        for part in range(count):
            firsts.setdefault(part * turns // count, part)
        for part in sorted(range(count), key=lambda one: (one - firsts[one * turns // count], one)):
            needed = [(group[-1], {part})]
            for at in reversed(group[1:]):
                rows = [_read_rows(layers, at, *cuts[at][one]) for one in needed[-1][1]]
                needed.append((at - 1, {other for read in rows for other, _ in _overlaps(cuts[at - 1], read)}))
            for at, parts in reversed(needed):
                order.update(dict.fromkeys((at, one) for one in sorted(parts)))
        for at in group:  # rows that a later layer steps over
            order.update(dict.fromkeys((at, part) for part in range(len(cuts[at]))))
    return list(order)


# --- on a design ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CoreDesign:
    """A design as one of many cores.

    Attributes:
        cycles: of an einsum on it, once its operands are in it.
        word_bytes: of an element.
        memory: bandwidth of the design's own outermost memory, which the cores are to share.
        clock_hz: of the design.
    """

    cycles: Cycles
    word_bytes: float
    memory: SharedMemory
    clock_hz: float


def core_design(found: Contents, budget: int = 30_000, seed: int = 0) -> CoreDesign:
    """The core that a design is, without its outermost memory.

    Args:
        found: what the files of the design hold.
        budget: mappings that are tried for each distinct tile.
        seed: of that search.
    """
    how = MappingSearch(objective="delay", budget=budget, seed=seed)
    if found.architecture is None:
        if found.array is None:
            raise InputError("holds no design and no systolic array: give the file of one")
        array = found.array
        inner = replace(found, array=replace(array, bandwidth=None))
        each, limit = float(array.word_bytes), array.bandwidth
        clock = CLOCK_HZ
    else:
        design = found.design
        outer = design.stores[0]
        unlimited = replace(outer, read_bandwidth=None, write_bandwidth=None)
        nodes = tuple(unlimited if node is outer else node for node in design.nodes)
        inner = replace(found, architecture=replace(design, nodes=nodes))
        each, limit = outer.word_bits / 8, outer.read_bandwidth
        clock = design.clock_hz or CLOCK_HZ
    memory = SharedMemory(None if limit is None else limit * each)
    return CoreDesign(lambda problem: cost(inner, problem, how).cycles, each, memory, clock)
