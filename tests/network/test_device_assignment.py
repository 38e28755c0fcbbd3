"""Ranks on devices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.partition.divided import mesh_of
from triosim.core.errors import InputError
from triosim.network.device_assignment import assign_devices, grid_cycle


def test_the_user_may_say_which_device_a_rank_runs_on() -> None:
    assert assign_devices(mesh_of(tp=2), devices=4, order=[3, 1]).devices.tolist() == [3, 1]


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([0, 1, 2], "names 3 devices for 4 ranks"),
        ([0, 1, 2, 4], "names device 4, but devices are numbered 0 to 3"),
        ([0, 1, 2, -1], "names device -1"),
        ([0, 1, 1, 2], "puts two ranks on device 1"),
    ],
)
def test_a_placement_that_is_none_is_refused(order: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        assign_devices(mesh_of(2, 2), devices=4, order=order)


def test_too_few_devices_are_refused() -> None:
    with pytest.raises(InputError, match="tp 2 x dp 2 x pp 2 makes 8 ranks, but the system has 4 devices"):
        assign_devices(mesh_of(2, 2, 2), devices=4)


# --- rings through grids ---------------------------------------------------------------------------------------------


def test_a_small_grid() -> None:
    assert grid_cycle(2, 2).tolist() == [0, 1, 3, 2]
    assert grid_cycle(2, 3).tolist() == [0, 1, 2, 5, 4, 3]
    assert grid_cycle(3, 2).tolist() == [0, 2, 4, 5, 3, 1]


@given(st.integers(2, 15), st.integers(2, 15))
def test_each_device_once_and_each_step_to_a_neighbour(rows: int, columns: int) -> None:
    if rows % 2 and columns % 2:
        with pytest.raises(InputError, match="must be even"):
            grid_cycle(rows, columns)
        return
    order = grid_cycle(rows, columns)
    assert sorted(order.tolist()) == list(range(rows * columns))
    row, column = np.divmod(order, columns)
    steps = abs(row - np.roll(row, 1)) + abs(column - np.roll(column, 1))
    assert (steps == 1).all()


@pytest.mark.parametrize(("rows", "columns"), [(1, 8), (8, 1), (3, 5)])
def test_grids_without_a_ring(rows: int, columns: int) -> None:
    with pytest.raises(InputError, match="no ring"):
        grid_cycle(rows, columns)
