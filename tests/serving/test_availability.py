"""Replicas that fail, and replicas that are there only when they are asked for."""

from __future__ import annotations

import json
from math import inf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.command import run
from tests.exploring import examples
from tests.serving.fleets import MS, Linear, blocks, replica
from tests.serving.test_laws import NAMES, _columns, conserved, tables
from triosim.core.columns import Ragged
from triosim.hardware import machine
from triosim.serving.autoscaling import Autoscaler, AutoscalingPlan, parse_autoscaling
from triosim.serving.availability import Availability, PoolAvailability
from triosim.serving.cold_start import ColdStart, parse_cold_start
from triosim.serving.fleet import FleetRun, play
from triosim.serving.policy import ENGINES
from triosim.serving.replica import Replica
from triosim.serving.requests import PromptHashes, RequestTable
from triosim.serving.router import ROUTERS
from triosim.serving.swap import HostCopies

INSTANT = AutoscalingPlan(target=1, least=0, every="0", down="0", tolerance=0)
"""Looks whenever somebody arrives, and sends away at once who has nothing to do."""


def serve(table: RequestTable, fleet: list[Replica], router: str = "least-outstanding", **how: Any) -> FleetRun:
    cold = how.pop("cold", 0)
    pool = PoolAvailability(0, fleet, [cold] * len(fleet), **how)
    return play(table, fleet, ROUTERS.get(router)(), availability=Availability([pool]))


def fleet_of(engine: str, count: int, tokens: int = 8000, **options: Any) -> list[Replica]:
    return [replica(engine, blocks(engine, tokens), longest=256, number=n, **options) for n in range(count)]


# --- laws -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", NAMES)
@settings(max_examples=15)
@given(table=tables(), number=st.integers(1, 3), router=st.sampled_from(sorted(ROUTERS.names())))
def test_what_never_fails_is_as_if_it_could_not(engine: str, table: RequestTable, number: int, router: str) -> None:
    there = play(table, fleet_of(engine, number), ROUTERS.get(router)(), core=False)
    served = serve(table, fleet_of(engine, number), router, mtbf_s=inf, repair=5 * MS)
    assert _columns(served) == _columns(there)
    assert served.replica.tolist() == there.replica.tolist()
    assert served.history is not None
    assert served.history.failures == served.history.moved == served.history.starts == 0
    assert set(served.history.paid.tolist()) == {int(served.finished.max() - served.arrived.min())}


@pytest.mark.parametrize("engine", ["vllm", "sglang", "lightllm"])
@settings(max_examples=examples(25))
@given(table=tables(30))
def test_who_comes_at_once_and_for_nothing_is_as_if_there_were_enough(engine: str, table: RequestTable) -> None:
    enough = play(table, fleet_of(engine, len(table)), ROUTERS.get("least-outstanding")(), core=False)
    served = serve(table, fleet_of(engine, len(table)), autoscaling=INSTANT)
    assert served.finished.tolist() == enough.finished.tolist()
    assert served.first_token.tolist() == enough.first_token.tolist()
    assert served.history is not None
    assert served.history.paid.sum() >= served.busy.sum()


@pytest.mark.parametrize("engine", NAMES)
@settings(max_examples=examples(30))
@given(
    table=tables(), number=st.integers(1, 3), mtbf=st.floats(0.05, 2), repair=st.integers(0, 100), reuse=st.booleans(),
    stages=st.integers(1, 2), tokens=st.integers(512, 4000),
)  # fmt: skip
def test_tokens_and_blocks_are_conserved_when_replicas_fail(
    engine: str, table: RequestTable, number: int, mtbf: float, repair: int, reuse: bool, stages: int, tokens: int
) -> None:
    if stages > 1 and not ENGINES.get(engine).pipelines:
        return
    fleet = fleet_of(engine, number, tokens, reuse=reuse, times=Linear(stages=stages))
    served = serve(table, fleet, mtbf_s=mtbf, repair=repair * MS, cold=3 * MS, seed=number)
    conserved(served, table)
    assert all(one.cache.free == one.cache.blocks and one.outstanding == 0 for one in fleet)
    assert served.history is not None
    assert served.displaced.sum() <= served.history.moved
    assert (served.displaced <= served.restarts).all()
    assert engine != "orca" or (served.displaced == served.restarts).all()  # which evicts nobody itself
    assert served.history.starts <= served.history.failures
    for one, paid in zip(fleet, served.history.paid.tolist(), strict=True):
        assert 0 <= max(one.busy) <= paid


