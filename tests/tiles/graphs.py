"""Random tile graphs."""

from __future__ import annotations

from hypothesis import strategies as st

from triosim.tiles.graph import CoreNetwork, SharedMemory, Tile, TileGraph

LIMITS = st.sampled_from([None, 0.5, 1.0, 3.0, 8.0, 64.0])


@st.composite
def networks(draw: st.DrawFn, cores: int) -> CoreNetwork:
    """Any network for so many cores."""
    topology = draw(st.sampled_from(["crossbar", "bus", "mesh"]))
    mesh = topology == "mesh"
    columns = draw(st.sampled_from([n for n in range(1, cores + 1) if cores % n == 0])) if mesh else 0
    at = draw(st.integers(0, cores - 1)) if mesh else 0
    return CoreNetwork(topology, draw(LIMITS), draw(st.sampled_from([0.0, 2.0, 7.5])), columns, at)


@st.composite
def graphs(
    draw: st.DrawFn, unlimited: bool = False, free_cores: bool = True, most_cores: int = 6
) -> TileGraph:  # fmt: skip
    """Any graph whose tiles depend on earlier ones."""
    cores = draw(st.integers(1, most_cores))
    sizes = st.integers(0, 5000)
    kept = {f"w{n}": draw(sizes) for n in range(draw(st.integers(0, 2)))}
    tiles: list[Tile] = []
    for row in range(draw(st.integers(1, 12))):
        earlier = st.lists(st.integers(0, row - 1), unique=True, max_size=3) if row else st.just([])
        tiles.append(Tile(
            f"t{row}", draw(st.integers(0, 4000)) / 4,
            draw(st.integers(0, cores - 1)) if not free_cores or draw(st.booleans()) else None, draw(sizes),
            tuple((other, draw(sizes)) for other in draw(earlier)),
            tuple(name for name in kept if draw(st.booleans())), draw(sizes), tuple(draw(earlier)),
        ))  # fmt: skip
    network = CoreNetwork() if unlimited else draw(networks(cores))
    memory = SharedMemory() if unlimited else SharedMemory(draw(LIMITS), draw(st.sampled_from([0.0, 20.0])))
    names = tuple(f"core{n}" for n in range(cores))
    return TileGraph("random", names, tuple(tiles), tuple(kept.items()), memory, network, draw(st.integers(1, 3)))
