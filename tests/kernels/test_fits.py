"""The scripts that fit the constants find them again."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from importlib import resources

import numpy as np
import pytest
from validation.data import kernels as kernel_data
from validation.data.kernels import Sample
from validation.fit import anchoring as fit_anchoring
from validation.fit import physical_attention as fit_physical_attention
from validation.fit import physical_moe as fit_physical_moe
from validation.fit import roofline as fit_roofline
from validation.fit.roofline import Constants, Form, fit, quantile

from tests.data import shared
from triosim.kernels.pack import load
from triosim.kernels.physical import attention, moe
from triosim.kernels.work.attention import FAMILIES as ATTENTION_FAMILIES

TRUTH = Constants(3e-6, 0.6, 0.8, 2.0)


def synthetic(constants: Constants, noise: float = 0.1, count: int = 2000) -> Sample:
    """Kernels of two devices that obey ``constants`` but for errors of ``noise``, a few of them gross."""
    random = np.random.default_rng(7)
    zeros = np.zeros(count)
    work = np.exp(random.uniform(np.log(1e-7), np.log(1e-2), (2, count)))
    device = np.array(["A100-SXM4-80GB", "L40S"])[np.arange(count) % 2]
    sample = Sample(
        device, work[0], work[1], zeros, zeros, np.arange(count)[:, None] // 4.0, np.arange(count) % 4 + 1.0
    )
    errors = random.normal(0, noise, count)
    errors[::100] += 1.5
    return replace(sample, seconds=constants.measured(sample) * np.exp(errors))


@pytest.mark.parametrize("overlap", [1.0, 2.0, math.inf])
def test_constants_are_found_again_despite_outliers(overlap):
    truth = replace(TRUTH, overlap=overlap)
    found = fit(synthetic(truth, 0.02), Form(), overlap)
    assert found.floor_s == pytest.approx(truth.floor_s, rel=0.01)
    assert found.compute == pytest.approx(truth.compute, rel=0.01)
    assert found.memory == pytest.approx(truth.memory, rel=0.01)


def test_time_of_the_host_is_told_from_the_kernel():
    truth = replace(TRUTH, host_s=20e-6)
    found = fit(synthetic(truth, 0.02), Form(floor_s=truth.floor_s, host=True), 2.0)
    assert found.host_s == pytest.approx(20e-6, rel=0.02)
    assert found.compute == pytest.approx(truth.compute, rel=0.01)
    assert found.kernel(synthetic(truth)) == pytest.approx(replace(truth, host_s=0).kernel(synthetic(truth)), rel=0.02)


def test_the_exponent_with_the_least_error_is_chosen_and_the_spread_covers():
    judged = fit_roofline.judge("test", synthetic(TRUTH, 0.1), Form(), "")
    assert judged.constants.overlap == TRUTH.overlap
    assert judged.spread() == pytest.approx(1.6449 * 0.1, rel=0.15), "90 % of a normal error of 0.1, and 1 % outliers"
    assert judged.spread_unseen() >= judged.spread() * 0.99


def test_quantile_is_that_of_split_conformal_prediction():
    assert quantile(np.arange(1.0, 20.0)) == 18.0  # rank ceil(0.9 * 20)
    assert quantile(np.array([-3.0, 1.0])) == 3.0


def test_rows_are_taken_evenly_over_the_decades():
    sample = synthetic(TRUTH, count=20000)
    chosen = fit_roofline.even(sample, 100)
    assert 150 < len(chosen) <= 200
    per_decade = np.histogram(np.log10(chosen.plain()), bins=np.arange(-5, -1.9))[0]
    assert per_decade.max() < 2 * per_decade.min()


def test_drift_covers_what_a_random_walk_in_size_does():
    """Residuals that are an Ornstein-Uhlenbeck process of log size: 90 % of the errors lie inside the interval."""
    random = np.random.default_rng(3)
    count, length, spread = 20000, 4.0, 0.2
    work = random.uniform(0.1, 4.0, count) * random.choice([-1, 1], count)
    a = random.normal(0, spread, count)
    kept = np.exp(-np.abs(work) / length)
    b = kept * a + np.sqrt(1 - kept**2) * random.normal(0, spread, count)
    pairs = fit_anchoring.Pairs(a, b, np.zeros(count), work, work, np.full(count, 1e-4))
    drift = fit_anchoring.drift_of(pairs, length)
    inside = np.abs(pairs.errors()) <= drift * fit_anchoring.profile(work, length)
    assert inside.mean() == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize("key", ["matrix/tensor", "attention/tensor", "elementwise", "convolution/tensor"])
def test_constants_of_the_pack_are_those_of_the_data(key):
    shared("kernels", "gemm.parquet")
    shared("kineto")
    pack = load()
    at = pack.keys.index(key)
    make = {
        "matrix/tensor": lambda: (kernel_data.gemm("bfloat16"), Form()),
        "attention/tensor": lambda: (kernel_data.attention(), Form()),
        "elementwise": lambda: (
            kernel_data.float32_operators("elementwise"), Form(float(pack.floor_s[at]), True, (1.0,)),
        ),
        "convolution/tensor": lambda: (kernel_data.resnet_operators()["convolution"], Form(float(pack.floor_s[at]))),
    }  # fmt: skip
    sample, form = make[key]()
    found = fit(fit_roofline.even(sample), form, float(pack.overlap[at]))
    assert found.floor_s == pytest.approx(pack.floor_s[at], rel=0.01)
    assert found.memory == pytest.approx(pack.memory[at], rel=0.01)
    if key != "elementwise":
        assert found.compute == pytest.approx(pack.compute[at], rel=0.01)


def test_the_roofline_beats_the_textbook_on_every_class():
    text = (resources.files("triosim.kernels") / "data" / "roofline.json").read_text(encoding="utf-8")
    accuracy = json.loads(text)["provenance"]["accuracy"]
    assert all(entry["left_out_mape"] < 0.75 * entry["plain_roofline_mape"] for entry in accuracy.values())


def found_again(found: object, shipped: object) -> None:
    """Every constant within 1 % of the one that comes with the program."""
    for name, value in asdict(shipped).items():  # type: ignore[call-overload]
        assert getattr(found, name) == pytest.approx(value, rel=0.01), name


def test_constants_of_decoding_are_those_of_the_data():
    shared("kernels", "attention_decode.parquet")
    rows = fit_physical_attention.read("decode")[0]
    rows = rows.take(np.flatnonzero(rows.work.family == ATTENTION_FAMILIES.index("flash3")))
    found_again(fit_physical_attention.fit(rows, attention.Decode), attention.constants().decode.of("flash3"))


def test_constants_of_experts_are_those_of_the_data():
    shared("kernels", "moe.parquet")
    rows = fit_physical_moe.read(("cutedsl",))[0]
    found_again(fit_physical_moe.fit(rows), moe.constants().of("cutedsl"))
