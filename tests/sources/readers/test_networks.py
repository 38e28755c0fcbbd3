"""Networks of exchange formats: ONNX, and nn-Meter's JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.command import run
from triosim.core.dtypes import DTYPES
from triosim.core.errors import InputError
from triosim.sources.reading import read
from triosim.trace.tables import Trace
from triosim.transform.rescale import rescale


def _calls(trace: Trace) -> dict[str, int]:
    return {name: trace.operators.name.count(name) for name in dict.fromkeys(trace.operators.name)}


# --- nn-Meter ---------------------------------------------------------------------------------------------------------


def _node(kind: str, sources: list[str], shape: list[int], **attributes: Any) -> dict:
    return {"inbounds": sources, "attr": {"type": kind, "output_shape": [shape], "attr": attributes}, "outbounds": []}


def mobile() -> dict[str, dict]:
    """A block of MobileNetV3 with channels last, as TensorFlow's converter writes it."""
    window = {"data_format": "NHWC", "padding": "SAME", "strides": [1, 2, 2, 1]}
    return {
        "in": _node("Placeholder", [], [1, 32, 32, 3]),
        "conv": _node("Conv2D", ["in"], [1, 16, 16, 8], kernel_shape=[3, 3], **window),
        "bn": _node("FusedBatchNormV3", ["conv", "mean/read"], [1, 16, 16, 8]),
        "three": _node("Const", [], []),
        "plus": _node("Add", ["bn", "three"], [1, 16, 16, 8]),
        "six": _node("Relu6", ["plus"], [1, 16, 16, 8]),
        "mul": _node("Mul", ["bn", "six"], [1, 8]),  # such files are about
        "depth": _node("DepthwiseConv2dNative", ["mul"], [1, 8, 8, 8], kernel_shape=[5, 5], **window),
        "pool": _node("AvgPool", ["depth"], [1, 1, 1, 8], ksize=[1, 8, 8, 1], padding="VALID", strides=[1, 1]),
        "bias": _node("BiasAdd", ["pool"], [1, 1, 1, 8]),
        "scaled": _node("Mul", ["bias", "depth"], [1, 8, 8, 8]),
        "cat": _node("ConcatV2", ["scaled", "depth"], [1, 8, 8, 16], axis=3),
        "mean": _node("Mean", ["cat"], [1, 16], reduction_indices=[1, 2]),
        "flat": _node("Reshape", ["mean"], [-1, 16]),
        "fc": _node("MatMul", ["flat"], [-1, 10]),
    }


def _written(folder: Path, nodes: Any) -> Path:
    path = folder / "mobile.json"
    path.write_text(json.dumps(nodes))
    return path


def test_a_network_of_nn_meter_is_read_with_its_work(tmp_path: Path) -> None:
    trace = read(_written(tmp_path, mobile()))
    flop = dict(zip((trace.modules.path[row] for row in trace.operators.module), trace.operators.flop, strict=True))
    assert flop["conv"] == 2 * 16 * 16 * 8 * 3 * 9
    assert flop["depth"] == 2 * 8 * 8 * 8 * 25
    assert flop["fc"] == 2 * 16 * 10
    assert trace.meta.batch_size == 1
    assert trace.meta.notes == ("operators are those of the file: nothing is fused",)
    assert _calls(trace)["aten::convolution"] == 2
    shapes = {trace.modules.path[m]: tuple(trace.values.shape[o[0]].tolist()) for m, o in zip(
        trace.operators.module, trace.operators.outputs, strict=True
    )}  # fmt: skip
    assert shapes["cat"] == (1, 16, 8, 8), "channels first"
    assert shapes["mul"] == (1, 8, 16, 16), "not what the file states"
    assert shapes["mean"] == (1, 16)


def test_its_work_grows_with_the_batch(tmp_path: Path) -> None:
    trace = read(_written(tmp_path, mobile()))
    grown = rescale(trace, 6)
    assert np.nansum(grown.operators.flop) == 6 * np.nansum(trace.operators.flop)


def test_the_order_of_nodes_does_not_matter(tmp_path: Path) -> None:
    nodes = mobile()
    one = read(_written(tmp_path, nodes))
    other = read(_written(tmp_path, dict(reversed(nodes.items()))))
    assert np.nansum(one.operators.flop) == np.nansum(other.operators.flop)
    assert _calls(one) == _calls(other)


