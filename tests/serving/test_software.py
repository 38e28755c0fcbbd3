"""What the name of an engine does not tell: all steps alike, and first tokens beside, in the intervals of figures."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import triosim
from triosim.kernels.estimate import Z90
from triosim.serving.deployment import Deployment, serve
from triosim.serving.kernel_times import NOTHING_MOVED
from triosim.serving.model import served_model
from triosim.serving.pool import Pool
from triosim.serving.pool_times import lock_step, step_times
from triosim.serving.software import between_sources
from triosim.serving.step_times import StepShape
from triosim.serving.traffic import traffic

MOVED = NOTHING_MOVED._replace(software=1.0)
STEPS = [
    StepShape(32, (), 32, 32 * 700, 32),
    StepShape(3000, ((2900, 0),), 100, 50_000, 101),
    StepShape(1, (), 1, 9, 1),
]


def test_engines_that_no_source_ran_differ_most() -> None:
    usual = between_sources("orca")
    assert usual == between_sources("my_engine.py") == between_sources("")
    for engine in ("vllm", "sglang", "trtllm", "vllm-v0"):
        own = between_sources(engine)
        assert 0 < own.steps < usual.steps
        assert 0 < own.front <= usual.front


@pytest.mark.parametrize(("model", "sizes"), [("llama-3-8b", (1, 1)), ("llama-3-8b", (2, 2)), ("mixtral-8x7b", (2, 1))])
@pytest.mark.parametrize("engine", ["vllm", "orca"])
def test_all_that_devices_do_in_a_step_takes_longer(model: str, sizes: tuple[int, int], engine: str) -> None:
    system, (tp, pp) = triosim.system("dgx-h100"), sizes
    own = Pool(model, system, tensor_parallel=tp, stages=pp, engine=engine)
    plain, moved = (step_times(own, served_model(model), moved=errors) for errors in (NOTHING_MOVED, MOVED))
    factor = math.exp(between_sources(engine).steps / Z90)
    for step in STEPS:
        for stage in range(pp):
            took = moved.device_ticks(step, stage) / plain.device_ticks(step, stage)
            assert took == pytest.approx(factor, rel=1e-6)


def test_experts_elsewhere_take_longer_too() -> None:
    system, model = triosim.system("dgx-h100"), served_model("mixtral-8x7b")
    own = Pool("mixtral-8x7b", system, attention_ranks=8, engine="sglang")
    plain, moved = (lock_step(own, step_times(own, model, moved=m), 0, m) for m in (NOTHING_MOVED, MOVED))
    factor = math.exp(between_sources("sglang").steps / Z90)
    assert moved.ticks([STEPS[0]] * 8) == pytest.approx(factor * plain.ticks([STEPS[0]] * 8), rel=1e-6)


def test_throughput_that_arrivals_set_is_as_sure_as_before_and_first_tokens_are_least_sure() -> None:
    own = Pool("llama-3-8b", triosim.system(device="H100-SXM5-80GB"))

    def widths(arrivals: str) -> dict[str, float]:
        found = serve(Deployment((own,)), traffic(arrivals, "fixed:256", 60, seed=1), interval=True)
        for name in ("mean", "p99"):
            value, (low, high) = found.metrics.named()[f"ttft.{name}"], found.intervals[f"ttft.{name}"]
            assert high > value + spread.front
            assert value < 2 * low
        return {name: math.log(high / low) / 2 for name, (low, high) in found.intervals.items()}

    spread = between_sources("vllm")
    users, rate = widths("users:8"), widths("poisson:2")
    assert users["output_tokens_per_s"] > 0.9 * spread.steps
    assert users["tpot.mean"] > 0.9 * spread.steps
    assert rate["output_tokens_per_s"] < 0.1 * spread.steps
    said = serve(Deployment((replace(own, front_s=0.005),)), traffic("users:8", "fixed:256", 60, seed=1), interval=True)
    low, high = said.intervals["ttft.mean"]
    assert math.log(high / low) / 2 < 0.5 * users["ttft.mean"]  # somebody said what the server takes
