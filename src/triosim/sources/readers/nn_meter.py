"""Networks in nn-Meter's intermediate form: JSON of nodes with attributes, ``inbounds`` and ``outbounds``.

Zhang et al.: "nn-Meter: Towards Accurate Latency Prediction of Deep-Learning Model Inference on Diverse Edge Devices",
MobiSys 2021; the files are what its converters of TensorFlow graphs and of ONNX write.  TensorFlow's have channels
last, and are turned into channels first.  Weights are not in the file; their shapes follow from what goes in and comes
out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triosim.core import guarded
from triosim.core.errors import InputError, quoted
from triosim.core.registry import registered
from triosim.sources.models._tape import Shape
from triosim.sources.readers._graph import GraphOperator, GraphTensor, NetworkGraph, batched
from triosim.sources.readers._onnx_operators import RULES, forward_trace
from triosim.sources.reading import Reader
from triosim.trace.tables import Meta, Trace

_TYPES = {
    "Conv2D": "Conv", "DepthwiseConv2dNative": "Conv", "FusedBatchNorm": "BatchNormalization",
    "FusedBatchNormV2": "BatchNormalization", "FusedBatchNormV3": "BatchNormalization", "BiasAdd": "Add",
    "AddV2": "Add", "AddN": "Add", "RealDiv": "Div", "Maximum": "Max", "Minimum": "Min", "Relu6": "Clip",
    "AvgPool": "AveragePool", "MaxPool": "MaxPool", "Mean": "ReduceMean", "ConcatV2": "Concat", "SplitV": "Split",
    "Pack": "Concat", "StridedSlice": "Slice", "PadV2": "Pad", "MirrorPad": "Pad", "Rsqrt": "Reciprocal",
    "ResizeBilinear": "Resize", "ResizeNearestNeighbor": "Resize", "HardSwish": "HardSwish",
}  # fmt: skip
"""TensorFlow's names, and ONNX's of what does the same work."""
_CONSTANT = ("Const", "Constant", "Shape")
_INPUT = ("Placeholder", "Input", "input")
_POINTWISE = frozenset((
    "Add", "Sub", "Mul", "Div", "Max", "Min", "Clip", "Relu", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid",
    "LeakyRelu", "Elu", "Sqrt", "Exp", "Pow", "BatchNormalization", "Identity", "Dropout", "Softmax",
))  # fmt: skip
"""What has the shape of its largest input.  Files state other shapes here and there; these cannot be otherwise."""


@registered
class NnMeter(Reader):
    """Reads a JSON file of nn-Meter's."""

    what = "a network of nn-Meter's (JSON of nodes with inbounds and outbounds)"
    takes_unused = True

    def recognises(self, path: Path) -> bool:
        if not path.is_file():
            return False
        start = guarded.head(path, 65536)
        return start.lstrip()[:1] == b"{" and all(word in start for word in (b'"inbounds"', b'"outbounds"', b'"attr"'))

    def read(
        self, path: Path, *, step: str = "median", execution_trace: Path | None = None, unused: bool = False
    ) -> Trace:
        """See :class:`~triosim.sources.reading.Reader`."""
        if execution_trace is not None or step not in ("median", "all", "0"):
            raise InputError(f"{path} holds a network and no steps; leave the execution trace and the step away")
        nodes = guarded.parse_json(guarded.text(guarded.content(path), str(path)), str(path))
        try:
            graph, batch = _Reading(nodes, str(path)).graph()
        except (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError) as error:
            if isinstance(error, InputError):
                raise
            what = f"{quoted(error.args[0])} is missing" if isinstance(error, KeyError) else str(error)
            raise InputError(f"{path}: {what}: convert the network again") from None
        meta = Meta(
            made_by="nn-meter", workload=path.name.partition(".")[0], batch_size=batch, symbols="model",
            notes=("operators are those of the file: nothing is fused",),
        )  # fmt: skip
        return forward_trace(graph, meta, str(path), unused)


