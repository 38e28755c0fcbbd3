"""Mixture of experts: the work, its distributions, and the physical model's laws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from validation.fit import physical_moe as fit_physical_moe

from tests.kernels.example import one
from triosim.core.dtypes import DTYPE_CODE
from triosim.core.errors import InputError
from triosim.hardware import catalog
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import rate
from triosim.kernels.estimate import Limit
from triosim.kernels.model import PricingJob
from triosim.kernels.physical import moe as model
from triosim.kernels.physical._constants import document
from triosim.kernels.physical.kinds import price as price_calls
from triosim.kernels.physical.tuned_tiles import tables, tuned
from triosim.kernels.pricing import price
from triosim.kernels.work.gemm import of as products_of
from triosim.kernels.work.moe import FAMILIES, experts, of

H100 = catalog.accelerator("H100-SXM5-80GB")


@given(st.integers(0, 14), st.integers(0, 5), st.sampled_from([0.0, 1.01, 1.2]))
def test_no_token_is_lost_or_doubled(tokens, parts, skew):
    work = experts(2.0**tokens, 8, 2048, 768, 128, 2.0**parts, skew=skew)
    load, each = work.loads()
    assert (load <= work.tokens).all()
    held = (load * each).sum()
    assert held <= work.pairs()[0] * work.share()[0] * (1 + 1e-9)
    if skew == 0:
        assert held == pytest.approx(work.pairs()[0] / work.parts[0])
    assert 0 < work.active()[0] <= work.local()[0] * (1 + 1e-9)
    assert 1 / work.parts[0] <= work.share()[0] * (1 + 1e-9) <= 1 + 1e-6


def test_work_by_hand():
    work = experts(1000, 2, 64, 128, 8)
    assert work.flop()[0] == 2 * 2000 * 3 * 64 * 128
    assert work.active()[0] == pytest.approx(8)
    assert work.weights()[0] == pytest.approx(8 * 3 * 64 * 128 * 2)
    assert experts(1, 2, 64, 128, 8).active()[0] == pytest.approx(2)
    assert experts(1000, 2, 64, 128, 8, gated=False).flop()[0] == 2 * 2000 * 2 * 64 * 128


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["A100-SXM4-80GB", "H100-SXM5-80GB", "B200-SXM-180GB", "T4"])
def test_times_are_finite_and_above_what_physics_allows(name, family):
    device = catalog.accelerator(name)
    for skew in (0.0, 1.2):
        dtype = "float16" if name == "T4" else "bfloat16"  # the kernels multiply on matrix units
        work = experts(2.0 ** np.arange(15), 8, 4096, 1536, 128, 4.0, dtype, skew=skew, family=family)
        found = model.predict(work, device).seconds
        assert np.isfinite(found).all()
        assert (found >= work.flop() / rate(dtype, device)).all()
        assert (found >= work.weights() / device.memory_bandwidth).all()


def test_few_tokens_are_bound_by_weights_and_many_by_computing():
    few, many = experts(64, 8, 4096, 1536, 128), experts(32768, 8, 4096, 1536, 128)
    assert model.predict(few, H100).limit[0] == Limit.MEMORY
    assert model.predict(many, H100).limit[0] == Limit.COMPUTE
    assert model.predict(experts(1, 1, 64, 64, 8), H100).limit[0] == Limit.LAUNCH


def test_kernels_that_compute_the_pairs_of_others_take_longer():
    sizes = (16384, 8, 4096, 1536, 128, 8)
    skipping, computing = experts(*sizes), experts(*sizes, skips=False)
    assert model.predict(computing, H100).seconds > 3 * model.predict(skipping, H100).seconds


def test_padding_by_hand():
    work = experts(128, 8, 4096, 1536, 128)  # 8 tokens for every expert
    assert model.tiles(work).rows[0] == 16
    assert model.padded(work, np.array([16.0]))[0] == pytest.approx(128 * 16)


@pytest.mark.parametrize("mean", [4, 20, 64, 256])
def test_tokens_that_choose_by_chance_fill_tiles_as_draws_do(mean):
    """Against draws: where the mean load is a whole tile, half of the experts need another."""
    tokens, chosen, count, rows = mean * 32, 4, 128, 64.0
    even, chance = (experts(tokens, chosen, 2880, 2880, count, family="marlin", chance=way) for way in (False, True))
    drawn = np.random.default_rng(1).poisson(mean, 100_000)
    expected = count * rows * np.ceil(np.maximum(drawn, 1) / rows).mean()
    assert model.padded(chance, np.array([rows]))[0] == pytest.approx(expected, rel=0.05)
    assert model.padded(even, np.array([rows]))[0] == count * rows * np.ceil(mean / rows)
    assert chance.active()[0] == pytest.approx(even.active()[0])
    load, each = chance.loads()
    assert (load * each).sum() == pytest.approx(chance.pairs()[0], rel=0.02)


def test_tiles_follow_the_tokens_that_arrive():
    few, many = experts(128, 8, 4096, 1536, 128, 8), experts(32, 8, 4096, 1536, 128, 64)
    assert few.local()[0] == 16
    assert few.arriving()[0] == 128
    assert model.tiles(few).rows[0] == 64  # more tokens come here than experts are here
    assert many.local()[0] == 2
    assert many.arriving()[0] == 4
    assert model.tiles(many).rows[0] == 64
    narrow = experts(1, 8, 4096, 1536, 128, dtype="float8_e4m3fn")
    assert (model.tiles(narrow).rows[0], model.tiles(narrow).columns[0]) == (64, 128)
    marlin = experts(np.array([1, 128, 1024]), 8, 4096, 1536, 128, family="marlin")
    assert model.tiles(marlin).rows.tolist() == [8, 16, 64]  # mean loads of 1/14, 8.9 and 71 with nine tenths filled
    native = experts(np.array([1, 128, 1024, 4096]), 8, 4096, 1536, 128, family="native")
    assert model.tiles(native).rows.tolist() == [8, 16, 128, 128]


def test_tiles_that_were_looked_for_follow_the_mean_load():
    tokens = np.array([16, 48, 128, 256, 512, 1024])  # rows and columns of vLLM's E=8,N=7168 on H100
    found = model.tiles(experts(tokens, 2, 4096, 7168, 8, tuned=True))
    assert found.rows.tolist() == [16, 32, 64, 64, 64, 128]
    assert found.columns.tolist() == [128, 128, 128, 128, 256, 256]
    assert not found.large.any()
    assert model.tiles(experts(tokens, 2, 4096, 7168, 8)).large.any()


def test_tables_of_tiles_are_those_of_the_engine():
    eight, lengths = np.full(4, 8.0), np.array([1792.0, 3584.0, 7168.0, 14336.0])
    assert tuned("vllm", "H100-SXM5-80GB", eight, lengths).tolist() == [True, True, True, False]
    assert tuned("vllm", "H200-SXM-141GB", eight, lengths).tolist() == [False, True, True, True]
    assert tuned("vllm", "L40S", eight, lengths).tolist() == [False, True, False, False]
    assert tuned("sglang", "H200-SXM-141GB", eight, lengths).tolist() == [False, False, True, False]
    for stack, device in (("", "H100-SXM5-80GB"), ("orca", "H100-SXM5-80GB"), ("vllm", "V100-SXM2-32GB")):
        assert not tuned(stack, device, eight, lengths).any()
    named = {name for known in tables() for of_devices in known.values() for name in of_devices}
    assert named <= set(catalog.accelerators())


def test_tiles_that_were_looked_for_meet_what_was_measured():
    """Mixtral-8x7B halved, on an H100 (aiconfigurator, SGLang 0.5.10): milliseconds by tokens."""
    measured = {4: 0.488, 16: 0.496, 64: 0.505, 256: 0.538}
    tokens = np.array(list(measured), float)
    calls = {is_tuned: experts(tokens, 2, 4096, 7168, 8, warm=True, tuned=is_tuned) for is_tuned in (False, True)}
    found = {is_tuned: model.predict(work, H100).seconds * 1e3 for is_tuned, work in calls.items()}
    error = {key: np.abs(np.log(times / list(measured.values()))) for key, times in found.items()}
    assert error[True].max() < 0.15
    assert error[False][1:].min() > 0.25


def test_rows_that_forbid_wide_loads_take_longer():
    aligned, ragged = experts(4096, 8, 4096, 240, 128), experts(4096, 8, 4096, 232, 128)
    assert model.predict(ragged, H100).seconds > 1.1 * model.predict(aligned, H100).seconds


def test_marlin_gains_nothing_from_later_matrix_instructions():
    work = experts(16384, 2, 4096, 14336, 8, family="marlin")
    h100, b200 = (model.predict(work, catalog.accelerator(n)).seconds[0] for n in ("H100-SXM5-80GB", "B200-SXM-180GB"))
    assert b200 > 0.7 * h100  # the peak is 2.3 times as high


def test_native_kernels_multiply_at_the_rate_of_what_tokens_are_cast_to():
    """Rows of the aiconfigurator tables (SGLang 0.5.10), 384 experts of 7168 x 3072, 6 for each token, tokens in 8
    bits; their loads follow a power law of 1.01."""
    b200 = catalog.accelerator("B200-SXM-180GB")
    for tokens, seconds in {16: 576e-6, 16384: 7448e-6}.items():
        work = experts(tokens, 6, 7168, 3072, 384, dtype="float8_e4m3fn", skew=1.01, family="native", warm=True)
        work = replace(work, weight_bytes=np.array([0.5 + 1 / 32]))
        assert model.predict(work, b200).seconds[0] == pytest.approx(seconds, rel=0.25)
    eight, sixteen, marlin = (
        model.predict(experts(65536, 4, 2880, 2880, 128, dtype=dtype, weight_dtype="float4_e2m1", family=family), b200)
        for dtype, family in (("float8_e4m3fn", "native"), ("bfloat16", "native"), ("bfloat16", "marlin"))
    )
    assert 1.3 * eight.seconds[0] < sixteen.seconds[0] < marlin.seconds[0] / 2


def test_kernels_that_stand_for_marlin_on_other_devices_are_less_sure():
    """There another kernel runs, which nobody measured for us; on an NVIDIA GPU both families were fitted."""
    work = {
        name: experts(1, 4, 3072, 3072, 32, family=name, weight_dtype="float4_e2m1") for name in ("marlin", "triton")
    }
    mi300x, h100 = catalog.accelerator("MI300X"), H100
    widths = {(name, on.name): price_calls(own, on).spread[0] for name, own in work.items() for on in (mi300x, h100)}
    assert widths["marlin", "MI300X"] > widths["triton", "MI300X"] + 0.1
    assert widths["marlin", h100.name] == widths["triton", h100.name]


def test_measured_times_are_met():
    """Single rows of the aiconfigurator tables (SGLang 0.5.10), 256 experts of 7168 x 2048, 8 for each token."""
    rows = {("triton", 64): 7621.1e-6, ("triton", 16384): 51381.7e-6, ("marlin", 64): 3546.5e-6}
    names = {"triton": "H100-SXM5-80GB", "marlin": "A100-SXM4-80GB"}
    for (family, tokens), seconds in rows.items():
        work = experts(tokens, 8, 7168, 2048, 256, family=family, warm=True)
        if family == "marlin":
            work = replace(work, weight_bytes=np.array([0.5 + 2 / 128]))
        found = model.predict(work, catalog.accelerator(names[family])).seconds[0]
        assert found == pytest.approx(seconds, rel=0.4)


def test_a_device_without_bandwidth_is_refused():
    with pytest.raises(InputError, match="no memory bandwidth"):
        model.predict(experts(1, 1, 64, 64, 8), Accelerator("thing", peak_flops={"bfloat16": 1e12}))


def test_constants_say_what_they_were_fitted_to():
    found = document("moe")
    assert found["provenance"]["inputs"] == list(fit_physical_moe.INPUTS)
    assert all(set(row) <= set(found["units"]) for row in found["constants"]["grouped"].values())
    assert 0 < found["spread"]["grouped"]["seen"] <= found["spread"]["grouped"]["unseen"]


def test_a_device_with_more_of_the_load_has_more_of_the_pairs():
    """Shares of a power law's heaviest device: above the mean, and of one expert at most all tokens."""
    work = experts(16384, 8, 4096, 1536, 128, np.array([2.0, 8, 32, 128]), skew=1.2)
    assert (work.share() > 1 / work.parts).all()
    assert (np.diff(work.share()) <= 0).all()
    assert (work.pairs() * work.share() <= work.tokens * work.local() * (1 + 1e-9)).all()
    assert (work.arriving() <= work.tokens).all()
    assert (work.fullest() >= work.pairs() / work.experts).all()
    assert (work.fullest() <= work.tokens).all()
    assert experts(1024, 8, 4096, 1536, 128).fullest()[0] == 64


