"""Operators of ONNX Runtime's own (domain ``com.microsoft``): what its optimisers and quantisers write into files.

ONNX infers no shapes of them.  For that, each is replaced by operators of ONNX that make the same shapes
(:func:`with_known_shapes`); what it runs is then read from itself (:data:`RULES`).  Where it does several things in one
kernel, the trace has one operator that reads and writes what the kernel does, of the kind that takes most of its time.
Meaning of inputs and attributes: ``docs/ContribOperators.md`` of onnxruntime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from triosim.core.errors import InputError, quoted
from triosim.sources.models._tape import Tensor
from triosim.sources.readers._graph import GraphOperator, Lowering, Rule
from triosim.sources.readers._onnx_operators import attend, convolution, keep, multiply, product, split_heads
from triosim.trace.tables import Category

DOMAIN = "com.microsoft"
_BARE = ("SimplifiedLayerNormalization",)
"""Operators of the runtime that its files have without a domain."""


def type_of(domain: str, name: str) -> str:
    """What an operator is called in a graph: two of the same name in two domains are different."""
    return f"{DOMAIN}.{name}" if domain == DOMAIN or name in _BARE else name


# --- shapes -----------------------------------------------------------------------------------------------------------


class _StandIns:
    """What is put in the place of operators that ONNX knows no shapes of."""

    def __init__(self, model: Any, onnx: Any) -> None:
        self.onnx, self.graph = onnx, model.graph
        constants = list(model.graph.initializer)
        for node in model.graph.node:
            for one in node.attribute if node.op_type == "Constant" else ():
                if one.name == "value":
                    constants.append(type(one.t)(name=node.output[0], dims=one.t.dims))
        self.sides = {one.name: tuple(int(side) for side in one.dims) for one in constants}
        self.nodes: list[Any] = []

    def add(self, type_: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """A node; the name of what it makes."""
        output = output or f"triosim/shape/{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(type_, list(inputs), [output], **attributes))
        return output

    def number(self, values: Any) -> str:
        """A constant."""
        name = f"triosim/constant/{len(self.graph.initializer)}"
        self.graph.initializer.append(self.onnx.numpy_helper.from_array(np.array(values), name))
        return name

    def resized(self, x: str, axis: int, size: int, output: str = "") -> str:
        """``x`` with another size of one dimension, whatever its type is."""
        name = f"triosim/rows/{len(self.graph.initializer)}"  # which ones they are nobody asks
        kind = self.onnx.TensorProto
        self.graph.initializer.append(kind(name=name, data_type=kind.INT64, dims=[size]))
        return self.add("Gather", [x, name], output, axis=axis)

    def size(self, node: Any, at: int, axis: int) -> int:
        """A side of a weight, which an operator reads at this place.

        Raises:
            InputError: it is computed by the network.
        """
        if node.input[at] not in self.sides:
            raise InputError(
                f"node {quoted(node.name)} ({node.op_type}) reads {quoted(node.input[at])}, which is no weight of the "
                "file: export the network again"
            )
        return self.sides[node.input[at]][axis]


_StandIn = Callable[[_StandIns, Any, dict[str, Any]], None]


def with_known_shapes(model: Any, onnx: Any) -> None:
    """Replace the runtime's own operators, in place, by ones of ONNX with results of the same shapes.

    Args:
        model: as the package ``onnx`` has it.
        onnx: the package.
    """
    if not any(type_of(node.domain, node.op_type) in _STAND_INS for node in model.graph.node):
        return
    made = _StandIns(model, onnx)
    for node in model.graph.node:
        stands = _STAND_INS.get(type_of(node.domain, node.op_type))
        if stands is None:
            made.nodes.append(node)
            continue
        stands(made, node, {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute})
    nodes = [type(node).FromString(node.SerializeToString()) for node in made.nodes]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _like(*at: int) -> _StandIn:
    """Outputs of these places are like the first input; of others nothing is known."""

    def stand(made: _StandIns, node: Any, attributes: dict[str, Any]) -> None:
        for place in at:
            if place < len(node.output) and node.output[place]:
                made.add("Identity", [node.input[0]], node.output[place])

    return stand


def _columns(weight: int, side: int = 1, turned: str = "", to: int = 0) -> _StandIn:
    """The first input with as many columns as a weight has, in ``side``, or in the other one with an attribute;
    ``to``: the element type that comes out, where it is another."""

    def stand(made: _StandIns, node: Any, attributes: dict[str, Any]) -> None:
        own = side ^ 1 if turned and attributes.get(turned) else side
        columns = made.size(node, weight, own)
        x = made.resized(node.input[0], -1, columns, "" if to else node.output[0])
        if to:
            made.add("Cast", [x], node.output[0], to=to)

    return stand


_FLOAT, _UINT8 = 1, 2


def _fused_product(made: _StandIns, node: Any, attributes: dict[str, Any]) -> None:
    a, b = node.input[:2]
    if b in made.sides and len(made.sides[b]) == 2 and not attributes.get("transA"):
        _columns(1, 1, "transB")(made, node, attributes)
        return
    left = "...ji" if attributes.get("transA") else "...ij"
    right = "...kj" if attributes.get("transB") else "...jk"
    made.add("Einsum", [a, b], node.output[0], equation=f"{left},{right}->...ik")


def _fused_gemm(made: _StandIns, node: Any, attributes: dict[str, Any]) -> None:
    own = {key: attributes[key] for key in ("transA", "transB", "alpha", "beta") if key in attributes}
    made.add("Gemm", node.input, node.output[0], **own)


def _fused_convolution(made: _StandIns, node: Any, attributes: dict[str, Any]) -> None:
    known = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    own = {key: attributes[key] for key in known if key in attributes}
    made.add("Conv", list(node.input[:3]), node.output[0], **own)


def _bits_product(made: _StandIns, node: Any, attributes: dict[str, Any]) -> None:
    made.resized(node.input[0], -1, int(attributes["N"]), node.output[0])


def _embedded(made: _StandIns, node: Any, attributes: dict[str, Any]) -> None:
    made.add("Gather", [node.input[2], node.input[0]], node.output[0])
    if len(node.output) > 1 and node.output[1]:  # how long each sample is
        made.add("Gather", [node.input[0], made.number(0)], node.output[1], axis=1)


def _joined_attention(to: int = 0) -> _StandIn:
    """Queries, keys and values of one product with a weight of all three."""

    def stand(made: _StandIns, node: Any, attributes: dict[str, Any]) -> None:
        sizes = attributes.get("qkv_hidden_sizes") or [made.size(node, 1, 1) // 3] * 3
        x = made.resized(node.input[0], -1, int(sizes[2]), "" if to else node.output[0])
        if to:
            made.add("Cast", [x], node.output[0], to=to)

    return stand


def _heads_attention(made: _StandIns, node: Any, attributes: dict[str, Any]) -> None:
    if len(node.input) > 1 and node.input[1]:
        made.add("Identity", [node.input[0]], node.output[0])
    else:  # [batch, tokens, heads, 3, size]
        x = made.add("Gather", [node.input[0], made.number(0)], axis=3)
        made.add("Reshape", [x, made.number([0, 0, -1])], node.output[0])


def _grouped_attention(made: _StandIns, node: Any, attributes: dict[str, Any]) -> None:
    """Results, and keys and values [batch, groups, tokens, size] with those of before."""
    heads, groups = int(attributes["num_heads"]), int(attributes["kv_num_heads"])
    given = [node.input[at] if at < len(node.input) else "" for at in range(5)]
    if given[1]:
        made.add("Identity", [given[0]], node.output[0])
        new = made.add("Reshape", [given[1], made.number([0, 0, groups, -1])])
    else:
        whole = made.add("Reshape", [given[0], made.number([0, 0, heads + 2 * groups, -1])])
        own = made.resized(whole, 2, heads)
        made.add("Reshape", [own, made.number([0, 0, -1])], node.output[0])
        new = made.resized(whole, 2, groups)
    new = made.add("Transpose", [new], perm=[0, 2, 1, 3])
    for past, output in zip(given[3:], node.output[1:], strict=False):
        if output:
            parts = [past, new] if past else [new]
            made.add("Concat", parts, output, axis=2)


def _quantised_pair(made: _StandIns, node: Any, attributes: dict[str, Any]) -> None:
    made.add("Where", [made.number(True), node.input[0], node.input[3]], node.output[0])


def _quantised_cat(made: _StandIns, node: Any, attributes: dict[str, Any]) -> None:
    made.add("Concat", node.input[2::3], node.output[0], axis=int(attributes["axis"]))


def _quantised_mean(made: _StandIns, node: Any, attributes: dict[str, Any]) -> None:
    first = 1 if attributes.get("channels_last") else 2
    x = made.resized(node.input[0], first, 1)
    made.resized(x, first + 1, 1, node.output[0])


def _quantised_gemm(made: _StandIns, node: Any, attributes: dict[str, Any]) -> None:
    narrow = len(node.input) > 7 and node.input[7]
    _columns(3, 1, "transB", to=_UINT8 if narrow else _FLOAT)(made, node, attributes)


_STAND_INS: dict[str, _StandIn] = {
    f"{DOMAIN}.{name}": stand
    for name, stand in {
        **dict.fromkeys((
            "BiasAdd", "BiasGelu", "BiasSoftmax", "FastGelu", "Gelu", "GroupNorm", "QLinearLeakyRelu",
            "QLinearSigmoid", "QLinearSoftmax", "QuickGelu", "RotaryEmbedding", "SimplifiedLayerNormalization",
        ), _like(0)),
        **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _like(0, 3)),
        "Attention": _joined_attention(), "QAttention": _joined_attention(to=_FLOAT),
        "MultiHeadAttention": _heads_attention, "GroupQueryAttention": _grouped_attention,
        "EmbedLayerNormalization": _embedded,
        "FusedConv": _fused_convolution, "FusedGemm": _fused_gemm,
        **dict.fromkeys(("FusedMatMul", "TransposeMatMul"), _fused_product), "GemmFastGelu": _columns(1),
        "MatMulNBits": _bits_product, "DynamicQuantizeMatMul": _columns(1),
        "MatMulIntegerToFloat": _columns(1, to=_FLOAT), "QGemm": _quantised_gemm,
        **dict.fromkeys(("QLinearAdd", "QLinearMul"), _quantised_pair), "QLinearConcat": _quantised_cat,
        "QLinearGlobalAveragePool": _quantised_mean,
    }.items()
}  # fmt: skip


# --- what they run ----------------------------------------------------------------------------------------------------


def _operator(name: str, roles: Sequence[str], at: Sequence[int], **args: Any) -> Rule:
    """One operator of all that a kernel reads; ``at``: which inputs these are.  Of what else comes out nothing is made
    but where a shape is known."""

    def rule(low: Lowering, node: GraphOperator) -> None:
        known = tuple(one if one in low.graph.tensors else "" for one in node.outputs)
        low.call(replace(node, outputs=known), name, roles, [low.given(node, place) for place in at], **args)

    return rule


def _normed(name: str, inputs: Sequence[int]) -> Rule:
    """A norm over the last dimension, of a sum where there are several inputs."""

    def rule(low: Lowering, node: GraphOperator) -> None:
        roles = ("input", *("other",) * (len(inputs) - 1), "weight", "bias")
        more = max(inputs) + 1
        places = (*inputs, more, *((more + 1, more + 2) if name == "native_layer_norm" else (more + 1,)))
        _operator(name, (*roles, "other"), places, normalized_shape=[int(low.input(node).shape[-1])])(low, node)

    return rule


def _embed(low: Lowering, node: GraphOperator) -> None:
    """Words, positions and segments are looked up, added and normed."""
    first = GraphOperator(node.name, node.type, node.inputs, node.outputs[:1])
    ids = low.input(node)
    rows = low.tape.tensor(low.result(node).shape, low.result(node).dtype)
    low.tape.operator("aten::embedding", ("weight", "indices"), (low.input(node, 2), ids), (rows,))
    shape = [int(rows.shape[-1])]
    read = (rows, low.given(node, 5), low.given(node, 6))
    low.call(first, "native_layer_norm", ("input", "weight", "bias"), read, normalized_shape=shape)


def _of_few_bits(low: Lowering, node: GraphOperator) -> None:
    """``MatMulNBits``: weights [N, blocks, packed bytes], turned into what is multiplied as they are read."""
    rows, columns, bits = (int(node.attributes[key]) for key in ("K", "N", "bits"))
    if bits not in (4, 8):
        raise low.problem(node, f"has weights of {bits} bits; 4 and 8 are known")
    name = node.inputs[1]
    if name not in low.made:
        low.made[name] = low.tape.tensor((rows, columns), f"int{bits}", Category.WEIGHT, name=name)
    multiply(low, node, low.input(node), low.made[name], low.given(node, 5))


def _joined(past: int) -> Rule:
    """``Attention``: the product that makes queries, keys and values, and their attention; ``past``: where the state
    that it goes on from stands."""

    def rule(low: Lowering, node: GraphOperator) -> None:
        if past < len(node.inputs) and node.inputs[past]:
            raise low.problem(node, "goes on from a state, which is not supported")
        heads, sizes = int(node.attributes["num_heads"]), node.attributes.get("qkv_hidden_sizes")
        x, weight, own = low.input(node), low.input(node, 1), f"{node.outputs[0]}/joined"
        multiply(low, replace(node, outputs=(own,)), x, weight, low.given(node, 2), low.result(node).dtype)
        parts = _cut(low, low.made.pop(own), sizes or [int(weight.shape[1]) // 3] * 3)
        attend(low, node, [split_heads(low, part, heads) for part in parts], bool(node.attributes.get(CAUSAL)))

    return rule


CAUSAL = "unidirectional"


def _cut(low: Lowering, x: Tensor, widths: Sequence[int]) -> list[Tensor]:
    """Parts of the last dimension."""
    parts, begin = [], 0
    for width in widths:
        parts.append(low.tape.alias(x, (*x.shape[:-1], int(width)), begin))
        low.tape.operator("aten::slice", ("self",), (x,), (parts[-1],), view=True)
        begin += int(width)
    return parts


def _heads(low: Lowering, node: GraphOperator) -> None:
    """``MultiHeadAttention`` of queries, keys and values [batch, positions, heads x size]; keys and values of before
    are [batch, heads, positions, size]."""
    if len(node.inputs) < 3 or not node.inputs[1] or not node.inputs[2]:
        raise low.problem(node, "has queries, keys and values in one tensor, which is not supported")
    heads = int(node.attributes["num_heads"])
    parts = [split_heads(low, low.input(node, at), heads) for at in range(3)]
    for at in (1, 2):
        keep(low, node, parts, at, 5 + at)
    attend(low, node, parts, bool(node.attributes.get(CAUSAL)))


def _grouped(low: Lowering, node: GraphOperator) -> None:
    """``GroupQueryAttention``: rotary positions where it is asked for them, and a cache that grows."""
    counts = (int(node.attributes["num_heads"]), *(int(node.attributes["kv_num_heads"]),) * 2)
    if len(node.inputs) > 1 and node.inputs[1]:
        given = [low.input(node, at) for at in range(3)]
    else:
        size = int(low.input(node).shape[2]) // sum(counts)
        given = _cut(low, low.input(node), [count * size for count in counts])
    parts = [split_heads(low, x, count) for x, count in zip(given, counts, strict=True)]
    for at in (0, 1) if node.attributes.get("do_rotary") else ():
        y = low.tape.tensor(parts[at].shape, parts[at].dtype)
        low.tape.operator(
            "aten::fused_rope", ("input", "cos", "sin"), (parts[at], low.input(node, 7), low.input(node, 8)), (y,)
        )
        parts[at] = y
    for at in (1, 2):
        keep(low, node, parts, at, 2 + at)
    attend(low, node, parts, causal=True)


def _rounded_first(low: Lowering, node: GraphOperator) -> None:
    """``DynamicQuantizeMatMul``: the first matrix is rounded to the 8 bits of the second."""
    a, b = low.input(node), low.input(node, 1)
    narrow = low.tape.tensor(a.shape, b.dtype)
    low.tape.operator("aten::quantize", ("self",), (a,), (narrow,))
    multiply(low, node, narrow, b, low.given(node, 4))


def _several(low: Lowering, node: GraphOperator) -> None:
    parts = [low.input(node, at) for at in range(2, len(node.inputs), 3)]
    dim = int(node.attributes["axis"]) % max(len(parts[0].shape), 1)
    low.call(node, "cat", ("tensors",) * len(parts), parts, dim=dim)


def _mean(low: Lowering, node: GraphOperator) -> None:
    dims = [1, 2] if node.attributes.get("channels_last") else [2, 3]
    low.call(node, "mean", ("self",), (low.input(node),), dim=dims, keepdim=True)


RULES: dict[str, Rule] = {
    f"{DOMAIN}.{name}": rule
    for name, rule in {
        **{theirs: _operator(own, ("self", "other", "other"), (0, 1, 2)) for theirs, own in {
            "BiasAdd": "add", "BiasGelu": "gelu", "FastGelu": "gelu", "Gelu": "gelu", "QuickGelu": "silu",
        }.items()},
        "BiasSoftmax": _operator("_softmax", ("self", "other"), (0, 1), dim=-1, half_to_float=False),
        "QLinearSoftmax": _operator("_softmax", ("self",), (0,), dim=-1, half_to_float=False),
        "QLinearSigmoid": _operator("sigmoid", ("self",), (0,)),
        "QLinearLeakyRelu": _operator("leaky_relu", ("self",), (0,)),
        "QLinearAdd": _operator("add", ("self", "other"), (0, 3)),
        "QLinearMul": _operator("mul", ("self", "other"), (0, 3)),
        "QLinearConcat": _several, "QLinearGlobalAveragePool": _mean,
        "GroupNorm": _operator("native_group_norm", ("input", "weight", "bias"), (0, 1, 2)),
        "SimplifiedLayerNormalization": _normed("_fused_rms_norm", (0,)),
        "SkipSimplifiedLayerNormalization": _normed("_fused_rms_norm", (0, 1)),
        "SkipLayerNormalization": _normed("native_layer_norm", (0, 1)), "EmbedLayerNormalization": _embed,
        "RotaryEmbedding": _operator("fused_rope", ("input", "cos", "sin"), (0, 2, 3)),
        "FusedConv": convolution(), "FusedGemm": product(bias=2), "GemmFastGelu": product(bias=2),
        **dict.fromkeys(("FusedMatMul", "TransposeMatMul"), product()), "MatMulNBits": _of_few_bits,
        "DynamicQuantizeMatMul": _rounded_first, "MatMulIntegerToFloat": product(bias=6), "QGemm": product(3, 6),
        "Attention": _joined(past=4), "QAttention": _joined(past=8),
        "MultiHeadAttention": _heads, "GroupQueryAttention": _grouped,
    }.items()
}  # fmt: skip
"""How each of them is run, by domain and name."""
