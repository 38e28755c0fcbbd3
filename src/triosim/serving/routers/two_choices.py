"""Two choices: of two replicas drawn at random the one with fewer outstanding requests (Mitzenmacher 2001)."""

from __future__ import annotations

from collections.abc import Sequence

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.serving.replica import Replica
from triosim.serving.requests import Request
from triosim.serving.router import RequestRouter


@registered
@dataclass
class TwoChoices(RequestRouter):
    """Nearly as even as looking at all replicas, and needs to know but two."""

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        """The less loaded of two different ones, the first drawn if they are equal."""
        pair = self.random.sample(replicas, min(2, len(replicas)))
        return min(pair, key=lambda replica: replica.outstanding)
