"""Traffic, made up and read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from tests.serving.fleets import MS, Linear, replica, serve
from triosim.serving.request_files import load_requests
from triosim.serving.requests import RequestTable
from triosim.serving.traffic import traffic


def test_poisson_and_gamma_have_their_rates_and_variations() -> None:
    for arrivals, variation in (("poisson:50", 1.0), ("gamma:50,cv=2", 2.0), ("gamma:50,cv=0.5", 0.5)):
        gaps = np.diff(traffic(arrivals, "fixed:21", 40_000).arrived) / 1e12
        assert gaps.mean() == pytest.approx(0.02, rel=0.03)
        assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.05)


def test_constant_and_burst_arrivals_are_exact() -> None:
    assert traffic("constant:4", "fixed:21", 3).arrived.tolist() == [250 * MS, 500 * MS, 750 * MS]
    assert traffic("burst:2,every=1s", "fixed:21", 5).arrived.tolist() == [0, 0, 1000 * MS, 1000 * MS, 2000 * MS]


def test_users_wait_for_their_answers_and_think() -> None:
    table = traffic("users:2,think=5ms", "fixed:42", 6)
    served = serve(table, replica("vllm", times=Linear(base=MS, token=0, key=0)))
    # two output tokens: each request takes two steps, both users at once
    assert (served.arrived / MS).tolist() == [0, 0, 7, 7, 14, 14]
    assert (served.finished / MS).tolist() == [2, 2, 9, 9, 16, 16]


def test_lengths_are_divided_and_in_range() -> None:
    table = traffic("constant:1", "uniform:128-512", 5000)
    total = table.prompt + table.output
    assert (total.min(), total.max()) == (128, 512)
    assert (table.output == np.ceil(total / 21)).all()
    table = traffic("constant:1", "uniform:100-200,ratio=1", 500)
    assert np.abs(table.prompt - table.output).max() <= 1


def test_zipf_and_lognormal_follow_their_laws() -> None:
    total = traffic("constant:1", "zipf:1,max=1000,min=2", 50_000)
    lengths = total.prompt + total.output
    twos, fours = (int((lengths == n).sum()) for n in (2, 3))
    assert twos / fours == pytest.approx(2.0, rel=0.05)
    found = traffic("constant:1", "prompt=lognormal:300,sigma=0.5;output=fixed:7", 20_000)
    assert np.median(found.prompt) == pytest.approx(300, rel=0.03)
    assert np.log(found.prompt).std() == pytest.approx(0.5, rel=0.03)
    assert (found.output == 7).all()


def test_lengths_of_a_file_are_taken_in_order(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,1\n1,20,2\n")
    table = traffic("constant:1", str(path), 3)
    assert table.prompt.tolist() == [10, 20, 10]
    assert table.output.tolist() == [1, 2, 1]


def test_a_seed_means_the_same_requests() -> None:
    first, second, other = (traffic("poisson:8", "uniform:1-99", 50, seed) for seed in (3, 3, 4))
    assert (first.arrived == second.arrived).all()
    assert (first.arrived != other.arrived).any()


FORMATS = {
    "vidur": "arrived_at,num_prefill_tokens,num_decode_tokens,session_id\n0.5,100,20,a\n1.5,50,10,b\n",
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,100,20\n"
    "2023-11-16 18:15:47.6805900,50,10\n",
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,100,20,120,x\n"
    "6,GPT-4,50,10,60,x\n",
    "mooncake": '{"timestamp": 500, "input_length": 100, "output_length": 20, "hash_ids": [3]}\n'
    '{"timestamp": 1500, "input_length": 50, "output_length": 10, "hash_ids": [3]}\n',
    "jsonl": '{"arrived_at": 0.5, "prompt_tokens": 100, "output_tokens": 20, "session": 1}\n'
    '{"arrived_at": 1.5, "prompt_tokens": 50, "output_tokens": 10}\n',
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("packed", [False, True])
def test_files_are_recognised_by_content(name: str, packed: bool, tmp_path: Path) -> None:
    path = tmp_path / "whatever.txt"
    raw = FORMATS[name].encode()
    path.write_bytes(gzip.compress(raw) if packed else raw)
    table = load_requests(path)
    assert table.prompt.tolist() == [100, 50]
    assert table.output.tolist() == [20, 10]
    assert np.diff(table.arrived).tolist() == [1000 * MS]


def test_sessions_and_hashes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "r"
    path.write_text(FORMATS["vidur"])
    assert load_requests(path).session.tolist() == [0, 1]
    path.write_text(FORMATS["mooncake"])
    hashes = load_requests(path).hashes
    assert hashes is not None
    assert (hashes.tokens, hashes.rows.lists()) == (512, [[3], [3]])


def test_a_conversation_begins_with_all_that_was_said(tmp_path: Path) -> None:
    path = tmp_path / "r"
    turns = [{"prompt_tokens": 40, "output_tokens": 24}, {"prompt_tokens": 16, "output_tokens": 8, "think": 2}]
    path.write_text("\n".join(json.dumps({"arrived_at": at, "turns": turns}) for at in (0, 1)))
    table = load_requests(path)
    assert table.prompt.tolist() == [40, 80, 40, 80]
    assert table.follows.tolist() == [-1, 0, -1, 2]
    assert table.arrived.tolist() == [0, 2000 * MS, 1000 * MS, 2000 * MS]
    assert table.hashes is not None
    first, second, other, _ = table.hashes.rows.lists()
    assert second[:4] == first
    assert len(second) == 5  # of 80 and 8 tokens
    assert not set(first) & set(other)
    served = serve(table, replica("vllm", reuse=True))
    assert served.cached.tolist() == [0, 48, 0, 48]  # 63 of 64 tokens were computed: three full blocks
    assert served.arrived[1] == served.finished[0] + 2000 * MS


def test_token_ids_show_what_is_shared(tmp_path: Path) -> None:
    path = tmp_path / "r"
    system = list(range(32))
    prompts = [[*system, *range(100 * n + 50, 100 * n + 70)] for n in range(3)]
    rows = [{"arrived_at": n, "prompt_tokens": prompt, "output_tokens": 4} for n, prompt in enumerate(prompts)]
    path.write_text("\n".join(map(json.dumps, rows)))
    served = serve(load_requests(path), replica("vllm", reuse=True))
    assert served.cached.tolist() == [0, 32, 32]


def test_rows_that_follow_others_stay_with_them_when_sorted() -> None:
    table = RequestTable.of([5, 1, 2], [1, 2, 3], [1, 1, 1], follows=[-1, 0, -1], sort=True)
    assert table.prompt.tolist() == [3, 2, 1]
    assert table.follows.tolist() == [-1, 2, -1]
