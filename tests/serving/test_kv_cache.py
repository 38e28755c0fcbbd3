"""Blocks, and prefixes found again."""

from __future__ import annotations

import json
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.command import run
from tests.data import shared
from tests.exploring import examples
from tests.serving.fleets import Linear, replica, serve
from tests.serving.test_laws import conserved
from triosim.core.columns import Ragged
from triosim.core.errors import InputError
from triosim.serving.fleet import block_keys
from triosim.serving.kv_cache import KVCache, LayerGroups, PrefixCache
from triosim.serving.model import served_model
from triosim.serving.policy import ENGINES
from triosim.serving.replica import Replica
from triosim.serving.request_files import load_requests
from triosim.serving.requests import PromptHashes, Request, RequestTable


def request(number: int, keys: tuple[int, ...], prompt: int | None = None, size: int = 4) -> Request:
    return Request(number, number, 0, prompt if prompt is not None else len(keys) * size + 1, 1, keys=keys)


def test_blocks_are_held_and_given_back() -> None:
    cache = KVCache(3, 16)
    one, two = request(0, (), 33), request(1, (), 16)
    assert cache.hold(one, 17)
    assert (one.blocks, cache.free) == (2, 1)
    assert cache.hold(two, 16)
    assert not cache.hold(one, 33)
    assert (one.blocks, cache.free) == (2, 0)
    cache.release(two)
    assert cache.hold(one, 33)
    assert cache.peak == 3


def test_a_cache_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="holds nothing"):
        KVCache(0, 16)


def test_a_prefix_is_found_while_it_is_used_and_afterwards() -> None:
    cache = PrefixCache(8, 4)
    one, two = request(0, (1, 2, 3)), request(1, (1, 2, 9))
    assert cache.start(one, one.known)
    one.computed = one.known
    cache.store(one)
    assert cache.match(two) == 8
    assert cache.start(two, two.known)
    assert (two.computed, two.blocks, cache.free) == (8, 4, 8 - 4 - 2)
    cache.release(one)
    cache.release(two)
    assert cache.free == 8
    assert cache.match(request(2, (1, 2, 3, 4))) == 12


def test_at_least_one_token_is_computed() -> None:
    cache = PrefixCache(8, 4)
    one = request(0, (1, 2), prompt=8)
    cache.start(one, 8)
    one.computed = 8
    cache.store(one)
    assert cache.match(request(1, (1, 2), prompt=8)) == 4


def test_the_least_recently_freed_goes_first_and_of_a_request_the_last() -> None:
    cache = PrefixCache(4, 4)
    for number, keys in enumerate([(1, 2), (3, 4)]):
        one = request(number, keys, prompt=8)
        cache.start(one, 8)
        one.computed = 8
        cache.store(one)
        cache.release(one)
    third = request(2, (), prompt=4)
    cache.start(third, 4)
    assert cache.match(request(3, (1, 2, 7))) == 4  # block 2 was the first to go
    assert cache.match(request(3, (3, 4, 7))) == 8


@settings(max_examples=examples(60))
@given(
    prompts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=30),
    blocks=st.integers(8, 30),
)
def test_nothing_is_lost_with_reuse(prompts: list[list[int]], blocks: int) -> None:
    chains = [[hash((0, *row[: n + 1])) & 0xFFFFFFFF for n in range(len(row))] for row in prompts]
    hashes = PromptHashes(Ragged.of(chains), 16)
    table = RequestTable.of(
        np.arange(len(prompts)) * 3e-3, [16 * len(row) + 1 for row in prompts], np.full(len(prompts), 9), hashes=hashes
    )
    one = replica("vllm", blocks, reuse=True)
    served = serve(table, one)
    conserved(served, table)
    assert one.cache.free == blocks
    assert served.hit_tokens <= served.looked_up_tokens


def test_a_cold_prefix_cache_is_none() -> None:
    """Prompts that share nothing: to the picosecond what a plain cache gives, while nobody is evicted.

    An evicted request finds its own blocks again, and should.
    """
    n = 50
    hashes = PromptHashes(Ragged.of([[100 * row + k for k in range(8)] for row in range(n)]), 16)
    table = RequestTable.of(np.arange(n) * 5e-3, np.full(n, 130), np.full(n, 20), hashes=hashes)
    plain, cold = (serve(table, replica("vllm", 80, reuse=reuse)) for reuse in (False, True))
    assert (plain.finished == cold.finished).all()
    assert (plain.first_token == cold.first_token).all()
    assert plain.restarts.sum() == 0


def test_an_evicted_request_finds_what_is_left_of_its_own() -> None:
    hashes = PromptHashes(Ragged.of([[100 * row + k for k in range(8)] for row in range(20)]), 16)
    table = RequestTable.of(np.zeros(20), np.full(20, 130), np.full(20, 60), hashes=hashes)
    plain, warm = (serve(table, replica("vllm", 80, reuse=reuse)) for reuse in (False, True))
    assert plain.restarts.sum() > 0
    assert warm.hit_tokens > 0
    conserved(warm, table)


