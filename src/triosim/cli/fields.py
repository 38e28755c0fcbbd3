"""Options of a command as the fields of a dataclass, from which typer's parameters are made."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, field, fields
from typing import Annotated, Any, get_type_hints

import typer

from triosim.cli.completion import Complete
from triosim.core.errors import InputError, quoted


def option(
    *names: str,
    help: str,
    default: Any = None,
    group: str | None = None,
    metavar: str | None = None,
    complete: Complete | None = None,
) -> Any:
    """A field that is an option on the command line.

    Args:
        names: of the option, as ``--dp``.
        help: what help says of it.
        default: where it is not given.
        group: under which help lists it.
        metavar: what stands for its value in help.
        complete: what the shell offers for its value.
    """
    said = {"names": names, "help": help, "group": group, "metavar": metavar, "complete": complete}
    return field(default=default, metadata=said)


def argument(metavar: str, help: str, complete: Complete | None = None) -> Any:
    """A field that is given without a name, and must be; see :func:`option`."""
    return field(metadata={"help": help, "metavar": metavar, "complete": complete})


def command(options: type, run: Callable[[Any], None], summary: str) -> Callable[..., None]:
    """A function with the fields of ``options`` as its parameters, which calls ``run`` with one.

    Args:
        options: the dataclass.
        run: what to do with it.
        summary: the docstring of the function, which help shows.
    """

    def called(**given: Any) -> None:
        run(options(**given))

    types = get_type_hints(options)
    parameters = [
        inspect.Parameter(
            own.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if own.default is MISSING else own.default,
            annotation=Annotated[types[own.name], _how(own.metadata)],
        )
        for own in fields(options)
    ]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    called.__doc__ = summary
    return called


def _how(said: Mapping[str, Any]) -> Any:
    """What typer is to know of an option, or of an argument."""
    common = {
        "help": said["help"], "metavar": said["metavar"], "autocompletion": said["complete"], "show_default": False
    }  # fmt: skip
    if "names" not in said:
        return typer.Argument(**common)
    return typer.Option(*said["names"], rich_help_panel=said["group"], **common)


def named(texts: Sequence[str] | None, option: str, example: str) -> dict[str, str]:
    """What a repeatable option of the form ``NAME=VALUE`` was given, by name.

    Args:
        texts: as typed.
        option: its name, for messages.
        example: one that makes sense.

    Raises:
        InputError: one has no name or no value, or a name is given twice.
    """
    found: dict[str, str] = {}
    for text in texts or ():
        name, _, value = (part.strip() for part in text.partition("="))
        if not (name and value):
            raise InputError(f"{option} {quoted(text)}: give a name and a value, for example {example}")
        if name in found:
            raise InputError(f"{option} {name} is given twice: keep one")
        found[name] = value
    return found
