"""``triosim compare``: what makes the difference between predictions that were written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from triosim.cli import completion
from triosim.cli.command import command, say
from triosim.cli.outputs import OUTPUT, JsonFile, present
from triosim.core.errors import unknown

UNITS = ("iteration", "sample")


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "compare")(compare)


def compare(
    results: Annotated[
        list[Path],
        typer.Argument(
            metavar="RESULT...",
            help="Two or more, as train or infer --json wrote them.",
            show_default=False,
            autocompletion=completion.files,
        ),
    ],
    per: Annotated[
        str,
        typer.Option(
            "--per",
            metavar="UNIT",
            help="Times, energy and money of an iteration or a sample, for different batches.",
            autocompletion=completion.choices("iteration", "sample"),
        ),
    ] = "iteration",
    report: Annotated[
        str | None,
        typer.Option(
            "--report",
            metavar="FILE.html",
            help="Write a page that opens offline.",
            show_default=False,
            rich_help_panel=OUTPUT,
            autocompletion=completion.files,
        ),
    ] = None,
    json: JsonFile = None,
) -> None:
    """What makes the difference: each prediction against the first, part by part.

    What was asked differently, a waterfall from one iteration time to the other, and the modules and transfers that
    changed most.
    """
    from triosim.cli.streams import written
    from triosim.core.outputs import check_distinct, text_output
    from triosim.prediction.comparison import compare as compared
    from triosim.report.comparison import page, show, to_dict

    if per not in UNITS:
        raise unknown("unit", per, UNITS)
    check_distinct({"--report": report, "--json": json}, [(str(path), path) for path in results])
    found = compared(results, per_sample=per == "sample")
    if report is not None:
        with text_output(report) as file:
            file.write(page(found))
    present(found, "comparison", json, to_dict, show)
    say(written("page", report), json)
