"""What a mapping costs: cycles, joules at every level, how busy the units are and what binds.

Energy counts whole accesses: the words that one instance moves, divided by the words of an access, rounded up.  Leakage
is paid by the instances in use for every cycle.

Three readings of time, from the most hopeful (``--timing``):

* ``ideal``: every iteration of the loops takes a cycle, nothing else.
* ``bandwidth``: what moves through the busiest port takes its time too, all of it beside the work.
* ``double-buffer``: a store with one copy of its tiles cannot be filled while it is used, so that its transfers are
  added; one with two hides all but the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from triosim.accelerator import mapping as mappings
from triosim.accelerator.architecture import Architecture
from triosim.accelerator.mapping import LoopMapping
from triosim.accelerator.nest import AccessCounts, Floats, LoopNest
from triosim.accelerator.problem import Problem
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, unknown

TIMINGS = ("ideal", "bandwidth", "double-buffer")
FILLING = "waiting for fills"
"""What binds where units wait longer for stores to be filled than they or any port work."""


@dataclass(frozen=True)
class MappingCosts:
    """What each of B mappings costs.

    Attributes:
        counts: what moves.
        energy_j: (stores, tensors, B) joules of accesses, over all instances.
        leakage_j: (stores, B).
        compute_j: (B).
        cycles: (B).
        port_cycles: (stores, 2, B) cycles that reading and writing take at the bandwidth; 0 where it is unlimited.
        over_words: (stores, B) words by which the tiles exceed a store, 0 where they fit.
    """

    counts: AccessCounts
    energy_j: Floats
    leakage_j: Floats
    compute_j: Floats
    cycles: Floats
    port_cycles: Floats
    over_words: Floats

    @property
    def total_j(self) -> Floats:
        """(B) joules."""
        total: Floats = self.energy_j.sum(axis=(0, 1)) + self.leakage_j.sum(axis=0) + self.compute_j
        return total


def costs(
    nest: LoopNest, factors: NDArray[np.int64], orders: NDArray[np.int8], timing: str = "bandwidth"
) -> MappingCosts:
    """Costs of many mappings; see :meth:`LoopNest.count` for the arrays.

    Raises:
        InputError: ``timing`` is none of :data:`TIMINGS`.
    """
    return priced(nest, nest.count(factors, orders), timing)


def priced(nest: LoopNest, counts: AccessCounts, timing: str = "bandwidth") -> MappingCosts:
    """Costs of what moves.

    Raises:
        InputError: ``timing`` is none of :data:`TIMINGS`.
    """
    if timing not in TIMINGS:
        raise unknown("timing", timing, TIMINGS)
    stores = nest.architecture.stores
    energy = np.zeros_like(counts.reads)
    ports = np.zeros((len(stores), 2, counts.reads.shape[2]))
    over = np.zeros_like(counts.instances)
    leakage = np.zeros_like(counts.instances)
    for s, store in enumerate(stores):
        rows = _rows(nest, counts, s)
        e = store.energies
        for t in range(len(nest.problem.tensors)):
            if not nest.keeps[s][t]:
                continue
            accesses = (
                (counts.reads[s, t], e.read), (counts.fills[s, t], e.write), (counts.updates[s, t], e.update)
            )  # fmt: skip
            energy[s, t] = rows * sum(np.ceil(n / store.words_per_access) * (joules or 0.0) for n, joules in accesses)
        if store.read_bandwidth is not None:
            ports[s, 0] = counts.reads[s].sum(axis=0) / store.read_bandwidth
        if store.write_bandwidth is not None:
            ports[s, 1] = (counts.fills[s] + counts.updates[s]).sum(axis=0) / store.write_bandwidth
        if store.capacity_words is not None:
            needed = counts.tile[s].sum(axis=0) * store.buffering
            over[s] = np.maximum(needed - store.capacity_words, 0.0)
    cycles = counts.steps
    if timing != "ideal":
        cycles = np.maximum(cycles, _whole_cycles(ports.max(axis=(0, 1))))
    if timing == "double-buffer":
        cycles = _whole_cycles(_buffered(nest, counts, ports))
    for s, store in enumerate(stores):
        leakage[s] = (store.energies.leak or 0.0) * cycles * counts.instances[s]
    compute = (nest.architecture.compute.energies.compute or 0.0) * float(nest.problem.computes)
    return MappingCosts(counts, energy, leakage, np.full(len(cycles), compute), cycles, ports, over)


def _whole_cycles(cycles: Floats) -> Floats:
    """Cycles that have begun, as Timeloop counts those that a port binds; less than a part in 1e12 is rounding."""
    return np.ceil(cycles * (1.0 - 1e-12))


def _rows(nest: LoopNest, counts: AccessCounts, s: int) -> Floats:
    """(B) rows of a store that are paid for: instances in use, of which those of a cluster share one; those in use are
    taken to be spread over all clusters."""
    store = nest.architecture.stores[s]
    if store.cluster_size == 1:
        return counts.instances[s]
    there = max(nest.architecture.instances(store.name) // store.cluster_size, 1)
    return np.minimum(counts.instances[s], there)


def _buffered(nest: LoopNest, counts: AccessCounts, ports: Floats) -> Floats:
    """(B) cycles where only stores with two copies of their tiles are filled while they are used."""
    stores = nest.architecture.stores
    busy = counts.steps
    for s in reversed(range(len(stores))):
        reading, writing = ports[s]
        from_above = np.zeros_like(busy)
        first = np.zeros_like(busy)
        for t in range(len(nest.problem.tensors)):
            keepers = nest.keepers[t]
            if s not in keepers or s == keepers[0]:
                continue
            parent = keepers[keepers.index(s) - 1]
            rate = stores[parent].read_bandwidth
            if rate is not None:
                shared = counts.instances[s] / counts.instances[parent]
                from_above = from_above + counts.fills[s, t] * shared / rate
                first = first + np.where(counts.fills[s, t] > 0, counts.tile[s, t] * shared / rate, 0.0)
            own = stores[s].write_bandwidth
            if own is not None:
                first = np.maximum(first, np.where(counts.fills[s, t] > 0, counts.tile[s, t] / own, 0.0))
        moving = np.maximum(from_above, writing)
        if stores[s].buffering > 1 or s == 0:
            busy = np.maximum(busy, np.maximum(moving, reading)) + first
        else:
            busy = np.maximum(busy, reading) + moving
    return busy


# --- one mapping ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Access:
    """One tensor at one store.

    Attributes:
        store, tensor: their names.
        tile: words of the largest tile.
        instances: of the store in use.
        reads, fills, updates: words of one instance.
        energy_j: joules over all instances.
    """

    store: str
    tensor: str
    tile: float
    instances: float
    reads: float
    fills: float
    updates: float
    energy_j: float


@dataclass(frozen=True)
class Evaluation:
    """What one mapping costs.

    Attributes:
        architecture, problem, mapping, timing: what was evaluated.
        computes: multiplications with addition.
        cycles: see :data:`TIMINGS`.
        used, instances: compute units in use and there.
        accesses: for every store, from the outermost, each tensor that it keeps.
        leakage_j: (store, joules).
        compute_j: joules of all multiplications.
        binds: ``"compute"``, a store and port such as ``"DRAM read"``, or :data:`FILLING`.
        port_cycles: (store, cycles of reading, cycles of writing) at the bandwidth.
        clock_hz: cycles in a second; None where nobody stated it.
        assumed: components whose energies nobody stated, with what was taken for them.
        interval_j: joules between which those that are assumed leave the sum.
    """

    architecture: str
    problem: str
    mapping: LoopMapping
    timing: str
    computes: int
    cycles: float
    used: float
    instances: int
    accesses: tuple[Access, ...]
    leakage_j: tuple[tuple[str, float], ...]
    compute_j: float
    binds: str
    port_cycles: tuple[tuple[str, float, float], ...]
    clock_hz: float | None = None
    assumed: tuple[str, ...] = ()
    interval_j: tuple[float, float] = (0.0, 0.0)

    @property
    def energy_j(self) -> float:
        """Joules of everything."""
        return sum(a.energy_j for a in self.accesses) + sum(e for _, e in self.leakage_j) + self.compute_j

    @property
    def utilization(self) -> float:
        """Share of the compute units' cycles that is used, were nothing but the loops to take time."""
        return self.used / self.instances

    @property
    def seconds(self) -> float | None:
        """Time, where the clock is known."""
        return self.cycles / self.clock_hz if self.clock_hz else None

    @property
    def levels(self) -> dict[str, float]:
        """Joules of every store, its leakage included, and of the compute units."""
        found = dict.fromkeys([a.store for a in self.accesses], 0.0)
        for access in self.accesses:
            found[access.store] += access.energy_j
        for store, joules in self.leakage_j:
            found[store] = found.get(store, 0.0) + joules
        return {**found, "compute": self.compute_j}


