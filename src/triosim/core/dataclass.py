"""``dataclass``, whose methods are written when they are first called.

The standard library writes up to six methods of every dataclass as text and compiles them: half a millisecond a class.
A command imports some 250 of them and mostly calls ``__init__`` alone, a few times, so that writing all was a fifth of
a short prediction.  Here a class gets placeholders.  Its first objects are filled without an ``__init__``, which is
compiled once there are many; equality, order, hash and representation need no text.  What :func:`dataclasses.fields`,
``replace`` and ``asdict`` ask is made when one of them first asks.

Such classes behave like those of the standard library and may be mixed with them; ``tests/core/test_dataclass.py``
compares every one of the package.  There is no ``slots`` and no ``InitVar``, and a mutable default is refused only when
the fields are asked for.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import reprlib
from _thread import RLock
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

_FIELDS = "__dataclass_fields__"
_PARAMETERS = "__dataclass_params__"
_WRITING = RLock()
"""Two threads may be the first to use a class."""
FIRST = 32
"""Objects of a class that are filled without its ``__init__``: compiling that takes as long as filling some forty."""


class _Factory:
    """The default of a parameter whose field has a factory."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


@dataclasses.dataclass
class _Example:
    plain: Any


_PLAIN = dataclasses.fields(_Example)[0]
"""A field of which nothing is said but its type."""


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


class _ParametersPlaceholder(_Placeholder):
    """Stands for what the class was declared with.

    Attributes:
        frozen: whether it is.
    """

    frozen: bool


class _FirstObjects(_Placeholder):
    """Stands for ``__init__`` and fills the first objects of a class itself.

    Of most classes a command makes so few that compiling a method takes longer.  A call that is not as it should be is
    left to the method, which knows what to say.

    Attributes:
        made: how many it has filled.
        set: how a value gets into an object.
    """

    def __init__(self, cls: type, frozen: bool) -> None:
        super().__init__(cls, "__init__", _frozen_init if frozen else _init)
        self.made = 0
        self.set = object.__setattr__ if frozen else setattr
        self.slots: list[_Slot] | None = None

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None or self.made >= FIRST or isinstance(instance, type):  # inspect binds it to the class
            return super().__get__(instance, owner)
        self.made += 1
        return functools.partial(self._fill, instance)

    def _fill(self, instance: object, /, *args: Any, **words: Any) -> None:
        if self.slots is None:
            self.slots = _in_order(_fields(self.cls))
            self.positions = [slot.name for slot in self.slots if slot.init and slot.kw_only is not True]
        given = dict(zip(self.positions, args))  # noqa: B905 - too many are seen below
        given.update(words)
        missing, values = dataclasses.MISSING, []
        for slot in self.slots:
            value = given.pop(slot.name, missing) if slot.init else missing
            if value is missing:
                value = slot.default if slot.default_factory is missing else slot.default_factory()
                if value is missing:
                    return super().__get__(instance, self.cls)(*args, **words)
            values.append(value)
        if given or len(args) > len(self.positions) or any(name in words for name in self.positions[: len(args)]):
            return super().__get__(instance, self.cls)(*args, **words)
        for slot, value in zip(self.slots, values, strict=True):
            self.set(instance, slot.name, value)
        if hasattr(self.cls, "__post_init__"):
            instance.__post_init__()  # type: ignore[attr-defined]
        return None


def _prepared(
    cls: Any, init: bool = True, repr: bool = True, eq: bool = True, order: bool = False, frozen: bool = False,
    kw_only: bool = False,
) -> Any:  # fmt: skip
    """Give a class a placeholder for everything that :func:`dataclasses.dataclass` would write with these options."""
    own = cls.__dict__
    hashed = "__hash__" in own and not (own["__hash__"] is None and "__eq__" in own)
    methods: dict[str, Callable[[type], Any]] = {"__match_args__": _match_args}
    if init and "__init__" not in own:
        _FirstObjects(cls, frozen)
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

    def parameters(cls: Any) -> Any:
        """Made by the library, which subclasses of its own make ask."""
        listed = getattr(cls, _FIELDS)
        if frozen:  # it writes its own methods, which refuse the same
            del cls.__setattr__, cls.__delattr__
        cls.__doc__ = cls.__doc__ or cls.__name__  # or it makes one of the signature
        dataclasses.dataclass(init=False, repr=False, eq=False, frozen=frozen, kw_only=kw_only)(cls)
        setattr(cls, _FIELDS, listed)
        return own[_PARAMETERS]

    plain = not kw_only and not any(isinstance(value, dataclasses.Field) for value in own.values())
    _Placeholder(cls, _FIELDS, functools.partial(_listed, kw_only=kw_only), plain)
    _ParametersPlaceholder(cls, _PARAMETERS, parameters).frozen = frozen
    return cls


@functools.cache
def field_names(cls: type) -> tuple[str, ...] | None:
    """Names of the fields of a dataclass of either kind; None of another class.

    Unlike :func:`dataclasses.fields` this makes nothing, so that what only reads objects need not wait for it.
    """
    if not any(_FIELDS in base.__dict__ for base in cls.__mro__):
        return None
    return tuple(slot.name for slot in _fields(cls))


@functools.cache
def is_frozen(cls: type) -> bool:
    """Whether a class is a frozen dataclass of either kind."""
    found = (base.__dict__[_PARAMETERS].frozen for base in cls.__mro__ if _PARAMETERS in base.__dict__)
    return next(found, False)


class _Slot(NamedTuple):
    """What a method has to know of a field; attributes as of :class:`dataclasses.Field`."""

    name: str
    type: Any
    default: Any = dataclasses.MISSING
    default_factory: Any = dataclasses.MISSING
    init: bool = True
    kw_only: bool = False
    compare: bool = True
    repr: bool = True


