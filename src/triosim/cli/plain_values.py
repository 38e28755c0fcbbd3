"""Reading what most options are, texts and whole numbers, without the machinery that typer starts for any value.

Newer versions of typer read every value with a pydantic model made for it: for eighty options, nearly all of them left
out, that takes a tenth of a second and all of pydantic.  What is left out or plain is read here, to the same value; all
else, and everything that may be wrong, is left to typer, which knows what to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class PlainValue:
    """Stands in for typer's reader of one parameter.

    Args:
        typers: makes that reader.
    """

    def __init__(self, typers: Callable[[], Any]) -> None:
        self.typers = typers

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """What a given value means."""
        many = param.multiple or param.nargs == -1
        if value is None:
            return () if many else None
        about = param.type_descriptor
        # In this order: of list[...] the others cannot be asked on Python 3.10.
        special = many or param.nargs != 1 or about.is_choice or about.is_ranged or about.is_file or about.is_path
        if special or about.parameter_info.parser:
            return self.typers().coerce(value, param=param, ctx=ctx)
        kind = about.annotation
        if kind in (str, int, float) and type(value) is kind:
            return value
        if kind is int and isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
            return int(value)
        return self.typers().coerce(value, param=param, ctx=ctx)


def read_plainly(parameters: Iterable[Any]) -> None:
    """Have parameters of a command read their values so; does nothing for a typer that does not use pydantic."""
    for parameter in parameters:
        typers = getattr(parameter, "get_runtime_param", None)
        if typers is not None and "get_runtime_param" not in vars(parameter):
            plain = PlainValue(typers)
            parameter.get_runtime_param = lambda plain=plain: plain
