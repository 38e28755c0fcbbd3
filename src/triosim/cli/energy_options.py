"""What ``triosim train`` and ``infer`` take of power and energy: one field for each option."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from triosim.cli.command import note
from triosim.cli.completion import choices, files, places
from triosim.cli.fields import option
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from triosim.energy.device import DeviceEnergy
    from triosim.energy.options import EnergyOptions
    from triosim.hardware.system import System
    from triosim.prediction.result import Result
    from triosim.search.clock_search import BestClock

ENERGY = "Power, energy and cost"
POWER_CAP = "What each device may draw: its clock falls until it fits."
CLOCK = "Highest clock of each device, as 1200MHz."
GRID = "Intensity of the grid: g/kWh, or a CSV with a line for each hour (g_co2e_per_kwh)."
CONSTANT = "Of the table of constants (docs/energy.md), as facility.pue=1.1; repeatable."


def _option(name: str, metavar: str | None, help: str, complete: Any = None) -> Any:
    return option(name, help=help, default=None, group=ENERGY, metavar=metavar, complete=complete)


@dataclass(frozen=True)
class PowerFields:
    """Options of power and energy, in the order in which help lists them."""

    power_cap: str | None = _option("--power-cap", "WATTS", POWER_CAP)
    clock: str | None = _option("--clock", "MHZ", CLOCK)
    find: str | None = _option(
        "--find", "WHAT", "clock: that at which an iteration takes least energy.", choices("clock")
    )
    slowdown: str | None = _option("--slowdown", "PART", "With --find: how much longer it may take (default 5%).")
    tokens: str | None = _option("--tokens", "N", "Tokens of the whole job, as 2e12: what it takes, costs and emits.")
    at: str | None = _option("--at", "PLACE", "Whose grid, as FR or oregon (default: the world's mean).", places)
    grid: str | None = _option("--grid", "G|FILE", GRID, files)
    pue: str | None = _option("--pue", "X", "What the facility takes over its nodes: a number, google, aws, azure.")
    price: str | None = _option("--price", "USD/h", "Of a device hour, as 2/h (default: its list price).")
    pay: str | None = _option(
        "--pay", "HOW", "list, reserved or spot price, or own machines (default list).",
        choices("list", "reserved", "spot", "own"),
    )  # fmt: skip
    energy: str | None = _option(
        "--energy", "PACK.json", "What a device draws as measured (triosim calibrate --power).", files
    )
    constant: list[str] | None = _option("--constant", "NAME=VALUE", CONSTANT)


class Limits(Protocol):
    """What devices are held to."""

    @property
    def power_cap(self) -> str | None:
        """Watts, as typed."""

    @property
    def clock(self) -> str | None:
        """Of each device at most, as typed."""


def held_back(system: System, options: Limits) -> System:
    """The system under the power cap and the clock that the options ask for.

    Raises:
        InputError: a device cannot keep them.
    """
    from triosim.hardware.power import held_back as held

    cap, clock = limits(options)
    return system if cap is None and clock is None else held(system, cap, clock)


def limits(options: Limits) -> tuple[float | None, float | None]:
    """Watts and hertz that devices are held to.

    Raises:
        InputError: one is no power or no clock.
    """
    from triosim.core.units import parse_clock, parse_power

    cap = None if options.power_cap is None else parse_power(options.power_cap, "--power-cap")
    return cap, None if options.clock is None else parse_clock(options.clock, "--clock")


def best_of(options: PowerFields, predict: Callable[[System], Result], system: System) -> BestClock | None:
    """What ``--find`` asks for; None where it is not given.

    Raises:
        InputError: it is another word than is known, or does not go with other options.
    """
    slowdown = slowdown_of(options)
    if slowdown is None:
        return None
    from triosim.search.clock_search import best_clock

    return best_clock(predict, system, slowdown)


def slowdown_of(options: PowerFields) -> float | None:
    """How much slower the clock that ``--find`` asks for may be, as a part of a whole; None where it is not given.

    Raises:
        InputError: it is another word than is known, or does not go with other options.
    """
    if options.find is None:
        if options.slowdown is not None:
            raise InputError("--slowdown says how much slower the clock of --find may be: give --find clock as well")
        return None
    if options.find != "clock":
        raise InputError(f"--find must be clock, got {quoted(options.find)}")
    if options.clock is not None:
        raise InputError("--find clock and --clock both say the clock: give only one")
    return part_of(options.slowdown or "5%", "--slowdown")


def part_of(text: str, what: str) -> float:
    """A part of a whole from ``"5%"`` or ``"0.05"``.

    Raises:
        InputError: it is none.
    """
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise InputError(f"{what} {quoted(text)}: give a part of a whole, for example 5%")
    return value


def energy_options(options: PowerFields) -> EnergyOptions:
    """What the prediction is told of energy.

    Raises:
        InputError: a constant or a file makes no sense.
    """
    from triosim.energy.constants import parse
    from triosim.energy.cost import CostOptions, check, facility_pue, grid_name, operator
    from triosim.energy.options import EnergyOptions

    overrides = parse(options.constant)
    if options.pue is not None:
        check_pue(overrides)
        overrides["facility.pue"] = facility_pue(options.pue, overrides)
    given = tuple(overrides.items())
    place = options.at or "world"
    grid_name(place)
    intensity, source = grid_of(options.grid)
    paid = CostOptions(
        at=place, grid_g_per_kwh=intensity, grid_source=source, price_per_hour=price_of(options.price),
        mode=options.pay or "list", overrides=given, operator=operator(options.pue),
        tokens=None if options.tokens is None else number_of(options.tokens, "--tokens", "2e12"),
    )  # fmt: skip
    check(paid)
    return EnergyOptions(overrides=given, cost=paid, calibrated=_calibrated(options.energy))


def check_pue(overrides: Mapping[str, float]) -> None:
    """Refuse a PUE beside ``--pue``.

    Raises:
        InputError: a constant says it as well.
    """
    if "facility.pue" in overrides:
        raise InputError("--pue and --constant facility.pue both say the PUE: give only one")


def tell_unused(constants: Sequence[str] | None, sources: Sequence[str], pue: str | None = None) -> None:
    """Say in a line which constants were given and change nothing of a result.

    Args:
        constants: as typed after ``--constant``.
        sources: what the result says that it rests on.
        pue: as typed after ``--pue``; a company's row of the table has been read for it.
    """
    from triosim.energy.constants import parse, without_effect

    read = f"pue.{(pue or '').strip().lower()}"
    unused = [name for name in without_effect(parse(constants), sources) if name != read]
    if unused:
        note(f"warning   nothing of this result rests on --constant {', '.join(unused)}")


def _calibrated(path: str | None) -> tuple[tuple[str, DeviceEnergy], ...]:
    """What the device of a pack draws, by its name."""
    if path is None:
        return ()
    from triosim.energy.calibration import read_pack

    pack = read_pack(Path(path))
    return ((pack.device, pack.energy),)


def price_of(text: str | None) -> float | None:
    """Dollars of a device hour from ``"2/h"`` or ``"2"``.

    Raises:
        InputError: it is no price.
    """
    if text is None:
        return None
    bare = text.strip().removesuffix("/h").strip().removesuffix("USD").removeprefix("$").strip()
    try:
        value = float(bare)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise InputError(f"--price {quoted(text)}: give dollars of a device hour, at least 0, for example 2/h")
    return value


LARGEST_NUMBER = 1e18
"""Tokens or device hours beyond which a typed number is a slip: a thousand times all text that people have written, and
more hours than the Earth is old."""


def number_of(text: str, what: str, example: str) -> float:
    """A number above 0.

    Raises:
        InputError: it is not, or is out of all proportion.
    """
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise InputError(f"{what} {quoted(text)}: give a number above 0, for example {example}")
    if value > LARGEST_NUMBER:
        raise InputError(f"{what} {quoted(text)} is out of all proportion: give for example {example}")
    return value


def grid_of(text: str | None) -> tuple[tuple[float, ...], str]:
    """Intensities of a grid by the hour, and what they are; nothing where it is not given.

    Raises:
        InputError: it is no intensity, or a file that holds none.
    """
    if text is None:
        return (), ""
    try:
        value = float(text)
    except ValueError:
        from triosim.energy.usage import hourly

        return hourly(Path(text)), text
    if not 0 <= value < float("inf"):
        raise InputError(f"--grid {quoted(text)}: the intensity of a grid must be at least 0 g/kWh")
    return (value,), f"{value:g} g/kWh as given"
