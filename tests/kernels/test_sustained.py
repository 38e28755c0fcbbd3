"""What a device sustains: slower than a burst where the TDP binds, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from validation.fit import sustained as fitting

import triosim
from triosim.core.dtypes import DTYPE_CODE
from triosim.hardware.catalog import accelerator
from triosim.kernels import sustained
from triosim.kernels.estimate import Source
from triosim.kernels.model import PricingJob
from triosim.kernels.physical import gemm
from triosim.kernels.pricing import price
from triosim.kernels.work.gemm import gemm as products
from triosim.trace.tables import Phase
from triosim.transform.quantization import quantized


def product_efficiency(name: str, m: int, k: int, n: int, dtype: str = "bfloat16") -> float:
    """Part of the peak that a product sustains."""
    device = accelerator(name)
    work = products(np.array([m]), np.array([n]), np.array([k]), dtype)
    seconds = float(gemm.predict(work, device, gemm.load().constants).seconds[0])
    burst = sustained.burst_clock(device, dtype)
    rate = float(work.flop()[0]) / seconds
    return rate / sustained.slowdown(device, dtype, rate / burst, burst) / device.peak(dtype)


def test_a_b200_sustains_what_was_published() -> None:
    """SimuMax's B200 file: 0.496 and 0.511 of the peak."""
    assert product_efficiency("B200", 4096, 16384, 106496) == pytest.approx(0.4961, rel=0.05)
    assert product_efficiency("B200", 4096, 106496, 16384) == pytest.approx(0.5116, rel=0.05)


def test_the_installed_constants_are_those_of_the_script() -> None:
    found, installed = fitting.fit(), sustained.load()
    assert installed.joule == pytest.approx(found["joule"], rel=2e-3)
    assert installed.growth == pytest.approx(found["growth"], rel=2e-3)


def test_power_binds_later_with_more_of_it_and_never_speeds_up() -> None:
    device = accelerator("B200")
    rates = [0.3e15, 1.5e15, 1.8e15]
    slow = [sustained.slowdown(device, "bfloat16", rate) for rate in rates]
    assert slow[0] == 1.0
    assert 1.0 < slow[1] < slow[2]
    assert sustained.slowdown(replace(device, tdp_w=6000.0), "bfloat16", rates[2]) == 1.0
    assert sustained.slowdown(replace(device, tdp_w=None), "bfloat16", rates[2]) == 1.0
    part = 2 * 2 ** -sustained.load().narrowing_of(
        gemm.generation_of(device)
    )  # twice the FLOP, each of them with less than half of the joules
    eight = sustained.slowdown(device, "float8_e4m3fn", 2 * rates[2])
    assert eight == pytest.approx(sustained.slowdown(device, "bfloat16", part * rates[2]))
    assert 1.0 < eight < slow[2]
    assert sustained.slowdown(device, "bfloat16", rates[2], part=0.7) < slow[2]


def test_an_a100_of_400_w_is_not_held_back() -> None:
    device = accelerator("A100")
    burst = sustained.burst_clock(device, "bfloat16")
    assert sustained.slowdown(device, "bfloat16", device.peak("bfloat16") * 0.88, burst) == 1.0


def test_only_what_the_model_reckons_is_moved() -> None:
    device = accelerator("B200")
    trace = triosim.model("gpt2-xl", batch_size=8, sequence_length=1024)
    times = price(PricingJob(trace, device, trace, None))
    found = sustained.sustained(trace, device, times)
    moved = found.seconds != times.seconds
    assert moved.any()
    assert not (moved & np.array([name.startswith("aten::native_layer_norm") for name in trace.operators.name])).any()
    assert (found.seconds >= times.seconds).all()
    recorded = replace(times, source=np.full(len(trace), Source.RECORDED, np.int8))
    assert np.array_equal(sustained.sustained(trace, device, recorded).seconds, times.seconds)
    cpu = replace(device, kind="cpu")
    assert np.array_equal(sustained.sustained(trace, cpu, times).seconds, times.seconds)


def test_products_of_8_bits_are_held_to_the_clock_of_their_own_kernels() -> None:
    """Those of training libraries draw what others do, and run about as high in a burst."""
    device, dtype = accelerator("H100-SXM"), "float8_e4m3fn"
    assert gemm.engines(device, dtype) == ("narrow", gemm.TUNED)
    assert gemm.engines(device, "bfloat16") == ("tensor",)
    own = sustained.burst_clock(device, dtype, gemm.TUNED)
    other = sustained.burst_clock(device, dtype)
    assert own != other
    assert own == pytest.approx(other, rel=0.05)
    assert own < 1.0
    small = {"num_hidden_layers": 2, "vocab_size": 128}
    step = triosim.model("llama-3-8b", batch_size=4, sequence_length=4096, precision="bfloat16", configuration=small)
    slower = {}
    for recipe in ("fp8-current", "fp8-row"):
        trace = quantized(step, recipe)
        times = price(PricingJob(trace, device, trace, None))
        reads, is_eight = trace.operators.inputs, trace.values.dtype == DTYPE_CODE[dtype]
        eight = np.array([any(is_eight[row]) for row in reads.lists()]) & ~trace.operators.view
        eight &= trace.operators.phase == Phase.FORWARD  # in the backward those with scales of rows run like the others
        found = sustained.sustained(trace, device, times).seconds[eight].sum() / times.seconds[eight].sum()
        slower[recipe] = float(found)
    assert 1.0 < slower["fp8-row"] < 1.03
    assert 1.03 < slower["fp8-current"] < 1.2
    assert sustained.most(device, dtype) >= 1.1 * device.peak("bfloat16")


def test_trainings_are_priced_as_sustained(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = triosim.model("llama-3-8b", batch_size=1, sequence_length=2048)
    system = triosim.system(devices=1, device="B200")
    how = triosim.Plan(batch_size=4, micro_batches=1, recompute="full"), triosim.Fidelity(host="none")
    result = triosim.simulate(trace, system, *how, fit=False)
    monkeypatch.setattr("triosim.prediction.pricing.sustained", lambda trace, device, times: times)
    another = triosim.Fidelity(host="none", seed=1)  # times that were found before are kept
    burst = triosim.simulate(trace, system, how[0], another, fit=False)
    assert 1.1 * burst.breakdown_s.compute < result.breakdown_s.compute < 1.45 * burst.breakdown_s.compute
