"""``triosim validate``: predictions against real runs on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from triosim.errors import InputError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("validate")(validate)


def validate(
    processes: Annotated[int, typer.Option("--processes", help="Processes of each job.")] = 2,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="gpt-tiny, gpt-small, gpt-deep or gpt-wide, comma separated (default gpt-tiny,gpt-small,gpt-wide).",
            show_default=False,
        ),
    ] = None,
    modes: Annotated[
        str | None,
        typer.Option(
            "--modes", help="ddp, fsdp2, tp, gpipe or 1f1b, comma separated (default all).", show_default=False
        ),
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", help="How often each runs, in turns.")] = 12,
    budget: Annotated[
        str, typer.Option("--budget", help="No round begins after this, and a minute later all is ended.")
    ] = "150s",
    device: Annotated[
        str | None,
        typer.Option("--device", help="cpu or cuda (default: GPUs if there is one a process).", show_default=False),
    ] = None,
    json: Annotated[
        str | None, typer.Option("--json", help="Write everything as JSON; - writes it to the terminal.")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Write a picture (.svg or .html).")] = None,
) -> None:
    """Predict parallel jobs of this machine, run them with PyTorch, and compare; about two minutes."""
    from triosim.cli.predict import _progress as progress
    from triosim.units import parse_time
    from triosim.validate import plot as picture
    from triosim.validate.sizes import DEFAULT, MODES
    from triosim.validate.validation import validate as run

    if plot is not None and plot.suffix.lower() not in (".svg", ".html"):
        raise InputError(f"--plot {plot}: the picture is written as .svg or .html; give a name that ends so")
    with progress() as tell:
        found = run(
            processes=processes,
            models=_listed(model, DEFAULT),
            modes=_listed(modes, MODES),
            rounds=rounds,
            budget_s=parse_time(budget, "--budget"),
            device=device,
            progress=tell,
        )
    written = []
    if plot is not None:
        picture.write(found, plot)
        written.append(f"picture   {plot}")
    if json == "-":
        sys.stdout.write(found.to_json())
    elif json is not None:
        from triosim.report.files import whole

        with whole(json) as file:
            file.write(found.to_json())
        written.append(f"result    {json}")
    if json != "-":
        from rich.console import Console

        from triosim.validate.terminal import show

        show(found, Console())
    for line in written:
        print(line, file=sys.stderr if json == "-" else sys.stdout)


def _listed(text: str | None, default: tuple[str, ...]) -> tuple[str, ...]:
    """Names between commas."""
    if text is None:
        return default
    return tuple(name.strip() for name in text.split(",") if name.strip())
