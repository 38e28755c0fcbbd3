"""The cases on which ASTRA-sim's rules are compared with its own runs."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

from triosim.interop.astra.implementation import MessageCosts
from triosim.interop.astra.job import Job
from triosim.interop.astra.network import BYTES_PER_GB, AstraNetwork, Dimension
from triosim.interop.astra.system import KINDS, AstraSystem, DimensionAlgorithm
from triosim.interop.chakra.trace import ChakraNodeType, ChakraTrace, ChakraTraceBuilder, Comm

GOLDEN = Path(__file__).parents[2] / "tests" / "golden" / "astra_sim_runs.csv"

TABLE_7 = {"all_reduce": 57_426, "all_gather": 44_058, "reduce_scatter": 28_950, "all_to_all": 114_000}
"""Cycles of 1 MB on 8 GPUs in Table 7 of the survey, which its congestion-aware back end gives."""
TABLE_7_UNAWARE = {"all_reduce": 55_222, "all_gather": 34_908, "reduce_scatter": 27_810, "all_to_all": 109_668}
"""The same with the congestion-unaware back end (own runs of ASTRA-sim)."""
RESNET = {2: (741.34, 574_289, 7_607), 4: (741.34, 1_454_270, 22_678), 8: (400.0, 3_307_886, 52_830)}
"""GPUs -> GB/s of the network file, communication and exposed cycles of ResNet-50 in Table 7."""
RESNET_COMPUTE_US = 1_082_450
ACTIVE = {(1, 1): (6163, 10538), (2, 4): (3121, 5387), (4, 4): (1560, 4455), (16, 16): (410, 4396)}
"""(active chunks, splits) -> microseconds of a 1 GiB all-reduce on 8 GPUs, unaware and aware (own runs)."""


def dimension(topology: str, npus: int, gigabytes: float, latency_ns: float) -> Dimension:
    """One dimension with the units of the network file."""
    return Dimension(topology, npus, gigabytes * BYTES_PER_GB, latency_ns * 1e-9)


def system(
    *names: str, splits: int = 4, active: int = 1, endpoint: int = 10, memory: float = 1600.0, aware: bool = True
) -> AstraSystem:
    """A system layer with one implementation for each dimension, for all collectives."""
    choices = tuple(DimensionAlgorithm(name) for name in names)
    return AstraSystem(
        choices=dict.fromkeys(KINDS, choices), flat=dict.fromkeys(KINDS, False), policy="LIFO",
        local_bandwidth_aware=aware, splits=splits, active=active, costs=MessageCosts(endpoint, memory),
        peak_flops=0.0, roofline=False, replay=False,
    )  # fmt: skip


def collective(kind: str, size: int) -> ChakraTrace:
    """A trace of one collective among all ranks."""
    builder = ChakraTraceBuilder()
    builder.add(ChakraNodeType.COMM_COLL, kind, comm=int(Comm[kind.upper()]), size=size)
    return builder.build()


def job(network: AstraNetwork, layer: AstraSystem, trace: Callable[[int], ChakraTrace], **options: Any) -> Job:
    """A job in which rank r has the trace ``trace(r)``; ``options`` are further fields of the job."""
    return Job([trace(rank) for rank in range(network.npus)], network, layer, {}, **options)


def golden_network(name: str, npus: int) -> AstraNetwork:
    """The network of a row of the golden file."""
    if name == "2d":
        near = 8 if npus > 8 else 4
        dims = (dimension("Switch", near, 400, 936.25), dimension("Switch", npus // near, 50, 1000))
        return AstraNetwork(name, dims)
    topology = {"ring": "Ring", "switch": "Switch", "switch-hd": "Switch", "fc": "FullyConnected"}[name]
    return AstraNetwork(name, (dimension(topology, npus, 50, 500),))


def golden_choice(network: str, kind: str) -> str:
    """The implementation of a row of the golden file."""
    if kind == "all_to_all" or network == "fc":
        return "direct"
    return "halving-doubling" if network == "switch-hd" else "ring"


def golden_runs() -> list[dict[str, str]]:
    """Rows of the golden file."""
    lines = [line for line in GOLDEN.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def hgx(npus: int = 8, gigabytes: float = 400.0) -> AstraNetwork:
    """ASTRA-sim's HGX-H100 network."""
    return AstraNetwork("hgx", (dimension("Switch", npus, gigabytes, 936.25),))


def resnet50_gradients() -> list[int]:
    """Bytes of the gradients of ResNet-50's 53 convolutions and its last layer in float32, first layer first."""
    from triosim.sources.modelling import model

    trace = model("resnet50")
    weights = trace.weights()
    columns = zip(trace.values.bytes()[weights].tolist(), trace.values.shape.take(weights).lists(), strict=True)
    return [size for size, shape in columns if len(shape) > 1]


def resnet50(rank: int = 0) -> ChakraTrace:
    """ResNet-50 data parallel as ASTRA-sim's converter writes it: one all-reduce per layer beside computation.

    How the computation is spread over the layers does not matter: it always outlasts the all-reduce beside it.
    """
    sizes = resnet50_gradients()
    builder, last = ChakraTraceBuilder(), 0
    for number, size in enumerate(reversed(sizes)):
        micros = RESNET_COMPUTE_US // len(sizes) + (number < RESNET_COMPUTE_US % len(sizes))
        last = builder.add(ChakraNodeType.COMP, "layer", micros=micros, before=[last] if last else [])
        builder.add(ChakraNodeType.COMM_COLL, "gradient", comm=int(Comm.ALL_REDUCE), size=size, before=[last])
    return builder.build()
