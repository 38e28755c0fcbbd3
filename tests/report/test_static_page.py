"""Parts of pages without scripts: round figures at their axes, and pictures that small screens can read."""

from __future__ import annotations

import re

import pytest

from tests.command import run
from triosim.report.static_page import picture_of, round_values


@pytest.mark.parametrize(
    ("low", "high", "values"),
    [
        (0.0, 28.24, [0, 10, 20]),
        (11.82, 16.45, [12, 14, 16]),
        (0.0, 0.0023, [0, 0.001, 0.002]),
        (0.0, 4.0, [0, 1, 2, 3, 4]),
        (3.0, 3.0, [3]),
        (0.0, 1e-9, [0, 5e-10, 1e-9]),
    ],
)
def test_axes_are_labelled_with_round_values(low: float, high: float, values: list[float]) -> None:
    assert round_values(low, high) == pytest.approx(values)


def test_a_picture_can_be_scrolled_and_has_a_name() -> None:
    made = picture_of('Requests "now"', '<svg viewBox="0 0 9 9"></svg>')
    assert made.startswith('<div class="scroll"><svg class="wide" role="img" aria-label="Requests &quot;now&quot;" ')


def test_the_page_of_a_fleet_names_its_pictures_and_rounds_its_axes(tmp_path) -> None:
    page = tmp_path / "fleet.html"
    run("serve", "llama-3-8b", "--device", "H100", "--arrivals", "poisson:8", "--lengths", "fixed:256", "--requests",
        "50", "--report", str(page))  # fmt: skip
    text = page.read_text()
    pictures = re.findall(r"<svg [^>]*>", text)
    assert pictures
    assert all("aria-label=" in one for one in pictures)
    replicas = text[text.index("<h2>Replicas") : text.index("<h2>KV cache")]
    seconds = [float(word) for word in re.findall(r">([\d.]+) s</text>", replicas)]
    assert len(seconds) > 2
    assert all(float(second).is_integer() for second in seconds)
