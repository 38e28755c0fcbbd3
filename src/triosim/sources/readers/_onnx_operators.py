"""ONNX's operators, each as the operators of PyTorch that do the same work.

What a runtime copies (``Transpose``, ``Slice``, ``Split``, ``Expand``) is a copy here too, though PyTorch would look at
the same memory; ``Reshape`` and its like are views.  Versions of ONNX in which an operator means something else are
told apart by the graph's opset.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from triosim.sources.models._tape import Tensor
from triosim.sources.readers._graph import CHOOSING, GraphOperator, Lowering, NetworkGraph, Rule
from triosim.trace.tables import Meta, Trace

_ONE_DIMENSION = 13
"""Opset from which on ``Softmax``, ``LogSoftmax`` and ``Hardmax`` go over one dimension."""


def _pointwise(name: str, *roles: str) -> Rule:
    """The tensors of the node in order; what else ONNX hands over (bounds, exponents) are numbers."""

    def rule(low: Lowering, node: GraphOperator) -> None:
        low.call(node, name, roles, [low.given(node, at) for at in range(len(roles))])

    return rule


def _many(name: str) -> Rule:
    """An operator of two, of as many as there are (``Max``, ``Sum``): each pair in turn."""

    def rule(low: Lowering, node: GraphOperator) -> None:
        x = low.input(node)
        for at in range(1, len(node.inputs) - 1):
            other = low.input(node, at)
            y = low.tape.tensor(max(x.shape, other.shape, key=lambda s: (len(s), math.prod(s))), x.dtype)
            low.tape.operator(f"aten::{name}", ("self", "other"), (x, other), (y,))
            x = y
        last = low.given(node, len(node.inputs) - 1) if len(node.inputs) > 1 else None
        low.call(node, name, ("self", "other"), (x, last))

    return rule


def _reshaped(low: Lowering, node: GraphOperator) -> None:
    low.made[node.outputs[0]] = low.view(node, low.input(node), low.result(node).shape)


def _copied(name: str, **attributes: str) -> Rule:
    """A copy of the first input; ``attributes`` are arguments by what ONNX calls them."""

    def rule(low: Lowering, node: GraphOperator) -> None:
        args = {own: node.attributes[theirs] for own, theirs in attributes.items() if theirs in node.attributes}
        low.call(node, name, ("self",), (low.input(node),), **args)

    return rule


def _concatenated(low: Lowering, node: GraphOperator) -> None:
    parts = [low.input(node, at) for at in range(len(node.inputs))]
    dim = int(node.attributes.get("axis", 0)) % max(len(parts[0].shape), 1)
    low.call(node, "cat", ("tensors",) * len(parts), parts, dim=dim)


def _split(low: Lowering, node: GraphOperator) -> None:
    x = low.input(node)
    dim = int(node.attributes.get("axis", 0)) % max(len(x.shape), 1)
    sizes = [int(low.graph.tensors[name].shape[dim]) for name in node.outputs if name in low.graph.tensors]
    low.call(node, "split_with_sizes_copy", ("self",), (x,), split_sizes=sizes, dim=dim)


def _transposed(low: Lowering, node: GraphOperator) -> None:
    x = low.input(node)
    dims = list(node.attributes.get("perm", range(len(x.shape) - 1, -1, -1)))
    low.call(node, "permute_copy", ("self",), (x,), dims=[int(d) for d in dims])


def _window(low: Lowering, node: GraphOperator, x: Tensor, kernel: Sequence[int]) -> dict[str, list[int]]:
    """Kernel, stride, padding (of one side, the larger) and dilation, from the attributes and what comes out."""
    count = len(kernel)
    stride = [int(s) for s in node.attributes.get("strides", (1,) * count)]
    dilation = [int(d) for d in node.attributes.get("dilations", (1,) * count)]
    pads = [int(p) for p in node.attributes.get("pads", (0,) * 2 * count)]
    if len(stride) != count or len(dilation) != count or len(pads) != 2 * count or len(x.shape) != count + 2:
        raise low.problem(node, f"has a window of {count} dimensions over a tensor of {len(x.shape)}")
    padding = [max(pads[at], pads[at + count]) for at in range(count)]
    if str(node.attributes.get("auto_pad", "NOTSET")).startswith("SAME"):
        rows = low.result(node).shape[2:]
        for at in range(count):
            spanned = (int(rows[at]) - 1) * stride[at] + (kernel[at] - 1) * dilation[at] + 1
            padding[at] = max(0, -(-(spanned - int(x.shape[2 + at])) // 2))
    elif node.type != "ConvTranspose":
        reach = [int(x.shape[2 + at]) + pads[at] + pads[at + count] for at in range(count)]
        spans = [(kernel[at] - 1) * dilation[at] + 1 for at in range(count)]
        if any(span > most for span, most in zip(spans, reach, strict=True)):
            window, room = ("x".join(map(str, sizes)) for sizes in (spans, reach))
            raise low.problem(node, f"has a window of {window} over a padded tensor of {room}, which is smaller")
    return {"stride": stride, "padding": padding, "dilation": dilation}


def convolution(transposed: bool = False, weight: int = 1, bias: int = 2) -> Rule:
    """A convolution; ``weight`` and ``bias``: where they stand among the inputs."""

    def rule(low: Lowering, node: GraphOperator) -> None:
        x, kernels = low.input(node), low.input(node, weight)
        window = _window(low, node, x, [int(s) for s in kernels.shape[2:]])
        low.call(
            node, "convolution", ("input", "weight", "bias"), (x, kernels, low.given(node, bias)), **window,
            transposed=transposed, output_padding=[0] * len(window["stride"]),
            groups=int(node.attributes.get("group", 1)),
        )  # fmt: skip

    return rule


def _pooled(name: str) -> Rule:
    def rule(low: Lowering, node: GraphOperator) -> None:
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

    def rule(low: Lowering, node: GraphOperator) -> None:
        x = low.input(node)
        dims = list(range(2, len(x.shape))) if every else _reduced_dims(low, node, len(x.shape))
        if not dims and x.shape:
            _kept(low, node)
        else:
            low.call(node, name, ("self",), (x,), dim=dims, keepdim=len(low.result(node).shape) == len(x.shape))

    return rule


def _reduced_dims(low: Lowering, node: GraphOperator, rank: int) -> list[int]:
    """Dimensions that an operator reduces: an attribute, in later opsets an input; all where neither is there."""
    axes = node.attributes.get("axes", low.values(node, 1))
    if node.type in ("ArgMax", "ArgMin"):
        axes = (node.attributes.get("axis", 0),)
    if not axes and node.attributes.get("noop_with_empty_axes"):
        return []
    return sorted(int(a) % max(rank, 1) for a in axes or range(rank))


def _softmax(name: str) -> Rule:
    """Over one dimension; before opset 13 over all from ``axis`` (then 1 where not given) on, as one row."""

    def rule(low: Lowering, node: GraphOperator) -> None:
        x, rank = low.input(node), max(len(low.input(node).shape), 1)
        dim = int(node.attributes.get("axis", -1 if low.graph.opset >= _ONE_DIMENSION else 1)) % rank
        if low.graph.opset >= _ONE_DIMENSION or dim == rank - 1:
            low.call(node, name, ("self",), (x,), dim=dim, half_to_float=False)
            return
        flat = low.view(node, x, (*x.shape[:dim], math.prod(x.shape[dim:])))
        y = low.tape.tensor(flat.shape, x.dtype)
        low.tape.operator(f"aten::{name}", ("self",), (flat,), (y,), {"dim": dim, "half_to_float": False})
        low.made[node.outputs[0]] = low.view(node, y, x.shape)

    return rule


def product(second: int = 1, bias: int | None = None) -> Rule:
    """Matrices times matrices or one matrix, each turned where an attribute says so.

    Args:
        second: where the second stands among the inputs.
        bias: where a vector stands that is added to each row; None where there is none.
    """

    def rule(low: Lowering, node: GraphOperator) -> None:
        a = _turned(low, low.input(node), node.attributes.get("transA"))
        b = _turned(low, low.input(node, second), node.attributes.get("transB"))
        multiply(low, node, a, b, None if bias is None else low.given(node, bias))

    return rule


def _turned(low: Lowering, x: Tensor, turned: object) -> Tensor:
    """A matrix, or a batch of them, with rows as columns."""
    if not turned:
        return x
    y = low.tape.alias(x, (*x.shape[:-2], x.shape[-1], x.shape[-2]))
    low.tape.operator("aten::t" if len(x.shape) == 2 else "aten::mT", ("self",), (x,), (y,), view=True)
    return y


def multiply(low: Lowering, node: GraphOperator, a: Tensor, b: Tensor, bias: Tensor | None, dtype: str = "") -> None:
    """A node's result as the product of matrices; a batch of them times one matrix is one product."""
    if len(b.shape) != 2 or len(a.shape) < 2:
        low.call(node, "matmul", ("self", "other"), (a, b))
        return
    flat = low.view(node, a, (math.prod(a.shape[:-1]), a.shape[-1])) if len(a.shape) > 2 else a
    y = low.tape.tensor((flat.shape[0], b.shape[1]), dtype or low.result(node).dtype)
    if bias is None:
        low.tape.operator("aten::mm", ("self", "mat2"), (flat, b), (y,))
    else:
        low.tape.operator("aten::addmm", ("self", "mat1", "mat2"), (bias, flat, b), (y,))
    low.made[node.outputs[0]] = low.view(node, y, (*a.shape[:-1], b.shape[1])) if len(a.shape) > 2 else y


