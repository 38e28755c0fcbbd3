"""The terminal summary: short, complete, and legible anywhere."""

from __future__ import annotations

import dataclasses
import io
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.report.example import make
from triosim.report.terminal import _cells, summary
from triosim.result import CollectiveRow, Result
from triosim.units import format_time


class Stream(io.StringIO):
    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding


def text(result: Result, width: int = 80, encoding: str = "utf-8", **options: Any) -> str:
    stream = Stream(encoding)
    summary(result, Console(file=stream, width=width, **options))
    return stream.getvalue()


@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("options", [{}, {"stages": 1, "replicas": 1}, {"fits": False}, {"capacity": False}])
def test_it_is_short_and_stays_within_the_width(width: int, options: dict[str, Any]) -> None:
    lines = text(make(**options), width).rstrip().splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= (44 if width == 60 else 36)


def test_it_says_what_matters() -> None:
    result = make()
    low, high = map(format_time, result.interval_s)
    samples, tokens = result.throughput["samples_per_s"], result.throughput["tokens_per_s"]
    assert samples
    assert tokens
    shown = text(result)
    for words in (
        "llama3-8b on 4 x H100-SXM5-80GB", "dp 2, pp 2, 4 micro-batches, 1f1b",
        f"Iteration   {format_time(result.iteration_time_s)}   (90 % between {low} and {high})",
        f"{samples:.4g} samples/s, {tokens:,.0f} tokens/s", "9.791 GiB of 80 GiB: fits", "mean over 4 devices",
        f"{format_time(result.breakdown_s.compute)}   {result.breakdown_s.compute / result.iteration_time_s:.1%}"[:-1],
        "exposed communication", "idle", "dp, 2 ranks", "1.719 GiB", "ring/simple", "model.layers.*.mlp.up (8)",
        "Rests on", "NVIDIA H100 datasheet",
    ):  # fmt: skip
        assert words in shown
    assert "Warnings" not in shown


def test_a_plan_that_does_not_fit_is_plain_to_see() -> None:
    shown = text(make(fits=False))
    assert re.search(r"does not fit, [\d.]+ GiB too much", shown)
    assert "Warnings" in shown


def test_shares_of_the_breakdown_add_up() -> None:
    lines = r"(?:compute|communication|host|idle) +[\d.]+ \w+ +<?([\d.]+) %"
    shares = re.findall(lines, text(make()))
    assert len(shares) == 4
    assert sum(map(float, shares)) == pytest.approx(100.0, abs=0.2)


def test_it_needs_neither_colour_nor_unicode() -> None:
    result = make()
    long = dataclasses.replace(result.layers[0], module="a." * 60 + "end", compute_s=1.0)
    shown = text(dataclasses.replace(result, layers=(long, *result.layers)), encoding="ascii")
    assert "\x1b" not in shown
    shown.encode("ascii")
    assert "..a.a.a" in shown.replace("…", "..")


def test_names_are_not_taken_for_markup() -> None:
    result = make()
    odd = dataclasses.replace(result.layers[0], module="[bold]x[/nonsense]", compute_s=9.0)
    strange = dataclasses.replace(result, layers=(odd,), sources=("[red]measured[/red]",), warnings=("[link=x]!",))
    shown = text(strange)
    for words in ("[bold]x[/nonsense]", "[red]measured[/red]", "[link=x]!"):
        assert words in shown


def test_what_is_left_out_is_counted() -> None:
    rows = tuple(CollectiveRow("dp", "all_reduce", n, 1, 1, 1.0, "ring", "") for n in range(2, 9))
    many = dataclasses.replace(make(), collectives=rows, sources=tuple(f"source {i}" for i in range(9)))
    shown = text(many)
    assert "and 3 more kinds of communication" in shown
    assert "and 5 more" in shown
    assert shown.count("all_reduce") == 4


def test_calls_of_all_sizes_are_added_up() -> None:
    rows = tuple(CollectiveRow("dp", "all_reduce", 4, 2**20 * n, 3, 0.001 * n, "ring", "") for n in (1, 2, 5))
    shown = text(dataclasses.replace(make(), collectives=rows))
    assert re.search(r"all_reduce +dp, 4 ranks +9 +24 MiB +8 ms +ring", shown)


def test_nothing_is_invented_when_little_is_known() -> None:
    result = dataclasses.replace(
        make(stages=1, replicas=1, host=False), layers=(), sources=(),
        throughput={"samples_per_s": None, "tokens_per_s": None},
    )  # fmt: skip
    shown = text(result)
    assert "Throughput" not in shown
    assert "Modules" not in shown
    assert "None" not in shown


@given(st.lists(st.floats(0, 1), min_size=1, max_size=4).filter(lambda s: sum(s) > 0.1), st.integers(20, 120))
def test_the_bar_is_full(shares: list[float], width: int) -> None:
    whole = [s / sum(shares) for s in shares]
    cells = _cells(whole, width)
    assert sum(cells) == width
    assert all(c >= 1 for c, s in zip(cells, whole, strict=True) if s > 0.005)
    assert all(abs(c - s * width) <= 4 for c, s in zip(cells, whole, strict=True))