@pytest.mark.parametrize("engine", ["vllm", "sarathi", "sglang"])
@settings(max_examples=examples(30))
@given(table=tables(), mtbf=st.floats(0.05, 2), target=st.integers(1, 8), every=st.integers(0, 40))
def test_steady_decoding_played_at_once_changes_nothing(
    engine: str, table: RequestTable, mtbf: float, target: int, every: int
) -> None:
    runs = []
    for steady in (True, False):
        fleet = fleet_of(engine, 3)
        for one in fleet:
            one.steady &= steady
        plan = AutoscalingPlan(target, 1, f"{every}ms", "50ms")
        served = serve(table, fleet, mtbf_s=mtbf, repair=9 * MS, cold=4 * MS, autoscaling=plan)
        assert served.history is not None
        runs.append((_columns(served), served.history.paid.tolist(), served.history.failures))
    assert runs[0] == runs[1]


def test_failures_are_as_frequent_as_they_should_be() -> None:
    """Up for the mean time, down for repair and start: the count of a renewal process."""
    count, up, down = 20_000, 0.5, 0.1
    table = RequestTable.of(np.arange(count) * 0.05, np.full(count, 8), np.ones(count))
    served = serve(table, fleet_of("vllm", 4), mtbf_s=up, repair=60 * MS, cold=40 * MS)
    assert served.history is not None
    seconds = float(served.finished.max()) / 1e12
    expected = 4 * seconds / (up + down)
    error = sqrt(4 * seconds * up**2 / (up + down) ** 3)
    assert abs(served.history.failures - expected) < 3 * error
    assert served.history.paid.tolist() == [int(served.finished.max())] * 4


# --- one thing after another ------------------------------------------------------------------------------------------


def test_a_request_goes_on_elsewhere_with_the_output_that_it_has() -> None:
    table = RequestTable.of([0.0], [100], [150])
    alone = int(play(table, fleet_of("vllm", 1), ROUTERS.get("round-robin")(), core=False).finished[0])
    served = serve(table, fleet_of("vllm", 2), mtbf_s=alone / 1e12, repair=10**15)
    assert served.history is not None
    moved = served.history.moved
    assert moved == served.restarts[0] == served.displaced[0] >= 1
    assert alone < served.finished[0] < alone + moved * 20 * MS  # prompt and output again, not token by token


def test_who_finds_nobody_waits_for_the_start() -> None:
    table = RequestTable.of([1.0, 1.5], [100, 100], [5, 5])
    alone = int(play(table, fleet_of("vllm", 1), ROUTERS.get("round-robin")(), core=False).finished[0]) - 1000 * MS
    plan = AutoscalingPlan(target=4, least=0)
    served = serve(table, fleet_of("vllm", 2), autoscaling=plan, cold=2000 * MS)
    assert served.scheduled.tolist() == [3000 * MS] * 2
    assert served.finished[0] >= 3000 * MS + alone
    assert served.history is not None
    assert served.history.starts == 1
    assert served.history.paid.tolist() == [int(served.finished.max()) - 1000 * MS, 0]


@pytest.mark.parametrize("down", ["1s", "20s"])
def test_a_replica_that_was_off_finds_nothing_in_its_cache(down: str) -> None:
    keys = PromptHashes(Ragged.of([[1, 2, 3, 4], [1, 2, 3, 4]]), 16)
    table = RequestTable.of([0.0, 10.0], [65, 65], [5, 5], hashes=keys)
    plan = AutoscalingPlan(target=4, least=0, every="1s", down=down)
    served = serve(table, fleet_of("vllm", 1, reuse=True), autoscaling=plan)
    assert served.history is not None
    assert (served.cached[1], served.history.starts) == ((64, 1) if down == "20s" else (0, 2))


def test_as_many_as_bring_the_mean_to_its_target() -> None:
    scaler = Autoscaler(AutoscalingPlan(target=10, least=1, down="30s"), 8)
    second = 10**12
    assert scaler.wanted(0, 5, 1) == 1
    assert scaler.wanted(second, 25, 1) == 3
    assert scaler.wanted(2 * second, 33, 3) == 3, "within the tolerance"
    assert scaler.wanted(3 * second, 34, 3) == 4
    assert scaler.wanted(4 * second, 1000, 4) == 8
    assert scaler.wanted(5 * second, 12, 8) == 8, "so many were needed a second ago"
    assert scaler.wanted(33 * second, 31, 8) == 8
    assert scaler.wanted(34 * second, 12, 8) == 4, "the most that were needed in the last 30 seconds"
    assert scaler.wanted(100 * second, 0, 4) == 1


