"""Requests that go before others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.command import run
from tests.exploring import examples
from tests.serving.fleets import replica, serve
from tests.serving.test_laws import conserved, tables
from triosim.core.errors import InputError
from triosim.serving.requests import RequestTable


def test_the_lowest_priority_is_admitted_first() -> None:
    """One at a time: the first that came runs, then those that wait in the order of their priority."""
    table = RequestTable.of(np.arange(4) * 1e-6, np.full(4, 50), np.full(4, 5), priority=[1, 2, 0, 2])
    served = serve(table, replica("vllm", max_running=1, priority=True))
    assert np.argsort(served.finished).tolist() == [0, 2, 1, 3]


def test_who_is_evicted_is_the_least_urgent() -> None:
    """Three of 100 tokens in 21 blocks: the first to come gives way if it is the least urgent, else the last."""
    for priority, evicted in (([1, 0, 0], [True, False, False]), ([0, 0, 0], [False, False, True])):
        table = RequestTable.of(np.zeros(3), np.full(3, 90), np.full(3, 30), priority=priority)
        served = serve(table, replica("vllm", 21, longest=256, priority=True))
        assert (served.restarts > 0).tolist() == evicted


@settings(max_examples=examples(30))
@given(table=tables(30), blocks=st.integers(17, 60), same=st.integers(-3, 3))
def test_equal_priorities_change_nothing(table: RequestTable, blocks: int, same: int) -> None:
    equal = replace(table, priority=np.full(len(table), same))
    found = serve(equal, replica("vllm", blocks, longest=256, priority=True))
    plain = serve(table, replica("vllm", blocks, longest=256))
    assert (found.finished == plain.finished).all()


@settings(max_examples=examples(30))
@given(table=tables(30), blocks=st.integers(17, 60), seed=st.integers(0, 99))
def test_tokens_are_conserved(table: RequestTable, blocks: int, seed: int) -> None:
    ranked = replace(table, priority=np.random.default_rng(seed).integers(0, 3, len(table)))
    one = replica("vllm", blocks, longest=256, priority=True)
    conserved(serve(ranked, one), ranked)
    assert one.cache.free == one.cache.blocks


def test_they_follow_their_requests_when_these_are_sorted() -> None:
    table = RequestTable.of([2.0, 1.0], [5, 6], [5, 6], priority=[7, 8], sort=True)
    assert table.priority is not None
    assert table.priority.tolist() == [8, 7]


def test_an_engine_without_them_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="takes requests as they come"):
        serve(RequestTable.of([0.0], [5], [5], priority=[1]), replica("orca"))
    file = tmp_path / "requests.jsonl"
    lines = [{"arrived_at": 0.0, "prompt_tokens": 50, "output_tokens": 5, "priority": n} for n in range(3)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ("serve", "llama-3-8b", "--device", "H100-SXM5-80GB", "--requests", file)
    assert "--engine-option priority=on" in run(*words, code=2).stderr
    assert "3 requests" in run(*words, "--engine-option", "priority=on").stdout
    file.write_text(file.read_text().replace('"priority": 2', '"priority": "high"'))
    assert "line 3: priority is 'high'" in run(*words, "--engine-option", "priority=on", code=2).stderr