def test_it_is_predicted_on_a_device(tmp_path: Path) -> None:
    path = _written(tmp_path, mobile())
    result = json.loads(run("infer", path, "--device", "A100", "--batch-size", "4", "--json", "-").stdout)
    assert result["iteration_time_s"] > 0
    assert "name a --system or a --device" in run("infer", path, code=2).stderr


@pytest.mark.parametrize("more", [(), ("--sweep", "batch-size=1,2"), ("--compare", "batch-size=2")])
def test_it_is_not_trained(tmp_path: Path, more: tuple[str, ...]) -> None:
    path = _written(tmp_path, mobile())
    assert "without its training" in run("train", path, "--device", "A100", *more, code=2).stderr


@pytest.mark.parametrize(("change", "said"), [
    ({"fc": _node("Gru", ["flat"], [1, 10])}, "node 'fc' is of type 'Gru', which is not known"),
    ({"in": _node("Const", [], [1, 32, 32, 3])}, "has no input"),
    ({"bn": _node("Relu", ["mul"], [1, 16, 16, 8])}, "reads what it makes"),
    ({"conv": _node("Conv2D", ["in"], [1, 16, 16, 8])}, "or no kernel_shape"),
    ({"flat": {"inbounds": ["mean"], "attr": {"type": "Reshape"}, "outbounds": []}}, "'output_shape' is missing"),
    ({"flat": _node("Reshape", ["mean"], [1, -1])}, "give the network with fixed sizes"),
    ({"flat": 7}, "convert the network again"),
])  # fmt: skip
def test_a_broken_network_is_one_sentence(change: dict, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(_written(tmp_path, {**mobile(), **change}))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


# --- ONNX -------------------------------------------------------------------------------------------------------------


def _onnx(
    path: Path,
    nodes: list[tuple],
    inputs: dict[str, list],
    weights: dict[str, Any],
    outputs: list[str],
    opset: int = 17,
    dtype: str = "float32",
) -> Path:
    """A model of nodes ``(type, inputs, outputs, attributes)``."""
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [helper.make_node(t, i, o, name=f"/{o[0]}/{t}", **a) for t, i, o, a in nodes],
        "graph",
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10).SerializeToString()
    )
    return path


def _zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