def test_a_start_takes_as_long_as_its_weights_are_on_their_way() -> None:
    one, two = machine.system("dgx-h100"), machine.system("dgx-h100", 2)
    assert parse_cold_start("90s").ticks(one, 0, 8, 1e9) == 90 * 10**12
    assert parse_cold_start("5GB/s,start=30s").ticks(one, 0, 2, 10e9) == 34 * 10**12
    bare = machine.system(device="H100-SXM5-80GB", devices=2)
    copies = HostCopies.of(bare, 0)
    assert parse_cold_start("host").ticks(bare, 0, 2, 7e9) == copies.ticks(7e9)
    alone = ColdStart("host").ticks(one, 0, 1, 7e9)
    assert alone == pytest.approx(HostCopies.of(one, 0).ticks(7e9))
    assert ColdStart("host").ticks(one, 0, 8, 7e9) >= alone
    assert ColdStart("network").ticks(two, 0, 1, 7e9) > 0
    assert ColdStart("host").ticks(one, 0, 1, 7e9, slower=2.0) > 1.9 * alone


# --- the command ------------------------------------------------------------------------------------------------------

SERVE = (
    "serve",
    "llama-3-8b",
    "--device",
    "H100-SXM5-80GB",
    "--arrivals",
    "poisson:30",
    "--lengths",
    "uniform:128-512",
)


def test_the_command_scales_and_says_so(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    run(
        *SERVE, "--requests", "1500", "--interval", "off", "--replicas", "4", "--router", "least-outstanding",
        "--autoscale", "target=2,every=1s,down=5s", "--cold-start", "host,start=2s", "--mtbf", "20s", "--repair", "1s",
        "--json", str(out),
    )  # fmt: skip
    told = json.loads(out.read_text())
    assert 1 < told["mean_replicas"] < 4
    assert told["cold_starts"] >= 1
    assert told["replica_failures"] >= 1
    assert told["interruptions"] >= 1
    assert told["preemptions"] == 0  # the cache has room: only failures take what was computed
    assert told["pools"][0]["autoscale"] == "target=2,every=1s,down=5s"
    fixed = run(*SERVE, "--requests", "1500", "--interval", "off", "--replicas", "4", "--json", "-")
    assert json.loads(fixed.stdout)["mean_replicas"] == 4
    assert told["dollars_per_million_tokens"] < json.loads(fixed.stdout)["dollars_per_million_tokens"]


def test_a_file_of_a_fleet_scales_each_pool(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(
        'model = "llama-3-8b"\n[[pool]]\nname = "always"\ndevice = "H100-SXM5-80GB"\n'
        '[[pool]]\nname = "more"\ndevice = "A100-SXM4-80GB"\nreplicas = 2\nautoscale = "target=4,least=0,every=1s"\n'
        'cold-start = "5GB/s"\nmtbf = "50700h"\nrepair = "10min"\n'
    )
    found = run(
        "serve", str(path), "--arrivals", "poisson:60", "--lengths", "uniform:128-512", "--requests", "1200",
        "--interval", "off", "--json", str(tmp_path / "run.json"),
    )  # fmt: skip
    assert "of 3 on average" in found.stdout
    told = json.loads((tmp_path / "run.json").read_text())
    assert told["paid_devices"]["H100-SXM5-80GB"] == 1  # only the other pool's come and go
    assert 0 < told["paid_devices"]["A100-SXM4-80GB"] < 2
    rows = json.loads(run("cost", str(tmp_path / "run.json"), "--json", "-").stdout)["rows"]
    tokens = (told["prompt_tokens"] + told["output_tokens"]) / 1e6
    assert rows[0]["usd"] == pytest.approx(told["dollars_per_million_tokens"] * tokens)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--autoscale", "target=0"), "target"),
        (("--autoscale", "least=1"), "target"),
        (("--autoscale", "target=4,every=soon"), "soon"),
        (("--cold-start", "host"), "--autoscale"),
        (("--mtbf", "1h", "--cold-start", "tape"), "tape"),
        (("--mtbf", "1h", "--cold-start", "network"), "another server"),
        (("--mtbf", "0"), "at least a second"),
        (("--mtbf", "1us"), "at least a second"),
        (("--autoscale", "target=4,least=5", "--replicas", "2"), "more than the replicas there are"),
        (("--repair", "5s"), "--mtbf"),
        (("--mtbf", "1h", "--kv-tier", "host:10GB"), "tiers"),
        (("--mtbf", "1h", "--prefill-replicas", "1", "--decode-replicas", "1"), "other roles"),
    ],
)
def test_bad_input_is_one_sentence(words: tuple[str, ...], says: str) -> None:
    found = run(*SERVE, "--requests", "20", *words, code=2)
    assert says in found.stderr


def test_the_plan_is_read_as_it_is_typed() -> None:
    assert parse_autoscaling("target=32, least=2,every=15s") == AutoscalingPlan(32, 2)
