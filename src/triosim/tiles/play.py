"""A tile graph played by the engine.

A core is a stream of tasks, links are links, so that transfers share them fairly.  A cycle is played as
:data:`TICKS` ticks whatever the clock is, which makes every time exact to a thousandth of a cycle.

What a tile needs is loaded when the tile ``buffers`` places before it on its core is done, not before what makes it is
done; it is written when the tile is done.  What lies in the core already takes no time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.engine.graph import CAPACITY_PER_BYTE, UNLIMITED, EngineNetwork, Graph, Task, TimeOverflow
from triosim.engine.play import play as play_graph
from triosim.tiles.assignment import assigned
from triosim.tiles.graph import TileGraph, in_order
from triosim.tiles.interconnect import MEMORY, CoreLinks, links

TICKS = 1000
"""Ticks of the engine, which are picoseconds, that stand for a cycle."""

_PER_SECOND = 10**12 // TICKS  # cycles in the engine's second


@dataclass(frozen=True)
class TileSpan:
    """When a tile ran, in cycles.

    Attributes:
        name: of the tile.
        core: that ran it.
        loaded: when all that it needs was there.
        start, end: of its work.
        written: when all that it writes was in the memory.
    """

    name: str
    core: int
    loaded: float
    start: float
    end: float
    written: float


@dataclass(frozen=True)
class CoreUse:
    """What a core did.

    Attributes:
        name: of the core.
        tiles: that it ran.
        busy: cycles of work.
        waiting: cycles until the end of its last tile in which it did not work.
        received: bytes that came from the memory and from other cores.
        most_held: bytes in it at once, at most: what stays, what was loaded, and what it made until it is taken.
    """

    name: str
    tiles: int
    busy: float
    waiting: float
    received: int
    most_held: int


@dataclass(frozen=True)
class TileRun:
    """A graph that was played.

    Attributes:
        graph: with a core for each tile.
        cycles: until everything is done and written.
        spans: of the tiles, in their order.
        cores: what each did.
        link_names, link_bytes, link_busy: links, what crossed them, and the cycles which that takes at full rate.
        critical: cycles of the longest way through the tiles if nothing waited for a link, orders of cores included.
    """

    graph: TileGraph
    cycles: float
    spans: tuple[TileSpan, ...]
    cores: tuple[CoreUse, ...]
    link_names: tuple[str, ...]
    link_bytes: tuple[int, ...]
    link_busy: tuple[float, ...]
    critical: float

    @property
    def seconds(self) -> float | None:
        """What the cycles take, None where nobody says how long one is."""
        return self.cycles / self.graph.clock_hz if self.graph.clock_hz else None

    @property
    def memory_bytes(self) -> int:
        """Read from and written to the memory."""
        return self.link_bytes[0]

    @property
    def least(self) -> tuple[float, str]:
        """Cycles below which no other timing of these tiles on these cores gets, and what says so."""
        core = max(self.cores, key=lambda one: one.busy)
        link = int(np.argmax(self.link_busy))
        bounds = [
            (core.busy, f"work of {core.name}"), (self.critical, "dependencies"),
            (self.link_busy[link], f"bytes over {self.link_names[link]}"),
        ]  # fmt: skip
        return max(bounds, key=lambda bound: bound[0])


def play(graph: TileGraph) -> TileRun:
    """Play a graph; tiles without a core get one first.

    Raises:
        InputError: tiles wait for each other in a circle, or it lasts longer than can be counted.
    """
    graph = assigned(graph)
    made = _Tasks(graph, links(graph))
    try:
        played = play_graph(made.graph(), made.wires())
    except TimeOverflow:
        raise InputError(
            f"{graph.name}: takes more than {2**63 // TICKS:.1e} cycles: give smaller tiles, or in a larger unit"
        ) from None
    start, finish = played.start / TICKS, played.finish / TICKS
    spans = tuple(
        TileSpan(
            tile.name, made.core(row), max((float(finish[t]) for t in made.loads[row]), default=float(start[task])),
            float(start[task]), float(finish[task]), float(finish[made.done[row]]),
        ) for row, (tile, task) in enumerate(zip(graph.tiles, made.work, strict=True))
    )  # fmt: skip
    busy = [
        float(size) / limit if limit else 0.0
        for size, limit in zip(played.link_bytes.tolist(), made.links.bandwidth, strict=True)
    ]
    last = float(finish.max()) if len(finish) else 0.0
    return TileRun(
        graph, last, spans, _cores(made, spans, played.begin / TICKS, finish), made.links.names,
        tuple(played.link_bytes.tolist()), tuple(busy), _critical(graph, made),
    )  # fmt: skip


class _Tasks:
    """Tasks of the engine, in an order in which each comes after all that it waits for."""

    def __init__(self, graph: TileGraph, links: CoreLinks) -> None:
        self.tiles, self.links = graph, links
        self.kind: list[int] = []
        self.stream: list[int] = []
        self.amount: list[int] = []
        self.what: list[int] = []
        self.before: list[Sequence[int]] = []
        self.routes: dict[tuple[int, int], int] = {}
        self.work = [0] * len(graph.tiles)  # tile -> its task
        self.done = [0] * len(graph.tiles)  # tile -> the task at whose end everything is written
        self.loads: list[list[int]] = [[] for _ in graph.tiles]
        self.sent: list[tuple[int, int, int]] = []  # (transfer, tile that sends, tile that receives)
        self.kept_at: dict[tuple[int, str], int] = {}  # (core, name) -> the transfer that brought it
        self.on_core: list[list[int]] = [[] for _ in graph.cores]
        self.order = in_order(graph.tiles)
        for row in self.order:
            self._tile(row)

    def core(self, row: int) -> int:
        """Core of a tile."""
        core = self.tiles.tiles[row].core
        assert core is not None
        return core

    def _add(self, kind: Task, stream: int, amount: int, what: int, before: Sequence[int]) -> int:
        self.kind.append(int(kind))
        self.stream.append(stream)
        self.amount.append(amount)
        self.what.append(what)
        self.before.append(before)
        return len(self.kind) - 1

    def _transfer(self, source: int, target: int, size: int, before: Sequence[int]) -> int:
        route = self.routes.setdefault((source, target), len(self.routes))
        return self._add(Task.TRANSFER, -1, size, route, before)

    def _tile(self, row: int) -> None:
        tile, core = self.tiles.tiles[row], self.core(row)
        mine = self.on_core[core]
        room = [self.work[mine[-self.tiles.buffers]]] if len(mine) >= self.tiles.buffers else []
        waits = sorted({*room, *(self.done[other] for other in tile.after)})
        loads = []
        for name in tile.keeps:
            if (core, name) not in self.kept_at:
                size = self.tiles.kept_bytes[name]
                self.kept_at[core, name] = self._transfer(MEMORY, core, size, waits)
            loads.append(self.kept_at[core, name])
        if tile.reads:
            loads.append(self._transfer(MEMORY, core, tile.reads, waits))
        here = []
        for other, size in tile.sources:
            source = self.core(other)
            if source == core:
                here.append(self.work[other])
                continue
            moved = self._transfer(source, core, size, sorted({*waits, self.work[other]}))
            self.sent.append((moved, other, row))
            loads.append(moved)
        ticks = round(tile.cycles * TICKS)
        self.work[row] = self._add(Task.COMPUTE, core, ticks, -1, sorted({*waits, *loads, *here}))
        self.loads[row] = loads
        self.done[row] = self.work[row]
        if tile.writes:
            self.done[row] = self._transfer(core, MEMORY, tile.writes, [self.work[row]])
        mine.append(row)

    def graph(self) -> Graph:
        """The tasks as the engine takes them."""
        count = len(self.kind)
        return Graph(
            np.array(self.kind, np.int8), np.array(self.stream, np.int32), np.array(self.amount, np.int64),
            np.array(self.what, np.int32), np.zeros(count, np.int32), Ragged.of(self.before, np.int32),
            len(self.tiles.cores),
        )  # fmt: skip

    def wires(self) -> EngineNetwork:
        """Links and routes as the engine takes them."""
        scale = _PER_SECOND * CAPACITY_PER_BYTE
        capacity = [UNLIMITED if one is None else max(1, round(one * scale)) for one in self.links.bandwidth]
        found = [self.links.route(*ends) for ends in self.routes]
        return EngineNetwork(
            np.array(capacity, np.int64), Ragged.of([route for route, _ in found], np.int32),
            np.array([round(latency * TICKS) for _, latency in found], np.int64),
        )  # fmt: skip


def _cores(made: _Tasks, spans: Sequence[TileSpan], begin: np.ndarray, finish: np.ndarray) -> tuple[CoreUse, ...]:
    """What each core did."""
    tiles = made.tiles.tiles
    held = _held(made, spans, begin, finish)
    received = [0] * len(held)
    targets = [target for _, target in made.routes]
    for kind, size, route in zip(made.kind, made.amount, made.what, strict=True):
        if kind == Task.TRANSFER and targets[route] != MEMORY:
            received[targets[route]] += size
    found = []
    for core, name in enumerate(made.tiles.cores):
        mine = made.on_core[core]
        busy = sum(tiles[row].cycles for row in mine)
        last = max((spans[row].end for row in mine), default=0.0)
        found.append(CoreUse(name, len(mine), busy, last - busy, received[core], held[core]))
    return tuple(found)


def _held(made: _Tasks, spans: Sequence[TileSpan], begin: np.ndarray, finish: np.ndarray) -> list[int]:
    """Bytes in each core at once, at most."""
    tiles = made.tiles.tiles
    changes: list[list[tuple[float, int, int]]] = [[] for _ in made.tiles.cores]

    def hold(core: int, size: int, since: float, until: float) -> None:
        changes[core] += [(since, 1, size), (until, 0, -size)]  # what goes at an instant goes before what comes

    for (core, name), task in made.kept_at.items():
        hold(core, made.tiles.kept_bytes[name], float(begin[task]), float("inf"))
    stays = set(made.kept_at.values())
    taken: list[list[tuple[int, float]]] = [[(tile.writes, spans[row].written)] for row, tile in enumerate(tiles)]
    for row, tile in enumerate(tiles):
        for other, size in tile.sources:
            if made.core(other) == made.core(row):
                taken[other].append((size, spans[row].end))
        for task in made.loads[row]:
            if task not in stays:
                hold(made.core(row), made.amount[task], float(begin[task]), spans[row].end)
    for moved, source, _ in made.sent:
        taken[source].append((made.amount[moved], float(finish[moved])))
    for row, parts in enumerate(taken):
        hold(made.core(row), max(size for size, _ in parts), spans[row].start, max(until for _, until in parts))
    most = []
    for changed in changes:
        now = highest = 0
        for _, _, size in sorted(changed):
            now += size
            highest = max(highest, now)
        most.append(highest)
    return most


def _critical(graph: TileGraph, made: _Tasks) -> float:
    """Cycles of the longest way through dependencies and orders of cores, with work alone."""
    ends = [0.0] * len(graph.tiles)
    free = [0.0] * len(graph.cores)
    for row in made.order:
        tile, core = graph.tiles[row], made.core(row)
        ends[row] = max([free[core], *(ends[other] for other in tile.before)]) + tile.cycles
        free[core] = ends[row]
    return max(ends, default=0.0)


def as_json(run: TileRun) -> dict[str, object]:
    """A run as JSON holds it."""
    least, says = run.least
    return {
        "schema": "triosim/tile-run/1", "name": run.graph.name, "cycles": run.cycles, "seconds": run.seconds,
        "least_cycles": least, "least_is": says, "memory_bytes": run.memory_bytes,
        "cores": [
            {"name": one.name, "tiles": one.tiles, "busy": one.busy, "waiting": one.waiting,
             "received_bytes": one.received, "most_held_bytes": one.most_held}
            for one in run.cores
        ],
        "links": [
            {"name": name, "bytes": size, "busy": busy}
            for name, size, busy in zip(run.link_names, run.link_bytes, run.link_busy, strict=True)
        ],
        "tiles": [
            {"name": one.name, "core": run.graph.cores[one.core], "loaded": one.loaded, "start": one.start,
             "end": one.end, "written": one.written}
            for one in run.spans
        ],
    }  # fmt: skip
