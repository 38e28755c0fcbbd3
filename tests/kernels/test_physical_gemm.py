"""The physical model of matrix products."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import triosim
from tests.data import shared
from tests.effort import calls
from triosim.core.dtypes import DTYPE_CODE
from triosim.core.errors import InputError
from triosim.hardware import catalog
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import UNITS, rate
from triosim.kernels.classes import MATRIX, classify
from triosim.kernels.estimate import Limit
from triosim.kernels.physical import gemm as physical
from triosim.kernels.physical.gemm import ENGINES, TUNED, engine, load, predict, silicon, spread, sustained
from triosim.kernels.work.gemm import gemm, of
from triosim.operators import Call
from triosim.operators.linear import product

H100 = catalog.accelerator("H100-SXM5-80GB")

SIZES = st.integers(1, 20000)


def seconds(m, n, k, dtype="bfloat16", batch=1.0, device=H100, **options):
    return predict(gemm(m, n, k, dtype, batch, **options), device, load().constants).seconds


def test_flop_and_bytes_are_counted():
    work = gemm(3, 5, 7, "bfloat16", 2)
    assert work.flop() == [2 * 2 * 3 * 5 * 7]
    assert work.bytes() == [2 * 2 * (3 * 7 + 7 * 5 + 3 * 5)]
    assert gemm(3, 5, 7, "float8_e4m3fn").bytes() == [3 * 7 + 7 * 5 + 2 * 3 * 5], "C has 16 bits"
    assert len(gemm([1, 2], 3, 4, "float32")) == 2


def test_one_tile_by_hand():
    """Without launch, prologue, chain and stores, one tile is FLOP over a unit's part of the peak."""
    c = replace(
        load().constants["tensor"], menus=(((128, 128),),), menus_batched=(((128, 128),),), launch_s=0.0,
        prologue_s=0.0, latency_s=0.0, epilogue=math.inf, memory=1e9, joule=1e-30, tile=0.0, split_s=1.0, reach=0.5,
    )  # fmt: skip
    found = predict(gemm(128, 128, 4096, "bfloat16"), H100, {"tensor": c})
    assert found.seconds[0] == pytest.approx(2 * 128 * 128 * 4096 / (0.5 * 989.4e12 / 132), rel=1e-6)
    assert found.limit[0] == Limit.COMPUTE
    twice = predict(gemm(128 * 264, 128, 4096, "bfloat16"), H100, {"tensor": c}).seconds
    assert twice[0] == pytest.approx(2 * found.seconds[0], rel=1e-6), "two whole waves"


def test_large_products_run_at_what_power_allows():
    chip = silicon(H100, "bfloat16")
    c = load().constants["tensor"]
    cap = sustained(chip, c, physical.REFERENCE_WIDTH["tensor"])
    assert cap < c.reach * chip.peak
    rate = 2 * 16384**3 / seconds(16384, 16384, 16384)[0]
    assert 0.8 * cap < rate < 1.2 * cap, "the cap is that of 128 x 128 tiles; larger ones move less"
    assert sustained(replace(chip, tdp=2 * chip.tdp), c, 2048.0) > cap


def test_a_cycle_of_tf32_draws_what_one_of_16_bits_does():
    """L4 reaches 25.7 TFLOP/s in TF32 and 59.4 in bfloat16 (zzc0721/torch-performance-test-data, issue 120)."""
    l4, c = catalog.accelerator("L4"), load().constants["tensor"]
    wide, half = silicon(l4, "tfloat32"), silicon(l4, "bfloat16")
    assert physical.joules(wide, c, 2048.0) == pytest.approx(2 * physical.joules(half, c, 2048.0), rel=0.01)
    assert not physical.halved(wide, 2048.0), "its units are whole"
    assert big("tfloat32", l4) == pytest.approx(big("bfloat16", l4) / 2, rel=0.1)
    assert physical.halved(silicon(catalog.accelerator("RTX-4090"), "tfloat32"), 2048.0)


def test_cards_for_playing_run_above_the_clock_of_their_datasheet():
    c = load().constants["tensor"]
    for name, above in (
        ("RTX-3090", True),
        ("RTX-5090", True),
        ("A10G", False),
        ("L40", False),
        ("RTX-6000-Ada", False),
    ):
        factor = physical.headroom(silicon(catalog.accelerator(name), "bfloat16"), c, 2048.0)
        assert factor == (c.boost if above else 1.0), name
    assert 1.0 < c.boost < 1.2