def evaluate(
    architecture: Architecture, problem: Problem, mapping: LoopMapping, timing: str = "bandwidth", *,
    capacity: bool = True,
) -> Evaluation:  # fmt: skip
    """Evaluate one mapping.

    Args:
        architecture, problem, mapping: see there.
        timing: one of :data:`TIMINGS`.
        capacity: whether tiles that exceed a store are refused; compressed ones need less (:mod:`sparse`).

    Raises:
        InputError: it cannot run (:func:`triosim.accelerator.mapping.check`), or a tile exceeds its store.
    """
    mappings.check(mapping, architecture, problem)
    nest = LoopNest.of(architecture, problem, mapping)
    found = costs(nest, *nest.arrays([mapping]), timing)
    if capacity:
        check_capacity(nest, found)
    return evaluation(nest, found, mapping, timing)


def check_capacity(nest: LoopNest, found: MappingCosts, b: int = 0) -> None:
    """Refuse a mapping whose tiles exceed a store.

    Raises:
        InputError: with the store, its largest tensor, the words asked for and those there.
    """
    for s, store in enumerate(nest.architecture.stores):
        if found.over_words[s, b] > 0:
            tiles = found.counts.tile[s, :, b] * store.buffering
            largest = nest.problem.tensors[int(tiles.argmax())].name
            copies = f", in {store.buffering} copies" if store.buffering > 1 else ""
            raise InputError(
                f"the tiles at {store.name} take {tiles.sum():.0f} words{copies}, of which {largest} "
                f"{tiles.max():.0f}, and it holds {store.capacity_words}: make the loops at {store.name} and below "
                "smaller"
            )