def _batch_normalized(low: Lowering, node: GraphOperator) -> None:
    roles = ("input", "weight", "bias", "running_mean", "running_var")
    first = GraphOperator(node.name, node.type, node.inputs, node.outputs[:1], node.attributes)
    low.call(first, "native_batch_norm", roles, [low.given(node, at) for at in range(5)], training=False)


def _normalized(name: str, **args: str) -> Rule:
    def rule(low: Lowering, node: GraphOperator) -> None:
        x, weight = low.input(node), low.given(node, 1)
        more: dict[str, Any] = {own: int(node.attributes[theirs]) for own, theirs in args.items()}
        if name in ("native_layer_norm", "_fused_rms_norm"):
            axis = int(node.attributes.get("axis", -1)) % max(len(x.shape), 1)
            more["normalized_shape"] = [int(s) for s in x.shape[axis:]]
        first = GraphOperator(node.name, node.type, node.inputs, node.outputs[:1], node.attributes)
        low.call(first, name, ("input", "weight", "bias"), (x, weight, low.given(node, 2)), **more)

    return rule


def _gathered(low: Lowering, node: GraphOperator) -> None:
    table, indices = low.input(node), low.input(node, 1)
    if node.inputs[0] in low.constant and len(table.shape) == 2 and not node.attributes.get("axis", 0):
        low.call(node, "embedding", ("weight", "indices"), (table, indices))
    else:
        dim = int(node.attributes.get("axis", 0)) % max(len(table.shape), 1)
        low.call(node, "index_select", ("self", "index"), (table, indices), dim=dim)


