"""Kernels as runtimes of inference run them: measured, fused, exported and read back."""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from tests.command import run
from triosim.core.errors import InputError
from triosim.kernels.calibration.figures import described
from triosim.kernels.calibration.fusing import run_by, shares
from triosim.kernels.estimate import Estimates
from triosim.operators import kind
from triosim.sources.readers._onnx_operators import forward_trace
from triosim.sources.runtimes import bench, exchange, fusion
from triosim.sources.runtimes.draws import Draws
from triosim.sources.runtimes.graphs import GraphDraft, WrittenGraph
from triosim.sources.runtimes.kernels import KernelNetwork, RuntimeRates, kernels
from triosim.sources.runtimes.numpy_runtime import NumpyRuntime
from triosim.sources.runtimes.rules import Fusion, RuntimeRules
from triosim.sources.runtimes.runtime import Unsupported, inference_runtime
from triosim.trace.tables import Meta, Trace, check

META = Meta(made_by="onnx", workload="net")


def of(graph: WrittenGraph, unused: bool = False) -> Trace:
    return forward_trace(graph.network, META, "net", unused)


class Fake:
    """Takes a microsecond for every thousand elements that an operator writes, and a call nothing; runs a ReLU with the
    convolution before it, and does not know Erf."""

    name, version, threads = "fake", "1", 3

    def __init__(self, unused: bool = False) -> None:
        self.unused, self.asked = unused, 0

    def seconds(self, graph: WrittenGraph, beside: frozenset[str] = frozenset()) -> float:
        self.asked += 1
        total, network = 0.0, graph.network
        read = {name for node in network.operators for name in node.inputs} | set(network.outputs)
        made = {name: node.type for node in network.operators for name in node.outputs}
        for node in network.operators:
            if node.type == "Erf":
                raise Unsupported("Erf")
            fused = node.type == "Relu" and made.get(node.inputs[0]) == "Conv"
            if node.type in beside or fused or (node.outputs[0] not in read and not self.unused):
                continue
            total += 1e-9 * math.prod(int(side) for side in network.tensors[node.outputs[0]].shape)
        return max(total, 1e-9)

    def call_s(self) -> float:
        return 5e-6


def test_a_draft_has_the_shapes_that_onnx_infers() -> None:
    onnx = pytest.importorskip("onnx")
    from triosim.sources.runtimes.onnx_file import onnx_text

    every = [one.graph for one in islice(kernels(Draws(longest_s=1e-4), RuntimeRates(1e9, 1e9)), 150)]
    every += [chain.graph for sizes in fusion.chains() for chain in sizes[:1]]
    for graph in every:
        model = onnx.load_model_from_string(onnx_text(graph))
        for one in model.graph.output:
            one.type.tensor_type.ClearField("shape")
        found = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        shapes = {
            one.name: tuple(side.dim_value for side in one.type.tensor_type.shape.dim)
            for one in (*found.graph.output, *found.graph.value_info)
        }
        for name, shape in shapes.items():
            assert shape == tuple(graph.network.tensors[name.removesuffix("_0")].shape), model.graph.node


def test_copies_of_a_network_read_inputs_of_their_own() -> None:
    onnx = pytest.importorskip("onnx")
    from triosim.sources.runtimes.onnx_file import inputs, onnx_text

    net = GraphDraft()
    graph = net.graph(net.same("Add", net.input("x", 1, 8), net.input("y", 1, 8)))
    model = onnx.load_model_from_string(onnx_text(graph, 2))
    given = inputs(graph, 2)
    assert {one.name for one in model.graph.input} == set(given) == {"x", "x_1", "y", "y_1"}
    assert [list(node.input) for node in model.graph.node] == [["x", "y"], ["x_1", "y_1"]]
    assert not np.array_equal(given["x"], given["x_1"])
    one = onnx.load_model_from_string(onnx_text(graph))
    assert [one.name for one in one.graph.input] == ["x", "y"], "the names that the network has"


def test_a_wait_is_not_an_operators() -> None:
    """Two operators, three runs: undisturbed; with a wait between the operators; with a wait in the first one."""
    from triosim.sources.runtimes.onnx_runtime import without_waits

    seconds = np.array([[1.0, 1.0, 4.0], [2.0, 2.0, 2.0]])
    found = without_waits(seconds, np.array([3.0, 9.0, 6.0]), np.array([3.0, 3.0, 3.0]))
    assert found == pytest.approx(np.array([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]))
    always = without_waits(np.array([[10.0, 10.0]]), np.array([10.0, 10.0]), np.array([4.0, 4.0]))
    assert always == pytest.approx(np.array([[4.0, 4.0]])), "no more than the thread worked"


def test_kernels_are_the_same_each_time_and_of_every_kind() -> None:
    def drawn() -> list[KernelNetwork]:
        return list(islice(kernels(Draws(longest_s=1e-3), RuntimeRates(1e10, 1e10)), 200))

    assert drawn() == drawn()
    names = {name for one in drawn() for name in of(one.graph).operators.name}
    assert {
        "convolution",
        "linear",
        "elementwise",
        "pooling",
        "softmax",
        "normalization",
        "reduction",
        "embedding",
    } <= {kind(name) for name in names}
    assert all(sum(not view for view in of(one.graph).operators.view) == 1 for one in drawn()), "one operator each"


