"""The survey's scenarios: one from its commands to its rows, and the page that holds all of them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from validation.judge import scenarios

PAGE = Path(__file__).resolve().parents[1] / "docs" / "scenarios.md"


def test_a_scenario_is_predicted_from_its_commands() -> None:
    one = next(one for one in scenarios.SCENARIOS if one.id == "T2.1")
    shown = scenarios.run(one)
    assert [name for name, *_ in shown.rows] == [figure.name for figure in one.figures]
    for (_, said, published, off, good), figure in zip(shown.rows, one.figures, strict=True):
        assert math.isfinite(float(said.split()[0].replace(",", "")))
        assert bool(published) == bool(off) == (figure.published is not None) == (good is not None)
    assert all(good for *_, good in shown.rows[:2])  # Korthikanti's two iterations, within 10 %
    assert "T2.1" in scenarios.text_of([shown])


def test_the_page_holds_every_scenario_and_what_others_lack() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for one in scenarios.SCENARIOS:
        assert f"## {one.id}: {one.title}" in page
        for command in one.commands:
            assert f"$ triosim {command}" in page
    for name in scenarios.LACKING:
        assert f"* {name}:" in page


def test_an_unknown_scenario_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["scenarios", "--only", "X9"])
    with pytest.raises(SystemExit, match="no scenario begins with X9"):
        scenarios.main()
