"""Ranks on a torus: axes of a mesh on sides of their own, or in compact parts of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exploring import examples
from triosim.network.torus_box import box_of
from triosim.network.torus_layout import ranks_on_tori, torus_order


def groups(order: np.ndarray, inner: int, size: int) -> np.ndarray:
    """Devices of each group along an axis that has so many ranks inside of it."""
    return order.reshape(-1, size, inner).swapaxes(1, 2).reshape(-1, size)


@pytest.mark.parametrize(
    ("axes", "torus"),
    [((8, 16), (4, 4, 8)), ((8, 64), (8, 8, 8)), ((16, 16), (16, 16)), ((64,), (4, 4, 4)), ((4, 4, 4), (4, 4, 4))],
)
def test_axes_that_are_whole_sides_leave_ranks_in_order(axes: tuple[int, ...], torus: tuple[int, ...]) -> None:
    order = torus_order(axes, torus)
    assert order is not None
    assert order.tolist() == list(range(math.prod(torus)))


def test_eight_of_a_long_side_are_a_cube() -> None:
    order = torus_order((8, 768), (16, 16, 24))
    assert order is not None
    boxes = [box_of(devices.astype(np.int64), (16, 16, 24)) for devices in groups(order, 1, 8)[:5]]
    assert all(box is not None and [side.length for side in box.sides] == [2, 2, 2] for box in boxes)


def test_sixteen_take_two_whole_sides_rather_than_parts_of_others() -> None:
    order = torus_order((16, 8), (4, 4, 8))
    assert order is not None
    box = box_of(groups(order, 1, 16)[0].astype(np.int64), (4, 4, 8))
    assert box is not None
    assert [side.closed for side in box.sides] == [True, True]


def test_the_outermost_axis_goes_across_pods() -> None:
    order = ranks_on_tori((16, 32), (16, 16), 512)
    assert order is not None
    assert order.tolist() == list(range(512))
    assert ranks_on_tori((5,), (4, 4), 16) is None


@settings(max_examples=examples(60))
@given(
    st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=3).flatmap(
        lambda torus: st.tuples(st.just(tuple(torus)), st.permutations([f for side in torus for f in _primes(side)]))
    ),
    st.integers(1, 4),
)
def test_every_group_is_a_box_and_every_device_has_one_rank(
    drawn: tuple[tuple[int, ...], list[int]], parts: int
) -> None:
    torus, factors = drawn
    axes = [math.prod(factors[part::parts]) for part in range(parts)]
    order = torus_order(axes, torus)
    if order is None:  # an earlier axis has taken what a later one would have needed
        return
    assert sorted(order.tolist()) == list(range(math.prod(torus)))
    inner = 1
    for size in axes:
        if size > 1:
            for devices in groups(order, inner, size):
                assert box_of(devices.astype(np.int64), torus) is not None
        inner *= size


def _primes(number: int) -> list[int]:
    found, factor = [], 2
    while number > 1:
        while number % factor == 0:
            found.append(factor)
            number //= factor
        factor += 1
    return found