@pytest.mark.parametrize("unused", [False, True])
def test_what_is_measured_is_a_trace_with_rules(unused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_MOST_KERNELS", 60)
    told: list[bench.BenchmarkProgress] = []
    found = bench.measure_runtime(Fake(unused), 600.0, told.append)
    check(found.trace)
    operators = found.trace.operators
    taken = operators.device_s[~operators.view]
    assert (taken > 0).all()
    assert np.isnan(operators.device_s[operators.view]).all()
    assert "aten::erf" not in operators.name, "what the runtime does not have is left out"
    assert found.drift == 0
    assert found.threads == 3
    assert told[-1].budget_s == 600.0
    rules = found.rules
    assert rules is not None
    assert rules.unused == unused
    assert rules.call_s == 5e-6
    assert Fusion(("aten::convolution", "aten::relu"), 0, 0.0) in rules.fusions
    others = [one for one in rules.fusions if "aten::relu" not in one.operators]
    assert not others, "nothing else is fused"


def test_a_machine_that_changes_its_pace_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slower(Fake):
        def seconds(self, graph: WrittenGraph, beside: frozenset[str] = frozenset()) -> float:
            return super().seconds(graph, beside) * 1.05**self.asked

    monkeypatch.setattr(bench, "_MOST_KERNELS", 25)
    with pytest.raises(InputError, match="something else uses the machine"):
        bench.measure_runtime(Slower(), 600.0)


def residual(extra: bool = False) -> WrittenGraph:
    """Two convolutions, a sum with the input, an activation; perhaps something else that reads the first result."""
    net = GraphDraft()
    x = net.input("x", 1, 8, 4, 4)
    y = net.relu(net.convolution(x, 8, 3))
    z = net.relu(net.same("Add", net.convolution(y, 8), x))
    return net.graph(z, net.same("Sigmoid", "n3")) if extra else net.graph(z)


def test_chains_are_found_where_nothing_else_reads_what_is_between() -> None:
    both = (
        Fusion(("aten::convolution", "aten::relu"), 0, 0.25),
        Fusion(("aten::convolution", "aten::add", "aten::relu"), 0, 0.5),
    )
    trace = of(residual())
    assert trace.operators.name == ("aten::convolution", "aten::relu", "aten::convolution", "aten::add", "aten::relu")
    assert shares(both, trace).tolist() == [1, 0.25, 1, 0.5, 0.5]
    assert shares(both[:1], trace).tolist() == [1, 0.25, 1, 1, 1], "the sum stands between"
    assert shares(both, of(residual(extra=True))).tolist()[:2] == [1, 1], "two read the first convolution"
    assert shares((replace(both[1], main=1),), trace).tolist() == [1, 1, 0.5, 1, 0.5]
    net = GraphDraft()  # what only looks at a tensor stands between nothing
    viewed = of(net.graph(net.relu(net.reshape(net.convolution(net.input("x", 1, 8, 4, 4), 8), 1, 128))))
    assert shares(both, viewed)[~viewed.operators.view].tolist() == [1, 0.25]


def test_times_follow_the_rules() -> None:
    trace = of(residual())
    alone = Estimates(np.full(5, 1.0), np.zeros(5), np.zeros(5, np.int8), np.zeros(5, np.int8))
    rules = RuntimeRules("fake", "1", 2, 0.5, (Fusion(("aten::convolution", "aten::relu"), 0, 0.25),))
    found = run_by(rules, trace, alone)
    assert found.seconds.tolist() == [1.5, 0.25, 1, 1, 1]
    assert found.notes[-1] == "as fake 1 runs it with 2 threads: 1 of 5 operators run as one with another"
    assert run_by(RuntimeRules("fake"), trace, alone).seconds.sum() == 5


def test_operators_that_nobody_reads_run_where_the_runtime_runs_them() -> None:
    net = GraphDraft()
    x = net.input("x", 4, 8)
    y = net.linear(x, 8)
    net.linear(x, 16)
    graph = net.graph(y)
    assert len(of(graph)) < len(of(graph, unused=True))


def test_kernels_go_out_and_come_back(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    folder = tmp_path / "kernels"
    said = run("calibrate", "--export-kernels", folder).stderr + run("calibrate", "--export-kernels", folder).stdout
    assert "Traceback" not in said
    rows = json.loads((folder / exchange.LIST).read_text())["kernels"]
    assert (folder / f"{rows[-1]['kernel']}.onnx").is_file()
    assert "measured.csv" in (folder / exchange.PAGE).read_text()
    fake = Fake()
    lines = []
    for row in rows:
        try:
            seconds = fake.seconds(exchange._graph(row))
        except Unsupported:
            continue
        lines.append(f"{row['kernel']},{1e3 * (seconds + 5e-6):.9f}")
    table = folder / "measured.csv"
    table.write_text("\n".join(["kernel,ms", *lines]) + "\n")
    run("calibrate", "--import", table, "--device", "my-phone", "--runtime", "fake", "-o", tmp_path / "phone.json")
    pack = json.loads((tmp_path / "phone.json").read_text())
    assert pack["device"]["name"] == "my-phone"
    assert pack["runtime"]["name"] == "fake"
    assert not pack["runtime"]["unused"]
    assert pack["runtime"]["call_s"] == pytest.approx(5e-6, rel=0.01)
    assert ["aten::convolution", "aten::relu"] in [one["operators"] for one in pack["runtime"]["fusions"]]
    network = Path(__file__).resolve().parents[3] / "examples" / "edge" / "mobile-block.json"
    result = json.loads(
        run("infer", network, "--operator-times", tmp_path / "phone.json", "--extrapolate", "--json", "-").stdout
    )
    assert any("as fake" in words for words in result["sources"])
    for text, words in (
        ("kernel,ms\nk9999,1\n", "'k9999' is no kernel of"),
        ("kernel,ms\nk0000,1\n", "no kernel of .* was measured"),
        ("name,ms\nk0000,1\n", "column"),
        ("kernel,ms\nk0001,-1\n", "line 2"),
    ):
        table.write_text(text)
        error = run("calibrate", "--import", table, "--device", "my-phone", code=2).stderr
        assert re.search(words, " ".join(error.split())), error
    (folder / exchange.LIST).write_text("{}")
    table.write_text("kernel,ms\nk0001,1\n")
    assert "is no list of kernels" in run("calibrate", "--import", table, "--device", "x", code=2).stderr
    assert "--device my-phone" in run("calibrate", "--import", table, code=2).stderr


def test_what_describes_a_device_is_measured_whatever_the_budget() -> None:
    device = described(bench.measure_runtime(Fake(), 1e-9).trace)
    assert device.memory_bandwidth > 0
    assert device.peak_flops["float32"] > 0


def test_onnx_runtime_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(bench, "TOO_MUCH", 1e3)
    runtime = inference_runtime("onnxruntime", 1)
    net = GraphDraft()
    x = net.input("x", 1, 32, 28, 28)
    small, large = net.graph(net.convolution(x, 32)), net.graph(net.convolution(x, 32, 7))
    assert 0 < runtime.seconds(small) < runtime.seconds(large)
    with pytest.raises(Unsupported):
        runtime.seconds(small, frozenset({"Conv"}))
    assert runtime.call_s() >= 0
    net = GraphDraft()
    with pytest.raises(Unsupported):
        runtime.seconds(net.graph(net.same("Invented", net.input("x", 1, 8))))
    pack = tmp_path / "ort.json"
    run("calibrate", "--run", "--runtime", "onnxruntime", "--budget", "6s", "-o", pack)
    rules = json.loads(pack.read_text())["runtime"]
    assert rules["name"] == "onnxruntime"
    assert rules["unused"], "it runs what nobody reads"


def test_numpy_runs_what_it_has() -> None:
    started = min(
        (int(value) for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
         if (value := os.environ.get(name, "")).isdigit()),
        default=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
    )  # fmt: skip
    runtime = NumpyRuntime(started)
    net = GraphDraft()
    x = net.input("x", 1, 16, 32)
    small, large = net.graph(net.linear(x, 8)), net.graph(net.linear(x, 8192))
    assert 0 < runtime.seconds(small) < runtime.seconds(large)
    net = GraphDraft()
    with pytest.raises(Unsupported, match="Conv"):
        runtime.seconds(net.graph(net.convolution(net.input("x", 1, 3, 8, 8), 4)))
    with pytest.raises(InputError, match="set OPENBLAS_NUM_THREADS"):
        NumpyRuntime(started + 1)
    refused: set[str] = set()
    for one in islice(kernels(Draws(longest_s=1e-5), RuntimeRates(1e9, 1e9)), 140):
        try:
            assert runtime.seconds(one.graph) > 0
        except Unsupported as error:
            refused.add(str(error))
    assert refused == {f"numpy has no {name}" for name in ("Conv", "MaxPool", "AveragePool", "Erf")}


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--run", "--runtime", "tensorrt"), "tensorrt"),
        (("--runtime", "numpy"), "give --run or --import"),
        (("--run", "--runtime", "numpy", "--threads", "0"), "give 1 or more"),
        (("--run", "--runtime", "onnxruntime", "--device", "cuda"), "on the processor"),
        (("--export-kernels", "k", "--budget", "1m"), "of --run and --power"),
        (("--export-kernels", "k", "--device", "cpu"), "the same kernels for any"),
        (("--run", "--export-kernels", "k"), "one of them"),
    ],
)
def test_options_that_do_not_go_together(words: tuple[str, ...], error: str, tmp_path: Path) -> None:
    assert error in run("calibrate", *words, code=2, cwd=tmp_path).stderr
