"""Text with units, and back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triosim.core.errors import InputError
from triosim.core.units import (
    format_bandwidth,
    format_bytes,
    format_time,
    parse_bandwidth,
    parse_bytes,
    parse_flops,
    parse_time,
    picoseconds,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("25 us", 25e-6),
        ("25us", 25e-6),
        ("1.5ms", 1.5e-3),
        ("0", 0.0),
        ("2", 2.0),
        ("7 ns", 7e-9),
        ("1h", 3600.0),
        (3e-6, 3e-6),
    ],
)
def test_times(text, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("80GiB", 80 * 2**30),
        ("4 MB", 4 * 10**6),
        ("1e3", 1000),
        ("512", 512),
        ("8Kib", 1024),
        ("1.5KiB", 1536),
        ("1_000B", 1000),
    ],
)
def test_sizes(text, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("113.75GB/s", 113.75e9), ("113.75 GB/s", 113.75e9), ("400Gb/s", 50e9), ("400Gbps", 50e9), ("1GiB/s", 2.0**30),
        ("inf", math.inf), (5e9, 5e9),
    ],
)  # fmt: skip
def test_bandwidths(text, rate: float) -> None:
    assert parse_bandwidth(text) == rate


def test_compute_rates() -> None:
    assert parse_flops("989 TFLOP/s") == parse_flops("989TFLOPS") == 989e12


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_time, "-1us"), (parse_time, "5 parsecs"), (parse_time, ""), (parse_time, "nan"), (parse_time, "1 us us"),
        (parse_bytes, "-1"), (parse_bytes, "1.5"), (parse_bytes, "3 apples"), (parse_bytes, "1e999999999"),
        (parse_bytes, "inf"), (parse_bandwidth, "0"), (parse_bandwidth, "-1GB/s"), (parse_bandwidth, "1 GB"),
        (parse_bandwidth, "GB/s"), (parse_bandwidth, float("nan")), (parse_bandwidth, True), (parse_flops, "0"),
        (parse_flops, "3 horses"), (parse_bandwidth, "10"),
    ],
)  # fmt: skip
def test_nonsense_is_refused(parse, text) -> None:
    with pytest.raises(InputError):
        parse(text)


@given(st.integers(0, 10**18))
def test_picoseconds_are_whole_and_nearest(count: int) -> None:
    assert abs(picoseconds(count * 1e-12, "a time") - count) <= max(count * 1e-15, 0)


@given(st.floats(1e-11, 1e4))
def test_a_printed_time_is_read_back_to_three_digits(seconds: float) -> None:
    assert parse_time(format_time(seconds)) == pytest.approx(seconds, rel=6e-3, abs=6e-13)


@given(st.integers(1, 10**15))
def test_a_printed_size_is_read_back_to_three_digits(count: int) -> None:
    text = format_bytes(count)
    number, unit = text.split()
    scale = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}[unit]
    assert float(number) * scale == pytest.approx(count, rel=1e-3)


def test_what_is_not_known_is_a_dash() -> None:
    assert format_time(None) == format_time(math.nan) == format_bytes(None) == format_bandwidth(None) == "-"
    assert format_bandwidth(math.inf) == "unlimited"
