"""ASTRA-sim's input files, written for tests."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import yaml

from triosim.interop.astra.job import Job
from triosim.interop.astra.network import BYTES_PER_GB, Dimension, Network
from triosim.interop.astra.system import KINDS, AstraSystem, Choice
from triosim.interop.chakra.file import write
from triosim.interop.chakra.trace import Comm, ExecutionTrace, Node, TraceBuilder

GOLDEN = Path(__file__).parents[1] / "golden" / "astra_sim_runs.csv"

VALIDATED = {
    "scheduling-policy": "LIFO", "endpoint-delay": 10, "active-chunks-per-dimension": 2, "preferred-dataset-splits": 4,
    "all-reduce-implementation": ["ring"], "all-gather-implementation": ["ring"],
    "reduce-scatter-implementation": ["ring"], "all-to-all-implementation": ["ring"],
    "collective-optimization": "localBWAware", "local-mem-bw": 3350, "boost-mode": 0,
}  # fmt: skip
"""The system file with which the survey's Table 7 was made (ASTRA-sim's ``HGX-H100-validated``)."""

SWITCH_400 = {"topology": ["Switch"], "npus_count": [8], "bandwidth": [400.0], "latency": [936.25]}
"""Its network file."""


def dimension(topology: str, npus: int, gigabytes: float, latency_ns: float) -> Dimension:
    """One dimension with the units of the network file."""
    return Dimension(topology, npus, gigabytes * BYTES_PER_GB, latency_ns * 1e-9)


def system(
    *names: str, splits: int = 4, active: int = 1, endpoint: int = 10, memory: float = 1600.0, aware: bool = True
) -> AstraSystem:
    """A system layer with one implementation for each dimension, for all collectives."""
    choices = tuple(Choice(name) for name in names)
    return AstraSystem(
        choices=dict.fromkeys(KINDS, choices), flat=dict.fromkeys(KINDS, False), policy="LIFO",
        local_bandwidth_aware=aware, splits=splits, active=active, endpoint_ns=endpoint, memory_bandwidth=memory,
        peak_flops=0.0, roofline=False, replay=False,
    )  # fmt: skip


def collective(kind: str, size: int) -> ExecutionTrace:
    """A trace of one collective among all ranks."""
    builder = TraceBuilder()
    builder.add(Node.COMM_COLL, kind, comm=int(Comm[kind.upper()]), size=size)
    return builder.build()


def job(network: Network, layer: AstraSystem, trace: Callable[[int], ExecutionTrace], **options: object) -> Job:
    """A job in which rank r has the trace ``trace(r)``."""
    return Job([trace(rank) for rank in range(network.npus)], network, layer, {}, **options)  # type: ignore[arg-type]


def golden_network(name: str, npus: int) -> Network:
    """The network of a row of the golden file."""
    if name == "2d":
        near = 8 if npus > 8 else 4
        dims = (dimension("Switch", near, 400, 936.25), dimension("Switch", npus // near, 50, 1000))
        return Network(name, dims)
    topology = {"ring": "Ring", "switch": "Switch", "switch-hd": "Switch", "fc": "FullyConnected"}[name]
    return Network(name, (dimension(topology, npus, 50, 500),))


def golden_choice(network: str, kind: str) -> str:
    """The implementation of a row of the golden file."""
    if kind == "all_to_all" or network == "fc":
        return "direct"
    return "halving-doubling" if network == "switch-hd" else "ring"


def golden_runs() -> list[dict[str, str]]:
    """Rows of the golden file."""
    lines = [line for line in GOLDEN.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def save(folder: Path, traces: list[ExecutionTrace], layer: dict, network: dict) -> list[str]:
    """Write all files of a workload; returns the options of the command."""
    for rank, trace in enumerate(traces):
        write(trace, folder / f"work.{rank}.et")
    (folder / "system.json").write_text(json.dumps(layer))
    (folder / "network.yml").write_text(yaml.safe_dump(network))
    names = ("--workload", folder / "work", "--system", folder / "system.json", "--network", folder / "network.yml")
    return [str(name) for name in names]
