"""Least outstanding: the replica with the fewest requests that are not done, waiting ones and running ones alike."""

from __future__ import annotations

from collections.abc import Sequence

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.serving.replica import Replica
from triosim.serving.requests import Request
from triosim.serving.router import RequestRouter


@registered
@dataclass
class LeastOutstanding(RequestRouter):
    """Of equals the one with the lowest number."""

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        """The one with the fewest requests."""
        return min(replicas, key=lambda replica: replica.outstanding)
