"""Dataclasses whose methods are written at first use behave like those of the standard library."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from typing import Any, ClassVar

import pytest

from triosim.core import dataclass as own


def _classes(dataclass: Any) -> dict[str, type]:
    @dataclass(frozen=True)
    class Point:
        """Two numbers."""

        origin: ClassVar[int] = 0
        x: int
        y: int = 2

    @dataclass(frozen=True)
    class Named(Point):
        name: str = "p"
        tags: list[str] = dataclasses.field(default_factory=list, compare=False)
        seen: int = dataclasses.field(default=5, kw_only=True, repr=False)
        area: int = dataclasses.field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "area", self.x * self.y)

    @dataclass(frozen=True, order=True)
    class Ranked:
        first: int
        second: str = ""

    @dataclass
    class Open:
        values: dict[str, int] = dataclasses.field(default_factory=dict)
        turn: int = dataclasses.field(init=False, default=-1)

    @dataclass(eq=False)
    class Same:
        x: int

    @dataclass(frozen=True, kw_only=True)
    class Words:
        x: int
        y: int = 0

    @dataclass
    class Empty:
        pass

    @dataclass(frozen=True)
    class Hashed:
        x: int

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return "hashed"

    class Wider(Point):  # adds an attribute of its own, which no field is
        def widen(self) -> None:
            self.width = 3

    return {cls.__name__: cls for cls in (Point, Named, Ranked, Open, Same, Words, Empty, Hashed, Wider)}


OURS, THEIRS = _classes(own.dataclass), _classes(dataclasses.dataclass)
MADE: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "Point": [((1,), {}), ((1, 3), {}), ((), {"y": 1, "x": 2}), ((), {}), ((1, 2, 3), {}), ((1,), {"z": 1})],
    "Named": [((1,), {}), ((2, 3, "a", ["b"]), {"seen": 1}), ((1, 2, "p", [], 4), {}), ((1,), {"area": 3})],
    "Ranked": [((1,), {}), ((1, "a"), {}), ((0, "z"), {})],
    "Open": [((), {}), (({"a": 1},), {}), ((), {"turn": 1})],
    "Same": [((1,), {}), ((1,), {})],
    "Words": [((), {"x": 1}), ((1,), {})],
    "Empty": [((), {}), ((1,), {})],
    "Hashed": [((1,), {}), ((2,), {})],
    "Wider": [((1,), {}), ((1, 2), {})],
}


def _told(ask: Any, *args: Any, **words: Any) -> Any:
    """What a call gives or how it fails."""
    try:
        return ask(*args, **words)
    except Exception as error:
        return type(error), str(error)


def _objects(classes: dict[str, type]) -> dict[str, list[Any]]:
    return {name: [_told(classes[name], *args, **words) for args, words in MADE[name]] for name in MADE}


ASKED = {
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b, ">=": lambda a, b: a >= b,
    "another class": lambda a, b: a == 1, "hash": lambda a, b: hash(a) == hash(b), "repr": lambda a, b: repr(a),
    "asdict": lambda a, b: dataclasses.asdict(a), "replace": lambda a, b: [dataclasses.replace(a, x=9).x, a.x],
}  # fmt: skip


@pytest.mark.parametrize("what", ASKED)
@pytest.mark.parametrize("name", MADE)
def test_they_are_made_compared_hashed_and_shown_alike(name: str, what: str) -> None:
    ours, theirs = _objects(OURS)[name], _objects(THEIRS)[name]
    places = [(i, j) for i in range(len(ours)) for j in range(len(ours))]
    found = [_told(ASKED[what], ours[i], ours[j]) for i, j in places]
    assert found == [_told(ASKED[what], theirs[i], theirs[j]) for i, j in places]


@pytest.mark.parametrize("name", MADE)
def test_their_description_is_the_same(name: str) -> None:
    first, second = OURS[name], THEIRS[name]
    assert str(inspect.signature(first)) == str(inspect.signature(second))
    assert dataclasses.is_dataclass(first)
    assert list(map(repr, dataclasses.fields(first))) == list(map(repr, dataclasses.fields(second)))
    assert first.__match_args__ == second.__match_args__  # type: ignore[attr-defined]
    assert (first.__hash__ is None) == (second.__hash__ is None)
    assert first.__init__.__qualname__ == second.__init__.__qualname__
    assert [hasattr(first, x) for x in ("x", "y", "tags", "area")] == [
        hasattr(second, x) for x in ("x", "y", "tags", "area")
    ]


@pytest.mark.parametrize("name", ["Point", "Named", "Words", "Wider"])
@pytest.mark.parametrize("attribute", ["x", "other"])
def test_what_is_frozen_stays(name: str, attribute: str) -> None:
    for change, *value in ((setattr, 3), (delattr,)):
        ours, theirs = (_told(change, classes[name](x=1), attribute, *value) for classes in (OURS, THEIRS))
        assert ours == theirs


def test_a_subclass_that_is_no_dataclass_may_hold_more() -> None:
    made = OURS["Wider"](1)
    made.widen()  # type: ignore[attr-defined]
    assert made.width == 3  # type: ignore[attr-defined]


def test_they_mix_with_those_of_the_standard_library() -> None:
    base: Any = _classes(own.dataclass)["Point"]
    mixed = dataclasses.dataclass(frozen=True)(type("Mixed", (base,), {"__annotations__": {"z": "int"}, "z": 0}))
    again = own.dataclass(frozen=True)(type("Again", (mixed,), {"__annotations__": {"w": "int"}, "w": 1}))
    assert repr(again(1, 2, 3)) == "Again(x=1, y=2, z=3, w=1)"
    with pytest.raises(TypeError, match="frozen"):
        dataclasses.dataclass(type("Thawed", (_classes(own.dataclass)["Point"],), {}))


def test_nothing_is_written_before_it_is_used() -> None:
    cls: Any = _classes(own.dataclass)["Point"]
    methods = ("__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__")
    made = [cls(1, y=number) for number in range(own.FIRST)]
    assert not any(inspect.isfunction(cls.__dict__[name]) for name in methods)
    made.append(cls(1, y=own.FIRST))
    assert [name for name in methods if inspect.isfunction(cls.__dict__[name])] == ["__init__"]
    assert [(one.x, one.y) for one in made] == [(1, number) for number in range(own.FIRST + 1)]


@pytest.mark.parametrize("name", MADE)
def test_the_first_objects_are_made_as_all_others(name: str) -> None:
    first, later = _classes(own.dataclass)[name], _classes(own.dataclass)[name]
    assert inspect.isfunction(later.__init__)  # asked for, and so written
    assert not inspect.isfunction(first.__dict__.get("__init__"))
    made = [[repr(_told(cls, *args, **words)) for args, words in MADE[name]] for cls in (first, later)]
    assert made[0] == made[1]


DESCRIBE = """
import dataclasses, importlib, inspect, pkgutil, sys
if {standard}:
    import triosim.core.dataclass
    triosim.core.dataclass.dataclass = dataclasses.dataclass
import triosim
for found in pkgutil.walk_packages(triosim.__path__, "triosim."):
    try:
        module = importlib.import_module(found.name)
    except ImportError:
        continue  # of what is optional
    except SystemExit:
        continue
    for name, cls in sorted(vars(module).items()):
        if isinstance(cls, type) and cls.__module__ == found.name and "__dataclass_fields__" in vars(cls):
            about = [
                (f.name, f.type, f.init, f.repr, f.compare, f.kw_only, type(f.default).__name__)
                for f in dataclasses.fields(cls)
            ]
            signature = [(p.name, str(p.kind), p.annotation) for p in inspect.signature(cls).parameters.values()]
            print(found.name, name, cls.__match_args__, cls.__hash__ is None, about, signature)
"""


def test_every_class_of_the_package_is_described_alike() -> None:
    told = [
        subprocess.run(
            [sys.executable, "-c", DESCRIBE.format(standard=standard)], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        for standard in (True, False)
    ]
    assert len(told[0]) > 500
    assert told[0] == told[1]
