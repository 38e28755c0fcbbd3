"""Round robin: one replica after another."""

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
class RoundRobin(RequestRouter):
    """In turn, whatever they have to do."""

    turn: int = field(init=False, repr=False, default=-1)

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        """The replica after the last one chosen."""
        self.turn = (self.turn + 1) % len(replicas)
        return replicas[self.turn]
