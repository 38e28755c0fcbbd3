"""A quick part of the fuzzing, and everything that it has found."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from random import Random

import pytest

from tests.fuzz import damage
from tests.fuzz.__main__ import main, table
from tests.fuzz.cases import FINDING, REFUSED, TAKEN, Outcome, _readers, damaged, judged, names, read, run
from tests.fuzz.odd import RUNS
from tests.fuzz.runner import State, batch
from triosim.core.errors import InputError
from triosim.core.limits import memory_limit

FINDINGS = sorted((Path(__file__).parent / "findings").glob("*.json"))
QUICK = {"plans": 20, "commands": 4, "engines": 40, "allocator": 400, "iterations": 10}
"""Cases of each in the suite, 25 where not named; the entry point runs more."""
LIMIT = 64 << 20


@pytest.mark.parametrize("name", names())
def test_some_cases_of_each(name: str, tmp_path: Path) -> None:
    with memory_limit(LIMIT):
        for number in range(QUICK.get(name, 25)):
            outcome = run(name, 9, number, tmp_path)
            assert outcome.what != FINDING, f"case {number}, {outcome.kind}: {outcome.error} at {outcome.where}"


@pytest.mark.parametrize("name", _readers())
def test_what_is_damaged_is_sound_before(name: str, tmp_path: Path) -> None:
    """Or nothing behind the first check of a reader would ever be reached."""
    for files in _readers()[name].seeds():
        read(name, files, tmp_path)


@pytest.mark.parametrize("path", FINDINGS, ids=lambda path: path.stem)
def test_what_was_found(path: Path, tmp_path: Path) -> None:
    """Inputs that once ended otherwise than with a result or a sentence."""
    kept = json.loads(path.read_text())
    files = {name: zlib.decompress(base64.b64decode(text)) for name, text in kept["files"].items()}
    with memory_limit(LIMIT):
        outcome = judged("kept", lambda: read(kept["name"], files, tmp_path))
    assert outcome.what != FINDING, f"{kept['error']}, now {outcome.error} at {outcome.where}"


def test_a_case_follows_from_its_name_seed_and_number() -> None:
    for name in ("system", "stored", "chakra"):
        assert damaged(name, 3, 14) == damaged(name, 3, 14)
        assert damaged(name, 3, 14) != damaged(name, 3, 15)


@pytest.mark.parametrize("kind", damage.TEXT)
def test_damage_damages(kind: str) -> None:
    text = b'{"a": [1, 2.5], "b": {"c": "x", "d": true}}\n{"e": -3}\n'
    made = {damage.TEXT[kind](Random(number), text) for number in range(20)}
    assert len(made - {text}) > 3
    damage.TEXT[kind](Random(0), b"")


def test_what_becomes_of_a_call() -> None:
    def refuse() -> None:
        raise InputError("a sentence")

    def mute() -> None:
        raise InputError("")

    def crash() -> None:
        raise KeyError("x")

    assert [judged("k", call).what for call in (int, refuse, mute, crash)] == [TAKEN, REFUSED, FINDING, FINDING]
    assert "KeyError" in judged("k", crash).error


def test_hangs_crashes_and_hunger_are_findings_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in a child, which a finding may end."""
    import ctypes

    from tests.fuzz import runner

    def act(draw: Random) -> None:
        what = draw.choice(["work", "spin", "crash", "eat", "raise"])
        if what == "spin":
            while True:
                pass
        elif what == "crash":
            ctypes.string_at(0)
        elif what == "eat":
            b"x" * (runner.MEMORY + (64 << 20))
        elif what == "raise":
            raise ValueError("odd")

    monkeypatch.setitem(RUNS, "odd", act)
    monkeypatch.setattr(runner, "CPU_S", 0.2)
    monkeypatch.setattr(runner, "MEMORY", 32 << 20)
    state = State()
    batch("odd", 0, range(24), lambda number, outcome: state.add("odd", number, outcome))
    assert state.total() == state.next["odd"] == 24
    errors = " ".join(found["error"] for found in state.findings.values())
    for words in ("more than 0.2 s", "ends the process (-11)", "MiB", "ValueError: odd"):
        assert words in errors


def test_the_state_is_kept_and_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "state.json"
    for total in (10, 20):
        assert main(["residual", "--runs", "10", "--seed", "4", "--resume", str(path)]) == 0
        assert State.load(path).total() == total
    assert main(["all", "--resume", str(path), "--table"]) == 0
    printed = capsys.readouterr().out
    assert "20 cases with seed 4; 0 findings" in printed
    assert "| residual |" in printed


def test_the_table() -> None:
    state = State(seed=1)
    for number, what in enumerate((TAKEN, REFUSED, FINDING)):
        state.add("system", number, Outcome("bits", what, "E: x", "a.py:1"))
    text = table(state)
    assert "3 cases with seed 1; 1 findings" in text
    assert "| system | 3 / 1 | 3 |" in text
    text = table(state, State(seed=2), state)
    assert "6 cases with seeds 1, 2, 1; 2 findings" in text
    assert "| system | 6 / 2 | 6 |" in text
