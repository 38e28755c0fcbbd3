"""ONNX Runtime on the CPU, by the times that its own profiler gives each operator.

Whole networks of one operator would not do: the runtime lays images out in blocks of channels, and what turns the input
and the result of a lone convolution takes longer than many convolutions.  Its profiler tells them apart.  It counts
whole microseconds, of which the mean over the faster half of many runs counts; what an operator takes beside its kernel
is measured by a long chain of small ones.

With one thread a run is what the thread itself took.  The profiler's clock is that on the wall: what a run had to wait
for the processor is taken from the operators that took longer in it than in other runs (:func:`without_waits`).

Several copies with weights and inputs of their own stand beside each other, so that no run finds in a cache what it
would not find there in a network.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core import guarded
from triosim.core.errors import InputError
from triosim.sources.runtimes.graphs import GraphDraft, WrittenGraph
from triosim.sources.runtimes.onnx_file import inputs, onnx_text
from triosim.sources.runtimes.runtime import Unsupported

SETS_BYTES, MOST_SETS = 64 * 2**20, 8
"""Bytes that all copies read, as far as so many copies reach."""
FEWEST, MOST, ENOUGH_S = 5, 60, 0.08
"""A kernel runs so often; less often once all its runs have taken so long."""
_WARM = 2
_CHAIN = 200
_NOTHING_S = 1e-12
_LEAST_S = 100e-9
"""No operator takes less: two hundred small ones in a chain took 190 ns each."""
_MOVES = ("ReorderInput", "ReorderOutput")
"""What lays images out for operators before and after, and belongs to none."""


class OnnxRuntime:
    """See :class:`~triosim.sources.runtimes.runtime.InferenceRuntime`.

    Raises:
        InputError: the packages ``onnx`` and ``onnxruntime`` are not installed.
    """

    name = "onnxruntime"

    def __init__(self, threads: int) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise InputError(
                "--runtime onnxruntime takes the package of that name: pip install 'triosim[onnx]'"
            ) from None
        self._ort, self.threads = onnxruntime, threads
        self.version = str(onnxruntime.__version__)
        onnxruntime.set_default_logger_severity(4)

    def seconds(self, graph: WrittenGraph, beside: frozenset[str] = frozenset()) -> float:
        read = sum(
            4 * math.prod(tensor.shape)
            for name, tensor in graph.network.tensors.items()
            if name in graph.network.inputs or (tensor.constant and name not in graph.values)
        )
        copies = min(max(int(SETS_BYTES // read), 1), MOST_SETS)
        nodes = [
            one
            for one in self._profiled(onnx_text(graph, copies), inputs(graph, copies))
            if one[0] not in beside and one[0] not in _MOVES
        ]
        if not nodes:
            raise Unsupported("nothing of it runs")
        return sum(max(seconds + self._each_s, _LEAST_S) for _, seconds in nodes) / copies

    def call_s(self) -> float:
        """A call of a network of one small operator, less that operator."""
        net = GraphDraft()
        graph = net.graph(net.relu(net.input("x", 1, 8)))
        session = self._session(onnx_text(graph), None)
        given = inputs(graph)
        whole = typical(self._timed(lambda: session.run(None, given), 400, 1.0))
        return max(whole - self.seconds(graph), 0.0)

    def whole_s(self, content: bytes, given: dict[str, Any], enough_s: float = 1.0) -> float:
        """Seconds of a call of a network."""
        session = self._session(content, None)
        return typical(self._timed(lambda: session.run(None, given), 50, enough_s))

    @cached_property
    def _each_s(self) -> float:
        """What an operator takes beside what the profiler says: a chain of small ones, of which none fuse.

        Below zero where the profiler itself takes longer than the way from one operator to the next.
        """
        net = GraphDraft()
        x = net.input("x", 1, 64)
        for at in range(_CHAIN):
            x = net.same(("Tanh", "Sigmoid")[at % 2], x)
        graph = net.graph(x)
        content, given = onnx_text(graph), inputs(graph)
        session = self._session(content, None)
        whole = typical(self._timed(lambda: session.run(None, given), 60, 0.5))
        kernels = self._profiled(content, given)
        return (whole - sum(seconds for _, seconds in kernels)) / _CHAIN

    def _session(self, content: bytes, profile: Path | None) -> Any:
        options = self._ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        if profile is not None:
            options.enable_profiling, options.profile_file_prefix = True, str(profile / "profile")
        try:
            return self._ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its classes have no public base of their own
            raise Unsupported(str(error)[:200]) from None

    def _profiled(self, content: bytes, given: dict[str, NDArray[Any]]) -> list[tuple[str, float]]:
        """Type and seconds of every operator that ran."""
        whole: list[float] = []
        own: list[float] = []

        def run() -> None:
            began, own_began = time.perf_counter(), self._clock()
            session.run(None, given)
            own.append(self._clock() - own_began)
            whole.append(time.perf_counter() - began)

        with tempfile.TemporaryDirectory() as folder:
            session = self._session(content, Path(folder))
            self._timed(run, MOST, ENOUGH_S)
            events = guarded.values(Path(session.end_profiling()), ".json")
        found: dict[str, tuple[str, list[float]]] = {}
        for event in events:
            if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
                args = event["args"]
                found.setdefault(args["node_index"], (args["op_name"], []))[1].append(event["dur"] * 1e-6)
        if not found:
            return []
        seconds = without_waits(np.array([each for _, each in found.values()]), np.array(whole), np.array(own))
        return [(kind, typical(row[_WARM:])) for (kind, _), row in zip(found.values(), seconds, strict=True)]

    def _clock(self) -> float:
        """Seconds: the thread's own where it does all by itself."""
        return time.thread_time() if self.threads == 1 else time.perf_counter()

    def _timed(self, run: Callable[[], Any], most: int, enough_s: float) -> list[float]:
        """Seconds of each run, after some to get warm."""
        for _ in range(_WARM):
            run()
        found: list[float] = []
        while len(found) < most and (len(found) < FEWEST or sum(found) < enough_s):
            began = self._clock()
            run()
            found.append(self._clock() - began)
        return found


def without_waits(
    seconds: NDArray[np.float64], whole: NDArray[np.float64], own: NDArray[np.float64]
) -> NDArray[np.float64]:
    """What operators took themselves, given what whole runs of them took and how much of that the thread worked.

    Args:
        seconds: of each operator in each run by the clock on the wall, shape ``(operators, runs)``.
        whole: of each run by that clock, shape ``(runs,)``.
        own: of each run by the thread's clock, shape ``(runs,)``.

    Returns:
        As ``seconds``.  A wait is taken from the operators by how much longer they took than in their fastest run;
        together they do not take more than the thread did.
    """
    longer = seconds - seconds.min(axis=1, keepdims=True)
    most = longer.sum(axis=0)
    rest = seconds - longer * (np.clip(whole - own, 0.0, most) / np.maximum(most, _NOTHING_S))
    return np.asarray(rest * np.minimum(own / np.maximum(rest.sum(axis=0), _NOTHING_S), 1.0))


def typical(seconds: Sequence[float] | NDArray[np.float64]) -> float:
    """Mean of the faster half but the very fastest: what else a machine does only adds to a time."""
    ordered = np.sort(np.asarray(seconds))
    return float(ordered[len(ordered) // 8 : len(ordered) // 2 + 1].mean())
