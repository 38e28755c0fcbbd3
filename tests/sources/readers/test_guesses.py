"""What a profile does not state: the batch size is a guess and said to be one, and FLOP are not believed blindly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import triosim
from tests.cli.test_commands import run
from tests.data import shared
from triosim.core.errors import InputError
from triosim.hardware.machine import system
from triosim.operators import kind
from triosim.plan import Plan
from triosim.sources.reading import OVER_PEAK, load
from triosim.trace.builder import TraceBuilder
from triosim.trace.tables import GUESSES, Category, Meta, Phase
from triosim.transform.rescale import guessed_batch, of_batch, rescale


class Profile:
    """A profile of operators that launch one kernel each."""

    def __init__(self, device: str | None = "NVIDIA A100-SXM4-80GB") -> None:
        self.events: list[dict[str, Any]] = []
        self.device = device
        self.now = 0.0

    def op(self, name: str, *dims: list, us: float = 50.0, sequence: int = -1, types: list[str] | None = None) -> None:
        number = len(self.events) + 1
        args = {"External id": number, "Input Dims": list(dims), "Input type": types or ["float"] * len(dims)}
        if sequence >= 0:
            args["Sequence number"] = sequence
        base = {"ph": "X", "pid": 1, "tid": 1}
        self.events += [
            {**base, "cat": "cpu_op", "name": name, "ts": self.now, "dur": 40, "args": args},
            {**base, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": self.now + 5, "dur": 5,
             "args": {"correlation": number}},
            {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": self.now + 20, "dur": us,
             "args": {"correlation": number, "device": 0, "stream": 7}},
        ]  # fmt: skip
        self.now += 100

    def write(self, path: Path) -> Path:
        devices = [{"id": 0, "name": self.device}] if self.device else []
        path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": devices, "traceEvents": self.events}))
        return path


def test_the_batch_is_what_most_operators_take_for_it(tmp_path: Path) -> None:
    p = Profile()
    p.op("aten::add", [129, 64], [129, 64])  # what comes first is no witness
    p.op("aten::embedding", [500, 64], [8, 129], types=["float", "long int"])
    for _ in range(3):
        p.op("aten::scaled_dot_product_attention", [8, 4, 129, 16], [8, 4, 129, 16], [8, 4, 129, 16])
        p.op("aten::linear", [8, 129, 64], [64, 64], [64])
    trace = load(p.write(tmp_path / "a.json"))
    assert (trace.meta.batch_size, trace.meta.batch_guess, trace.meta.sequence_length) == (8, "operators", 129)


@pytest.mark.parametrize(
    ("operators", "batch", "how"),
    [
        ([("aten::conv2d", [6, 3, 8, 8], [4, 3, 3, 3], [4])], 6, "operators"),
        ([("aten::add", [3, 3], [3, 3]), ("aten::linear", [32, 64], [10, 64], [10])], 32, "products"),
        ([("aten::add", [5, 3], [5, 3])], 5, "input"),
        ([("aten::linear", [7, 7, 7], [32, 4], [32, 64], [10, 64], [10])], 32, "products"),  # more than it takes
    ],
)
def test_how_it_was_guessed(tmp_path: Path, operators: list, batch: int, how: str) -> None:
    p = Profile()
    for name, *dims in operators:
        p.op(name, *dims)
    trace = load(p.write(tmp_path / "a.json"))
    assert (trace.meta.batch_size, trace.meta.batch_guess) == (batch, how)
    assert GUESSES[how] in guessed_batch(trace)
    assert of_batch(trace, 64).meta.batch_guess == ""


def linear(path: Path, rows: int = 32, guess_first: bool = False) -> Path:
    p = Profile()
    if guess_first:
        p.op("aten::add", [rows, 3], [rows, 3])
    else:
        p.op("aten::linear", [rows, 64], [10, 64], [10])
    return p.write(path)


def test_a_guess_is_said_to_be_one(tmp_path: Path) -> None:
    trace = load(linear(tmp_path / "a.json"))
    result = triosim.simulate(trace, system(device="A100"), Plan(batch_size=64))
    assert result.workload.batch_size_guessed is True
    assert any("batch size 32 of the trace is a guess" in line for line in result.sources)
    assert any("batch size 32 of the trace is a guess" in line for line in result.warnings)
    stated = triosim.simulate(of_batch(trace, 32), system(device="A100"), Plan(batch_size=64))
    assert stated.workload.batch_size_guessed is False
    assert not any("guess" in line for line in (*stated.sources, *stated.warnings))
    out = run("trace", "show", tmp_path / "a.json").stdout
    assert "32 (a guess: the first dimension of most matrix" in " ".join(out.split())
    out = run("train", tmp_path / "a.json", "--trace-batch-size", "16").stdout
    assert "guess" not in out
    assert "global batch 16" in out


def test_a_guess_outlives_the_file_that_it_was_made_from(tmp_path: Path) -> None:
    trace = load(linear(tmp_path / "a.json"))
    triosim.save(trace, tmp_path / "b.triosim")
    assert triosim.load(tmp_path / "b.triosim").meta == trace.meta


def test_a_batch_size_that_nothing_follows_is_an_error(tmp_path: Path) -> None:
    p = Profile()
    p.op("aten::linear", [32, 64], [10, 64], [10])
    trace = of_batch(load(p.write(tmp_path / "a.json")), 10)  # no input has a dimension of 10
    with pytest.raises(InputError, match="--trace-batch-size"):
        rescale(trace, 20)


def test_no_operator_that_grows() -> None:
    """The batch stands in a shape, but in no work."""
    b = TraceBuilder()
    weight, x = b.value((10, 4), "float32", Category.WEIGHT), b.value((8, 4), "float32", Category.INPUT)
    seen = b.value((4, 8), "float32", Category.TEMPORARY, storage=1)
    cast = b.value((10, 4), "bfloat16", Category.TEMPORARY)
    b.operator("aten::t", [x], [seen], roles=["self"], phase=Phase.FORWARD, view=True)
    b.operator("aten::_to_copy", [weight], [cast], roles=["self"], phase=Phase.FORWARD, device_s=1e-3)
    trace = b.build(Meta("test", workload="w", batch_size=8, batch_guess="input", clock="gpu"))
    with pytest.raises(
        InputError, match=r"no operator of trace 'w' grows with its batch size 8, which is a guess: give"
    ):
        rescale(trace, 16)
    assert rescale(trace, 8) is trace


def test_it_is_told_when_little_of_the_time_grows(tmp_path: Path) -> None:
    p = Profile()
    p.op("aten::linear", [32, 64], [10, 64], [10], us=10)
    p.op("aten::mm", [500, 500], [500, 500], us=1000)
    trace = load(p.write(tmp_path / "a.json"))
    result = triosim.simulate(of_batch(trace, 32), system(device="A100"), Plan(batch_size=64))
    assert any("only 1 % of the recorded operator time" in line for line in result.warnings)


# --- names and FLOP ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("fbgemm::HFP8QuantizedToFloat", "other"),
        ("fbgemm::permute_2D_sparse_data", "other"),
        ("fbgemm::bounds_check_indices", "other"),
        ("aten::_convert_indices_from_csr_to_coo", "other"),
        ("prims::convert_element_type", "copy"),
        ("fb::convex_sum", "other"),
        ("torch::autograd::CppNode<fbgemm_gpu::PermutePooledEmbsFunction<&fbgemm_gpu::permute_pooled> >", "other"),
        ("vllm::cutlass_gemm", "linear"),
        ("mylib::linear", "linear"),
        ("a::b::conv2d", "convolution"),
        ("onednn::qconv2d_pointwise", "convolution"),
        ("xformers::efficient_attention_forward_cutlass", "attention"),
        ("fb::rms_norm", "normalization"),
    ],
)  # fmt: skip
def test_an_operator_is_known_by_its_own_name(name: str, wanted: str) -> None:
    assert kind(name) == wanted


@pytest.mark.parametrize("device", ["NVIDIA A100-SXM4-80GB", None])
def test_flop_that_no_device_could_do_are_not_counted(tmp_path: Path, device: str | None) -> None:
    p = Profile(device)
    p.op("aten::linear", [2048, 4096], [4096, 4096], [4096], us=600)  # 69 GFLOP: 115 TFLOP/s
    p.op("aten::linear", [2**24, 4096], [4096, 4096], [4096], us=600)  # 563 TFLOP
    p.op("aten::linear", [2**20, 4096], [4096, 4096], [4096], us=0)
    trace = load(p.write(tmp_path / "a.json"))
    assert np.isnan(trace.operators.flop).tolist() == [False, True, False]
    assert any("the FLOP of 1 operators are not counted" in note for note in trace.meta.notes)
    assert np.isnan(rescale(of_batch(trace, 2048), 4096).operators.flop).tolist() == [False, True, False]


def test_no_real_operator_is_refused() -> None:
    for folder in ("triosim-h100/vgg13", "triosim-h100/resnet50", "triosim-h100/vgg13-bs512-raw"):
        trace = load(shared(folder))
        assert not any("not counted" in note for note in trace.meta.notes)
        assert trace.meta.batch_size == (512 if "512" in folder else 128)
        assert trace.meta.batch_guess == "operators"
    assert OVER_PEAK > 2.25


def test_the_profile_of_a_recommender() -> None:
    trace = load(shared("kineto/trace_filter-sampled_rank-0.json.gz"))
    assert trace.meta.batch_size == 2048
    assert np.nansum(trace.operators.flop) < 1e12  # 292 PFLOP when a conversion was taken for a product
