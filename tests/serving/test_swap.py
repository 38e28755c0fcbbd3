"""Preemption by swapping."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.command import run
from tests.serving.fleets import MS, Linear, replica
from triosim.core.errors import InputError
from triosim.hardware import machine
from triosim.serving.fleet import FleetRun, play
from triosim.serving.policy import ENGINES
from triosim.serving.replica import Replica
from triosim.serving.requests import RequestTable
from triosim.serving.router import ROUTERS
from triosim.serving.swap import HostCopies, SwappingCache

BLOCK = 1000.0
NOTHING = HostCopies(0, float("inf"))


def swapping(engine: str, blocks: int, host: int = 1000, copies: HostCopies = NOTHING) -> Replica:
    policy = ENGINES.get(engine)()
    cache = SwappingCache(blocks, policy.block_tokens, host, BLOCK, copies)
    return Replica(0, policy, cache, Linear(), 4096)


def served(table: RequestTable, one: Replica) -> FleetRun:
    return play(table, [one], ROUTERS.get("round-robin")())


PAIR = RequestTable.of([0.0, 0.0], [60, 60], [40, 40])
"""Two prompts of four blocks that want seven each."""


@pytest.mark.parametrize("engine", ["vllm", "vllm-2023", "sarathi"])
@given(st.lists(st.tuples(st.integers(1, 120), st.integers(2, 60)), min_size=2, max_size=12), st.integers(14, 40))
def test_nothing_is_computed_twice_and_all_comes_back(engine: str, lengths: list[tuple[int, int]], blocks: int) -> None:
    prompts, outputs = zip(*lengths, strict=True)
    table = RequestTable.of([0.0] * len(lengths), prompts, outputs)
    one = swapping(engine, blocks)
    found = served(table, one)
    cache = one.cache
    assert isinstance(cache, SwappingCache)
    assert found.computed.sum() == table.prompt.sum() + table.output.sum() - len(table)
    assert (cache.free, cache.host_free) == (blocks, 1000)
    assert cache.moved % 2 == 0
    assert (cache.moved > 0) == (found.restarts.sum() > 0)


@pytest.mark.parametrize("engine", ["vllm", "vllm-2023", "sarathi"])
def test_a_step_waits_for_the_copies_and_for_nothing_else(engine: str) -> None:
    latency, bandwidth = 7 * MS, 1e6  # a block takes a millisecond
    free, paid = (
        served(PAIR, swapping(engine, 12)),
        served(PAIR, swapping(engine, 12, 99, HostCopies(latency, bandwidth))),
    )
    assert free.restarts.sum() > 0
    assert free.restarts.tolist() == paid.restarts.tolist()
    copies = 2 * int(free.restarts.sum())
    cost = copies * latency + int(paid.swapped_blocks) * MS
    assert paid.finished.max() - free.finished.max() == cost


@pytest.mark.parametrize("engine", ["vllm", "sarathi"])
def test_what_the_host_has_no_room_for_is_computed_again(engine: str) -> None:
    kept, lost = served(PAIR, swapping(engine, 12, 1)), served(PAIR, replica(engine, 12))
    assert kept.swapped_blocks == 0
    for name in ("finished", "first_token", "restarts", "waited"):
        assert getattr(kept, name).tolist() == getattr(lost, name).tolist()


def test_copies_take_their_bytes_at_the_links_bandwidth() -> None:
    copies = HostCopies.of(machine.system(None, device="H100-SXM5-80GB", at_least=1), 0)
    whole, half = copies.ticks(2e9), copies.ticks(1e9)
    assert whole - half == pytest.approx(1e9 / copies.bandwidth * 1e12, rel=1e-9)
    assert copies.ticks(0) == copies.latency > 0
    assert 20e9 < copies.bandwidth < 64e9  # a PCIe 5 x16
    node = HostCopies.of(machine.system("dgx-h100"), 3)
    assert node.bandwidth == copies.bandwidth
    assert node.latency >= copies.latency


ASKED = (
    "serve", "llama-3-8b", "--device", "H100-SXM5-80GB", "--requests", "40", "--arrivals", "burst:40", "--lengths",
    "prompt=fixed:200;output=fixed:200", "--kv-blocks", "300", "--interval", "off",
)  # fmt: skip


def test_the_command_swaps_and_says_so() -> None:
    again, swapped = run(*ASKED), run(*ASKED, "--preemption", "swap")
    assert "blocks copied to the host and back" in " ".join(swapped.stdout.split())
    assert ", 0 tokens computed again" in swapped.stdout
    assert "copied to the host" not in again.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--preemption", "forget"], "preemption 'forget' is not known"),
        (["--preemption", "swap", "--engine", "sglang"], "the engine sglang swaps nothing"),
        (["--preemption", "swap", "--prefix-caching", "on"], "give prefix caching off"),
        (["--preemption", "swap", "--swap-space", "1kB"], "holds not even one block"),
        (["--swap-space", "1GiB"], "--swap-space is of --preemption swap"),
    ],
)
def test_what_does_not_go_together_is_refused(options: list[str], words: str) -> None:
    found = run(*ASKED, *options, code=2)
    assert words in " ".join(found.stderr.split())


def test_a_server_without_host_memory_is_refused() -> None:
    with pytest.raises(InputError, match="no host memory"):
        HostCopies.of(machine.system(None, at_least=2, link="10GB/s"), 0)
