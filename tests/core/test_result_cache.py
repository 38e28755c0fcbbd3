"""The last results of what takes long: how many, how large, and under which keys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from triosim.core.caching import IdentityKey
from triosim.core.result_cache import Repeated, ResultCache, content


@dataclass(frozen=True)
class Table:
    name: str
    column: np.ndarray
    sizes: tuple[int, ...] = ()


def test_the_oldest_goes_before_the_next_is_made() -> None:
    there: list[str] = []

    class Large:
        def __init__(self, name: str) -> None:
            self.name = name
            there.append(name)

        def __del__(self) -> None:
            there.remove(self.name)

    latest = ResultCache[Large](1, 10, lambda made: 1)
    first = latest.get("a", lambda: Large("a"))
    assert latest.get("a", lambda: Large("again")) is first
    del first
    assert there == ["a"]

    def make() -> Large:
        assert there == []  # two are never there at once
        return Large("b")

    assert latest.get("b", make).name == "b"
    assert there == ["b"]
    latest.forget()
    assert there == []


def test_what_is_too_large_is_not_kept_and_neither_are_exceptions() -> None:
    calls: list[int] = []
    latest = ResultCache[list[int]](1, 3, len)

    def make(size: int) -> list[int]:
        calls.append(size)
        if size < 0:
            raise ValueError("no such list")
        return [0] * size

    for _ in range(2):
        latest.get("fits", lambda: make(3))
        latest.get("large", lambda: make(4))
        with pytest.raises(ValueError, match="no such list"):
            latest.get("wrong", lambda: make(-1))
    assert calls == [3, 4, -1, 3, 4, -1]  # the room for one more was made before it was known to be too large


def test_content_is_equal_for_equal_columns_only() -> None:
    table = Table("a", np.arange(4), (1, 2))
    assert content(table) == content(Table("a", np.arange(4), (1, 2)))
    for other in (
        Table("b", np.arange(4), (1, 2)),
        Table("a", np.arange(5), (1, 2)),
        Table("a", np.arange(4, dtype=np.int32), (1, 2)),
        Table("a", np.arange(4).reshape(2, 2), (1, 2)),
        Table("a", np.array([0, 1, 2, 4]), (1, 2)),
        Table("a", np.arange(4), (1, 3)),
    ):
        assert content(other) != content(table)
    assert content({1: (2.0, [np.zeros(2)])}) == content({1: (2.0, [np.zeros(2)])}) != content({1: (2, [np.zeros(2)])})


def test_the_same_object_is_equal_to_itself_only() -> None:
    one, equal = [1], [1]
    assert IdentityKey(one) == IdentityKey(one)
    assert hash(IdentityKey(one)) == hash(IdentityKey(one))
    assert IdentityKey(one) != IdentityKey(equal)


def test_equal_columns_have_one_number():
    known = Repeated()
    one, other = np.arange(5), np.array([True, False])
    assert known.number("a", (one, other)) == 0
    assert known.number("a", (one.copy(), other.copy())) == 0
    assert len(known) == 1


def test_what_differs_anywhere_is_another_also_where_sums_agree():
    known = Repeated()
    sets = [
        ("a", (np.array([1, 2, 3]),)),
        ("a", (np.array([3, 2, 1]),)),
        ("b", (np.array([1, 2, 3]),)),
        ("a", (np.array([1, 2, 3, 0]),)),
        ("a", (np.array([1, 2, 3]), np.array([True]))),
        ("a", (np.array([1, 2, 3]), np.array([False]))),
    ]
    assert [known.number(*each) for each in sets] == list(range(6))
    assert [known.number(*each) for each in reversed(sets)] == list(range(5, -1, -1))
