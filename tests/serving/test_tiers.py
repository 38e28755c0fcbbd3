"""Tiers of KV cache behind a device's own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.command import run
from tests.serving.fleets import MS, Linear, replica
from triosim.core.columns import Ragged
from triosim.core.errors import InputError
from triosim.hardware import machine
from triosim.hardware.system import System
from triosim.serving.fleet import FleetRun, play
from triosim.serving.policy import ENGINES
from triosim.serving.replica import Replica
from triosim.serving.requests import PromptHashes, RequestTable
from triosim.serving.router import ROUTERS
from triosim.serving.tiers import CacheTier, TieredCache, TierTraffic, parse_tier
from triosim.serving.traffic import traffic as made_up

BLOCK = 1_000_000.0
HUGE = 1e15


def node(devices: int = 1, link: str = "1GB/s") -> System:
    return machine.system(None, device="H100-SXM5-80GB", devices=devices, host_link=link)


def tiered(engine: str, blocks: int, number: int = 0, block_tokens: int = 16) -> Replica:
    policy = ENGINES.get(engine)(block_tokens=block_tokens)
    return Replica(number, policy, TieredCache(blocks, block_tokens, policy.radix), Linear(), 4096)


def served(
    table: RequestTable, replicas: Sequence[Replica], tiers: Sequence[CacheTier] = (CacheTier("host", HUGE),),
    system: System | None = None, router: str = "round-robin",
) -> tuple[FleetRun, TierTraffic]:  # fmt: skip
    traffic = TierTraffic(system or node(len(replicas)))
    for one in replicas:
        traffic.attach(one, one.number, 1, tiers, BLOCK, 0)
    return play(table, replicas, ROUTERS.get(router)(), tiers=traffic), traffic


def asks(arrived: Sequence[float], rows: Sequence[Sequence[int]], output: int = 4) -> RequestTable:
    """Prompts that are whole blocks by name, and a few tokens more."""
    hashes = PromptHashes(Ragged.of([list(row) for row in rows]), 16, False)
    return RequestTable.of(arrived, [16 * len(row) + 3 for row in rows], [output] * len(rows), hashes=hashes)


PUSHED_OUT = asks([0, 1, 2], [range(10), range(100, 110), range(10)])
"""The third asks for what the first left and the second has pushed out of a cache that one of them fills."""


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_what_was_pushed_out_comes_back(engine: str) -> None:
    lost, found = tiered(engine, 11), tiered(engine, 11)
    plain, _ = served(PUSHED_OUT, [lost], ())
    kept, traffic = served(PUSHED_OUT, [found])
    assert plain.cached.tolist() == [0, 0, 0]
    assert kept.cached.tolist() == [0, 0, 160]
    assert (traffic.loaded, traffic.reloads) == (10 * BLOCK, 1)
    assert traffic.written == 20 * BLOCK
    assert found.cache.free == 11


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_what_is_sent_back_is_still_there_when_its_turn_comes(engine: str) -> None:
    """More requests wait than the cache has room for: reloads for all of them would push each other out again."""
    talks = made_up("poisson:40", "prompt=fixed:160;output=fixed:32", 240, turns="6,think=1s")
    blocks = 180 if engine != "sglang" else 16 * 180
    one = tiered(engine, blocks, block_tokens=16 if engine != "sglang" else 1)
    _, sent = served(talks, [one], system=node(link="9TB/s"))
    came = sent.loaded / BLOCK * one.cache.block_tokens
    assert sent.reloads > 50
    assert one.cache.hit_tokens > 0.9 * came


def test_a_reload_alone_takes_its_bytes_and_the_latency() -> None:
    system = machine.system(None, device="H100-SXM5-80GB", devices=1, host_link="1GB/s")
    found, _ = served(PUSHED_OUT, [tiered("vllm", 11)], system=system)
    assert found.scheduled[2] - found.arrived[2] == 10 * MS
    far = CacheTier("nvme", HUGE, bandwidth=5e8, latency=0.003)
    found, _ = served(PUSHED_OUT, [tiered("vllm", 11)], [far], system)
    assert found.scheduled[2] - found.arrived[2] == 20 * MS + 3 * MS


def test_two_reloads_share_the_link() -> None:
    rows = [range(10), range(100, 110), range(200, 210), range(300, 310), range(10), range(100, 110)]
    table = asks([0, 1, 2, 3, 4, 4], rows)
    found, _ = served(table, [tiered("vllm", 22)])
    assert found.cached.tolist() == [0, 0, 0, 0, 160, 160]
    assert (found.scheduled - found.arrived)[4:].tolist() == [20 * MS, 20 * MS]


def test_others_run_while_blocks_come() -> None:
    rows = [range(10), range(100, 110), range(1000, 1001), range(10)]
    table = asks([0, 1, 2, 2.01], rows, 40)
    both, traffic = served(table, [tiered("vllm", 20)])
    alone, _ = served(asks([0, 1, 2], rows[:3], 40), [tiered("vllm", 20)])
    assert both.cached.tolist()[3] == 160
    begin, there = both.arrived[3], both.scheduled[3]
    assert begin < alone.finished[2]
    reload = traffic.loaded / BLOCK * MS
    assert reload >= 4 * MS
    assert reload <= there - begin <= reload + 2 * MS  # it joins a step, which has to begin
    assert both.waited[2] == 0


def test_cold_tiers_change_nothing() -> None:
    draw = np.random.default_rng(3)
    table = RequestTable.of(np.cumsum(draw.exponential(0.02, 60)), draw.integers(20, 300, 60), draw.integers(1, 40, 60))
    with_tiers, traffic = served(table, [tiered("vllm", 400)])
    without = play(table, [replica("vllm", 400, reuse=True)], ROUTERS.get("round-robin")(), core=False)
    assert traffic.loaded == 0 < traffic.written
    assert with_tiers.finished.tolist() == without.finished.tolist()


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 8)), min_size=1, max_size=20), st.integers(14, 30),
    st.sampled_from([0.0, 0.01, 1.0]), st.integers(3, 200),
)  # fmt: skip
def test_tokens_and_blocks_are_conserved(asked: list[tuple[int, int]], blocks: int, gap: float, held: int) -> None:
    rows = [range(kind * 1000, kind * 1000 + count) for kind, count in asked]
    table = asks([gap * place for place in range(len(rows))], rows)
    one = tiered("vllm", blocks)
    found, traffic = served(table, [one], [CacheTier("host", held * BLOCK)])
    assert one.cache.free == blocks
    assert one.loading == 0
    assert (found.finished > 0).all()
    tokens = int(table.prompt.sum() + table.output.sum()) - len(table)
    assert found.computed.sum() + found.hit_tokens >= tokens
    if not found.restarts.any():
        assert found.computed.sum() + found.hit_tokens == tokens
    assert traffic.loaded % BLOCK == 0


def test_an_unlimited_tier_over_an_unlimited_link_is_an_unlimited_cache() -> None:
    draw = np.random.default_rng(5)
    rows = [
        range(kind * 1000, kind * 1000 + count)
        for kind, count in zip(draw.integers(0, 6, 80), draw.integers(1, 10, 80), strict=True)
    ]
    table = asks(np.arange(80.0).tolist(), rows)
    small, _ = served(table, [tiered("vllm", 11)], system=node(link="inf"))
    large = play(table, [replica("vllm", 5000, reuse=True)], ROUTERS.get("round-robin")())
    assert small.cached.tolist() == large.cached.tolist()
    assert small.finished.tolist() == large.finished.tolist()


def test_a_host_is_shared_by_the_replicas_of_a_server() -> None:
    table = asks([0, 1], [range(10), range(10)])
    found, _ = served(table, [tiered("vllm", 50, 0), tiered("vllm", 50, 1)])
    assert found.replica.tolist() == [0, 1]
    assert found.cached.tolist() == [0, 160]


def test_each_block_comes_from_the_first_tier_that_has_it() -> None:
    near, far = CacheTier("host", 4 * BLOCK), CacheTier("nvme", HUGE, bandwidth=5e8)
    table = asks([0, 1, 2, 3], [range(10), range(100, 104), range(200, 210), range(100, 104)])
    found, traffic = served(table, [tiered("vllm", 11)], [near, far])
    assert found.cached.tolist() == [0, 0, 0, 64]
    assert traffic.loaded == 4 * BLOCK
    assert found.scheduled[3] - found.arrived[3] == 8 * MS  # the host holds the four last blocks of the third


ASKED = (
    "serve", "llama-3-8b", "--device", "H100-SXM5-80GB", "--kv-blocks", "400", "--interval", "off",
)  # fmt: skip


def test_the_command_keeps_conversations(tmp_path: Path) -> None:
    turn = {"prompt_tokens": 800, "output_tokens": 50, "think": 5}
    lines = [json.dumps({"arrived_at": place * 0.5, "turns": [turn, turn, turn]}) for place in range(20)]
    (tmp_path / "asked.jsonl").write_text("\n".join(lines) + "\n")
    requests = ("--requests", tmp_path / "asked.jsonl", "--json", "-")
    plain = json.loads(run(*ASKED, *requests).stdout)
    kept = json.loads(run(*ASKED, *requests, "--kv-tier", "host:100GB").stdout)
    assert kept["prefix_hit_rate"] > plain["prefix_hit_rate"]
    assert kept["kv_loaded_bytes"] > 0
    assert kept["latency_s"]["ttft"]["mean"] < plain["latency_s"]["ttft"]["mean"]
    assert "KV tiers" in run(*ASKED, *requests[:2], "--kv-tier", "host:100GB").stdout


@pytest.mark.parametrize(
    ("tier", "words"),
    [
        ("tape:1TB", "tier 'tape:1TB' is not known"),
        ("host", "tier 'host' is not known"),
        ("host:1kB", "holds not even one block"),
        ("nvme:1TB", "have a bandwidth"),
        ("host:1TB,bandwidth=1GB/s", "have a bandwidth"),
        ("peer:1GB", "has a device"),
        ("peer:1GB,device=0", "serves itself"),
        ("peer:1GB,device=9", "on device 9 of 1"),
    ],
)
def test_what_cannot_be_a_tier_is_refused(tier: str, words: str) -> None:
    done = run(*ASKED, "--arrivals", "poisson:8", "--lengths", "fixed:100", "--kv-tier", tier, code=2)
    assert words in " ".join(done.stderr.split())


def test_a_peers_memory_is_reached_over_their_link() -> None:
    system = machine.system("dgx-h100")
    tiers = [parse_tier("peer:40GB,device=7")]
    traffic = TierTraffic(system)
    one = tiered("vllm", 11)
    traffic.attach(one, 0, 1, tiers, 1e9, 0)
    found = play(PUSHED_OUT, [one], ROUTERS.get("round-robin")(), tiers=traffic)
    seconds = (found.scheduled[2] - found.arrived[2]) / 1e12
    assert 10e9 / 450e9 < seconds < 10e9 / 300e9  # NVLink 4: 450 GB/s a direction
    with pytest.raises(InputError, match="not even one block"):
        traffic.attach(tiered("vllm", 12, 1), 1, 1, [CacheTier("peer", 1e6, device=7)], 1e9, 0)
