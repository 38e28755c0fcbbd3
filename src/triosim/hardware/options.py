"""Options of parts that are found by name, such as topologies and routings.

A part with options is a frozen dataclass; each option is a field made with one of the functions here, and the user sets
it by its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field, fields, is_dataclass
from typing import Any

from triosim.errors import InputError, unknown


def options_of(part: type) -> list[str]:
    """Names of the options that a part has."""
    return [own.name for own in fields(part)] if is_dataclass(part) else []


def configured(part: Any, name: str, options: Mapping[str, Any]) -> Any:
    """A part with its options.

    Args:
        part: its class.
        name: for messages, as ``"topology ring"``.
        options: values, or texts as typed, by name.

    Raises:
        InputError: the part has no such option, or a value is not one that the option takes.
    """
    known = {own.name: own for own in fields(part)} if is_dataclass(part) else {}
    values = {}
    for key, value in options.items():
        option = key.replace("-", "_")
        if not known:
            raise InputError(f"{name} has no options: leave out {key}")
        if option not in known:
            raise unknown("option", key, known, f"of {name}")
        values[option] = known[option].metadata["read"](value, f"{name}: {key}")
    return part(**values)


def count_option(default: int | None = None, least: int = 1) -> Any:
    """An option that is a whole number."""
    return field(default=default, metadata={"read": _number(int, least, f"a whole number from {least} up")})


def ratio_option(default: float) -> Any:
    """An option that is a number above zero."""
    return field(default=default, metadata={"read": _number(float, 0, "a number above zero, for example 2")})


def text_option(default: str = "") -> Any:
    """An option that is a text."""

    def read(value: Any, name: str) -> str:
        if not isinstance(value, str) or not value.strip():
            raise InputError(f"{name} must be a text, got {value!r}")
        return value.strip()

    return field(default=default, metadata={"read": read})


def switch_option(default: bool) -> Any:
    """An option that is on or off."""
    words = {"on": True, "true": True, "off": False, "false": False}

    def read(value: Any, name: str) -> bool:
        found = words.get(str(value).strip().lower())
        if found is None:
            raise InputError(f"{name} must be on or off, got {value!r}")
        return found

    return field(default=default, metadata={"read": read})


def _number(kind: type[int] | type[float], least: float, what: str) -> Callable[[Any, str], int | float]:
    def read(value: Any, name: str) -> int | float:
        try:
            number = kind(value) if isinstance(value, str) else value
        except ValueError:
            number = math.nan
        if isinstance(number, bool) or not isinstance(number, int | kind) or not _fits(number, least, kind is int):
            raise InputError(f"{name} must be {what}, got {value!r}")
        return number

    return read


def _fits(number: float, least: float, included: bool) -> bool:
    return math.isfinite(number) and (number >= least if included else number > least)
