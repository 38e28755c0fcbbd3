"""What computes: stores one below the other, fan-outs between them, and compute units at the bottom.

Nodes stand from the outermost store to the compute unit.  A fan-out says how often what stands below it is there, in
two directions.  Stores side by side, one for each tensor, are a chain in which each keeps what the others pass by.
Quantities are in SI units: joules, hertz; bandwidths in words for each cycle and instance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from triosim.accelerator.problem import OF_ATTENTION, ROLES, Problem
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted, unknown

DRAMS = ("DRAM", "DDR4", "HBM2", "GDDR6", "LPDDR4")
"""Kinds of memories outside the chip."""

KINDS = ("SRAM", "regfile", *DRAMS)
"""What stores are made of."""

WIDEST_BITS = 2**20
"""Bits of a word, and words of an access: far more than any memory has, and few enough to be counted with."""

MOST_INSTANCES = 2**30
"""Copies of a node: more than any chip or wafer holds."""

SLOWEST, FASTEST = 1e-9, 1e15
"""Words that a port may pass in a cycle.  Beyond these a time is no longer a number of seconds that can be written."""

MOST_J = 1.0
"""Joules of an action: 1e9 times those of an access to the memory outside of a chip."""

CLOCKS_HZ = (1.0, 1e12)
"""Between which a clock lies."""

ACTIONS = (
    "read", "write", "update", "leak", "metadata_read", "metadata_write", "metadata_update", "decompression_count",
    "compression_count",
)  # fmt: skip
"""Actions of a store that cost energy; ``leak`` is for a cycle, gated actions cost nothing."""


@dataclass(frozen=True)
class Energies:
    """Joules of one action of one instance; ``leak`` of one cycle, a decompression or compression of one word.  None
    where nobody has stated it."""

    read: float | None = None
    write: float | None = None
    update: float | None = None
    leak: float | None = None
    metadata_read: float | None = None
    metadata_write: float | None = None
    metadata_update: float | None = None
    compute: float | None = None
    decompression_count: float | None = None
    compression_count: float | None = None


@dataclass(frozen=True)
class Store:
    """A memory.

    Attributes:
        name: of the level.
        capacity_words: of one instance; None is unlimited.
        word_bits: size of a word.
        words_per_access: words that one read, write or update moves.
        read_bandwidth, write_bandwidth: words for each cycle and instance; None is unlimited.
        keeps: tensors that are stored here unless a mapping says otherwise, by name or role; None is all.
        energies: of its actions.
        buffering: copies of each tile: 2 fills one while the other is used.
        cluster_size: instances that one row of the memory serves: an access of all of them is paid once.
        metadata_words: capacity for metadata of compressed tensors; None is unlimited.
        kind: what it is made of, for energies that nobody states: one of :data:`KINDS`.
        aside: number of a group of stores that stand side by side; 0 where it stands alone.
        metadata_bits: size of a word of metadata, and
        metadata_width: bits of metadata that one access moves; None where an access moves one word.
    """

    name: str
    capacity_words: int | None = None
    word_bits: int = 16
    words_per_access: int = 1
    read_bandwidth: float | None = None
    write_bandwidth: float | None = None
    keeps: tuple[str, ...] | None = None
    energies: Energies = Energies()
    buffering: int = 1
    cluster_size: int = 1
    metadata_words: int | None = None
    kind: str = "SRAM"
    aside: int = 0
    metadata_bits: int | None = None
    metadata_width: int | None = None


@dataclass(frozen=True)
class FanOut:
    """Copies of everything below, in two directions."""

    name: str
    x: int = 1
    y: int = 1


@dataclass(frozen=True)
class Compute:
    """The unit that multiplies and adds, once in a cycle."""

    name: str = "mac"
    word_bits: int = 16
    energies: Energies = Energies()


@dataclass(frozen=True)
class AssumedEnergies:
    """Energies of a component that no file states, and their range.

    Attributes:
        component: its name.
        low, high: factors of what was taken, between which it lies.
        text: what was taken, and from where.
    """

    component: str
    low: float
    high: float
    text: str


@dataclass(frozen=True)
class Architecture:
    """A design.

    Attributes:
        name: for reports.
        nodes: stores and fan-outs, outermost first.
        compute: what stands below them.
        clock_hz: cycles in a second; None where nobody has stated it.
        technology: of the process, as ``"45nm"``; for energies that nobody states.
        sources: what each figure rests on, by its name.
        aliases: other names of nodes in mappings.
        assumed: components whose energies nobody stated (:mod:`triosim.accelerator.energies`).
    """

    name: str
    nodes: tuple[Store | FanOut, ...]
    compute: Compute = Compute()
    clock_hz: float | None = None
    technology: str = ""
    sources: tuple[tuple[str, str], ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    assumed: tuple[AssumedEnergies, ...] = ()

    def __post_init__(self) -> None:
        check(self)

    @property
    def stores(self) -> tuple[Store, ...]:
        """Memories, outermost first."""
        return tuple(node for node in self.nodes if isinstance(node, Store))

    @property
    def compute_instances(self) -> int:
        """Compute units."""
        return math.prod(node.x * node.y for node in self.nodes if isinstance(node, FanOut))

    def instances(self, name: str) -> int:
        """How often a node is there."""
        count = 1
        for node in self.nodes:
            if node.name == name:
                return count
            if isinstance(node, FanOut):
                count *= node.x * node.y
        return count

    def with_energies(self, table: Mapping[str, Energies]) -> Architecture:
        """The same with the energies that a table states, by component.

        Raises:
            InputError: a component that is not there.
        """
        names = [node.name for node in self.stores] + [self.compute.name]
        for name in table:
            if name not in names:
                raise unknown(f"component of {self.name}", name, names)
        nodes = tuple(
            replace(node, energies=merged(node.energies, table[node.name]))
            if isinstance(node, Store) and node.name in table
            else node
            for node in self.nodes
        )
        compute = self.compute
        if compute.name in table:
            compute = replace(compute, energies=merged(compute.energies, table[compute.name]))
        return replace(self, nodes=nodes, compute=compute)


def merged(before: Energies, after: Energies) -> Energies:
    """Energies of ``after``, and of ``before`` where it states none."""
    stated = {f.name: value for f in fields(Energies) if (value := getattr(after, f.name)) is not None}
    return replace(before, **stated)


def check(architecture: Architecture) -> None:
    """Refuse what is no design.

    Raises:
        InputError: with the node, what is wrong with it, and what to give instead.
    """
    where = f"architecture {architecture.name or 'without a name'}"
    if not architecture.nodes or not isinstance(architecture.nodes[0], Store):
        raise InputError(f"{where}: the outermost node must be a store: begin with the memory that holds everything")
    names = [node.name for node in architecture.nodes] + [architecture.compute.name]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{where}: two nodes are called {quoted(twice)}: rename one")
    if not all(names):
        raise InputError(f"{where}: a node has no name: give it one")
    for node in architecture.nodes:
        at = f"{where}, {node.name}"
        if isinstance(node, FanOut):
            if node.x < 1 or node.y < 1:
                raise InputError(f"{at}: a fan-out of {node.x} by {node.y}: the least is 1 by 1")
        else:
            _check_store(node, at)
    if architecture.compute_instances > MOST_INSTANCES:
        raise InputError(
            f"{where}: has {architecture.compute_instances:,} compute units: the most is {MOST_INSTANCES:,}"
        )
    at = f"{where}, {architecture.compute.name}"
    _check_range(architecture.compute.word_bits, "word_bits", at)
    check_energies(architecture.compute.energies, at)
    low, high = CLOCKS_HZ
    if architecture.clock_hz is not None and not low <= architecture.clock_hz <= high:
        raise InputError(
            f"{where}: a clock of {architecture.clock_hz:g} Hz: give one from {low:g} Hz to {high:g}, or leave it out"
        )


def _check_range(value: int, what: str, where: str, most: int = WIDEST_BITS) -> None:
    """Refuse what is not from 1 to ``most``."""
    if value < 1:
        raise InputError(f"{where}: {what} is {value}: the least is 1")
    if value > most:
        raise InputError(f"{where}: {what} is {value}: the most is {most}")


def _check_store(store: Store, where: str) -> None:
    """Refuse a store that cannot be."""
    for what in ("word_bits", "words_per_access", "buffering", "cluster_size"):
        _check_range(getattr(store, what), what, where)
    if store.capacity_words is not None and store.capacity_words < 1:
        raise InputError(f"{where}: it holds {store.capacity_words} words: the least is 1")
    for name in ("metadata_words", "aside", "metadata_bits", "metadata_width"):
        if (getattr(store, name) or 0) < 0:
            raise InputError(f"{where}: {name} is {getattr(store, name)}: give 0 or more")
    if store.kind not in KINDS:
        raise InputError(f"{where}: {unknown('kind of memory', store.kind, KINDS)}")
    for what in ("read_bandwidth", "write_bandwidth"):
        rate = getattr(store, what)
        if rate is not None and not SLOWEST <= rate <= FASTEST:
            raise InputError(
                f"{where}: {what} is {rate}: give words for each cycle, from {SLOWEST:g} to {FASTEST:g}, or leave it "
                "out for no limit"
            )
    check_energies(store.energies, where)


def check_energies(energies: Energies, where: str) -> None:
    """Refuse energies that are none.

    Raises:
        InputError: a negative energy, one above :data:`MOST_J`, or one that is not a number.
    """
    for field in fields(Energies):
        value = getattr(energies, field.name)
        if value is None or 0 <= value <= MOST_J:
            continue
        cure = f"the most is {MOST_J / 1e-12:g}" if value > MOST_J else "give 0 or more"
        raise InputError(f"{where}: the energy of {field.name} is {value / 1e-12:g} pJ: {cure}")


def check_keeps(architecture: Architecture, problems: Sequence[Problem] = ()) -> None:
    """Refuse a store that keeps what no problem has.

    Args:
        architecture: the design.
        problems: those given, beside our own kinds (convolutions, products, attention), which models consist of.

    Raises:
        InputError: a name that is neither a role (``ROLES``) nor a tensor of one of the problems.
    """
    given = (tensor.name for problem in problems for tensor in problem.tensors)
    known = list(dict.fromkeys([*ROLES, *OF_ATTENTION, *given]))
    for store in architecture.stores:
        for name in store.keeps or ():
            if name not in known:
                raise InputError(f"architecture {architecture.name}, {store.name}: {unknown('tensor', name, known)}")


def tensors_kept(store: Store, problem: Problem) -> tuple[str, ...]:
    """Tensors of a problem that a store keeps of itself, by name or role (:meth:`Problem.played_by`)."""
    names = tuple(tensor.name for tensor in problem.tensors)
    if store.keeps is None:
        return names
    kept = {problem.played_by(name) for name in store.keeps}
    return tuple(name for name in names if name in kept)