def test_vector_units_of_more_lanes_draw_less_for_an_operation():
    """An A40 multiplies float32 at 23.7 TFLOP/s (issue 185 of the same), an H100 PCIe at 37.8 (issue 112)."""
    c = load().constants["simt"]
    chip = silicon(catalog.accelerator("A40"), "float32")
    assert physical.joules(chip, c, 128.0) < physical.joules(replace(chip, units=2 * chip.units), c, 128.0)
    assert big("float32", catalog.accelerator("A40")) == pytest.approx(23.7e12, rel=0.1)
    assert big("float32", catalog.accelerator("H100-PCIe-80GB")) == pytest.approx(37.8e12, rel=0.1)


def test_batches_whose_rows_are_not_aligned_run_on_the_vector_units():
    """Heads of 108 take an A100's matrix units away; 104 and 112 do not, nor does a single product."""
    a100 = catalog.accelerator("A100")
    m, n, k = (np.array([float(size)] * 4) for size in (2048, 2048, 0))
    k[:] = [104, 108, 112, 108]
    batch = np.array([128.0, 128.0, 128.0, 1.0])
    found = seconds(m, n, k, "float16", batch, a100)
    assert found[1] > 4 * found[[0, 2]].max()
    vector = seconds(m[:1], n[:1], k[1:2], "float32", 128.0, a100)[0]
    assert found[1] == pytest.approx(vector, rel=0.05), "its bytes are fewer"
    values = seconds(m[:2], np.array([108.0, 112.0]), m[:2], "float16", 128.0, a100)
    assert values[0] > 4 * values[1]
    amd = seconds(m, n, k, "float16", batch, catalog.accelerator("MI300X"))
    assert amd[1] < 1.2 * amd[2]


def test_limits():
    work = gemm([16384, 1, 1], [16384, 16384, 32], [16384, 16384, 32], "bfloat16")
    assert predict(work, H100, load().constants).limit.tolist() == [Limit.COMPUTE, Limit.MEMORY, Limit.LAUNCH]


@given(SIZES, SIZES, SIZES, st.sampled_from(["float32", "bfloat16", "float8_e4m3fn", "float4_e2m1", "int8"]))
def test_never_faster_than_the_datasheet(m, n, k, dtype):
    work = gemm(m, n, k, dtype)
    found = predict(work, H100, load().constants).seconds
    assert np.isfinite(found).all()
    assert found >= work.flop() / rate(dtype, H100)
    assert found >= work.bytes() / H100.memory_bandwidth, "a cold call reads everything from memory"


@given(SIZES, SIZES, SIZES, st.integers(1, 8))
def test_more_batches_take_longer_and_a_warm_call_no_longer_than_a_cold_one(m, n, k, factor):
    assert seconds(m, n, k, batch=2.0 * factor) >= seconds(m, n, k, batch=2.0) * (1 - 1e-9)
    assert seconds(m, n, k, warm=True) <= seconds(m, n, k)


def test_a_cast_costs_a_kernel_and_its_bytes():
    assert seconds(8, 512, 512, "float8_e4m3fn", casts=True) > seconds(8, 512, 512, "float8_e4m3fn")


def test_rows_do_not_depend_on_their_neighbours():
    random = np.random.default_rng(1)
    m, n, k = (np.exp2(random.uniform(0, 13, 20000)).round() for _ in range(3))
    whole = seconds(m, n, k)
    assert seconds(m[-3:], n[-3:], k[-3:]) == pytest.approx(whole[-3:], rel=1e-12)


def test_mixed_types_are_priced_each_with_its_peak():
    bf16, fp8 = gemm(8192, 8192, 8192, "bfloat16"), gemm(8192, 8192, 8192, "float8_e4m3fn")
    both = physical.Gemm(*(np.concatenate([getattr(w, n) for w in (bf16, fp8)]) for n in bf16.__dataclass_fields__))
    found = predict(both, H100, load().constants).seconds
    assert found[0] == seconds(8192, 8192, 8192)[0]
    assert found[1] < 0.75 * found[0]


def test_what_is_not_on_the_datasheet_has_a_default():
    sparse = Accelerator("x", peak_flops={"bfloat16": 1e15}, memory_bandwidth=3e12)
    assert 1 < seconds(8192, 8192, 8192, device=sparse)[0] / (2 * 8192**3 / 1e15) < 4


def test_no_bandwidth_is_an_error():
    with pytest.raises(InputError, match="has no memory bandwidth"):
        seconds(1, 1, 1, device=Accelerator("x", peak_flops={"bfloat16": 1e15}))
    with pytest.raises(InputError, match="no compute peak"):
        seconds(1, 1, 1, device=Accelerator("x", memory_bandwidth=1e12))


