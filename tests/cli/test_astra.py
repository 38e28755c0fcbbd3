"""``triosim astra`` from end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from validation.data.astra_cases import collective

from tests.command import run
from tests.interop.files import SWITCH_400, VALIDATED, save


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    return save(tmp_path, [collective("all_reduce", 1 << 20)] * 8, VALIDATED, SWITCH_400)


def test_it_prints_what_astra_sim_prints(options: list[str], tmp_path: Path) -> None:
    done = run("astra", *options, "--solver", "store-and-forward", "--json", tmp_path / "r.json")
    assert "sys[7] finished, 57426 cycles, exposed communication 57426 cycles." in done.stdout
    assert "boost-mode changes nothing" in done.stdout
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["schema"] == "triosim/astra/1"
    assert [rank["cycles"] for rank in result["ranks"]] == [57426] * 8
    assert result["iteration_time_s"] == pytest.approx(57.426e-6)
    parts = result["breakdown_s"]
    assert parts["compute"] + parts["exposed_communication"] + parts["idle"] == pytest.approx(57.426e-6)


def test_json_alone(options: list[str]) -> None:
    result = json.loads(run("astra", *options, "--json", "-").stdout)
    assert result["solver"] == "max-min"
    assert result["iteration_time_s"] < 57.426e-6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--solver", "guess"), "unknown network model"),
        (("--slots", "many"), "unknown rule of slots"),
        (("--comm-group", "nowhere.json"), "nowhere.json: cannot be read"),
        (("--workload", "nowhere"), "nowhere.0.et: no such file"),
        (("--network", "nowhere.yml"), "nowhere.yml: cannot be read"),
        (("--json", "no/such/folder/r.json"), "folder"),
    ],
)
def test_what_the_user_got_wrong(options: list[str], arguments: tuple[str, str], words: str) -> None:
    done = run("astra", *options, *arguments, code=2)
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_rank_is_missing(options: list[str], tmp_path: Path) -> None:
    (tmp_path / "work.5.et").unlink()
    assert "work.5.et: no such file: the network has 8 NPUs" in run("astra", *options, code=2).stderr
