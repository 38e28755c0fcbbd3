"""Zeros: what formats and the work that they spare leave of a mapping's counts.

Counts of the dense loop nest become expected ones:

* A tensor that a store holds with metadata moves only what is not zero there: counts times its density.
* An access that happens only where other operands are not zero is counted with the chance of that: the operand's words
  that are used while the accessed tile stays, and by all that it is sent to at once, must not all be zero.  The rest is
  *gated* (its time passes, without energy) or *skipped*.  What is named at a store holds for an operand that passes the
  store by, too: its reads come from the store above.  It holds for an output only where it is kept.
* What a store does not hand down is missing below as well, and where two stores spare the same, the chances are of the
  same event.  Of several ways to spare one access the most effective one counts.
* Reads of operands, fills and updates are rounded up, reads of partial sums down, after each of these steps.
* Metadata is read along: for each pass over the tile, the words of each rank of its format
  (:mod:`~triosim.accelerator.representation`).
* An access of several words finds the last one of a compressed tile partly empty
  (:func:`~triosim.accelerator.density.access_ratio`).
* A multiplication that an operand's spared read leaves out does not happen.  Of the others, those with a zero are done
  all the same unless the unit gates or skips them; those of which all operands are missing never come up.
* Gated accesses pass through their port at its bandwidth; where none is stated, one goes with each step of the loops.

The rules are those of Sparseloop (Wu et al., MICRO 2022), checked against its published outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from triosim.accelerator import evaluate as dense
from triosim.accelerator.architecture import Architecture, Store
from triosim.accelerator.density import access_ratio, ceil, chance, expected_words, floor, share, worst_words
from triosim.accelerator.evaluate import Access, Evaluation
from triosim.accelerator.mapping import LoopMapping
from triosim.accelerator.problem import Problem
from triosim.accelerator.representation import MetadataRank, RepresentationFormat, metadata
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, unknown


@dataclass(frozen=True)
class ActionOptimization:
    """Accesses of a tensor at a store that happen only where all conditions are not zero (gating or skipping).

    Skipping spares the time too, gating only the energy.  Of those at one store with the same ``choice`` above 0 only
    the one that saves most is there.
    """

    store: str
    tensor: str
    conditions: tuple[str, ...]
    skipping: bool
    choice: int = 0


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
        metadata_tile: words of metadata and payloads of the largest tile.
        metadata_reads, metadata_fills, metadata_updates: words of metadata and payloads.
        energy_j: over all instances.
        port_reads, port_writes: words that pass through the ports of one instance, gated ones and metadata included.
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
    port_reads: float = 0.0
    port_writes: float = 0.0


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
    computes, gated = work.computes()
    cycles = ceil((computes + gated) / plain.used)
    if work.gates_by_steps():
        cycles = max(cycles, ceil(problem.computes / plain.used * work.skipped_share()))
    if timing != "ideal":
        cycles = max(cycles, work.port_cycles(accesses))
    leakage = tuple(
        (store.name, (store.energies.leak or 0.0) * cycles * work.instances(store.name))
        for store in architecture.stores
    )  # fmt: skip
    compute_j = (architecture.compute.energies.compute or 0.0) * computes
    return SparseEvaluation(plain, cycles, computes, accesses, leakage, compute_j, overfull)


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


@dataclass(frozen=True)
class _Spared:
    """What becomes of the accesses of one tensor at one store.

    Attributes:
        happens: chance that one takes place.
        how: ``"gated"`` or ``"skipped"``.
        leaders: the operands that it depends on, with the chance that their tile holds anything.
    """

    happens: float
    how: str
    leaders: tuple[tuple[str, float], ...]


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
        self.spared = self._all_spared()

    # --- what is where ------------------------------------------------------------------------------------------------

    def share(self, name: str) -> float:
        """Share of a tensor's words that are not zero."""
        tensor = self.tensors[name]
        return share(tensor, self.problem.words(tensor))

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

    def below(self, store: str, tensor: str) -> str | None:
        """The next store inwards that keeps a tensor; None where that is the compute unit."""
        keepers = self.keepers(tensor)
        return next(iter(keepers[keepers.index(store) + 1 :]), None)

    def format(self, store: str, tensor: str) -> RepresentationFormat | None:
        """How a store holds a tensor; None where it holds every word."""
        return next((row for row in self.sparse.stored if (row.store, row.tensor) == (store, tensor)), None)

    def metadata(self, store: str, tensor: str) -> tuple[MetadataRank, ...]:
        """Metadata of a tile, by rank from the outermost."""
        formats = [row for row in self.sparse.stored if row.tensor == tensor]
        return metadata(
            self.architecture, self.problem, self.mapping, self.tensors[tensor], formats, self.keepers(tensor), store
        )

    # --- what is spared -----------------------------------------------------------------------------------------------

    def leader_tile(self, store: str, tensor: str, leader: str) -> float:
        """Words of ``leader`` that an access of ``tensor`` at a store goes with.

        They are those of all loops inside of the tile that is accessed, of the loops outside of it that leave it where
        it is, and of what it is sent to at once.
        """
        target = self.tensors[tensor].dimensions
        below = self.below(store, tensor)
        extents = dict.fromkeys(self.problem.dimensions, 1)
        nodes = list(self.architecture.nodes)
        names = [node.name for node in nodes]
        inner = names.index(below) if below is not None else len(nodes)
        for node in nodes[inner:]:
            for loop in self.mapping.level(node.name).loops:
                extents[loop.dimension] *= loop.count
        stays = below is not None  # words that go to the compute unit stay nowhere
        for node in reversed(nodes[names.index(store) : inner]):
            for loop in reversed(self.mapping.level(node.name).loops):
                if loop.count > 1 and loop.dimension in target:
                    stays = stays and bool(loop.axis)
                elif loop.axis or stays:
                    extents[loop.dimension] *= loop.count
        return float(self.tensors[leader].words(extents))

    def _all_spared(self) -> dict[tuple[str, str], _Spared]:
        """What is spared, by store and tensor."""
        options: dict[tuple[str, int], list[tuple[float, str, str, _Spared]]] = {}
        for i, row in enumerate(self.sparse.spared):
            at = self._at(row)
            if at is None:
                continue
            leaders = tuple(
                (name, chance(self.tensors[name], self.leader_tile(at, row.tensor, name),
                              self.problem.words(self.tensors[name])))
                for name in row.conditions
            )  # fmt: skip
            one = _Spared(math.prod(q for _, q in leaders), "skipped" if row.skipping else "gated", leaders)
            saves = self._saves(at, row.tensor) * (1 - one.happens)
            options.setdefault((row.store, row.choice or -1 - i), []).append((saves, at, row.tensor, one))
        found: dict[tuple[str, str], _Spared] = {}
        for rows in options.values():
            _, at, tensor, one = max(reversed(rows), key=lambda option: option[0])  # the last of equal ones
            before = found.get((at, tensor))
            if before is None or one.happens < before.happens:
                found[at, tensor] = one
        return found

    def _at(self, row: ActionOptimization) -> str | None:
        """The store whose accesses a row spares."""
        if (row.store, row.tensor) in self.kept:
            return row.store
        if self.tensors[row.tensor].output:
            return None
        above = [s for s in self.keepers(row.tensor) if self.order.index(s) < self.order.index(row.store)]
        return above[-1] if above else None

    def _saves(self, store: str, tensor: str) -> float:
        """Joules of reading a tile, for the choice between ways to spare it."""
        memory, a = self.stores[store], self.kept[store, tensor]
        words = self.share(tensor) * a.tile if self.metadata(store, tensor) else a.tile
        bits = self._bits(memory, [(rank, rank.words, rank.payloads) for rank in self.metadata(store, tensor)])
        return (memory.energies.read or 0.0) / memory.words_per_access * (words + bits / memory.word_bits)

    def above(self, store: str, tensor: str) -> _Spared | None:
        """What is spared at the next store outwards that spares accesses of a tensor."""
        keepers = self.keepers(tensor)
        outer = reversed(keepers[: keepers.index(store)])
        return next((self.spared[s, tensor] for s in outer if (s, tensor) in self.spared), None)

    # --- multiplications ----------------------------------------------------------------------------------------------

    def computes(self) -> tuple[float, float]:
        """Multiplications that take place, and those that the unit gates, over all units."""
        operands = [tensor.name for tensor in self.problem.tensors if not tensor.output]
        left: dict[str, float] = {}  # operands that reads of others depend on: chance that their tile holds anything
        for name in operands:
            innermost = next((s for s in reversed(self.keepers(name)) if (s, name) in self.spared), None)
            for leader, q in self.spared[innermost, name].leaders if innermost is not None else ():
                left[leader] = min(left.get(leader, 1.0), q)
        total = float(self.problem.computes)
        for q in left.values():
            total -= floor(total * (1 - q))
        filled = {name: min(1.0, self.share(name) / left.get(name, 1.0)) if left.get(name, 1.0) else 0.0
                  for name in operands}  # fmt: skip
        known = [name for name in operands if self.metadata(self.keepers(name)[-1], name)]  # whose zeros are not there
        nothing = math.prod(1 - filled[name] for name in known) if len(known) == len(operands) else 0.0
        all_there = math.prod(filled[name] for name in known)
        missing = 1 - all_there - nothing
        zeros = all_there - math.prod(filled.values())
        gated = total * (zeros + missing) if self.sparse.compute == "gating" else 0.0
        skipped = total * missing if self.sparse.compute == "skipping" else 0.0
        done = total - floor(skipped) - floor(gated) - floor(total * nothing)
        return done, floor(gated)

    def gates_by_steps(self) -> bool:
        """Whether accesses are gated at a store that states no bandwidth."""
        return any(
            one.how == "gated" and self.stores[store].read_bandwidth is None for (store, _), one in self.spared.items()
        )

    def skipped_share(self) -> float:
        """Share of the steps of the loops that is not skipped."""
        left: dict[str, float] = {}
        for (_, tensor), one in self.spared.items():
            if one.how == "skipped" and not self.tensors[tensor].output:
                left.update({name: min(left.get(name, 1.0), q) for name, q in one.leaders})
        return math.prod(left.values())

    # --- accesses -----------------------------------------------------------------------------------------------------

    def access(self, a: Access) -> SparseAccess:
        """One tensor at one store."""
        tensor, store = self.tensors[a.tensor], self.stores[a.store]
        ranks = self.metadata(a.store, a.tensor)
        own = self.share(a.tensor) if ranks else 1.0
        here, up = self.spared.get((a.store, a.tensor)), self.above(a.store, a.tensor)
        handed = up.happens if up is not None else 1.0

        def left(count: float) -> float:
            held = count - floor(count * (1 - own))
            return held - floor(held * (1 - handed))

        reads, fills, updates = left(a.reads), left(a.fills), left(a.updates)
        spared = 0.0
        if here is not None:  # of the same event as above: its chance among what comes at all
            spared = max(0.0, 1 - here.happens / handed) if handed else 1.0
        spared_reads = (ceil if tensor.output else floor)(reads * spared)
        spared_updates = floor(updates * spared)
        reads, updates = reads - spared_reads, updates - spared_updates
        how = here.how if here is not None else ""
        passes = [count / a.tile if a.tile else 0.0 for count in (a.reads, a.fills, a.updates)]
        below = self.below(a.store, a.tensor)
        sent = len(self.metadata(below, a.tensor)) if below is not None else len(ranks)
        meta = [self._metadata_words(ranks, n, handed, spared if i != 1 else 0.0, sent)
                for i, n in enumerate(passes)]  # fmt: skip
        whole = self.problem.words(tensor)
        ratio = access_ratio(tensor, a.tile, whole, store.words_per_access) if self._compressed(a) else 1.0
        e, width = store.energies, store.words_per_access
        unpacked, packed = self._repacked(a, fills)
        joules = self._rows(store, a) * (
            ratio * sum(
                math.ceil(n / width) * (joules or 0.0)
                for n, joules in ((reads, e.read), (fills, e.write), (updates, e.update))
            )
            + self._metadata_accesses(store, meta[0]) * (e.metadata_read or 0.0)
            + self._metadata_accesses(store, meta[1]) * (e.metadata_write or 0.0)
            + self._metadata_accesses(store, meta[2]) * (e.metadata_update or 0.0)
            + unpacked * (e.decompression_count or 0.0) + packed * (e.compression_count or 0.0)
        )  # fmt: skip
        tile = expected_words(tensor, a.tile) if self._compressed(a) else a.tile
        worst = worst_words(tensor, a.tile, whole) if self._compressed(a) else a.tile
        held = [sum(words + payloads for _, words, payloads in rows) for rows in meta]
        gated = how == "gated"
        port_reads = reads + spared_reads * gated + self._bits(store, meta[0]) // store.word_bits
        writes = self._bits(store, [*meta[1], *meta[2]]) // store.word_bits
        return SparseAccess(
            a.store, a.tensor, tile, worst, a.instances, reads, fills, updates, spared_reads, spared_updates, how,
            sum(ceil(rank.words) + ceil(rank.payloads) for rank in ranks), held[0], held[1], held[2], joules,
            port_reads, fills + updates + spared_updates * gated + writes,
        )  # fmt: skip

    def _compressed(self, a: Access) -> bool:
        stored = self.format(a.store, a.tensor)
        return stored is not None and stored.compressed and self.share(a.tensor) < 1

    def _repacked(self, a: Access, fills: float) -> tuple[float, float]:
        """Words that one instance of a store unpacks and packs: those that it exchanges with a store outwards that
        compresses what it does not."""
        keepers = self.keepers(a.tensor)
        outer = keepers[: keepers.index(a.store)]
        if not outer or self._compressed(a) or not self._compressed(self.kept[outer[-1], a.tensor]):
            return 0.0, 0.0
        if not self.tensors[a.tensor].output:
            return fills, 0.0
        above = self.access(self.kept[outer[-1], a.tensor])
        return fills, above.updates * above.instances / a.instances

    def _metadata_words(
        self, ranks: Sequence[MetadataRank], passes: float, handed: float, spared: float, sent: int
    ) -> list[tuple[MetadataRank, float, float]]:
        """Words of metadata and payloads of each rank; of those of the innermost ``sent`` ranks some are spared."""
        found = []
        for i, rank in enumerate(ranks):
            both = []
            for units in (rank.words, rank.payloads):
                count = ceil(units * passes)
                count -= floor(count * (1 - handed))
                if i >= len(ranks) - sent:
                    count -= floor(count * spared)
                both.append(count)
            found.append((rank, both[0], both[1]))
        return found

    def _bits(self, store: Store, rows: Iterable[tuple[MetadataRank, float, float]]) -> float:
        """Bits of metadata; 0 where the store does not say how large a word of it is."""
        total = 0.0
        for rank, words, payloads in rows:
            for bits, count in ((rank.word_bits, words), (rank.payload_bits, payloads)):
                total += (store.metadata_bits or 0 if bits is None else bits) * count
        return total

    def _metadata_accesses(self, store: Store, rows: Sequence[tuple[MetadataRank, float, float]]) -> float:
        """Accesses of the memory of metadata: rows of it, or words where it does not say how wide one is."""
        stated = store.metadata_bits is not None or any(rank.word_bits is not None for rank, _, _ in rows)
        if store.metadata_width is None or not stated:
            return sum(words + payloads for _, words, payloads in rows)
        if store.metadata_width == 0:
            return 0.0
        return float(math.ceil(self._bits(store, rows) / store.metadata_width))

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
                busiest = max(busiest, sum(a.port_reads for a in own) / store.read_bandwidth)
            if store.write_bandwidth is not None:
                busiest = max(busiest, sum(a.port_writes for a in own) / store.write_bandwidth)
        return ceil(busiest)

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