_read = operator.attrgetter(*_Slot._fields)


def _fields(cls: type) -> list[_Slot]:
    """Fields in the order in which they are defined, those of bases first."""
    found: dict[str, _Slot] = {}
    for base in reversed(cls.__mro__):
        own = base.__dict__
        fields = own.get(_FIELDS)
        if isinstance(fields, _Placeholder) and fields.plain:
            for name, kind in base.__annotations__.items():
                if not str(kind).startswith(("ClassVar", "typing.ClassVar")):
                    found[name] = _Slot(name, kind, own.get(name, dataclasses.MISSING))
        elif fields is not None:
            for field in dataclasses.fields(base):
                found[field.name] = _Slot._make(_read(field))
    return list(found.values())


def _listed(cls: Any, kw_only: bool) -> dict[str, dataclasses.Field[Any]]:
    """What :func:`dataclasses.fields` lists; class attributes become the defaults, as in the library.

    Raises:
        ValueError: a default can be changed.
    """
    bases = cls.__mro__[-1:0:-1]
    found = {field.name: field for base in bases if hasattr(base, _FIELDS) for field in dataclasses.fields(base)}
    for name, kind in cls.__annotations__.items():
        if str(kind).startswith(("ClassVar", "typing.ClassVar")):
            continue
        given: Any = getattr(cls, name, dataclasses.MISSING)
        field: Any = given if isinstance(given, dataclasses.Field) else dataclasses.field(default=given)
        field.name, field.type, field._field_type = name, kind, _PLAIN._field_type  # type: ignore[attr-defined]
        if field.kw_only is dataclasses.MISSING:
            field.kw_only = kw_only
        if field is given and field.default is not dataclasses.MISSING:
            setattr(cls, name, field.default)
        elif field is given and name in cls.__dict__:
            delattr(cls, name)
        if field.default.__class__.__hash__ is None:
            raise ValueError(
                f"mutable default {type(field.default)} for field {name} is not allowed: use default_factory"
            )
        found[name] = field
    return found


def _in_order(fields: list[_Slot]) -> list[_Slot]:
    """Fields that ``__init__`` sets: those that it takes by position, those by keyword, and those that nobody gives."""
    taken = sorted((field for field in fields if field.init), key=lambda field: field.kw_only is True)
    return taken + [field for field in fields if not field.init and field.default_factory is not dataclasses.MISSING]


def _frozen_init(cls: type) -> Callable[..., None]:
    return _init(cls, True)


def _init(cls: type, frozen: bool = False) -> Callable[..., None]:
    """The method that takes every field, by position those that are not for keywords alone."""
    slots = _in_order(_fields(cls))
    taken, made = [slot for slot in slots if slot.init], [slot for slot in slots if not slot.init]
    by_keyword = sum(field.kw_only is True for field in taken)
    factories = [field.default_factory for field in (*taken, *made)]
    code = _code(
        len(taken) - by_keyword, by_keyword, len(made), frozen, hasattr(cls, "__post_init__"),
        tuple(at for at, factory in enumerate(factories) if factory is not dataclasses.MISSING),
    )  # fmt: skip
    names = {f"_{at}": field.name for at, field in enumerate((*taken, *made))}
    code = code.replace(
        co_varnames=tuple(names.get(name, name) for name in code.co_varnames),
        co_names=tuple(names.get(name, name) for name in code.co_names),
        co_consts=tuple(names.get(value, value) if isinstance(value, str) else value for value in code.co_consts),
    )
    defaults = {
        field.name: field.default if field.default_factory is dataclasses.MISSING else _FACTORY for field in taken
    }
    given = {name: value for name, value in defaults.items() if value is not dataclasses.MISSING}
    keywords = {field.name for field in taken[len(taken) - by_keyword :]}
    scope = {"_set": object.__setattr__, "_FACTORY": _FACTORY, "_factories": factories}
    by_position = tuple(value for name, value in given.items() if name not in keywords)
    function = FunctionType(code, scope, "__init__", by_position)
    function.__kwdefaults__ = {name: value for name, value in given.items() if name in keywords} or None
    function.__annotations__ = {**{field.name: field.type for field in taken}, "return": None}
    return function


@functools.cache
def _code(
    positional: int, keywords: int, made: int, frozen: bool, checks: bool, factories: tuple[int, ...]
) -> CodeType:
    """An ``__init__`` for fields ``_0``, ``_1``, ...: those by position, by keyword, and those that nobody gives.

    Classes with as many fields share it, each with names of its own in it: compiling is what takes time.

    Args:
        positional, keywords, made: numbers of such fields.
        frozen: whether the class is.
        checks: whether it has a ``__post_init__``.
        factories: fields whose default a factory makes.
    """
    body = []
    for at in range(positional + keywords + made):
        value = f"_{at}"
        if at in factories:
            value = f"_factories[{at}]()" + (f" if _{at} is _FACTORY else _{at}" if at < positional + keywords else "")
        body.append(f"_set(self, '_{at}', {value})" if frozen else f"self._{at} = {value}")
    if checks:
        body.append("self.__post_init__()")
    names = ["self", *(f"_{at}" for at in range(positional))]
    if keywords:
        names += ["*", *(f"_{at}" for at in range(positional, positional + keywords))]
    scope: dict[str, Any] = {}
    exec(f"def __init__({', '.join(names)}):\n  " + "\n  ".join(body or ["pass"]), scope)
    code: CodeType = scope["__init__"].__code__
    return code


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