def test_products_of_a_trace():
    layer = [(1000, 64), (8, 192, 64), (8, 64, 96), (1000, 2), (1000, 2)]
    types = ["bfloat16", "bfloat16", "bfloat16", "float32", "int32"]
    trace = one("vllm::outplace_fused_experts", layer, (1000, 64), types)
    work = of(trace, np.array([0]), np.array([DTYPE_CODE["bfloat16"]]))
    assert work.flop() == trace.operators.flop
    assert (work.tokens, work.topk, work.local(), work.gated) == (1000, 2, 8, True)
    assert work.weights() == 8 * 3 * 64 * 96 * 2
    narrow = one("sglang::inplace_fused_experts", layer, (1000, 64), ["bfloat16", *["float8_e4m3fn"] * 2, *types[3:]])
    work = of(narrow, np.array([0]), np.array([DTYPE_CODE["bfloat16"]]))
    assert (work.weight_bytes, work.token_bytes, work.dtype) == (1, 1, DTYPE_CODE["float8_e4m3fn"])
    packed = [(1000, 64), (8, 192, 32), (8, 64, 48), (1000, 2)]
    marlin = one("vllm::fused_marlin_moe", packed, (1000, 64), ["bfloat16", "uint8", "uint8", "int32"])
    work = of(marlin, np.array([0]), np.array([DTYPE_CODE["bfloat16"]]))
    assert (work.weight_bytes, work.token_bytes, FAMILIES[work.family[0]]) == (0.5, 2, "marlin")


