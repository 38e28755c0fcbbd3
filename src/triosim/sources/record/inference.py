"""Kernels of networks that only infer, as eager PyTorch calls them on a processor: those of :mod:`runtimes.kernels`.

One image or one sequence makes small kernels, of which those of training say little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from triosim.sources.record.cases import Case, SizeDraws
from triosim.sources.runtimes.draws import Draws
from triosim.sources.runtimes.graphs import WrittenGraph
from triosim.sources.runtimes.kernels import RuntimeRates, kernels

aten = torch.ops.aten

_ABOVE = 0.05
"""Added to what may be a variance."""


def inference_cases(sizes: SizeDraws) -> Iterator[Case]:
    """Kernels without end, of 32 bits; what PyTorch only looks at in another way is left out.

    Args:
        sizes: makes tensors, and says how long a kernel may take; sizes of kernels are drawn apart from its own.
    """
    draws = Draws(sizes.longest_s)
    every = kernels(draws, RuntimeRates(sizes.rates.flop[torch.float32], sizes.rates.bytes))
    while True:
        draws.longest_s = sizes.longest_s
        kernel = next(every)
        (node,) = kernel.graph.network.operators
        if node.type in _CALLS:
            func, arguments = _CALLS[node.type]
            yield Case(kernel.what, func, _made(kernel.graph, arguments, sizes))


Attributes = Mapping[str, Any]
Arguments = Callable[[Attributes, list[Tensor]], Sequence[Any]]


def _made(graph: WrittenGraph, arguments: Arguments, sizes: SizeDraws) -> Callable[[], Sequence[Any]]:
    (node,) = graph.network.operators

    def make() -> Sequence[Any]:
        return arguments(node.attributes, [_tensor(graph, name, sizes) for name in node.inputs])

    return make


def _tensor(graph: WrittenGraph, name: str, sizes: SizeDraws) -> Tensor:
    """What an operator reads under this name: numbers around 0, above 0 where there is one for each channel."""
    tensor = graph.network.tensors[name]
    shape = tuple(int(side) for side in tensor.shape)
    if name in graph.values:
        return torch.tensor(graph.values[name]).reshape(shape)
    if tensor.dtype != "float32":
        return torch.zeros(shape, dtype=torch.int64)
    made = sizes.tensor(*shape)
    return made.abs_().add_(_ABOVE) if tensor.constant and len(shape) == 1 else made


def _convolution(of: Attributes, given: list[Tensor]) -> Sequence[Any]:
    return *given, of["strides"], of["pads"][:2], [1, 1], False, [0, 0], of["group"]


def _max_pool(of: Attributes, given: list[Tensor]) -> Sequence[Any]:
    return *given, of["kernel_shape"], of["strides"], of["pads"][:2]


def _batch_norm(of: Attributes, given: list[Tensor]) -> Sequence[Any]:
    return *given, False, 0.1, 1e-5


def _layer_norm(of: Attributes, given: list[Tensor]) -> Sequence[Any]:
    return given[0], [given[0].shape[-1]], *given[1:], 1e-5


def _then(*rest: Any) -> Arguments:
    """Tensors as they are, and what follows."""
    return lambda of, given: (*given, *rest)


_CALLS: dict[str, tuple[Callable[..., Any], Arguments]] = {
    "Conv": (aten.convolution.default, _convolution),
    "Gemm": (aten.addmm.default, lambda of, given: (given[2], given[0], given[1].t())),
    "MatMul": (aten.matmul.default, _then()),
    "MaxPool": (aten.max_pool2d_with_indices.default, _max_pool),
    "AveragePool": (aten.avg_pool2d.default, _max_pool),
    "GlobalAveragePool": (aten.mean.dim, _then([2, 3], True)),
    "ReduceMean": (aten.mean.dim, lambda of, given: (*given, of["axes"])),
    "BatchNormalization": (aten.native_batch_norm.default, _batch_norm),
    "LayerNormalization": (aten.native_layer_norm.default, _layer_norm),
    "Softmax": (aten._softmax.default, _then(-1, False)),
    "Concat": (aten.cat.default, lambda of, given: (given, of["axis"])),
    "Gather": (aten.embedding.default, _then()),
    "Clip": (aten.clamp.default, lambda of, given: (given[0], given[1].item(), given[2].item())),
    **{theirs: (func, _then()) for theirs, func in {
        "Add": aten.add.Tensor, "Mul": aten.mul.Tensor, "Div": aten.div.Tensor, "Pow": aten.pow.Tensor_Tensor,
        "Relu": aten.relu.default, "Sigmoid": aten.sigmoid.default, "HardSwish": aten.hardswish.default,
        "Erf": aten.erf.default, "HardSigmoid": aten.hardsigmoid.default, "Tanh": aten.tanh.default,
        "Exp": aten.exp.default, "Sqrt": aten.sqrt.default,
    }.items()},
}  # fmt: skip
"""What PyTorch calls for an operator, and with which arguments."""
