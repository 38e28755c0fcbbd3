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

from tests.report.example import make, with_parts
from triosim.core.units import format_time
from triosim.prediction.result import CollectiveRow, Efficiency, LayerRow, Result, Throughput
from triosim.report.terminal import _cells, summary


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
    assert len(lines) <= (48 if width == 60 else 39)


def test_it_says_what_matters() -> None:
    result = make()
    low, high = map(format_time, result.interval_s)
    samples, tokens = result.throughput.samples_per_s, result.throughput.tokens_per_s
    assert samples
    assert tokens
    shown = text(result)
    for words in (
        "llama3-8b on 4 x H100-SXM5-80GB", "dp 2, pp 2, 4 micro-batches, 1f1b",
        f"Iteration   {format_time(result.iteration_time_s)}   (90 % between {low} and {high})",
        f"{samples:.4g} samples/s, {tokens:,.0f} tokens/s", "9.791 GiB of 80 GiB: fits", "mean over 4 devices",
        f"{format_time(result.breakdown_s.compute)}  {result.breakdown_s.compute / result.iteration_time_s:.1%}"[:-1],
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
    shown = text(with_parts(result, layers=(long, *result.layers)), encoding="ascii")
    assert "\x1b" not in shown
    shown.encode("ascii")
    assert "..a.a.a" in shown.replace("…", "..")


def test_devices_that_differ_are_called_devices_where_there_are_no_stages() -> None:
    assert re.search(r"^ +Stages +stage \d computes longest", text(unequal(make())), re.M)
    alone = unequal(make(stages=1))
    one, *_ = alone.devices
    both = (one, dataclasses.replace(one, rank=1, busy_s=one.busy_s / 2))
    shown = text(dataclasses.replace(alone, devices=both))
    assert "Stages" not in shown
    assert re.search(r"^ +Devices +device 0 and 1 like it computes longest", shown, re.M)


def unequal(result: Result) -> Result:
    """The same with a last stage that computes twice as long."""
    *others, last = result.stages
    return dataclasses.replace(result, stages=(*others, dataclasses.replace(last, compute_s=last.compute_s * 2)))


def test_shares_of_modules_are_of_the_iteration() -> None:
    """Transfers behind compute take no time of their own: shares once added up to 100 % of all that was in flight."""
    rows = [
        LayerRow("a", "forward", 0.5, 2.0, 0.125, 0, 0, 0), LayerRow("b", "forward", 0.25, 1.0, 0.0, 0, 0, 0),
        LayerRow("a", "backward", 0.5, 0.0, 0.0, 0, 0, 0),
    ]  # fmt: skip
    result = dataclasses.replace(with_parts(make(), layers=rows), iteration_time_s=2.0)  # of two stages
    shown = text(result)
    assert re.search(r"^  a +500 ms +500 ms +125 ms +28.1 %$", shown, re.M)
    assert re.search(r"^  b +250 ms +- +- +6.2 %$", shown, re.M)


def test_names_are_not_taken_for_markup() -> None:
    result = make()
    odd = dataclasses.replace(result.layers[0], module="[bold]x[/nonsense]", compute_s=9.0)
    strange = dataclasses.replace(
        with_parts(result, layers=(odd,)), sources=("[red]measured[/red]",), warnings=("[link=x]!",)
    )
    shown = text(strange)
    for words in ("[bold]x[/nonsense]", "[red]measured[/red]", "[link=x]!"):
        assert words in shown


def test_what_is_left_out_is_counted() -> None:
    rows = tuple(CollectiveRow("dp", "all_reduce", n, 1, 1, 1.0, "ring", "") for n in range(2, 9))
    many = dataclasses.replace(make(), collectives=rows, sources=tuple(f"source {i}" for i in range(9)))
    shown = text(many)
    assert "and 3 more kinds of communication" in shown
    assert "and 6 more" in shown
    assert shown.count("all_reduce") == 4


def test_calls_of_all_sizes_are_added_up() -> None:
    rows = tuple(CollectiveRow("dp", "all_reduce", 4, 2**20 * n, 3, 0.001 * n, "ring", "") for n in (1, 2, 5))
    shown = text(dataclasses.replace(make(), collectives=rows))
    assert re.search(r"all_reduce +dp, 4 ranks +9 +24 MiB +8 ms +ring", shown)


def test_nothing_is_invented_when_little_is_known() -> None:
    result = dataclasses.replace(
        with_parts(make(stages=1, replicas=1, host=False), layers=()), sources=(),
        throughput=Throughput(None, None), efficiency=Efficiency(None, None, None, None, "", None, "no shapes"),
    )  # fmt: skip
    shown = text(result)
    assert "Throughput" not in shown
    assert "global batch" not in shown
    assert "Per device" not in shown
    assert "Modules" not in shown
    assert "None" not in shown


@given(st.lists(st.floats(0, 1), min_size=1, max_size=4).filter(lambda s: sum(s) > 0.1), st.integers(20, 120))
def test_the_bar_is_full(shares: list[float], width: int) -> None:
    whole = [s / sum(shares) for s in shares]
    cells = _cells(whole, width)
    assert sum(cells) == width
    assert all(c >= 1 for c, s in zip(cells, whole, strict=True) if s > 0.005)
    assert all(abs(c - s * width) <= 4 for c, s in zip(cells, whole, strict=True))
