"""Orders in which each row comes after all that it waits for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from triosim.core.precedence import order_after


def test_the_lowest_comes_first_of_those_that_may() -> None:
    assert order_after([[], [3], [], [0, 0]]) == ([0, 2, 3, 1], [])


def test_a_row_that_only_follows_a_circle_is_not_named() -> None:
    # 0 waits for 2, and 1, 2, 3 for each other in the order 1 -> 3 -> 2 -> 1
    assert order_after([[2], [2], [3], [1], []]) == ([4], [1, 3, 2])


@given(st.lists(st.lists(st.integers(0, 7), max_size=3), min_size=8, max_size=8))
def test_either_an_order_of_all_or_a_circle(before: list[list[int]]) -> None:
    order, circle = order_after(before)
    place = {row: at for at, row in enumerate(order)}
    assert all(place[other] < place[row] for row in order for other in before[row])
    assert (len(order) == len(before)) == (not circle)
    assert all(circle[at - 1] in before[row] for at, row in enumerate(circle))
