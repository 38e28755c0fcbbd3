"""Data-parallel attention: ranks with requests and KV caches of their own, whose experts all their devices share.

Every rank runs attention and dense products on its own requests; the experts of each layer are divided among all
devices of the replica, and tokens travel to them and back by two all-to-all exchanges.  So the ranks step together: a
step takes as long as the rank with most to do, and a rank without requests takes part with nothing.  That is vLLM's
``--data-parallel-size`` with ``--enable-expert-parallel`` and SGLang's ``--enable-dp-attention``; DeepSeek-V3 is served
like this (Liu et al., arXiv:2412.19437, section 3.4).

The experts take as long as the device does whose are chosen most (:mod:`triosim.serving.expert_ranks`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_BYTES
from triosim.core.units import PICOSECONDS_PER_SECOND
from triosim.serving.communication import ReplicaCommunication
from triosim.serving.expert_ranks import ExpertRanks
from triosim.serving.kernel_times import ServingKernels
from triosim.serving.kv_cache import KVCache
from triosim.serving.model_times import GRAPH_TOKENS, ModelTimes
from triosim.serving.policy import Batch, Policy
from triosim.serving.replica import Replica
from triosim.serving.requests import Request
from triosim.serving.step_times import StepShape

TOKENS = np.unique(np.round(np.geomspace(1, 1 << 20, 161))).astype(np.int64)
"""Tokens of all ranks together for which experts are priced; between them the time is linear."""
NOTHING = StepShape(0, (), 0, 0, 0)
"""What a rank computes that has no requests."""


@dataclass
class LockStepTimes:
    """Times of steps that all attention ranks of a replica begin together.

    Attributes:
        own: of one rank, its routed experts left out.
        kernels: of one device.
        communication: among all devices of the replica.
        ranks: of attention.
        experts: the devices that share them.
        exchange: how tokens go to experts, as of :data:`triosim.serving.policy.EXCHANGES`.
        cast: whether they are gathered in the type of the products; else in 16 bits.
    """

    own: ModelTimes
    kernels: ServingKernels
    communication: ReplicaCommunication
    ranks: int
    experts: ExpertRanks
    exchange: str = "gather"
    cast: bool = False
    _shared: NDArray[np.float64] | None = field(init=False, repr=False, default=None)

    def ticks(self, shapes: Sequence[StepShape]) -> int:
        """Picoseconds of a step in which the ranks compute this, one of each."""
        working = [shape for shape in shapes if shape.tokens]
        tokens = [shape.tokens for shape in working]
        if self.own.graph_sizes and not any(shape.chunks for shape in working):  # each has as many as the fullest
            tokens = [self.own.padded(max(tokens))] * self.ranks
            working = [shape._replace(tokens=tokens[0]) for shape in working]
        longest = max(self.own.device_ticks(shape, 0) for shape in working)
        experts = self._experts(sum(tokens))
        moved = self._moved(tokens)
        sequences = max(shape.decodes + len(shape.chunks) for shape in working)
        prompts = any(shape.chunks for shape in working)
        beside = self.own.slower * (experts + moved)
        return self.own.with_host(longest + round(beside * PICOSECONDS_PER_SECOND), sequences, prompts)

    def _experts(self, tokens: int) -> float:
        """Seconds of the routed experts of all layers for the tokens of all ranks, on the fullest device."""
        if self._shared is None:
            self._shared = self.kernels.routed(TOKENS, self.experts)
        return float(np.interp(tokens, TOKENS, self._shared))

    @property
    def devices(self) -> int:
        """All of the replica."""
        return self.ranks * self.kernels.tensor_parallel

    def _moved(self, tokens: Sequence[int]) -> float:
        """Seconds in which tokens go to experts and back in all layers, so many of each rank that has some.

        All of them are gathered on all devices, and what experts make of them is added up and scattered; in a captured
        graph each rank has as many rows as the fullest.  Or a token is sent once to each device that has one of its
        experts, and the exchange takes as long as that of the fullest rank.  Results come back in 16 bits.
        """
        model, own = self.kernels.model, self.kernels.model.experts
        assert own is not None
        product = min(DTYPE_BYTES[self.kernels.precision.multiplied], 2)
        most = max(tokens)
        if self.exchange == "gather":
            graph = self.own.graphs and not self.own.graph_sizes and most <= GRAPH_TOKENS
            rows = float(self.ranks * self.own.padded(most) if graph else sum(tokens)) * model.width
            there = rows * (product if self.cast else 2)
            ways = self.communication.gather_and_scatter(np.array([there]), np.array([rows * 2.0]), self.devices)
            return float(ways[0]) * model.expert_layers
        copies = self.devices * (1 - (1 - 1 / self.devices) ** own.chosen)
        sent = most / self.kernels.tensor_parallel * copies * model.width
        ways = self.communication.all_to_all(np.array([sent * product, sent * 2.0]), self.devices)
        return float(ways.sum()) * model.expert_layers


class LockStep:
    """The ranks of one replica.

    Args:
        times: of their steps.

    Attributes:
        ranks: of attention, in their order.
    """

    def __init__(self, times: LockStepTimes) -> None:
        self.times = times
        self.ranks: list[AttentionRank] = []
        self._running = False

    def start(self, now: int) -> int:
        """Begin a step of all ranks if none is under way and one has work; when it ends, -1 if none begins."""
        if self._running:
            return -1
        planned = [rank.plan(now) for rank in self.ranks]
        if not any(batch for batch, _ in planned) and any(rank.coming for rank in self.ranks):
            self._see()  # nothing was scheduled ahead
            planned = [rank.plan(now) for rank in self.ranks]
        if not any(batch for batch, _ in planned):
            return -1
        ticks = self.times.ticks([shape for _, shape in planned])
        for rank, (batch, shape) in zip(self.ranks, planned, strict=True):
            rank.busy[0] += ticks
            if batch:
                rank.begins(batch, shape, [(now, now + ticks)])
        self._running = True
        self._see()
        return now + ticks

    def _see(self) -> None:
        for rank in self.ranks:
            rank.sees()

    def end(self, now: int) -> None:
        """The step is over, on all ranks."""
        self._running = False
        for rank in self.ranks:
            if rank.in_flight:
                rank.ends(now)


class AttentionRank(Replica):
    """A rank of data-parallel attention: a replica whose steps begin and end with those of others.

    Args:
        number, policy, cache, longest, on_finished: as of any replica.
        together: the ranks that step with it, itself among them.
    """

    def __init__(
        self, number: int, policy: Policy, cache: KVCache, together: LockStep, longest: int,
        on_finished: Callable[[Request], None] = lambda request: None,
    ) -> None:  # fmt: skip
        super().__init__(number, policy, cache, together.times.own, longest, on_finished)
        self.together = together
        together.ranks.append(self)

    @property
    def peers(self) -> Sequence[Replica]:
        """All ranks: what ends on one ends on all."""
        return self.together.ranks

    def plan(self, now: int) -> tuple[Batch, StepShape]:
        """What it would compute now."""
        batch = self._asked()
        return (batch, self._taken(batch, now)) if batch else (batch, NOTHING)

    def start(self, now: int, horizon: int = 0) -> int:
        """Begin a step of all ranks; when it ends, -1 if none begins."""
        return self.together.start(now)

    def end(self, now: int) -> None:
        """The step is over, on all ranks."""
        self.together.end(now)

    def ends(self, now: int) -> None:
        """Its own part of the step is over."""
        super().end(now)
