"""Options of parts: read by their annotations, from text and from values."""

from __future__ import annotations

from dataclasses import dataclass, field, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triosim.core.errors import InputError
from triosim.core.options import AtLeast, AtMost, GreaterThan, configured, options_of


class Colour(Enum):
    RED = 1
    DARK_BLUE = 2


@dataclass(frozen=True)
class Part:
    """A part with an option of each kind."""

    constant: ClassVar[int] = 7
    switch: bool = False
    count: Annotated[int, AtLeast(1)] = 1
    limit: Annotated[int, AtLeast(1)] | None = None
    ratio: Annotated[float, GreaterThan(0)] = 1.0
    share: Annotated[float, AtLeast(0), AtMost(1)] = 0.0
    name: str = ""
    way: Literal["up", "down", 3] = "up"
    colour: Colour = Colour.RED
    file: Path | None = None
    sizes: tuple[int, ...] = ()
    pair: tuple[int, str] = (0, "")
    names: list[str] = field(default_factory=list)
    loose: float | str = 0.0
    made: int = field(default=0, init=False)


class Plain:
    """A part that says nothing of its types."""

    def __init__(self, loss=0.1, ports=8, tag="x", on=False, anything=None) -> None:
        self.given = (loss, ports, tag, on, anything)


class Needs:
    """A part that cannot be made without an option."""

    def __init__(self, table: str, rest: int = 0) -> None:
        self.given = (table, rest)


class Open:
    """A part that takes whatever comes."""

    def __init__(self, **options: Any) -> None:
        self.given = options


class Unresolved:
    """A part whose annotation is known to a type checker only."""

    def __init__(self, loss: Nowhere = 0.5) -> None:  # type: ignore[name-defined]  # noqa: F821
        self.given = (loss,)


def read(option: str, value: Any) -> Any:
    return getattr(configured(Part, {option: value}, "part x"), option.replace("-", "_"))


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        ("switch", "on", True), ("switch", "False", False), ("switch", True, True), ("count", "3", 3), ("count", 3, 3),
        ("limit", "none", None), ("limit", "5", 5), ("limit", None, None), ("ratio", "0.3", 0.3), ("ratio", 2, 2.0),
        ("ratio", "1e-3", 1e-3), ("share", "0", 0.0), ("name", "12", "12"), ("way", "down", "down"), ("way", "3", 3),
        ("colour", "dark_blue", Colour.DARK_BLUE), ("colour", "1", Colour.RED), ("file", "a/b", Path("a/b")),
        ("file", "none", None), ("sizes", "1,2, 3", (1, 2, 3)), ("sizes", [4], (4,)), ("pair", "4,a", (4, "a")),
        ("names", "a,b", ["a", "b"]), ("loose", "0.5", 0.5), ("loose", "20ms", "20ms"),
    ],
)  # fmt: skip
def test_each_kind_is_read(option: str, text: Any, value: Any) -> None:
    found = read(option, text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("option", "given", "words"),
    [
        ("switch", "maybe", "part x: switch must be on or off, got 'maybe'"),
        ("count", "0", "part x: count must be a whole number from 1 up, got '0'"),
        ("count", "1.5", "count must be a whole number from 1 up, got '1.5'"),
        ("count", True, "count must be a whole number from 1 up, got True"),
        ("limit", "few", "limit must be a whole number from 1 up, got 'few'"),
        ("ratio", "0", "ratio must be a number above zero"),
        ("ratio", "nan", "ratio must be a number above zero"),
        ("ratio", "inf", "ratio must be a number above zero"),
        ("share", "-1", "share must be a number from 0 up and up to 1"),
        ("share", "1.2", "share must be a number from 0 up and up to 1, got '1.2'"),
        ("ratio", "1e999", "ratio must be a number above zero"),
        ("name", 3, "name must be a text"),
        ("way", "left", "way must be up, down or 3, got 'left'"),
        ("colour", "green", "colour must be red or dark_blue"),
        ("sizes", "1,x", "each a whole number"),
        ("pair", "4", "pair must be 2 values with commas between them"),
        ("sizes", 3, "sizes must be values with commas between them"),
        ("constant", "3", "unknown option 'constant'"),
        ("made", "3", "unknown option 'made'"),
        ("cuont", "3", "unknown option 'cuont': did you mean count? (of part x)"),
    ],
)
def test_what_an_option_does_not_take_is_refused(option: str, given: Any, words: str) -> None:
    with pytest.raises(InputError) as refused:
        read(option, given)
    assert words in str(refused.value)


def test_without_annotations_the_default_says_what_is_meant() -> None:
    options = {"loss": "0.3", "ports": "4", "tag": "12", "on": "yes", "anything": "7"}
    assert configured(Plain, options, "p").given == (0.3, 4, "12", True, 7)
    assert configured(Plain, {"ports": "0.5", "anything": "seven"}, "p").given[1::3] == (0.5, "seven")
    assert configured(Unresolved, {"loss": "0.3"}, "p").given == (0.3,)
    with pytest.raises(InputError, match="p: loss must be a number, got 'much'"):
        configured(Plain, {"loss": "much"}, "p")


def test_what_is_needed_is_asked_for() -> None:
    assert configured(Needs, {"table": "x"}, "part y").given == ("x", 0)
    with pytest.raises(InputError, match="part y needs a value for its option table: give table=VALUE"):
        configured(Needs, {"rest": "1"}, "part y")


def test_any_option_or_none() -> None:
    assert configured(Open, {"a-b": "1", "c": "x"}, "p").given == {"a_b": 1, "c": "x"}
    assert options_of(Open) is None
    assert options_of(object) == {}
    with pytest.raises(InputError, match="part z has no options: leave out a"):
        configured(object, {"a": "1"}, "part z")
    with pytest.raises(InputError, match="given twice"):
        configured(Plain, {"on": "on", " on": "off"}, "p")


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_come_back_as_they_were(number: float) -> None:
    assert configured(Plain, {"ports": repr(number)}, "p").given[1] == number


@given(st.sampled_from(list(options_of(Part) or ())), st.text())
def test_no_text_is_anything_but_read_or_refused(option: str, text: str) -> None:
    try:
        read(option, text)
    except InputError as refused:
        assert "\n" not in str(refused)  # noqa: PT017


def test_options_of_all_registered_parts_can_be_read() -> None:
    """Every annotation of a part of our own is one that is understood: its default, as text, comes back."""
    from triosim.engine.solver import SOLVERS
    from triosim.hardware.topology import TOPOLOGIES
    from triosim.network.routing import ROUTINGS
    from triosim.schedule.actions import SCHEDULES

    for registry in (TOPOLOGIES, ROUTINGS, SCHEDULES, SOLVERS):
        for name in registry:
            part = registry.get(name)
            for option in (options_of(part) or {}).values():
                assert option.kind is not None, f"{registry.what} {name}: {option.name} says no type"
                assert not option.required, f"{registry.what} {name}: {option.name} has no default"
                if is_dataclass(part):
                    default = getattr(part(), option.name)
                    again = configured(part, {option.name: "none" if default is None else str(default)}, name)
                    assert again == part()
