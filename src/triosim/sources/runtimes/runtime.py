"""What a runtime of inference has to do to be measured."""

from __future__ import annotations

from typing import Protocol

from triosim.core.errors import InputError, unknown
from triosim.sources.runtimes.graphs import WrittenGraph


class InferenceRuntime(Protocol):
    """Runs networks and says what that took.

    Attributes:
        name: as its users call it.
        version: of the installed one.
        threads: that share an operator.
    """

    name: str
    version: str
    threads: int

    def seconds(self, graph: WrittenGraph, beside: frozenset[str] = frozenset()) -> float:
        """What the operators of a network take, the median of several runs.

        Args:
            graph: the network.
            beside: types of operators that do not count, where the runtime can tell them apart.

        Raises:
            Unsupported: the runtime does not have one of its operators.
        """

    def call_s(self) -> float:
        """What a call of a network takes beyond its operators."""


class Unsupported(Exception):
    """A runtime does not have an operator."""


RUNTIMES = ("torch", "onnxruntime", "numpy")
"""Whose kernels ``triosim calibrate --run`` measures."""


def inference_runtime(name: str, threads: int) -> InferenceRuntime:
    """The runtime of this name; ``torch`` is :mod:`triosim.sources.record.bench`.

    Raises:
        InputError: there is none, it is not installed, or it does not run with so many threads.
    """
    if name == "onnxruntime":
        from triosim.sources.runtimes.onnx_runtime import OnnxRuntime

        return OnnxRuntime(threads)
    if name == "numpy":
        from triosim.sources.runtimes.numpy_runtime import NumpyRuntime

        return NumpyRuntime(threads)
    raise unknown("runtime", name, RUNTIMES)


def refuse_threads(runtime: str, threads: int, suggestion: str) -> InputError:
    """A runtime that cannot run with so many threads."""
    return InputError(f"{runtime} cannot be told to use {threads} threads: {suggestion}")
