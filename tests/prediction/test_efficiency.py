"""Model FLOP utilization: counted by hand, the same for all plans of a job, and absent where something is unknown."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import triosim
from tests.asked import asked
from triosim.hardware.catalog import accelerator
from triosim.prediction.efficiency import peak
from triosim.prediction.result import Efficiency
from triosim.trace.tables import Phase

LAYERS, WIDTH, HEADS, VOCABULARY, LENGTH = 12, 768, 12, 50257, 256
PEAK = 989.4e12
"""Dense bfloat16 of an H100 SXM, NVIDIA's datasheet."""


def found(
    batch: int = 8, devices: int = 1, device: str = "H100", precision: str = "bfloat16", **plan: int | str
) -> triosim.Result:
    job = triosim.model("gpt2", sequence_length=LENGTH, precision=precision)
    system = triosim.system(device=device, devices=devices)
    return triosim.simulate(job, system, *asked(global_batch_size=batch, **plan))


def by_hand(batch: int) -> float:
    """Products of GPT-2: weights of the blocks and of the head, and causal attention; the backward takes twice that."""
    tokens, weights = batch * LENGTH, LAYERS * 12 * WIDTH**2 + VOCABULARY * WIDTH
    pairs = batch * HEADS * LENGTH * (LENGTH + 1) / 2
    return 3 * (2 * tokens * weights + LAYERS * 4 * pairs * (WIDTH / HEADS))


def test_it_is_model_flop_over_time_peak_and_devices() -> None:
    result = found(devices=4)
    e = result.efficiency
    assert e.model_flop == pytest.approx(by_hand(8), rel=1e-12)
    assert e.flop_per_s_per_device == pytest.approx(by_hand(8) / result.iteration_time_s / 4)
    assert e.mfu == pytest.approx(by_hand(8) / (result.iteration_time_s * 4 * PEAK))
    assert e.precision == "bfloat16"
    assert e.peak_flop_per_s_per_device == PEAK
    assert e.source.startswith("989.4 TFLOP/s dense bfloat16, of H100-SXM5-80GB: NVIDIA")
    assert result.throughput.tokens_per_s is not None
    assert e.tokens_per_s_per_device == pytest.approx(result.throughput.tokens_per_s / 4)


@pytest.mark.parametrize(
    "plan",
    [
        {"dp": 4}, {"pp": 4, "micro_batches": 8}, {"recompute": "full", "dp": 4}, {"recompute": "selective", "dp": 4},
        {"dp": 2, "pp": 2, "micro_batches": 2, "iterations": 3}, {"zero": 3}, {"dp_style": "dataparallel"},
    ],
    ids=str,
)  # fmt: skip
def test_the_flop_of_the_model_do_not_depend_on_the_plan(plan: dict) -> None:
    """Recomputation costs time and so utilization; it does not count as work."""
    assert found(devices=4, **plan).efficiency.model_flop == pytest.approx(by_hand(8), rel=1e-9)


def test_what_tensor_parallel_ranks_compute_alike_counts_once() -> None:
    """Megatron pads the vocabulary to a multiple of 128 x 2, and the padding is multiplied."""
    more = 3 * 2 * 8 * LENGTH * (50432 - VOCABULARY) * WIDTH
    assert found(devices=2, tp=2).efficiency.model_flop == pytest.approx(by_hand(8) + more, rel=1e-9)


def test_inference_counts_its_forward() -> None:
    assert found(training=False).efficiency.model_flop == pytest.approx(by_hand(8) / 3, rel=1e-12)


def test_several_models_of_device_have_the_mean_peak() -> None:
    system = triosim.system(device="H100", devices=2)
    mixed = dataclasses.replace(
        system, models=(system.models[0], accelerator("A100-SXM4-80GB")), device_model=np.array([0, 1], np.int32)
    )
    result = triosim.simulate(triosim.model("gpt2", sequence_length=LENGTH), mixed, triosim.Plan(global_batch_size=8))
    e = result.efficiency
    assert e.peak_flop_per_s_per_device == pytest.approx((PEAK + 312e12) / 2)
    assert e.mfu == pytest.approx(by_hand(8) / result.iteration_time_s / (PEAK + 312e12))
    assert "H100" in e.source
    assert "A100" in e.source


def test_without_a_peak_there_is_no_utilization() -> None:
    job = triosim.load("examples/resnet50-cpu.triosim")
    result = triosim.simulate(job, triosim.system(devices=2, link="10GB/s"))
    e = result.efficiency
    assert e.mfu is e.peak_flop_per_s_per_device is None
    assert "not known" in e.source
    assert e.model_flop == pytest.approx(2 * np.nansum(job.operators.flop))
    assert e.flop_per_s_per_device == pytest.approx(e.model_flop / result.iteration_time_s / 2)
    assert "MFU" not in repr(result)
    assert e.tokens_per_s_per_device is None


def test_without_shapes_nothing_is_counted() -> None:
    job = triosim.model("gpt2", sequence_length=16)
    flop = job.operators.flop.copy()
    flop[job.operators.name.index("aten::addmm")] = np.nan
    result = triosim.simulate(
        dataclasses.replace(job, operators=dataclasses.replace(job.operators, flop=flop)),
        triosim.system(device="H100", devices=1),
    )
    assert (result.efficiency.mfu, result.efficiency.model_flop) == (None, None)
    assert result.efficiency.source == "the FLOP of 1 operator (aten::addmm) are not known"


def test_an_emulated_type_has_the_peak_of_the_type_that_it_runs_in() -> None:
    rate, dtype, source = peak(accelerator("V100-SXM2-16GB"), "bfloat16")
    assert (rate, dtype) == (15.7e12, "float32")
    assert source.startswith("15.7 TFLOP/s dense float32, which bfloat16 runs in, of V100-SXM2-16GB: ")
    e = found(device="V100").efficiency
    assert (e.precision, e.peak_flop_per_s_per_device) == ("float32", 15.7e12)


def test_a_rate_that_is_assumed_is_no_peak() -> None:
    rate, _, source = peak(dataclasses.replace(accelerator("TPU-v4"), vendor="somebody"), "float32")
    assert rate is None
    assert source == "the datasheet of TPU-v4 has no float32 rate"


def test_recorded_recomputation_does_not_count() -> None:
    job = triosim.model("gpt2", sequence_length=16)
    phase = job.operators.phase.copy()
    rows = np.flatnonzero(phase == Phase.FORWARD)
    phase[rows] = Phase.RECOMPUTE
    changed = dataclasses.replace(job, operators=dataclasses.replace(job.operators, phase=phase))
    backward = np.nansum(job.operators.flop[job.operators.phase == Phase.BACKWARD])
    system = triosim.system(device="H100", devices=1)
    e: Efficiency = triosim.simulate(changed, system).efficiency
    assert e.model_flop is not None
    assert e.model_flop <= backward