def _resized(low: Lowering, node: GraphOperator) -> None:
    x = low.input(node)
    count = len(x.shape) - 2
    names = {"linear": ("linear", "bilinear", "trilinear"), "cubic": ("bicubic",) * 3}
    mode = str(node.attributes.get("mode", "nearest"))
    way = names.get(mode, ("nearest",) * 3)[min(max(count, 1), 3) - 1]
    if not 1 <= count <= 3:
        raise low.problem(node, f"resizes a tensor of {len(x.shape)} dimensions")
    size = [int(s) for s in low.result(node).shape[2:]]
    low.call(node, f"upsample_{way}{count}d", ("input",), (x,), output_size=size)


def _kept(low: Lowering, node: GraphOperator) -> None:
    """The input itself, or what is left of it at inference."""
    low.made[node.outputs[0]] = low.input(node)


def _length_normalized(low: Lowering, node: GraphOperator) -> None:
    """Vectors along ``axis`` are divided by their length: its sum is a kernel, the division another."""
    x = low.input(node)
    dim = int(node.attributes.get("axis", -1)) % max(len(x.shape), 1)
    lengths = low.tape.tensor((*x.shape[:dim], 1, *x.shape[dim + 1 :]), x.dtype)
    args = {"ord": int(node.attributes.get("p", 2)), "dim": [dim], "keepdim": True}
    low.tape.operator("aten::linalg_vector_norm", ("self",), (x,), (lengths,), args)
    low.call(node, "div", ("self", "other"), (x, lengths))


def _summed(low: Lowering, node: GraphOperator) -> None:
    """``Einsum``: where the equation names no result, it has the letters that occur once, in their order."""
    parts = [low.input(node, at) for at in range(len(node.inputs))]
    equation = str(node.attributes["equation"]).replace(" ", "")
    if "->" not in equation:
        letters = [c for c in equation if c.isalpha()]
        equation += "->" + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    low.call(node, "einsum", ("tensors",) * len(parts), parts, equation=equation)