def test_engines():
    assert [engine(DTYPE_CODE[n]) for n in ("float32", "tfloat32", "int8", "float4_e2m1")] == list(UNITS)
    assert (*UNITS, TUNED) == ENGINES


def test_intervals_are_wider_on_devices_of_unseen_families():
    work = gemm([64, 8192], 4096, 4096, "bfloat16")
    limit = predict(work, H100, load().constants).limit
    seen = spread(work, limit, H100, load())
    unseen = spread(work, limit, replace(H100, architecture="Rubin"), load())
    assert (seen > 0).all()
    assert (seen <= unseen).all()


def call(name, roles, inputs, outputs, backward=False, kind="linear"):
    return Call(name, backward, kind, roles, inputs, outputs, {})


@pytest.mark.parametrize(("one", "flop", "expected"), [
    (call("linear", ("input", "weight", "bias"), ((2, 3, 7), (5, 7), (5,)), ((2, 3, 5),)), 0, (6, 5, 7, 1, 1)),
    (call("addmm", ("self", "mat1", "mat2"), ((5,), (6, 7), (7, 5)), ((6, 5),)), 0, (6, 5, 7, 1, 1)),
    (call("bmm", ("self", "mat2"), ((4, 6, 7), (4, 7, 5)), ((4, 6, 5),), kind="matmul"), 0, (6, 5, 7, 4, 1)),
    (call("baddbmm", ("self", "batch1", "batch2"), ((4, 6, 5), (4, 6, 7), (4, 7, 5)), ((4, 6, 5),), kind="matmul"), 0,
     (6, 5, 7, 4, 1)),
    (call("matmul", ("self", "other"), ((2, 3, 7), (7, 5)), ((2, 3, 5),), kind="matmul"), 0, (6, 5, 7, 1, 1)),
    (call("mm", ("grad_output", "input", "weight"), ((6, 5), (6, 7), (5, 7)), ((6, 7), (5, 7)), True), 840,
     (6, 7, 5, 1, 2)),
])  # fmt: skip
def test_shapes_of_operators(one, flop, expected):
    assert product(one, flop) == expected


def test_products_of_a_trace_do_the_counted_work():
    trace = triosim.model("gpt2")
    classes = classify(trace, H100)
    rows = np.flatnonzero(classes.group == MATRIX)
    work, times = of(trace, rows, classes.dtype[rows])
    assert work.flop() * times == pytest.approx(trace.operators.flop[rows], rel=1e-9)
    assert {768.0, 3072.0} <= set(work.n)


def test_a_product_that_shapes_do_not_tell_keeps_its_work():
    odd = call("einsum", ("", ""), ((4, 5, 6), (4, 6, 7)), ((4, 5, 7),), kind="matmul")
    m, n, k, batch, times = product(odd, 1680.0)
    assert 2 * m * n * k * batch * times == pytest.approx(1680)
    assert m == n == k


def test_many_products_are_priced_at_once():
    random = np.random.default_rng(0)
    m, n, k = (np.exp2(random.uniform(0, 14, 100_000)).round() for _ in range(3))
    work = gemm(m, n, k, "bfloat16")
    constants = load().constants
    assert calls(lambda: predict(work, H100, constants)) < len(m) / 10


def test_the_shipped_constants_predict_a_sample_of_the_measurements():
    shared("kernels/gemm.parquet")
    from validation.fit import physical_gemm as fitting

    rows = fitting.even(fitting.served("bfloat16"), 300, 5)
    assert fitting.mape(fitting.errors(rows, load().constants["tensor"])) < 0.15


def test_the_script_finds_the_shipped_constants_again():
    shared("kernels/gemm.parquet")
    from validation.fit import physical_gemm as fitting

    found = fitting.fit_constants(fitting.even(fitting.served("bfloat16")), fitting.TENSOR, **fitting.how("tensor"))
    for name in fitting.FREE["tensor"]:
        assert getattr(found, name) == pytest.approx(getattr(load().constants["tensor"], name), rel=0.01), name


