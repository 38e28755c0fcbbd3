"""The physical model of operators bound by bytes: what a call moves, laws of its time, and the fit of its constants."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from time import process_time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from validation import fit_physical_stream as script

import triosim
from tests.data import shared
from triosim.errors import InputError
from triosim.hardware import catalog
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.estimate import Limit
from triosim.kernels.physical import stream as model
from triosim.kernels.physical.stream import CLASSES, Constants, predict
from triosim.kernels.work import stream as work
from triosim.kernels.work.stream import KINDS, Stream
from triosim.workload.operators import Call

A100 = catalog.accelerator("A100-PCIe-40GB")
V100 = catalog.accelerator("V100-PCIe-32GB")


def one(name: str, rows: float, length: float) -> Stream:
    return work.rowwise(name, np.array([rows]), np.array([length]))


def seconds(what: Stream, device: Accelerator = A100) -> float:
    return float(predict(what, device).seconds[0])


def test_rows_of_calls_by_hand() -> None:
    softmax = Call("_softmax", False, "softmax", ("self",), ((8, 16, 128, 512),), ((8, 16, 128, 512),), {"dim": 2})
    assert work._sums(softmax, "softmax") == (KINDS.index("softmax"), 8 * 16 * 512, 128)
    norm = Call("layer_norm", False, "normalization", ("input", "weight"), ((4, 9, 768), (768,)), ((4, 9, 768),), {})
    assert work._sums(norm, "layer_norm") == (KINDS.index("layer_norm"), 36, 768)
    batch = Call("batch_norm", False, "normalization", ("input",), ((128, 64, 56, 56),), ((128, 64, 56, 56),), {})
    assert work._sums(batch, "batch_norm") == (KINDS.index("batch_norm"), 64, 128 * 56 * 56)
    assert work._sums(replace(batch, inputs=((0, 64),)), "batch_norm")[1:] == (1.0, 0.0)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("aten::native_layer_norm", "layer_norm"), ("aten::rms_norm", "layer_norm"),
        ("autograd::engine::evaluate_function: CudnnBatchNormBackward0", "batch_norm"),
        ("aten::embedding", "embedding"),
        ("aten::max_pool2d_with_indices", "pooling"), ("aten::_foreach_add_", "optimizer"),
        ("aten::cross_entropy_loss", "loss"), ("aten::gelu", "elementwise"), ("aten::mm", "other"),
    ],
)  # fmt: skip
def test_kinds(name: str, found: str) -> None:
    assert work.kind_of(name) == found


def test_bytes_are_those_of_the_trace() -> None:
    trace = triosim.load(shared("triosim-h100", "resnet50"))
    rows = np.arange(len(trace))
    assert work.of(trace, rows).bytes() == pytest.approx(np.nan_to_num(trace.operators.bytes))


@given(name=st.sampled_from(KINDS), rows=st.integers(1, 1 << 16), length=st.integers(1, 1 << 14))
def test_laws(name: str, rows: int, length: int) -> None:
    """Never faster than the datasheet's bandwidth; more rows, or half the bandwidth, are never faster."""
    what = one(name, rows, length)
    time = seconds(what)
    assert time >= float(what.bytes()[0]) / (A100.memory_bandwidth or 1)
    assert seconds(one(name, rows + 1, length)) >= time * (1 - 1e-9)
    assert seconds(what, replace(A100, memory_bandwidth=(A100.memory_bandwidth or 1) / 2)) >= time * (1 - 1e-9)


def test_few_channels_leave_units_idle() -> None:
    """The same bytes in 27 instead of 108 channels take four times as long, when memory binds."""
    size = 1 << 26
    wide, narrow = seconds(one("batch_norm", 108, size / 108)), seconds(one("batch_norm", 27, size / 27))
    assert 2.5 < narrow / wide < 4.01


def test_a_cache_that_holds_the_rows_saves_the_second_reading() -> None:
    long = one("layer_norm", 100_000, 4096)
    assert seconds(long, replace(V100, cache_bytes=400_000_000)) < 0.8 * seconds(long, V100)


def test_what_binds() -> None:
    long, short = predict(one("copy", 1 << 16, 4096), A100), predict(one("copy", 1, 8), A100)
    assert (long.limit[0], short.limit[0]) == (Limit.MEMORY, Limit.LAUNCH)


def test_many_kernels_are_launched_one_by_one() -> None:
    short = one("optimizer", 1, 8)
    launch = model.load()["elementwise"].launch_s
    assert seconds(replace(short, kernels=np.array([5.0]))) == pytest.approx(seconds(short) + 4 * launch)


def test_a_device_of_one_figure_can_be_priced_and_one_of_none_cannot() -> None:
    sketch = Accelerator(name="sketch", memory_bandwidth=1e12)
    assert all(0 < seconds(one(name, 4096, 1024), sketch) < 1e-3 for name in KINDS)
    with pytest.raises(InputError, match="memory bandwidth"):
        seconds(one("copy", 1, 1), Accelerator(name="nothing"))


def test_a_million_operators_a_second() -> None:
    random = np.random.default_rng(0)
    count = 200_000
    what = work.rowwise("softmax", random.integers(1, 1 << 16, count), random.integers(1, 4096, count))
    what = replace(what, kind=random.integers(0, len(KINDS), count).astype(np.int8))
    predict(what, A100)
    start = process_time()
    predict(what, A100)
    assert process_time() - start < 1e-6 * count


def test_inputs_are_listed_and_not_those_that_judge() -> None:
    assert {path.name for path in script.INPUTS} == {"fp32_ops.parquet", "trace.csv", "tensor.csv"}
    assert all("vgg" not in str(path).lower() for path in script.INPUTS)


def test_the_file_says_what_every_constant_is() -> None:
    document = json.loads(script.OUTPUT.read_text(encoding="utf-8"))
    assert tuple(document["constants"]) == CLASSES == tuple(model.spreads())
    for rows in document["constants"].values():
        assert set(rows) == {f.name for f in fields(Constants)}
        assert all(entry["meaning"] and entry["unit"] for entry in rows.values())


@pytest.mark.parametrize("name", ["elementwise", "softmax", "layer_norm", "batch_norm"])
def test_the_fit_finds_the_constants_again(name: str) -> None:
    shared("kernels", "fp32_ops.parquet")
    shared("triosim-h100", "resnet50")
    step = script.training_step("batch_norm" if name == "batch_norm" else "elementwise")
    elementwise = step if name == "batch_norm" else script.joined(script.isolated("elementwise")[0], step)
    if name in ("softmax", "layer_norm"):
        found = script.fit(script.sampled(script.isolated(name)[0]), name, script.sampled(elementwise))[0]
    else:
        found = script.fit(script.sampled(elementwise), name)[0]
    for f in fields(Constants):
        assert getattr(found, f.name) == pytest.approx(getattr(model.load()[name], f.name), rel=0.01), f.name
