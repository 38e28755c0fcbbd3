"""A ring through all devices of a grid in which neighbours on the ring are neighbours on the grid."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.core.errors import InputError


def grid_cycle(rows: int, columns: int) -> NDArray[np.int32]:
    """The devices of a grid in the order of a Hamiltonian cycle.

    Back and forth through all rows but without the first column, and home along that: a ring collective over the
    devices in this order uses each link of the grid at most once in each direction, and no transfer passes a third
    device.

    Args:
        rows, columns: of the grid; device ``r * columns + c`` is in row r and column c.

    Returns:
        device numbers, shape ``(rows * columns,)``, beginning with device 0.

    Raises:
        InputError: there is no such cycle: a side is 1, or both are odd.
    """
    if min(rows, columns) < 2 or rows * columns % 2:
        raise InputError(
            f"a grid of {rows} x {columns} has no ring through all its devices: two sides of at least 2 are needed, "
            "and one of them must be even"
        )
    device = np.arange(rows * columns, dtype=np.int32).reshape(rows, columns)
    if rows % 2:
        device = device.T
    inner = [row[1:][::step] for row, step in zip(device, (1, -1) * (len(device) // 2), strict=True)]
    return np.concatenate([device[0, :1], *inner, device[:0:-1, 0]])