@pytest.mark.parametrize(("name", "kind", "wider"), [("narrow", "fp8", "tensor"), ("fourbit", "nvfp4", "narrow")])
def test_the_script_finds_the_constants_of_narrow_types_again(name, kind, wider):
    shared("kernels/gemm.parquet")
    from validation.fit import physical_gemm as fitting

    found = fitting.fit_constants(
        fitting.even(fitting.served(kind)), fitting.begin(name, load().constants[wider]), **fitting.how(name)
    )
    for constant in fitting.FREE[name]:
        assert getattr(found, constant) == pytest.approx(getattr(load().constants[name], constant), rel=0.01), constant


def test_forty_measured_kernels_of_a_device_left_out():
    """Constants that never saw an H100, then 40 of its kernels: at most 11 %, and the interval covers the others."""
    shared("kernels/gemm.parquet")
    from validation.judge import calibration

    found = calibration.judge(*calibration.left_out(H100.name), H100, 40, 3)
    assert found.without < 0.18
    assert found.error < 0.11
    assert 0.8 < found.covered < 0.98


def test_every_constant_has_a_unit_and_a_source():
    source = resources.files("triosim.kernels") / "data" / "physical" / "gemm.json"
    found = json.loads(source.read_text(encoding="utf-8"))
    assert all(set(row) == set(found["units"]) for row in found["constants"].values())
    assert found["provenance"]["inputs"] == ["kernels/gemm.parquet", "kernels/fp32_ops.parquet"]
    assert set(found["spread"]) == set(ENGINES)


def vector(**changes):
    """Constants of vector units with nothing but tiles and steps: one tile, no launch, no power limit, no memory."""
    tile = (((128, 128),),)
    plain = replace(
        load().constants["simt"], menus=tile, menus_batched=tile, launch_s=0.0, prologue_s=0.0, latency_s=0.0, tile=0.0,
        epilogue=math.inf, memory=1e9, joule=1e-30, reach=1.0, stream=0.0,
    )  # fmt: skip
    return {"simt": replace(plain, **changes)}


V100 = catalog.accelerator("V100-PCIe-32GB")


def test_a_block_alone_waits_at_every_step_and_blocks_together_hide_it():
    """By hand: a step of a 128 x 128 tile is 256 cycles of 64 lanes; alone it takes 25 more, two at a time do not."""
    cycle = 2 * 128 * 128 / (V100.peak("float32") / V100.compute_units)
    step, k = 25 / V100.clock_hz, 1000
    units = V100.compute_units
    one, two, three = (
        predict(gemm(128 * units * count, 128, k, "float32"), V100, vector(step=25.0, resident=2.0)).seconds[0]
        for count in (1, 2, 3)
    )
    assert one == pytest.approx(k * (cycle + step), rel=1e-6)
    assert two == pytest.approx(k * 2 * cycle, rel=1e-6)
    assert three == pytest.approx(k * 3 * cycle, rel=1e-6)
    alone = predict(gemm(128 * units * 2, 128, k, "float32"), V100, vector(step=25.0, resident=0.0)).seconds[0]
    assert alone == pytest.approx(2 * one, rel=1e-6), "one block at a time: the second waits again"


def test_the_sum_is_split_only_where_few_blocks_would_run():
    narrow, wide = gemm(128, 128, 8192, "float32"), gemm(128, 128 * 40, 8192, "float32")
    never, always = vector(split_under=0.0), vector(split_under=1.0)
    at_an_eighth = vector(split_under=0.125)
    for work, same in ((narrow, always), (wide, never)):
        found = predict(work, V100, at_an_eighth).seconds
        assert found == predict(work, V100, same).seconds
    assert predict(narrow, V100, always).seconds < 0.3 * predict(narrow, V100, never).seconds


def test_a_power_limit_of_vector_units_is_sharp():
    chip, c = silicon(V100, "float32"), load().constants["simt"]
    limits = [sustained(replace(chip, tdp=tdp), c, 128.0) for tdp in (1e-3, 70.0, 250.0, 5000.0)]
    assert limits == sorted(limits)
    assert limits[0] == pytest.approx(1e-3 / 70 * limits[1], rel=1e-3), "far below the peak, FLOP/s follow the watts"
    assert limits[-1] == pytest.approx(c.reach * chip.peak, rel=1e-3)


def test_libraries():
    """One menu is that of every device; of several the family's; where none is known, each tile is as likely."""
    c = load().constants["simt"]
    assert c.library("Pascal", True) == (((64, 128),),)
    assert c.library("Ada", True) == c.library("Ampere", True) == (((128, 128),),)
    unknown = c.library("", True)
    assert len(unknown) == len({tile for menu in c.menus_batched for tile in menu}) > 3
    assert all(len(menu) == 1 for menu in unknown)
    assert c.library("Pascal", False) == c.library("", False) == c.menus
    own = (((32, 32),),)
    assert replace(c, menus_batched=own).library("Volta", True) == own
    work = gemm(96, 96, 96, "float32", 500.0)
    each = [predict(work, V100, {"simt": replace(c, menus_batched=(menu,))}).seconds[0] for menu in c.library("", True)]
    stranger = replace(V100, architecture="Unheard-of")
    assert predict(work, stranger, {"simt": c}).seconds[0] == pytest.approx(np.mean(each))


