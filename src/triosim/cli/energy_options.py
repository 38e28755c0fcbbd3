"""What ``triosim train`` and ``infer`` take of power and energy: one field for each option."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from triosim.cli.completion import choices
from triosim.cli.fields import option
from triosim.core.errors import InputError, quoted

if TYPE_CHECKING:
    from collections.abc import Callable

    from triosim.energy.options import EnergyOptions
    from triosim.hardware.system import System
    from triosim.prediction.result import Result
    from triosim.search.clock import BestClock

ENERGY = "Power and energy"


def _option(name: str, metavar: str | None, help: str, complete: Any = None) -> Any:
    return option(name, help=help, default=None, group=ENERGY, metavar=metavar, complete=complete)


@dataclass(frozen=True)
class PowerFields:
    """Options of power and energy, in the order in which help lists them."""

    power_cap: str | None = _option("--power-cap", "WATTS", "What each device may draw: its clock falls until it fits.")
    clock: str | None = _option("--clock", "MHZ", "Highest clock of each device, as 1200MHz.")
    find: str | None = _option(
        "--find", "WHAT", "clock: that at which an iteration takes least energy.", choices("clock")
    )
    slowdown: str | None = _option("--slowdown", "PART", "With --find: how much longer it may take (default 5%).")
    constant: list[str] | None = _option(
        "--constant", "NAME=VALUE", "Of the table of constants (docs/energy.md), as facility.pue=1.1; repeatable."
    )


def held_back(system: System, options: PowerFields) -> System:
    """The system under the power cap and the clock that the options ask for.

    Raises:
        InputError: a device cannot keep them.
    """
    from triosim.core.units import parse_clock, parse_power
    from triosim.hardware.power import held_back as held

    cap = None if options.power_cap is None else parse_power(options.power_cap, "--power-cap")
    clock = None if options.clock is None else parse_clock(options.clock, "--clock")
    return system if cap is None and clock is None else held(system, cap, clock)


def best_of(options: PowerFields, predict: Callable[[System], Result], system: System) -> BestClock | None:
    """What ``--find`` asks for; None where it is not given.

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
    from triosim.search.clock import best_clock

    return best_clock(predict, system, _part(options.slowdown or "5%"))


def _part(text: str) -> float:
    """A part of a whole from ``"5%"`` or ``"0.05"``."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise InputError(f"--slowdown {quoted(text)}: give a part of the time, for example 5%")
    return value


def energy_options(options: PowerFields) -> EnergyOptions:
    """What the prediction is told of energy.

    Raises:
        InputError: a constant or a file makes no sense.
    """
    from triosim.energy.constants import parse
    from triosim.energy.options import EnergyOptions

    return EnergyOptions(overrides=tuple(parse(options.constant).items()))
