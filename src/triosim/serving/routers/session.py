"""Session: all requests of a conversation go to the replica that served its first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.serving.replica import Replica
from triosim.serving.requests import Request
from triosim.serving.router import RequestRouter


@registered
@dataclass
class Session(RequestRouter):
    """First turns, and requests of no conversation, go to the replica with the fewest outstanding requests."""

    homes: dict[int, Replica] = field(init=False, repr=False, default_factory=dict)

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        """The conversation's home while it is among ``replicas``."""
        home = self.homes.get(request.session)
        if home is None or home not in replicas:
            home = min(replicas, key=lambda replica: replica.outstanding)
            if request.session >= 0:
                self.homes[request.session] = home
        return home