def test_a_judged_device_does_not_lend_its_own_library():
    from validation.fit import physical_gemm as fitting

    devices = ["P100-PCIe-16GB", "T4", "V100-PCIe-32GB", "A100-PCIe-40GB"]
    for name in devices:
        c = fitting.simt([other for other in devices if other != name])
        family = physical.family_of(catalog.accelerator(name))
        assert fitting._SIMT_BATCHED[family] not in c.menus_batched
        assert (family in dict(c.families)) == (family in ("Volta", "Turing")), "those two have one compute capability"


def test_the_script_finds_the_constants_of_vector_units_again():
    shared("kernels/fp32_ops.parquet")
    from validation.fit import physical_gemm as fitting

    rows = fitting.join(*(fitting.even(fitting.isolated(operator)) for operator in ("linear", "bmm")))
    prior = fitting.vector(np.unique(rows.device).tolist())
    found = fitting.fit_constants(rows, prior, fitting.FREE["simt"], fitting.SIMT_WIDTH)
    shipped = replace(load().constants["simt"], boost=1.0)
    for name in fitting.MEANING:
        assert getattr(found, name) == pytest.approx(getattr(shipped, name), rel=0.01), name
    assert (found.menus, found.menus_batched, found.families) == (
        shipped.menus, shipped.menus_batched, shipped.families
    )  # fmt: skip


@pytest.mark.parametrize(("device", "worst"), [
    ("P100-PCIe-16GB", 0.25), ("T4", 0.19), ("V100-PCIe-32GB", 0.14), ("A100-PCIe-40GB", 0.17),
])  # fmt: skip
def test_float32_on_a_device_left_out(device, worst):
    shared("kernels/fp32_ops.parquet")
    from validation.fit import physical_gemm as fitting

    rows = fitting.join(*(fitting.even(fitting.isolated(operator), 200) for operator in ("linear", "bmm")))
    others, left = rows.without(device), rows.by_device()[device]
    prior = fitting.vector(np.unique(others.device).tolist(), device)
    found = fitting.fit_constants(others, prior, fitting.FREE["simt"], fitting.SIMT_WIDTH)
    assert fitting.mape(fitting.errors(left, found)) < worst


def test_fully_connected_layers_of_vgg13_on_h100():
    """No constant saw them.  Measured: 2.534 ms forward and 4.848 ms backward at batch 512."""
    from triosim.sources.readers.triosim_csv import TriosimCsv
    from triosim.transform.rescale import rescale

    recorded = TriosimCsv().read(shared("triosim-h100", "vgg13"))

    def predicted(trace):
        classes = classify(trace, H100)
        rows = np.flatnonzero(classes.group == MATRIX)
        work, times = of(trace, rows, classes.dtype[rows])
        return rows, predict(work, H100, load().constants).seconds * times

    rows, small = predicted(recorded)
    _, large = predicted(rescale(recorded, 512))
    measured = {"forward": 2.534e-3, "backward": 4.848e-3}
    anchored = recorded.operators.device_s[rows] * large / small
    backward = recorded.operators.phase[rows] == 1
    for phase, at in (("forward", ~backward), ("backward", backward)):
        assert large[at].sum() == pytest.approx(measured[phase], rel=0.1), "from shapes alone"
        assert anchored[at].sum() == pytest.approx(measured[phase], rel=0.25)


def big(dtype, device, **options):
    """FLOP/s of a large product."""
    return 2 * 8192.0**3 / seconds(8192, 8192, 8192, dtype, device=device, **options)[0]


@pytest.mark.parametrize(
    "name", ["P100-PCIe-16GB", "V100-SXM2-16GB", "A100-SXM4-80GB", "L40S", "MI300X", "B200-SXM-180GB"]
)
@pytest.mark.parametrize("dtype", [
    "float64", "float32", "tfloat32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1", "int8",
    "int4", "uint8", "int32", "complex64",
])  # fmt: skip
def test_every_type_runs_below_its_peak_and_not_far_below(name, dtype):
    device = catalog.accelerator(name)
    peak = rate(dtype, device)
    assert 0.2 * peak < big(dtype, device) < peak


