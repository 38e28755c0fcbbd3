"""What a routing is: it decides which of the best routes a transfer takes.

What the best routes are is said in :mod:`triosim.network.search`.  One routing is one file in ``network/routings``;
other distributions add theirs through entry points of the group ``triosim.routings``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from triosim.core.errors import InputError
from triosim.core.options import configured
from triosim.core.registry import Registry
from triosim.hardware.system import System

Given = Mapping[tuple[int, int], tuple[int, ...]]
"""Edges of the route from one node to another."""


class Routing:
    """Decides which way transfers go.  One subclass a file in ``network/routings``; options as in
    :mod:`triosim.core.options`.

    Attributes:
        spreads: whether it chooses among equal routes; if not, each transfer takes the lowest.
        pxn: whether a transfer between servers may begin or end with a way through a neighbour in the server, to use
            its NIC (NCCL's PXN: over NVLink to the GPU whose NIC is on the rail of the target).
    """

    spreads: ClassVar[bool] = False
    pxn: bool = True

    def which(
        self, source: NDArray[np.int64], target: NDArray[np.int64], count: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The number of the route that each pair of nodes takes, from 0 to ``count - 1``, lowest first.

        Args:
            source, target: nodes, shape ``(pairs,)``.
            count: of equal best routes of each pair, at least 1.
        """
        return np.zeros(len(count), np.int64)

    def given(self, system: System) -> Given:
        """Routes that are laid down, whatever the best are.

        Raises:
            InputError: one that is not possible in this System.
        """
        return {}


ROUTINGS = Registry("triosim.network.routings", "triosim.routings", "routing", Routing)
"""Routings by name (``--routing``)."""


def routing_of(system: System) -> Routing:
    """The routing that a System asks for.

    Raises:
        InputError: no such routing or option, or a value that the option does not take.
    """
    try:
        return _configured(system)
    except InputError as error:
        if not system.routing_place:
            raise
        raise InputError(f"{system.routing_place}: {error}") from None


def _configured(system: System) -> Routing:
    return configured(ROUTINGS.get(system.routing), system.routing_options, f"routing {system.routing}")