def small(folder: Path, batch: Any = 2, opset: int = 17) -> Path:
    """A network with a shape that is computed as it runs, an operator that is dead and one of weights alone."""
    nodes = [
        ("Conv", ["x", "w", "b"], ["c"], {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
        ("Relu", ["c"], ["r"], {}),
        ("Sigmoid", ["c"], ["dead"], {}),
        ("GlobalAveragePool", ["r"], ["g"], {}),
        ("Shape", ["g"], ["s"], {}),
        ("Gather", ["s", "zero"], ["n"], {"axis": 0}),
        ("Unsqueeze", ["n", "axes"], ["n1"], {}),
        ("Concat", ["n1", "minus"], ["to"], {"axis": 0}),
        ("Reshape", ["g", "to"], ["f"], {}),
        ("Transpose", ["v"], ["vt"], {"perm": [1, 0]}),
        ("MatMul", ["f", "vt"], ["y"], {}),
    ]
    if opset < 13:
        nodes[6] = ("Unsqueeze", ["n"], ["n1"], {"axes": [0]})
    weights = {
        "w": _zeros(8, 3, 3, 3), "b": _zeros(8), "v": _zeros(5, 8), "zero": np.int64(0), "axes": np.array([0]),
        "minus": np.array([-1]),
    }  # fmt: skip
    if opset < 13:
        del weights["axes"]
    return _onnx(folder / "small.onnx", nodes, {"x": [batch, 3, 32, 32]}, weights, ["y"], opset)


@pytest.mark.parametrize("opset", [9, 11, 13, 17, 22])
def test_an_onnx_model_is_read_with_its_work(tmp_path: Path, opset: int) -> None:
    trace = read(small(tmp_path, opset=opset))
    assert _calls(trace) == {
        "aten::convolution": 1, "aten::relu": 1, "aten::mean": 1, "aten::view": 1, "aten::mm": 1,
    }  # fmt: skip
    rows = dict(zip(trace.operators.name, trace.operators.flop, strict=True))
    assert rows["aten::convolution"] == 2 * 2 * 16 * 16 * 8 * 27
    assert rows["aten::mm"] == 2 * 2 * 8 * 5
    assert trace.meta.batch_size == 2
    assert trace.modules.path[trace.operators.module[0]] == "c.Conv"
    grown = rescale(trace, 10)
    assert np.nansum(grown.operators.flop) == 5 * np.nansum(trace.operators.flop)


def test_sizes_that_are_computed_as_it_runs_are_followed(tmp_path: Path) -> None:
    """As PyTorch's exporter writes them: padding of both sides from a list, and a token that is repeated per image."""
    nodes = [
        ("ConstantOfShape", ["two"], ["zeros"], {}),
        ("Concat", ["sides", "zeros"], ["list"], {"axis": 0}),
        ("Reshape", ["list", "pairs"], ["table"], {}),
        ("Slice", ["table", "last", "first", "rows", "back"], ["turned"], {}),
        ("Transpose", ["turned"], ["columns"], {"perm": [1, 0]}),
        ("Reshape", ["columns", "flat"], ["pads"], {}),
        ("Cast", ["pads"], ["whole"], {"to": 7}),
        ("Pad", ["x", "whole"], ["padded"], {}),
        ("Conv", ["padded", "w"], ["c"], {"strides": [4, 4]}),
        ("Shape", ["c"], ["shape"], {}),
        ("Gather", ["shape", "zero"], ["batch"], {"axis": 0}),
        ("Unsqueeze", ["batch"], ["batch1"], {"axes": [0]}),
        ("Concat", ["batch1", "rest"], ["token_shape"], {"axis": 0}),
        ("Expand", ["token", "token_shape"], ["tokens"], {}),
        ("Reshape", ["c", "as_tokens"], ["patches"], {}),
        ("Concat", ["tokens", "patches"], ["y"], {"axis": 2}),
    ]
    weights = {
        "two": np.array([4]), "sides": np.array([1, 2, 0, 0]), "pairs": np.array([-1, 2]), "last": np.array([-1]),
        "first": np.array([-100]), "rows": np.array([0]), "back": np.array([-1]), "flat": np.array([-1]),
        "w": _zeros(8, 3, 4, 4), "zero": np.int64(0), "rest": np.array([8, 1]), "token": _zeros(1, 8, 1),
        "as_tokens": np.array([0, 8, -1]),
    }  # fmt: skip
    trace = read(_onnx(tmp_path / "v.onnx", nodes, {"x": [2, 3, 32, 33]}, weights, ["y"], 11))
    assert _calls(trace) == {
        "aten::constant_pad_nd": 1, "aten::convolution": 1, "aten::expand_copy": 1, "aten::view": 1, "aten::cat": 1,
    }  # fmt: skip
    shapes = {name: tuple(trace.values.shape[o[0]].tolist()) for name, o in zip(
        trace.operators.name, trace.operators.outputs, strict=True
    )}  # fmt: skip
    assert shapes["aten::constant_pad_nd"] == (2, 3, 32, 36)
    assert shapes["aten::cat"] == (2, 8, 1 + 8 * 9)
    grown = rescale(trace, 6)
    assert tuple(grown.values.shape[grown.operators.outputs[len(grown) - 1][0]].tolist()) == (6, 8, 73)


def test_an_open_shape_is_given(tmp_path: Path) -> None:
    path = small(tmp_path, batch="N")
    words = ("infer", path, "--device", "A100", "--json", "-")
    done = run(*words, code=2)
    assert "input 'x' has the open shape ?,3,32,32: give --input-shape x=1,3,32,32" in done.stderr
    result = json.loads(run(*words, "--input-shape", "x=4,3,32,32").stdout)
    assert result["iteration_time_s"] > 0
    for given, said in (
        ("y=1", "unknown input 'y'"), ("x=1,3", "not 1,3"), ("x=1,4,32,32", "not 1,4,32,32"), ("x=a", "give whole"),
    ):  # fmt: skip
        assert said in run(*words, "--input-shape", given, code=2).stderr


def test_a_window_that_its_tensor_cannot_hold_is_refused(tmp_path: Path) -> None:
    node = ("Conv", ["x", "w"], ["y"], {"pads": [0, 0, 0, 1]})
    for rows, fits in ((2, False), (3, True)):
        path = _onnx(tmp_path / "c.onnx", [node], {"x": [1, 3, "H", "W"]}, {"w": np.zeros((4, 3, 3, 3))}, ["y"])
        done = run(
            "infer", path, "--device", "A100", "--input-shape", f"x=1,3,{rows},2", "--json", "-", code=2 * (not fits)
        )
        assert fits or "has a window of 3x3 over a padded tensor of 2x3, which is smaller" in done.stderr


def test_every_operator_can_be_written_as_a_trace(tmp_path: Path) -> None:
    """A node of each type that a rule stands for: shapes go together and nothing about the trace is odd."""
    onnx = pytest.importorskip("onnx")
    evaluator = pytest.importorskip("onnx.reference").ReferenceEvaluator
    from triosim.sources.readers._onnx_operators import RULES

    image, matrix = {"x": [2, 8, 8, 8]}, {"x": [2, 6, 8]}
    one = np.array([1], np.int64)
    special: dict[str, tuple[list[str], dict, dict, dict]] = {
        "Conv": (["x", "w"], {"w": _zeros(4, 8, 3, 3)}, {"auto_pad": "SAME_UPPER"}, image),
        "ConvTranspose": (["x", "w"], {"w": _zeros(8, 4, 2, 2)}, {"strides": [2, 2]}, image),
        "MaxPool": (["x"], {}, {"kernel_shape": [2, 2]}, image),
        "AveragePool": (["x"], {}, {"kernel_shape": [2, 2], "strides": [2, 2]}, image),
        "GlobalAveragePool": (["x"], {}, {}, image), "GlobalMaxPool": (["x"], {}, {}, image),
        "BatchNormalization": (["x", *"abcd"], {name: _zeros(8) for name in "abcd"}, {}, image),
        "InstanceNormalization": (["x", *"ab"], {name: _zeros(8) for name in "ab"}, {}, image),
        "GroupNormalization": (["x", *"ab"], {name: _zeros(8) for name in "ab"}, {"num_groups": 2}, image),
        "LayerNormalization": (["x", "a"], {"a": _zeros(8)}, {}, matrix),
        "LRN": (["x"], {}, {"size": 3}, image), "DepthToSpace": (["x"], {}, {"blocksize": 2}, image),
        "SpaceToDepth": (["x"], {}, {"blocksize": 2}, image),
        "Resize": (["x", "", "a"], {"a": np.array([1, 1, 2, 2], np.float32)}, {"mode": "linear"}, image),
        "Gemm": (["x", "w", "b"], {"w": _zeros(5, 8), "b": _zeros(5)}, {"transB": 1}, {"x": [4, 8]}),
        "MatMul": (["x", "w"], {"w": _zeros(8, 5)}, {}, matrix),
        "Gather": (["x", "i"], {"i": np.array([0, 1])}, {"axis": 1}, matrix),
        "GatherElements": (["x", "i"], {"i": np.zeros((2, 6, 8), np.int64)}, {"axis": 1}, matrix),
        "Reshape": (["x", "s"], {"s": np.array([2, 48])}, {}, matrix), "Flatten": (["x"], {}, {}, matrix),
        "Squeeze": (["x", "a"], {"a": one}, {}, {"x": [2, 1, 8]}), "Unsqueeze": (["x", "a"], {"a": one}, {}, matrix),
        "Expand": (["x", "s"], {"s": np.array([2, 6, 8])}, {}, {"x": [2, 1, 8]}),
        "Tile": (["x", "s"], {"s": np.array([1, 2, 1])}, {}, matrix),
        "Pad": (["x", "s"], {"s": np.array([0, 0, 1, 0, 0, 1])}, {}, matrix),
        "Slice": (["x", "b", "e"], {"b": np.array([0, 0, 1]), "e": np.array([2, 6, 4])}, {}, matrix),
        "Concat": (["x", "x"], {}, {"axis": -1}, matrix), "Transpose": (["x"], {}, {"perm": [0, 2, 1]}, matrix),
        "Cast": (["x"], {}, {"to": 10}, matrix), "CumSum": (["x", "a"], {"a": np.int64(1)}, {}, matrix),
        "ReduceMean": (["x"], {}, {"axes": [-1]}, matrix), "ReduceSum": (["x", "a"], {"a": one}, {}, matrix),
        "ArgMax": (["x"], {}, {"axis": 1}, matrix), "ArgMin": (["x"], {}, {"axis": 1}, matrix),
        "TopK": (["x", "k"], {"k": one}, {}, matrix), "Clip": (["x", "", "a"], {"a": np.float32(6)}, {}, matrix),
        "Where": (["q", "x", "x"], {"q": np.ones((2, 6, 8), bool)}, {}, matrix),
        "PRelu": (["x", "a"], {"a": _zeros(8)}, {}, matrix),
        "Split": (["x"], {}, {"axis": 1, "num_outputs": 2}, matrix),
        "Max": (["x", "x", "x"], {}, {}, matrix), "Pow": (["x", "a"], {"a": np.float32(2)}, {}, matrix),
        "LSTM": (["x", "w", "r"], {"w": _zeros(2, 12, 8), "r": _zeros(2, 12, 3)},
                 {"hidden_size": 3, "direction": "bidirectional"}, matrix),
        "GRU": (["x", "w", "r"], {"w": _zeros(1, 9, 8), "r": _zeros(1, 9, 3)}, {"hidden_size": 3}, matrix),
        "RNN": (["x", "w", "r"], {"w": _zeros(1, 3, 8), "r": _zeros(1, 3, 3)}, {"hidden_size": 3}, matrix),
        "Einsum": (["x", "w"], {"w": _zeros(8, 5)}, {"equation": "bij,jk"}, matrix),
        "QuantizeLinear": (["x", "s", "o"], {"s": np.float32(1), "o": np.int8(0)}, {}, matrix),
        "DequantizeLinear": (["x", "s"], {"s": np.float32(1)}, {}, ("int8", matrix)),
        "QLinearConv": (["x", "s", "o", "w", "s", "o", "s", "o"],
                        {"s": np.float32(1), "o": np.int8(0), "w": np.zeros((4, 8, 3, 3), np.int8)}, {},
                        ("int8", image)),
        "ConvInteger": (["x", "w"], {"w": np.zeros((4, 8, 3, 3), np.int8)}, {}, ("int8", image)),
        "QLinearMatMul": (["x", "s", "o", "w", "s", "o", "s", "o"],
                          {"s": np.float32(1), "o": np.int8(0), "w": np.zeros((8, 5), np.int8)}, {},
                          ("int8", matrix)),
        "MatMulInteger": (["x", "w"], {"w": np.zeros((8, 5), np.int8)}, {}, ("int8", matrix)),
        "LpPool": (["x"], {}, {"kernel_shape": [2, 2]}, image), "GlobalLpPool": (["x"], {}, {}, image),
        "ScatterElements": (["x", "i", "x"], {"i": np.zeros((2, 6, 8), np.int64)}, {"axis": 1}, matrix),
        "ScatterND": (["x", "i", "u"], {"i": np.zeros((3, 1), np.int64), "u": _zeros(3, 6, 8)}, {}, matrix),
        "GatherND": (["x", "i"], {"i": np.zeros((3, 2), np.int64)}, {}, matrix),
        "OneHot": (["x", "d", "v"], {"d": np.int64(5), "v": _zeros(2)}, {}, matrix),
        "GridSample": (["x", "g"], {"g": _zeros(2, 5, 5, 2)}, {}, image),
        "AffineGrid": (["x", "s"], {"s": np.array([2, 8, 5, 5])}, {}, {"x": [2, 2, 3]}),
        "MaxUnpool": (["x", "i"], {"i": np.zeros((2, 8, 8, 8), np.int64)}, {"kernel_shape": [2, 2], "strides": [2, 2]},
                      image),
        "RoiAlign": (["x", "r", "b"], {"r": _zeros(3, 4), "b": np.zeros(3, np.int64)}, {"output_height": 2}, image),
        "SoftmaxCrossEntropyLoss": (["x", "t"], {"t": np.zeros(4, np.int64)}, {}, {"x": [4, 8]}),
        "NegativeLogLikelihoodLoss": (["x", "t"], {"t": np.zeros(4, np.int64)}, {}, {"x": [4, 8]}),
        "ReverseSequence": (["x", "n"], {"n": np.array([1] * 6)}, {}, matrix),
        "Col2Im": (["x", "a", "b"], {"a": np.array([5, 5]), "b": np.array([1, 5])}, {}, {"x": [1, 5, 5]}),
        "CenterCropPad": (["x", "s"], {"s": np.array([2, 4, 4])}, {}, matrix),
        "Attention": (["x", "x", "x"], {}, {"q_num_heads": 2, "kv_num_heads": 2}, matrix),
        "RotaryEmbedding": (["x", "c", "s"], {"c": _zeros(2, 6, 2), "s": _zeros(2, 6, 2)}, {"num_heads": 2}, matrix),
        "RMSNormalization": (["x", "a"], {"a": _zeros(8)}, {}, matrix),
        "MeanVarianceNormalization": (["x"], {}, {}, image),
        "DynamicQuantizeLinear": (["x"], {}, {}, matrix), "Bernoulli": (["x"], {}, {}, matrix),
    }  # fmt: skip
    later = {"Split": 18, "GroupNormalization": 21, "Gelu": 20, "Mish": 18, "GridSample": 20, "AffineGrid": 20,
             "Col2Im": 18, "CenterCropPad": 18, "Attention": 23, "RotaryEmbedding": 23, "RMSNormalization": 23,
             "Swish": 24, "DequantizeLinear": 19, "QuantizeLinear": 19}  # fmt: skip
    elsewhere = {
        "Upsample", "CastLike", "Not", "And", "Or", "Xor", "IsInf", "If", "Loop", "Scan", "Compress", "BitShift",
        "NonMaxSuppression", "NonZero", "Unique", "Scatter", "TensorScatter", "MaxRoiPool", "Multinomial",
        "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot",
    }  # fmt: skip
    for name in sorted(set(RULES) - elsewhere):
        two = onnx.defs.get_schema(name, 24).min_input == 2
        reads, weights, attributes, inputs = special.get(name, (["x", "x"] if two else ["x"], {}, {}, matrix))
        several = {"Split": 2, "TopK": 2, "LSTM": 3, "GRU": 2, "RNN": 2, "DynamicQuantizeLinear": 3}
        outputs = ["y", "z", "u0"][: several.get(name, 1)]
        opset = later.get(name, 17)
        if name == "Gelu":
            attributes = {"approximate": "tanh"}
        kind, inputs = inputs if isinstance(inputs, tuple) else ("float32", inputs)
        node = (name, reads, outputs, attributes)
        path = _onnx(tmp_path / f"{name}.onnx", [node], inputs, weights, outputs, opset, kind)
        if name in ("Identity", "Dropout"):
            with pytest.raises(InputError, match="runs nothing"):
                read(path)
            continue
        trace = read(path)
        assert trace.meta.notes[0] == "operators are those of the file: nothing is fused", name
        assert len(trace) >= 1, name
        made = tuple(trace.values.shape[trace.operators.outputs[len(trace) - 1][-1]].tolist())
        if name not in ("AffineGrid", "Bernoulli", "GlobalLpPool"):  # which onnx's own evaluator does not run
            given = {one: np.zeros(shape, kind) for one, shape in inputs.items()}
            assert made == evaluator(str(path)).run(None, given)[-1].shape, name


def test_a_recurrent_layer_runs_its_steps_one_after_another(tmp_path: Path) -> None:
    """A bidirectional LSTM of 6 steps: the inputs' products at once, then a product and a cell for each step."""
    nodes = [("LSTM", ["x", "w", "r"], ["y", "h", "c"], {"hidden_size": 3, "direction": "bidirectional"})]
    weights = {"w": _zeros(2, 12, 8), "r": _zeros(2, 12, 3)}
    trace = read(_onnx(tmp_path / "l.onnx", nodes, {"x": [6, 2, 8]}, weights, ["y", "h", "c"]))
    calls = _calls(trace)
    assert calls["aten::_thnn_fused_lstm_cell"] == 2 * 6
    assert calls["aten::mm"] == 2 * (1 + 6)
    assert np.nansum(trace.operators.flop[np.array([n == "aten::mm" for n in trace.operators.name])]) == (
        2 * 2 * 12 * (6 * 2 * 8 + 6 * 2 * 3)  # 2 for each product and sum, 2 ways
    )
    assert trace.meta.batch_size == 2  # steps come first
    assert np.nansum(rescale(trace, 10).operators.flop) == 5 * np.nansum(trace.operators.flop)


@pytest.mark.parametrize(("opset", "dims"), [(11, 1), (13, 2)])
def test_softmax_goes_over_all_that_follows_its_axis_before_opset_13(tmp_path: Path, opset: int, dims: int) -> None:
    trace = read(_onnx(tmp_path / "s.onnx", [("Softmax", ["x"], ["y"], {})], {"x": [2, 6, 8]}, {}, ["y"], opset))
    row = trace.operators.name.index("aten::_softmax")
    shape = tuple(trace.values.shape[trace.operators.inputs[row][0]].tolist())
    assert (shape, json.loads(trace.operators.args[row])["dim"]) == (((2, 48), 1) if dims == 1 else ((2, 6, 8), 2))


def test_a_sum_over_axes_that_are_an_input_is_over_these(tmp_path: Path) -> None:
    node = ("ReduceSum", ["x", "a"], ["y"], {"keepdims": 0})
    trace = read(_onnx(tmp_path / "s.onnx", [node], {"x": [2, 6, 8]}, {"a": np.array([1])}, ["y"]))
    assert json.loads(trace.operators.args[0]) == {"dim": [1], "keepdim": False}


def _quantised(folder: Path, after: list[tuple]) -> Trace:
    """A convolution between quantisation and its reverse, and what follows it."""
    nodes = [
        ("QuantizeLinear", ["x", "s", "o"], ["x8"], {}),
        ("DequantizeLinear", ["x8", "s", "o"], ["xf"], {}),
        ("DequantizeLinear", ["w8", "s", "o"], ["wf"], {}),
        ("DequantizeLinear", ["b32", "s"], ["bf"], {}),
        ("Conv", ["xf", "wf", "bf"], ["c"], {}),
        ("Relu", ["c"], ["r"], {}),
        *after,
    ]
    weights = {
        "s": np.float32(1), "o": np.int8(0), "w8": np.zeros((4, 3, 3, 3), np.int8), "b32": np.zeros(4, np.int32),
    }  # fmt: skip
    return read(_onnx(folder / "q.onnx", nodes, {"x": [2, 3, 8, 8]}, weights, ["y"]))


def test_what_stands_between_quantisation_and_its_reverse_runs_on_eight_bits(tmp_path: Path) -> None:
    trace = _quantised(tmp_path, [
        ("QuantizeLinear", ["r", "s", "o"], ["r8"], {}), ("DequantizeLinear", ["r8", "s", "o"], ["rf"], {}),
        ("MaxPool", ["rf"], ["p"], {"kernel_shape": [2, 2]}), ("QuantizeLinear", ["p", "s", "o"], ["p8"], {}),
        ("DequantizeLinear", ["p8", "s", "o"], ["y"], {}),
    ])  # fmt: skip
    assert list(trace.operators.name) == [
        "aten::quantize", "aten::convolution", "aten::max_pool2d", "aten::dequantize",
    ]  # fmt: skip
    types = [[list(DTYPES)[trace.values.dtype[value]] for value in trace.operators.inputs[row]] for row in range(4)]
    assert types == [["float32"], ["int8", "int8", "int32"], ["int8"], ["int8"]]
    assert any("1 products between quantisation" in note for note in trace.meta.notes)


def test_a_product_whose_result_is_not_quantised_writes_floats(tmp_path: Path) -> None:
    trace = _quantised(tmp_path, [("GlobalAveragePool", ["r"], ["y"], {})])
    assert list(trace.operators.name) == ["aten::quantize", "aten::convolution", "aten::relu", "aten::mean"]
    made = trace.operators.outputs[1][0]
    read_, made_ = (list(DTYPES)[trace.values.dtype[value]] for value in (trace.operators.inputs[1][0], made))
    assert (read_, made_) == ("int8", "float32")


def test_functions_of_the_file_are_put_in_place(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    body = [helper.make_node("Mul", ["a", "a"], ["m"]), helper.make_node("Relu", ["m"], ["b"])]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    function = helper.make_function("local", "Squared", ["a"], ["b"], body, opsets[:1])
    graph = helper.make_graph(
        [helper.make_node("Squared", ["x"], ["y"], domain="local")], "graph",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 3])],
    )  # fmt: skip
    path = tmp_path / "f.onnx"
    model = helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=10)
    path.write_bytes(model.SerializeToString())
    assert list(read(path).operators.name) == ["aten::mul", "aten::relu"]


