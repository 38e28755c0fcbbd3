"""Which rank runs on which device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.partition.mesh import Mesh


@dataclass(frozen=True)
class DeviceAssignment:
    """A mesh of ranks on devices.

    Attributes:
        mesh: its axes.
        devices: device of each rank, shape ``(ranks,)``.
    """

    mesh: Mesh
    devices: NDArray[np.int32]

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.mesh.ranks


def assign_devices(
    mesh: Mesh, devices: int, order: Sequence[int] | None = None, *, torus: Sequence[int] = ()
) -> DeviceAssignment:
    """Put the ranks of a mesh onto devices.

    Args:
        mesh: the ranks.
        devices: how many devices there are.
        order: device of each rank; if None rank i on device i, or on a torus as :mod:`triosim.network.torus_layout`
            has it.
        torus: sides of the torus that the devices of each server form, none if not.

    Raises:
        InputError: there are fewer devices than ranks, or ``order`` does not give each rank a device of its own.
    """
    ranks = mesh.ranks
    if ranks > devices:
        sizes = " x ".join(f"{name} {size}" for name, size in reversed(mesh.axes))
        raise InputError(f"{sizes} makes {ranks} ranks, but the system has {devices} devices")
    if order is None and not torus:
        return DeviceAssignment(mesh, np.arange(ranks, dtype=np.int32))
    if order is None:
        from triosim.network.torus_layout import ranks_on_tori

        laid_out = ranks_on_tori([size for _, size in reversed(mesh.axes)], torus, devices)
        return DeviceAssignment(mesh, np.arange(ranks, dtype=np.int32) if laid_out is None else laid_out)
    chosen = np.array(order, np.int32)
    if len(chosen) != ranks:
        raise InputError(f"the placement names {len(chosen)} devices for {ranks} ranks: name one for each rank")
    wrong = chosen[(chosen < 0) | (chosen >= devices)]
    if len(wrong):
        raise InputError(f"the placement names device {wrong[0]}, but devices are numbered 0 to {devices - 1}")
    if len(np.unique(chosen)) < ranks:
        twice = int(np.argmax(np.bincount(chosen) > 1))
        raise InputError(f"the placement puts two ranks on device {twice}: name each device once")
    return DeviceAssignment(mesh, chosen)


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
