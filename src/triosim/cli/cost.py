"""``triosim cost``: dollars, grams and litres of a result that was written, or of published device hours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triosim.cli import completion
from triosim.cli.command import command
from triosim.cli.energy_options import GRID
from triosim.cli.outputs import JsonFile, present
from triosim.core.errors import InputError

if TYPE_CHECKING:
    from triosim.energy.cost import CostOptions, Usage

HOURS, PLACE, MONEY = "Instead of a result", "Where", "Money"


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "cost")(cost)


def cost(
    result: Annotated[
        Path | None,
        typer.Argument(
            metavar="RESULT",
            help="What train, infer or serve --json wrote.",
            show_default=False,
            autocompletion=completion.files,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="NAME",
            help="Device of the catalog.",
            show_default=False,
            rich_help_panel=HOURS,
            autocompletion=completion.devices,
        ),
    ] = None,
    hours: Annotated[
        str | None,
        typer.Option(
            "--hours", metavar="N", help="Device hours of the whole job.", show_default=False, rich_help_panel=HOURS
        ),
    ] = None,
    power: Annotated[
        str | None,
        typer.Option(
            "--power",
            metavar="WATTS",
            help="Power of a device (default: its TDP).",
            show_default=False,
            rich_help_panel=HOURS,
        ),
    ] = None,
    at: Annotated[
        str,
        typer.Option(
            "--at",
            metavar="PLACE",
            help="Whose grid, as FR or oregon.",
            rich_help_panel=PLACE,
            autocompletion=completion.places,
        ),
    ] = "world",
    grid: Annotated[
        str | None,
        typer.Option(
            "--grid",
            metavar="G|FILE",
            help=GRID,
            show_default=False,
            rich_help_panel=PLACE,
        ),
    ] = None,
    market: Annotated[
        str | None,
        typer.Option(
            "--market", metavar="PART", help="Bought as carbon-free, as 60%.", show_default=False, rich_help_panel=PLACE
        ),
    ] = None,
    pue: Annotated[
        str | None,
        typer.Option(
            "--pue",
            metavar="X",
            help="What the facility takes over its nodes: a number, google, "
            "aws, azure or meta (default: the result's).",
            show_default=False,
            rich_help_panel=PLACE,
        ),
    ] = None,
    price: Annotated[
        str | None,
        typer.Option(
            "--price",
            metavar="USD/h",
            help="Of a device hour, as 2/h, instead of --pay (default: its list price).",
            show_default=False,
            rich_help_panel=MONEY,
        ),
    ] = None,
    pay: Annotated[
        str,
        typer.Option(
            "--pay",
            metavar="HOW",
            help="list, reserved or spot price, or own machines.",
            rich_help_panel=MONEY,
            autocompletion=completion.choices("list", "reserved", "spot", "own"),
        ),
    ] = "list",
    tokens: Annotated[
        str | None, typer.Option("--tokens", metavar="N", help="Tokens of the whole job, as 2e12.", show_default=False)
    ] = None,
    constant: Annotated[
        list[str] | None,
        typer.Option(
            "--constant",
            metavar="NAME=VALUE",
            help="Of the table of constants (docs/cost.md), as grid.FR=40; repeatable.",
            show_default=False,
        ),
    ] = None,
    json: JsonFile = None,
) -> None:
    """What a job costs and emits: per iteration, job, million tokens and sample; nothing is simulated.

    The job is a result that --json wrote, or so many hours of a device at a nominal power.
    """
    from triosim.cli.energy_options import tell_unused
    from triosim.core.outputs import check_distinct
    from triosim.energy.cost import cost as costed
    from triosim.report.cost import show, to_dict

    check_distinct({"--json": json}, [("RESULT", result), ("--grid", grid)])
    usage = _usage(result, device, hours, power)
    options = _options(at, grid, market, pue, price, pay, tokens, constant)
    found = costed(usage, options)
    present(found, "cost", json, to_dict, show)
    # Of a PUE that is given as a constant no source says more.
    tell_unused(constant, (*found.sources, *(["facility.pue"] if pue is None else [])), pue)


def _usage(result: Path | None, device: str | None, hours: str | None, power: str | None) -> Usage:
    from triosim.energy import usage

    if result is not None:
        if device is not None or hours is not None or power is not None:
            raise InputError("a result says its devices, hours and power: leave out --device, --hours and --power")
        return usage.read(result)
    if device is None or hours is None:
        raise InputError("give a result that train --json wrote, or --device and --hours: triosim cost RESULT.json")
    from triosim.cli.energy_options import number_of
    from triosim.core.units import parse_power
    from triosim.hardware.catalog import accelerator

    known = accelerator(device)
    watts = known.tdp_w if power is None else parse_power(power, "--power")
    if watts is None:
        raise InputError(f"the TDP of {known.name} is not known: give --power, for example 400W")
    return usage.nominal(known.name, number_of(hours, "--hours", "1082990"), watts)


def _options(
    at: str, grid: str | None, market: str | None, pue: str | None, price: str | None, pay: str, tokens: str | None,
    constant: list[str] | None,
) -> CostOptions:  # fmt: skip
    from triosim.cli.energy_options import check_pue, grid_of, number_of, part_of, price_of
    from triosim.energy.constants import parse
    from triosim.energy.cost import CostOptions, facility_pue, grid_name, operator

    overrides = parse(constant)
    if pue is not None:
        check_pue(overrides)
    grid_name(at)
    intensity, source = grid_of(grid)
    if pue is None and "facility.pue" in overrides:
        pue = str(overrides["facility.pue"])
    return CostOptions(
        at=at,
        grid_g_per_kwh=intensity,
        grid_source=source,
        market=None if market is None else part_of(market, "--market"),
        pue=None if pue is None else facility_pue(pue, overrides),
        operator=operator(pue),
        price_per_hour=price_of(price),
        mode=pay,
        tokens=None if tokens is None else number_of(tokens, "--tokens", "2e12"),
        overrides=tuple(overrides.items()),
    )
