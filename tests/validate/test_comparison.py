"""Predicted beside measured, as numbers, as text and as a picture."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from rich.console import Console

from tests.validate import example
from triosim.core.errors import InputError
from triosim.validate import plot
from triosim.validate.comparison import Validation, compare
from triosim.validate.prediction import Predictor
from triosim.validate.terminal import show


def validation(off: float = 1.0, busy: float = 1.0) -> Validation:
    """A job that takes ``off`` times what is predicted."""
    machine = example.machine()
    nulls = example.nulls("ddp", 0, 0, 0, machine)
    network = example.network("four", 4, 64, {"ddp": 1.0})
    right = Predictor(machine, nulls, "cpu_s")("ddp", network)[0].total
    return compare(machine, nulls, [example.network("four", 4, 64, {"ddp": right * off}, busy)], 12.0)


def test_errors_and_hits() -> None:
    exact, off = validation(), validation(2.0)
    assert exact.median_error("ddp", "cpu_s") == pytest.approx(0, abs=1e-9)
    assert exact.hits("cpu_s") == (1, 1)
    assert off.rows[0].cpu_s.error == pytest.approx(-0.5)
    assert off.hits("cpu_s") == (0, 1)


def test_a_busy_machine_is_told_and_widens_intervals() -> None:
    quiet, busy = validation(), validation(busy=2.0)
    assert (quiet.crowded, busy.crowded) == ([], ["four"])

    def width(found: Validation, quantity: str) -> float:
        one = getattr(found.rows[0], quantity)
        return one.high / one.low

    assert width(busy, "wall_s") > 2 * width(quiet, "wall_s")
    assert 1.1 < width(busy, "cpu_s") / width(quiet, "cpu_s") < 1.3
    assert "busy with other work" in _text(busy)
    assert "busy with other work" not in _text(quiet)


def _text(found: Validation) -> str:
    out = io.StringIO()
    show(found, Console(file=out, width=80))
    return out.getvalue()


def test_the_table_fits_a_narrow_terminal() -> None:
    text = _text(validation(1.1))
    assert max(map(len, text.splitlines())) <= 80
    assert "-9.1%" in text
    assert "…" not in text


def test_json_holds_everything() -> None:
    plain = json.loads(validation(1.25).to_json())
    assert plain["schema"] == "triosim/validation/1"
    row = plain["rows"][0]
    assert (row["network"], row["mode"], row["rank"], row["rounds"]) == ("four", "ddp", None, example.ROUNDS)
    assert row["cpu_s"]["error"] == pytest.approx(-0.2)
    assert plain["median_absolute_error"]["ddp"]["cpu_s"] == pytest.approx(0.2)
    assert plain["tables"]["all_reduce"]["1048576"]["cpu_s"] > 0


def test_the_picture_has_a_point_for_each_job(tmp_path: Path) -> None:
    found = validation()
    root = ElementTree.fromstring(plot.svg(found))
    circles = [e for e in root.iter() if e.tag.endswith("circle")]
    assert len(circles) == 2 * len(found.rows) + len(found.modes())
    for name in ("a.svg", "a.html"):
        plot.write(found, tmp_path / name)
        assert "</svg>" in (tmp_path / name).read_text(encoding="utf-8")
    with pytest.raises(InputError, match=r"\.svg or \.html"):
        plot.write(found, tmp_path / "a.png")
