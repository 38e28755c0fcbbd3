"""Models that take turns on one device."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.command import run
from tests.serving.fleets import MS, replica
from triosim.core.units import MOST_SUM
from triosim.serving.fleet import FleetRun, ReplicaGroup, play
from triosim.serving.requests import RequestTable
from triosim.serving.router import ROUTERS
from triosim.serving.time_sharing import SharedDevices, TimeSharing

COLD = (50 * MS, 80 * MS)
FLEET = """
device = "H100-SXM5-80GB"
{turn}

[[pool]]
name = "small"
model = "llama-3-8b"

[[pool]]
name = "large"
model = "qwen2.5-14b"
shares = "small"
"""


def taking_turns(
    arrived_s: list[float], models: list[str], turn: int = MOST_SUM, cold: tuple[int, int] = COLD, output: int = 10
) -> tuple[FleetRun, TimeSharing]:
    count = len(arrived_s)
    table = RequestTable.of(arrived_s, [20] * count, [output] * count, model=models)
    pair = [replica("vllm", number=number) for number in range(2)]
    groups = {name: ReplicaGroup([one], ROUTERS.get("round-robin")()) for name, one in zip("ab", pair, strict=True)}
    sharing = TimeSharing([SharedDevices(pair, cold, turn)])
    return play(table, pair, groups=[groups[name] for name in table.models], sharing=sharing), sharing


def test_the_second_waits_for_the_first_and_for_its_weights() -> None:
    alone, none = taking_turns([0.0], ["a"])
    assert none.swaps == 0
    served, sharing = taking_turns([0.0, 0.001, 0.002], ["a", "b", "a"])
    assert (sharing.swaps, sharing.loading) == (1, COLD[1])
    first = max(served.finished[0], served.finished[2])
    assert served.scheduled[1] == first + COLD[1]
    assert served.finished[1] - served.scheduled[1] == alone.finished[0]
    assert not served.restarts.any()


def test_whose_turn_is_over_computes_again() -> None:
    served, sharing = taking_turns([0.0, 0.001], ["a", "b"], turn=5 * MS, output=20)
    assert min(served.restarts) > 0
    assert (served.restarts == served.displaced).all()
    assert served.restarts.sum() == sharing.swaps - 1  # who ends first gives its devices away with nothing lost
    once, _ = taking_turns([0.0, 0.001], ["a", "b"], output=20)
    assert served.computed.sum() > once.computed.sum()


@given(st.lists(st.tuples(st.integers(0, 100), st.sampled_from("ab")), min_size=1, max_size=12),
       st.sampled_from([1, MS, 20 * MS, MOST_SUM]), st.integers(0, 30))  # fmt: skip
def test_all_are_served_and_devices_are_never_shared(rows: list[tuple[int, str]], turn: int, cold_ms: int) -> None:
    gaps, models = zip(*rows, strict=True)
    cold = (cold_ms * MS, cold_ms * MS)
    served, sharing = taking_turns((np.cumsum(gaps) / 1000).tolist(), list(models), turn, cold)
    assert (served.finished >= served.first_token).all()
    assert (served.first_token > served.arrived).all()
    time = int(served.finished.max() - served.arrived.min())
    assert served.busy.sum() + sharing.loading <= time
    if turn == MOST_SUM:
        assert not served.restarts.any()
        assert sharing.swaps <= len(rows)


def test_a_file_of_a_fleet(tmp_path: Path) -> None:
    fleet, requests = tmp_path / "fleet.toml", tmp_path / "requests.jsonl"
    models = ["llama-3-8b", "llama-3-8b", "qwen2.5-14b", "llama-3-8b", "qwen2.5-14b"]
    requests.write_text("".join(
        json.dumps({"arrived_at": 2.0 * at, "prompt_tokens": 200, "output_tokens": 50, "model": model}) + "\n"
        for at, model in enumerate(models)
    ))  # fmt: skip
    fleet.write_text(FLEET.format(turn='turn = "10s"'))
    done = run("serve", fleet, "--requests", requests, "--interval", "off")
    assert "swapped 3 times between models" in done.stdout
    found = json.loads(run("serve", fleet, "--requests", requests, "--interval", "off", "--json", "-").stdout)
    assert found["weight_swaps"] == 3
    # 16 and 29 GB over 64 GB/s of the host's link
    assert 0.9 < found["weight_swap_s"] / ((2 * 29.5e9 + 16.1e9) / 64e9) < 1.3
    alone = FLEET.format(turn="").replace('shares = "small"', "")
    fleet.write_text(alone)
    apart = json.loads(run("serve", fleet, "--requests", requests, "--interval", "off", "--json", "-").stdout)
    assert apart["weight_swaps"] == 0
    cost = found["dollars_per_million_tokens"] / apart["dollars_per_million_tokens"]
    assert abs(cost - found["duration_s"] / apart["duration_s"] / 2) < 1e-6
    busy = (found["utilisation"] * found["duration_s"], 2 * apart["utilisation"] * apart["duration_s"])
    assert abs(busy[0] / busy[1] - 1) < 1e-6


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (('shares = "small"', 'shares = "tiny"'), "give one of small"),
        (('shares = "small"', 'shares = "small"\ndevice = "A100-SXM4-80GB"'), "leave its own system or device out"),
        (('shares = "small"', 'shares = "small"\nreplicas = 2'), "as many replicas"),
        (('shares = "small"', 'shares = "small"\nmtbf = "1h"'), "none come and go"),
        (('shares = "small"', ""), "turn is of pools that share devices"),
        (('turn = "1s"', 'turn = "0s"'), "turn must be above zero"),
    ],
)
def test_what_cannot_share_is_refused(tmp_path: Path, change: tuple[str, str], why: str) -> None:
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(FLEET.format(turn='turn = "1s"').replace(*change))
    done = run("serve", fleet, "--arrivals", "poisson:1", "--lengths", "fixed:100", "--requests", "5", code=2)
    assert why in done.stderr
