"""Random: any replica, each as likely as the others."""

from __future__ import annotations

from collections.abc import Sequence

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.serving.replica import Replica
from triosim.serving.requests import Request
from triosim.serving.router import RequestRouter


@registered
@dataclass
class RandomReplica(RequestRouter):
    """Drawn for each request."""

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        """Any of them."""
        return self.random.choice(replicas)
