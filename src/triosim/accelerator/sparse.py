"""Zeros: formats in which tensors are stored, and work that they spare.

Counts of the dense loop nest become expected ones:

* A tensor that a store holds compressed moves only what is not zero there: counts times its density.
* An access that happens only where other operands are not zero is counted with the chance of that.  The rest is *gated*
  (its cycle passes, without energy) or *skipped* (nor does its cycle).  What is named at a store holds for an operand
  that passes the store by, too: its reads come from the store above.  It holds for an output only where it is kept.
* Reads of operands, fills and updates are rounded up, reads of partial sums down.
* Metadata is read along: for each pass over the tile, the words of each rank of its format.

The rules are those of Sparseloop (Wu et al., MICRO 2022), checked against its published outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from triosim.accelerator import evaluate as dense
from triosim.accelerator.architecture import Architecture, Store
from triosim.accelerator.evaluate import Access, Evaluation
from triosim.accelerator.mapping import LoopMapping
from triosim.accelerator.problem import Operand, Problem
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, unknown

FORMATS = ("UOP", "CP", "B", "RLE", "U")
"""Formats of a rank: offset pairs, coordinates, a bitmask, run lengths, uncompressed."""


@dataclass(frozen=True)
class RepresentationFormat:
    """Format of a tensor in a store: one for each rank, outermost first."""

    store: str
    tensor: str
    ranks: tuple[str, ...]

    @property
    def compressed(self) -> bool:
        """Whether zeros take no room."""
        return any(rank in ("CP", "RLE", "B") for rank in self.ranks)


@dataclass(frozen=True)
class ActionOptimization:
    """Accesses of a tensor at a store that happen only where all conditions are not zero (gating or skipping).

    Skipping spares the cycle too, gating only the energy.
    """

    store: str
    tensor: str
    conditions: tuple[str, ...]
    skipping: bool


@dataclass(frozen=True)
class Sparse:
    """What a design does about zeros.

    Attributes:
        stored, spared: see there.
        compute: ``"gating"`` or ``"skipping"`` of multiplications by zero; None where they are done.
    """

    stored: tuple[RepresentationFormat, ...] = ()
    spared: tuple[ActionOptimization, ...] = ()
    compute: str | None = None

    def joined(self, other: Sparse) -> Sparse:
        """Both."""
        return Sparse(self.stored + other.stored, self.spared + other.spared, self.compute or other.compute)


@dataclass(frozen=True)
class SparseAccess:
    """One tensor at one store, words of one instance.

    Attributes:
        store, tensor: their names.
        tile: expected words of the largest tile; ``worst_tile`` those of the fullest one.
        instances: of the store in use.
        reads, fills, updates: that take place.
        spared_reads, spared_updates: gated or skipped, as ``spared`` says (``""`` where none is).
        metadata_tile: words of metadata of the largest tile.
        metadata_reads, metadata_fills, metadata_updates: words of metadata.
        energy_j: over all instances.
    """

    store: str
    tensor: str
    tile: float
    worst_tile: float
    instances: float
    reads: float
    fills: float
    updates: float
    spared_reads: float
    spared_updates: float
    spared: str
    metadata_tile: float
    metadata_reads: float
    metadata_fills: float
    metadata_updates: float
    energy_j: float


@dataclass(frozen=True)
class SparseEvaluation:
    """What one mapping costs with zeros minded.

    Attributes:
        dense: the evaluation that minds none.
        cycles: with what is skipped left out.
        computes: multiplications that take place, over all units.
        accesses: see :class:`SparseAccess`.
        leakage_j: (store, joules).
        compute_j: joules of the multiplications.
        overfull: stores that their fullest tile may exceed, although the expected ones fit.
    """

    dense: Evaluation
    cycles: float
    computes: float
    accesses: tuple[SparseAccess, ...]
    leakage_j: tuple[tuple[str, float], ...]
    compute_j: float
    overfull: tuple[str, ...] = ()

    @property
    def energy_j(self) -> float:
        """Joules of everything."""
        return sum(a.energy_j for a in self.accesses) + sum(e for _, e in self.leakage_j) + self.compute_j


def expected_words(tensor: Operand, tile: float) -> float:
    """Words that are not zero in a tile."""
    return math.ceil(round(tensor.density * tile, 9))


def worst_words(tensor: Operand, tile: float, whole: float) -> float:
    """Words that are not zero in the fullest tile; ``whole``: elements of the tensor."""
    if tensor.distribution == "fixed-structured":
        return expected_words(tensor, tile)
    return min(tile, expected_words(tensor, whole))


def chance(tensor: Operand, tile: float, whole: float) -> float:
    """Chance that a tile of a tensor holds anything but zeros; ``whole``: elements of the tensor."""
    if tile <= 1:
        return tensor.density
    if tensor.distribution == "fixed-structured":
        return min(1.0, tensor.density * tile)
    filled, empty = expected_words(tensor, whole), 0.0
    if whole - filled >= tile:  # all of the tile among the zeros: a product of falling shares
        logs = (
            math.lgamma(whole - filled + 1) - math.lgamma(whole - filled - tile + 1)
            - math.lgamma(whole + 1) + math.lgamma(whole - tile + 1)
        )  # fmt: skip
        empty = math.exp(logs)
    return 1.0 - empty


def evaluate(
    architecture: Architecture, problem: Problem, mapping: LoopMapping, sparse: Sparse, timing: str = "bandwidth"
) -> SparseEvaluation:
    """Evaluate one mapping with zeros minded.

    Raises:
        InputError: an unknown store or tensor, a mapping that cannot run, or expected tiles that exceed a store.
    """
    _check(sparse, architecture, problem)
    plain = dense.evaluate(architecture, problem, mapping, timing, capacity=False)
    work = _SparseWork(architecture, problem, mapping, sparse, plain)
    accesses = tuple(work.access(a) for a in plain.accesses)
    overfull = work.check_capacity(accesses)
    steps = problem.computes / plain.used
    conditions = {c for row in sparse.spared for c in row.conditions}
    if sparse.compute is not None:
        conditions |= {t.name for t in problem.tensors if not t.output}
    skipped = {c for row in sparse.spared if row.skipping for c in row.conditions}
    if sparse.compute == "skipping":
        skipped = conditions
    computes = math.ceil(round(steps * work.density(conditions), 9))
    cycles = float(math.ceil(round(steps * work.density(skipped), 9)))
    if timing != "ideal":
        cycles = max(cycles, work.port_cycles(accesses))
    leakage = tuple(
        (store.name, (store.energies.leak or 0.0) * cycles * work.instances(store.name))
        for store in architecture.stores
    )  # fmt: skip
    compute_j = (architecture.compute.energies.compute or 0.0) * computes * plain.used
    return SparseEvaluation(plain, cycles, computes * plain.used, accesses, leakage, compute_j, overfull)


def _check(sparse: Sparse, architecture: Architecture, problem: Problem) -> None:
    stores = [store.name for store in architecture.stores]
    tensors = [tensor.name for tensor in problem.tensors]
    named = [(row.store, (row.tensor,)) for row in sparse.stored]
    named += [(row.store, (row.tensor, *row.conditions)) for row in sparse.spared]  # type: ignore[misc]
    for store, names in named:
        if store not in stores:
            raise unknown(f"store of {architecture.name} with sparse optimizations:", store, stores)
        for name in names:
            if name not in tensors:
                raise unknown(f"tensor in the sparse optimizations of {store}:", name, tensors)


class _SparseWork:
    """One mapping: how its dense counts thin out."""

    def __init__(
        self, architecture: Architecture, problem: Problem, mapping: LoopMapping, sparse: Sparse, plain: Evaluation
    ) -> None:
        self.architecture, self.problem, self.mapping, self.sparse = architecture, problem, mapping, sparse
        self.tensors = {tensor.name: tensor for tensor in problem.tensors}
        self.stores = {store.name: store for store in architecture.stores}
        self.order = [store.name for store in architecture.stores]
        self.plain = plain
        self.kept = {(a.store, a.tensor): a for a in plain.accesses}

    def density(self, names: Iterable[str]) -> float:
        """Chance that single elements of all these tensors are not zero."""
        return math.prod(self.tensors[name].density for name in names)

    def instances(self, store: str) -> float:
        """Instances of a store in use."""
        spread = 1
        for node in self.architecture.nodes:
            if node.name == store:
                break
            spread *= math.prod(loop.count for loop in self.mapping.level(node.name).loops if loop.axis)
        return spread

    def keepers(self, tensor: str) -> list[str]:
        """Stores that keep a tensor, outermost first."""
        return [store for store in self.order if (store, tensor) in self.kept]

    def tile_below(self, store: str, tensor: str, leader: str) -> float:
        """Words of ``leader`` that an access of ``tensor`` at a store goes with: one where the access is of a word."""
        keepers = self.keepers(tensor)
        below = keepers[keepers.index(store) + 1 :][:1]
        if not below:
            return 1.0
        inside = False
        extents = dict.fromkeys(self.problem.dimensions, 1)
        for node in self.architecture.nodes:
            inside |= node.name == below[0]
            for loop in self.mapping.level(node.name).loops if inside else ():
                extents[loop.dimension] *= loop.count
        return float(self.tensors[leader].words(extents))

    def spared(self, store: str, tensor: str) -> tuple[float, str]:
        """Chance that an access of a tensor at a store takes place, and what becomes of the rest."""
        found, how = 1.0, ""
        keepers = self.keepers(tensor)
        for row in self.sparse.spared:
            if row.tensor != tensor:
                continue
            at = row.store
            if (at, tensor) not in self.kept:
                if self.tensors[tensor].output:
                    continue
                above = [s for s in keepers if self.order.index(s) < self.order.index(at)]
                at = above[-1] if above else ""
            if at != store:
                continue
            for name in row.conditions:
                leader = self.tensors[name]
                found *= chance(leader, self.tile_below(store, tensor, name), self.problem.words(leader))
            how = "skipped" if row.skipping or how == "skipped" else "gated"
        return found, how

    def format(self, store: str, tensor: str) -> RepresentationFormat | None:
        """How a store holds a tensor; None where it holds every word."""
        return next((row for row in self.sparse.stored if (row.store, row.tensor) == (store, tensor)), None)

    def ranks(self, store: str, tensor: str, count: int) -> list[int]:
        """Sizes of the ranks of a tile: its loops from the outermost; the last rank takes what is left over."""
        names = [node.name for node in self.architecture.nodes]
        sizes = [
            loop.count
            for name in names[names.index(store) :] for loop in self.mapping.level(name).loops
            if loop.dimension in self.tensors[tensor].dimensions and loop.count > 1
        ]  # fmt: skip
        sizes = [1] * (count - len(sizes)) + sizes
        return [*sizes[: count - 1], math.prod(sizes[count - 1 :])]

    def metadata(self, store: str, tensor: str, tile: float) -> float:
        """Words of metadata that go with a tile."""
        stored = self.format(store, tensor)
        if stored is None or not stored.ranks:
            return 0.0
        filled = expected_words(self.tensors[tensor], tile)
        total, fibres = 0.0, 1.0
        for rank, size in zip(stored.ranks, self.ranks(store, tensor, len(stored.ranks)), strict=True):
            held = min(fibres * size, filled)
            if rank == "UOP":
                total += fibres * (size + 1)
            elif rank in ("CP", "RLE"):
                total += held
            elif rank == "B":
                total += fibres * size
            fibres = held if rank in ("CP", "RLE") else fibres * size
        return total

    def access(self, a: Access) -> SparseAccess:
        """One tensor at one store."""
        tensor, store = self.tensors[a.tensor], self.stores[a.store]
        stored = self.format(a.store, a.tensor)
        own = tensor.density if stored is not None and stored.compressed else 1.0
        happens, how = self.spared(a.store, a.tensor)
        keepers = self.keepers(a.tensor)
        above = keepers[: keepers.index(a.store)][-1:]
        brought = self.spared(above[0], a.tensor)[0] if above and not tensor.output else 1.0
        reads, updates = a.reads * own, a.updates * own
        done_reads = _floor(reads * happens) if tensor.output else _ceil(reads * happens)
        done_updates = _ceil(updates * happens)
        fills = _ceil(a.fills * own * brought)
        metadata = self.metadata(a.store, a.tensor, a.tile)
        passes = [count / a.tile if a.tile else 0.0 for count in (a.reads, a.fills, a.updates)]
        meta_reads = _ceil(passes[0] * metadata * happens)
        meta_fills = _ceil(passes[1] * metadata * brought)
        meta_updates = _ceil(passes[2] * metadata * happens)
        e, width = store.energies, store.words_per_access
        joules = self._rows(store, a) * (
            math.ceil(done_reads / width) * (e.read or 0.0) + math.ceil(fills / width) * (e.write or 0.0)
            + math.ceil(done_updates / width) * (e.update or 0.0) + meta_reads * (e.metadata_read or 0.0)
            + meta_fills * (e.metadata_write or 0.0) + meta_updates * (e.metadata_update or 0.0)
        )  # fmt: skip
        whole = self.problem.words(tensor)
        tile = expected_words(tensor, a.tile) if own < 1 else a.tile
        return SparseAccess(
            a.store, a.tensor, tile, worst_words(tensor, a.tile, whole) if own < 1 else a.tile, a.instances,
            done_reads, fills, done_updates, _ceil(reads) - done_reads, _ceil(updates) - done_updates, how,
            metadata, meta_reads, meta_fills, meta_updates, joules,
        )  # fmt: skip

    def _rows(self, store: Store, a: Access) -> float:
        if store.cluster_size == 1:
            return a.instances
        return min(a.instances, max(self.architecture.instances(store.name) // store.cluster_size, 1))

    def port_cycles(self, accesses: Iterable[SparseAccess]) -> float:
        """Cycles of the busiest port."""
        busiest = 0.0
        rows = list(accesses)
        for store in self.architecture.stores:
            own = [a for a in rows if a.store == store.name]
            if store.read_bandwidth is not None:
                busiest = max(busiest, sum(a.reads for a in own) / store.read_bandwidth)
            if store.write_bandwidth is not None:
                busiest = max(busiest, sum(a.fills + a.updates for a in own) / store.write_bandwidth)
        return busiest

    def check_capacity(self, accesses: Iterable[SparseAccess]) -> tuple[str, ...]:
        """Stores that only the fullest tile exceeds.

        Raises:
            InputError: expected tiles or their metadata exceed a store.
        """
        rows = list(accesses)
        overfull = []
        for store in self.architecture.stores:
            own = [a for a in rows if a.store == store.name]
            expected = sum(a.tile for a in own) * store.buffering
            if store.capacity_words is not None and expected > store.capacity_words:
                largest = max(own, key=lambda a: a.tile)
                raise InputError(
                    f"the expected tiles at {store.name} take {expected:.0f} words, of which {largest.tensor} "
                    f"{largest.tile * store.buffering:.0f}, and it holds {store.capacity_words}: make the loops at "
                    f"{store.name} and below smaller"
                )
            metadata = sum(a.metadata_tile for a in own) * store.buffering
            if store.metadata_words is not None and metadata > store.metadata_words:
                raise InputError(
                    f"metadata at {store.name} takes {metadata:.0f} words, and it holds {store.metadata_words}: make "
                    f"the loops at {store.name} and below smaller"
                )
            worst = sum(a.worst_tile for a in own) * store.buffering
            if store.capacity_words is not None and worst > store.capacity_words:
                overfull.append(store.name)
        return tuple(overfull)


def _ceil(value: float) -> float:
    return float(math.ceil(round(value, 9)))


def _floor(value: float) -> float:
    return float(math.floor(round(value, 9)))


def as_json(found: SparseEvaluation) -> dict[str, object]:
    """The evaluation as JSON holds it, beside the dense one."""
    return {
        "cycles": found.cycles,
        "computes": found.computes,
        "energy_j": found.energy_j,
        "compute_j": found.compute_j,
        "leakage_j": dict(found.leakage_j),
        "overfull": list(found.overfull),
        "accesses": [
            {name: getattr(a, name) for name in SparseAccess.__dataclass_fields__} for a in found.accesses
        ],
    }  # fmt: skip
