"""The script that judges serving, on one kept run of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from validation.judge import serving

from tests.data import shared


def of_runs(data: Path, folder: Path, *runs: str) -> Path:
    """A folder of data with some of the runs."""
    for name in ("requests", "attention_substitute.parquet"):
        (folder / name).symlink_to(data / name)
    (folder / "vidur").mkdir()
    for name in ("per_request.parquet", "times", "profiles"):
        (folder / "vidur" / name).symlink_to(data / "vidur" / name)
    lines = (data / "vidur" / "results.csv").read_text().splitlines()
    kept = [line for line in lines[1:] if line.split(",")[0] in runs]
    (folder / "vidur" / "results.csv").write_text("\n".join([lines[0], *kept]) + "\n")
    return folder


def test_vidurs_runs_are_met(tmp_path: Path) -> None:
    folder = of_runs(shared("serving"), tmp_path, "a100_l27_tp1_vllm_u512_n500_q8", "a100_l27_tp1_sarathi_u512_n500_q8")
    found = serving.vidur(folder)
    assert found["met"]
    assert found["profiles"]["met"]
    assert found["runs"]["a100_l27_tp1_vllm_u512_n500_q8"]["delayed"] == [351, 351]


def test_the_survey_is_met() -> None:
    assert serving.survey(shared("serving"))["met"]


def test_a_real_engine_is_met_with_its_layers(capsys: pytest.CaptureFixture[str]) -> None:
    found = serving.engine(shared("serving"))
    run = found["rtx4090-llama-3.1-8b"]
    assert abs(run["blocks"]) < 0.05
    assert all(abs(run["measured layers"][name]) < 0.05 for name in ("ttft", "tpot", "e2e"))
