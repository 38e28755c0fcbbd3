"""Iterations that vary, and devices that are slower than others: laws and values by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import triosim
from tests.exploring import examples
from tests.traces import chain
from triosim import Fidelity, InputError, Plan
from triosim.hardware.stragglers import parse_stragglers, slowed
from triosim.prediction.result import Result
from triosim.prediction.variation import Stragglers, Variation, parse_variation

ALONE = Fidelity(host="none")


def run(devices: int = 1, variation: Variation | None = None, link: str = "inf", **plan: Any) -> Result:
    """A chain of layers whose figures are recorded."""
    system = triosim.system(devices=devices, link=link)
    return triosim.simulate(chain(layers=plan.pop("layers", 8)), system, Plan(**plan), ALONE, variation=variation)


def test_nothing_varies_where_nothing_is_asked_to() -> None:
    for plan in ({}, {"dp": 4}, {"pp": 2, "dp": 2, "micro_batches": 4}):
        result = run(4, Variation(), "1GB/s", **plan)
        found = result.variation
        assert found is not None
        assert {found.p50_s, found.p95_s, found.p99_s} == {result.iteration_time_s}
        assert found.mean_s == pytest.approx(result.iteration_time_s, rel=1e-12)
    assert run(1).variation is None


def test_one_device_varies_as_it_is_said_to() -> None:
    """A job that only computes takes the device's factor: a lognormal of mean 1."""
    spread = 0.1
    result = run(1, Variation(devices=spread))
    found, seconds = result.variation, result.iteration_time_s
    assert found is not None
    assert found.draws == 200
    assert found.p50_s == pytest.approx(seconds * np.exp(-(spread**2) / 2), rel=1e-6)  # of mirrored draws
    assert np.log(found.p95_s / found.p50_s) == pytest.approx(1.645 * spread, rel=0.15)
    assert found.mean_s == pytest.approx(seconds, rel=2e-3)
    assert found.alone["devices"] == pytest.approx(found.mean_s / seconds - 1)


def test_replicas_wait_for_the_slowest() -> None:
    """Mean of the largest of n lognormals, drawn here by themselves."""
    spread, replicas = 0.1, 16
    result = run(replicas, Variation(devices=spread), dp=replicas)
    z = np.random.default_rng(1).standard_normal((20_000, replicas))
    most = np.exp(spread * z - spread**2 / 2).max(axis=1)
    found = result.variation
    assert found is not None
    assert found.mean_s / result.iteration_time_s == pytest.approx(most.mean(), rel=0.01)
    assert found.p95_s / result.iteration_time_s == pytest.approx(np.quantile(most, 0.95), rel=0.03)


def test_many_operators_even_out() -> None:
    """The sum of n equal parts that vary by themselves varies by a root of n less."""
    few, many = (run(1, Variation(operators=0.2), layers=n).variation for n in (4, 64))
    assert few is not None
    assert many is not None
    width = [np.log(found.p95_s / found.p50_s) for found in (few, many)]
    assert width[0] / width[1] == pytest.approx(4, rel=0.25)


def test_transfers_vary_by_themselves() -> None:
    result = run(2, Variation(transfers=0.3), "10MB/s", dp=2, overlap=False)
    found, parts = result.variation, result.breakdown_s
    assert found is not None
    share = parts.exposed_communication / result.iteration_time_s
    assert share > 0.3
    moved = result.iteration_time_s * share
    assert found.p95_s - found.p50_s == pytest.approx(moved * (np.exp(1.645 * 0.3) - 1), rel=0.35)
    assert run(1, Variation(transfers=0.3)).variation.p99_s == run(1).iteration_time_s  # type: ignore[union-attr]


def test_stragglers_come_as_often_as_said() -> None:
    """With n devices a share p of iterations 1 - (1 - p)^n waits for one that takes twice as long."""
    result = run(4, Variation(stragglers=Stragglers(0.2, 2.0)), dp=4)
    found = result.variation
    assert found is not None
    assert found.mean_s / result.iteration_time_s == pytest.approx(1 + (1 - 0.8**4), abs=0.08)
    assert found.p99_s == pytest.approx(2 * result.iteration_time_s)
    every = run(4, Variation(stragglers=Stragglers(1.0, 3.0)), dp=4)
    assert every.variation.p50_s == pytest.approx(3 * every.iteration_time_s)  # type: ignore[union-attr]


