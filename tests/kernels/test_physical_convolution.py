"""The physical model of convolutions: what a call does, laws of its time, and the fit that made its constants."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from validation.fit import physical_convolution as script

import triosim
from tests.data import shared
from tests.effort import calls
from triosim.core.dtypes import DTYPE_CODE
from triosim.core.errors import InputError
from triosim.hardware import catalog
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.physical import convolution as model
from triosim.kernels.physical.convolution import ConvolutionConstants, predict
from triosim.kernels.physical.gemm import load as load_gemm
from triosim.kernels.physical.gemm import predict as predict_gemm
from triosim.kernels.work import convolution as work
from triosim.kernels.work.convolution import ConvolutionCalls
from triosim.kernels.work.gemm import gemm
from triosim.operators import Call, kind
from triosim.operators import work as asked

V100 = catalog.accelerator("V100-PCIe-32GB")
FLOAT = DTYPE_CODE["float32"]


def square(
    images: float, channels: float, out: float, side: float, kernel: int = 3, dtype: int = FLOAT
) -> ConvolutionCalls:
    """One convolution."""
    images_, channels_, out_, side_ = (np.array([float(x)]) for x in (images, channels, out, side))
    return work.convolution(images_, channels_, out_, side_, kernel, dtype)


def seconds(what: ConvolutionCalls, device: Accelerator = V100) -> float:
    return float(predict(what, device).seconds[0])


def test_work_of_one_call_by_hand() -> None:
    call = Call(
        "convolution", True, "convolution", ("grad_output", "input", "weight", "accumulate"),
        ((128, 512, 7, 7), (128, 256, 14, 14), (512, 256, 3, 3), (128, 256, 14, 14)),
        ((128, 256, 14, 14), (512, 256, 3, 3), (512,)), {},
    )  # fmt: skip
    assert asked(call) == (128, 256, 512, 1, 14, 14, 7, 7, 3, 3, 4, False, True, True, True, True, False)


def test_a_transposed_convolution_is_a_gradient_of_the_input() -> None:
    call = Call(
        "conv_transpose2d", False, "convolution", ("input", "weight"), ((8, 64, 16, 16), (64, 32, 2, 2)),
        ((8, 32, 32, 32),), {},
    )  # fmt: skip
    found = asked(call)
    assert found[11:] == (False, True, False, False, False, False)
    images, channels, out, groups, *positions = found[:8]
    assert (images, channels, out, groups, positions) == (8, 32, 64, 1, [32, 32, 16, 16])


def test_flop_and_bytes_are_those_of_the_trace() -> None:
    shared("triosim-h100", "resnet50")
    trace = triosim.load(shared("triosim-h100", "resnet50"))
    rows = np.array([row for row, name in enumerate(trace.operators.name) if kind(name) == "convolution"])
    found = work.of(trace, rows, np.full(len(rows), FLOAT, np.int8))
    assert found.flop() == pytest.approx(trace.operators.flop[rows])
    plain = found.forward
    assert found.bytes()[plain] == pytest.approx(trace.operators.bytes[rows][plain])


@given(
    images=st.integers(1, 64), channels=st.integers(1, 1024), out=st.integers(1, 1024), side=st.integers(1, 128),
    kernel=st.sampled_from([1, 3, 5]), dtype=st.sampled_from(["float32", "tfloat32", "float16"]),
)  # fmt: skip
def test_laws(images: int, channels: int, out: int, side: int, kernel: int, dtype: str) -> None:
    """Times are finite, above what the bytes need, and a stronger device is never slower."""
    device = catalog.accelerator("A100-PCIe-40GB")
    what = square(images, channels, out, side, kernel, DTYPE_CODE[dtype])
    time = seconds(what, device)
    assert np.isfinite(time)
    assert time >= float(what.bytes()[0]) / (device.memory_bandwidth or 1)
    assert time >= float(what.flop()[0]) / (4 * device.peak(dtype))  # F(4x4, 3x3) does a fourth of the operations
    stronger = replace(
        device, memory_bandwidth=2 * (device.memory_bandwidth or 0), tdp_w=2 * (device.tdp_w or 0),
        peak_flops={name: 2 * peak for name, peak in device.peak_flops.items()},
    )  # fmt: skip
    assert seconds(what, stronger) <= time * (1 + 1e-9)
    assert seconds(square(2 * images, channels, out, side, kernel, DTYPE_CODE[dtype]), device) >= time * (1 - 1e-9)


def test_gradients_cost_extra() -> None:
    forward = square(32, 256, 256, 28, dtype=DTYPE_CODE["tfloat32"])
    yes, no = np.array([True]), np.array([False])
    device = catalog.accelerator("H100-SXM5-80GB")
    weight = replace(forward, forward=no, weight_gradient=yes)
    both = replace(weight, data_gradient=yes)
    bias = replace(both, bias_gradient=yes)
    assert seconds(weight, device) < seconds(both, device) < seconds(bias, device)


def test_a_device_of_three_figures_can_be_priced_and_one_of_none_cannot() -> None:
    sketch = Accelerator(name="sketch", peak_flops={"float32": 20e12}, memory_bandwidth=1e12)
    assert 0 < seconds(square(8, 64, 64, 56), sketch) < 1
    with pytest.raises(InputError, match="memory bandwidth"):
        seconds(square(8, 64, 64, 56), replace(sketch, memory_bandwidth=None))


def test_depthwise_waits_for_memory() -> None:
    groups = np.array([512.0])
    one = replace(square(32, 1, 1, 56), groups=groups)
    time = seconds(one)
    assert time < 4 * float(one.bytes()[0]) / (V100.memory_bandwidth or 1)


def test_many_convolutions_are_priced_at_once() -> None:
    random = np.random.default_rng(0)
    count = 100_000
    images, channels, out = (random.integers(1, 512, count).astype(float) for _ in range(3))
    what = work.convolution(images, channels, out, random.integers(4, 64, count).astype(float), 3, FLOAT)
    assert calls(lambda: predict(what, V100)) < count / 10


def test_host_time_is_found_again() -> None:
    """Kernels over a host that slows down from 100 to 400 us: the line is found."""
    random = np.random.default_rng(1)
    host = np.linspace(1e-4, 4e-4, 40_000)
    measured = host + np.exp(random.uniform(np.log(1e-7), np.log(1e-2), 40_000))
    window = (host[-1] - host[0]) / script.WINDOWS
    off = script.host_time(measured) / script.HOST_SHARE - host
    assert np.abs(off).max() < window / 2, "the shortest of a window may stand at its start"


def test_inputs_are_listed_and_not_those_that_judge() -> None:
    assert all("vgg" not in str(path).lower() for path in script.INPUTS)
    assert {path.name for path in script.INPUTS} == {"fp32_ops.parquet", "trace.csv", "tensor.csv"}


def test_the_file_says_what_every_constant_is() -> None:
    document = json.loads(script.OUTPUT.read_text(encoding="utf-8"))
    for engine in ("simt", "tensor"):
        assert (
            set(document["constants"][engine]) == {f.name for f in fields(ConvolutionConstants)} == set(script.MEANING)
        )
        assert all(entry["meaning"] and entry["unit"] for entry in document["constants"][engine].values())
    left_out = document["provenance"]["left_out"]
    for gpu in ("P100-PCIe-16GB", "T4", "V100-PCIe-32GB"):
        assert left_out[gpu]["mape"] < 20
        assert left_out[gpu]["coverage"] > 0.85


@pytest.mark.parametrize("engine", ["simt", "tensor"])
def test_the_fit_finds_the_constants_again(engine: str) -> None:
    shared("kernels", "fp32_ops.parquet")
    shared("triosim-h100", "resnet50")
    rows = script.sampled(script.isolated()[0]) if engine == "simt" else script.training_step()
    found, shipped = script.fit(rows, engine), model.load()[engine]
    for name in script.SIGMA[engine]:
        if engine == "tensor" or name not in ("data_gradient", "weight_gradient"):
            assert getattr(found, name) == pytest.approx(getattr(shipped, name), rel=0.01), name


def test_channels_side_by_side_are_a_product_that_reads_each_tensor_once() -> None:
    a100 = catalog.accelerator("A100")
    call = replace(square(32, 256, 512, 28, kernel=1, dtype=DTYPE_CODE["float16"]), channels_last=np.array([True]))
    product = gemm(32.0 * 28 * 28, 512.0, 256.0, "float16")
    assert seconds(call, a100) == pytest.approx(float(predict_gemm(product, a100, load_gemm().constants).seconds[0]))
    wide = replace(square(32, 256, 512, 28, kernel=3, dtype=DTYPE_CODE["float16"]), channels_last=np.array([True]))
    taps = gemm(32.0 * 28 * 28, 512.0, 9 * 256.0, "float16")
    once = replace(taps, a_bytes=taps.a_bytes / 9)  # a pixel is read once for all nine positions of the window
    assert seconds(wide, a100) == pytest.approx(float(predict_gemm(once, a100, load_gemm().constants).seconds[0]))


def test_three_channels_fill_a_load_of_sixteen_bytes() -> None:
    a100 = catalog.accelerator("A100")

    def of(channels: int) -> float:
        call = square(64, channels, 64, 112, kernel=7, dtype=DTYPE_CODE["float16"])
        return seconds(replace(call, channels_last=np.array([True])), a100)

    assert of(3) == pytest.approx(of(8), rel=0.1)
    assert of(16) > 1.3 * of(8)


def test_groups_of_few_channels_may_share_a_product() -> None:
    """32 groups of 4 channels take no longer than one group of all 128, whose product holds all of theirs."""
    a100 = catalog.accelerator("A100")
    whole = replace(square(128, 128, 128, 56, dtype=DTYPE_CODE["float16"]), channels_last=np.array([True]))
    few = replace(whole, in_channels=np.array([4.0]), out_channels=np.array([4.0]), groups=np.array([32.0]))
    assert seconds(few, a100) <= seconds(whole, a100)
    assert few.flop()[0] == whole.flop()[0] / 32


@pytest.mark.parametrize("device", ["RTX-3090", "A100-SXM4-40GB", "V100-SXM2-16GB"])
def test_images_in_16_bits_are_turned_for_the_same_kernels(device: str) -> None:
    chip = catalog.accelerator(device)
    apart = square(256, 256, 256, 28, dtype=DTYPE_CODE["float16"])
    side_by_side = replace(apart, channels_last=np.ones(1, bool))
    turned = 2.0 * float((apart.input_bytes() + apart.output_bytes())[0]) / float(chip.memory_bandwidth or 1)
    assert seconds(side_by_side, chip) < seconds(apart, chip) <= seconds(side_by_side, chip) + 1.1 * turned
