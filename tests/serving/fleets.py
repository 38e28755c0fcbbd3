"""Small fleets whose steps take simple times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from triosim.serving.fleet import FleetRun, play
from triosim.serving.kv_cache import KVCache, PrefixCache
from triosim.serving.policy import ENGINES, Policy
from triosim.serving.replica import Replica
from triosim.serving.requests import RequestTable
from triosim.serving.router import ROUTERS, RequestRouter
from triosim.serving.step_times import StepShape, StepTimes

MS = 10**9


@dataclass
class Linear(StepTimes):
    """A constant, and so much for each token and each key."""

    base: int = MS
    token: int = MS // 100
    key: int = MS // 10_000
    stages: int = 1

    def padded(self, tokens: int) -> int:
        """Even numbers."""
        return tokens + tokens % 2

    def ticks(self, step: StepShape, stage: int) -> int:
        """See the class."""
        keys = step.context + sum(cached * tokens for tokens, cached in step.chunks)
        return self.base + self.token * step.tokens + self.key * keys


def replica(
    engine: str | Policy, blocks: int = 1000, *, reuse: bool = False, number: int = 0, longest: int = 4096,
    times: StepTimes | None = None, **options: Any,
) -> Replica:  # fmt: skip
    """One replica of a fleet."""
    policy = ENGINES.get(engine)(**options) if isinstance(engine, str) else engine
    cache = (PrefixCache if reuse else KVCache)(blocks, policy.block_tokens)
    return Replica(number, policy, cache, times or Linear(), longest)


def blocks(engine: str, tokens: int) -> int:
    """Blocks of an engine's default size that hold so many tokens."""
    return int(tokens // ENGINES.get(engine).block_tokens)


def serve(table: RequestTable, *replicas: Replica, router: str | RequestRouter = "round-robin") -> FleetRun:
    """All requests, on these replicas."""
    return play(table, replicas, ROUTERS.get(router)() if isinstance(router, str) else router)