def test_blocks_smaller_and_larger_than_the_hashes() -> None:
    hashes = PromptHashes(Ragged.of([[5, 6, 7]]), 32)
    table = RequestTable.of([0], [70], [50], hashes=hashes)
    keys = block_keys(table, 16)[0]
    assert tuple(keys[:4]) == (10, 11, 12, 13)
    assert len(keys) == 120 // 16  # the output's are nobody else's
    assert max(keys[4:]) < 0
    assert block_keys(table, 64)[0] == (6,)
    with pytest.raises(InputError, match="must be a multiple of the other"):
        block_keys(table, 24)


@pytest.mark.parametrize(("size", "hits"), [(None, 105_710), (10_000, 60_921), (30_000, 93_967)])
def test_mooncake_hits(size: int | None, hits: int) -> None:
    """Blocks touched in order, each request stored at once: what the trace's authors' rule gives."""
    table = load_requests(shared("serving", "mooncake", "conversation_trace.jsonl.gz"))
    assert table.hashes is not None
    kept: OrderedDict[int, None] = OrderedDict()
    found = total = 0
    for row in table.hashes.rows.lists():
        for key in row:
            total += 1
            found += key in kept
            kept[key] = None
            kept.move_to_end(key)
            if size is not None and len(kept) > size:
                kept.popitem(last=False)
    assert total == 288_500
    assert found == hits


def test_mooncake_through_the_cache_without_limit() -> None:
    """The cache of the replica finds as many blocks: but for the last of each prompt, of which a token is computed."""
    table = load_requests(shared("serving", "mooncake", "conversation_trace.jsonl.gz"))
    assert table.hashes is not None
    cache = PrefixCache(300_000, 512)
    found = 0
    for row, (keys, prompt) in enumerate(zip(block_keys(table, 512), table.prompt.tolist(), strict=True)):
        one = Request(row, row, 0, prompt, 1, keys=keys)
        assert cache.start(one, prompt)
        found += one.cached // 512
        one.computed = prompt
        cache.store(one)
        cache.release(one)
    seen: set[int] = set()
    expected = 0
    for row, prompt in zip(table.hashes.rows.lists(), table.prompt.tolist(), strict=True):
        full = row[: (prompt - 1) // 512]
        expected += next((n for n, key in enumerate(full) if key not in seen), len(full))
        seen.update(row[: prompt // 512])
    assert found == expected


def test_a_radix_tree_keeps_one_copy_of_what_two_have_computed() -> None:
    for radix, free in ((False, 4), (True, 6)):
        cache = PrefixCache(8, 4, radix)
        one, two = request(0, (1, 2), 8), request(1, (1, 2), 8)
        for each in (one, two):
            assert cache.start(each, each.known)
        for each in (one, two):
            each.computed = each.known
            cache.store(each)
        assert cache.free == free
        cache.release(one)
        assert cache.free == 6
        cache.release(two)
        assert cache.free == 8


@pytest.mark.parametrize("eviction", ["lru", "lfu"])
@settings(max_examples=examples(150))
@given(
    size=st.integers(3, 12),
    steps=st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 1), min_size=1, max_size=4)), max_size=60),
)
def test_a_radix_tree_gives_up_leaves_only(eviction: str, size: int, steps: list[tuple[bool, list[int]]]) -> None:
    """What stands before a block that can be found can be found; requests compute at once and end in any order."""
    cache = PrefixCache(size, 4, True, eviction)
    held: list[Request] = []
    for number, (ends, word) in enumerate(steps):
        if ends and held:
            one = held.pop(len(word) % len(held))
            one.computed = one.known
            cache.store(one)
            cache.release(one)
        else:  # the name of a block tells the way to it
            keys = tuple(int("1" + "".join(map(str, word[: n + 1]))) for n in range(len(word)))
            one = request(number, keys, len(keys) * 4)
            if cache.start(one, one.known):
                held.append(one)
        assert {key // 10 for key in cache._block} - {1} <= set(cache._block)
        assert len({block for one in held for block in one.held}) == cache.blocks - cache.free
    for one in held:
        cache.release(one)
    assert cache.free == cache.blocks


@settings(max_examples=examples(100))
@given(size=st.integers(2, 6), keys=st.lists(st.integers(1, 9), max_size=80))
def test_what_is_found_least_often_is_given_up(size: int, keys: list[int]) -> None:
    """One block after another, against a table that is searched."""
    cache = PrefixCache(size, 4, eviction="lfu")
    uses: dict[int, tuple[int, int]] = {}
    for number, key in enumerate(keys):
        one = request(number, (key,), 5)  # two blocks: the second is never full
        assert cache.start(one, 4)
        assert (one.cached == 4) == (key in uses)
        if key not in uses and len(uses) == size:
            del uses[min(uses, key=lambda other: uses[other])]
        uses[key] = (uses[key][0] + 1 if key in uses else 0), number
        one.computed = 4
        cache.store(one)
        cache.release(one)


@pytest.mark.parametrize("radix", [False, True])
@pytest.mark.parametrize("eviction", ["lru", "lfu"])
@settings(max_examples=examples(20))
@given(words=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=25))
def test_tokens_are_conserved_with_any_cache(eviction: str, radix: bool, words: list[list[int]]) -> None:
    rows = [[hash(tuple(word[: n + 1])) >> 20 for n in range(len(word))] for word in words]
    prompt = [16 * len(word) + 3 for word in words]
    hashes = PromptHashes(Ragged.of([[*row, -1 - n] for n, row in enumerate(rows)]), 16)
    table = RequestTable.of(np.arange(len(words)) * 2e-3, prompt, np.full(len(words), 20), hashes=hashes)
    policy = ENGINES.get("vllm")()
    one = Replica(0, policy, PrefixCache(18, 16, radix, eviction), Linear(), 256)
    served = serve(table, one)
    conserved(served, table)
    assert one.cache.free == one.cache.blocks


