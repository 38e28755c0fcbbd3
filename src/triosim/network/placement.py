"""Which rank runs on which device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from triosim.errors import InputError
from triosim.parallelism.program import AXES


@dataclass(frozen=True)
class Placement:
    """A mesh of ranks on devices.

    Rank numbers run through the axes of :data:`triosim.parallelism.program.AXES`, the first fastest:
    ``rank = i_tp + tp * (i_dp + dp * i_pp)``.

    Attributes:
        sizes: ranks along each axis, in the order of ``AXES``.
        devices: device of each rank, shape ``(ranks,)``.
    """

    sizes: tuple[int, ...]
    devices: NDArray[np.int32]

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return prod(self.sizes)

    def groups(self, axis: str) -> list[list[int]]:
        """The ranks that differ only in their place along ``axis``, in its order; groups by lowest rank."""
        mesh = np.arange(self.ranks).reshape(self.sizes[::-1])
        rows = np.moveaxis(mesh, len(AXES) - 1 - AXES.index(axis), -1)
        return rows.reshape(-1, self.sizes[AXES.index(axis)]).tolist()

    def position(self, rank: int, axis: str) -> int:
        """The place of a rank along ``axis``."""
        at = AXES.index(axis)
        return rank // prod(self.sizes[:at]) % self.sizes[at]


def place(tp: int, dp: int, pp: int, devices: int, order: Sequence[int] | None = None) -> Placement:
    """Put the ranks of a mesh onto devices.

    Args:
        tp, dp, pp: ranks along each axis.
        devices: how many devices there are.
        order: device of each rank; rank i on device i if None.

    Raises:
        InputError: there are fewer devices than ranks, or ``order`` does not give each rank a device of its own.
    """
    ranks = tp * dp * pp
    if ranks > devices:
        raise InputError(f"tp {tp} x dp {dp} x pp {pp} makes {ranks} ranks, but the system has {devices} devices")
    chosen = np.arange(ranks, dtype=np.int32) if order is None else np.array(order, np.int32)
    if len(chosen) != ranks:
        raise InputError(f"the placement names {len(chosen)} devices for {ranks} ranks: name one for each rank")
    wrong = chosen[(chosen < 0) | (chosen >= devices)]
    if len(wrong):
        raise InputError(f"the placement names device {wrong[0]}, but devices are numbered 0 to {devices - 1}")
    if len(np.unique(chosen)) < ranks:
        twice = int(np.argmax(np.bincount(chosen) > 1))
        raise InputError(f"the placement puts two ranks on device {twice}: name each device once")
    return Placement((tp, dp, pp), chosen)
