"""What multiplies each element type, and what is said where that is not what one would expect."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from validation.fit import emulation as fit_emulation

import triosim
from triosim import Plan
from triosim.core.dtypes import DTYPE_CODE
from triosim.core.errors import InputError
from triosim.hardware import build, catalog
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import MultiplicationMethod, multiplication, rate, refuse, works
from triosim.kernels.estimate import Source
from triosim.kernels.model import PricingJob
from triosim.kernels.physical import fallbacks, kinds
from triosim.kernels.pricing import price
from triosim.kernels.work.attention import attention
from triosim.kernels.work.convolution import convolution
from triosim.kernels.work.gemm import gemm
from triosim.trace.tables import Category

V100, P100, A100, H100 = (catalog.accelerator(n) for n in ("V100", "P100-SXM2-16GB", "A100", "H100"))


def how(device: Accelerator, dtype: str) -> tuple[str, str, MultiplicationMethod]:
    found = multiplication(device, dtype)
    return found.dtype, found.unit, found.method


def test_native_types_are_those_of_the_datasheet():
    assert how(H100, "bfloat16") == ("bfloat16", "tensor", MultiplicationMethod.NATIVE)
    assert how(H100, "float8_e5m2") == ("float8_e4m3fn", "narrow", MultiplicationMethod.NATIVE), (
        "both kinds of 8 bits at one rate"
    )
    assert how(V100, "float16") == ("float16", "tensor", MultiplicationMethod.NATIVE)
    assert how(V100, "tfloat32") == ("float32", "simt", MultiplicationMethod.NATIVE)
    assert how(V100, "int4") == ("int8", "fourbit", MultiplicationMethod.NATIVE)
    assert not multiplication(H100, "bfloat16").words
    assert rate("bfloat16", H100) == H100.peak("bfloat16")


@pytest.mark.parametrize("name", ["RTX-3090", "RTX-4090", "RTX-5090", "A10G", "L40", "DGX-Spark-GB10", "RX-7900XTX"])
def test_matrix_units_are_a_fact_of_the_catalog_not_a_ratio(name):
    device = catalog.accelerator(name)
    assert how(device, "bfloat16") == ("bfloat16", "tensor", MultiplicationMethod.NATIVE)
    assert how(replace(device, matrix_types=()), "float16")[1] == "simt"


def test_every_gpu_of_the_catalog_says_what_its_matrix_units_multiply():
    rows = [catalog.accelerator_row(name) for name in catalog.accelerators()]
    known = [r for r in rows if r["kind"] in ("gpu", "edge-gpu", "apu") and r["matrix_types"] is not None]
    assert {r["name"] for r in rows if r["kind"] in ("gpu", "edge-gpu", "apu")} - {r["name"] for r in known} == {
        "R200-VR-NVL144"
    }, "announced only"
    for row in known:
        assert row["matrix_source"]
        assert (row["compute_capability"] != "") == (row["vendor"] == "NVIDIA")
        assert set(row["matrix_types"]) <= set(DTYPE_CODE)
        wide = [t for t in ("float16", "bfloat16") if t in row["matrix_types"]]
        assert set(wide) <= set(row["peak_flops"])


def test_sixteen_bits_without_units_are_summed_in_float32():
    for name in ("P4", "P40", "GTX-1080Ti", "P100-SXM2-16GB"):
        found = multiplication(catalog.accelerator(name), "float16")
        assert (found.dtype, found.unit, found.method) == ("float32", "simt", MultiplicationMethod.NATIVE)
        assert "summed in float32" in found.words
    assert how(catalog.accelerator("MI50"), "float16") == ("float16", "simt", MultiplicationMethod.NATIVE), (
        "packed dot products"
    )


def test_bfloat16_is_emulated_before_ampere():
    slow, fast = multiplication(catalog.accelerator("T4"), "bfloat16"), multiplication(V100, "bfloat16")
    for found in (slow, fast):
        assert (found.dtype, found.unit, found.method) == ("float32", "simt", MultiplicationMethod.EMULATED)
        assert "cuBLAS converts to float32" in found.source()
        assert found.spread > 0
    assert slow.rate < fast.rate < 1
    assert fast.warning().endswith("of float32's rate; float16 (--precision) runs on its matrix units")
    assert multiplication(P100, "bfloat16").suggestion == "float16 (--precision) is faster"


def test_a_device_that_says_less_is_taken_at_its_word():
    lone = Accelerator("x", peak_flops={"float32": 1e13, "bfloat16": 2e13}, memory_bandwidth=1e12)
    assert how(lone, "bfloat16") == ("bfloat16", "tensor", MultiplicationMethod.NATIVE)
    assert how(lone, "float16") == ("bfloat16", "tensor", MultiplicationMethod.ASSUMED)
    assert "no rate for float16" in multiplication(lone, "float16").words
    assert how(catalog.accelerator("TPU-v4"), "float32") == ("bfloat16", "tensor", MultiplicationMethod.NATIVE)
    assert how(catalog.accelerator("EPYC-7763"), "bfloat16") == ("float32", "simt", MultiplicationMethod.ASSUMED)
    with pytest.raises(InputError, match="no compute peak"):
        multiplication(Accelerator("x"), "float32")


@pytest.mark.parametrize(
    ("name", "dtype", "message"),
    [
        ("A100", "float8_e4m3fn", "no units for float8_e4m3fn.* types that work are .*bfloat16"),
        ("A100", "float8_e5m2", "no units for float8"),
        ("H100", "float4_e2m1", "no units for float4_e2m1.*10.0"),
        ("MI250X-GCD", "float8_e4m3fn", "CDNA3"),
        ("K80", "bfloat16", "only from 5.0 on: types that work are float64, float32"),
        ("TPU-v1", "float32", "multiplies integers only"),
        ("M1", "float64", "no rate for float64"),
    ],
)
def test_what_cannot_run_is_refused_with_types_that_work(name, dtype, message):
    with pytest.raises(InputError, match=message):
        refuse(catalog.accelerator(name), dtype)
    with pytest.raises(InputError, match=message):
        kinds.price(gemm([64], 64, 64, dtype), catalog.accelerator(name))


def test_the_cure_works():
    for name in catalog.accelerators():
        device = catalog.accelerator(name)
        for dtype in works(device) if device.peak_flops else ():
            refuse(device, dtype)


def test_a_rate_of_a_device_file_is_of_its_matrix_units(tmp_path: Path):
    file = tmp_path / "more.toml"
    file.write_text('name = "A100 with 8 bits"\nlike = "A100"\npeak_flops = { fp8 = "600 TFLOP/s" }\n')
    device = build.accelerator(str(file))
    assert how(device, "float8_e4m3fn") == ("float8_e4m3fn", "narrow", MultiplicationMethod.NATIVE)
    file.write_text('name = "bf16 on a V100"\nlike = "V100"\npeak_flops = { bf16 = "120 TFLOP/s" }\n')
    assert how(build.accelerator(str(file)), "bfloat16") == ("bfloat16", "tensor", MultiplicationMethod.NATIVE)
    file.write_text('name = "none"\nlike = "V100"\nmatrix_types = []\ncompute_capability = "6.0"\n')
    assert how(build.accelerator(str(file)), "float16") == ("float32", "simt", MultiplicationMethod.NATIVE)


# --- what a prediction says -------------------------------------------------------------------------------------------


def told(name: str, device: str, **options):
    trace = triosim.model(name, **options)
    result = triosim.simulate(trace, triosim.system(device=device), Plan(batch_size=1), fit=False)
    return result, [w for w in result.warnings if "products" in w], [s for s in result.sources if "types:" in s]


def test_emulation_is_a_warning_and_a_source():
    options = {"sequence_length": 64, "configuration": {"n_layer": 2}}
    result, warnings, sources = told("gpt2", "V100", **options)
    assert "emulated on V100-SXM2-32GB at 0.73 of float32's rate" in warnings[0]
    assert "float16 (--precision)" in warnings[0]
    assert any("compute capability 7.0" in source for source in sources)
    assert any("no fused attention" in source for source in sources)
    half, quiet, nothing = told("gpt2", "V100", precision="float16", **options)
    assert not quiet
    assert not nothing
    assert half.iteration_time_s < result.iteration_time_s
    _, quiet, said = told("gpt2", "P100-SXM2-16GB", precision="float16", **options)
    assert not quiet
    assert "summed in float32" in said[0]


def test_a_type_that_cannot_run_is_refused():
    with pytest.raises(InputError, match=r"bfloat16 products cannot run on K80.*types that work are"):
        told("gpt2", "K80", sequence_length=64, configuration={"n_layer": 1})


def in_eight_bits(trace: triosim.Trace, *categories: Category) -> triosim.Trace:
    """The step with its 16-bit values of some categories, or all, in 8 bits."""
    values = trace.values
    chosen = np.isin(values.category, categories) if categories else np.ones(len(values), bool)
    half = (values.dtype == DTYPE_CODE["bfloat16"]) & chosen
    return replace(trace, values=replace(values, dtype=np.where(half, DTYPE_CODE["float8_e4m3fn"], values.dtype)))


def test_eight_bits_need_a_device_that_multiplies_them():
    trace = triosim.model("gpt2", sequence_length=64, configuration={"n_layer": 1}, training=False)
    narrow, weights = in_eight_bits(trace), in_eight_bits(trace, Category.WEIGHT)
    with pytest.raises(InputError, match=r"A100-SXM4-80GB has no units for float8.*types that work are .*bfloat16"):
        price(PricingJob(narrow, A100, narrow, None))
    assert (
        price(PricingJob(narrow, H100, narrow, None)).seconds.sum()
        < price(PricingJob(trace, H100, trace, None)).seconds.sum()
    )
    assert not price(PricingJob(weights, A100, weights, None)).warnings, "stored in 8 bits, multiplied in 16"


def test_recorded_times_hold_whatever_multiplied():
    """A step recorded on the device itself ran; only what is reckoned from a rate is refused or remarked on."""
    trace = triosim.model("gpt2", sequence_length=64, configuration={"n_layer": 1})
    seconds = np.where(trace.operators.view, 0.0, 1e-5)
    recorded = replace(
        trace, operators=replace(trace.operators, device_s=seconds), meta=replace(trace.meta, clock="gpu", device="K80")
    )
    k80 = catalog.accelerator("K80")
    found = price(PricingJob(recorded, k80, recorded, k80))
    assert not found.warnings
    assert set(found.source.tolist()) <= {Source.RECORDED, Source.NOTHING}
    with pytest.raises(InputError, match="cannot run on K80"):
        price(PricingJob(recorded, k80, recorded, A100))


def test_mixed_devices_each_have_their_say(tmp_path: Path):
    file = tmp_path / "mixed.toml"
    file.write_text(
        '[[device]]\nname = "a"\nmodel = "V100"\n[[device]]\nname = "b"\nmodel = "T4"\n'
        '[[link]]\nfrom = "a"\nto = "b"\nbandwidth = "10 GB/s"\n'
    )
    system = build.load(file)
    trace = triosim.model("gpt2", sequence_length=64, configuration={"n_layer": 1})
    result = triosim.simulate(trace, system, Plan(dp=2), fit=False)
    assert [any(f"emulated on {n}" in w for w in result.warnings) for n in ("V100-SXM2-32GB", "T4")] == [True, True]


# --- what runs instead ------------------------------------------------------------------------------------------------


def test_attention_that_is_spelled_out_reads_its_scores():
    """Llama's attention at 4,096 tokens on a V100: products in float32, and 30 bytes of each score."""
    work = attention(1, 4096, 4096, 32, 32, 128)
    found = kinds.price(work, V100).seconds[0]
    scores = 32 * 4096.0**2
    products = 2 * 2 * scores * 128
    least = products / V100.peak("float32") + 30 * scores / V100.memory_bandwidth
    assert least < found < 2 * least
    assert found == fallbacks.attention(work, V100).seconds[0]
    assert found > 5 * kinds.price(attention(1, 4096, 4096, 32, 32, 128, "float16"), V100).seconds[0]


def test_convolutions_run_image_by_image():
    def one(images):
        column = np.array([float(images)])
        work = convolution(column, column * 0 + 64, column * 0 + 64, column * 0 + 56, 3, DTYPE_CODE["bfloat16"])
        return kinds.price(work, V100).seconds[0]

    assert one(128) == pytest.approx(128 * one(1))
    column = np.array([64.0])
    half = convolution(2 * column, column, column, column - 8, 3, DTYPE_CODE["float16"])
    assert one(128) > 5 * kinds.price(half, V100).seconds[0]


def test_the_script_finds_the_rates_again():
    stored = json.loads(fit_emulation.TARGET.read_text())
    assert stored == json.loads(json.dumps(fit_emulation.document(fit_emulation.fitted())))


def test_rates_are_within_their_intervals():
    for row in fit_emulation.VECTOR:
        if row.device in catalog.accelerators() and row.device != "K80":
            found = multiplication(catalog.accelerator(row.device), "bfloat16")
            assert abs(math.log(row.bfloat16 / row.float32 / found.rate)) <= found.spread + 1e-4
