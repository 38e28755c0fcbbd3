"""The same kernels as files, to be measured where TrioSim does not run: a phone, a board, another machine.

A folder holds ``kernels.json``, one ONNX file for each network, and a page that says how to measure.  What comes back
is a table of the networks' names and times.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from triosim.core import guarded
from triosim.core.errors import InputError, quoted
from triosim.core.outputs import binary_output, text_output
from triosim.sources.readers._graph import GraphOperator, GraphTensor, NetworkGraph
from triosim.sources.runtimes.bench import KernelBenchmark, fusions, kernel_trace, unused_runs
from triosim.sources.runtimes.draws import Draws
from triosim.sources.runtimes.fusion import chains
from triosim.sources.runtimes.graphs import GraphDraft, WrittenGraph
from triosim.sources.runtimes.kernels import KernelNetwork, RuntimeRates, kernels
from triosim.sources.runtimes.onnx_file import onnx_text
from triosim.sources.runtimes.rules import RuntimeRules
from triosim.sources.runtimes.runtime import Unsupported

SCHEMA = "triosim/kernels/1"
LIST, PAGE = "kernels.json", "README.md"
"""Names of the files beside the networks."""
KERNELS = 300
"""Kernels that are exported."""
FASTEST = RuntimeRates(40e9, 10e9)
"""Rates that the sizes are drawn by: a phone's large core.  Slower ones take longer, faster ones are told less of what
takes long."""
LONGEST_S = 10e-3
CALL = "call"
"""What the network is for that tells how long a call takes: it does next to nothing."""
_LARGEST = 16 * 2**20
"""Bytes of weights of a kernel that is exported."""


def export(folder: Path, progress: Callable[[str], None] = lambda name: None) -> int:
    """Write kernels, chains and what else is to be measured into an empty folder.

    Args:
        folder: it exists.
        progress: called with the name of each network.

    Returns:
        How many networks there are.

    Raises:
        InputError: the package ``onnx`` is not installed.
    """
    rows = []
    for number, (role, what, graph) in enumerate(_exported()):
        name = f"k{number:04d}"
        progress(name)
        with binary_output(folder / f"{name}.onnx") as network:
            network.write(onnx_text(graph))
        rows.append({"kernel": name, "role": role, "what": what, **_document(graph)})
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    with text_output(folder / LIST) as file:
        file.write(f'{{"schema": "{SCHEMA}", "kernels": [\n{lines}\n]}}\n')
    with text_output(folder / PAGE) as file:
        file.write(_PROTOCOL.format(count=len(rows), last=rows[-1]["kernel"]))
    return len(rows)


def is_exported(name: str) -> bool:
    """Whether a file of this name may be one of those that :func:`export` writes."""
    return name in (LIST, PAGE) or (name.startswith("k") and name.endswith(".onnx"))


def imported(folder: Path, times: Mapping[str, float], device: str, runtime: str, threads: int) -> KernelBenchmark:
    """What was measured elsewhere.

    Args:
        folder: that :func:`export` has written.
        times: median seconds of a call of each network, by name; not all need be there.
        device: what to call it.
        runtime: name of what ran the networks.
        threads: that it used.

    Raises:
        InputError: there is no such folder, or a network is unknown, was faster than any device could run it, or
            nothing of use was measured.
    """
    path = folder / LIST
    if not os.path.exists(path):
        raise InputError(
            f"{folder} has no {LIST}, which says what each kernel is: put the table into the folder that triosim "
            "calibrate --export-kernels has written"
        )
    document = guarded.values(path, ".json")
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InputError(f"{path} is no list of kernels: triosim calibrate --export-kernels {folder} writes one")
    try:
        rows = {str(row["kernel"]): (str(row["role"]), str(row["what"]), _graph(row)) for row in document["kernels"]}
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise InputError(f"{path} is broken ({quoted(str(error))}): export the kernels again") from None
    for name in times:
        if name not in rows:
            raise InputError(f"{quoted(name)} is no kernel of {path}: give the table of what was measured from there")
    calls = [times[name] for name, (role, _, _) in rows.items() if role == CALL and name in times]
    call_s = min(calls, default=0.0)
    _check_rates([(name, graph, times[name]) for name, (_, _, graph) in rows.items() if name in times], path, device)
    known = {_key(graph): times[name] - call_s for name, (_, _, graph) in rows.items() if name in times}

    def seconds(graph: WrittenGraph) -> float:
        found = known.get(_key(graph))
        if found is None:
            raise Unsupported("it was not measured")
        return max(found, 1e-9)

    measured = [
        (KernelNetwork(what, graph), times[name] - call_s)
        for name, (role, what, graph) in rows.items()
        if role == "kernel" and times.get(name, 0.0) > call_s
    ]
    if not measured:
        raise InputError(f"no kernel of {path} was measured: give the times of k0000 and those that follow")
    try:
        unused = unused_runs(seconds)
    except Unsupported:
        unused = False
    rules = RuntimeRules(runtime, "", threads, call_s, tuple(fusions(chains(), seconds)), unused)
    return KernelBenchmark(kernel_trace(measured, device, runtime), 0.0, {}, threads, rules)


def _check_rates(measured: list[tuple[str, WrittenGraph, float]], path: Path, device: str) -> None:
    """Refuse times in which nothing could have done the work: another unit than the column says, or another kernel.

    Raises:
        InputError: a network did more FLOP in a second than the catalog's fastest device can in any type.
    """
    from triosim.hardware import catalog

    peaks = {name: max(catalog.accelerator(name).peak_flops.values(), default=0.0) for name in catalog.accelerators()}
    fastest = max(peaks, key=peaks.__getitem__)
    trace = kernel_trace([(KernelNetwork(name, graph), seconds) for name, graph, seconds in measured], device, "")
    flop: dict[str, float] = {}
    for row in np.flatnonzero(trace.operators.flop > 0).tolist():
        kernel = trace.modules.path[trace.operators.module[row]]
        flop[kernel] = flop.get(kernel, 0.0) + float(trace.operators.flop[row])
    for number, (name, _, seconds) in enumerate(measured):
        rate = flop.get(f"k{number}", 0.0) / seconds
        if rate > peaks[fastest]:
            raise InputError(
                f"{path.parent}: {name} did {flop[f'k{number}']:.3g} FLOP in {seconds:.3g} s, more in a second than "
                f"{fastest} can: say the unit of the times in the column's name, ms, us or seconds"
            )


def _exported() -> Iterator[tuple[str, str, WrittenGraph]]:
    """Role, words and network of everything that is to be measured, each network once."""
    seen: set[str] = set()

    def fresh(role: str, what: str, graph: WrittenGraph) -> Iterator[tuple[str, str, WrittenGraph]]:
        key = _key(graph)
        if key not in seen:
            seen.add(key)
            yield role, what, graph

    net = GraphDraft()
    yield from fresh(CALL, "a call", net.graph(net.relu(net.input("x", 1, 8))))
    drawn = (one for one in kernels(Draws(longest_s=LONGEST_S), FASTEST) if _weights(one.graph) <= _LARGEST)
    for kernel in itertools.islice(drawn, KERNELS):
        yield from fresh("kernel", kernel.what, kernel.graph)
    parts: list[WrittenGraph] = []

    def noted(graph: WrittenGraph) -> float:
        parts.append(graph)
        return 1.0

    list(fusions(chains(), noted))
    unused_runs(noted)
    for graph in parts:
        yield from fresh("chain", " + ".join(node.type for node in graph.network.operators), graph)


def _weights(graph: WrittenGraph) -> int:
    """Bytes."""
    constants = (t for name, t in graph.network.tensors.items() if t.constant and name not in graph.values)
    return sum(4 * math.prod(int(side) for side in tensor.shape) for tensor in constants)


def _document(graph: WrittenGraph) -> dict[str, Any]:
    network = graph.network
    return {
        "operators": [[n.type, list(n.inputs), list(n.outputs), dict(n.attributes)] for n in network.operators],
        "tensors": {n: [[int(s) for s in t.shape], t.dtype, t.constant] for n, t in network.tensors.items()},
        "inputs": list(network.inputs),
        "outputs": list(network.outputs),
        "values": {name: list(value) for name, value in graph.values.items()},
    }


def _key(graph: WrittenGraph) -> str:
    document = _document(graph)
    used = {name for node in graph.network.operators for name in (*node.inputs, *node.outputs)}
    document["tensors"] = {name: tensor for name, tensor in document["tensors"].items() if name in used}
    return json.dumps(document, sort_keys=True)


def _graph(row: Mapping[str, Any]) -> WrittenGraph:
    operators = [
        GraphOperator(f"{type_}_{at}", type_, tuple(given), tuple(made), attributes)
        for at, (type_, given, made, attributes) in enumerate(row["operators"])
    ]
    tensors = {
        name: GraphTensor(tuple(int(side) for side in shape), dtype, bool(constant))
        for name, (shape, dtype, constant) in row["tensors"].items()
    }
    network = NetworkGraph(operators, tensors, list(row["inputs"]), list(row["outputs"]))
    return WrittenGraph(network, {name: list(value) for name, value in row["values"].items()})


_PROTOCOL = """# Measuring a device for TrioSim

k0000.onnx to {last}.onnx are {count} networks of one operator or few, with random weights and a batch of one.
kernels.json says what each is.

1. Convert each as the network that you care about would be: same runtime, delegate, precision and number of threads.
2. Let the device rest until it is cool, plugged in, with its screen on or off as it will be in use.
3. For each network: load it, run it five times to get warm, then run it at least ten times, until half a second has
   passed.  Note the median time of a run, without loading and without reading results back where the runtime says so.
4. Run k0000 again at the end.  If it differs by more than a tenth from the first time, let the device cool and repeat.
5. Write a table, one line for each network that ran (others may be left out):

       kernel,ms
       k0000,0.021
       k0001,1.384

Put it beside these files as measured.csv, and let TrioSim learn the device from it:

    triosim calibrate --import measured.csv --device my-phone -o my-phone.json
    triosim infer network.onnx --operator-times my-phone.json
"""
