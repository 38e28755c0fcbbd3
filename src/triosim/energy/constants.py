"""The table of constants of energy, money and carbon: each a row with its unit, its year and where it is from.

``constants.csv`` has the columns ``name, value, low, high, unit, year, confidence, source``; ``low`` and ``high`` bound
what is likely (90 %) and are empty where a figure is taken at its word.  Users override rows by name.
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted, unknown

CHOSEN = "as given"
"""Source of a constant that the user overrode."""


@dataclass(frozen=True)
class Constant:
    """One row of the table.

    Attributes:
        name: ``"grid.FR"``.
        value: in ``unit``.
        low, high: ends of its 90 % interval; the value itself where it is taken at its word.
        unit: ``"g/kWh"``.
        year: that it is of.
        confidence: ``"high"``, ``"medium"`` or ``"low"``.
        source: where it is from.
    """

    name: str
    value: float
    low: float
    high: float
    unit: str
    year: int | None
    confidence: str
    source: str

    @property
    def spread(self) -> float:
        """Natural logarithm of the factor of its 90 % interval: the mean of both sides."""
        if self.low <= 0 or self.high <= self.low:
            return 0.0
        return math.log(self.high / self.low) / 2

    def words(self) -> str:
        """One sentence on it: ``"grid.FR 56 g/kWh: Our World in Data (2023)"``."""
        year = f" ({self.year})" if self.year else ""
        return f"{self.name} {self.value:g} {self.unit}: {self.source}{year}"


@functools.cache
def table() -> dict[str, Constant]:
    """All rows by name."""
    text = (Path(__file__).parent / "constants.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {row["name"]: _constant(row) for row in rows}


def _constant(row: Mapping[str, str]) -> Constant:
    value = float(row["value"])
    low, high = (float(row[end]) if row[end] else value for end in ("low", "high"))
    year = int(row["year"]) if row["year"] else None
    return Constant(row["name"], value, low, high, row["unit"], year, row["confidence"], row["source"])


@dataclass
class EnergyConstants:
    """The table as one prediction reads it.

    Attributes:
        overrides: values that the user gave, by name.
        used: the constants that were read, by name, in that order.
    """

    overrides: Mapping[str, float] = field(default_factory=dict)
    used: dict[str, Constant] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in self.overrides.items():
            check(name, value)

    def get(self, name: str) -> Constant:
        """The constant of that name, noted as used.

        Raises:
            InputError: there is none.
        """
        if (known := self.used.get(name)) is not None:
            return known
        if name not in table():
            raise unknown("constant", name, table())
        found = table()[name]
        if name in self.overrides:
            value = self.overrides[name]
            found = replace(found, value=value, low=value, high=value, year=None, source=CHOSEN)
        self.used[name] = found
        return found

    def value(self, name: str) -> float:
        """Its value; see :meth:`get`."""
        return self.get(name).value

    def first(self, *names: str) -> Constant:
        """The first of these that there is; the last one must be.

        Raises:
            InputError: not even the last one is there.
        """
        return self.get(next((name for name in names if name in table()), names[-1]))

    def sources(self) -> tuple[str, ...]:
        """A sentence for each constant that was read."""
        return tuple(constant.words() for constant in self.used.values())


_AT_LEAST = {"facility.pue": 1.0, "pue": 1.0}
"""Least value of a constant or of all under a name; zero for all others."""


def check(name: str, value: float) -> None:
    """Refuse a value that makes no sense for a constant.

    Raises:
        InputError: there is no such constant, or its value is no number, or below what it can be.
    """
    if name not in table():
        raise unknown("constant", name, table())
    least = _AT_LEAST.get(name, _AT_LEAST.get(name.partition(".")[0], 0.0))
    if not (math.isfinite(value) and value >= least):
        unit = table()[name].unit
        unit = "" if unit == "ratio" else f" {unit}"
        raise InputError(f"constant {name} must be a number of at least {least:g}{unit}, got {value:g}")
    if name in _DIVIDES and not value:
        raise InputError(f"constant {name} is divided by: give a number above 0")
    if value > _MOST:
        raise InputError(f"constant {name} must be at most {_MOST:g}, got {value:g}")
    if unit_is_share(name) and value > 1:
        raise InputError(f"constant {name} is a part of a whole: give 0 to 1, got {value:g}")


_DIVIDES = ("life.years", "life.use", "embodied.yield", "device.attained")
_MOST = 1e15
"""Above it a number is a slip."""
_SHARES = (
    "device.attained", "device.idle_share", "device.memory_share", "grid.market", "life.use", "embodied.yield",
)  # fmt: skip


def unit_is_share(name: str) -> bool:
    """Whether a constant is a part of a whole, at most 1."""
    return name in _SHARES


def parse(texts: Sequence[str] | None, option: str = "--constant") -> dict[str, float]:
    """Overrides from texts such as ``"grid.FR=40"``.

    Raises:
        InputError: one has no name or number, a name is given twice, or :func:`check` refuses it.
    """
    found: dict[str, float] = {}
    for text in texts or ():
        name, _, number = (part.strip() for part in text.partition("="))
        try:
            value = float(number)
        except ValueError:
            raise InputError(f"{option} {quoted(text)}: give a name and a number, for example grid.FR=40") from None
        if name in found:
            raise InputError(f"{option} {name} is given twice: keep one")
        check(name, value)
        found[name] = value
    return found


def without_effect(names: Iterable[str], sources: Iterable[str]) -> list[str]:
    """The constants of these on which a result does not rest.

    Args:
        names: of constants that the user gave.
        sources: sentences of the result, those of :meth:`EnergyConstants.sources` among them.
    """
    used = {sentence.removeprefix("energy: ").partition(" ")[0] for sentence in sources}
    return [name for name in names if name not in used]
