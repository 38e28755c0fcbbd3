"""What playing tiles obeys."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiles.graphs import graphs
from triosim.tiles.assignment import assigned
from triosim.tiles.graph import CoreNetwork, SharedMemory, Tile, TileGraph
from triosim.tiles.interconnect import links
from triosim.tiles.play import play
from triosim.tiles.reading import as_document, graph_of


@given(graphs(unlimited=True, most_cores=1))
def test_one_core_takes_the_sum_of_its_cycles(graph):
    assert play(graph).cycles == sum(tile.cycles for tile in graph.tiles)


@given(graphs(unlimited=True))
def test_without_limits_the_longest_way_through_dependencies_and_cores_is_left(graph):
    """The longest way is relaxed here edge by edge until nothing changes."""
    run = play(graph)
    tiles, spans = run.graph.tiles, run.spans
    edges = {(other, row) for row, tile in enumerate(tiles) for other in tile.before}
    for core in range(len(graph.cores)):
        mine = [row for row, tile in enumerate(tiles) if tile.core == core]  # in the order of the file
        edges |= set(itertools.pairwise(mine))
    ends = [tile.cycles for tile in tiles]
    for _ in tiles:
        for source, target in edges:
            ends[target] = max(ends[target], ends[source] + tiles[target].cycles)
    assert [span.end for span in spans] == ends
    assert run.cycles == run.critical == max(ends)


@given(graphs())
def test_bytes_are_conserved_and_bounds_hold(graph):
    run = play(graph)
    tiles = run.graph.tiles
    kept = {(tile.core, name) for tile in tiles for name in tile.keeps}
    brought = sum(run.graph.kept_bytes[name] for _, name in kept) + sum(tile.reads for tile in tiles)
    assert run.memory_bytes == brought + sum(tile.writes for tile in tiles)
    sent = sum(size for tile in tiles for other, size in tile.sources if tiles[other].core != tile.core)
    assert sum(core.received for core in run.cores) == brought + sent
    assert run.cycles >= run.least[0] * (1 - 1e-9)
    for one, tile in zip(run.spans, tiles, strict=True):
        assert one.end == pytest.approx(one.start + tile.cycles, abs=1e-3)
        assert one.loaded <= one.start
        assert one.end <= one.written <= run.cycles
        for other in tile.after:
            assert run.spans[other].written <= one.start


@given(graphs(free_cores=False))
def test_no_core_runs_two_tiles_at_once_or_loads_more_than_it_has_room_for(graph):
    run = play(graph)
    for core in range(len(graph.cores)):
        mine = sorted((s for s in run.spans if s.core == core), key=lambda s: (s.start, s.end))
        for before, after in itertools.pairwise(mine):
            assert before.end <= after.start


@st.composite
def chains(draw):
    """Tiles one after another, so that no two transfers meet."""
    count, cores = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    tiles = tuple(
        Tile(f"t{row}", float(draw(st.integers(0, 900))), draw(st.integers(0, cores - 1)), sources=((row - 1, draw(
            st.integers(0, 4000))),) if row else ())
        for row in range(count)
    )  # fmt: skip
    return TileGraph("chain", tuple(f"core{n}" for n in range(cores)), tiles)


@given(
    chains(), st.lists(st.floats(0.1, 100), min_size=2, max_size=2).map(sorted), st.sampled_from(["bus", "crossbar"])
)
def test_more_bandwidth_is_never_slower_where_nothing_contends(graph, limits, topology):
    slow, fast = (play(replace(graph, network=CoreNetwork(topology, limit, 3.0))).cycles for limit in limits)
    assert fast <= slow
    moved = sum(
        3.0 + tile.sources[0][1] / limits[0] for row, tile in enumerate(graph.tiles)
        if row and tile.core != graph.tiles[row - 1].core
    )  # fmt: skip
    assert slow == pytest.approx(sum(tile.cycles for tile in graph.tiles) + moved, abs=0.01)


@given(graphs())
def test_written_and_read_is_equal(graph):
    assert graph_of(as_document(graph), "written") == graph


@given(graphs())
def test_greedy_gives_every_tile_a_core_and_leaves_given_ones(graph):
    found = assigned(graph)
    for before, after in zip(graph.tiles, found.tiles, strict=True):
        assert after.core is not None
        assert before.core in (None, after.core)


def test_independent_tiles_spread_over_all_cores():
    tiles = tuple(Tile(f"t{n}", 100.0) for n in range(8))
    run = play(TileGraph("spread", ("a", "b", "c", "d"), tiles))
    assert run.cycles == 200
    assert [core.tiles for core in run.cores] == [2, 2, 2, 2]


def test_the_memory_is_shared_fairly_and_read_ahead():
    tiles = (Tile("a", 100.0, 0, 400), Tile("b", 100.0, 1, 400), Tile("c", 100.0, 0, 400))
    both = TileGraph("two", ("x", "y"), tiles, memory=SharedMemory(4.0, 10.0), buffers=2)
    run = play(both)
    # Three loads of 400 bytes share 4 bytes in a cycle: all are there at 10 + 300; c follows a on its core.
    assert [span.loaded for span in run.spans] == pytest.approx([310, 310, 310], abs=0.002)
    assert run.cycles == pytest.approx(510, abs=0.002)
    single = play(replace(both, buffers=1))
    # c is loaded only when a is done: two loads share until 210, a and b run until 310, c loads until 420.
    assert [span.loaded for span in single.spans] == pytest.approx([210, 210, 420], abs=0.002)
    assert single.cycles == pytest.approx(520, abs=0.002)


def test_a_mesh_pays_for_each_step_and_shares_links_on_the_way():
    tiles = (Tile("a", 0.0, 0), Tile("b", 0.0, 1), Tile("c", 0.0, 3, sources=((0, 100), (1, 100))))
    graph = TileGraph("mesh", ("p", "q", "r", "s"), tiles, network=CoreNetwork("mesh", 1.0, 5.0, columns=2))
    run = play(graph)
    # p > q > s and q > s: both cross q > s and come in at s; q's 100 bytes start 5 cycles earlier and share from 10 on.
    assert run.spans[2].loaded == pytest.approx(205, abs=0.002)
    assert dict(zip(run.link_names, run.link_bytes, strict=True))["q > s"] == 200
    assert dict(zip(run.link_names, run.link_bytes, strict=True))["r > s"] == 0


def test_what_is_held_is_counted_until_it_is_taken():
    tiles = (
        Tile("a", 10.0, 0, 100, keeps=("w",)), Tile("b", 10.0, 0, 200, keeps=("w",)),
        Tile("c", 10.0, 1, sources=((0, 30),)),
    )  # fmt: skip
    run = play(TileGraph("held", ("x", "y"), tiles, (("w", 1000),), buffers=1))
    # w stays; a's 100 go when it is done; the 30 that it made are taken as b's 200 come.
    assert run.cores[0].most_held == 1200
    assert run.cores[1].most_held == 30
    assert run.cores[0].received == 1300


def test_routes_are_worked_out_when_they_are_asked_for() -> None:
    """Of a thousand cores nearly no pair talks."""
    graph = TileGraph("many", tuple(f"c{n}" for n in range(1000)), (), network=CoreNetwork("crossbar"))
    found = links(graph)
    assert len(found.names) == 2001
    assert not found._known
    assert found.route(0, 999) == ((1, 2000), 0.0)
    assert list(found._known) == [(0, 999)]
