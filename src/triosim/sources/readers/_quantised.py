"""Graphs with ``QuantizeLinear`` and ``DequantizeLinear`` around operators, as runtimes take them: on 8 bits.

Quantising tools (ONNX Runtime's, PyTorch's, TensorFlow's by way of tf2onnx) leave every operator in float32 and write
what is rounded into the graph.  Runtimes read ``DequantizeLinear -> operator -> QuantizeLinear`` as one operator of
integers (ONNX Runtime: "QDQ format", onnxruntime.ai/docs/performance/model-optimizations/quantization.html; TensorRT:
explicit quantization); the operators between are gone.  Where only what goes in is quantised, the product writes
floats itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from triosim.sources.readers._graph import GraphOperator, NetworkGraph

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators that matrix units run on 8 bits, whatever type they write."""
OTHERS = (
    "Add", "AveragePool", "Concat", "Flatten", "GlobalAveragePool", "HardSigmoid", "HardSwish", "LeakyRelu", "MaxPool",
    "Mul", "Reshape", "Resize", "Sigmoid", "Slice", "Softmax", "Squeeze", "Transpose", "Unsqueeze", "Where",
)  # fmt: skip
"""Operators that run on 8 bits where all that they read and write is quantised."""
_CUT = ("Clip", "Relu")
"""Operators that rounding to the 8 bits does along the way."""
_NARROW = ("int8", "uint8", "float8_e4m3fn", "float8_e5m2")


def in_eight_bits(graph: NetworkGraph) -> tuple[NetworkGraph, int]:
    """The graph with quantised operators reading and writing 8 bits, and how many products there are among them."""
    if not any(node.type == "DequantizeLinear" for node in graph.operators):
        return graph, 0
    made_by = {name: node for node in graph.operators for name in node.outputs if name}
    read_by: dict[str, list[GraphOperator]] = {}
    for node in graph.operators:
        for name in node.inputs:
            read_by.setdefault(name, []).append(node)

    def narrow(name: str) -> str:
        """The quantised tensor that a tensor is read from, ``""`` where there is none."""
        node = made_by.get(name)
        if node is None or node.type != "DequantizeLinear":
            return ""
        source = node.inputs[0]
        return source if source in graph.tensors and graph.tensors[source].dtype in (*_NARROW, "int32") else ""

    def rounded(node: GraphOperator) -> list[GraphOperator]:
        """What follows up to the quantisation of a result that nobody else reads; nothing where there is none."""
        path: list[GraphOperator] = []
        name = node.outputs[0]
        while name not in graph.outputs and len(read_by.get(name, ())) == 1:
            (reader,) = read_by[name]
            path.append(reader)
            if reader.type == "QuantizeLinear":
                return path if reader.inputs[0] == name else []
            if reader.type not in _CUT:
                break
            name = reader.outputs[0]
        return []

    gone: set[int] = set()
    changed: dict[int, GraphOperator] = {}
    count = 0
    for node in graph.operators:
        if node.type in PRODUCTS and all(narrow(name) for name in node.inputs[:2]):
            count += 1
            after = rounded(node)
        elif node.type in OTHERS and _all_narrow(node, graph, narrow_of := [narrow(name) for name in node.inputs]):
            after = rounded(node)
            if not after or not any(narrow_of):
                continue
        else:
            continue
        gone.update(id(one) for one in after)
        inputs = tuple(narrow(name) or name for name in node.inputs)
        changed[id(node)] = replace(node, inputs=inputs, outputs=after[-1].outputs if after else node.outputs)
    kept = [changed.get(id(node), node) for node in graph.operators if id(node) not in gone]
    needed = {name for node in kept for name in node.inputs} | set(graph.outputs)
    kept = [node for node in kept if node.type != "DequantizeLinear" or node.outputs[0] in needed]
    return replace(graph, operators=kept), count


def _all_narrow(node: GraphOperator, graph: NetworkGraph, narrow: Sequence[str]) -> bool:
    """Whether each input is quantised or a constant (sizes, axes)."""
    return all(
        source or not name or (name in graph.tensors and graph.tensors[name].constant)
        for name, source in zip(node.inputs, narrow, strict=True)
    )  # fmt: skip
