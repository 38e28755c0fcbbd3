"""Text with units <-> numbers.

Inside the program everything is SI: seconds, bytes, bytes per second, FLOP.  Units appear only where a
person types or reads them.  ``B`` is bytes and ``b`` bits; ``GB`` is 1e9 bytes and ``GiB`` 2**30.
The engine counts whole picoseconds (ticks), so that sums are exact.  :func:`picoseconds` is the only way from seconds
to ticks.  It refuses what cannot be counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, overload

from triosim.core.errors import InputError, quoted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Place = str | Callable[[int], str]
"""What a time is, as the beginning of a sentence; of many times a function of their row."""

PICOSECONDS_PER_SECOND = 10**12

MOST_TICKS = 2**62 - 512
"""Picoseconds of the longest single time, 53 days, as a float has them: the sum of two still fits 63 bits."""

MOST_SUM = 2**63 - 1024
"""Picoseconds of the longest sum, 107 days: what the engine can count to."""

_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_PREFIX = {**_DECIMAL, **_BINARY}
_TIME = {
    "s": Decimal(1), "ms": Decimal("1e-3"), "us": Decimal("1e-6"), "µs": Decimal("1e-6"), "μs": Decimal("1e-6"),
    "ns": Decimal("1e-9"), "ps": Decimal("1e-12"), "min": Decimal(60), "h": Decimal(3600),
    "d": Decimal(86400),
}  # fmt: skip
LARGEST_EXPONENT = 40
"""Powers of ten beyond which a typed number is a slip."""

LEAST_BANDWIDTH = 10**6
"""Bytes per second of the slowest link that a text without a unit may mean."""
_NUMBER = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|inf)\s*(.*?)\s*")


def parse_time(text: str | float, what: str = "time") -> float:
    """Seconds from ``"25 us"``; a bare number is seconds.

    Raises:
        InputError: not a number with a time unit, or negative.
    """
    number, unit = _split(text, what, "25us")
    if unit and unit not in _TIME:
        raise InputError(
            f"{what} {quoted(text)}: unknown unit {quoted(unit)}; use d, h, min, s, ms, us, ns or ps, for example 25us"
        )
    return _checked(number * _TIME.get(unit, Decimal(1)), text, what)


def parse_budget(text: str) -> float:
    """Seconds that something may take, from ``"90s"``, ``"90"`` or ``"4m"`` (minutes).

    Raises:
        InputError: as of :func:`parse_time`, or without an end.
    """
    minutes = re.fullmatch(r"\s*([\d.]+)\s*m\s*", text)
    found = parse_time(f"{minutes[1]} min" if minutes else text, "--budget")
    if not math.isfinite(found):
        raise InputError(f"--budget {quoted(text)} never ends: give a time, for example 4m")
    return found


def parse_latency(text: str | float, what: str = "latency") -> float:
    """As :func:`parse_time`, but a text names its unit: 5 is more likely to be microseconds than seconds.

    Raises:
        InputError: as of :func:`parse_time`, or a text without a unit.
    """
    number, unit = _split(text, what, "5us")
    if _bare(text, number, unit):
        raise InputError(f"{what} {quoted(text)} has no unit: use s, ms, us and so on, for example 5us")
    return parse_time(text, what)


def parse_bytes(text: str | float, what: str = "size") -> int:
    """Bytes from ``"80 GiB"`` or ``"4MB"`` (``b`` is bits); a bare number is bytes.

    Raises:
        InputError: not a number with a size unit, negative, or not a whole number of bytes.
    """
    number, unit = _split(text, what, "80GiB")
    scale = _size_scale(unit, text, what, "80GiB")
    value = number * scale
    _checked(value, text, what)
    if not value.is_finite() or value != int(value):
        raise InputError(f"{what} {quoted(text)} is not a whole number of bytes")
    return int(value)


def parse_bandwidth(text: str | float, what: str = "bandwidth") -> float:
    """Bytes per second from ``"900 GB/s"``, ``"400Gb/s"`` or ``"400Gbps"``; ``inf`` is allowed.

    A number is bytes per second; a text below :data:`LEAST_BANDWIDTH` names its unit, for 10 is more likely to be GB/s
    than B/s.

    Raises:
        InputError: not a rate, zero or negative, or a text without a unit.
    """
    number, unit = _split(text, what, "113.75GB/s")
    if _bare(text, number, unit) and number < LEAST_BANDWIDTH:
        raise InputError(f"{what} {quoted(text)} has no unit: use B/s, GB/s, Gb/s and so on, for example 113.75GB/s")
    if unit.endswith("ps"):
        unit = unit[:-2] + "/s"
    if unit and not unit.endswith("/s"):
        raise InputError(
            f"{what} {quoted(text)}: unknown unit {quoted(unit)}; use B/s, GB/s, Gb/s and so on, for example 113.75GB/s"
        )
    value = number * _size_scale(unit[:-2] if unit else "", text, what, "113.75GB/s")
    if value <= 0:
        raise InputError(f"{what} {quoted(text)} must be above zero")
    return float(value)


def parse_flops(text: str | float, what: str = "compute rate") -> float:
    """FLOP per second from ``"989 TFLOP/s"`` or ``"989TFLOPS"``; a bare number is FLOP per second."""
    number, unit = _split(text, what, "989TFLOP/s")
    match = re.fullmatch(r"([kKMGTPE]?)(?:FLOP/s|FLOPS|FLOPs|flops|OP/s|OPS|TOPS)?", unit)
    if not match:
        raise InputError(f"{what} {quoted(text)}: unknown unit {quoted(unit)}; use for example 989TFLOP/s")
    value = number * _DECIMAL[match.group(1)]
    if value <= 0:
        raise InputError(f"{what} {quoted(text)} must be above zero")
    return float(value)


def parse_power(text: str | float, what: str = "power") -> float:
    """Watts from ``"300 W"`` or ``"0.3kW"``; a bare number is watts.

    Raises:
        InputError: not a number with such a unit, or not above zero.
    """
    return _scaled(text, what, {"": Decimal(1), "W": Decimal(1), "kW": Decimal(1000), "mW": Decimal("1e-3")}, "300W")


def parse_clock(text: str | float, what: str = "clock") -> float:
    """Hertz from ``"1.2 GHz"``; a bare number is megahertz, as drivers have it.

    Raises:
        InputError: not a number with such a unit, or not above zero.
    """
    mega = Decimal(10**6)
    return _scaled(text, what, {"": mega, "MHz": mega, "GHz": 1000 * mega, "Hz": Decimal(1)}, "1200MHz")


def _scaled(text: str | float, what: str, units: dict[str, Decimal], example: str) -> float:
    number, unit = _split(text, what, example)
    if unit not in units:
        known = ", ".join(name for name in units if name)
        raise InputError(f"{what} {quoted(text)}: unknown unit {quoted(unit)}; use {known}, for example {example}")
    value = number * units[unit]
    if not (value > 0 and value.is_finite()):
        raise InputError(f"{what} {quoted(text)} must be above zero")
    return float(value)


@overload
def picoseconds(seconds: float, what: Place, most: int = MOST_TICKS) -> int: ...
@overload
def picoseconds(seconds: NDArray[np.float64], what: Place, most: int = MOST_TICKS) -> NDArray[np.int64]: ...
def picoseconds(seconds: float | NDArray[np.float64], what: Place, most: int = MOST_TICKS) -> int | NDArray[np.int64]:
    """Whole picoseconds, nearest (what the engine counts in).

    Args:
        seconds: one time, or many of any shape.
        what: for messages, as ``"latency of the link from a to b"``; of many times a text for all of them, or a
            function from the place of one (in flat order) to its text.
        most: ticks above which a time is refused, at most :data:`MOST_SUM`.

    Raises:
        InputError: a time is not a number, infinite, below zero, or more than ``most``.
    """
    if isinstance(seconds, float | int):
        return whole_ticks(seconds * float(PICOSECONDS_PER_SECOND), what, most)
    import numpy as np

    with np.errstate(over="ignore"):  # what becomes infinite is refused
        return whole_ticks(seconds * float(PICOSECONDS_PER_SECOND), what, most)


@overload
def whole_ticks(ticks: float, what: Place, most: int = MOST_TICKS) -> int: ...
@overload
def whole_ticks(ticks: NDArray[np.float64], what: Place, most: int = MOST_TICKS) -> NDArray[np.int64]: ...
def whole_ticks(ticks: float | NDArray[np.float64], what: Place, most: int = MOST_TICKS) -> int | NDArray[np.int64]:
    """Times that are counted in picoseconds already, to the nearest whole one.

    Args:
        ticks: one time, or many of any shape.
        what, most: as of :func:`picoseconds`.

    Raises:
        InputError: as of :func:`picoseconds`.
    """
    if isinstance(ticks, int | float):
        if not -0.5 <= ticks <= most:
            raise _uncountable(float(ticks), what if isinstance(what, str) else what(0), most)
        return round(ticks)
    import numpy as np

    wrong = ~((ticks >= -0.5) & (ticks <= float(most)))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise _uncountable(float(ticks.flat[row]), what if isinstance(what, str) else what(row), most)
    return np.rint(ticks).astype(np.int64)


def _uncountable(ticks: float, what: str, most: int) -> InputError:
    if math.isnan(ticks):
        return InputError(f"{what} is not a number: give a time in seconds, zero or more")
    if ticks < 0:
        return InputError(f"{what} is negative ({ticks / PICOSECONDS_PER_SECOND:g} s): the least is 0")
    if math.isinf(ticks):
        return InputError(f"{what} never ends: look for a rate of 0, or for a wrong unit")
    return InputError(
        f"{what} is {ticks / PICOSECONDS_PER_SECOND:g} s, more than the {most / PICOSECONDS_PER_SECOND / 86_400:.0f} "
        "days that can be counted in picoseconds: look for a wrong unit"
    )


def format_time(seconds: float | None) -> str:
    """A time with three to four digits for people: ``"94.04 ms"``."""
    if seconds is None or math.isnan(seconds):
        return "-"
    if math.isinf(seconds):
        return "inf"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)):
        if abs(seconds) >= scale:
            return f"{_digits(seconds / scale)} {unit}"
    return "0 s" if seconds == 0 else f"{seconds / 1e-12:.0f} ps"


def format_bytes(count: float | None) -> str:
    """A size in binary units for people: ``"1.24 GiB"``."""
    if count is None:
        return "-"
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        if abs(count) >= _BINARY[unit]:
            return f"{_digits(count / _BINARY[unit])} {unit}B"
    return f"{count:.0f} B"


def format_bandwidth(rate: float | None) -> str:
    """A rate in decimal units for people: ``"450 GB/s"``."""
    return "-" if rate is None else f"{format_count(rate)}B/s" if math.isfinite(rate) else "unlimited"


def format_share(part: float) -> str:
    """A part of a whole: ``"36.5 %"``."""
    return "<0.1 %" if 0 < part < 0.0005 else f"{part * 100:.1f} %"


def format_count(count: float) -> str:
    """A count with a decimal prefix: ``"8.03 G"``."""
    for unit in ("P", "T", "G", "M", "k"):
        if abs(count) >= _DECIMAL[unit]:
            return f"{_digits(count / _DECIMAL[unit])} {unit}"
    return f"{_digits(count)} "


def _digits(x: float) -> str:
    text = f"{x:.4g}"
    return f"{x:.0f}" if "e" in text else text


def _bare(text: str | float, number: Decimal, unit: str) -> bool:
    """Whether a text is a number of whatever unit: not 0, nor inf, nor with an exponent, as scripts write SI units."""
    plain = isinstance(text, str) and not unit and "e" not in text.lower()
    return plain and number.is_finite() and number > 0


def _split(text: str | float, what: str, example: str) -> tuple[Decimal, str]:
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise InputError(f"{what} {quoted(text)} is not a number with a unit, for example {example}")
    if isinstance(text, int | float):
        if math.isnan(text):
            raise InputError(f"{what} is not a number; give for example {example}")
        return Decimal(repr(text)) if math.isfinite(text) else Decimal("inf").copy_sign(
            Decimal(int(text > 0) * 2 - 1)
        ), ""
    match = _NUMBER.fullmatch(text)
    if not match:
        raise InputError(f"{what} {quoted(text)} is not a number with a unit, for example {example}")
    number = Decimal(match.group(1).replace("_", ""))
    if number.is_finite() and number and abs(number.adjusted()) > LARGEST_EXPONENT:
        raise InputError(f"{what} {quoted(text)} is out of all proportion; give for example {example}")
    return number, match.group(2).replace(" ", "")


def _size_scale(unit: str, text: str | float, what: str, example: str) -> Decimal:
    if unit == "":
        return Decimal(1)
    prefix, letter = unit[:-1], unit[-1]
    if letter not in "Bb" or prefix not in _PREFIX:
        raise InputError(f"{what} {quoted(text)}: unknown unit {quoted(unit)}; use for example {example}")
    return Decimal(_PREFIX[prefix]) / (8 if letter == "b" else 1)


def _checked(value: Decimal, text: str | float, what: str) -> float:
    if value < 0:
        raise InputError(f"{what} {quoted(text)} is negative")
    return float(value)