def test_narrower_types_are_faster_where_the_hardware_has_them():
    b200, a100 = catalog.accelerator("B200-SXM-180GB"), catalog.accelerator("A100-SXM4-80GB")
    order = ("float64", "float32", "tfloat32", "bfloat16", "float8_e4m3fn", "float4_e2m1")
    rates = [big(dtype, b200) for dtype in order]
    assert rates == sorted(rates)
    assert big("int8", a100) > 1.3 * big("float16", a100)
    assert big("float16", a100) == big("bfloat16", a100)


def test_double_precision_of_consumer_parts_is_as_slow_as_the_datasheet_says():
    l40s = catalog.accelerator("L40S")
    assert big("float64", l40s) == pytest.approx(l40s.peak("float64"), rel=0.3)
    assert big("float32", l40s) > 20 * big("float64", l40s)


def test_without_matrix_units_products_run_on_the_vector_units():
    p100, v100 = catalog.accelerator("P100-PCIe-16GB"), catalog.accelerator("V100-SXM2-16GB")
    assert silicon(v100, "tfloat32").unit == "simt"
    assert big("tfloat32", v100) == big("float32", v100)
    assert big("float16", p100) == pytest.approx(big("float32", p100), rel=0.1), "summed in float32"
    assert big("float16", v100) > 5 * big("float32", v100)
    lone = Accelerator("x", peak_flops={"bfloat16": 1e14}, memory_bandwidth=1e12)
    assert silicon(lone, "bfloat16").unit == "tensor"


@pytest.mark.parametrize("name", ["RTX-3090", "RTX-4090", "RTX-5090", "A10G", "L40", "DGX-Spark-GB10", "RX-7900XTX"])
def test_sixteen_bits_run_on_matrix_units_whatever_their_ratio_to_float32(name):
    """Their datasheets have exactly twice float32's rate.  Measured: 1.5 to 1.9 times 90 % of it (fit_emulation)."""
    device = catalog.accelerator(name)
    assert device.peak("bfloat16") <= 2.05 * device.peak("float32")
    for dtype in ("bfloat16", "float16"):
        assert silicon(device, dtype).unit == "tensor"
        assert big(dtype, device) > 0.6 * device.peak(dtype)


def test_gddr_without_error_correction_gives_products_what_it_takes_elsewhere():
    """One token through a large layer reads its weights; RTX 4090s are 15 % slower with error correction on."""

    def took(device):
        return float(seconds(1, 28672, 4096, "bfloat16", device=device)[0])

    card, server = catalog.accelerator("RTX-4090"), catalog.accelerator("L40S")
    corrected = replace(card, memory_type="GDDR6X ECC")
    assert took(card) / took(corrected) == pytest.approx(0.85, rel=0.02)
    moved = 2 * 28672 * 4096
    assert 0.88 < moved / card.memory_bandwidth / took(card) < 0.95
    assert 0.72 < moved / server.memory_bandwidth / took(server) < 0.82
    spark = catalog.accelerator("DGX-Spark-GB10")
    assert silicon(spark, "bfloat16").bandwidth == spark.memory_bandwidth  # no GDDR


def test_emulated_products_take_as_much_longer_as_was_measured():
    for name, part in (("V100-SXM2-16GB", 0.727), ("P100-PCIe-16GB", 0.727), ("T4", 0.548), ("P40", 0.548)):
        device = catalog.accelerator(name)
        assert big("bfloat16", device) / big("float32", device) == pytest.approx(part, rel=0.05)


def test_quantized_weights_save_bytes_and_no_arithmetic():
    """One row times a large matrix waits for the weights: 4 bits are a quarter of the bytes of 16."""
    one = {stored: seconds(1, 16384, 16384, weights=stored)[0] for stored in (None, "int8", "int4")}
    assert one["int8"] / one[None] == pytest.approx(0.5, abs=0.05)
    assert one["int4"] / one[None] == pytest.approx(0.25, abs=0.05)
    assert big("bfloat16", H100, weights="int4") == pytest.approx(big("bfloat16", H100), rel=0.05)
    assert gemm(3, 5, 7, "bfloat16", weights="int4").bytes() == [2 * 21 + 0.5 * 35 + 2 * 15]
    with pytest.raises(KeyError):
        gemm(3, 5, 7, "bfloat16", weights="nibble")


