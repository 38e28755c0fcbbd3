"""Options of parts that are found by name: what the user gives becomes what the part's annotations say.

Topologies, routings, schedules, network models and operator models take options.  They are the fields of a part's
dataclass, or the parameters of its ``__init__``, and the user sets them by name: text as typed (``NAME=VALUE``), or
values from a file or from Python.  :func:`configured` is the one place in which they are read::

    @registered
    @dataclass(frozen=True)
    class LeafSpine(Topology):
        leaf: Annotated[int, AtLeast(1)] | None = None
        oversubscription: Annotated[float, GreaterThan(0)] = 1.0

Annotations that are understood: ``bool``, ``int``, ``float``, ``str``, ``Path``, ``Literal``, an ``Enum``, ``None``,
lists and tuples of such (text with commas), unions (the first that fits, text last), and ``Annotated`` with
:class:`AtLeast`, :class:`AtMost` or :class:`GreaterThan`.  Without an annotation the default says which type is meant;
without either, what reads as a number is one.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted, unknown

P = TypeVar("P")
_SWITCH = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
_REQUIRED = inspect.Parameter.empty
_SEQUENCES = (list, tuple, Sequence, Collection)


@dataclass(frozen=True)
class AtLeast:
    """A lower bound of a number, itself allowed."""

    bound: float

    def allows(self, number: float) -> bool:
        """Whether a number is within."""
        return number >= self.bound

    def __str__(self) -> str:
        return f"from {self.bound:g} up"


@dataclass(frozen=True)
class AtMost:
    """An upper bound of a number, itself allowed."""

    bound: float

    def allows(self, number: float) -> bool:
        """Whether a number is within."""
        return number <= self.bound

    def __str__(self) -> str:
        return f"up to {self.bound:g}"


@dataclass(frozen=True)
class GreaterThan:
    """A lower bound of a number, itself not allowed."""

    bound: float

    def allows(self, number: float) -> bool:
        """Whether a number is within."""
        return number > self.bound

    def __str__(self) -> str:
        return "above zero" if not self.bound else f"above {self.bound:g}"


@dataclass(frozen=True)
class Option:
    """One option of a part.

    Attributes:
        name: as in Python; users may write ``-`` for ``_``.
        kind: its type, or a type made of others; None where neither an annotation nor a default says.
        required: whether the part cannot be made without it.
    """

    name: str
    kind: Any
    required: bool


def options_of(part: Any) -> Mapping[str, Option] | None:
    """The options of a part by name, None where it takes any (``**options``).

    Args:
        part: its class, or a function that makes it.
    """
    return _options_of(part) if isinstance(part, Hashable) else _find_options(part)


def _find_options(part: Any) -> Mapping[str, Option] | None:
    if isinstance(part, type) and part.__init__ is object.__init__ and part.__new__ is object.__new__:  # type: ignore[misc, comparison-overlap]
        return {}
    try:
        parameters = list(inspect.signature(part).parameters.values())
    except (TypeError, ValueError):  # a class written in C says nothing of its parameters
        return {}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    hints = _hints(part)
    own = {f.name for f in fields(part) if f.init} if is_dataclass(part) else None
    return {
        p.name: Option(p.name, hints.get(p.name, _kind_of(p.default)), p.default is _REQUIRED)
        for p in parameters
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and (own is None or p.name in own)
    }


_options_of = functools.lru_cache(maxsize=1024)(_find_options)
"""Asked for every plan of a sweep, and the answer of a class does not change."""


def configured(part: Callable[..., P], options: Mapping[str, Any], what: str) -> P:
    """A part with its options.

    Args:
        part: its class.
        options: values, or texts as typed, by name.
        what: for messages, as ``"topology ring"``.

    Raises:
        InputError: the part has no such option, needs one that is not given, or an option has no such value.
    """
    if not options:
        try:
            return part()
        except TypeError:  # it may need an option: which one is said below
            pass
    known = options_of(part)
    given: dict[str, Any] = {}
    for key, value in options.items():
        name = key.strip().replace("-", "_")
        if known is None:
            given[name] = _read(None, value, f"{what}: {key}")
            continue
        if not known:
            raise InputError(f"{what} has no options: leave out {key}")
        if name not in known:
            raise unknown("option", key, known, f"(of {what})")
        if name in given:
            raise InputError(f"{what}: option {key} is given twice: give it once")
        given[name] = _read(known[name].kind, value, f"{what}: {key}")
    missing = [option.name for option in (known or {}).values() if option.required and option.name not in given]
    if missing:
        raise InputError(f"{what} needs a value for its option {missing[0]}: give {missing[0]}=VALUE")
    return part(**given)


# --- what an option is ------------------------------------------------------------------------------------------------


def _hints(part: Any) -> dict[str, Any]:
    """Annotations of what makes a part; none where one of them names what cannot be found when the program runs."""
    annotated = part if is_dataclass(part) or not isinstance(part, type) else part.__init__  # type: ignore[misc]
    try:
        return get_type_hints(annotated, include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError):
        return {}


def _kind_of(default: Any) -> Any:
    """The type that a default has; None where it says nothing."""
    if default is _REQUIRED or default is None:
        return None
    return int | float if type(default) is int else type(default)  # 0 may well stand for 0.0


# --- reading a value --------------------------------------------------------------------------------------------------


class _InvalidValue(Exception):
    """A value is not one that an option takes; the text says what it takes."""


def _read(kind: Any, value: Any, name: str) -> Any:
    try:
        return _converted(kind, value)
    except _InvalidValue as wanted:
        raise InputError(f"{name} must be {wanted}, got {quoted(value)}") from None


def _converted(kind: Any, value: Any) -> Any:
    """The value as one of ``kind``.

    Raises:
        _InvalidValue: it is none and does not read as one.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if kind is None or kind is Any:
        return _guessed(value) if isinstance(value, str) else value
    if origin is Annotated:
        return _bounded(
            parts[0], [bound for bound in parts[1:] if isinstance(bound, AtLeast | AtMost | GreaterThan)], value
        )
    if origin in (Union, UnionType):
        return _first_that_fits(parts, value)
    if origin is Literal:
        chosen = next((c for c in parts if c == value or str(c) == value), None)
        if chosen is None:
            raise _InvalidValue(_either([str(choice) for choice in parts]))
        return chosen
    if kind in _PLAIN:
        return _PLAIN[kind](value)
    is_class = isinstance(kind, type) and origin is None  # on Python 3.10 dict[str, int] is a type as well
    if is_class and issubclass(kind, Enum):
        return _member(kind, value)
    if origin in _SEQUENCES or kind in (list, tuple):
        return _several(origin or kind, parts, value)
    if isinstance(value, str) or (is_class and not isinstance(value, kind)):
        raise _InvalidValue(f"{getattr(kind, '__name__', kind)}, which cannot be given as text")
    return value


