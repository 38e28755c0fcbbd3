"""What commands write: the option ``--json``, and the order in which a result is written, shown and told of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from triosim.cli import completion
from triosim.cli.command import say, wants_summary

if TYPE_CHECKING:
    from rich.console import Console

R = TypeVar("R")

OUTPUT = "Output"
"""The group of options that name what is written."""

JsonFile = Annotated[
    str | None,
    typer.Option(
        "--json", metavar="FILE", help="Write the result as JSON; - writes it, and nothing else, to the terminal.",
        show_default=False, rich_help_panel=OUTPUT, autocompletion=completion.files,
    ),
]  # fmt: skip
"""The option of every command whose result can be read by programs."""


def write_json(value: Any, path: str | None) -> None:
    """Write a file of JSON, or standard output where the path is ``-``; nothing where there is no path.

    Raises:
        InputError: the file cannot be written.
        ValueError: a number is not finite, which JSON cannot say.
    """
    if path is None:
        return
    from json import dumps

    from triosim.core.outputs import text_output

    text = dumps(value, indent=1, allow_nan=False)
    with text_output(path) as file:
        file.write(text + "\n")


def present(
    result: R, what: str, json: str | None, to_dict: Callable[[R], dict[str, Any]], show: Callable[[R, Console], None]
) -> None:
    """Write a result as JSON where that is asked for, else show it, and say what was written.

    Args:
        result: of the command.
        what: it is, for the line that says where it was written.
        json: path, or None.
        to_dict: the result as JSON has it.
        show: prints it for a person.
    """
    from triosim.cli.streams import rich_console, written

    if json is not None:
        write_json(to_dict(result), json)
    if wants_summary(json):
        show(result, rich_console())
    say(written(what, json), json)