def test_structured_sparsity_is_faster_where_the_hardware_has_it():
    """Half the arithmetic, and B with half its elements and two bits each; operands are wanted twice as fast."""
    v100 = catalog.accelerator("V100-SXM2-16GB")
    assert big("float16", v100, sparse=True) == big("float16", v100)
    for dtype in ("bfloat16", "float8_e4m3fn", "int8"):
        assert 1.2 * big(dtype, H100) < big(dtype, H100, sparse=True) < 2.0 * big(dtype, H100)
    bytes_bound = seconds(1, 16384, 16384, sparse=True)[0] / seconds(1, 16384, 16384)[0]
    assert bytes_bound == pytest.approx((2 + 0.25) / 2 / 2, abs=0.03)
    mixed = [gemm(4096, 4096, 4096, "bfloat16", sparse=flag) for flag in (False, True)]
    both = physical.Gemm(*(np.concatenate([getattr(w, n) for w in mixed]) for n in mixed[0].__dataclass_fields__))
    found = predict(both, H100, load().constants).seconds
    assert found.tolist() == [predict(w, H100, load().constants).seconds[0] for w in mixed]
    wide = spread(both, np.zeros(2, np.int8), H100, load())
    assert wide[1] == pytest.approx(math.hypot(wide[0], math.log(2) / 2)), "never measured"


def test_a_weight_is_read_as_the_trace_stores_it():
    trace = triosim.model("gpt2")
    classes = classify(trace, H100)
    rows = np.flatnonzero(classes.group == MATRIX)
    dtype = classes.dtype[rows]
    usual, _ = of(trace, rows, dtype)
    assert (usual.b_bytes == usual.a_bytes).all()
    types = trace.values.dtype.copy()
    weights = trace.operators.inputs.take(rows[:1])
    types[weights.values] = DTYPE_CODE["int8"]
    narrow, _ = of(replace(trace, values=replace(trace.values, dtype=types)), rows[:1], dtype[:1])
    assert narrow.b_bytes.tolist() == [1.0]
    assert narrow.a_bytes.tolist() == usual.a_bytes[:1].tolist(), "the type that is multiplied"


@pytest.mark.parametrize("sizes", [(0, 64, 64), (64, 0, 64), (64, 64, 0)])
def test_an_empty_product_takes_a_launch(sizes):
    """Tensors without elements, as experts whom nobody asks have, made a product that never ends."""
    work = gemm(*([float(size)] for size in sizes), "bfloat16")
    seconds = predict(work, catalog.accelerator("H100-SXM5-80GB"), load().constants).seconds[0]
    assert 1e-6 < seconds < 1e-5


def _seconds(device: str, m: float, n: float, k: float, dtype: str = "float8_e4m3fn", **given: bool) -> float:
    work = gemm(m, n, k, dtype, **given)
    return float(physical.predict(work, catalog.accelerator(device), physical.load().constants).seconds[0])


def test_rows_beyond_the_end_of_a_tile_take_time_on_hopper_where_an_engine_brings_its_kernels() -> None:
    """H100 took 1.9 to 2.0 times as long with 513 rows as with 512, 1.4 to 1.5 with 2,049 as with 2,048."""
    for rows, least, most in ((512, 1.5, 2.2), (2048, 1.15, 1.6)):
        ratio = _seconds("H100-SXM5-80GB", rows + 1, 14336, 8192) / _seconds("H100-SXM5-80GB", rows, 14336, 8192)
        assert least < ratio < most
    for device, library in (("H100-SXM5-80GB", True), ("B200-SXM-180GB", False), ("MI300X", False)):
        ratio = _seconds(device, 2049, 14336, 8192, library=library) / _seconds(device, 2048, 14336, 8192)
        assert ratio < 1.15
    one, full = (_seconds("H100-SXM5-80GB", rows, 14336, 8192) for rows in (33, 64))
    assert one == pytest.approx(full, rel=0.03), "blocks of several columns share the loads of a single row of tiles"


def test_tiles_in_lines_read_an_operand_again_for_each_line_of_the_other() -> None:
    """132 units, 64 tiles down and 512 across: two columns run at one time, so that A is read 256 - 8 times."""
    along = physical.TileDispatch((), down=False, fills=False)
    down, across = np.array([64.0, 512.0]), np.array([512.0, 64.0])
    a, b = physical._again(down, across, 132.0, 128, 128, along)
    assert a.tolist() == [math.ceil(512 * 64 / 132) - 1, 0.0]
    assert b.tolist() == [0.0, math.ceil(512 * 64 / 132) - 1], "along the side of fewer tiles"
    a, b = physical._again(down, across, 132.0, 128, 128, replace(along, down=True))
    assert a.tolist() == [math.ceil(512 * 64 / 132) - 1, across[1] - 1], "always down"
    assert b.tolist() == [0.0, 0.0]
    squares = physical._again(down, across, 132.0, 128, 128, None)
    assert all((few < 50).all() for few in squares)


