"""Frozen dataclasses whose fields are checked against their annotations: what a user asks for, in values that hash.

    @dataclass(frozen=True, init=False)
    class Plan(ValidatedFields):
        tp: Count = 1
        schedule: str = "1f1b"

Annotations that are understood: ``bool``, ``int``, ``float``, ``str``, ``Literal``, ``None``, unions, ``tuple[X, ...]``
(lists become tuples), ``Mapping[str, X]`` (becomes a :class:`FrozenDict`), and ``Annotated`` with :class:`ValueRange`.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, field, fields
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted

C = TypeVar("C", bound="ValidatedFields")


class FrozenDict(dict[str, Any]):
    """A dictionary that cannot be changed, so that it has a hash."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[str, Any]]]:
        return FrozenDict, (dict(self),)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("this dictionary is frozen: make another")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse


@dataclass(frozen=True)
class ValueRange:
    """Lowest and highest value that a number may have, both allowed."""

    least: float
    most: float = float("inf")


@dataclass(frozen=True)
class CliOption:
    """Command-line option of a field: its name, help and examples.

    Attributes:
        group: under which help lists it.
        metavar: what stands for its value in help, None for a switch.
        help: what help says of it.
        option: its name without the dashes, ``""`` for that of the field.
        text: whether it is typed as text that the command reads in a way of its own.
        repeats: whether it may be given several times: items of a tuple, or ``NAME=VALUE`` of a mapping.
        example: of such a pair, for messages.
        words: what the shell offers for its value besides the words of a ``Literal``.
        offers: what else it does: ``"files"``, ``"stacks"``, or a registry as ``"triosim.engine.solver:SOLVERS"``.
        own: whether a file of the user's own may stand for a part of that registry.
    """

    group: str
    metavar: str | None
    help: str
    option: str = ""
    text: bool = False
    repeats: bool = False
    example: str = ""
    words: tuple[str, ...] = ()
    offers: str = ""
    own: bool = False


def asked(default: Any, group: str, metavar: str | None, help: str, **more: Any) -> Any:
    """A field for which the command line has an option; see :class:`CliOption`.

    Args:
        default: where it is not given.
        group, metavar, help, more: fields of :class:`CliOption`.
    """
    said = {"asked": CliOption(group, metavar, help, **more)}
    if isinstance(default, FrozenDict):
        return field(default_factory=FrozenDict, metadata=said)
    return field(default=default, metadata=said)


