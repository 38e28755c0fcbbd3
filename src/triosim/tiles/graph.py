"""Tiles and the cores, memory and network that they run on.

Times are cycles of the one clock that all share, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.precedence import order_after

NETWORKS = ("crossbar", "bus", "mesh")
"""What joins the cores: each has a port in and a port out; one link for all; a grid, along rows and then columns."""

MOST_NAMED = 6
"""Tiles of a circle that a message names."""


@dataclass(frozen=True)
class CoreNetwork:
    """What joins the cores and the memory.

    Attributes:
        topology: one of :data:`NETWORKS`.
        bandwidth: bytes in a cycle of each link and direction, of all together on a bus; None is unlimited.
        latency: cycles of a transfer; on a mesh of each step from core to core.
        columns: of a mesh, which has its cores row by row; 0 elsewhere.
        memory_at: core of a mesh beside which the memory enters.
    """

    topology: str = "crossbar"
    bandwidth: float | None = None
    latency: float = 0.0
    columns: int = 0
    memory_at: int = 0


@dataclass(frozen=True)
class SharedMemory:
    """The memory outside of the cores: one link, for reading and writing.

    Attributes:
        bandwidth: bytes in a cycle, None is unlimited.
        latency: cycles of an access, beside those of the network.
    """

    bandwidth: float | None = None
    latency: float = 0.0


UNLIMITED_NETWORK = CoreNetwork()
UNLIMITED_MEMORY = SharedMemory()


@dataclass(frozen=True)
class Tile:
    """A piece of work that a core does without interruption.

    Attributes:
        name: unlike all others.
        cycles: of the work, once everything is there.
        core: that runs it, None for whichever ends it first.
        reads: bytes from the memory.
        sources: (tile, bytes) that are sent from the core that made them, or lie there already.
        keeps: names of :attr:`TileGraph.kept` that must have been read by the core once.
        writes: bytes to the memory, when the work is done.
        after: tiles whose work is done and written before anything is loaded.
    """

    name: str
    cycles: float
    core: int | None = None
    reads: int = 0
    sources: tuple[tuple[int, int], ...] = ()
    keeps: tuple[str, ...] = ()
    writes: int = 0
    after: tuple[int, ...] = ()

    @property
    def before(self) -> tuple[int, ...]:
        """All tiles that it waits for."""
        return (*self.after, *(tile for tile, _ in self.sources))


@dataclass(frozen=True)
class TileGraph:
    """Tiles and what runs them.

    Attributes:
        name: for reports.
        cores: their names.
        tiles: each core runs its own in this order, as far as they do not wait for later ones.
        kept: bytes of what stays in a core once it has been read (weights), by name.
        memory, network: see there.
        buffers: tiles that a core has room for, the running one included: what a tile needs is loaded as soon as the
            one so many places before it is done.  With 1 nothing is loaded during work.
        clock_hz: of a cycle, None where nobody says.
    """

    name: str
    cores: tuple[str, ...]
    tiles: tuple[Tile, ...]
    kept: tuple[tuple[str, int], ...] = ()
    memory: SharedMemory = UNLIMITED_MEMORY
    network: CoreNetwork = UNLIMITED_NETWORK
    buffers: int = 2
    clock_hz: float | None = None

    @property
    def kept_bytes(self) -> dict[str, int]:
        """Size of what stays in a core, by name."""
        return dict(self.kept)


def in_order(tiles: Sequence[Tile]) -> list[int]:
    """Rows of tiles in their order, but each behind all that it waits for.

    Raises:
        InputError: some wait for each other in a circle, which is named.
    """
    order, circle = order_after([tile.before for tile in tiles])
    if circle:
        names = [tiles[row].name for row in circle]
        said = " -> ".join(names[:MOST_NAMED] + (["..."] if len(names) > MOST_NAMED else []) + names[:1])
        raise InputError(f"tiles wait for each other in a circle: {said}: leave one of these dependencies out")
    return order
