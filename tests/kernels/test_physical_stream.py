"""The physical model of operators bound by bytes: what a call moves, laws of its time, and the fit of its constants."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from validation.fit import physical_stream as script

import triosim
from tests.data import shared
from tests.effort import calls
from triosim.core.errors import InputError
from triosim.hardware import catalog
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.estimate import Limit
from triosim.kernels.physical import stream as model
from triosim.kernels.physical.stream import CDNA3, CLASSES, FIRST_HBM2, INLINE_ECC, StreamConstants, delivered, predict
from triosim.kernels.work import stream as work
from triosim.kernels.work.stream import KINDS, Stream
from triosim.operators import kind

A100 = catalog.accelerator("A100-PCIe-40GB")
V100 = catalog.accelerator("V100-PCIe-32GB")


def one(name: str, rows: float, length: float) -> Stream:
    return work.rowwise(name, np.array([rows]), np.array([length]))


def seconds(what: Stream, device: Accelerator = A100) -> float:
    return float(predict(what, device).seconds[0])


@given(
    st.sampled_from(KINDS), st.floats(0, 1e9), st.floats(0, 1e9), st.integers(1, 100_000), st.floats(0, 1e6),
    st.integers(1, 3), st.integers(2, 512), st.sampled_from((A100, V100)),
)  # fmt: skip
def test_least_is_below_what_is_said_and_convex(
    name: str, fixed: float, moved: float, rows: int, row_bytes: float, kernels: int, samples: int, device: Accelerator
) -> None:
    """The line through one and two samples says no more than what any number of samples takes."""

    def many(count: float) -> Stream:
        columns = (fixed + count * moved, count * moved, count * rows, row_bytes, kernels)
        return Stream(np.array([work.CODE[name]], np.int8), *(np.array([float(one)]) for one in columns))

    once, twice, often = (float(model.least(many(count), device)[0]) for count in (1, 2, samples))
    assert often <= float(predict(many(samples), device).seconds[0]) * (1 + 1e-12)
    assert once + (samples - 1) * (twice - once) <= often * (1 + 1e-9)
    if not row_bytes:
        assert often == pytest.approx(float(predict(many(samples), device).seconds[0]))


def test_bytes_are_those_of_the_trace() -> None:
    trace = triosim.load(shared("triosim-h100", "resnet50"))
    plain = ("elementwise", "softmax", "normalization", "optimizer", "reduction", "other")
    rows = np.array([row for row, name in enumerate(trace.operators.name) if kind(name) in plain])
    assert len(rows) > 200
    assert work.of(trace, rows).bytes() == pytest.approx(np.nan_to_num(trace.operators.bytes[rows]))


def test_kernels_are_those_of_the_recording_where_there_are_more_than_one() -> None:
    trace = triosim.model("gpt2")
    rows = np.array([row for row, name in enumerate(trace.operators.name) if kind(name) == "optimizer"])
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


def test_many_operators_are_priced_at_once() -> None:
    random = np.random.default_rng(0)
    count = 20_000
    what = work.rowwise("softmax", random.integers(1, 1 << 16, count), random.integers(1, 4096, count))
    what = replace(what, kind=random.integers(0, len(KINDS), count).astype(np.int8))
    assert calls(lambda: predict(what, A100)) < count / 10


def test_inputs_are_listed_and_not_those_that_judge() -> None:
    assert {path.name for path in script.INPUTS} == {"fp32_ops.parquet", "trace.csv", "tensor.csv"}
    assert all("vgg" not in str(path).lower() for path in script.INPUTS)


def test_the_file_says_what_every_constant_is() -> None:
    document = json.loads(script.OUTPUT.read_text(encoding="utf-8"))
    assert tuple(document["constants"]) == (*CLASSES[:5], "register_norm", "nhwc_norm", "half_batch_norm")
    assert tuple(model.spreads()) == CLASSES
    for rows in document["constants"].values():
        assert set(rows) == {f.name for f in fields(StreamConstants)}
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


def test_norms_that_keep_rows_in_registers_follow_the_bandwidth() -> None:
    """Rows of 128 elements, as of the norms of queries: PyTorch gives each a block, Transformer Engine a warp."""
    made = {
        fused: triosim.model("qwen3-8b", batch_size=1, sequence_length=4096, fused=fused) for fused in (False, True)
    }
    seconds = {}
    for fused, trace in made.items():
        name = "transformer_engine::rms_norm" if fused else "aten::_fused_rms_norm"
        rows = np.array([row for row, one in enumerate(trace.operators.name) if one == name])
        stream = work.of(trace, rows)
        found = predict(stream, catalog.accelerator("B200-SXM-180GB"))
        seconds[fused] = dict(zip(stream.row_bytes.tolist(), found.seconds.tolist(), strict=True))
    assert seconds[True][256.0] < seconds[False][256.0] / 2.5
    assert seconds[True][8192.0] < seconds[False][8192.0]
    least = 2 * 4096 * 4096 * 2 / catalog.accelerator("B200-SXM-180GB").memory_bandwidth
    assert seconds[True][8192.0] > least


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
    for f in fields(StreamConstants):
        assert getattr(found.constants, f.name) == pytest.approx(getattr(model.load()[name], f.name), rel=0.01), f.name


@pytest.mark.parametrize(("name", "mean"), [("softmax", 0.18), ("layer_norm", 0.18), ("elementwise", 0.15)])
def test_mean_error_on_devices_left_out(name: str, mean: float) -> None:
    """As the shipped file says, whose constants the fit finds again."""
    left_out = json.loads(script.OUTPUT.read_text(encoding="utf-8"))["provenance"]["left_out"][name]
    assert np.mean([one["mape"] for one in left_out.values()]) < 100 * mean
    assert min(one["coverage"] for one in left_out.values()) > 0.85


# --- what memories deliver -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("T4", INLINE_ECC), ("L40S", INLINE_ECC), ("P4", INLINE_ECC), ("P100", FIRST_HBM2), ("V100", 1.0),
        ("A100", 1.0), ("RTX-4090", 1.0), ("RTX-A6000", 1.0), ("RTX-PRO-6000-Server", 1.0),
        ("MI300X", CDNA3), ("MI355X", 1.0),
    ],
)  # fmt: skip
def test_a_datasheet_says_which_memories_deliver_less(name: str, part: float) -> None:
    assert delivered(catalog.accelerator(name)) == part


def test_volta_delivers_one_and_a_half_times_what_pascal_does() -> None:
    volta, pascal = catalog.accelerator("V100"), catalog.accelerator("P100-SXM2-16GB")
    rates = [delivered(device) * (device.memory_bandwidth or 0) for device in (volta, pascal)]
    assert rates[0] / rates[1] == pytest.approx(1.5)


def test_only_gddr_keeps_check_bits_between_the_data() -> None:
    every = [catalog.accelerator(name) for name in catalog.accelerators()]
    inline = [device for device in every if "ECC" in device.memory_type]
    assert inline
    assert all(device.memory_type.startswith("GDDR") and "RTX" not in device.name for device in inline)
    assert delivered(Accelerator("mine", memory_type="HBM3 ECC")) == 1.0
    assert delivered(Accelerator("mine", memory_type="gddr7 ecc")) == INLINE_ECC


def test_long_operators_take_as_much_longer() -> None:
    off = replace(catalog.accelerator("T4"), memory_type="GDDR6")
    long = one("elementwise", 1 << 20, 1 << 10)
    assert seconds(long, replace(off, memory_type="GDDR6 ECC")) / seconds(long, off) == pytest.approx(
        1 / INLINE_ECC, rel=0.05
    )


def test_batch_norms_take_as_many_elements_of_16_bits_in_a_cycle_as_of_32() -> None:
    """Less is saved than half of the bytes, as units are part of the limit."""
    channels, length = 1024, 1 << 16
    wide = seconds(work.rowwise("batch_norm", np.array([channels]), np.array([length]), 4.0))
    half = seconds(work.rowwise("half_batch_norm", np.array([channels]), np.array([length]), 2.0))
    assert 0.55 * wide < half < 0.95 * wide


def test_batch_norms_over_channels_side_by_side_use_all_units_and_read_twice() -> None:
    pixels, bandwidth = 1 << 22, A100.memory_bandwidth or 1
    for channels in (16, 64, 256):
        time = seconds(work.rowwise("nhwc_norm", np.array([pixels]), np.array([channels]), 2.0))
        assert 3.0 < time * bandwidth / (pixels * channels * 2.0) < 3.4
