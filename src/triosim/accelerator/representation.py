"""Formats in which tensors with zeros are stored, and the metadata that goes with them.

A format is a list of ranks, outermost first: ``UOP`` offset pairs, ``CP`` coordinates, ``B`` a bitmask, ``RLE`` run
lengths, ``U`` nothing.  The loops that index a tensor at a store and down to the next that keeps it are its outer
ranks, one for each loop; its inner ranks are those of the next store, whose tiles it hands down as they are.  A rank
that no loop is left for costs nothing.  For F fibres of S places, of which a share is not empty:

* ``UOP``: F (S + 1) offsets.
* ``CP``: ceil(S share) coordinates of each fibre that is not empty, and as many payloads.
* ``RLE``: S share run lengths of each fibre that is not empty, and as many payloads.
* ``B``: F S bits, and as many payloads.

Payloads of the innermost rank are the data itself.  The rules are those of Sparseloop (Wu et al., MICRO 2022).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from triosim.accelerator.architecture import Architecture, FanOut
from triosim.accelerator.density import chance_among, occupancies
from triosim.accelerator.mapping import Loop, LoopMapping
from triosim.accelerator.problem import Operand, Problem
from triosim.core.dataclass import dataclass

FORMATS = ("UOP", "CP", "B", "RLE", "U")
"""Formats of a rank: offset pairs, coordinates, a bitmask, run lengths, uncompressed."""


@dataclass(frozen=True)
class RepresentationFormat:
    """Format of a tensor in a store: one for each rank, outermost first.

    Attributes:
        store, tensor: their names.
        ranks: of :data:`FORMATS`.
        flattened: for each rank the dimensions whose loops it may join into one; empty where each has one loop.
        inner_first: whether loops are given to the inner ranks first, so that outer ones are left over, not inner ones.
        metadata_bits, payload_bits: of each rank; None where they are the store's.
    """

    store: str
    tensor: str
    ranks: tuple[str, ...]
    flattened: tuple[tuple[str, ...], ...] = ()
    inner_first: bool = False
    metadata_bits: tuple[int | None, ...] = ()
    payload_bits: tuple[int | None, ...] = ()

    @property
    def compressed(self) -> bool:
        """Whether zeros take no room."""
        return any(rank in ("CP", "RLE", "B") for rank in self.ranks)

    @property
    def stated(self) -> bool:
        """Whether there is metadata, by which empty places are passed over."""
        return any(rank != "U" for rank in self.ranks)


@dataclass(frozen=True)
class MetadataRank:
    """Metadata of one rank of a tile: words of metadata and of payloads, and the bits of one of each (None where the
    store says)."""

    words: float
    payloads: float
    word_bits: int | None = None
    payload_bits: int | None = None


def metadata(
    architecture: Architecture, problem: Problem, mapping: LoopMapping, tensor: Operand,
    formats: Sequence[RepresentationFormat], keepers: Sequence[str], store: str,
) -> tuple[MetadataRank, ...]:  # fmt: skip
    """Metadata of a tile of a tensor at a store, by rank from the outermost; empty where it has no format.

    Args:
        architecture, problem, mapping, tensor: see there.
        formats: of the tensor, at any store.
        keepers: stores that keep it, outermost first.
        store: one of them.
    """
    stored = next((row for row in formats if row.store == store), None)
    if stored is None or not stored.stated:
        return ()
    sizes = _RankSizes(architecture, problem, mapping, tensor, formats, keepers)
    fibres = sizes.of(store)
    whole = problem.words(tensor)
    tile = float(sizes.tile(store))
    if tensor.distribution == "fixed-structured":
        found = _words(stored, fibres, tensor, tile, None)
    else:
        parts = [(p, _words(stored, fibres, tensor, tile, n)) for n, p in occupancies(tensor, tile, whole)]
        found = [
            (sum(p * rows[i][0] for p, rows in parts), sum(p * rows[i][1] for p, rows in parts))
            for i in range(len(stored.ranks))
        ]
    bits = [*stored.metadata_bits, *(None for _ in stored.ranks)]
    payload_bits = [*stored.payload_bits, *(None for _ in stored.ranks)]
    return tuple(MetadataRank(words, payloads, bits[i], payload_bits[i]) for i, (words, payloads) in enumerate(found))


def _words(
    stored: RepresentationFormat, fibres: Sequence[tuple[int, float]], tensor: Operand, tile: float,
    filled: float | None,
) -> list[tuple[float, float]]:  # fmt: skip
    """Words of metadata and payloads of each rank.

    Args:
        stored: the format.
        fibres: of each rank its places, and the words of a tile at one of them.
        tensor: whose.
        tile: words of the tile.
        filled: those that are not zero; None where every part of the tile holds its share of them.
    """

    def fills(words: float) -> float:
        if filled is None:
            return min(1.0, tensor.density * words)
        return filled / tile if words <= 1 else chance_among(words, tile, filled)

    found = []
    count, inside = 1.0, tile
    last = len(stored.ranks) - 1
    for i, (form, (places, below)) in enumerate(zip(stored.ranks, fibres, strict=True)):
        words = payloads = 0.0
        if places > 1:
            if form == "UOP":
                payloads = count * (places + 1)
            elif form == "B":
                words = payloads = count * places
            elif form in ("CP", "RLE"):
                held = places * fills(below)
                words = payloads = count * fills(inside) * (math.ceil(round(held, 9)) if form == "CP" else held)
        found.append((words, 0.0 if i == last else payloads))
        count *= places
        inside = below
    return found


class _RankSizes:
    """Places of the ranks of a tensor in every store that keeps it."""

    def __init__(
        self, architecture: Architecture, problem: Problem, mapping: LoopMapping, tensor: Operand,
        formats: Sequence[RepresentationFormat], keepers: Sequence[str],
    ) -> None:  # fmt: skip
        self.problem, self.tensor, self.keepers = problem, tensor, list(keepers)
        self.formats = {row.store: row for row in formats if row.tensor == tensor.name}
        self.loops: list[tuple[str, Loop]] = []  # with the store that they stand at or below, outermost first
        at = ""
        for node in architecture.nodes:
            if not isinstance(node, FanOut) and node.name in self.keepers:
                at = node.name
            for loop in mapping.level(node.name).loops:
                if loop.count > 1 and loop.dimension in tensor.dimensions and at:
                    self.loops.append((at, loop))

    def _below(self, store: str) -> str | None:
        inner = self.keepers[self.keepers.index(store) + 1 :]
        return inner[0] if inner else None

    def _words(self, loops: Sequence[Loop]) -> int:
        extents = dict.fromkeys(self.problem.dimensions, 1)
        for loop in loops:
            extents[loop.dimension] *= loop.count
        return self.tensor.words(extents)

    def tile(self, store: str) -> int:
        """Words of a tile."""
        at = self.keepers.index(store)
        return self._words([loop for name, loop in self.loops if self.keepers.index(name) >= at])

    def of(self, store: str) -> list[tuple[int, float]]:
        """Of each rank its places, and the words of a tile at one of them."""
        own = [loop for name, loop in self.loops if name == store]
        below = self._below(store)
        inner: list[tuple[int, float]] = []
        handed = 1  # words of the tiles that the next store takes
        form = self.formats.get(store)
        ranks = len(form.ranks) if form else 1
        if below is not None:
            handed = self.tile(below)
            if handed > 1:
                inner = self.of(below)
        if len(inner) > ranks or (own and len(inner) == ranks):  # too few ranks to hand down: its last takes all
            own = [loop for name, loop in self.loops if self.keepers.index(name) >= self.keepers.index(store)]
            inner, handed = [], 1
        return self._given(form, own, ranks - len(inner), handed) + inner

    def _given(
        self, form: RepresentationFormat | None, loops: list[Loop], ranks: int, handed: int
    ) -> list[tuple[int, float]]:
        """Loops given to ranks: one each, or as many as it may join; the last takes what is left over."""
        groups: list[list[Loop]] = []
        rest = list(loops)
        backwards = form is not None and form.inner_first
        if backwards:
            rest.reverse()
        for i in range(ranks):
            joins: Sequence[str] = ()
            if form is None:
                joins = [loop.dimension for loop in rest]
            elif form.flattened:
                joins = form.flattened[ranks - 1 - i if backwards else i]
            group = rest[:1]
            while len(group) < len(rest) and group and rest[len(group)].dimension in joins:
                group.append(rest[len(group)])
            rest = rest[len(group) :]
            groups.append(group)
        if rest and groups:
            groups[-1] += rest
        if backwards:
            groups = [list(reversed(group)) for group in reversed(groups)]
        found: list[tuple[int, float]] = []
        for i, group in enumerate(groups):
            inside = self._words([loop for later in groups[i + 1 :] for loop in later])
            found.append((self._words(group), float(max(inside * handed, 1))))
        return found