def _attention(low: Lowering, node: GraphOperator) -> None:
    """Query, key and value as [batch, heads, positions, size], or [batch, positions, heads x size] (opset 23)."""
    heads = (int(node.attributes.get("q_num_heads", 0)), *(int(node.attributes.get("kv_num_heads", 0)),) * 2)
    parts = [split_heads(low, low.input(node, at), heads[at]) for at in range(3)]
    for at in (1, 2):  # what was cached, and the new keys or values after it
        keep(low, node, parts, at, 3 + at)
    attend(low, node, parts, bool(node.attributes.get("is_causal", 0)))


def split_heads(low: Lowering, x: Tensor, heads: int) -> Tensor:
    """[batch, positions, heads x size] as [batch, heads, positions, size]; what is so already stays."""
    if len(x.shape) != 3:
        return x
    batch, length, width = x.shape
    y = low.tape.alias(x, (batch, length, heads, int(width) // heads))
    low.tape.operator("aten::view", ("self",), (x,), (y,), view=True)
    z = low.tape.alias(y, (batch, heads, length, int(width) // heads))
    low.tape.operator("aten::transpose", ("self",), (y,), (z,), {"dim0": 1, "dim1": 2}, view=True)
    return z


def keep(low: Lowering, node: GraphOperator, parts: list[Tensor], at: int, place: int) -> None:
    """Put keys or values behind those of before, which are input ``place``; they are the output ``at`` too."""
    past, new = low.given(node, place), parts[at]
    if past is not None:
        y = low.tape.tensor((*new.shape[:2], int(past.shape[2]) + int(new.shape[2]), new.shape[3]), new.dtype)
        low.tape.operator("aten::cat", ("tensors", "tensors"), (past, new), (y,), {"dim": 2})
        parts[at] = y
    if at < len(node.outputs) and node.outputs[at]:
        low.made[node.outputs[at]] = parts[at]


def attend(low: Lowering, node: GraphOperator, parts: Sequence[Tensor], causal: bool) -> None:
    """A node's result as the attention of queries, keys and values, each [batch, heads, positions, size]."""
    query, key, value = parts
    y = low.tape.tensor((*query.shape[:3], value.shape[3]), query.dtype)
    args = {"is_causal": causal, "enable_gqa": key.shape[1] != query.shape[1]}
    low.tape.operator("aten::scaled_dot_product_attention", ("query", "key", "value"), parts, (y,), args)
    low.made[node.outputs[0]] = low.view(node, y, low.result(node).shape)


def _rotated(low: Lowering, node: GraphOperator) -> None:
    low.call(node, "fused_rope", ("input", "cos", "sin"), [low.given(node, at) for at in range(3)])


RECURRENT = {"LSTM": (4, "_thnn_fused_lstm_cell"), "GRU": (3, "_thnn_fused_gru_cell"), "RNN": (1, "add")}
"""Rows of a layer's weights for each element of its state, and what makes the next state from them."""


def _recurrent(low: Lowering, node: GraphOperator) -> None:
    """A recurrent layer: the products of all inputs at once, then step by step one product and the cell.

    The input is [steps, batch, size], with ``layout`` 1 [batch, steps, size]; the weights are [directions, gates x
    state, size] and [directions, gates x state, state].  ONNX Runtime and cuDNN take a layer the same way.
    """
    x, weight, again = low.input(node), low.input(node, 1), low.input(node, 2)
    gates, cell = RECURRENT[node.type]
    steps, batch = x.shape[:2] if not node.attributes.get("layout", 0) else (x.shape[1], x.shape[0])
    directions, state = int(again.shape[0]), int(again.shape[2])
    low.check(node, int(steps) * directions)
    flat = low.view(node, x, (steps * batch, x.shape[2]))
    lasts = []
    for way in range(directions):
        own = _matrix(low, weight, way)
        all_inputs = low.tape.tensor((steps * batch, gates * state), x.dtype)
        low.tape.operator("aten::mm", ("self", "mat2"), (flat, own), (all_inputs,))
        hidden, own = low.tape.tensor((batch, state), x.dtype), _matrix(low, again, way)
        low.tape.operator("aten::zeros", (), (), (hidden,))
        held = hidden
        for _ in range(int(steps)):
            products = low.tape.tensor((batch, gates * state), x.dtype)
            low.tape.operator("aten::mm", ("self", "mat2"), (hidden, own), (products,))
            one = low.tape.alias(all_inputs, (batch, gates * state))
            low.tape.operator("aten::select", ("self",), (all_inputs,), (one,), view=True)
            hidden = low.tape.tensor((batch, state), x.dtype)
            if node.type == "LSTM":
                before, held = held, low.tape.tensor((batch, state), x.dtype)
                roles, read = ("input_gates", "hidden_gates", "cx"), (one, products, before)
                low.tape.operator(f"aten::{cell}", roles, read, (hidden, held))
            else:
                low.tape.operator(f"aten::{cell}", ("self", "other"), (one, products), (hidden,))
            lasts.append(hidden)
    for at, name in enumerate(node.outputs):
        if not name:
            continue
        made = low.output(node, at)
        parts = lasts if at == 0 else lasts[steps - 1 :: steps] if at == 1 else [held]
        low.tape.operator("aten::stack", ("tensors",) * len(parts), parts, (made,), {"dim": 0})


def _matrix(low: Lowering, weights: Tensor, way: int) -> Tensor:
    """The weights of one direction [out, in], turned to be multiplied from the right."""
    out, size = weights.shape[1:]
    one = low.tape.alias(weights, (out, size), way * int(out) * int(size))
    low.tape.operator("aten::select", ("self",), (weights,), (one,), {"dim": 0, "index": way}, view=True)
    turned = low.tape.alias(one, (size, out))
    low.tape.operator("aten::t", ("self",), (one,), (turned,), view=True)
    return turned


_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


def _loss(name: str) -> Rule:
    def rule(low: Lowering, node: GraphOperator) -> None:
        reduction = _REDUCTIONS[str(node.attributes.get("reduction", "mean"))]
        read = [low.given(node, at) for at in range(3)]
        low.call(node, name, ("self", "target", "weight"), read, reduction=reduction)

    return rule


def _refused(why: str) -> Rule:
    def rule(low: Lowering, node: GraphOperator) -> None:
        raise low.problem(node, why)

    return rule


RULES: dict[str, Rule] = {
    **{theirs: _pointwise(own, "self") for theirs, own in {
        "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh", "Atan": "atan",
        "Atanh": "atanh", "BitwiseNot": "bitwise_not", "Ceil": "ceil", "Celu": "celu", "Clip": "clamp", "Cos": "cos",
        "Cosh": "cosh", "Elu": "elu", "Erf": "erf", "Exp": "exp", "Floor": "floor", "Gelu": "gelu",
        "HardSigmoid": "hardsigmoid", "HardSwish": "hardswish", "IsInf": "isinf", "IsNaN": "isnan",
        "LeakyRelu": "leaky_relu", "Log": "log", "Mish": "mish", "Neg": "neg", "Not": "logical_not",
        "Reciprocal": "reciprocal", "Relu": "relu", "Round": "round", "Selu": "selu", "Shrink": "hardshrink",
        "Sigmoid": "sigmoid", "Sign": "sign", "Sin": "sin", "Sinh": "sinh", "Softplus": "softplus",
        "Softsign": "softsign", "Sqrt": "sqrt", "Swish": "silu", "Tan": "tan", "Tanh": "tanh",
        "ThresholdedRelu": "threshold", "Trilu": "tril",
    }.items()},
    **{theirs: _pointwise(own, "self", "other") for theirs, own in {
        "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Mod": "remainder", "Equal": "eq", "Greater": "gt",
        "GreaterOrEqual": "ge", "Less": "lt", "LessOrEqual": "le", "And": "logical_and", "Or": "logical_or",
        "Xor": "logical_xor", "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor",
        "BitShift": "bitwise_left_shift",
    }.items()},
    "Pow": _pointwise("pow", "self", "exponent"),
    "PRelu": _pointwise("prelu", "self", "weight"),
    "Where": _pointwise("where", "condition", "self", "other"),
    "Max": _many("maximum"), "Min": _many("minimum"), "Sum": _many("add"), "Mean": _many("add"),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _reshaped),
    "Identity": _kept, "Dropout": _kept,
    "Transpose": _transposed, "Concat": _concatenated, "Split": _split,
    "Slice": _copied("slice_copy"), "Expand": _copied("expand_copy"), "Tile": _copied("tile"),
    "Pad": _copied("constant_pad_nd"), "CenterCropPad": _copied("constant_pad_nd"),
    "Cast": _copied("_to_copy"), "CastLike": _copied("_to_copy"), "ReverseSequence": _copied("flip"),
    "DepthToSpace": _copied("pixel_shuffle", upscale_factor="blocksize"),
    "SpaceToDepth": _copied("pixel_unshuffle", downscale_factor="blocksize"), "Col2Im": _copied("col2im"),
    "Conv": convolution(), "ConvTranspose": convolution(transposed=True), "Gemm": product(bias=2), "MatMul": product(),
    "Einsum": _summed, **dict.fromkeys(RECURRENT, _recurrent),
    "QuantizeLinear": _pointwise("quantize", "self"), "DequantizeLinear": _pointwise("dequantize", "self"),
    "DynamicQuantizeLinear": _pointwise("quantize", "self"),
    "QLinearConv": convolution(weight=3, bias=8), "ConvInteger": convolution(bias=4),
    "QLinearMatMul": product(3), "MatMulInteger": product(),
    "MaxPool": _pooled("max_pool"), "AveragePool": _pooled("avg_pool"), "LpPool": _pooled("avg_pool"),
    "GlobalAveragePool": _reduced("mean", every=True), "GlobalMaxPool": _reduced("amax", every=True),
    "GlobalLpPool": _reduced("linalg_vector_norm", every=True),
    **{theirs: _reduced(own) for theirs, own in {
        "ReduceMean": "mean", "ReduceSum": "sum", "ReduceMax": "amax", "ReduceMin": "amin", "ReduceProd": "prod",
        "ReduceL2": "linalg_vector_norm", "ReduceL1": "linalg_vector_norm", "ReduceSumSquare": "linalg_vector_norm",
        "ReduceLogSum": "logsumexp", "ReduceLogSumExp": "logsumexp", "ArgMax": "argmax", "ArgMin": "argmin",
    }.items()},
    "CumSum": _pointwise("cumsum", "self"),
    "Softmax": _softmax("_softmax"), "LogSoftmax": _softmax("_log_softmax"), "Hardmax": _softmax("_softmax"),
    "Attention": _attention, "RotaryEmbedding": _rotated,
    "BatchNormalization": _batch_normalized, "InstanceNormalization": _normalized("instance_norm"),
    "LayerNormalization": _normalized("native_layer_norm"), "RMSNormalization": _normalized("_fused_rms_norm"),
    "GroupNormalization": _normalized("native_group_norm", group="num_groups"),
    "MeanVarianceNormalization": _pointwise("instance_norm", "input"), "LpNormalization": _length_normalized,
    "LRN": _pointwise("local_response_norm", "self"),
    "Gather": _gathered, "GatherElements": _pointwise("gather", "self", "index"),
    "GatherND": _pointwise("index", "self", "indices"),
    **dict.fromkeys(("Scatter", "ScatterElements"), _pointwise("scatter", "self", "index", "src")),
    "ScatterND": _pointwise("index_put", "self", "indices", "values"),
    "TensorScatter": _pointwise("index_put", "self", "values", "indices"),
    "OneHot": _pointwise("one_hot", "self"), "TopK": _copied("topk"),
    "Resize": _resized, "Upsample": _resized, "GridSample": _pointwise("grid_sampler", "input", "grid"),
    "AffineGrid": _pointwise("affine_grid_generator", "theta"), "MaxUnpool": _copied("max_unpool2d"),
    **dict.fromkeys(("RoiAlign", "MaxRoiPool"), _pointwise("roi_align", "input", "rois")),
    "SoftmaxCrossEntropyLoss": _loss("cross_entropy_loss"), "NegativeLogLikelihoodLoss": _loss("nll_loss"),
    **{theirs: _copied(own) for theirs, own in {
        "RandomNormalLike": "randn_like", "RandomUniformLike": "rand_like", "Bernoulli": "bernoulli",
        "Multinomial": "multinomial",
    }.items()},
    **dict.fromkeys(CHOOSING, _refused("chooses or repeats operators as the network runs")),
    **dict.fromkeys(
        ("Compress", "NonMaxSuppression", "NonZero", "Unique"),
        _refused("makes as much as its input's values say, which is not known before it runs"),
    ),
}  # fmt: skip
"""How each operator of ONNX is run, by its name."""


def forward_trace(
    graph: NetworkGraph, meta: Meta, where: str, unused: bool = False, others: Mapping[str, Rule] | None = None
) -> Trace:
    """The trace of one forward pass, without times.

    Args:
        graph: the network.
        meta: of the trace.
        where: the file, for messages.
        unused: whether operators whose output reaches no result run too, as they do under some runtimes.
        others: how operators that are none of ONNX's are run.

    Raises:
        InputError: an operator that nobody knows, or one that lacks what it needs.
    """
    return Lowering(graph, {**RULES, **(others or {})}, where, unused).trace(meta)
