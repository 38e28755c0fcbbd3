"""Groups whose members form a box of a torus, as the axes of a mesh do on a TPU pod."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass


@dataclass(frozen=True)
class BoxSide:
    """One side of a box.

    Attributes:
        length: members along it, at least 2.
        stride: links from one member to the next; those between belong to members of other groups.
        closed: whether the members go all the way round the torus, three at least.
    """

    length: int
    stride: int
    closed: bool

    @property
    def links(self) -> float:
        """Links' worth of bandwidth that a member has along it.

        A closed side is used both ways round.  On an open side the members at the ends get everything by one link, and
        what others have beyond that is of no use.  ``stride`` groups like this one share the links.
        """
        return (2 if self.closed else 1) / self.stride

    @property
    def farthest(self) -> int:
        """Links to the member that is farthest from another."""
        return (self.length // 2 if self.closed else self.length - 1) * self.stride

    @property
    def cycle(self) -> NDArray[np.int64]:
        """Places along it in the order of a ring whose neighbours are near: on an open side every other one, and back
        by those left out."""
        at = np.arange(self.length)
        return at if self.closed else np.concatenate([at[::2], at[1::2][::-1]])

    @property
    def hop(self) -> int:
        """Links from one member of that ring to the next, at most."""
        return self.stride * (2 if not self.closed and self.length > 2 else 1)


@dataclass(frozen=True)
class TorusBox:
    """Where the members of a group are.

    Attributes:
        members: the member at each place, a dimension for each side.
        sides: those on which there is more than one.
    """

    members: NDArray[np.int64]
    sides: tuple[BoxSide, ...]

    @property
    def links(self) -> float:
        """Links' worth of bandwidth that a member has along all sides."""
        return sum(side.links for side in self.sides)


def box_of(places: NDArray[np.int64], torus: Sequence[int]) -> TorusBox | None:
    """The box that members form, or None: on each side of the torus equally far apart, in all combinations.

    Args:
        places: of each member in the torus, numbered along its last side first.
        torus: lengths of its sides.
    """
    sides, along, count = [], [], 1
    for coordinate, side in zip(np.unravel_index(places, torus), torus, strict=True):
        taken, at = np.unique(coordinate, return_inverse=True)
        apart = np.diff(taken)
        if len(taken) == 1:
            continue
        if (apart != apart[0]).any():
            return None
        stride, count = int(apart[0]), count * len(taken)
        sides.append(BoxSide(len(taken), stride, len(taken) > 2 and stride * len(taken) == side))
        along.append(at)
    if count != len(places) or not sides:
        return None
    members = np.empty([side.length for side in sides], np.int64)
    members[tuple(along)] = np.arange(len(places))
    return TorusBox(members, tuple(sides))
