"""``triosim accelerator play`` and ``fuse``: work in tiles on several cores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triosim.cli.command import command, say, wants_summary
from triosim.cli.outputs import JsonFile, present, write_json

if TYPE_CHECKING:
    from triosim.tiles.graph import TileGraph

TilesFile = Annotated[Path, typer.Argument(help="Tiles, cores, memory and network, as JSON.")]


def register(group: typer.Typer) -> None:
    """Add the commands to those of accelerators."""
    command(group, "play", short_help="Tiles on cores that share a memory and a network.")(play)
    command(group, "fuse", short_help="Layers cut into tiles: layer by layer, or fused.")(fuse)


def play(tiles: TilesFile, json: JsonFile = None) -> None:
    """Play a graph of tiles: when each is loaded, runs and is written, what bounds them, what each core holds."""
    from triosim.core.outputs import check_distinct
    from triosim.report.tiles import tile_run
    from triosim.tiles.play import as_json
    from triosim.tiles.play import play as run
    from triosim.tiles.reading import read

    check_distinct({"--json": json}, [("TILES", tiles)])
    present(run(read(tiles)), "tiles", json, as_json, tile_run)


def fuse(
    design: Annotated[str, typer.Argument(help="One core: a ready design's name, or a file. Its outermost memory is "
                                          "the one that all cores share.")],
    layers: Annotated[Path, typer.Argument(help="Convolutions or matrix products, each reading what the one before "
                                           "makes.")],
    cores: Annotated[int, typer.Option("--cores", help="How many such cores.")] = 2,
    tiles: Annotated[int, typer.Option("--tiles", help="Parts of each layer, along its rows.")] = 8,
    depth: Annotated[
        int | None, typer.Option("--depth", help="Layers that are fused before their result goes to the memory; all "
                                 "if left out.", show_default=False)
    ] = None,
    assignment: Annotated[
        str, typer.Option("--assign", help="Cores of tiles: greedy (whichever is done first), rows (the same rows of "
                          "all layers) or layers (all rows of a layer).")
    ] = "greedy",
    topology: Annotated[str, typer.Option("--topology", help="Between cores: crossbar, bus or mesh.")] = "crossbar",
    bandwidth: Annotated[
        float | None, typer.Option("--core-bandwidth", help="Bytes in a cycle of each link between cores; unlimited if "
                                   "left out.", show_default=False)
    ] = None,
    columns: Annotated[
        int | None, typer.Option("--columns", help="Of a mesh.", show_default=False)
    ] = None,
    memory: Annotated[
        float | None, typer.Option("--memory-bandwidth", help="Bytes in a cycle of the memory, instead of the "
                                   "design's.", show_default=False)
    ] = None,
    budget: Annotated[
        str, typer.Option("--budget", help="Mappings to try for each distinct tile, or a time as of map.")
    ] = "30000",
    seed: Annotated[int, typer.Option("--seed", help="Of that search.")] = 0,
    json: JsonFile = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the fused tiles for `triosim accelerator play`.",
                                  show_default=False)
    ] = None,
) -> None:  # fmt: skip
    """Cut layers into tiles and play them layer by layer and fused: cycles, bytes of the memory, room in the cores."""
    from triosim.accelerator import presets
    from triosim.accelerator.mapper import parse_budget
    from triosim.accelerator.reading import read
    from triosim.cli.streams import rich_console, written
    from triosim.core.errors import InputError
    from triosim.core.outputs import check_distinct
    from triosim.report.tiles import fusions
    from triosim.tiles import fusing
    from triosim.tiles.play import as_json
    from triosim.tiles.play import play as run
    from triosim.tiles.reading import MOST_CORES, as_document, memory_of, network_of

    check_distinct({"--json": json, "--output": output}, [("DESIGN", design), ("LAYERS", layers)])
    if seed < 0:
        raise InputError(f"--seed {seed}: give 0 or more")
    if not 1 <= cores <= MOST_CORES:
        raise InputError(f"--cores {cores}: give 1 to {MOST_CORES}")
    found = read([presets.known(design), layers])
    if not found.problems:
        raise InputError(f"{layers}: holds no problem: give a file with one")
    core = fusing.core_design(found, parse_budget(budget), seed)
    chain = fusing.chain(found.problems)
    asked = {"topology": topology, "bandwidth": bandwidth, "columns": columns}
    places = {f"core{number}": number for number in range(cores)}
    network = network_of({key: value for key, value in asked.items() if value is not None}, places, "between cores")
    shared = core.memory if memory is None else memory_of({"bandwidth": memory}, "--memory-bandwidth")

    def schedule(name: str, depth: int | None) -> TileGraph:
        return fusing.fused(
            chain, core.cycles, name=name, cores=cores, tiles=tiles, assignment=assignment, depth=depth,
            word_bytes=core.word_bytes, memory=shared, network=network, clock_hz=core.clock_hz,
        )  # fmt: skip

    graphs = {"layer by layer": schedule(f"{layers.stem} layer by layer", 1), "fused": schedule(layers.stem, depth)}
    runs = {name: run(graph) for name, graph in graphs.items()}
    if json is not None:
        write_json({"schema": "triosim/tile-runs/1", "runs": {name: as_json(one) for name, one in runs.items()}}, json)
    if wants_summary(json, output):
        fusions(runs, rich_console())
    write_json(as_document(runs["fused"].graph), None if output is None else str(output))
    say(written("json", json) + written("tiles", output), json, output)
