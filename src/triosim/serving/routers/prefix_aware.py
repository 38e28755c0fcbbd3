"""Prefix-aware: the replica that has most of the prompt in its cache, unless it has far more to do than others."""

from __future__ import annotations

from collections.abc import Sequence

from triosim.core.dataclass import dataclass
from triosim.core.registry import registered
from triosim.serving.replica import Replica
from triosim.serving.requests import Request
from triosim.serving.router import RequestRouter


@registered
@dataclass
class PrefixAware(RequestRouter):
    """Longest cached prefix first; of equals the fewest outstanding requests.

    Attributes:
        slack: outstanding requests that a replica may have above the least loaded one and still be chosen.
    """

    slack: int = 16

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        """The one with the longest match among those that are not overloaded."""
        least = min(replica.outstanding for replica in replicas)
        able = [replica for replica in replicas if replica.outstanding <= least + self.slack]
        return max(able, key=lambda replica: (replica.cache.match(request), -replica.outstanding))
