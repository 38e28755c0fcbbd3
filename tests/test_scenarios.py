"""The survey's scenarios: one from its commands to its rows, and the page that holds all of them."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

import pytest
from validation.judge import scenarios

from triosim.core.errors import InputError

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


def test_a_served_scenario_is_predicted_from_its_commands() -> None:
    shown = scenarios.run(next(one for one in scenarios.SCENARIOS if one.id == "I1.4"))
    held = {name: good for name, *_, good in shown.rows}
    assert list(held)[:3] == ["TTFT", "TPOT", "TPOT over the bound of bandwidth"]
    assert held["TPOT over the bound of bandwidth"] is True  # no decode is faster than memory yields the weights
    assert held["power of the device"] is True


@pytest.mark.parametrize("count", [200, 50])
def test_the_survey_s_requests_are_those_of_its_seed(count: int) -> None:
    """Vidur's rules: gaps of a Poisson process cut at three of the mean, lengths uniform, 20 to 1; 2 a second."""
    draw, now = Random(42), 0.0
    path = Path(__file__).resolve().parents[1] / "examples" / "serving" / f"survey-{count}.csv"
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    assert len(lines) == count
    for line in lines:
        now += min(-math.log(1 - draw.random()) / 2, 3 / 2)
        length = draw.uniform(128, 512)
        output = math.ceil(length / 21)
        arrived, prompt, answer = line.split(",")
        assert float(arrived) == pytest.approx(now, abs=1e-9)
        assert (int(prompt), int(answer)) == (math.floor(length - output), output)


def test_what_is_reached_nowhere_is_none() -> None:
    assert scenarios._number(math.inf, "") == "none"


def test_the_page_holds_every_scenario_of_the_survey() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for one in scenarios.SCENARIOS:
        assert f"## {one.id}: {one.title}" in page
        for command in one.commands:
            assert f"$ triosim {command}" in page
    assert len(scenarios.SCENARIOS) == len({one.id for one in scenarios.SCENARIOS}) == 36


def test_an_unknown_scenario_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["scenarios", "--only", "X9"])
    with pytest.raises(InputError, match="no scenario begins with X9"):
        scenarios.main()
