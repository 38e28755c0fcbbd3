"""The case study of Hop, short."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from tests.examples.test_photonic import script


@pytest.fixture(scope="module")
def study() -> ModuleType:
    return script("hop/hop.py")


def test_groups_are_drawn_once_and_for_all(study: ModuleType) -> None:
    groups = study.slowdowns()
    assert list(groups) == ["equal", "one slow", *map(str, range(1, 9))]
    assert groups == study.slowdowns()
    assert all(1 <= factor <= 10 for group in groups.values() for factor in group)
    assert len(set(groups["1"])) == 8


def test_an_update_is_all_parameters(study: ModuleType) -> None:
    compute, size = study.work()
    assert size == 132_863_336 * 4
    assert 0.05 < compute < 0.5


@pytest.mark.parametrize("order", ["serial", "parallel"])
def test_what_the_study_must_show(study: ModuleType, order: str) -> None:
    groups = {name: study.slowdowns()[name] for name in ("equal", "one slow")}
    rows = {(row.graph, row.group): row for row in study.study(order, 20, groups)}
    for graph in study.JOB["graphs"]:
        equal, slow = rows[graph, "equal"], rows[graph, "one slow"]
        assert equal.backup_s == pytest.approx(equal.none_s, rel=0.01)
        assert slow.skip_s < 0.95 * slow.none_s
        assert max(equal.gap, slow.gap) <= study.PROTOCOL["tokens"]
        if order == "serial":
            assert slow.backup_s < 0.8 * slow.none_s


def test_the_table(study: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    study.main(["--iterations", "5", "--groups", "1", "--json", str(tmp_path / "rows.json")])
    shown = capsys.readouterr().out
    assert "vgg11, batch 128" in shown
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["group"] for row in rows] == ["equal", "one slow", "1"] * 2


def test_the_figure(study: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    study.main(["--iterations", "3", "--groups", "0", "--figure", str(tmp_path / "hop.svg")])
    assert (tmp_path / "hop.svg").read_text().startswith("<?xml")