def test_the_same_seed_draws_the_same_and_kinds_are_drawn_apart() -> None:
    one = run(4, Variation(devices=0.1), dp=4).variation
    assert one == run(4, Variation(devices=0.1), dp=4).variation
    both = run(4, Variation(devices=0.1, operators=0.05), dp=4).variation
    assert one is not None
    assert both is not None
    assert both.alone["devices"] == one.alone["devices"]
    assert both.mean_s > one.mean_s


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("devices=0.02", Variation(devices=0.02)),
        ("operators=0.05,transfers=1e-1", Variation(operators=0.05, transfers=0.1)),
        ("stragglers=0.01x1.5", Variation(stragglers=Stragglers(0.01, 1.5))),
    ],
)
def test_what_is_typed(text: str, found: Variation) -> None:
    assert parse_variation(text) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not understood at ''"),
        ("device=0.1", "not understood at 'device=0.1'"),
        ("devices", "not understood at 'devices'"),
        ("devices=a", "not understood"),
        ("devices=1e", "not understood"),
        ("devices=0.1,devices=0.2", "each once"),
        ("devices=2", "no spread from 0 to 1"),
        ("stragglers=0.1", "not understood"),
        ("stragglers=0.1x0.5", "factor from 1 up"),
        ("stragglers=2x2", "no share up to 1"),
    ],
)
def test_what_is_typed_wrong(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_variation(text)


# --- devices that are always slow -------------------------------------------------------------------------------------


def straggling(factors: dict[int, float], devices: int = 4, link: str = "inf", **plan: Any) -> Result:
    """The same with some devices slower."""
    system = slowed(triosim.system(devices=devices, link=link), factors)
    return triosim.simulate(chain(layers=8), system, Plan(**plan), ALONE)


@pytest.mark.parametrize("plan", [{"dp": 4}, {"pp": 4, "micro_batches": 8}, {"dp": 2, "pp": 2, "micro_batches": 4}])
def test_a_factor_of_one_changes_nothing(plan: dict[str, int]) -> None:
    one, plain = straggling({0: 1.0, 3: 1.0}, link="1GB/s", **plan), run(4, link="1GB/s", **plan)
    assert one.iteration_time_s == plain.iteration_time_s
    assert one.to_dict()["collectives"] == plain.to_dict()["collectives"]


@settings(max_examples=examples(20))
@given(st.integers(0, 3), st.floats(1.0, 4.0))
def test_one_slow_replica_holds_up_all(device: int, factor: float) -> None:
    """As if all were slow, where nothing else takes time."""
    one, all_ = straggling({device: factor}, dp=4), straggling(dict.fromkeys(range(4), factor), dp=4)
    assert one.iteration_time_s == pytest.approx(all_.iteration_time_s, rel=1e-9)
    assert one.iteration_time_s == pytest.approx(factor * run(4, dp=4).iteration_time_s, rel=1e-9)


def test_a_slow_device_gets_fewer_layers() -> None:
    plain, slow = run(2, pp=2, micro_batches=8), straggling({1: 3.0}, 2, pp=2, micro_batches=8)
    assert slow.iteration_time_s < 3 * plain.iteration_time_s / 1.5
    busy = [stage.compute_s for stage in slow.stages]
    assert busy[1] == pytest.approx(busy[0], rel=0.5)  # 6 layers and 2


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["3"], "not understood"),
        (["3=0.5"], "1 or more"),
        (["5-3=2"], "not understood"),
        (["1=2", "0-3=2"], "device 1 is named twice"),
    ],
)
def test_stragglers_typed_wrong(texts: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_stragglers(texts)


def test_stragglers_typed() -> None:
    assert parse_stragglers(["5=1.25", "0-1=2"]) == {5: 1.25, 0: 2.0, 1: 2.0}
    with pytest.raises(InputError, match="devices 0 to 3"):
        slowed(triosim.system(devices=4, link="inf"), {4: 2.0})


def test_on_the_command_line() -> None:
    command = [
        sys.executable, "-m", "triosim", "train", "gpt2", "--device", "A100-SXM4-80GB", "--devices", "4", "--link",
        "25GB/s", "--straggler", "3=1.5", "--variation", "devices=0.02,stragglers=0.01x1.5",
    ]  # fmt: skip
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "Varies" in shown
    assert "stragglers 0.01x1.5" in shown
    document = json.loads(subprocess.run([*command, "--json", "-"], capture_output=True, text=True, check=True).stdout)
    found = document["variation"]
    assert found["p50_s"] <= found["p95_s"] <= found["p99_s"]
    assert set(found["alone"]) == {"devices", "stragglers"}
    refused = subprocess.run([*command, "--sweep", "tp=1,2"], capture_output=True, text=True)
    assert refused.returncode == 2
    assert "--variation is of one prediction" in refused.stderr
