"""``triosim systems``, ``devices`` and ``models``: what is known by name."""

from __future__ import annotations

from typing import Annotated

import typer

Name = Annotated[str | None, typer.Argument(help="Show this one in full.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the three commands."""
    app.command("systems")(systems)
    app.command("devices")(devices)
    app.command("models")(models)


def systems(name: Name = None) -> None:
    """List the ready systems, or show one."""
    from rich.console import Console

    from triosim.report import listing

    console = Console()
    listing.systems(console) if name is None else listing.system(name, console)


def devices(name: Name = None) -> None:
    """List the devices of the catalog, or show one."""
    from rich.console import Console

    from triosim.report import listing

    console = Console()
    listing.devices(console) if name is None else listing.device(name, console)


def models(name: Name = None) -> None:
    """List the models known by name, or show one."""
    from rich.console import Console

    from triosim.report import listing

    console = Console()
    listing.models(console) if name is None else listing.model(name, console)
