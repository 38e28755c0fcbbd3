"""ASTRA-sim's inputs in, what every rank did out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, printable, unknown
from triosim.core.units import format_time
from triosim.engine.graph import GraphRun, Stuck
from triosim.engine.play import play as play_graph
from triosim.engine.solver import SOLVERS, NetworkModel
from triosim.engine.stats import Stats, Stopwatch
from triosim.interop.astra import groups as group_file
from triosim.interop.astra import memory as memory_file
from triosim.interop.astra import network as network_file
from triosim.interop.astra import system as system_file
from triosim.interop.astra.job import SLOTS, AstraGraph, Job, lower
from triosim.interop.chakra.trace import ChakraNodeType, ChakraTrace

SCHEMA = "triosim/astra/1"

NANOSECOND = 1000
"""Picoseconds of a cycle: ASTRA-sim counts nanoseconds."""

MODELS = ("max-min", "store-and-forward", "uncontended")
"""Network models: links shared fairly, ASTRA-sim's congestion-aware back end, its congestion-unaware one."""

_CLOCKED = MODELS[1:]


@dataclass(frozen=True)
class RankResult:
    """What one rank did, in nanoseconds.

    Attributes:
        rank: which.
        cycles: until its last node had ended, as ASTRA-sim prints.
        exposed_cycles: ``cycles`` less the time of device computations, as ASTRA-sim prints.
        compute_cycles, host_cycles: sum of device and of host computations.
        communication_cycles: time with a send or a collective under way.
        nodes: nodes of its trace.
    """

    rank: int
    cycles: float
    exposed_cycles: float
    compute_cycles: float
    host_cycles: float
    communication_cycles: float
    nodes: int