def test_what_is_no_onnx_that_can_be_read_is_one_sentence(tmp_path: Path) -> None:
    whole = small(tmp_path).read_bytes()
    broken = tmp_path / "broken.onnx"
    for content, said in (
        (whole[: len(whole) // 2], "is a broken ONNX model"),
        (small(tmp_path, opset=8).read_bytes(), "uses opset 8, known are 9 to 28"),
        (_onnx(tmp_path / "l.onnx", [("NonZero", ["x"], ["y"], {})], {"x": [2, 3]}, {}, ["y"]).read_bytes(),
         "makes as much as its input's values say"),
        (_onnx(tmp_path / "d.onnx", [("Det", ["x"], ["y"], {})], {"x": [3, 3]}, {}, ["y"]).read_bytes(),
         "is of type 'Det', which is not known"),
        (_onnx(tmp_path / "m.onnx", [("MatMul", ["x", "x"], ["y"], {})], {"x": [2, 3]}, {}, ["y"]).read_bytes(),
         "shapes do not go together"),
    ):  # fmt: skip
        broken.write_bytes(content)
        with pytest.raises(InputError, match=said) as caught:
            read(broken)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("domain", "kind", "cure"), [
    ("ai.onnx.ml", "TreeEnsembleClassifier", "are no network: give the file of one"),
    ("com.microsoft.nchwc", "Conv", "save it at ORT_ENABLE_EXTENDED or below"),
    ("ai.onnx.preview.training", "Adam", "export the network without its optimizer"),
    ("org.pytorch.aten", "ATen", "export with a later opset"),
    ("trt.plugins", "TRT_NMS", "export the network with ONNX's own operators"),
])  # fmt: skip
def test_operators_of_other_domains_are_refused_with_what_to_do(
    domain: str, kind: str, cure: str, tmp_path: Path
) -> None:
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    graph = helper.make_graph(
        [helper.make_node(kind, ["x"], ["y"], name="one", domain=domain)], "graph",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 3])],
    )  # fmt: skip
    path = tmp_path / "other.onnx"
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())
    with pytest.raises(InputError, match=f"'{kind}' of '{domain}', which is not known: .*{cure}"):
        read(path)


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    path = tmp_path / "some.onnx"
    path.write_bytes(b"\x08\x08\x12\x00")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(InputError, match="pip install 'triosim\\[onnx\\]'"):
        read(path)


