"""Tile graphs as JSON.

    {"schema": "triosim/tiles/1", "clock": "1 GHz", "cores": ["a", "b"], "buffers": 2,
     "memory": {"bandwidth": 16, "latency": 100},
     "network": {"topology": "crossbar", "bandwidth": 32, "latency": 4},
     "kept": {"weights": 36864},
     "tiles": [{"name": "first", "core": "a", "cycles": 500, "reads": 4096, "keeps": ["weights"]},
               {"name": "second", "cycles": 400, "from": {"first": 512}, "writes": 1024, "after": []}]}

Bandwidths are bytes in a cycle; what is left out is unlimited.  ``cores`` may be a number.  A tile without ``core``
goes where it would be done first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from triosim.core.errors import InputError, quoted, unknown
from triosim.core.guarded import document, reading
from triosim.core.units import parse_clock
from triosim.tiles.graph import NETWORKS, CoreNetwork, SharedMemory, Tile, TileGraph, in_order

SCHEMA = "triosim/tiles/1"

MOST_TILES = 1_000_000
MOST_CORES = 1024
MOST_BYTES = 2**53
MOST_BANDWIDTH = 1e6
"""Bytes in a cycle that a link can be said to move."""

_KEYS = ("schema", "name", "clock", "cores", "buffers", "memory", "network", "kept", "tiles")
_TILE_KEYS = ("name", "core", "cycles", "reads", "from", "keeps", "writes", "after")


def read(path: Path) -> TileGraph:
    """The graph that a file holds.

    Raises:
        InputError: it is no such file, names what there is not, or tiles wait for each other in a circle.
    """
    with reading(path):
        return graph_of(document(path, ".json"), str(path))


def graph_of(rows: Mapping[str, Any], where: str) -> TileGraph:
    """The graph that a document describes; ``where`` begins messages."""
    _known(rows, _KEYS, where, "key")
    if rows.get("schema") != SCHEMA:
        raise InputError(f"{where}: schema is {quoted(rows.get('schema'))}: tile graphs say {quoted(SCHEMA)}")
    cores = _cores(rows.get("cores", 1), where)
    kept = {name: _bytes(size, f"{where}, kept {quoted(name)}") for name, size in _table(rows, "kept", where).items()}
    tiles = rows.get("tiles")
    if not isinstance(tiles, list) or not tiles:
        raise InputError(f"{where}: tiles is {quoted(tiles)}: give a list of at least one")
    if len(tiles) > MOST_TILES:
        raise InputError(f"{where}: {len(tiles):,} tiles: the most is {MOST_TILES:,}")
    names: dict[str, int] = {}
    for row, tile in enumerate(tiles):
        name = tile.get("name") if isinstance(tile, dict) else None
        if not isinstance(name, str) or not name:
            raise InputError(f"{where}, tile {row + 1}: has no name: give it one")
        if name in names:
            raise InputError(f"{where}, tile {row + 1}: {quoted(name)} is the name of tile {names[name] + 1} too")
        names[name] = row
    made = [_tile(tile, names, cores, kept, f"{where}, tile {quoted(tile['name'])}") for tile in tiles]
    try:
        in_order(made)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    clock = rows.get("clock")
    buffers = rows.get("buffers", 2)
    if isinstance(buffers, bool) or not isinstance(buffers, int) or buffers < 1:
        raise InputError(f"{where}: buffers is {quoted(buffers)}: give a whole number of at least 1")
    return TileGraph(
        str(rows.get("name") or Path(where).stem), tuple(cores), tuple(made), tuple(kept.items()),
        memory_of(_table(rows, "memory", where), f"{where}, memory"),
        network_of(_table(rows, "network", where), cores, f"{where}, network"), buffers,
        None if clock is None else parse_clock(clock, f"{where}: clock"),
    )  # fmt: skip


def as_document(graph: TileGraph) -> dict[str, Any]:
    """The document that reads as this graph."""
    cores, names = graph.cores, [tile.name for tile in graph.tiles]
    found: dict[str, Any] = {"schema": SCHEMA, "name": graph.name}
    if graph.clock_hz is not None:
        found["clock"] = f"{graph.clock_hz:.17g} Hz"
    network, memory = graph.network, graph.memory
    found |= {"cores": list(cores), "buffers": graph.buffers, "memory": _limits(memory)}
    found["network"] = {"topology": network.topology, **_limits(network)}
    if network.topology == "mesh":
        found["network"] |= {"columns": network.columns, "memory_at": cores[network.memory_at]}
    found["kept"] = graph.kept_bytes
    found["tiles"] = []
    for tile in graph.tiles:
        row = {
            "name": tile.name, "core": None if tile.core is None else cores[tile.core], "cycles": tile.cycles,
            "reads": tile.reads, "from": {names[other]: size for other, size in tile.sources},
            "keeps": list(tile.keeps), "writes": tile.writes, "after": [names[other] for other in tile.after],
        }  # fmt: skip
        found["tiles"].append({key: value for key, value in row.items() if value or key == "cycles"})
    return found


def _limits(part: SharedMemory | CoreNetwork) -> dict[str, Any]:
    limit = {} if part.bandwidth is None else {"bandwidth": part.bandwidth}
    return {**limit, "latency": part.latency}


MOST_CYCLES = 1e12
"""Beyond it a number of cycles is a slip."""


def _known(rows: Mapping[str, Any], keys: Sequence[str], where: str, what: str) -> None:
    for key in rows:
        if key not in keys:
            raise InputError(f"{where}: {unknown(what, key, keys)}")


def _table(rows: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    found = rows.get(key, {})
    if not isinstance(found, dict):
        raise InputError(f"{where}: {key} is {quoted(found)}: give names with values in braces")
    return found


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise InputError(f"{where} is {quoted(value)}: give a number of 0 or more")
    if value > MOST_CYCLES:
        raise InputError(f"{where} is {value:g}: the most is {MOST_CYCLES:g}")
    return float(value)


def _bytes(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_BYTES:
        raise InputError(f"{where} is {quoted(value)}: give a whole number of bytes, 0 or more")
    return value


def _bandwidth(value: Any, where: str) -> float | None:
    if value is None:
        return None
    found = _number(value, f"{where}: bandwidth")
    if not found:
        raise InputError(f"{where}: bandwidth is 0: give bytes in a cycle, or leave it out for no limit")
    if found > MOST_BANDWIDTH:
        raise InputError(f"{where}: bandwidth is {found:g} bytes in a cycle: leave it out for no limit")
    return found


def _cores(given: Any, where: str) -> dict[str, int]:
    """Cores by name."""
    names = [f"core{number}" for number in range(given)] if type(given) is int and given <= MOST_CORES else given
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise InputError(f"{where}: cores is {quoted(given)}: give a number up to {MOST_CORES} or a list of names")
    if len(names) > MOST_CORES:
        raise InputError(f"{where}: {len(names):,} cores: the most is {MOST_CORES}")
    found = {name: row for row, name in enumerate(names)}
    if len(found) < len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{where}: two cores are called {quoted(double)}: rename one")
    return found


def memory_of(rows: Mapping[str, Any], where: str) -> SharedMemory:
    """The memory outside of the cores, from a table."""
    _known(rows, ("bandwidth", "latency"), where, "key")
    return SharedMemory(_bandwidth(rows.get("bandwidth"), where), _number(rows.get("latency", 0), f"{where}: latency"))


def network_of(rows: Mapping[str, Any], cores: Mapping[str, int], where: str) -> CoreNetwork:
    """What joins the cores, from a table; ``cores`` are their rows by name."""
    _known(rows, ("topology", "bandwidth", "latency", "columns", "memory_at"), where, "key")
    topology = rows.get("topology", "crossbar")
    if topology not in NETWORKS:
        raise InputError(f"{where}: {unknown('topology', topology, NETWORKS)}")
    columns, at = rows.get("columns"), rows.get("memory_at")
    if topology != "mesh":
        for key in ("columns", "memory_at"):
            if rows.get(key) is not None:
                raise InputError(f"{where}: {key} is of a mesh, and this is a {topology}: leave it out")
        columns = 0
    else:
        columns = math.isqrt(len(cores) - 1) + 1 if columns is None else columns
        if type(columns) is not int or columns < 1 or len(cores) % columns:
            raise InputError(
                f"{where}: {quoted(columns)} columns do not divide {len(cores)} cores: give columns, a number that does"
            )
    place = 0 if at is None else _core(at, cores, where)
    latency = _number(rows.get("latency", 0), f"{where}: latency")
    return CoreNetwork(topology, _bandwidth(rows.get("bandwidth"), where), latency, columns, place)


def _tile(
    rows: Mapping[str, Any], names: Mapping[str, int], cores: Mapping[str, int], kept: Mapping[str, int], where: str
) -> Tile:
    _known(rows, _TILE_KEYS, where, "key")
    core = rows.get("core")
    if "cycles" not in rows:
        raise InputError(f"{where}: has no cycles: say how long its work takes")
    sources = []
    for name, size in _table(rows, "from", where).items():
        sources.append((_other(name, names, f"{where}, from"), _bytes(size, f"{where}, from {quoted(name)}")))
    keeps, after = (_names(rows.get(key, []), f"{where}, {key}") for key in ("keeps", "after"))
    for name in keeps:
        if name not in kept:
            raise InputError(f"{where}, keeps: {unknown('kept data', name, kept)}")
    return Tile(
        rows["name"], _number(rows["cycles"], f"{where}: cycles"), None if core is None else _core(core, cores, where),
        _bytes(rows.get("reads", 0), f"{where}: reads"), tuple(sources), tuple(keeps),
        _bytes(rows.get("writes", 0), f"{where}: writes"),
        tuple(_other(name, names, f"{where}, after") for name in after),
    )  # fmt: skip


def _core(name: Any, cores: Mapping[str, int], where: str) -> int:
    if not isinstance(name, str) or name not in cores:
        raise InputError(f"{where}: {unknown('core', name, cores)}")
    return cores[name]


def _names(given: Any, where: str) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise InputError(f"{where} is {quoted(given)}: give a list of names")
    return list(dict.fromkeys(given))


def _other(name: str, names: Mapping[str, int], where: str) -> int:
    if name not in names:
        raise InputError(f"{where}: {unknown('tile', name, names)}")
    return names[name]
