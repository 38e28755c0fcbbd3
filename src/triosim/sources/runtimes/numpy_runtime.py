"""Numpy: networks without convolutions, each operator as who writes them in numpy writes it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.sources.readers._graph import GraphOperator
from triosim.sources.runtimes.graphs import WrittenGraph
from triosim.sources.runtimes.onnx_file import inputs
from triosim.sources.runtimes.runtime import Unsupported, refuse_threads

FEWEST, MOST, ENOUGH_S = 5, 60, 0.08
"""A kernel runs so often; less often once all its runs have taken so long."""
_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
_SHORT_S = 200e-6
"""A sample is as many runs as take so long."""

Array = NDArray[Any]


def started_threads() -> int:
    """Threads that numpy's products were started with, which cannot be changed any more."""
    stated = [int(value) for name in _VARIABLES if (value := os.environ.get(name, "")).isdigit()]
    return min(stated, default=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)


class NumpyRuntime:
    """See :class:`~triosim.sources.runtimes.runtime.InferenceRuntime`.

    Raises:
        InputError: other threads are asked for than numpy has been started with.
    """

    name = "numpy"

    def __init__(self, threads: int) -> None:
        started = started_threads()
        if threads != started:
            raise refuse_threads(
                "numpy", threads, f"it was started with {started}; set {_VARIABLES[0]}={threads} before"
            )
        self.threads, self.version = threads, str(np.__version__)

    def seconds(self, graph: WrittenGraph, beside: frozenset[str] = frozenset()) -> float:
        every = [(_function(node), node) for node in graph.network.operators]
        counted = [step for step in every if step[1].type not in beside]
        known: dict[str, Array] = dict(inputs(graph))
        random = np.random.default_rng(0)
        for name, tensor in graph.network.tensors.items():
            if tensor.constant:
                kind = np.float32 if tensor.dtype == "float32" else np.int64
                values = graph.values.get(name)
                drawn = 0.05 * random.standard_normal(tuple(int(s) for s in tensor.shape), np.float32)
                known[name] = np.array(values, kind).reshape(tensor.shape) if values is not None else abs(drawn)

        def run(steps: Sequence[tuple[Callable[..., Array], GraphOperator]]) -> None:
            for function, node in steps:
                known[node.outputs[0]] = function(*(known[name] for name in node.inputs if name))

        with np.errstate(all="ignore"):  # roots of what may be below 0
            run(every)  # what does not count makes what the others read
            return _median(lambda: run(counted))

    def call_s(self) -> float:
        """Nothing: whoever calls functions has called them."""
        return 0.0


def _median(run: Callable[[], None]) -> float:
    run()
    began = time.perf_counter()
    run()
    runs = max(int(_SHORT_S / max(time.perf_counter() - began, 1e-7)), 1)
    found: list[float] = []
    while len(found) < MOST and (len(found) < FEWEST or sum(found) * runs < ENOUGH_S):
        began = time.perf_counter()
        for _ in range(runs):
            run()
        found.append((time.perf_counter() - began) / runs)
    return float(np.median(found))


def _function(node: GraphOperator) -> Callable[..., Array]:
    """What runs a node, called with its inputs.

    Raises:
        Unsupported: numpy has nothing for it.
    """
    make = _FUNCTIONS.get(node.type)
    if make is None:
        raise Unsupported(f"numpy has no {node.type}")
    return make(node.attributes)


Maker = Callable[[Mapping[str, Any]], Callable[..., Array]]


def _plain(function: Callable[..., Array]) -> Maker:
    return lambda attributes: function


def _sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def _softmax(attributes: Mapping[str, Any]) -> Callable[..., Array]:
    axis = int(attributes.get("axis", -1))

    def run(x: Array) -> Array:
        raised = np.exp(x - x.max(axis=axis, keepdims=True))
        return np.asarray(raised / raised.sum(axis=axis, keepdims=True))

    return run


def _layer_norm(attributes: Mapping[str, Any]) -> Callable[..., Array]:
    def run(x: Array, weight: Array, bias: Array) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        scale = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-5)
        return np.asarray(centred / scale * weight + bias)

    return run


def _batch_norm(attributes: Mapping[str, Any]) -> Callable[..., Array]:
    def run(x: Array, weight: Array, bias: Array, mean: Array, variance: Array) -> Array:
        scale = (weight / np.sqrt(variance + 1e-5))[:, None, None]
        return np.asarray(x * scale + (bias[:, None, None] - mean[:, None, None] * scale))

    return run


def _gemm(attributes: Mapping[str, Any]) -> Callable[..., Array]:
    turned = bool(attributes.get("transB", 0))

    def run(x: Array, weight: Array, *bias: Array) -> Array:
        y = x @ (weight.T if turned else weight)
        return np.asarray(y + bias[0] if bias else y)

    return run


_FUNCTIONS: dict[str, Maker] = {
    "MatMul": _plain(np.matmul), "Gemm": _gemm, "Add": _plain(np.add), "Sub": _plain(np.subtract),
    "Mul": _plain(np.multiply), "Div": _plain(np.divide), "Pow": _plain(np.power), "Exp": _plain(np.exp),
    "Sqrt": _plain(np.sqrt), "Tanh": _plain(np.tanh), "Sigmoid": _plain(_sigmoid),
    "Relu": _plain(lambda x: np.maximum(x, 0)), "Clip": _plain(np.clip),
    "HardSigmoid": _plain(lambda x: np.clip(0.2 * x + 0.5, 0, 1)),
    "HardSwish": _plain(lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "Softmax": _softmax, "LayerNormalization": _layer_norm, "BatchNormalization": _batch_norm,
    "ReduceMean": lambda attributes: lambda x: x.mean(axis=tuple(attributes["axes"])),
    "GlobalAveragePool": _plain(lambda x: x.mean(axis=(2, 3), keepdims=True)),
    "Concat": lambda attributes: lambda *parts: np.concatenate(parts, axis=attributes["axis"]),
    "Transpose": lambda attributes: lambda x: np.ascontiguousarray(x.transpose(attributes["perm"])),
    "Slice": _plain(lambda x, start, stop, axis: x[(slice(None),) * int(axis[0]) + (slice(start[0], stop[0]),)].copy()),
    "Gather": _plain(lambda table, indices: table[indices]),
    "Reshape": _plain(lambda x, shape: x.reshape(shape)),
}  # fmt: skip
