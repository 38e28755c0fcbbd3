"""Joules of a fleet: the same as step by step, and what caps and clocks make of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.command import run
from triosim.core.errors import InputError
from triosim.energy import usage
from triosim.energy.constants import EnergyConstants
from triosim.energy.cost import cost
from triosim.energy.device import device_energy
from triosim.hardware.machine import system
from triosim.hardware.power import lowest_cap
from triosim.kernels.sustained import burst_clock
from triosim.serving.deployment import Deployment, ServingResult, serve
from triosim.serving.fleet_energy import FleetEnergy
from triosim.serving.fleet_search import least_energy_clock
from triosim.serving.metrics import parse_slo
from triosim.serving.model import PRECISIONS
from triosim.serving.one_request import infer
from triosim.serving.pool import Pool
from triosim.serving.pool_checks import checked
from triosim.serving.pool_times import kernels_of
from triosim.serving.recording import RunRecorder
from triosim.serving.request_energy import StepLoad, joules
from triosim.serving.step_times import StepShape
from triosim.serving.traffic import traffic

H100 = system(device="H100-SXM5-80GB", devices=4)
ONE = system(device="H100-SXM5-80GB", devices=1)
H200 = system(device="H200-SXM-141GB", devices=1)
TRAFFIC = traffic("poisson:8", "uniform:128-512", 300, 0)
COMMAND = ("serve", "llama-3-8b", "--device", "H100", "--arrivals", "poisson:8", "--lengths", "uniform:128-512",
           "--requests", "200", "--interval", "off")  # fmt: skip


def of(result: ServingResult) -> FleetEnergy:
    assert result.energy is not None
    return result.energy


def served(*pools: Pool) -> ServingResult:
    return serve(Deployment(pools, idle_ok=True), TRAFFIC, interval=False)


@pytest.mark.parametrize(
    "pools",
    [
        (Pool("llama-3-8b", ONE),),
        (Pool("mixtral-8x7b", H100, tensor_parallel=2, replicas=2),),
        (Pool("gpt-oss-20b", ONE, weights="mxfp4"),),
        (Pool("llama-3-8b", ONE, preemption="recompute", blocks=60),),
        (Pool("llama-3-8b", H100, name="p", role="prefill"),
         Pool("llama-3-8b", H100, first=1, name="d", role="decode")),
    ],
    ids=["one", "experts", "windows", "preempted", "apart"],
)  # fmt: skip
def test_a_run_takes_what_its_steps_take(pools: tuple[Pool, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, StepShape]] = []
    begins = RunRecorder.begins

    def noted(self: RunRecorder, replica: int, batch: object, shape: StepShape, *more: object) -> None:
        shapes.append((replica, shape))
        begins(self, replica, batch, shape, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(RunRecorder, "begins", noted)
    result = serve(Deployment(pools, idle_ok=True), TRAFFIC, interval=False, recorded=True)
    whole = of(result)
    pool_of = [pool for pool in pools for _ in range(pool.cores)]
    kernels = {id(pool): kernels_of(pool, checked(pool), pool.first) for pool in pools}
    energy = device_energy(next(iter(kernels.values())).device, EnergyConstants())
    assert energy is not None
    parts = dict.fromkeys(whole.parts_j, 0.0)
    for replica, shape in shapes:
        pool = pool_of[replica]
        for name, value in joules(kernels[id(pool)], energy, StepLoad.of(shape), 10.0, 1).items():  # no step is cut off
            parts[name] += value
    padded = float(result.served.padding.sum()) / float(result.served.computed.sum())
    assert whole.parts_j["flop"] == pytest.approx(parts["flop"], rel=0.02 + padded)
    assert whole.parts_j["memory"] == pytest.approx(parts["memory"], rel=0.03)
    assert whole.parts_j["cache"] == pytest.approx(parts["cache"], rel=0.03)
    devices = sum(float(busy) * pool.tensor_parallel for busy, pool in zip(result.served.busy, pool_of, strict=True))
    assert whole.parts_j["static"] == pytest.approx(energy.static_w * devices / 1e12)


def test_parts_add_up() -> None:
    whole = of(served(Pool("llama-3-8b", ONE)))
    assert sum(whole.parts_j.values()) == pytest.approx(whole.work_j)
    assert whole.work_j + whole.idle_j + whole.host_j == pytest.approx(whole.node_j)
    assert whole.facility_j == pytest.approx(whole.node_j * whole.pue)
    low, high = whole.interval_j
    assert low < whole.node_j < high
    two = of(served(Pool("llama-3-8b", H100, replicas=2)))
    assert two.idle_j > whole.idle_j
    assert two.per_token_j > whole.per_token_j


def test_one_request_in_a_fleet_takes_what_it_takes_alone() -> None:
    """Where no step draws all that it may: that limit is of a step alone, and of the steps of a slice together."""
    for clock, prompt in ((None, 64), (900e6, 1024)):
        pool = Pool("llama-3-8b", ONE, clock_hz=clock, engine_options={"model-runner": "2"})  # leaves no gap
        alone = infer(pool, prompt, 64)
        once = traffic("constant:1", f"prompt=fixed:{prompt};output=fixed:64", 1, 0)
        assert of(serve(Deployment((pool,)), once, interval=False)).work_j == pytest.approx(alone.joules, rel=1e-6)


def test_a_lower_clock_slows_prompts_and_spares_energy() -> None:
    full, slow = (infer(Pool("llama-3-8b", ONE, clock_hz=clock, front_s=0.0), 1024, 64) for clock in (None, 990e6))
    assert full.tpot_s is not None
    assert slow.tpot_s is not None
    assert 1.5 < slow.ttft_s / full.ttft_s <= 2.0  # half the clock; it was not at the boost clock at full power
    assert full.tpot_s <= slow.tpot_s < 1.02 * full.tpot_s
    assert slow.joules < 0.95 * full.joules
    none = infer(Pool("llama-3-8b", ONE, clock_hz=1980e6, front_s=0.0), 1024, 64)
    assert none.e2e_s == full.e2e_s
    assert none.joules == pytest.approx(full.joules)


@pytest.mark.parametrize("weights", ["bf16", "fp8"])
def test_a_clock_slows_products_from_that_on_at_which_their_power_lets_them_run(weights: str) -> None:
    """And no sooner: what they draw by themselves has slowed them already."""
    own = PRECISIONS[weights].multiplied
    burst = burst_clock(ONE.model(0), own)
    full = ONE.model(0).clock_hz or 0.0
    assert burst < 0.85
    up = {}
    for clock in (None, 1.05 * burst, 0.8 * burst):
        pool = Pool("llama-3-70b", ONE, weights=weights, clock_hz=None if clock is None else clock * full)
        up[clock] = float(kernels_of(pool, checked(pool)).operators([8192])["up"][0])
    free, above, below = up.values()
    assert above == pytest.approx(free, rel=1e-3)
    assert below == pytest.approx(free / 0.8, rel=0.01)


def test_joules_do_not_fall_at_a_clock_that_power_keeps_from() -> None:
    free, high, low = (
        infer(Pool("llama-3-8b", H200, clock_hz=clock, engine_options={"max-tokens": "8192"}), 8000, 1).joules
        for clock in (None, 1700e6, 1200e6)
    )
    assert high == pytest.approx(free, rel=0.02)
    assert low < 0.95 * free


def test_a_cap_holds_and_a_high_one_changes_nothing() -> None:
    free = served(Pool("llama-3-8b", ONE))
    same = served(Pool("llama-3-8b", ONE, power_cap_w=800.0))
    assert same.metrics.distributions == free.metrics.distributions
    assert of(same).node_j == pytest.approx(of(free).node_j)
    before = free
    for cap in (500.0, 400.0, 300.0):
        held = served(Pool("llama-3-8b", ONE, power_cap_w=cap))
        assert of(held).busy_w <= cap
        assert held.metrics.distributions["ttft"].mean >= before.metrics.distributions["ttft"].mean
        before = held
    least = lowest_cap(ONE.model(0))
    assert least is not None
    with pytest.raises(InputError, match="the lowest that works is"):
        served(Pool("llama-3-8b", ONE, power_cap_w=0.9 * least))


def test_pools_of_a_fleet_have_clocks_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    pool = '[[pool]]\nname = "{}"\nrole = "{}"\nmodel = "llama-3-8b"\n{}\n'
    path.write_text('device = "H100"\ndevices = 2\n' + pool.format("p", "prefill", "") + pool.format(
        "d", "decode", 'clock = "990 MHz"\npower-cap = "500W"'))  # fmt: skip
    traffic_of = COMMAND[4:]
    found = json.loads(run("serve", path, *traffic_of, "--json", "-").stdout)
    assert found["energy"]["clocks"] == [1.0, 0.5]
    assert [one["clock_hz"] for one in found["pools"]] == [None, 990e6]
    assert found["pools"][1]["power_cap_w"] == 500
    assert "leave out --clock" in run("serve", path, *traffic_of, "--clock", "900", code=2).stderr


def test_flash_attention_of_prompts_and_decodes_in_one_call_follows_the_clock() -> None:
    a100 = system(device="A100", devices=1)
    kernels = [kernels_of(own, checked(own)) for own in (
        Pool("llama-3-8b", a100), Pool("llama-3-8b", a100, clock_hz=705e6),
    )]  # fmt: skip
    assert all(one.one_call for one in kernels)
    full, slow = (one.together([(2048, 0)], 8, 512.0) for one in kernels)
    assert 1.5 < slow / full <= 2.0


def test_the_clock_of_least_energy_keeps_the_goals() -> None:
    own, slo = Deployment((Pool("llama-3-8b", ONE),)), parse_slo("ttft=p99:60ms")
    found = least_energy_clock(own, TRAFFIC, slo)
    assert found.kept
    assert all(met for *_, met in found.result.metrics.goals)
    kept = {clock: of(one).node_j for clock, one in found.tried.items() if all(met for *_, met in one.metrics.goals)}
    assert of(found.result).node_j == min(kept.values())
    assert found.clock_hz < max(found.tried)
    assert any(clock < found.clock_hz for clock in found.tried)
    hopeless = least_energy_clock(own, TRAFFIC, parse_slo("ttft=p99:1ms"))
    assert not hopeless.kept
    assert hopeless.clock_hz == max(found.tried)
    with pytest.raises(InputError, match="give --slo"):
        least_energy_clock(own, TRAFFIC, ())
    with pytest.raises(InputError, match="give only one"):
        least_energy_clock(Deployment((replace(own.pools[0], clock_hz=1e9),)), TRAFFIC, slo)


def test_the_command_says_joules_and_takes_limits(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    assert "J an output token" in run(*COMMAND, "--json", path, "--clock", "990MHz").stdout
    written = json.loads(path.read_text())
    assert written["energy"]["clocks"] == [0.5]
    assert written["pools"][0]["clock_hz"] == 990e6
    found = {row.unit: row for row in cost(usage.read(path)).rows}
    assert set(found) == {"run", "million output tokens", "request"}
    assert found["run"].it_kwh * 3.6e6 == pytest.approx(written["energy"]["node_j"])
    assert found["run"].hours * 3600 == pytest.approx(written["duration_s"])
    tokens = written["output_tokens"]
    assert found["million output tokens"].usd == pytest.approx(found["run"].usd * 1e6 / tokens)
    cheap = json.loads(run(*COMMAND, "--json", "-", "--constant", "host.share=0", "--power-cap", "400W").stdout)
    assert cheap["energy"]["host_j"] == 0


def test_devices_of_a_mixed_fleet_keep_their_own_clocks() -> None:
    a100 = system(device="A100-SXM4-80GB", devices=1)
    own = Deployment((Pool("llama-3-8b", ONE, name="h"), Pool("llama-3-8b", a100, name="a")))
    slo = parse_slo("ttft=p99:1s")
    found = least_energy_clock(own, TRAFFIC, slo)
    assert dict(found.boost_hz) == {"H100-SXM5-80GB": 1980e6, "A100-SXM4-80GB": 1410e6}
    assert max(found.tried) == 1980e6  # that of the full clock, at which both run at their own
    assert of(found.tried[1980e6]).clocks == (1.0, 1.0)
    between = [clock for clock in found.tried if 1410e6 < clock < 1980e6]
    assert between
    for clock in between:
        first, second = found.tried[clock].deployment.pools
        assert (first.clock_hz, second.clock_hz) == (clock, 1410e6)
        assert of(found.tried[clock]).node_j <= of(found.tried[1980e6]).node_j


def test_the_command_finds_the_clock(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    shown = run(*COMMAND, "--find", "clock", "--slo", "ttft=p99:60ms", "--json", path).stdout
    assert "Least energy at" in shown
    assert "missed" in shown
    written = json.loads(path.read_text())
    assert written["kept"]
    assert written["clock_mhz"] * 1e6 == pytest.approx(written["pools"][0]["clock_hz"])
    assert "no clock keeps the goals" in run(*COMMAND, "--find", "clock", "--slo", "ttft=p99:1ms").stdout


def test_a_request_takes_limits_and_says_which_clock_is_best(tmp_path: Path) -> None:
    asked = ("infer", "llama-3-8b", "--device", "H100", "--prompt", "512", "--output", "32")
    path = tmp_path / "request.json"
    free, held = (json.loads(run(*asked, "--json", "-", *more).stdout) for more in ((), ("--power-cap", "300W")))
    assert held["ttft_s"] > free["ttft_s"]
    assert held["energy"]["mean_w_per_device"] <= 300 * (1 + 1e-9)
    shown = run(*asked, "--find", "clock", "--slowdown", "10%", "--json", path).stdout
    assert "Least energy at" in shown
    best = json.loads(path.read_text())
    assert best["e2e_s"] <= 1.1 * free["e2e_s"]
    assert best["energy"]["request_j"] < free["energy"]["request_j"]
    rows = {row.unit: row for row in cost(usage.read(path)).rows}
    assert rows["request"].it_kwh * 3.6e6 == pytest.approx(best["energy"]["request_j"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--power-cap", "60"], "the lowest that works is"), (["--clock", "9GHz"], "outside those of H100"),
        (["--find", "clock"], "give --slo"), (["--constant", "gold=1"], "unknown constant"),
        (["--find", "clock", "--slo", "ttft=1s", "--clock", "900"], "give only one"),
        (["--find", "gold", "--slo", "ttft=1s"], "give rate, fleet or clock"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_one_sentence(words: list[str], said: str) -> None:
    done = run(*COMMAND, *words, code=2)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
