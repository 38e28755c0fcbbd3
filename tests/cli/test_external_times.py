"""One layer's time from a simulator, in the whole job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import triosim
from tests.command import run
from tests.kernels.external import samples
from tests.traces import chain


@pytest.fixture
def trace(tmp_path) -> Path:
    path = tmp_path / "chain.triosim"
    triosim.save(chain(layers=4), path)
    return path


def _result(*arguments: str | Path) -> dict:
    return json.loads(run(*arguments, "--json", "-").stdout)


def test_a_changed_layer_changes_the_iteration_by_as_much(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(samples.ACCEL_SIM)
    mapping = tmp_path / "mapping.toml"
    mapping.write_text('times = "run.log"\n[operators]\n"aten::linear | layer2" = [0, 2]\n')  # 30 us for 1 ms
    plan = ("--devices", "2", "--link", "100GB/s", "--overlap", "off")
    before = _result("train", trace, *plan)
    after = _result("train", trace, *plan, "--operator-times", mapping)
    assert before["iteration_time_s"] - after["iteration_time_s"] == pytest.approx(970e-6)
    (layer,) = (row for row in after["layers"] if row["module"] == "layer2" and row["phase"] == "forward")
    assert layer["compute_s"] == pytest.approx(30e-6)
    told = " ".join(after["sources"])
    assert "external times: 1 of 8 operators" in told
    assert "external times not used: _Z4reluPf (not in the mapping file)" in told


@pytest.mark.parametrize("name", ["mapping.toml", "times.csv", "nowhere/times"])
def test_a_file_that_is_not_there(trace: Path, name: str) -> None:
    done = run("train", trace, "--operator-times", name, code=2)
    assert name in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
