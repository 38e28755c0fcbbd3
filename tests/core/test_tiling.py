"""Repeating and leaving out units of a sequence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.core.relations import RelatedTable, changed
from triosim.core.tiling import NO_UNIT, Contraction, NotRepeating, Tiling, laid

PATTERN = 2


def chain(units: int, items: int) -> RelatedTable:
    """A forward that ascends and a backward that descends; each item refers to the one before it, the last to all."""
    up = np.repeat(np.arange(1, units + 1), items)
    unit = np.concatenate([[NO_UNIT], up, up[::-1], [NO_UNIT]])
    before = np.arange(len(unit), dtype=np.int32) - 1
    before[-1] = NO_UNIT  # what is in no unit refers to one of them by a list only
    everything = [[] for _ in range(len(unit) - 1)] + [list(range(1, len(unit) - 1))]
    names = tuple(f"part.{u}.x" if u > 0 else "" for u in unit.tolist())
    columns = {"before": before, "all": Ragged.of(everything), "name": names}
    return RelatedTable(unit, columns, {"before": "t", "all": "t"}, named=frozenset(["name"]))


def _same(a: dict[str, object], b: dict[str, object]) -> bool:
    lists = [np.array_equal(x["all"].values, y["all"].values) for x, y in ((a, b),)]  # type: ignore[attr-defined]
    return all(lists) and np.array_equal(a["before"], b["before"]) and a["name"] == b["name"]  # type: ignore[arg-type]


def _renaming(copies: int) -> list[list[tuple[str, str]]]:
    return [[(f"part.{PATTERN}", f"part.{PATTERN + copy}")] for copy in range(1, copies + 1)]


@given(copies=st.integers(1, 5), items=st.integers(1, 4))
def test_a_short_chain_repeated_is_the_long_one(copies: int, items: int) -> None:
    long = chain(4 + copies, items)
    change = {"t": Contraction.of(long.unit, PATTERN, copies)}
    short = changed({"t": long}, change).columns["t"]
    less = RelatedTable(change["t"].units, short, long.refers, named=long.named)
    again = changed({"t": less}, {"t": Tiling.of(less.unit, PATTERN, copies)}, _renaming(copies))
    assert _same(dict(again.columns["t"]), dict(long.columns))
    assert again.spanning["t"].tolist() == [len(long.unit) - 1]


def test_copies_ascend_or_descend_with_their_neighbours() -> None:
    source, copy = laid(np.array([1, 2, 3, 3, 2, 1]), PATTERN, 2)
    assert source.tolist() == [0, 1, 1, 1, 2, 3, 4, 4, 4, 5]
    assert copy.tolist() == [0, 0, 1, 2, 0, 0, 2, 1, 0, 0]


@pytest.mark.parametrize("unit", [[0, 2, 5], [1, 2, 1], [3, 2, 3]])
def test_a_pattern_without_its_neighbours_does_not_repeat(unit: list[int]) -> None:
    with pytest.raises(NotRepeating):
        laid(np.array(unit), PATTERN, 1)


def _find(tiling: Tiling | Contraction, item: int, by: int) -> NDArray[np.int64]:
    one = np.array([item])
    return tiling.find(one, np.array([by]), np.array([0]), np.array([False]))


def test_what_is_far_away_may_not_refer_to_the_pattern() -> None:
    unit = np.array([1, 2, 3, 4])
    assert _find(Tiling.of(unit, PATTERN, 2), 1, 3).tolist() == [3]  # the unit after it refers to the last copy
    for by in (4, NO_UNIT):
        with pytest.raises(NotRepeating):
            _find(Tiling.of(unit, PATTERN, 2), 1, by)
    with pytest.raises(NotRepeating):
        _find(Contraction.of(unit, PATTERN, 1), 2, 1)


def test_units_of_different_size_are_not_left_out() -> None:
    with pytest.raises(NotRepeating):
        Contraction.of(np.array([1, 2, 3, 3, 4]), PATTERN, 1)
