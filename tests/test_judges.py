"""Every script that judges is called alike, and says in one sentence what is wrong with what it was given."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from validation import command
from validation.__main__ import READS, scripts
from validation.judge import recorder

from triosim.core.errors import InputError

FITS = sorted(name.partition("/")[2] for name in scripts() if name.startswith("fit/"))
JUDGES = sorted(name.partition("/")[2] for name in scripts() if name.startswith("judge/"))
WITH_DATA = sorted({*READS, "calibration"})


@pytest.mark.parametrize("name", JUDGES)
def test_every_judge_has_json_and_those_that_read_have_data(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as left:
        importlib.import_module(f"validation.judge.{name}").main()
    assert left.value.code == 0
    said = capsys.readouterr().out
    assert "--json OUT" in said
    assert ("--data PATH" in said) == (name in WITH_DATA)


@pytest.mark.parametrize("name", FITS)
def test_every_script_that_fits_says_what_it_does(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as left:
        importlib.import_module(f"validation.fit.{name}").main()
    assert left.value.code == 0
    assert "usage: " in capsys.readouterr().out


def test_the_process_that_records_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each model is recorded in a process of its own, which needs what ``python -m`` finds."""
    started: list[list[str]] = []

    def started_with_help(command: list[str], **options: object) -> NoReturn:
        started.append([*command, "--help"])
        raise InterruptedError

    monkeypatch.setattr(recorder.subprocess, "run", started_with_help)
    with pytest.raises(InterruptedError):
        recorder.apart("gpt2", 1)
    monkeypatch.undo()
    (command,) = started
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("name", WITH_DATA)
@pytest.mark.parametrize("kind", ["nothing", "an empty folder", "no table"])
def test_what_is_no_data_is_one_sentence(
    name: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    if kind == "an empty folder":
        data.mkdir()
    elif kind == "no table":
        data.write_text("text\n", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", [name, "--data", str(data)])
    with pytest.raises(SystemExit) as left:
        command.run(importlib.import_module(f"validation.judge.{name}").main)
    assert left.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("validation: ")
    assert str(data) in line


def test_a_file_is_found_as_the_folder_of_all_data_has_it(tmp_path: Path) -> None:
    table = tmp_path / "energy" / "power_caps.csv"
    table.parent.mkdir()
    table.write_text("gpu\n", encoding="utf-8")
    for given in (tmp_path, table.parent, table):
        assert command.find(given, "energy/power_caps.csv") == table
    assert command.find(tmp_path, "energy/") == table.parent
    assert command.find(table.parent, "energy/") == table.parent  # itself
    with pytest.raises(InputError, match=r"has no energy/jobs.csv"):
        command.find(tmp_path, "energy/jobs.csv")


def test_a_column_that_is_missing_is_named(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("gpu,time\nH100,3\n", encoding="utf-8")
    assert list(command.rows(table, "gpu")) == [{"gpu": "H100", "time": "3"}]
    with pytest.raises(InputError, match="has no column 'watts'"):
        list(command.rows(table, "gpu", "watts"))


def test_figures_are_written_whole(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    subprocess.run(
        [sys.executable, "-m", "validation.judge.chunks", "--model", "resnet18", "--json", str(out)], check=False
    )
    assert out.read_text(encoding="utf-8").startswith("{")