def test_an_operand_that_the_cache_loses_slows_fp8_on_l40s() -> None:
    """16,384 x 8,192 rows took four times as long as 8,192 of them, since A is larger than the cache of 96 MB."""
    half, whole = (_seconds("L40S", rows, 8192, 8192, warm=True) for rows in (8192, 16384))
    assert whole > 2.4 * half
    half, whole = (_seconds("L40S", rows, 8192, 8192, warm=True, library=True) for rows in (8192, 16384))
    assert whole == pytest.approx(2 * half, rel=0.05)


@pytest.mark.parametrize("name", ["H100-SXM5-80GB", "L40S", "T4", "A100-SXM4-80GB"])
def test_power_binds_less_where_few_units_work(name: str) -> None:
    """The rate grows with the units that work, but never as fast as they do, and all of them are what is sustained."""
    device = catalog.accelerator(name)
    for dtype in ("float16", "float32"):
        chip = physical.silicon(device, dtype)
        c = physical.load().constants[chip.unit].on(physical.generation_of(device))
        slower = physical._apart(chip, c, physical.REFERENCE_WIDTH[chip.unit])
        assert slower[-1] == 1.0
        assert (np.diff(slower) >= -1e-12).all()
        assert (np.diff(physical._PARTS / slower) > 0).all()
        free = physical.sustained(chip, c, physical.REFERENCE_WIDTH[chip.unit]) / (c.reach * chip.peak)
        assert slower[0] == pytest.approx(free, rel=0.01), "a single unit has the full clock"


def rate_of(name: str, n: float, k: float = 2048.0, dtype: str = "bfloat16", m: float = 8192.0) -> float:
    return float(2.0 * m * n * k / seconds(m, n, k, dtype, device=catalog.accelerator(name))[0])


def test_rows_that_do_not_begin_at_16_bytes_are_multiplied_slowly() -> None:
    # m87-labs/kestrel, pull request 143: K of 588 instead of 592 on an H100 takes 3.5 times as long
    rows, columns = 9477.0, 1152.0
    assert 2.5 < seconds(rows, columns, 588.0)[0] / seconds(rows, columns, 592.0)[0] < 4.5
    # pytorch/pytorch, issue 181718: 112 of 156 TFLOP/s on an RTX 4090, whose units are halved
    assert 0.6 < rate_of("RTX-4090", 2055.0, 2055.0) / rate_of("RTX-4090", 2040.0, 2040.0) < 0.85
    assert rate_of("A100-SXM4-80GB", 50257.0) < 0.5 * rate_of("A100-SXM4-80GB", 50304.0)


def test_how_far_loads_have_to_be_aligned_is_the_generation() -> None:
    for name, slow in (("A100-SXM4-80GB", False), ("H100-SXM5-80GB", True), ("B200-SXM-180GB", True)):
        assert (rate_of(name, 50260.0) < 0.8 * rate_of(name, 50264.0)) is slow, name
    for name, dtype in (("MI300X", "bfloat16"), ("H100-SXM5-80GB", "float32")):
        assert rate_of(name, 50257.0, dtype=dtype) == pytest.approx(rate_of(name, 50264.0, dtype=dtype), rel=0.05)


@pytest.mark.parametrize(("vocabulary", "tokens", "slow"), [(50257, 1024, True), (50304, 1023, False)])
def test_lengths_of_rows_are_told_apart_from_their_number(vocabulary: int, tokens: int, slow: bool) -> None:
    trace = triosim.model(
        "gpt2", batch_size=1, sequence_length=tokens, precision="bfloat16", configuration={"vocab_size": vocabulary}
    )
    rows = np.flatnonzero(np.isin(trace.operators.name, ["aten::mm", "aten::addmm"]))
    work, _ = of(trace, rows, np.full(len(rows), DTYPE_CODE["bfloat16"], np.int8))
    narrow = physical.narrowly_loaded(work, catalog.accelerator("A100-SXM4-80GB"))
    head = np.maximum(np.maximum(work.m, work.n), work.k) == vocabulary
    assert head.sum() == 3
    assert (narrow == (head & slow)).all()
