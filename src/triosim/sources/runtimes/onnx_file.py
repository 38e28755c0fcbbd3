"""A network as an ONNX file, with weights that nobody has trained."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.errors import InputError
from triosim.sources.readers._graph import GraphTensor
from triosim.sources.runtimes.graphs import WrittenGraph

OPSET, IR = 17, 8
"""Versions that runtimes since 2022 know; ``LayerNormalization`` came with this opset."""
_SCALE = 0.05
"""Of weights: sums neither grow nor vanish from layer to layer."""


def onnx_text(graph: WrittenGraph, copies: int = 1, seed: int = 0) -> bytes:
    """The file's content.

    Args:
        graph: of the network.
        copies: how many of it beside each other, with weights and inputs of their own.
        seed: of the weights.

    Raises:
        InputError: the package ``onnx`` is not installed.
    """
    try:
        from onnx import helper, numpy_helper
    except ImportError:
        raise InputError("writing ONNX files takes the package onnx: pip install 'triosim[onnx]'") from None
    network, random = graph.network, np.random.default_rng(seed)
    constants = [name for name, tensor in network.tensors.items() if tensor.constant]
    given = set(network.inputs)
    kept = {*given, *graph.values}
    nodes, initializers, outputs = [], [], []
    for name in graph.values:
        value = np.array(graph.values[name], _numpy(network.tensors[name].dtype)).reshape(network.tensors[name].shape)
        initializers.append(numpy_helper.from_array(value, name))
    for copy in range(copies):

        def own(name: str, copy: int = copy) -> str:
            if name in given:
                return input_of(name, copy)
            return name if name in kept or not name else f"{name}_{copy}"

        for name in constants:
            if name not in kept:
                initializers.append(numpy_helper.from_array(_drawn(network.tensors[name], random), own(name)))
        for node in network.operators:
            reads, writes = ([own(name) for name in names] for names in (node.inputs, node.outputs))
            nodes.append(helper.make_node(node.type, reads, writes, name=own(node.name), **node.attributes))
        outputs += [_info(helper, own(name), network.tensors[name]) for name in network.outputs]
    every = product(network.inputs, range(copies))
    asked = [_info(helper, input_of(name, copy), network.tensors[name]) for name, copy in every]
    made = helper.make_graph(nodes, "network", asked, outputs, initializers)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="triosim")
    model.ir_version = IR
    content: bytes = model.SerializeToString()
    return content


def input_of(name: str, copy: int) -> str:
    """What the input of this name is called in a copy of the network."""
    return f"{name}_{copy}" if copy else name


def inputs(graph: WrittenGraph, copies: int = 1, seed: int = 1) -> dict[str, NDArray[Any]]:
    """Inputs for all copies of the network, by name: numbers around 0; whole ones are 0."""
    random = np.random.default_rng(seed)
    found: dict[str, NDArray[Any]] = {}
    for name, copy in product(graph.network.inputs, range(copies)):
        tensor = graph.network.tensors[name]
        floating = tensor.dtype.startswith("float")
        shape = tuple(int(side) for side in tensor.shape)
        values = _drawn(tensor, random) / _SCALE if floating else np.zeros(shape, _numpy(tensor.dtype))
        found[input_of(name, copy)] = values
    return found


def _drawn(tensor: GraphTensor, random: np.random.Generator) -> NDArray[np.float32]:
    """Above 0 where there is one for each channel: it may be a variance."""
    values = _SCALE * random.standard_normal(tuple(int(side) for side in tensor.shape), np.float32)
    return np.abs(values) + np.float32(_SCALE) if values.ndim == 1 else values


def _info(helper: Any, name: str, tensor: GraphTensor) -> Any:
    import onnx

    kind = {"float32": onnx.TensorProto.FLOAT, "int64": onnx.TensorProto.INT64}[tensor.dtype]
    return helper.make_tensor_value_info(name, kind, [int(side) for side in tensor.shape])


def _numpy(dtype: str) -> Any:
    return {"float32": np.float32, "int64": np.int64}[dtype]