def _first_that_fits(kinds: Sequence[Any], value: Any) -> Any:
    """The value as the first of several types that takes it: nothing before all others, text after them."""
    wanted = []
    for kind in sorted(kinds, key=lambda kind: (kind is not NoneType, kind in (str, Path))):
        try:
            return _converted(kind, value)
        except _InvalidValue as unfit:
            if kind is not NoneType:
                wanted.append(str(unfit))
    raise _InvalidValue(_either(list(dict.fromkeys(wanted))))


def _bounded(kind: Any, bounds: Sequence[AtLeast | AtMost | GreaterThan], value: Any) -> Any:
    if not bounds:
        return _converted(kind, value)
    within = " and ".join(map(str, bounds))
    try:
        number = _converted(kind, value)
    except _InvalidValue as unfit:
        raise _InvalidValue(f"{unfit} {within}") from None
    if isinstance(number, int | float) and not all(bound.allows(number) for bound in bounds):
        raise _InvalidValue(f"{'a whole number' if isinstance(number, int) else 'a number'} {within}")
    return number


def _several(kind: Any, parts: Sequence[Any], value: Any) -> Any:
    """Items between commas, or the items of a sequence."""
    items = [item.strip() for item in value.split(",")] if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise _InvalidValue("values with commas between them")
    kinds = [parts[0] if parts else None] * len(items)
    if kind is tuple and parts and parts[-1] is not Ellipsis:
        if len(items) != len(parts):
            raise _InvalidValue(f"{len(parts)} values with commas between them")
        kinds = list(parts)
    try:
        made = [_converted(kind, item) for kind, item in zip(kinds, items, strict=True)]
    except _InvalidValue as unfit:
        raise _InvalidValue(f"values with commas between them, each {unfit}") from None
    return tuple(made) if kind is tuple else made


def _member(kind: type[Enum], value: Any) -> Enum:
    for member in kind:
        if value in (member, member.value) or str(value).lower() in (member.name.lower(), str(member.value).lower()):
            return member
    raise _InvalidValue(_either([member.name.lower() for member in kind]))


def _switch(value: Any) -> bool:
    found = _SWITCH.get(str(value).strip().lower())
    if found is None:
        raise _InvalidValue("on or off")
    return found


def _whole(value: Any) -> int:
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            raise _InvalidValue("a whole number") from None
    if isinstance(value, bool) or not isinstance(value, int):
        raise _InvalidValue("a whole number")
    return value


def _number(value: Any) -> float:
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise _InvalidValue("a number")
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _InvalidValue("a text")
    return value.strip()


def _nothing(value: Any) -> None:
    if value is not None and str(value).strip().lower() != "none":
        raise _InvalidValue("none")


def _path(value: Any) -> Path:
    return value if isinstance(value, Path) else Path(_text(value))


_PLAIN = {
    bool: _switch, int: _whole, float: _number, str: _text, Path: _path, NoneType: _nothing
}  # fmt: skip


def _guessed(text: str) -> Any:
    """A number where the text reads as one."""
    for kind in (int, float):
        try:
            return _converted(kind, text)
        except _InvalidValue:
            continue
    return text


def _either(choices: Sequence[str]) -> str:
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"
