"""Results of pure functions that are kept, so that plans that share a stage of a prediction share its work."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from functools import wraps
from threading import Lock
from typing import Any, ParamSpec, TypeVar, cast
from weakref import ref

from triosim.core.dataclass import field_names, is_frozen

P = ParamSpec("P")
R = TypeVar("R")


class IdentityKey:
    """An object as a part of a key: equal to itself only, and alive as long as the key is."""

    __slots__ = ("what",)

    def __init__(self, what: object) -> None:
        self.what = what

    def __hash__(self) -> int:
        return id(self.what)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and other.what is self.what


def kept(
    most: int, room: float = math.inf, size: Callable[[Any], float] = lambda result: 1
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Keeps the results of the last ``most`` different calls of a function, as far as there is room for them.

    Args:
        most: results.
        room: what all of them together may measure; the last one is kept however large.
        size: what a result measures.

    The function must be pure: its result depends on its arguments only, and nobody changes either.  Arguments count by
    value where they can be hashed, mappings and dataclasses by what they consist of, and anything else, as the columns
    of a trace, as the object that it is; what is kept holds on to them.  Exceptions are not kept.

    The function gets two attributes: ``forget()`` keeps nothing any more, and ``known(result, *args)`` keeps the
    result of a call that somebody knows already.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        results: OrderedDict[Hashable, R] = OrderedDict()
        taken = 0.0  # by all results
        lock = Lock()

        @wraps(function)
        def call(*args: P.args, **options: P.kwargs) -> R:
            key = (*map(_key, args), *((name, _key(value)) for name, value in sorted(options.items())))
            with lock:
                if key in results:
                    results.move_to_end(key)
                    return results[key]
            found = function(*args, **options)
            keep(key, found)
            return found

        def keep(key: Hashable, found: R) -> None:
            nonlocal taken
            with lock:
                taken += size(found) - (size(results[key]) if key in results else 0)
                results[key] = found
                while len(results) > most or (taken > room and len(results) > 1):
                    taken -= size(results.popitem(last=False)[1])

        def forget() -> None:
            nonlocal taken
            with lock:
                results.clear()
                taken = 0.0

        cast(Any, call).forget = forget
        cast(Any, call).known = lambda found, *args: keep(tuple(map(_key, args)), found)
        return call

    return decorate


class _Parts:
    """What a key consists of, hashed once: keys of plans and traces have hundreds of parts and are looked up often."""

    __slots__ = ("code", "parts")

    def __init__(self, parts: tuple[Hashable, ...]) -> None:
        self.parts, self.code = parts, hash(parts)

    def __hash__(self) -> int:
        return self.code

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Parts) and self.code == other.code and self.parts == other.parts)


_KEYS: dict[int, tuple[ref[object], _Parts]] = {}
"""Keys of frozen dataclasses by their address, for as long as they live: their fields are never others."""


def _key(value: object) -> Hashable:
    known = _KEYS.get(id(value))
    if known is not None and known[0]() is value:
        return known[1]
    if isinstance(value, Mapping):
        return ("mapping", *sorted((name, _key(item)) for name, item in value.items()))
    kind: Any = type(value)
    names = field_names(kind)
    if names is not None:
        # Columns are many and long: a table is the same where all of its columns are the same objects.
        parts = _Parts((kind, *[_part(getattr(value, name)) for name in names]))
        if is_frozen(kind):
            _remember(value, parts)
        return parts
    if isinstance(value, (list, tuple)):
        return (type(value), *map(_key, value))
    return (type(value), value) if isinstance(value, Hashable) else IdentityKey(value)  # 1, 1.0 and True are different


def _remember(value: object, parts: _Parts) -> None:
    at = id(value)

    def forget(gone: ref[object]) -> None:  # unless another has come to its address since
        known = _KEYS.get(at)
        if known is not None and known[0] is gone:
            _KEYS.pop(at, None)

    with suppress(TypeError):  # a class with slots, of which nobody can say when its object is gone
        _KEYS[at] = ref(value, forget), parts


def _part(value: object) -> Hashable:
    if value is None or isinstance(value, (bool, int, float, str)):
        return (type(value), value)
    kind: Any = type(value)
    return IdentityKey(value) if field_names(kind) is None else _key(value)