class _Reading:
    """Nodes of a file on their way to a graph."""

    def __init__(self, nodes: Mapping[str, Any], where: str) -> None:
        self.nodes, self.where = nodes, where
        self.last = any(
            node["attr"].get("attr", {}).get("data_format") == "NHWC" or node["attr"].get("type") == "Conv2D"
            for node in nodes.values()
        )  # fmt: skip
        self.tensors: dict[str, GraphTensor] = {}
        self.batch = 1

    def graph(self) -> tuple[NetworkGraph, int]:
        kinds = {name: str(node["attr"].get("type", "")) for name, node in self.nodes.items()}
        inputs = [name for name, kind in kinds.items() if kind in _INPUT]
        if not inputs:
            raise InputError(f"{self.where} has no input (a node of type Placeholder): convert the network again")
        self.batch = max(1, int(self.nodes[inputs[0]]["attr"]["output_shape"][0][0]))
        operators = []
        for name in self._sorted():
            kind = kinds[name]
            if kind in _INPUT:
                self.tensors[name] = GraphTensor(self._stated(name))
            elif kind in _CONSTANT:
                self.tensors[name] = GraphTensor(self._stated(name), constant=True)
            else:
                operators.append(self._operator(name, kind))
        read = {source for node in self.nodes.values() for source in node["inbounds"]}
        results = [one.outputs[0] for one in operators if one.name not in read]
        return NetworkGraph(operators, self.tensors, inputs, results), self.batch

    def _sorted(self) -> list[str]:
        """Names of nodes, each after those that it reads."""
        waiting = {
            name: {source for source in node["inbounds"] if source in self.nodes} for name, node in self.nodes.items()
        }
        readers: dict[str, list[str]] = {}
        for name, sources in waiting.items():
            for source in sources:
                readers.setdefault(source, []).append(name)
        ready, found = [name for name, sources in waiting.items() if not sources], []
        for name in ready:  # grows
            found.append(name)
            for reader in readers.get(name, ()):
                waiting[reader].discard(name)
                if not waiting[reader]:
                    ready.append(reader)
        if len(found) < len(self.nodes):
            stuck = next(name for name in self.nodes if name not in set(found))
            raise InputError(f"{self.where}: node {quoted(stuck)} reads what it makes: convert the network again")
        return found

    def _stated(self, name: str) -> Shape:
        """The shape that the file states of a node's output, channels first, -1 for the batch."""
        return self._turned(self.nodes[name]["attr"]["output_shape"][0])

    def _turned(self, shape: Any) -> Shape:
        sides = [int(s) for s in shape]
        if sides and sides[0] == -1:
            sides[0] = self.batch
        if any(s < 1 for s in sides):
            raise ValueError(f"a shape of {sides} is not known: give the network with fixed sizes")
        if self.last and len(sides) == 4:
            sides = [sides[0], sides[3], sides[1], sides[2]]
        return batched(sides, self.batch)

    def _operator(self, name: str, kind: str) -> GraphOperator:
        node, type_ = self.nodes[name]["attr"], _TYPES.get(kind, kind)
        if type_ not in RULES:
            raise InputError(
                f"{self.where}: node {quoted(name)} is of type {quoted(kind)}, which is not known: convert the network "
                "without it"
            )
        sources = [source for source in self.nodes[name]["inbounds"] if source in self.tensors]
        attributes = dict(node.get("attr") or {})
        shapes = [self.tensors[source].shape for source in sources]
        if not shapes:
            raise InputError(
                f"{self.where}: node {quoted(name)} reads nothing that is known: convert the network again"
            )
        if type_ in _POINTWISE:
            shape = max(shapes, key=math.prod)
        elif type_ == "ReduceMean" and len(shapes[0]) == 4:  # some files state the shape after it
            shape = self._stated(name)
            shape = shape if len(shape) == 4 else (*shapes[0][:2], *(1,) * (len(shape) - 2))
        else:
            shape = self._stated(name)
        made = {"Conv": self._convolution, "MaxPool": self._pool, "AveragePool": self._pool}.get(type_)
        weights: list[Shape] = []
        if made is not None:
            attributes, weights = made(kind, attributes, shapes[0], shape)
        elif type_ in ("MatMul", "Gemm") and len(sources) == 1:
            weights, attributes = [(int(shapes[0][-1]), int(shape[-1]))], {}
            type_ = "MatMul"
        elif type_ == "BatchNormalization":
            weights, sources = [(int(shape[1]),)] * 4, sources[:1]
        elif kind == "BiasAdd" and len(sources) == 1:
            weights = [(int(shape[1]), *(1,) * (len(shape) - 2))]
        elif type_ == "Concat":
            attributes = {"axis": self._axis(attributes.get("axis", attributes.get("constant", 1)), len(shape))}
        elif type_ == "ReduceMean":
            stated: Any = attributes.get("axes", attributes.get("reduction_indices", [1, 2] if self.last else [2, 3]))
            axes = [stated] if isinstance(stated, int) else list(stated)
            attributes = {"axes": [self._axis(axis, len(shapes[0])) for axis in axes]}
        elif type_ == "Split":
            axis = attributes.get("axis", attributes.get("split_dim", 1))
            attributes = {"axis": self._axis(axis, len(shapes[0]))}
        elif type_ == "Softmax":
            attributes = {"axis": -1 if not self.last or len(shape) != 4 else 1}
        elif type_ == "Transpose":
            attributes = {}
        for number, weight in enumerate(weights):
            own = f"{name}/weight_{number}"
            self.tensors[own] = GraphTensor(weight, constant=True)
            sources.append(own)
        self.tensors[name] = GraphTensor(shape)
        outputs = [name]
        for number, other in enumerate(node["output_shape"][1:], start=1):
            outputs.append(f"{name}:{number}")
            self.tensors[outputs[-1]] = GraphTensor(self._turned(other))
        return GraphOperator(name, type_, tuple(sources), tuple(outputs), attributes)

    def _axis(self, axis: Any, rank: int) -> int:
        """An axis where channels are first."""
        number = int(axis[0] if isinstance(axis, list) else axis) % max(rank, 1)
        return (0, 2, 3, 1)[number] if self.last and rank == 4 else number

    def _window(self, attributes: Mapping[str, Any], kernel: Any) -> dict[str, Any]:
        def middle(sides: Any) -> list[int]:
            values = [int(s) for s in sides]
            return values[1:3] if len(values) == 4 else values

        sides = middle(kernel)
        found: dict[str, Any] = {
            "kernel_shape": sides, "strides": middle(attributes.get("strides") or [1] * len(sides)),
            "dilations": middle(attributes.get("dilations") or [1] * len(sides)),
        }  # fmt: skip
        if str(attributes.get("padding", "")).upper() == "SAME":
            found["auto_pad"] = "SAME_UPPER"
        elif sides and len(attributes.get("pads") or ()) == 2 * len(sides):
            found["pads"] = [int(p) for p in attributes["pads"]]
        return found

    def _convolution(
        self, kind: str, attributes: dict[str, Any], x: Shape, y: Shape
    ) -> tuple[dict[str, Any], list[Shape]]:
        kernel = attributes.get("kernel_shape") or (attributes.get("weight_shape") or ())[:2]
        found = self._window(attributes, kernel)
        groups = int(x[1]) if kind == "DepthwiseConv2dNative" else int(attributes.get("group", 1))
        if not found["kernel_shape"] or groups < 1 or int(x[1]) % groups:
            raise ValueError(f"a convolution of {int(x[1])} channels has {groups} groups, or no kernel_shape")
        weight = (int(y[1]), int(x[1]) // groups, *found["kernel_shape"])
        return {**found, "group": groups}, [weight]

    def _pool(self, kind: str, attributes: dict[str, Any], x: Shape, y: Shape) -> tuple[dict[str, Any], list[Shape]]:
        kernel = attributes.get("kernel_shape") or attributes.get("ksize") or attributes.get("ks") or ()
        return self._window(attributes, kernel), []
