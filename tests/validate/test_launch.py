"""Processes are started, watched, and never left behind."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from triosim.core.errors import InputError
from triosim.validate import launch

JOB = {"processes": 2, "timeout_s": 3600.0}


def _instead(monkeypatch: pytest.MonkeyPatch, code: str) -> list[subprocess.Popen]:
    """Start something else; returns what has been started."""
    started: list[subprocess.Popen] = []

    def start(folder: Path, rank: int) -> subprocess.Popen:
        with (folder / f"rank-{rank}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", code, str(folder), str(rank)], stdin=subprocess.PIPE, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        started.append(process)
        return process

    monkeypatch.setattr(launch, "_start", start)
    return started


def test_what_each_rank_writes_comes_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = "import sys; open(f'{sys.argv[1]}/rank-{sys.argv[2]}.json', 'w').write(sys.argv[2])"
    _instead(monkeypatch, code)
    assert launch.run(tmp_path, JOB) == [0, 1]
    assert json.loads((tmp_path / "job.json").read_text()) == JOB


def test_a_process_that_fails_ends_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = "import sys, time; time.sleep(60) if sys.argv[2] == '0' else sys.exit('no such thing')"
    started = _instead(monkeypatch, code)
    with pytest.raises(InputError, match="process 1 of 2 failed: no such thing"):
        launch.run(tmp_path, JOB)
    assert all(process.poll() is not None for process in started)


def test_a_process_that_takes_too_long_is_ended_with_its_children(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    started = _instead(monkeypatch, code)
    with pytest.raises(InputError, match="not done after 1 s and were ended"):
        launch.run(tmp_path, {**JOB, "timeout_s": 1.0})
    assert all(process.poll() is not None for process in started)
    if sys.platform == "linux":
        while _of_groups({process.pid for process in started}):
            time.sleep(0.05)  # what was killed is gone when the system comes to it


def _of_groups(leaders: set[int]) -> list[int]:
    """Living processes whose group is led by one of these."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                state, _, group = (path / "stat").read_text().rpartition(")")[2].split()[:3]
            except OSError:
                continue
            if state != "Z" and int(group) in leaders:
                found.append(int(path.name))
    return found