def test_a_pack_brings_its_device_along(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    run("calibrate", root / "examples" / "resnet50-cpu.triosim", "-o", tmp_path / "cpu.json")
    asked = ("infer", root / "examples" / "edge" / "mobile-block.json", "--operator-times", tmp_path / "cpu.json")
    assert "give --extrapolate" in run(*asked, code=2).stderr  # its products are far smaller than those of ResNet-50
    result = json.loads(run(*asked, "--extrapolate", "--json", "-").stdout)
    assert result["system"]["name"].startswith("1 x AMD EPYC")
    assert any("kernels measured on AMD EPYC" in words for words in result["sources"])


# --- choices between branches -----------------------------------------------------------------------------------------


def _choosing(path: Path, sides: list[int], condition: list[tuple[str, list[str], list[str]]]) -> Path:
    """``abs(x without its last dimension if that is 1, else -x)``, as PyTorch's old exporter wrote ``squeeze``."""
    onnx = pytest.importorskip("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto

    def branch(name: str, node: Any, weights: list[Any]) -> Any:
        return helper.make_graph([node], name, [], [helper.make_tensor_value_info(name, kinds.FLOAT, None)], weights)

    last = onnx.numpy_helper.from_array(np.array([2], np.int64), "last")
    nodes = [
        helper.make_node("Relu", ["x"], ["c"]),
        *(helper.make_node(kind, reads, makes) for kind, reads, makes in condition),
        helper.make_node(
            "If", ["cond"], ["chosen"], name="choose",
            then_branch=branch("then", helper.make_node("Squeeze", ["c", "last"], ["then"]), [last]),
            else_branch=branch("else", helper.make_node("Neg", ["c"], ["else"]), []),
        ),
        helper.make_node("Abs", ["chosen"], ["y"]),
    ]  # fmt: skip
    numbers = [onnx.numpy_helper.from_array(np.array(value), name) for name, value in (("two", 2), ("one", 1))]
    graph = helper.make_graph(
        nodes, "graph", [helper.make_tensor_value_info("x", kinds.FLOAT, sides)],
        [helper.make_tensor_value_info("y", kinds.FLOAT, None)], numbers,
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path


OF_SIZES = [("Shape", ["c"], ["s"]), ("Gather", ["s", "two"], ["d"]), ("Equal", ["d", "one"], ["cond"])]


def test_a_branch_that_sizes_choose_takes_the_place_of_if(tmp_path: Path) -> None:
    squeezed = read(_choosing(tmp_path / "one.onnx", [2, 3, 1], OF_SIZES))
    assert list(squeezed.operators.name) == ["aten::relu", "aten::view", "aten::abs"]
    other = read(_choosing(tmp_path / "other.onnx", [2, 3, 4], OF_SIZES))
    assert list(other.operators.name) == ["aten::relu", "aten::neg", "aten::abs"]


def test_a_branch_that_values_choose_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    of_values = [("ReduceSum", ["c"], ["t"]), ("Less", ["t", "t"], ["cond"])]
    path = _choosing(tmp_path / "values.onnx", [2, 3, 4], of_values)
    with pytest.raises(InputError, match="chooses or repeats operators as the network runs"):
        read(path)