def evaluation(nest: LoopNest, found: MappingCosts, mapping: LoopMapping, timing: str, b: int = 0) -> Evaluation:
    """One column of costs, for people."""
    counts, stores, tensors = found.counts, nest.architecture.stores, nest.problem.tensors
    accesses = tuple(
        Access(
            store.name, tensor.name, float(counts.tile[s, t, b]), float(counts.instances[s, b]),
            float(counts.reads[s, t, b]), float(counts.fills[s, t, b]), float(counts.updates[s, t, b]),
            float(found.energy_j[s, t, b]),
        )
        for s, store in enumerate(stores) for t, tensor in enumerate(tensors) if nest.keeps[s][t]
    )  # fmt: skip
    ports = {f"{store.name} {port}": found.port_cycles[s, p, b] for s, store in enumerate(stores)
             for p, port in enumerate(("read", "write"))}  # fmt: skip
    busiest = max(ports, key=lambda port: ports[port])
    binds = busiest if timing != "ideal" and ports[busiest] > counts.steps[b] else "compute"
    alone = max(ports[busiest], counts.steps[b]) if timing != "ideal" else counts.steps[b]
    if found.cycles[b] > 2 * alone:  # of stores with one copy of their tiles
        binds = FILLING
    made = Evaluation(
        architecture=nest.architecture.name, problem=nest.problem.name, mapping=mapping, timing=timing,
        computes=nest.problem.computes, cycles=float(found.cycles[b]),
        used=nest.problem.computes / float(counts.steps[b]),
        instances=nest.architecture.compute_instances, accesses=accesses,
        leakage_j=tuple((store.name, float(found.leakage_j[s, b])) for s, store in enumerate(stores)),
        compute_j=float(found.compute_j[b]), binds=binds,
        port_cycles=tuple(
            (store.name, float(found.port_cycles[s, 0, b]), float(found.port_cycles[s, 1, b]))
            for s, store in enumerate(stores)
        ),
        clock_hz=nest.architecture.clock_hz,
        assumed=tuple(f"{a.component}: {a.text}" for a in nest.architecture.assumed),
    )  # fmt: skip
    return replace(made, interval_j=_interval(made, nest.architecture))


def _interval(found: Evaluation, architecture: Architecture) -> tuple[float, float]:
    """Joules with what is assumed at its least and at its most."""
    factors = {a.component: (a.low, a.high) for a in architecture.assumed}
    factors["compute"] = factors.pop(architecture.compute.name, (1.0, 1.0))
    levels = found.levels
    low, high = (sum(joules * factors.get(name, (1.0, 1.0))[i] for name, joules in levels.items()) for i in (0, 1))
    return low, high


def as_json(found: Evaluation) -> dict[str, object]:
    """The evaluation as JSON holds it, joules and words."""
    levels: dict[str, dict[str, object]] = {}
    for a in found.accesses:
        levels.setdefault(a.store, {})[a.tensor] = {
            "tile": _whole(a.tile), "instances": _whole(a.instances), "reads": _whole(a.reads),
            "fills": _whole(a.fills), "updates": _whole(a.updates), "energy_j": a.energy_j,
        }  # fmt: skip
    energies: Mapping[str, float] = found.levels
    return {
        "schema": "triosim/accelerator-evaluation/1",
        "architecture": found.architecture,
        "problem": found.problem,
        "timing": found.timing,
        "computes": found.computes,
        "cycles": _whole(found.cycles),
        "seconds": found.seconds,
        "utilized_instances": _whole(found.used),
        "instances": found.instances,
        "utilization": found.utilization,
        "binds": found.binds,
        "energy_j": found.energy_j,
        "energy_interval_j": list(found.interval_j),
        "energy_j_by_level": dict(energies),
        "leakage_j": dict(found.leakage_j),
        "compute_j": found.compute_j,
        "energy_j_per_compute": found.energy_j / found.computes,
        "levels": levels,
        "port_cycles": {store: {"read": r, "write": w} for store, r, w in found.port_cycles},
        "assumed": list(found.assumed),
    }


def _whole(value: float) -> int | float:
    return int(value) if value == int(value) else value
