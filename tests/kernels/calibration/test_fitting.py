"""What a few measured kernels say of a class: factors, operators, anchors and intervals."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data import shared
from triosim.core.errors import InputError
from triosim.hardware import catalog
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.calibration import conformal, scalars, tiles
from triosim.kernels.calibration.anchors import _SAME, REACH, Anchors
from triosim.kernels.calibration.calibration import calibrated, same_figures
from triosim.kernels.calibration.fitting import MeasuredKernels, different, learned, operator_name, variants
from triosim.kernels.physical.kinds import BY_NAME, RateFactors, shipped
from triosim.kernels.work.convolution import ConvolutionCalls
from triosim.kernels.work.gemm import Gemm, gemm
from triosim.kernels.work.stream import Stream, rowwise

H100 = catalog.accelerator("H100-SXM5-80GB")
GEMM, STREAM = BY_NAME["gemm"], BY_NAME["stream"]


def products(seed: int, count: int, dtype: str = "bfloat16", warm: bool = False):
    """Products of any number of rows, of lengths that are multiples of 8, as those of networks are."""
    random = np.random.default_rng(seed)
    m, n, k = (np.exp2(random.uniform(low, 14, count)) for low in (0, 5, 5))
    return gemm(m.round(), *((size / 8).round() * 8 for size in (n, k)), dtype, warm=warm)


def elementwise(seed: int, count: int) -> Stream:
    random = np.random.default_rng(seed)
    return rowwise("elementwise", np.exp2(random.uniform(8, 17, count)).round(), np.full(count, 1024.0))


def noise(seed: int, count: int, size: float = 0.2):
    return np.exp(np.random.default_rng(seed).normal(0, size, count))


OTHER = RateFactors(compute=0.8, bandwidth=1.1, launch=1.5)
"""A device that sustains 0.8 of the rate, 1.1 of the bandwidth, and takes 1.5 times as long to launch."""


def on_another_device(kind, work):
    return kind.predict(work, H100, kind.scaled(kind.constants(), OTHER)).seconds


def mape(predicted, measured) -> float:
    return float(np.mean(np.abs(predicted / measured - 1)))


def test_forty_kernels_find_what_is_different_about_a_device():
    few, many = products(0, 40), products(1, 1000)
    (found,) = learned(GEMM, MeasuredKernels(few, on_another_device(GEMM, few)), H100)
    assert (found.kind, found.name) == ("gemm", "matrix/tensor")
    assert found.factors.compute == pytest.approx(0.8, rel=0.03)
    assert found.factors.launch == pytest.approx(1.5, rel=0.05)
    expected = on_another_device(GEMM, many)
    before = mape(shipped(GEMM, many, H100).seconds, expected)
    after = mape(found.seconds(GEMM, many, H100)[0], expected)
    assert after < 0.02 < 0.1 < before
    assert found.before == pytest.approx(mape(shipped(GEMM, few, H100).seconds, on_another_device(GEMM, few)))
    assert found.after < 0.03, "on kernels that a fold left out"


def test_each_class_has_factors_of_its_own():
    both = [products(0, 30, "bfloat16"), products(1, 30, "float32")]
    work = Gemm(*(np.concatenate([getattr(part, f.name) for part in both]) for f in fields(Gemm)))
    seconds = np.concatenate([on_another_device(GEMM, both[0]), shipped(GEMM, both[1], H100).seconds])
    found = {one.name: one for one in learned(GEMM, MeasuredKernels(work, seconds), H100)}
    assert set(found) == {"matrix/tensor", "matrix/simt"}
    assert found["matrix/simt"].factors.compute == pytest.approx(1.0, abs=0.01)
    assert found["matrix/tensor"].factors.compute == pytest.approx(0.8, rel=0.03)


def test_a_measured_kernel_is_reproduced_and_one_far_away_is_left_to_the_model():
    few = products(0, 40)
    measured = shipped(GEMM, few, H100).seconds * noise(2, 40)
    (found,) = learned(GEMM, MeasuredKernels(few, measured), H100)
    assert found.seconds(GEMM, few, H100)[0] == pytest.approx(measured, rel=1e-9)
    far = gemm(2.0**60, 2.0**60, 2.0**60, "bfloat16")
    plain = GEMM.predict(far, H100, found.constants(GEMM)).seconds
    assert found.seconds(GEMM, far, H100)[0] == pytest.approx(plain, rel=0.05)


def test_kernels_of_the_same_operator_are_nearer_than_others_of_its_size():
    random = np.random.default_rng(0)
    work = elementwise(0, 60)
    names = tuple(random.choice(["aten::add", "aten::erf"], 60).tolist())
    slow = np.array([name == "aten::erf" for name in names])
    growing = np.where(slow, (work.read / 1e6) ** 0.3, (work.read / 1e6) ** -0.1)  # not one factor for all sizes
    times = shipped(STREAM, work, H100).seconds * growing
    (found,) = learned(STREAM, MeasuredKernels(work, times, names=names), H100)
    assert found.anchors.apart > 0
    assert found.after < 0.15
    (mixed,) = learned(STREAM, MeasuredKernels(work, times), H100)
    assert mixed.anchors.apart == 0
    assert mixed.after > 2 * found.after
    other = elementwise(1, 20)
    expected = shipped(STREAM, other, H100).seconds * (other.read / 1e6) ** 0.3
    assert mape(found.seconds(STREAM, other, H100, ["aten::erf"] * 20)[0], expected) < 0.15


def test_the_largest_of_a_window_has_one_name_whether_its_place_is_asked_for_or_not():
    assert operator_name("aten::max_pool2d_with_indices") == operator_name("aten::max_pool2d") == "max_pool2d"
    assert operator_name(operator_name("aten::gelu_backward")) == "gelu backward", "a name stays as it is"


def test_depthwise_convolutions_are_a_variant_of_their_own():
    one = np.ones(2)
    calls = ConvolutionCalls(
        *(one * x for x in (1, 1, 1, 1, 28, 28, 28, 28, 3, 3, 1)), *(one > x for x in (0, 1, 1, 1, 1)),
        one.astype(np.int8), one * 4, one > 1,
    )  # fmt: skip
    lone = replace(calls, groups=np.array([32.0, 1.0]))
    assert variants(lone, ()) == ["3x3/1 of each channel", "3x3/1"]


def test_two_kernels_move_no_factor_and_three_not_far():
    two = products(0, 2)
    (found,) = learned(GEMM, MeasuredKernels(two, shipped(GEMM, two, H100).seconds * 2), H100)
    assert not found.logs.any()
    assert found.after is None
    assert found.seconds(GEMM, two, H100)[0] == pytest.approx(2 * shipped(GEMM, two, H100).seconds), "but anchors"
    many = products(1, 200)
    assert mape(found.seconds(GEMM, many, H100)[0], shipped(GEMM, many, H100).seconds) < 0.05, "for themselves alone"
    three = products(0, 3)
    (found,) = learned(GEMM, MeasuredKernels(three, shipped(GEMM, three, H100).seconds * 100), H100)
    assert (np.abs(found.logs) < 6 * scalars.widths(H100) + 1e-9).all()
    assert found.spread is None


def test_an_odd_kernel_does_not_decide():
    few = products(0, 40)
    seconds = shipped(GEMM, few, H100).seconds
    seconds[7] *= 50
    (found,) = learned(GEMM, MeasuredKernels(few, seconds), H100)
    assert found.factors.compute == pytest.approx(1.0, abs=0.05)


def test_of_equal_kernels_the_median_counts():
    few = products(0, 20)
    three = few.take(np.repeat(np.arange(20), 3))
    seconds = np.repeat(shipped(GEMM, few, H100).seconds, 3) * np.tile([0.5, 1.0, 40.0], 20)
    one = different(MeasuredKernels(three, seconds))
    assert len(one.work) == 20
    assert one.seconds == pytest.approx(shipped(GEMM, few, H100).seconds)
    assert np.array_equal(one.work.m, few.m), "in the order in which they came"
    named = MeasuredKernels(
        few.take(np.zeros(4, int)), np.array([1.0, 2.0, 3.0, 4.0]), names=("mm", "mm", "addmm", "addmm")
    )
    assert different(named).seconds.tolist() == [1.5, 3.5], "another operator is another kernel"
    assert different(named).names == ("mm", "addmm")


def test_operators_of_one_class_may_be_slower_than_others():
    work = elementwise(0, 60)
    names = tuple(("gelu", "add", "mul")[i % 3] for i in range(60))
    slow = np.where(np.array(names) == "gelu", 3.0, 1.0)
    (found,) = learned(STREAM, MeasuredKernels(work, shipped(STREAM, work, H100).seconds * slow, names=names), H100)
    more = elementwise(1, 200)
    plain = shipped(STREAM, more, H100).seconds
    assert mape(found.seconds(STREAM, more, H100, ["gelu"] * 200)[0], 3 * plain) < 0.1
    assert mape(found.seconds(STREAM, more, H100, ["add"] * 200)[0], plain) < 0.1
    unknown = found.seconds(STREAM, more, H100, ["sin"] * 200)[0]
    assert np.all((unknown > plain * 0.9) & (unknown < 3 * plain)), "an operator that was not measured is in between"


def test_convolutions_of_other_windows_may_run_other_algorithms():
    kind = BY_NAME["convolution"]
    random = np.random.default_rng(3)
    count = 60
    kernel = random.choice([1.0, 3.0], count)
    side, ones = random.choice([14.0, 28.0, 56.0], count), np.ones(count)
    deep, wide = (random.choice([64.0, 128.0, 256.0, 512.0], count) for _ in range(2))
    yes, no = np.ones(count, bool), np.zeros(count, bool)
    work = ConvolutionCalls(
        random.choice([8.0, 16.0, 32.0], count), deep, wide, ones, side, side, side, side, kernel, kernel, ones, yes,
        no, no, no, no, gemm(ones, 1, 1, "float16").dtype, 2 * ones, no,
    )  # fmt: skip
    seconds = shipped(kind, work, H100).seconds * np.where(kernel == 3, 1.6, 0.8)
    (found,) = learned(kind, MeasuredKernels(work, seconds, names=("convolution",) * count), H100)
    assert found.operators["convolution 3x3/1"] > found.operators["convolution 1x1/1"] + 0.3


def test_the_interval_covers_what_was_not_measured():
    held = []
    for seed in range(6):
        work = products(seed, 300)
        measured = shipped(GEMM, work, H100).seconds * noise(seed + 100, 300)
        found = calibrated(H100, {"gemm": MeasuredKernels(work.take(np.arange(40)), measured[:40])})
        rest = np.arange(40, 300)
        priced = found.priced(GEMM, work.take(rest), H100)
        held.append(np.mean(np.abs(np.log(measured[rest] / priced.seconds)) <= priced.spread))
    assert np.mean(held) == pytest.approx(0.9, abs=0.04)


def test_the_interval_grows_to_the_shipped_one_far_from_what_was_measured():
    few = products(0, 40)
    found = calibrated(H100, {"gemm": MeasuredKernels(few, shipped(GEMM, few, H100).seconds * noise(1, 40, 0.03))})
    near = found.priced(GEMM, few, H100).spread
    far = gemm(2.0**40, 2.0**40, 2.0**40, "bfloat16")
    usual = shipped(GEMM, far, H100).spread
    assert near.max() < usual.max()
    assert found.priced(GEMM, far, H100).spread == pytest.approx(usual, rel=1e-3)
    drifted = replace(found, drift=0.2)
    assert drifted.priced(GEMM, few, H100).spread == pytest.approx(np.hypot(near, math.log(1.2)))


def test_what_was_not_measured_keeps_the_shipped_constants():
    few = products(0, 30)
    found = calibrated(H100, {"gemm": MeasuredKernels(few, on_another_device(GEMM, few))})
    single = products(1, 5, "float32")
    plain = shipped(GEMM, single, H100)
    assert found.priced(GEMM, single, H100).seconds == pytest.approx(plain.seconds)
    assert found.priced(GEMM, single, H100).spread == pytest.approx(plain.spread)
    a100 = catalog.accelerator("A100-SXM4-80GB")
    assert found.priced(GEMM, few, a100).seconds == pytest.approx(shipped(GEMM, few, a100).seconds)


def test_streams_that_were_not_measured_move_like_elementwise_ones():
    work = elementwise(0, 30)
    found = calibrated(H100, {"stream": MeasuredKernels(work, shipped(STREAM, work, H100).seconds * 1.5)})
    copies = replace(elementwise(1, 10), kind=np.full(10, STREAM.classes.index("copy"), np.int8))
    priced = found.priced(STREAM, copies, H100)
    assert np.all(priced.seconds > 1.3 * shipped(STREAM, copies, H100).seconds)
    assert np.all(priced.spread >= shipped(STREAM, copies, H100).spread)


def test_on_a_processor_what_was_not_measured_is_left_open():
    cpu = Accelerator("cpu", kind="cpu", compute_units=1, peak_flops={"float32": 1e11}, memory_bandwidth=2e10)
    work = products(0, 20, "float32")
    found = calibrated(cpu, {"gemm": MeasuredKernels(work, work.flop() / 8e10 + 2e-6)})
    assert np.isfinite(found.priced(GEMM, work, cpu).seconds).all()
    assert np.isnan(found.priced(STREAM, elementwise(0, 3), cpu).seconds).all()
    assert (scalars.widths(cpu) > scalars.widths(H100)).all(), "the constants were fitted to GPUs"


def test_bad_measurements_are_refused():
    work = products(0, 5)
    with pytest.raises(InputError, match="5 kernels but 4 times"):
        learned(GEMM, MeasuredKernels(work, np.ones(4)), H100)
    with pytest.raises(InputError, match="not a positive number"):
        learned(GEMM, MeasuredKernels(work, np.array([1, 1, np.nan, 1, 1.0])), H100)
    with pytest.raises(InputError, match="5 kernels but 2 names"):
        learned(GEMM, MeasuredKernels(work, np.ones(5), names=("a", "b")), H100)


def test_devices_are_the_same_by_their_figures():
    assert same_figures(H100, replace(H100, name="mine", price_per_hour=1.0))
    assert not same_figures(H100, replace(H100, memory_bandwidth=1e12))


# Anchors, intervals, tiles --------------------------------------------------------------------------------------------


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=12), st.floats(0, 40))
def test_a_correction_is_within_the_errors_and_fades_with_the_distance(errors, away):
    n = len(errors)
    anchors = Anchors(np.arange(n, dtype=float)[:, None], np.array(errors))
    added, distance = anchors.at(np.array([[n - 1 + away]]))
    faded = distance[0] if distance[0] >= _SAME else 0.0  # what is so near is the measured kernel itself
    assert min(errors) - 1e-9 <= added[0] * (1 + faded / REACH) <= max(errors) + 1e-9
    assert distance[0] == pytest.approx(away, abs=1e-9)


def test_half_of_a_lone_neighbours_error_is_carried_over_at_the_reach():
    anchors = Anchors(np.array([[3.0, 4.0]]), np.array([0.4]))
    added, distance = anchors.at(np.array([[3.0, 4.0], [3.0, 4.0 + REACH]]))
    assert added == pytest.approx([0.4, 0.2])
    assert distance == pytest.approx([0.0, REACH])
    added, distance = Anchors(np.zeros((0, 2)), np.zeros(0)).at(np.zeros((3, 2)))
    assert (added.tolist(), distance.tolist()) == ([0.0] * 3, [math.inf] * 3)


def test_the_rank_of_the_interval():
    errors = np.arange(1.0, 41.0) * np.where(np.arange(40) % 2, 1, -1)
    assert conformal.half_width(errors) == 37.0, "ceil(0.9 * 41) = 37"
    assert conformal.half_width(errors[:20]) == 19.0, "ceil(0.9 * 21) = 19"
    assert conformal.half_width(errors[:19]) is None


@given(st.integers(20, 200), st.integers(0, 2**31))
def test_the_next_error_is_covered_nine_times_out_of_ten(n, seed):
    """Exactly: of all ways to choose which of n + 1 exchangeable errors is the next, 90 % at least are covered."""
    errors = np.random.default_rng(seed).normal(size=n + 1)
    covered = 0
    for out in range(n + 1):
        half = conformal.half_width(np.delete(errors, out))
        covered += abs(errors[out]) <= half
    assert covered >= 0.9 * (n + 1) - 1e-9


@pytest.mark.parametrize(("name", "expected"), [
    ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", (128, 64)),
    ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>(Params)", (256, 128)),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute", (128, 128)),
    ("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT", (256, 128)),
    ("Cijk_Ailk_Bljk_BBS_BH_MT64x128x32_MI32x32x8x1_SE_1LDSB0", (64, 128)),
    ("volta_sgemm_32x128_nn", (32, 128)),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor>", None),
    ("sm80_xmma_fprop_implicit_tilesize_none", None),
    ("gemv2T_kernel_val", None),
])  # fmt: skip
def test_tiles_in_kernel_names(name, expected):
    assert tiles.tile(name) == expected


def test_a_menu_has_every_tile_both_ways_round():
    assert tiles.menu(["volta_sgemm_32x128_nn", "volta_sgemm_64x64_nn", "x"]) == ((32, 128), (64, 64), (128, 32))


def test_a_menu_is_kept_where_it_predicts_better():
    few = products(0, 40)
    own = GEMM.constants()
    menu = ((64, 64),)
    narrow = {**own, "tensor": replace(own["tensor"], menus=(menu,), menus_batched=(menu,))}
    seconds = GEMM.predict(few, H100, narrow).seconds
    (found,) = learned(GEMM, MeasuredKernels(few, seconds, menus={"matrix/tensor": menu}), H100)
    assert found.menu == menu
    (kept,) = learned(GEMM, MeasuredKernels(few, shipped(GEMM, few, H100).seconds, menus={"matrix/tensor": menu}), H100)
    assert kept.menu == ()


def test_operator_names():
    assert operator_name("aten::gelu_backward") == "gelu backward"
    assert operator_name("aten::add_") == "add"


# Measured data --------------------------------------------------------------------------------------------------------


def test_forty_kernels_of_a_device_left_out():
    """Constants that never saw an H100, then 40 of its kernels: at most 11 %, and the interval covers the others."""
    shared("kernels/gemm.parquet")
    from validation.judge import calibration as script

    kind, rows = script.left_out(H100.name)
    found = script.judge(kind, rows, H100, kernels=40, draws=2)
    assert found.error < 0.11
    assert found.error < found.without
    assert 0.85 < found.covered < 0.97
