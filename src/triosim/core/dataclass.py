"""``dataclass``, whose methods are written when they are first called.

The standard library writes up to six methods of every dataclass as text and compiles them: half a millisecond a class.
A command imports some 250 of them and mostly calls ``__init__`` alone, so that writing the rest was a fifth of a short
prediction.  Here a class gets placeholders.  The first call of ``__init__`` compiles that; equality, order, hash and
representation need no text.  What :func:`dataclasses.fields`, ``replace`` and ``asdict`` ask is made by the standard
library itself when one of them first asks.

Such classes behave like those of the standard library and may be mixed with them; ``tests/core/test_dataclass.py``
compares every one of the package.  There is no ``slots`` and no ``InitVar``, and a mutable default is refused only when
the fields are asked for.
"""

from __future__ import annotations

import dataclasses
import operator
import reprlib
from _thread import RLock
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

_FIELDS = "__dataclass_fields__"
_PARAMETERS = "__dataclass_params__"
_WRITING = RLock()
"""Two threads may be the first to use a class."""


class _Factory:
    """The default of a parameter whose field has a factory."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


class _Placeholder:
    """Stands in a class for what is made when it is first asked for, which then takes its place.

    Attributes:
        plain: of the fields: whether they are annotations and defaults, without :func:`dataclasses.field`.
    """

    def __init__(self, cls: type, name: str, make: Callable[[type], Any], plain: bool = False) -> None:
        self.cls = cls
        self.name = name
        self.make = make
        self.plain = plain
        setattr(cls, name, self)

    def __get__(self, instance: object, owner: type) -> Any:
        cls, name = self.cls, self.name
        with _WRITING:
            if cls.__dict__[name] is self:
                made = self.make(cls)
                if callable(made):
                    made.__name__, made.__qualname__ = name, f"{cls.__qualname__}.{name}"
                    made.__module__ = cls.__module__
                setattr(cls, name, made)
        found = cls.__dict__[name]
        return found.__get__(instance, owner) if callable(found) else found


def _prepared(
    cls: Any, init: bool = True, repr: bool = True, eq: bool = True, order: bool = False, frozen: bool = False,
    kw_only: bool = False,
) -> Any:  # fmt: skip
    """Give a class a placeholder for everything that :func:`dataclasses.dataclass` would write with these options."""
    own = cls.__dict__
    hashed = "__hash__" in own and not (own["__hash__"] is None and "__eq__" in own)
    methods: dict[str, Callable[[type], Any]] = {"__match_args__": _match_args}
    if init:
        methods["__init__"] = _frozen_init if frozen else _init
    if repr:
        methods["__repr__"] = _repr
    if eq:
        methods["__eq__"] = _eq
    if order:
        methods |= {f"__{sign}__": _ordered(sign) for sign in ("lt", "le", "gt", "ge")}
    for name, make in methods.items():
        if name not in own:
            _Placeholder(cls, name, make)
    if eq and not hashed:
        if frozen:
            _Placeholder(cls, "__hash__", _hash)
        else:
            cls.__hash__ = None
    if frozen:
        _Placeholder(cls, "__setattr__", _refused("assign to", object.__setattr__))
        _Placeholder(cls, "__delattr__", _refused("delete", object.__delattr__))

    def of_the_library(name: str) -> Any:
        if frozen:  # it writes its own, which refuse the same
            del cls.__setattr__, cls.__delattr__
        cls.__doc__ = cls.__doc__ or cls.__name__  # or it makes one of the signature
        dataclasses.dataclass(init=False, repr=False, eq=False, frozen=frozen, kw_only=kw_only)(cls)
        return own[name]

    plain = not kw_only and not any(isinstance(value, dataclasses.Field) for value in own.values())
    _Placeholder(cls, _FIELDS, lambda _: of_the_library(_FIELDS), plain)
    _Placeholder(cls, _PARAMETERS, lambda _: of_the_library(_PARAMETERS))
    return cls


def _fields(cls: type) -> list[dataclasses.Field[Any]]:
    """Fields in the order in which they are defined, those of bases first."""
    found: dict[str, dataclasses.Field[Any]] = {}
    for base in reversed(cls.__mro__):
        fields = base.__dict__.get(_FIELDS)
        if isinstance(fields, _Placeholder) and fields.plain:
            for name, kind in base.__annotations__.items():
                if not str(kind).startswith(("ClassVar", "typing.ClassVar")):
                    found[name] = field = dataclasses.field(default=base.__dict__.get(name, dataclasses.MISSING))
                    field.name, field.type = name, kind
        elif fields is not None:
            found |= {field.name: field for field in dataclasses.fields(base)}
    return list(found.values())


def _frozen_init(cls: type) -> Callable[..., None]:
    return _init(cls, "_set_(self, '{0}', {1})")


def _init(cls: type, assign: str = "self.{0} = {1}") -> Callable[..., None]:
    """The method that takes every field, by position those that are not for keywords alone."""
    scope: dict[str, Any] = {"_set_": object.__setattr__, "_factory_": _FACTORY}
    positional, keyword, body = ["self"], ["*"], []
    fields = _fields(cls)
    for field in fields:
        name, value = field.name, field.name
        default = ""
        if field.default_factory is not dataclasses.MISSING:
            scope[f"_make_{name}_"] = field.default_factory
            default = "=_factory_"
            value = f"_make_{name}_()" + (f" if {name} is _factory_ else {name}" if field.init else "")
        elif field.default is not dataclasses.MISSING:
            scope[f"_default_{name}_"] = field.default
            default = f"=_default_{name}_"
        if field.init:
            (keyword if field.kw_only is True else positional).append(name + default)
        if field.init or value != name:
            body.append(assign.format(name, value))
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join(positional + (keyword if len(keyword) > 1 else []))
    exec(f"def __init__({parameters}):\n  " + "\n  ".join(body or ["pass"]), scope)
    made: Callable[..., None] = scope["__init__"]
    made.__annotations__ = {**{field.name: field.type for field in fields if field.init}, "return": None}
    return made


def _match_args(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in _fields(cls) if field.init and field.kw_only is not True)


def _values(cls: type) -> Callable[[Any], Any]:
    """What reads the values of all fields that take part in comparisons."""
    names = [field.name for field in _fields(cls) if field.compare]
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda made: tuple(getattr(made, name) for name in names)


def _eq(cls: type) -> Callable[[Any, Any], Any]:
    values = _values(cls)

    def equal(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return equal


def _ordered(sign: str) -> Callable[[type], Callable[[Any, Any], Any]]:
    def make(cls: type) -> Callable[[Any, Any], Any]:
        values, stands = _values(cls), getattr(operator, sign)

        def ordered(self: Any, other: Any) -> Any:
            return stands(values(self), values(other)) if other.__class__ is self.__class__ else NotImplemented

        return ordered

    return make


def _hash(cls: type) -> Callable[[Any], int]:
    values = _values(cls)
    return lambda self: hash(values(self))


def _repr(cls: type) -> Callable[[Any], str]:
    names = [field.name for field in _fields(cls) if field.repr]

    @reprlib.recursive_repr()
    def represented(self: Any) -> str:
        return f"{self.__class__.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return represented


def _refused(what: str, allowed: Callable[..., None]) -> Callable[[type], Callable[..., None]]:
    def make(cls: type) -> Callable[..., None]:
        names = {field.name for field in _fields(cls)}

        def changed(self: Any, name: str, *value: Any) -> None:
            if type(self) is cls or name in names:
                raise dataclasses.FrozenInstanceError(f"cannot {what} field {name!r}")
            allowed(self, name, *value)

        return changed

    return make


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, **options):
        """As :func:`dataclasses.dataclass`: ``init``, ``repr``, ``eq``, ``order``, ``frozen`` and ``kw_only``."""
        return _prepared(cls, **options) if cls is not None else lambda cls: _prepared(cls, **options)
