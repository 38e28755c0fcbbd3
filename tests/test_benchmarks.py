"""The history of benchmarks: what counts as slower, and than what."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks import __main__ as benchmarks


def test_what_is_a_tenth_worse_than_the_median_of_the_last_five_is_slower() -> None:
    earlier = [{"a": 9.0, "b": 1.0}, *({"a": t, "b": 1.0} for t in (1.0, 1.2, 0.9, 1.0, 5.0))]
    assert benchmarks.slower({"a": 1.1, "b": 1.2, "new": 7.0}, earlier) == {"b": 1.2}
    assert benchmarks.slower({"a": 1.11}, earlier) == {"a": 1.11}
    assert benchmarks.slower({"a": 1.11}, []) == {}


def run(monkeypatch: pytest.MonkeyPatch, history: Path, seconds: float, *options: str) -> int:
    def table(runs: int) -> Any:
        """One figure."""
        yield benchmarks.Figure("thing", seconds, amount=1000, unit="flows", peak_bytes=2_000_000)

    monkeypatch.setattr(benchmarks, "TABLES", {"mine": table})
    monkeypatch.setattr(sys, "argv", ["benchmarks", "mine", "--history", str(history), *options])
    with pytest.raises(SystemExit) as ended:
        benchmarks.main()
    return int(ended.value.code or 0)


def test_every_run_is_kept_and_compared_with_those_before(tmp_path, monkeypatch, capsys) -> None:
    history = tmp_path / "new" / "history.jsonl"
    assert run(monkeypatch, history, 2.0, "--check") == 0
    assert "2.0000 s      2 MB" in capsys.readouterr().out
    assert run(monkeypatch, history, 2.1, "--check") == 0
    assert run(monkeypatch, history, 3.0) == 0
    assert "slower than before, 1.46 times: mine: thing" in capsys.readouterr().out
    assert run(monkeypatch, history, 3.0, "--check") == 1
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    assert [line["cpu_s"] for line in lines] == [{"mine: thing": t} for t in (2.0, 2.1, 3.0, 3.0)]


def test_runs_on_other_machines_do_not_count(tmp_path, monkeypatch) -> None:
    history = tmp_path / "history.jsonl"
    history.write_text(json.dumps({"machine": "another", "cpu_s": {"mine: thing": 0.1}}) + "\n")
    assert run(monkeypatch, history, 2.0, "--check") == 0


def test_every_table_has_a_script() -> None:
    assert all(make.__doc__ for make in benchmarks.TABLES.values())
    for script in ("commands", "files", "engine", "all_to_all", "scale"):
        assert (benchmarks.HERE / f"{script}.py").exists()
