"""Rings through grids."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triosim.core.errors import InputError
from triosim.network.hamiltonian import grid_cycle


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