def test_an_unknown_eviction_is_refused() -> None:
    with pytest.raises(InputError, match="eviction 'mru' is not known"):
        PrefixCache(8, 4, eviction="mru")
    words = ("serve", "llama-3-8b", "--device", "H100-SXM5-80GB", "--arrivals", "poisson:8", "--lengths", "fixed:512")
    assert "eviction 'mru' is not known" in run(*words, "--eviction", "mru", code=2).stderr
    done = run(*words, "--eviction", "lfu", "--prefix-caching", "off", code=2)
    assert "eviction 'lfu' is of prefix caching" in done.stderr


def test_layers_with_a_window_give_back_what_they_see_no_more() -> None:
    cache = KVCache(100, 4, LayerGroups(6, 3, window=10))
    one = request(0, (), 40)
    for computed in range(0, 60, 2):
        one.computed = computed
        assert cache.hold(one, computed + 2)
        far = -(-(computed + 2) // 4)
        near = far - max(computed - 9, 0) // 4  # the next token sees the 9 before it
        assert 100 - cache.free == far + 3 * near
    cache.release(one)
    assert cache.free == 100


@pytest.mark.parametrize("step", [8, 40])
def test_the_longest_request_is_one_that_runs(step: int) -> None:
    cache = KVCache(100, 4, LayerGroups(6, 3, window=10))
    longest = cache.longest(step)
    assert longest > cache.tokens

    def runs(tokens: int) -> bool:
        one, other = request(0, (), tokens), KVCache(100, 4, LayerGroups(6, 3, window=10))
        while one.computed < tokens:
            end = min(one.computed + step, tokens)
            if not other.hold(one, end):
                return False
            one.computed = end
        return True

    assert runs(longest)
    assert not runs(longest + 10 * 4)  # whose steps begin in the middle of blocks as they please


def test_prefixes_are_found_beside_layers_with_a_window() -> None:
    cache = PrefixCache(60, 4, groups=LayerGroups(6, 2, window=6))
    one, two = request(0, tuple(range(8))), request(1, (*range(8), 99))
    for end in (16, 33):
        assert cache.hold(one, end) if one.blocks else cache.start(one, end)
        one.computed = end
        cache.store(one)
    assert 60 - cache.free == 9 + 2 * (9 - 11 // 4)
    assert cache.start(two, two.known)
    assert two.computed == 32
    assert two.behind == 27 // 4
    assert len(two.held_windowed) == 2 * (10 - two.behind)
    cache.release(one)
    cache.release(two)
    assert cache.free == 60
    assert cache.match(two) == 32


def test_blocks_are_of_groups_of_layers() -> None:
    gemma, oss = served_model("gemma-3-27b"), served_model("gpt-oss-120b")
    assert gemma.layer_groups() == LayerGroups(10, 6, 1024)
    assert oss.layer_groups() == LayerGroups(18, 1, 128)
    assert served_model("llama-3-8b").layer_groups() is None
    all_ = gemma.kv_bytes("bfloat16")
    assert gemma.kv_kept_bytes(1000, "bfloat16") == 1000 * all_
    assert gemma.kv_kept_bytes(10_240, "bfloat16") == pytest.approx((10 * 10_240 + 52 * 1024) / 62 * all_)


def test_windows_leave_room_for_more_requests() -> None:
    traffic = ["--arrivals", "burst:30", "--requests", "30", "--interval", "off", "--json", "-"]
    lengths = ("--lengths", "prompt=fixed:4000;output=fixed:40")

    def mean(*more: str) -> float:
        found = json.loads(run("serve", "gemma-3-27b", "--device", "H100", *traffic, *lengths, *more).stdout)
        return float(found["latency_s"]["ttft"]["mean"])

    assert mean() < 0.9 * mean("--engine-option", "hybrid_kv_cache=off")
