"""The interface of routers: which replica serves a request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import field
from random import Random
from typing import TYPE_CHECKING

from triosim.core.dataclass import dataclass
from triosim.core.registry import Registry
from triosim.serving.requests import Request

if TYPE_CHECKING:
    from triosim.serving.replica import Replica


@dataclass
class RequestRouter(ABC):
    """Chooses a replica when a request arrives.  One subclass a file in ``serving/routers``.

    Attributes:
        seed: of whatever is drawn.
        random: draws.
    """

    seed: int = 0
    random: Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)

    @abstractmethod
    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        """One of ``replicas``, of which there is at least one."""


ROUTERS = Registry("triosim.serving.routers", "triosim.serving.routers", "router", RequestRouter)
"""Routers by name (``--router``)."""