class ValidatedFields:
    """Base of a frozen dataclass (made with ``init=False``) whose fields are given by name and checked.

    Attributes:
        error: what is raised, with one sentence.
        noun: what it calls itself in a sentence, with its article.
    """

    error: ClassVar[type[InputError]] = InputError
    noun: ClassVar[str] = "this"
    given: frozenset[str]
    """Names of the fields that were given, by default or not."""

    def __init__(self, **values: Any) -> None:
        known = _fields(type(self))
        for name in values:
            if name not in known:
                raise self.unknown(name, known)
        for name, (hint, default) in known.items():
            if name in values:
                value = _checked(values[name], hint, name, self.error)
            elif default is MISSING:
                raise self.error(f"{self.noun} needs {_said(name)}")
            else:
                value = default
            object.__setattr__(self, name, value)
        object.__setattr__(self, "given", frozenset(values))
        self.check()

    def check(self) -> None:
        """Raise :attr:`error` where fields do not go together."""

    @classmethod
    def unknown(cls, name: str, known: Iterable[str]) -> InputError:
        """What is raised for a field that there is not."""
        return cls.error(f"{cls.noun} has no field {quoted(name)}; its fields are {', '.join(sorted(known))}")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Its fields, in order."""
        return tuple(_fields(cls))

    @classmethod
    def hint(cls, name: str) -> Any:
        """The annotation of a field."""
        return _fields(cls)[name][0]

    @classmethod
    def asked(cls) -> dict[str, CliOption]:
        """The fields for which the command line has options, in order."""
        return {f.name: f.metadata["asked"] for f in fields(cls) if "asked" in f.metadata}  # type: ignore[arg-type]

    @classmethod
    def default(cls, name: str) -> Any:
        """The default of a field, MISSING where it has none."""
        return _fields(cls)[name][1]

    def asdict(self) -> dict[str, Any]:
        """Its fields by name."""
        return {name: getattr(self, name) for name in _fields(type(self))}

    def replaced(self: C, **changes: Any) -> C:
        """The same with some fields given anew."""
        return type(self)(**{**{name: getattr(self, name) for name in self.given}, **changes})


_FIELDS: dict[Any, Mapping[str, tuple[Any, Any]]] = {}


def _fields(cls: Any) -> Mapping[str, tuple[Any, Any]]:
    """Annotation and default of each field."""
    if cls not in _FIELDS:
        hints = get_type_hints(cls, include_extras=True)
        _FIELDS[cls] = {
            f.name: (hints[f.name], f.default_factory() if f.default_factory is not MISSING else f.default)
            for f in fields(cls)
        }
    return _FIELDS[cls]


def _said(name: str) -> str:
    return name.replace("_", "-")


def _checked(value: Any, hint: Any, name: str, error: type[InputError]) -> Any:
    """The value as the annotation says it.

    Raises:
        InputError: of the class ``error``: it is not what the annotation says.
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _either(value, parts, name, error)
    if origin is Annotated:
        return _number(value, parts[0], parts[1], name, error)
    if origin is Literal:
        if any(value == part and type(value) is type(part) for part in parts):
            return value
        choices = [repr(part) for part in parts]
        listed = f"{', '.join(choices[:-1])} or {choices[-1]}" if len(choices) > 1 else choices[0]
        raise error(f"{_said(name)} must be {listed}, got {quoted(value)}")
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise error(f"{_said(name)} must be a list, got {quoted(value)}")
        return tuple(_checked(one, parts[0], name, error) for one in value)
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise error(f"{_said(name)} must be names with values, got {quoted(value)}")
        return FrozenDict({key: _checked(one, parts[1], name, error) for key, one in value.items()})
    if hint is int:
        return _number(value, int, ValueRange(float("-inf")), name, error)
    words = {bool: "true or false", str: "a text", float: "a number", type(None): "left out"}
    fits = type(value) is hint or (hint is float and type(value) in (int, float))
    if not fits:
        wanted = words.get(hint) or f"a {hint.__name__} of {hint.__module__}"
        raise error(f"{_said(name)} must be {wanted}, got {quoted(value)}")
    return value


def _either(value: Any, parts: tuple[Any, ...], name: str, error: type[InputError]) -> Any:
    """The first part of a union that fits exactly, then the first that fits at all; else the first one's sentence."""
    if value is None and type(None) in parts:
        return None
    for part in parts:
        if part is type(value):
            return value
    complaint: InputError | None = None
    for part in parts:
        if part is type(None):
            continue
        try:
            return _checked(value, part, name, error)
        except error as problem:
            complaint = complaint or problem
    assert complaint is not None
    raise complaint


def _number(value: Any, kind: type, within: ValueRange, name: str, error: type[InputError]) -> Any:
    number: float | None
    if kind is int:
        number = _whole(value)
        if number is None or number < within.least:
            least = f" of at least {within.least:.0f}" if within.least > float("-inf") else ""
            raise error(f"{_said(name)} must be a whole number{least}, got {quoted(value)}")
    else:
        number = None if isinstance(value, bool) or not isinstance(value, (int, float)) else float(value)
        if number is None or not number >= within.least or number == float("inf"):
            raise error(f"{_said(name)} must be a number of at least {within.least:g}, got {quoted(value)}")
    if number > within.most:
        raise error(f"{_said(name)} must be at most {within.most:,.0f}, got {quoted(value)}")
    return number


def _whole(value: Any) -> int | None:
    """A whole number, also as a text or a float without a fraction; None for anything else."""
    if isinstance(value, str):
        return int(value) if value.strip().lstrip("+-").isdecimal() and len(value) < 20 else None
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    try:
        return int(value.__index__())
    except (AttributeError, TypeError):
        return None
