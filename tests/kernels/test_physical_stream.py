"""The physical model of operators bound by bytes: what a call moves, laws of its time, and the fit of its constants."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from time import process_time
from typing import Any

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
from triosim.workload.operators import Call, canonical, kind

A100 = catalog.accelerator("A100-PCIe-40GB")
V100 = catalog.accelerator("V100-PCIe-32GB")


def one(name: str, rows: float, length: float) -> Stream:
    return work.rowwise(name, np.array([rows]), np.array([length]))


def seconds(what: Stream, device: Accelerator = A100) -> float:
    return float(predict(what, device).seconds[0])


def call(
    name: str, *inputs: tuple[int, ...], out: tuple[int, ...] | list[tuple[int, ...]] = (), roles: str = "",
    args: dict[str, Any] | None = None,
) -> Call:  # fmt: skip
    """A call as traces have it; backward if its name says so."""
    outputs = tuple(out) if isinstance(out, list) else (out,)
    base, backward = canonical(name)
    given = tuple(roles.split()) or ("input",) * len(inputs)
    return Call(base, backward, kind(name), given, inputs, outputs, args or {})


def moves(name: str, one: Call, read: float = 0.0, written: float = 0.0, item: float = 4.0) -> work.Traffic:
    return work.traffic(one, name, item, work.Traffic(read, written))


def test_rows_of_calls_by_hand() -> None:
    softmax = call("aten::_softmax", (8, 16, 128, 512), out=(8, 16, 128, 512), args={"dim": 2})
    found = moves("aten::_softmax", softmax)
    assert (found.rows, found.row_bytes) == (8 * 16 * 512, 4 * 128)
    norm = call("aten::layer_norm", (4, 9, 768), (768,), out=(4, 9, 768), roles="input weight")
    found = moves("aten::layer_norm", norm)
    assert (found.rows, found.row_bytes) == (36, 4 * 768)
    batch = call("aten::batch_norm", (128, 64, 56, 56), out=(128, 64, 56, 56))
    found = moves("aten::batch_norm", batch)
    assert (found.rows, found.row_bytes) == (64, 4 * 128 * 56 * 56)
    assert moves("aten::batch_norm", replace(batch, inputs=((0, 64),))).row_bytes == 0.0
    instance = call("aten::instance_norm", (4, 8, 10, 10), out=(4, 8, 10, 10))
    assert moves("aten::instance_norm", instance).rows == 32
    group = call("aten::native_group_norm", (4, 8, 10, 10), (8,), out=(4, 8, 10, 10), roles="input weight",
                 args={"group": 2})  # fmt: skip
    found = moves("aten::native_group_norm", group)
    assert (found.rows, found.row_bytes) == (8, 4 * 4 * 100)


def test_given_statistics_are_not_summed() -> None:
    name = "aten::native_batch_norm"
    one = call(name, (8, 64, 9, 9), out=(8, 64, 9, 9), args={"training": False})
    assert moves(name, one).row_bytes == 0.0
    assert work._code(one, name) == KINDS.index("elementwise")
    assert work._code(replace(one, args={"training": True}), name) == KINDS.index("batch_norm")


def test_the_gradients_of_a_norm_are_read_twice() -> None:
    name, shape = "aten::native_layer_norm_backward", (4, 9, 768)
    both = call(name, shape, shape, (768,), out=[shape, (768,), (768,)], roles="grad_out input weight")
    assert moves(name, both, 1e6, 5e5) == work.Traffic(2e6, 5e5, 36, 4 * 768, 2.0)
    alone = replace(both, outputs=(shape,))
    assert moves(name, alone, 1e6, 5e5).read == 1e6


def test_pooling_by_hand() -> None:
    """Indices of 8 bytes are written and read; the backward does not read the input."""
    wide, narrow = (2, 3, 8, 8), (2, 3, 4, 4)
    name = "aten::max_pool2d"
    one = call(name, wide, out=narrow)
    assert moves(name, one, 1536, 384) == work.Traffic(1536, 384 + 8 * 96, 96, 4)
    listed = replace(one, outputs=(narrow, narrow))
    assert moves(name, listed, 1536, 384 + 768).written == 384 + 768
    name = "aten::max_pool2d_with_indices_backward"
    back = call(name, narrow, wide, narrow, out=wide, roles="grad_output self indices")
    assert moves(name, back, 9e9, 9e9) == work.Traffic(96 * 12, 1536, 384, 4)
    name = "aten::avg_pool2d_backward"
    back = call(name, narrow, wide, out=wide, roles="grad_output self")
    assert moves(name, back, 9e9, 9e9) == work.Traffic(96 * 4, 1536, 384, 4)
    name = "aten::adaptive_avg_pool2d"
    assert moves(name, call(name, wide, out=(2, 3, 1, 1)), 1536, 24).row_bytes == 0.0, "a sum"


def test_gradient_of_a_table_by_hand() -> None:
    """Zeros everywhere, then 12 rows are read and written; sorting 12 indices by one byte."""
    name = "aten::embedding_dense_backward"
    one = call(name, (3, 4, 16), (3, 4), out=(100, 16), roles="grad_output indices")
    sort = 12 * 2 * 8
    assert moves(name, one) == work.Traffic(2 * 12 * 64 + sort, 100 * 64 + 12 * 64 + sort, kernels=4.0)
    forward = call("aten::embedding", (100, 16), (3, 4), out=(3, 4, 16))
    assert moves("aten::embedding", forward, 7.0, 5.0) == work.Traffic(7.0, 5.0)


def test_losses_by_hand() -> None:
    """One element of each row, 32 bytes of memory; the gradient is filled with zeros."""
    scores, target = (10, 1000), (10,)
    name = "aten::nll_loss_forward"
    one = call(name, scores, target, out=[(), ()], roles="self target")
    assert moves(name, one, 40080, 8) == work.Traffic(10 * 40, 8)
    name = "aten::nll_loss_backward"
    back = call(name, (), scores, target, out=scores, roles="grad_output self target")
    assert moves(name, back, 40000, 40000) == work.Traffic(80, 40000 + 320, kernels=2.0)
    name = "aten::cross_entropy_loss"
    one = call(name, scores, target, out=[()], roles="input target")
    assert moves(name, one, 40080, 4) == work.Traffic(40000 + 400, 40000, kernels=2.0), "log-probabilities are kept"
    one = call("aten::mse_loss", scores, scores, out=())
    assert moves("aten::mse_loss", one, 80000, 4) == work.Traffic(80000, 4)


def test_an_optimizer_takes_as_many_kernels_as_its_arguments_need() -> None:
    small, large = (10,), (65536 * 320 * 3,)
    assert moves("aten::_foreach_sqrt", call("aten::_foreach_sqrt", *[small] * 111, out=[small] * 111)).kernels == 2
    assert moves("aten::_foreach_add_", call("aten::_foreach_add_", large, large, out=[large])).kernels == 3
    fused = call("aten::_fused_adamw_", *[small] * 4 * 37, out=[small] * 3 * 37)
    found = moves("aten::_fused_adamw_", fused, 7.0, 5.0)
    assert (found.read, found.written, found.kernels) == (7.0, 5.0, 2)


def test_filling_reads_nothing_and_an_empty_tensor_costs_nothing() -> None:
    assert moves("aten::zero_", call("aten::zero_", (8,), out=(8,)), 32, 32) == work.Traffic(0, 32)
    assert moves("aten::empty_like", call("aten::empty_like", (8,), out=(8,)), 0, 32) == work.Traffic(0, 0, kernels=0)
    assert moves("aten::zeros", call("aten::zeros", out=(8,)), 0, 32) == work.Traffic(0, 32)


def test_scattering_in_place_touches_what_it_writes() -> None:
    name, table, rows = "aten::index_add_", (1000, 16), (10, 16)
    one = call(name, table, (10,), rows, out=table, roles="self index source")
    assert moves(name, one, 9e9, 9e9) == work.Traffic(2 * 640 + 80, 640)
    copied = moves("aten::index_add", replace(one), 9e9, 9e9)
    assert copied == work.Traffic(64000 + 2 * 640 + 80, 64000 + 640, kernels=2.0)


def test_sorting_passes_over_every_byte_of_a_key() -> None:
    assert moves("aten::sort", call("aten::sort", (100,), out=[(100,), (100,)])).read == 4 * 100 * 12
    assert moves("aten::topk", call("aten::topk", (100,), out=[(5,), (5,)]), 400, 60) == work.Traffic(2000, 60, 1, 0, 2)
    assert moves("aten::multinomial", call("aten::multinomial", (100,), out=(1,)), 400, 8).written == 408


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
    rows = np.array([
        row for row, name in enumerate(trace.operators.name)
        if work.kind_of(name) in ("elementwise", "softmax", "batch_norm", "optimizer", "reduction", "other")
    ])  # fmt: skip
    assert len(rows) > 200
    assert work.of(trace, rows).bytes() == pytest.approx(np.nan_to_num(trace.operators.bytes[rows]))


def test_kernels_are_those_of_the_recording_where_there_are_more_than_one() -> None:
    trace = triosim.model("gpt2")
    rows = np.array([row for row, name in enumerate(trace.operators.name) if work.kind_of(name) == "optimizer"])
    found = work.of(trace, rows).kernels
    assert found.min() > 1, "148 tensors and 124 million elements"
    assert work.of(trace, rows, np.full(len(rows), 7)).kernels.tolist() == [7] * len(rows)


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
    assert tuple(document["constants"]) == CLASSES[:5]
    assert tuple(model.spreads()) == CLASSES
    for rows in document["constants"].values():
        assert set(rows) == {f.name for f in fields(Constants)}
        assert all(entry["meaning"] and entry["unit"] for entry in rows.values())


def test_first_level_caches_have_a_source_and_unknown_ones_a_default() -> None:
    document = json.loads(script.OUTPUT.read_text(encoding="utf-8"))
    assert all(row["source"] and row["bytes"] % 1024 == 0 for row in document["near"].values())
    near = {
        name: model.near_cache(catalog.accelerator(name)) // 1024
        for name in ("P100-PCIe-16GB", "P4", "T4", "A100-PCIe-40GB", "A40", "L4", "H100-SXM5-80GB", "MI100", "MI300X")
    }
    assert list(near.values()) == [24, 48, 64, 192, 128, 128, 256, 16, 32]
    assert model.near_cache(Accelerator("x", architecture="Unheard-of")) == model.near_caches()[""]


def test_intervals_are_wider_for_kinds_that_were_not_measured() -> None:
    spreads = model.spreads()
    for name, code in zip(KINDS, model.CLASS_OF, strict=True):
        seen, unseen = spreads[CLASSES[code]]
        assert seen <= unseen
        if name in ("embedding", "loss", "index", "reduction", "other"):
            assert seen > spreads["elementwise"][1], name
            assert seconds(one(name, 1 << 16, 4096)) == seconds(one("elementwise", 1 << 16, 4096))


def test_an_element_of_a_pooling_costs_the_units_time() -> None:
    """What a unit spends on indices does not depend on the memory: ten times the bandwidth is hardly faster."""
    pooled = replace(one("pooling", 1 << 20, 64), rows=np.array([2.0**26]), row_bytes=np.array([4.0]))
    fast = replace(A100, memory_bandwidth=10 * (A100.memory_bandwidth or 1))
    assert seconds(pooled, fast) > 0.8 * seconds(pooled)
    assert predict(pooled, A100).limit[0] == Limit.COMPUTE


@pytest.mark.parametrize("name", ["elementwise", "softmax", "layer_norm", "batch_norm", "pooling"])
def test_the_fit_finds_the_constants_again(name: str) -> None:
    shared("kernels", "fp32_ops.parquet")
    shared("triosim-h100", "resnet50")
    of_step = name in ("batch_norm", "pooling")
    step = script.training_step(name if of_step else "elementwise")
    rows = step if of_step else script.joined(script.isolated("elementwise")[0], step)
    if name in script.LATE:
        found = script.fit(script.sampled(script.isolated(name)[0]), name, script.sampled(rows))
    else:
        found = script.fit(rows if name == "pooling" else script.sampled(rows), name)
    for f in fields(Constants):
        assert getattr(found.constants, f.name) == pytest.approx(getattr(model.load()[name], f.name), rel=0.01), f.name


@pytest.mark.parametrize(("name", "mean"), [("softmax", 0.18), ("layer_norm", 0.18), ("elementwise", 0.15)])
def test_mean_error_on_devices_left_out(name: str, mean: float) -> None:
    """As the shipped file says, whose constants the fit finds again."""
    left_out = json.loads(script.OUTPUT.read_text(encoding="utf-8"))["provenance"]["left_out"][name]
    assert np.mean([one["mape"] for one in left_out.values()]) < 100 * mean
    assert min(one["coverage"] for one in left_out.values()) > 0.85
