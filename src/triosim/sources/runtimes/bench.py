"""Measuring a runtime on this machine: many kernels by themselves, as a trace of operators without a model."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.sources.readers._graph import GraphOperator, GraphTensor, NetworkGraph
from triosim.sources.readers._onnx_operators import forward_trace
from triosim.sources.runtimes.draws import LONGEST_S, Draws
from triosim.sources.runtimes.fusion import FusionChain, chains, fusion
from triosim.sources.runtimes.graphs import GraphDraft, WrittenGraph
from triosim.sources.runtimes.kernels import KernelNetwork, RuntimeRates, kernels, large_copy, product
from triosim.sources.runtimes.rules import Fusion, RuntimeRules
from triosim.sources.runtimes.runtime import InferenceRuntime, Unsupported
from triosim.trace.tables import Meta, Trace

STEADY = 0.10
"""Drift that is no more than usual."""
TOO_MUCH = 1.0
"""Drift from which on the times say nothing."""
_REFERENCE_EVERY = 20
_MOST_KERNELS = 600
_OF_CHAINS = 0.3
"""Part of the budget after which no further chain is measured."""
_SHORTER, _SHORTEST_LIMIT_S = 0.7, 1e-3


class BenchmarkProgress(NamedTuple):
    """How far the measurements are: seconds gone, seconds allowed, and what is measured now."""

    gone_s: float
    budget_s: float
    what: str


@dataclass(frozen=True)
class KernelBenchmark:
    """Measured kernels.

    Attributes:
        trace: one operator each, with its time; not a step of anything.
        drift: largest over smallest time of the kernel that is always the same, less one.
        versions: of the framework and the driver.
        threads: of the host that ran the kernels, 0 on an accelerator.
        rules: how the runtime runs networks of such kernels, None where it runs every operator as it is written.
    """

    trace: Trace
    drift: float
    versions: dict[str, str]
    threads: int
    rules: RuntimeRules | None = None


def measure_runtime(
    runtime: InferenceRuntime, budget_s: float, progress: Callable[[BenchmarkProgress], None] = lambda progress: None
) -> KernelBenchmark:
    """Measure kernels as a runtime runs them on this machine until the budget is used up.

    Args:
        runtime: that runs them.
        budget_s: seconds that it may take; a large copy and a product, which describe the device, are always measured.
        progress: called before each kernel.

    Raises:
        InputError: the machine is too busy to measure anything.
    """
    began = time.monotonic()
    progress(BenchmarkProgress(0.0, budget_s, "a first look at the device"))
    rates = _rates(runtime)
    first = product(max(int((2e-3 * rates.flop / 2) ** (1 / 3) // 64), 1) * 64)
    always, describing = first.graph, (large_copy(), first)
    draws = Draws(longest_s=min(LONGEST_S, max(budget_s / 4000, _SHORTEST_LIMIT_S)))
    measured: list[tuple[KernelNetwork, float]] = []
    reference = [runtime.seconds(always)]

    def gone(what: str) -> float:
        seconds = time.monotonic() - began
        progress(BenchmarkProgress(seconds, budget_s, what))
        return seconds

    rules = RuntimeRules(
        runtime.name, runtime.version, runtime.threads, runtime.call_s(),
        tuple(fusions(chains(), runtime.seconds, lambda: gone("what runs as one") < _OF_CHAINS * budget_s)),
        unused_runs(runtime.seconds),
    )  # fmt: skip
    begun = time.monotonic() - began
    for number, kernel in enumerate(chain(describing, kernels(draws, rates))):
        seconds = gone(kernel.what)
        if (seconds > 0.97 * budget_s and number >= len(describing)) or number >= _MOST_KERNELS:
            break
        if number and number % _REFERENCE_EVERY == 0:
            reference.append(runtime.seconds(always))
            if (seconds - begun) / number * _MOST_KERNELS > budget_s - begun:
                draws.longest_s = max(draws.longest_s * _SHORTER, _SHORTEST_LIMIT_S)
        try:
            measured.append((kernel, _seconds(runtime, kernel)))
        except Unsupported:
            continue
    reference.append(runtime.seconds(always))
    drift = max(reference) / min(reference) - 1
    if drift > TOO_MUCH:
        raise InputError(
            f"the same kernel took between {min(reference) * 1e3:.3g} and {max(reference) * 1e3:.3g} ms while "
            "measuring: something else uses the machine, measure again when it is idle"
        )
    trace = kernel_trace(measured, processor(), f"{runtime.name} {runtime.version}")
    return KernelBenchmark(trace, drift, {runtime.name: runtime.version}, runtime.threads, rules)


def kernel_trace(measured: Sequence[tuple[KernelNetwork, float]], device: str, framework: str) -> Trace:
    """Kernels with their seconds as a trace of one operator each."""
    operators: list[GraphOperator] = []
    tensors: dict[str, GraphTensor] = {}
    given: list[str] = []
    results: list[str] = []
    for number, (kernel, _) in enumerate(measured):
        network, prefix = kernel.graph.network, f"k{number}"
        tensors |= {f"{prefix}/{name}": tensor for name, tensor in network.tensors.items()}
        given += [f"{prefix}/{name}" for name in network.inputs]
        results += [f"{prefix}/{name}" for name in network.outputs]
        for node in network.operators:
            reads, writes = (tuple(f"{prefix}/{name}" if name else "" for name in names)
                             for names in (node.inputs, node.outputs))  # fmt: skip
            operators.append(GraphOperator(prefix, node.type, reads, writes, node.attributes))
    meta = Meta(
        made_by="triosim.calibrate", workload="micro-benchmarks", device=device, framework=framework, clock="cpu"
    )
    trace = forward_trace(NetworkGraph(operators, tensors, given, results), meta, "micro-benchmarks")
    seconds = np.full(len(trace), np.nan)
    by_name = {f"k{number}": taken for number, (_, taken) in enumerate(measured)}
    for row in np.flatnonzero(~trace.operators.view).tolist():
        seconds[row] = by_name[trace.modules.path[trace.operators.module[row]]]
    return replace(trace, operators=replace(trace.operators, device_s=seconds))


def fusions(
    every: Iterator[list[FusionChain]],
    seconds: Callable[[WrittenGraph], float],
    more: Callable[[], bool] = lambda: True,
) -> Iterator[Fusion]:
    """What runs as one, of these chains.

    Args:
        every: chains, each at several sizes.
        seconds: of a network.
        more: whether there is time for another chain.
    """
    known = _remembered(seconds)
    for sizes in every:
        if not more():
            return
        try:
            found = fusion(sizes, known)
        except Unsupported:
            continue
        if found is not None:
            yield found


def unused_runs(seconds: Callable[[WrittenGraph], float]) -> bool:
    """Whether an operator runs whose result nobody reads."""
    net = GraphDraft()
    y = net.linear(net.input("x", 64, 256), 256)
    once = seconds(net.graph(y))
    net.linear("x", 256)
    return seconds(net.graph(y)) > 1.5 * once


def processor() -> str:
    """Name of this machine's processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _remembered(seconds: Callable[[WrittenGraph], float]) -> Callable[[WrittenGraph], float]:
    """Measures equal networks once."""
    known: dict[str, float] = {}

    def of(graph: WrittenGraph) -> float:
        key = repr((graph.network.operators, sorted(graph.network.tensors.items()), sorted(graph.values.items())))
        if key not in known:
            known[key] = seconds(graph)
        return known[key]

    return of


def _seconds(runtime: InferenceRuntime, kernel: KernelNetwork) -> float:
    if kernel.within is None:
        return runtime.seconds(kernel.graph)
    before = frozenset(node.type for node in kernel.within.network.operators[:-1])
    try:
        return runtime.seconds(kernel.within, before)
    except Unsupported:
        return runtime.seconds(kernel.graph)


def _rates(runtime: InferenceRuntime) -> RuntimeRates:
    side, elements = 512, 2**21
    net = GraphDraft()
    copy = net.graph(net.concat(1, net.input("x", 1, elements), net.input("y", 1, elements)))
    return RuntimeRates(2.0 * side**3 / runtime.seconds(product(side).graph), 16.0 * elements / runtime.seconds(copy))