def test_a_grouped_product_is_a_product_for_each_expert() -> None:
    shapes = [(4096, 2048), (16, 2048, 1024), (16,)]
    trace = one("aten::_grouped_mm", shapes, (4096, 1024), ["bfloat16"] * 2 + ["int32"])
    work, times = products_of(trace, np.array([0]), np.array([DTYPE_CODE["bfloat16"]]))
    assert (work.m, work.n, work.k, work.batch, times) == (256, 1024, 2048, 16, 1)
    assert work.flop() == trace.operators.flop == 2 * 4096 * 2048 * 1024
    gradient = one(
        "aten::_grouped_mm", [(2048, 4096), (4096, 1024), (16,)], (16, 2048, 1024), ["bfloat16"] * 2 + ["int32"]
    )
    work, _ = products_of(gradient, np.array([0]), np.array([DTYPE_CODE["bfloat16"]]))
    assert (work.m, work.n, work.k, work.batch) == (2048, 1024, 256, 16)
    seconds = price(PricingJob(trace, H100, trace, None), "physical").seconds[0]
    layer = model.predict(experts(4096, 1, 2048, 1024, 16, gated=False), H100).seconds[0]
    assert trace.operators.flop[0] / rate("bfloat16", H100) < seconds < 0.6 * layer


def test_shapes_that_are_not_known_are_priced_by_their_work():
    trace = one("vllm::moe_forward", [(1000, 64), (1000, 8)], (1000, 64))
    work = of(trace, np.array([0]), np.array([DTYPE_CODE["bfloat16"]]))
    assert np.isfinite(model.predict(work, H100).seconds).all()
