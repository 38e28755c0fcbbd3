"""Made-up traffic that repeats text: prefixes that prompts share, and conversations."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.command import run
from tests.serving.fleets import blocks, replica
from triosim.serving.fleet import play
from triosim.serving.router import ROUTERS
from triosim.serving.shared_text import TOKENS
from triosim.serving.traffic import traffic

LENGTHS = "prompt=uniform:40-80;output=fixed:20"


def test_prompts_are_longer_by_the_prefix_whatever_is_shared() -> None:
    alone = traffic("constant:1", LENGTHS, 500, 3)
    for share in (0.0, 0.5, 1.0):
        table = traffic("constant:1", LENGTHS, 500, 3, prefix=f"320,share={share}")
        assert (table.prompt == alone.prompt + 320).all()
        assert (table.arrived == alone.arrived).all()
        assert table.hashes is not None
        lengths = table.hashes.rows.lengths()
        assert set(lengths.tolist()) <= {0, 320 // TOKENS}
        assert (lengths > 0).mean() == pytest.approx(share, abs=0.07)


def test_the_cache_finds_exactly_what_is_shared() -> None:
    """One after another, with room for all: each prompt but the first of its text finds the whole prefix."""
    table = traffic("constant:0.1", LENGTHS, 200, 1, prefix="320,share=0.6,texts=3")
    assert table.hashes is not None
    firsts = [row[0] if len(row) else -1 for row in table.hashes.rows.lists()]
    texts = {first for first in firsts if first >= 0}
    assert len(texts) == 3
    served = play(table, [replica("vllm", blocks=100_000, reuse=True)], ROUTERS.get("round-robin")())
    sharing = sum(first >= 0 for first in firsts)
    assert served.hit_tokens == 320 * (sharing - len(texts))


def test_a_turn_repeats_all_that_was_said() -> None:
    new = traffic("constant:1", LENGTHS, 10, 5)
    table = traffic("constant:1", LENGTHS, 10, 5, turns="4,think=3s")
    said = 0
    for row in range(10):
        said = 0 if row % 4 == 0 else said
        assert table.prompt[row] == said + new.prompt[row]
        said += new.prompt[row] + new.output[row]
        assert table.follows[row] == (-1 if row % 4 == 0 else row - 1)
        assert table.session[row] == row // 4
        assert table.arrived[row] == ((row // 4 + 1) if row % 4 == 0 else 3) * 10**12
    served = play(table, [replica("vllm", blocks=100_000, reuse=True)], ROUTERS.get("round-robin")())
    later = np.arange(10) % 4 > 0
    before = np.roll(table.prompt + table.output, 1)  # all but the last token were computed
    assert (served.cached[later] == (before[later] - 1) // 16 * 16).all()
    assert (served.cached[~later] == 0).all()
    assert (served.arrived[later] - np.roll(served.finished, 1)[later] == 3 * 10**12).all()


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_both_cores_agree(engine: str) -> None:
    table = traffic("poisson:50", LENGTHS, 300, 2, prefix="200,share=0.7,texts=2", turns="3,think=10ms")
    runs = [
        play(table, [replica(engine, blocks=blocks(engine, 4800), reuse=True)], ROUTERS.get("round-robin")(), core=core)
        for core in (True, False)
    ]
    for name in ("finished", "first_token", "cached", "restarts"):
        assert (getattr(runs[0], name) == getattr(runs[1], name)).all()
    assert runs[0].hit_tokens == runs[1].hit_tokens > 0


SERVE = ("serve", "llama-3-8b", "--device", "H100-SXM5-80GB", "--lengths", LENGTHS, "--requests", "40")


def test_the_command_repeats_text() -> None:
    words = (*SERVE, "--arrivals", "poisson:4", "--json", "-")
    plain = json.loads(run(*words).stdout)
    found = json.loads(run(*words, "--shared-prefix", "640,share=0.5", "--turns", "2,think=1s").stdout)
    assert not plain["prefix_hit_rate"]
    assert found["prefix_hit_rate"] > 0.3
    assert found["prompt_tokens"] > plain["prompt_tokens"] + 20 * 640


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--turns", "0"), "how many requests"), (("--turns", "2,wait=3s"), "how many requests"),
        (("--turns", "2,think=-3s"), "think"), (("--shared-prefix", "0"), "from 1 up"),
        (("--shared-prefix", "10,share=2"), "from 0 to 1"), (("--shared-prefix", "10,text=2"), "text"),
        (("--turns", "2", "--arrivals", "users:3"), "--arrivals users"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(words: tuple[str, ...], says: str) -> None:
    done = run(*SERVE, "--arrivals", "poisson:4", *words, code=2)
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_files_say_themselves_what_is_repeated(tmp_path: object) -> None:
    path = f"{tmp_path}/requests.csv"
    with open(path, "w", encoding="utf-8") as file:
        file.write("arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,1\n")
    done = run(
        "serve", "llama-3-8b", "--device", "H100-SXM5-80GB", "--requests", path, "--turns", "3", code=2
    )  # fmt: skip
    assert "not of a file" in done.stderr
