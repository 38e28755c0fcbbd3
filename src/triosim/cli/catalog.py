"""``triosim systems``, ``devices`` and ``models``: what is known by name."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from triosim.cli import completion
from triosim.cli.command import command


def _name(complete: completion.Complete) -> Any:
    return typer.Argument(help="Show this one in full.", show_default=False, autocompletion=complete)


System = Annotated[str | None, _name(completion.systems)]
Device = Annotated[str | None, _name(completion.devices)]
Model = Annotated[str | None, _name(completion.models)]


def register_systems(app: typer.Typer) -> None:
    """Add ``systems``."""
    command(app, "systems")(systems)


def register_devices(app: typer.Typer) -> None:
    """Add ``devices``."""
    command(app, "devices")(devices)


def register_models(app: typer.Typer) -> None:
    """Add ``models``."""
    command(app, "models")(models)


def systems(name: System = None) -> None:
    """List the ready systems, or show one."""
    from triosim.cli.streams import rich_console
    from triosim.report import listing

    console = rich_console()
    listing.systems(console) if name is None else listing.system(name, console)


def devices(name: Device = None) -> None:
    """List the devices of the catalog, or show one."""
    from triosim.cli.streams import rich_console
    from triosim.report import listing

    console = rich_console()
    listing.devices(console) if name is None else listing.device(name, console)


def models(name: Model = None) -> None:
    """List the models known by name, or show one."""
    from triosim.cli.streams import rich_console
    from triosim.report import listing

    console = rich_console()
    listing.models(console) if name is None else listing.model(name, console)
