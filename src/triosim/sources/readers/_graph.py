"""Networks as graphs of ONNX's operators, and the operators of PyTorch that they stand for.

Readers of exchange formats make a :class:`NetworkGraph`; :func:`forward_trace` turns it into a trace without times.  As
a converter would, it leaves out operators whose output does not reach a result, and those that constants alone go into.
What a runtime copies (``Transpose``, ``Slice``, ``Split``, ``Expand``) is a copy here too, though PyTorch would look at
the same memory; ``Reshape`` and its like are views.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted
from triosim.core.limits import check_memory
from triosim.sources.models._tape import Dim, Shape, Tape, Tensor
from triosim.trace.tables import BATCH, Category, Meta, Trace

NODE_BYTES = 4_000
"""Memory of an operator while a trace is made, an upper bound."""


@dataclass(frozen=True)
class GraphTensor:
    """A tensor of a graph.

    Attributes:
        shape: dimensions; :class:`~triosim.sources.models._tape.Dim` where they follow the batch.
        dtype: element type.
        constant: whether its values are known before anything runs: weights and what is computed from them.
    """

    shape: Shape
    dtype: str = "float32"
    constant: bool = False


@dataclass(frozen=True)
class GraphOperator:
    """An operator of a graph.

    Attributes:
        name: of the node, for people.
        type: in ONNX's words.
        inputs: names of tensors, ``""`` for one that is left out.
        outputs: names of tensors.
        attributes: by ONNX's names.
    """

    name: str
    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NetworkGraph:
    """A network.

    Attributes:
        operators: each after those whose output it reads.
        tensors: by name.
        inputs, outputs: names of tensors.
    """

    operators: Sequence[GraphOperator]
    tensors: Mapping[str, GraphTensor]
    inputs: Sequence[str]
    outputs: Sequence[str]


FOLDED = ("Constant", "ConstantOfShape", "Shape", "Size", "Range")
"""Operators whose results are known when shapes are."""


def forward_trace(graph: NetworkGraph, meta: Meta, where: str, unused: bool = False) -> Trace:
    """The trace of one forward pass, without times.

    Args:
        graph: the network.
        meta: of the trace.
        where: the file, for messages.
        unused: whether operators whose output reaches no result run too, as they do under some runtimes.

    Raises:
        InputError: an operator that nobody knows, or one that lacks what it needs.
    """
    check_memory(NODE_BYTES * len(graph.operators), f"{where}: {len(graph.operators)} operators", "give a smaller one")
    return _GraphTape(graph, where, unused).trace(meta)


class _GraphTape:
    """A graph on its way to a trace."""

    def __init__(self, graph: NetworkGraph, where: str, unused: bool) -> None:
        self.graph, self.where, self.unused = graph, where, unused
        self.tape = Tape(training=False)
        self.made: dict[str, Tensor] = {}
        self.constant = {name for name, tensor in graph.tensors.items() if tensor.constant}

    def trace(self, meta: Meta) -> Trace:
        wanted = self._reaching()
        for name in self.graph.inputs:
            if name in self.graph.tensors and name not in self.constant:
                known = self.graph.tensors[name]
                self.made[name] = self.tape.tensor(known.shape, known.dtype, Category.INPUT, name=name)
        for number, node in enumerate(self.graph.operators):
            settled = all(name in self.constant for name in node.inputs if name)
            if node.type in FOLDED or (settled and not self._follows(node)):
                self.constant.update(node.outputs)
            elif number in wanted:
                self._lower(node)
        if not len(self.tape.builder):
            raise InputError(f"{self.where} runs nothing: no operator leads from an input to a result")
        return self.tape.builder.build(meta)

    def _follows(self, node: GraphOperator) -> bool:
        """Whether what a node makes grows with the batch: then it runs, though its inputs are known."""
        made = [self.graph.tensors[name].shape for name in node.outputs if name in self.graph.tensors]
        return any(isinstance(side, Dim) for shape in made for side in shape)

    def _reaching(self) -> set[int]:
        """Operators that run: those whose output reaches a result, or all."""
        if self.unused:
            return set(range(len(self.graph.operators)))
        needed, found = set(self.graph.outputs), set()
        for number in range(len(self.graph.operators) - 1, -1, -1):
            node = self.graph.operators[number]
            if needed.intersection(node.outputs):
                found.add(number)
                needed.update(name for name in node.inputs if name)
        return found

    def _lower(self, node: GraphOperator) -> None:
        rule = RULES.get(node.type)
        if rule is None:
            raise InputError(
                f"{self.where}: node {quoted(node.name)} is of type {quoted(node.type)}, which is not known: "
                "export the network without it"
            )
        path = ".".join(part for part in node.name.replace("/", ".").split(".") if part) or node.type
        try:
            with self.tape.module(path, node.type):
                rule(self, node)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            if isinstance(error, InputError):
                raise
            raise self.problem(node, f"makes no sense ({quoted(str(error))})") from None

    # --- what rules ask -----------------------------------------------------------------------------------------------

    def problem(self, node: GraphOperator, what: str) -> InputError:
        return InputError(f"{self.where}: node {quoted(node.name)} ({node.type}) {what}: export the network again")

    def given(self, node: GraphOperator, at: int) -> Tensor | None:
        """The input at this place, None where it is left out; weights are made when first read."""
        name = node.inputs[at] if at < len(node.inputs) else ""
        if not name:
            return None
        if name not in self.made:
            known = self.graph.tensors.get(name)
            if known is None or name not in self.constant:
                raise self.problem(node, f"reads {quoted(name)}, of which no shape is known")
            self.made[name] = self.tape.tensor(known.shape, known.dtype, Category.WEIGHT, name=name)
        return self.made[name]

    def input(self, node: GraphOperator, at: int = 0) -> Tensor:
        found = self.given(node, at)
        if found is None:
            raise self.problem(node, f"has no input {at + 1}")
        return found

    def output(self, node: GraphOperator, at: int = 0) -> Tensor:
        """A new tensor for the output at this place."""
        name = node.outputs[at] if at < len(node.outputs) else ""
        known = self.graph.tensors.get(name)
        if known is None:
            raise self.problem(node, f"makes {quoted(name)}, of which no shape is known")
        self.made[name] = self.tape.tensor(known.shape, known.dtype)
        return self.made[name]

    def call(
        self, node: GraphOperator, name: str, roles: Sequence[str], inputs: Sequence[Tensor | None], **args: Any
    ) -> None:
        """One operator that makes all outputs of the node."""
        pairs = [(role, x) for role, x in zip(roles, inputs, strict=False) if x is not None]
        outputs = [self.output(node, at) for at, name_ in enumerate(node.outputs) if name_]
        self.tape.operator(
            f"aten::{name}", [role for role, _ in pairs], [x for _, x in pairs], outputs, args or None
        )  # fmt: skip

    def view(self, node: GraphOperator, x: Tensor, shape: Shape) -> Tensor:
        """``x`` under other dimensions."""
        y = self.tape.alias(x, shape)
        self.tape.operator("aten::view", ("self",), (x,), (y,), view=True)
        return y


Rule = Callable[[_GraphTape, GraphOperator], None]


def _pointwise(name: str, *roles: str) -> Rule:
    """The tensors of the node in order; what else ONNX hands over (bounds, exponents) are numbers."""

    def rule(low: _GraphTape, node: GraphOperator) -> None:
        low.call(node, name, roles, [low.given(node, at) for at in range(len(roles))])

    return rule


def _many(name: str) -> Rule:
    """An operator of two, of as many as there are (``Max``, ``Sum``): each pair in turn."""

    def rule(low: _GraphTape, node: GraphOperator) -> None:
        x = low.input(node)
        for at in range(1, len(node.inputs) - 1):
            other = low.input(node, at)
            y = low.tape.tensor(max(x.shape, other.shape, key=lambda s: (len(s), math.prod(s))), x.dtype)
            low.tape.operator(f"aten::{name}", ("self", "other"), (x, other), (y,))
            x = y
        last = low.given(node, len(node.inputs) - 1) if len(node.inputs) > 1 else None
        low.call(node, name, ("self", "other"), (x, last))

    return rule


def _reshaped(low: _GraphTape, node: GraphOperator) -> None:
    known = low.graph.tensors.get(node.outputs[0])
    if known is None:
        raise low.problem(node, "makes a tensor of which no shape is known")
    low.made[node.outputs[0]] = low.view(node, low.input(node), known.shape)


def _copied(name: str, **attributes: str) -> Rule:
    """A copy of the first input; ``attributes`` are arguments by what ONNX calls them."""

    def rule(low: _GraphTape, node: GraphOperator) -> None:
        args = {own: node.attributes[theirs] for own, theirs in attributes.items() if theirs in node.attributes}
        low.call(node, name, ("self",), (low.input(node),), **args)

    return rule


def _concatenated(low: _GraphTape, node: GraphOperator) -> None:
    parts = [low.input(node, at) for at in range(len(node.inputs))]
    dim = int(node.attributes.get("axis", 0)) % max(len(parts[0].shape), 1)
    low.call(node, "cat", ("tensors",) * len(parts), parts, dim=dim)


def _split(low: _GraphTape, node: GraphOperator) -> None:
    x = low.input(node)
    dim = int(node.attributes.get("axis", 0)) % max(len(x.shape), 1)
    sizes = [int(low.graph.tensors[name].shape[dim]) for name in node.outputs if name in low.graph.tensors]
    low.call(node, "split_with_sizes_copy", ("self",), (x,), split_sizes=sizes, dim=dim)


def _transposed(low: _GraphTape, node: GraphOperator) -> None:
    x = low.input(node)
    dims = list(node.attributes.get("perm", range(len(x.shape) - 1, -1, -1)))
    low.call(node, "permute_copy", ("self",), (x,), dims=[int(d) for d in dims])


def _window(low: _GraphTape, node: GraphOperator, x: Tensor, kernel: Sequence[int]) -> dict[str, list[int]]:
    """Kernel, stride, padding (of one side, the larger) and dilation, from the attributes and what comes out."""
    count = len(kernel)
    stride = [int(s) for s in node.attributes.get("strides", (1,) * count)]
    dilation = [int(d) for d in node.attributes.get("dilations", (1,) * count)]
    pads = [int(p) for p in node.attributes.get("pads", (0,) * 2 * count)]
    if len(stride) != count or len(dilation) != count or len(pads) != 2 * count or len(x.shape) != count + 2:
        raise low.problem(node, f"has a window of {count} dimensions over a tensor of {len(x.shape)}")
    padding = [max(pads[at], pads[at + count]) for at in range(count)]
    if str(node.attributes.get("auto_pad", "NOTSET")).startswith("SAME"):
        rows = low.graph.tensors[node.outputs[0]].shape[2:]
        for at in range(count):
            spanned = (int(rows[at]) - 1) * stride[at] + (kernel[at] - 1) * dilation[at] + 1
            padding[at] = max(0, -(-(spanned - int(x.shape[2 + at])) // 2))
    return {"stride": stride, "padding": padding, "dilation": dilation}


def _convolution(transposed: bool) -> Rule:
    def rule(low: _GraphTape, node: GraphOperator) -> None:
        x, weight = low.input(node), low.input(node, 1)
        window = _window(low, node, x, [int(s) for s in weight.shape[2:]])
        low.call(
            node, "convolution", ("input", "weight", "bias"), (x, weight, low.given(node, 2)), **window,
            transposed=transposed, output_padding=[0] * len(window["stride"]),
            groups=int(node.attributes.get("group", 1)),
        )  # fmt: skip

    return rule


def _pooled(name: str) -> Rule:
    def rule(low: _GraphTape, node: GraphOperator) -> None:
        x = low.input(node)
        kernel = [int(s) for s in node.attributes.get("kernel_shape", ())]
        if not kernel:
            raise low.problem(node, "has no kernel_shape")
        window = _window(low, node, x, kernel)
        window.pop("dilation")
        low.call(node, f"{name}{len(kernel)}d", ("self",), (x,), kernel_size=kernel, **window)

    return rule


def _reduced(name: str, every: bool = False) -> Rule:
    """A reduction; ``every`` says over all but batch and channels, as global pooling."""

    def rule(low: _GraphTape, node: GraphOperator) -> None:
        x = low.input(node)
        shape = low.graph.tensors[node.outputs[0]].shape
        if every:
            dims = list(range(2, len(x.shape)))
        else:
            axes = node.attributes.get("axes", node.attributes.get("axis"))
            axes = [axes] if isinstance(axes, int) else axes
            if axes is None:  # an input in later opsets; what comes out tells
                pairs = zip(x.shape, shape, strict=False)
                same = len(shape) == len(x.shape)
                axes = [at for at, (a, b) in enumerate(pairs) if a != b] if same else range(len(x.shape))
            dims = sorted(int(a) % max(len(x.shape), 1) for a in axes)
        low.call(node, name, ("self",), (x,), dim=dims, keepdim=len(shape) == len(x.shape))

    return rule


def _softmax(name: str) -> Rule:
    def rule(low: _GraphTape, node: GraphOperator) -> None:
        x = low.input(node)
        dim = int(node.attributes.get("axis", -1)) % max(len(x.shape), 1)
        low.call(node, name, ("self",), (x,), dim=dim, half_to_float=False)

    return rule


def _gemm(low: _GraphTape, node: GraphOperator) -> None:
    a, b, bias = low.input(node), low.input(node, 1), low.given(node, 2)
    matrices = []
    for x, turned in ((a, node.attributes.get("transA")), (b, node.attributes.get("transB"))):
        if turned:
            y = low.tape.alias(x, x.shape[::-1])
            low.tape.operator("aten::t", ("self",), (x,), (y,), view=True)
            x = y
        matrices.append(x)
    if bias is None:
        low.call(node, "mm", ("self", "mat2"), matrices)
    else:
        low.call(node, "addmm", ("self", "mat1", "mat2"), (bias, *matrices))


def _matmul(low: _GraphTape, node: GraphOperator) -> None:
    a, b = low.input(node), low.input(node, 1)
    if len(b.shape) != 2 or len(a.shape) < 3:
        both = len(a.shape) == len(b.shape) == 2
        low.call(node, *(("mm", ("self", "mat2")) if both else ("matmul", ("self", "other"))), (a, b))
        return
    rows = math.prod(a.shape[:-1])
    flat = low.view(node, a, (rows, a.shape[-1]))
    y = low.tape.tensor((rows, b.shape[1]), a.dtype)
    low.tape.operator("aten::mm", ("self", "mat2"), (flat, b), (y,))
    low.made[node.outputs[0]] = low.view(node, y, (*a.shape[:-1], b.shape[1]))


def _batch_normalized(low: _GraphTape, node: GraphOperator) -> None:
    roles = ("input", "weight", "bias", "running_mean", "running_var")
    first = GraphOperator(node.name, node.type, node.inputs, node.outputs[:1], node.attributes)
    low.call(first, "native_batch_norm", roles, [low.given(node, at) for at in range(5)], training=False)


def _normalized(name: str, **args: str) -> Rule:
    def rule(low: _GraphTape, node: GraphOperator) -> None:
        x, weight = low.input(node), low.given(node, 1)
        more: dict[str, Any] = {own: int(node.attributes[theirs]) for own, theirs in args.items()}
        if name in ("native_layer_norm", "_fused_rms_norm"):
            axis = int(node.attributes.get("axis", -1)) % max(len(x.shape), 1)
            more["normalized_shape"] = [int(s) for s in x.shape[axis:]]
        first = GraphOperator(node.name, node.type, node.inputs, node.outputs[:1], node.attributes)
        low.call(first, name, ("input", "weight", "bias"), (x, weight, low.given(node, 2)), **more)

    return rule


def _gathered(low: _GraphTape, node: GraphOperator) -> None:
    table, indices = low.input(node), low.input(node, 1)
    if node.inputs[0] in low.constant and len(table.shape) == 2 and not node.attributes.get("axis", 0):
        low.call(node, "embedding", ("weight", "indices"), (table, indices))
    else:
        dim = int(node.attributes.get("axis", 0)) % max(len(table.shape), 1)
        low.call(node, "index_select", ("self", "index"), (table, indices), dim=dim)


def _resized(low: _GraphTape, node: GraphOperator) -> None:
    x = low.input(node)
    count = len(x.shape) - 2
    names = {"linear": ("linear", "bilinear", "trilinear"), "cubic": ("bicubic",) * 3}
    mode = str(node.attributes.get("mode", "nearest"))
    way = names.get(mode, ("nearest",) * 3)[min(max(count, 1), 3) - 1]
    if not 1 <= count <= 3:
        raise low.problem(node, f"resizes a tensor of {len(x.shape)} dimensions")
    size = [int(s) for s in low.graph.tensors[node.outputs[0]].shape[2:]]
    low.call(node, f"upsample_{way}{count}d", ("input",), (x,), output_size=size)


def _kept(low: _GraphTape, node: GraphOperator) -> None:
    """The input itself, or what is left of it at inference."""
    low.made[node.outputs[0]] = low.input(node)


RULES: dict[str, Rule] = {
    **{theirs: _pointwise(own, "self") for theirs, own in {
        "Abs": "abs", "Acos": "acos", "Asin": "asin", "Atan": "atan", "Ceil": "ceil", "Celu": "celu", "Clip": "clamp",
        "Cos": "cos", "Cosh": "cosh", "Elu": "elu", "Erf": "erf", "Exp": "exp", "Floor": "floor", "Gelu": "gelu",
        "HardSigmoid": "hardsigmoid", "HardSwish": "hardswish", "IsInf": "isinf", "IsNaN": "isnan",
        "LeakyRelu": "leaky_relu", "Log": "log", "Mish": "mish", "Neg": "neg", "Not": "logical_not",
        "Reciprocal": "reciprocal", "Relu": "relu", "Round": "round", "Selu": "selu", "Sigmoid": "sigmoid",
        "Sign": "sign", "Sin": "sin", "Sinh": "sinh", "Softplus": "softplus", "Sqrt": "sqrt", "Swish": "silu",
        "Tan": "tan", "Tanh": "tanh", "ThresholdedRelu": "threshold", "Trilu": "tril",
    }.items()},
    **{theirs: _pointwise(own, "self", "other") for theirs, own in {
        "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Mod": "remainder", "Equal": "eq", "Greater": "gt",
        "GreaterOrEqual": "ge", "Less": "lt", "LessOrEqual": "le", "And": "logical_and", "Or": "logical_or",
        "Xor": "logical_xor",
    }.items()},
    "Pow": _pointwise("pow", "self", "exponent"),
    "PRelu": _pointwise("prelu", "self", "weight"),
    "Where": _pointwise("where", "condition", "self", "other"),
    "Max": _many("maximum"), "Min": _many("minimum"), "Sum": _many("add"),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _reshaped),
    "Identity": _kept, "Dropout": _kept,
    "Transpose": _transposed, "Concat": _concatenated, "Split": _split,
    "Slice": _copied("slice_copy"), "Expand": _copied("expand_copy"), "Tile": _copied("tile"),
    "Pad": _copied("constant_pad_nd"), "Cast": _copied("_to_copy"), "CastLike": _copied("_to_copy"),
    "DepthToSpace": _copied("pixel_shuffle", upscale_factor="blocksize"),
    "SpaceToDepth": _copied("pixel_unshuffle", downscale_factor="blocksize"),
    "Conv": _convolution(False), "ConvTranspose": _convolution(True), "Gemm": _gemm, "MatMul": _matmul,
    "MaxPool": _pooled("max_pool"), "AveragePool": _pooled("avg_pool"),
    "GlobalAveragePool": _reduced("mean", every=True), "GlobalMaxPool": _reduced("amax", every=True),
    **{theirs: _reduced(own) for theirs, own in {
        "ReduceMean": "mean", "ReduceSum": "sum", "ReduceMax": "amax", "ReduceMin": "amin", "ReduceProd": "prod",
        "ReduceL2": "linalg_vector_norm", "ReduceL1": "linalg_vector_norm", "ReduceLogSumExp": "logsumexp",
        "ArgMax": "argmax", "ArgMin": "argmin",
    }.items()},
    "CumSum": _pointwise("cumsum", "self"),
    "Softmax": _softmax("_softmax"), "LogSoftmax": _softmax("_log_softmax"),
    "BatchNormalization": _batch_normalized, "InstanceNormalization": _normalized("instance_norm"),
    "LayerNormalization": _normalized("native_layer_norm"), "RMSNormalization": _normalized("_fused_rms_norm"),
    "GroupNormalization": _normalized("native_group_norm", group="num_groups"),
    "LRN": _pointwise("local_response_norm", "self"),
    "Gather": _gathered, "GatherElements": _pointwise("gather", "self", "index"),
    "TopK": _copied("topk"), "Resize": _resized, "Upsample": _resized,
}  # fmt: skip
"""How each operator of ONNX is run, by its name."""


def batched(shape: Sequence[int], batch: int) -> Shape:
    """A shape whose first dimension follows the batch where it is as large."""
    rest = tuple(int(s) for s in shape)
    return (Dim(batch, BATCH), *rest[1:]) if rest and rest[0] == batch else rest
