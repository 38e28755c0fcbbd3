"""``triosim cost``: dollars, grams and litres of a result that was written, or of published device hours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from triosim.cli import completion
from triosim.cli.command import command
from triosim.cli.completion import choices
from triosim.cli.energy_options import GRID
from triosim.cli.fields import argument, option
from triosim.cli.fields import command as function_of
from triosim.cli.outputs import OUTPUT, present
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError

if TYPE_CHECKING:
    from triosim.energy.cost import CostOptions, Usage

HOURS, PLACE, MONEY = "Instead of a result", "Where", "Money"


@dataclass(frozen=True)
class CostCommandOptions:
    """What ``cost`` takes, in the order in which help lists it."""

    result: Path | None = argument(
        "RESULT", "What train, infer or serve --json wrote.", default=None, complete=completion.files
    )
    device: str | None = option(
        "--device", help="Device (triosim devices) or a file that describes one.", group=HOURS, metavar="NAME|FILE",
        complete=completion.devices,
    )  # fmt: skip
    hours: str | None = option("--hours", help="Device hours of the whole job.", group=HOURS, metavar="N")
    power: str | None = option("--power", help="Power of a device (default: its TDP).", group=HOURS, metavar="WATTS")
    at: str = option(
        "--at", help="Whose grid, as FR or oregon (default world).", default="world", group=PLACE, metavar="PLACE",
        complete=completion.places,
    )  # fmt: skip
    grid: str | None = option("--grid", help=GRID, group=PLACE, metavar="G|FILE", complete=completion.files)
    market: str | None = option("--market", help="Bought as carbon-free, as 60%.", group=PLACE, metavar="PART")
    pue: str | None = option(
        "--pue",
        help="What the facility takes over its nodes: a number, google, aws, azure or meta (default: the result's).",
        group=PLACE, metavar="X",
    )  # fmt: skip
    price: str | None = option(
        "--price", help="Of a device hour, as 2/h, instead of --pay (default: its list price).", group=MONEY,
        metavar="USD/h",
    )  # fmt: skip
    pay: str = option(
        "--pay", help="list, reserved or spot price, or own machines (default list).", default="list", group=MONEY,
        metavar="HOW", complete=choices("list", "reserved", "spot", "own"),
    )  # fmt: skip
    tokens: str | None = option("--tokens", help="Tokens of the whole job, as 2e12.", metavar="N")
    constant: list[str] | None = option(
        "--constant", help="Of the table of constants (docs/cost.md), as grid.FR=40; repeatable.", metavar="NAME=VALUE"
    )
    json: str | None = option(
        "--json", help="Write the result as JSON; - writes it, and nothing else, to the terminal.", group=OUTPUT,
        metavar="FILE", complete=completion.files,
    )  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the command."""
    about = """What a job costs and emits: per iteration, job, million tokens and sample; nothing is simulated.

    The job is a result that --json wrote, or so many hours of a device at a nominal power.
    """
    command(app, "cost")(function_of(CostCommandOptions, cost, about))


def cost(options: CostCommandOptions) -> None:
    """Work out what a job costs, and show or write it.

    Raises:
        InputError: an option makes no sense, or what is costed cannot be read.
    """
    from triosim.cli.energy_options import tell_unused
    from triosim.core.outputs import check_distinct
    from triosim.energy.cost import cost as costed
    from triosim.report.cost import show, to_dict

    read = [("RESULT", options.result), ("--grid", options.grid), ("--device", options.device)]
    check_distinct({"--json": options.json}, read)
    usage = _usage(options)
    found = costed(usage, _options(options))
    present(found, "cost", options.json, to_dict, show)
    # Of a PUE that is given as a constant no source says more.
    tell_unused(options.constant, (*found.sources, *(["facility.pue"] if options.pue is None else [])), options.pue)


def _usage(options: CostCommandOptions) -> Usage:
    """What is costed: a result, or hours of a device."""
    from triosim.energy import usage

    device, hours, power = options.device, options.hours, options.power
    if options.result is not None:
        if device is not None or hours is not None or power is not None:
            raise InputError("a result says its devices, hours and power: leave out --device, --hours and --power")
        return usage.read(options.result)
    if device is None or hours is None:
        raise InputError("give a result that train --json wrote, or --device and --hours: triosim cost RESULT.json")
    from triosim.cli.energy_options import number_of
    from triosim.core.units import parse_power
    from triosim.hardware.build import accelerator

    known = accelerator(device)
    watts = known.tdp_w if power is None else parse_power(power, "--power")
    if watts is None:
        raise InputError(f"the TDP of {known.name} is not known: give --power, for example 400W")
    return usage.nominal(known.name, number_of(hours, "--hours", "1082990"), watts, (known,))


def _options(options: CostCommandOptions) -> CostOptions:
    """Where it runs, and how it is paid."""
    from triosim.cli.energy_options import check_pue, grid_of, number_of, part_of, price_of
    from triosim.energy.constants import parse
    from triosim.energy.cost import CostOptions, facility_pue, grid_name, operator

    overrides, pue = parse(options.constant), options.pue
    if pue is not None:
        check_pue(overrides)
    grid_name(options.at)
    intensity, source = grid_of(options.grid)
    if pue is None and "facility.pue" in overrides:
        pue = str(overrides["facility.pue"])
    return CostOptions(
        at=options.at,
        grid_g_per_kwh=intensity,
        grid_source=source,
        market=None if options.market is None else part_of(options.market, "--market"),
        pue=None if pue is None else facility_pue(pue, overrides),
        operator=operator(pue),
        price_per_hour=price_of(options.price),
        mode=options.pay,
        tokens=None if options.tokens is None else number_of(options.tokens, "--tokens", "2e12"),
        overrides=tuple(overrides.items()),
    )