@dataclass(frozen=True)
class AstraResult:
    """A simulated workload.

    Attributes:
        ranks: one row for each rank.
        workload, system, network: what was played: prefix, system file, dimensions.
        solver, slots: by which rules.
        collectives: collectives that were run.
        simulation: what was simulated: tasks, flows, instants at which links were shared anew.
        notes: what the user should know of the inputs, one sentence each.
        stats: what it took (not part of the JSON).
    """

    ranks: tuple[RankResult, ...]
    workload: str
    system: str
    network: str
    solver: str
    slots: str
    collectives: int
    simulation: dict[str, int]
    notes: tuple[str, ...]
    stats: Stats | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        """One line; there is a row for each rank."""
        words = f"{len(self.ranks):,} ranks, {self.collectives:,} collectives, {format_time(self.seconds)}"
        return printable(f"AstraResult of {self.workload} on {self.system}, {self.network}: {words}")

    @property
    def seconds(self) -> float:
        """Until the last rank had finished."""
        return max((rank.cycles for rank in self.ranks), default=0.0) * 1e-9

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; seconds and shares as in ``triosim/result/1``, cycles as ASTRA-sim prints."""
        n = max(len(self.ranks), 1)
        end = self.seconds
        compute = sum(rank.compute_cycles for rank in self.ranks) * 1e-9 / n
        exposed = sum(rank.exposed_cycles for rank in self.ranks) * 1e-9 / n
        return {
            "schema": SCHEMA,
            "iteration_time_s": end,
            "breakdown_s": {
                "compute": compute,
                "communication": sum(rank.communication_cycles for rank in self.ranks) * 1e-9 / n,
                "exposed_communication": exposed,
                "host": sum(rank.host_cycles for rank in self.ranks) * 1e-9 / n,
                "idle": max(end - compute - exposed, 0.0),
            },
            **{key: value for key, value in asdict(self).items() if key not in ("ranks", "notes", "stats")},
            "ranks": [asdict(rank) for rank in self.ranks],
            "notes": list(self.notes),
        }

    def to_json(self) -> str:
        """The JSON text."""
        return json.dumps(self.to_dict(), indent=1) + "\n"


def simulate(
    workload: str | Path,
    system: str | Path,
    network: str | Path,
    *,
    comm_group: str | Path | None = None,
    remote_memory: str | Path | None = None,
    solver: str = "max-min",
    slots: str = "one",
    progress: Callable[[str], None] | None = None,
) -> AstraResult:
    """Play what a user gives to ASTRA-sim.

    Args:
        workload: prefix of the traces: ``PREFIX.0.et``, ``PREFIX.1.et`` and so on, one for each NPU.
        system: system file, JSON.
        network: analytical network file, YAML.
        comm_group: communicator groups, JSON.
        remote_memory: remote-memory file, JSON.
        solver: one of :data:`MODELS`.
        slots: one of :data:`triosim.interop.astra.job.SLOTS`.
        progress: called with what is being done, in a few words.

    Raises:
        InputError: a file is wrong, or the files do not go together.
    """
    progress = progress or (lambda words: None)
    if solver not in MODELS:
        raise unknown("network model for ASTRA-sim's files", solver, MODELS)
    if slots not in SLOTS:
        raise unknown("rule of slots", slots, SLOTS)
    found, layer = network_file.read(network), system_file.read(system)
    declared = group_file.read(comm_group, found.npus) if comm_group is not None else {}
    memory = memory_file.read(remote_memory, found.npus) if remote_memory is not None else None
    progress("reading the traces")
    traces = read_traces(workload, found.npus)
    progress("playing the traces")
    job = Job(traces, found, layer, declared, slots, int(solver == "store-and-forward"), memory)
    result = play(job, solver)
    return AstraResult(
        ranks=result.ranks, workload=str(workload), system=str(system), network=found.describe(), solver=solver,
        slots=slots, collectives=result.collectives, simulation=result.simulation, notes=layer.notes,
        stats=result.stats,
    )  # fmt: skip


def read_traces(prefix: str | Path, ranks: int) -> list[ChakraTrace]:
    """The traces of all ranks.

    Raises:
        InputError: a file is missing or wrong.
    """
    from triosim.interop.chakra.file import read  # loads protobuf

    paths = [Path(f"{prefix}.{rank}.et") for rank in range(ranks)]
    missing = next((path for path in paths if not os.path.exists(path)), None)
    if missing is not None:
        raise InputError(
            f"{missing}: no such file: the network has {ranks} NPUs, and each needs its trace PREFIX.RANK.et"
        )
    return [read(path) for path in paths]


def play(job: Job, solver: str = "max-min") -> AstraResult:
    """Play a job whose parts have been read.

    Raises:
        InputError: the job can never end, or its parts do not go together.
    """
    clock = Stopwatch()
    lowered = lower(job)
    try:
        played = play_graph(lowered.graph, lowered.wires, model(solver))
    except Stuck:
        raise InputError(
            "the ranks wait for each other for ever: some meet in collectives or sends in another order than others; "
            "mend the traces, or try --slots recorded"
        ) from None
    ranks = tuple(_rank(rank, trace, lowered, played) for rank, trace in enumerate(job.traces))
    sizes = {"tasks": len(lowered.graph), "flows": played.flows, "events": played.events}
    return AstraResult(
        ranks, "", "", job.network.describe(), solver, job.slots, lowered.collectives, sizes, job.system.notes,
        clock.stats(played.engine),
    )  # fmt: skip


def model(name: str) -> NetworkModel:
    """The network model by its name, those of ASTRA-sim in whole nanoseconds."""
    make: Callable[..., NetworkModel] = SOLVERS.get(name)
    return make(clock=NANOSECOND) if name in _CLOCKED else make()


def _rank(rank: int, trace: ChakraTrace, lowered: AstraGraph, played: GraphRun) -> RankResult:
    start, finish = played.start[lowered.work[rank]], played.finish[lowered.work[rank]]
    computes = trace.kind == ChakraNodeType.COMP
    device, host = computes & ~trace.cpu, computes & trace.cpu
    moves = (trace.kind == ChakraNodeType.COMM_SEND) | (trace.kind == ChakraNodeType.COMM_COLL)
    end, busy = int(finish.max(initial=0)), int((finish - start)[device].sum())
    return RankResult(
        rank=rank,
        cycles=_cycles(end),
        exposed_cycles=_cycles(end - busy),
        compute_cycles=_cycles(busy),
        host_cycles=_cycles(int((finish - start)[host].sum())),
        communication_cycles=_cycles(_covered(start[moves], finish[moves])),
        nodes=len(trace),
    )


def _cycles(ticks: int) -> float:
    """Nanoseconds, a whole number where it is one."""
    return ticks // NANOSECOND if ticks % NANOSECOND == 0 else ticks / NANOSECOND


def _covered(start: NDArray[np.int64], end: NDArray[np.int64]) -> int:
    """Length of the union of intervals."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reach = np.maximum.accumulate(np.concatenate([[0], end]))[:-1]
    return int(np.maximum(end - np.maximum(start, reach), 0).sum())
