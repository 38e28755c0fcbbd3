"""ONNX Runtime's own operators: shapes as the runtime makes them, and the operators that a node is read as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triosim.core.errors import InputError
from triosim.sources.readers.onnx import Onnx, _inferred, _model
from triosim.trace.tables import Trace

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

_RANDOM = np.random.default_rng(0)


def _real(*shape: int) -> Any:
    return _RANDOM.standard_normal(shape).astype(np.float32)


def _byte(*shape: int) -> Any:
    return _RANDOM.integers(0, 200, shape).astype(np.uint8)


X = _real(2, 6, 32)
PAIR = {"scale": np.array(0.1, np.float32), "zero": np.array(3, np.uint8)}
POSITIONS = {"cos": _real(64, 8), "sin": _real(64, 8)}
HEADS = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
VIEWED_PRODUCT = ("view", "mm", "view")
SPLIT = ("view", "transpose") * 3
ATTENDED = (*SPLIT, "scaled_dot_product_attention", "view")
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], Sequence[str], int, dict[str, Any], tuple[str, ...]]] = {
    # what is read: inputs, weights, names in order (by default all), places of outputs as bits, attributes; operators
    "gelu": ("Gelu", {"x": X}, {}, (), 1, {}, ("gelu",)),
    "fast gelu": ("FastGelu", {"x": X}, {"b": _real(32)}, (), 1, {}, ("gelu",)),
    "quick gelu": ("QuickGelu", {"x": X}, {}, (), 1, {}, ("silu",)),
    "biased gelu": ("BiasGelu", {"x": X}, {"b": _real(32)}, (), 1, {}, ("gelu",)),
    "norm of a sum": (
        "SkipLayerNormalization", {"x": X, "y": X}, {"g": _real(32), "b": _real(32), "c": _real(32)}, (), 0b1001, {},
        ("native_layer_norm",),
    ),
    "rms norm of a sum": (
        "SkipSimplifiedLayerNormalization", {"x": X, "y": X}, {"g": _real(32)}, (), 0b1001, {}, ("_fused_rms_norm",),
    ),
    "rms norm": ("SimplifiedLayerNormalization", {"x": X}, {"g": _real(32)}, (), 1, {}, ("_fused_rms_norm",)),
    "embedding": (
        "EmbedLayerNormalization", {"i": np.zeros((2, 6), np.int32), "t": np.zeros((2, 6), np.int32)},
        {"w": _real(20, 32), "p": _real(10, 32), "s": _real(2, 32), "g": _real(32), "b": _real(32)}, (), 0b11, {},
        ("embedding", "native_layer_norm"),
    ),
    "turned product": ("FusedMatMul", {"x": X}, {"w": _real(48, 32)}, (), 1, {"transB": 1}, ("t", *VIEWED_PRODUCT)),
    "batch of products": (
        "FusedMatMul", {"x": X, "y": _real(2, 5, 32)}, {}, (), 1, {"transB": 1, "alpha": 0.5}, ("mT", "matmul"),
    ),
    "product with an activation": (
        "FusedGemm", {"x": _real(4, 32)}, {"w": _real(48, 32), "b": _real(48)}, (), 1,
        {"transB": 1, "activation": "Relu"}, ("t", "addmm"),
    ),
    "convolution with an activation": (
        "FusedConv", {"x": _real(1, 8, 16, 16)}, {"w": _real(12, 8, 3, 3), "b": _real(12)}, (), 1,
        {"activation": "Relu", "pads": [1, 1, 1, 1], "strides": [2, 2], "kernel_shape": [3, 3]}, ("convolution",),
    ),
    "weights of 4 bits": (
        "MatMulNBits", {"x": _real(2, 6, 64)}, {"w": _byte(48, 2, 16), "s": _real(96)}, (), 1,
        {"K": 64, "N": 48, "bits": 4, "block_size": 32}, VIEWED_PRODUCT,
    ),
    "rounded on the way": (
        "DynamicQuantizeMatMul", {"x": X}, {"w": _byte(32, 48), "s": PAIR["scale"]}, (), 1, {},
        ("quantize", *VIEWED_PRODUCT),
    ),
    "whole numbers to real ones": (
        "MatMulIntegerToFloat", {"x": _byte(2, 6, 32)}, {"w": _byte(32, 48), **PAIR}, ("x", "w", "scale", "scale"), 1,
        {}, VIEWED_PRODUCT,
    ),
    "quantised product": (
        "QGemm", {"x": _byte(4, 32)}, {"w": _byte(48, 32), "c": np.zeros(48, np.int32), **PAIR},
        ("x", "scale", "zero", "w", "scale", "zero", "c", "scale", "zero"), 1, {"transB": 1}, ("t", "addmm"),
    ),
    "quantised sum": (
        "QLinearAdd", {"x": _byte(2, 8, 4, 4), "y": _byte(1, 8, 1, 1)}, PAIR,
        ("x", "scale", "zero", "y", "scale", "zero", "scale", "zero"), 1, {}, ("add",),
    ),
    "quantised parts": (
        "QLinearConcat", {"x": _byte(2, 8, 4, 4), "y": _byte(2, 3, 4, 4)}, PAIR,
        ("scale", "zero", "x", "scale", "zero", "y", "scale", "zero"), 1, {"axis": 1}, ("cat",),
    ),
    "quantised mean": (
        "QLinearGlobalAveragePool", {"x": _byte(2, 4, 4, 8)}, PAIR, ("x", "scale", "zero", "scale", "zero"), 1,
        {"channels_last": 1}, ("mean",),
    ),
    "quantised sigmoid": (
        "QLinearSigmoid", {"x": _byte(2, 8)}, PAIR, ("x", "scale", "zero", "scale", "zero"), 1, {}, ("sigmoid",),
    ),
    "joined attention": (
        "Attention", {"x": X}, {"w": _real(32, 96), "b": _real(96)}, (), 1, {"num_heads": 4, "unidirectional": 1},
        ("view", "addmm", "view", "slice", "slice", "slice", *ATTENDED),
    ),
    "quantised attention": (
        "QAttention", {"x": _byte(2, 6, 32)}, {"w": _byte(32, 96), "b": _real(96), **PAIR},
        ("x", "w", "b", "scale", "scale", "", "zero", "zero"), 1, {"num_heads": 4},
        ("view", "addmm", "view", "slice", "slice", "slice", *ATTENDED),
    ),
    "attention of heads": (
        "MultiHeadAttention", {"q": X, "k": _real(2, 7, 32), "v": _real(2, 7, 32)}, {}, (), 1, {"num_heads": 4},
        ATTENDED,
    ),
    "attention with a cache": (
        "GroupQueryAttention",
        {"q": _real(1, 1, 64), "k": _real(1, 1, 32), "v": _real(1, 1, 32), "pk": _real(1, 2, 8, 16),
         "pv": _real(1, 2, 8, 16), "last": np.array([8], np.int32)},
        {"total": np.array(9, np.int32), **POSITIONS}, (), 0b111, HEADS,
        (*SPLIT, "fused_rope", "fused_rope", "cat", "cat", "scaled_dot_product_attention", "view"),
    ),
    "attention of joined heads": (
        "GroupQueryAttention", {"q": _real(1, 5, 128), "last": np.array([4], np.int32)},
        {"total": np.array(5, np.int32), **POSITIONS}, ("q", "", "", "", "", "last", "total", "cos", "sin"), 1, HEADS,
        ("slice", "slice", "slice", *SPLIT, "fused_rope", "fused_rope", "scaled_dot_product_attention", "view"),
    ),
    "rotation": (
        "RotaryEmbedding", {"x": _real(2, 4, 6, 16), "p": np.zeros((2, 6), np.int64)}, POSITIONS, (), 1, {},
        ("fused_rope",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_shapes_are_the_runtimes(name: str, tmp_path: Path) -> None:
    kind, inputs, weights, order, outputs, attributes, operators = CASES[name]
    path = _written(tmp_path, kind, inputs, weights, order or [*inputs, *weights], outputs, attributes)
    session = runtime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    found = _inferred(_model(path), {key: value.shape for key, value in inputs.items()}, str(path)).shapes
    assert {key: found[key] for key in names} == {
        key: value.shape for key, value in zip(names, session.run(names, inputs), strict=True)
    }
    assert _operators(Onnx().read(path)) == operators


def test_weights_of_four_bits_are_read_as_such(tmp_path: Path) -> None:
    kind, inputs, weights, _, outputs, attributes, _ = CASES["weights of 4 bits"]
    trace = Onnx().read(_written(tmp_path, kind, inputs, weights, [*inputs, *weights], outputs, attributes))
    values = trace.values
    (weight,) = trace.weights().tolist()
    assert int(values.bytes()[weight]) == 48 * 64 // 2


def test_a_state_that_attention_goes_on_from_is_refused(tmp_path: Path) -> None:
    inputs = {"x": X, "past": _real(2, 2, 4, 3, 8)}
    weights = {"w": _real(32, 96), "b": _real(96)}
    path = _written(tmp_path, "Attention", inputs, weights, ["x", "w", "b", "", "past"], 1, {"num_heads": 4})
    with pytest.raises(InputError, match="goes on from a state, which is not supported"):
        Onnx().read(path)


def test_an_operator_that_nobody_knows_is_named(tmp_path: Path) -> None:
    path = _written(tmp_path, "BeamSearch", {"x": X}, {}, ["x"], 1, {})
    with pytest.raises(InputError, match=r"'BeamSearch' of 'com.microsoft', which is not known"):
        Onnx().read(path)


def test_a_weight_that_the_network_computes_is_a_sentence(tmp_path: Path) -> None:
    path = _written(tmp_path, "QGemm", {"x": X, "w": X}, PAIR, ["x", "scale", "zero", "w"], 1, {})
    with pytest.raises(InputError, match="reads 'w', which is no weight of the file"):
        Onnx().read(path)


def _operators(trace: Trace) -> tuple[str, ...]:
    return tuple(name.removeprefix("aten::") for name in trace.operators.name)


def _written(
    folder: Path, kind: str, inputs: Mapping[str, Any], weights: Mapping[str, Any], order: Sequence[str], outputs: int,
    attributes: Mapping[str, Any],
) -> Path:  # fmt: skip
    """A model of one operator, written to a file."""
    helper = onnx.helper
    made = [f"y{at}" if outputs >> at & 1 else "" for at in range(outputs.bit_length())]
    domain = "" if kind == "SimplifiedLayerNormalization" else "com.microsoft"
    node = helper.make_node(kind, order, made, name="one", domain=domain, **attributes)
    read = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in inputs.items()
    ]
    graph = helper.make_graph(
        [node], "one", read, [helper.make_empty_tensor_value_info(name) for name in made if name],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    path = folder / "one.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path
