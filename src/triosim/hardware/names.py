"""Names of the many nodes and edges of a System, made only when somebody reads them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass


class NameSequence(Sequence[str]):
    """A sequence of names, equal to every sequence of the same names."""

    @abstractmethod
    def name(self, place: int) -> str:
        """The name at a place from 0 to ``len(self) - 1``."""

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[str, ...]: ...
    def __getitem__(self, place: int | slice) -> str | tuple[str, ...]:
        places = range(len(self))[place]
        return tuple(map(self.name, places)) if isinstance(places, range) else self.name(places)

    def __iter__(self) -> Iterator[str]:
        return map(self.name, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and not isinstance(other, str) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


@dataclass(frozen=True, eq=False, repr=False)
class NodeNames(NameSequence):
    """Names of the nodes of a graph of equal parts: the devices of all parts, then what else each part has, then what
    they share.

    Attributes:
        part: names within one part, its devices first.
        devices: how many of them are devices.
        parts: how many there are; with several, ``gpu0`` of the second is ``node1/gpu0``.
        shared: names of what they share.
    """

    part: tuple[str, ...]
    devices: int
    parts: int = 1
    shared: tuple[str, ...] = ()

    def name(self, place: int) -> str:
        """See :meth:`NameSequence.name`."""
        others = len(self.part) - self.devices
        if place < self.parts * self.devices:
            number, within = divmod(place, self.devices)
        elif place < self.parts * len(self.part):
            number, within = divmod(place - self.parts * self.devices, others)
            within += self.devices
        else:
            return self.shared[place - self.parts * len(self.part)]
        return f"node{number}/{self.part[within]}" if self.parts > 1 else self.part[within]

    def twice(self) -> str | None:
        """A name that two nodes have, if there is one; parts differ by their number."""
        first = tuple(f"node0/{name}" for name in self.part) if self.parts > 1 else self.part
        names = first + self.shared
        return next((n for n in names if names.count(n) > 1), None) if len(set(names)) < len(names) else None

    def __len__(self) -> int:
        return self.parts * len(self.part) + len(self.shared)


@dataclass(frozen=True, eq=False, repr=False)
class Labels(NameSequence):
    """One of a few names for each of many things.

    Attributes:
        names: the few.
        rows: for each thing its row in them.
    """

    names: tuple[str, ...]
    rows: NDArray[np.int32]

    def name(self, place: int) -> str:
        """See :meth:`NameSequence.name`."""
        return self.names[int(self.rows[place])]

    def __iter__(self) -> Iterator[str]:
        return map(self.names.__getitem__, self.rows.tolist())

    def __len__(self) -> int:
        return len(self.rows)
