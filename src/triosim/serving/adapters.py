"""LoRA: requests that ask for adapters of one base model, which are loaded into few slots on the device on demand.

An adapter adds, to each product of a layer, a product down to its rank and one up again.  The engine's kernels do that
for all adapters of a step at once (Chen et al. 2023, Punica): they read the adapters of the step, and read and write
the activations.

A slot holds an adapter.  A step may use as many as there are slots: a waiting request whose adapter finds no slot
beside those that run and those before it is passed over.  An adapter that is in no slot is copied from the host into
the one used longest ago, and the step that uses it first waits for the copies, as in vLLM.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import field
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.options import AtLeast, configured
from triosim.core.units import picoseconds
from triosim.serving.kernel_times import ServingKernels
from triosim.serving.model import ServedModel
from triosim.serving.policy import Batch, Policy
from triosim.serving.requests import Request
from triosim.serving.step_times import StepShape, StepTimes
from triosim.serving.swap import HostCopies

BYTES = 2.0
"""Of an element of an adapter: 16 bits, whatever the weights are."""
MOST_ADAPTERS = 10_000_000
"""Each is drawn with a chance of its own."""


@dataclass(frozen=True)
class AdapterPlan:
    """LoRA adapters that requests ask for, and how many of them a replica holds.

    Attributes:
        adapters: of which each request asks for one.
        rank: of all of them.
        slots: on each replica (``max_loras``).
        zipf: exponent by which they are asked for, 0 for all alike.
    """

    adapters: Annotated[int, AtLeast(1)]
    rank: Annotated[int, AtLeast(1)] = 16
    slots: Annotated[int, AtLeast(1)] = 8
    zipf: Annotated[float, AtLeast(0)] = 0.0

    def bytes(self, model: ServedModel, tensor_parallel: int = 1) -> float:
        """Of one adapter on one device.

        Of a product whose columns are divided the part that goes down is whole on each device, of one whose rows are
        the part that goes up.
        """
        kind, own = model.alike("--lora")
        query, keys = own.heads / tensor_parallel * own.head, max(own.kv_heads / tensor_parallel, 1.0) * own.head
        inner = kind.inner / tensor_parallel
        ups = 2 if model.gated else 1
        ends = 3 * model.width + query + 2 * keys + query + model.width + ups * (model.width + inner)
        return BYTES * self.rank * model.layers * (ends + inner + model.width)

    def asked(self, requests: int, seed: int) -> NDArray[np.int64]:
        """The adapter of each request."""
        weights = 1.0 / np.arange(1, self.adapters + 1, dtype=np.float64) ** self.zipf
        bounds = np.cumsum(weights / weights.sum())
        drawn = np.random.default_rng([seed, self.adapters]).random(requests)
        return np.minimum(np.searchsorted(bounds, drawn, side="right"), self.adapters - 1).astype(np.int64)


def parse_adapters(text: str) -> AdapterPlan:
    """As they are typed: ``64,rank=16,slots=8,zipf=1``.

    Raises:
        InputError: it makes no sense.
    """
    count, *options = text.split(",")
    given = {"adapters": count} | dict(one.partition("=")[::2] for one in options)
    plan = configured(AdapterPlan, given, "--lora")
    if plan.adapters > MOST_ADAPTERS:
        raise InputError(f"--lora: there are at most {MOST_ADAPTERS:,} adapters, got {plan.adapters:,}")
    return plan


@dataclass
class AdapterSlots:
    """The slots of one replica.

    Attributes:
        plan: of the adapters.
        asked: adapter of each row of the requests.
        copies: between a device and its host; each device copies its part.
        bytes: of an adapter on one device.
        loads: adapters copied so far.
    """

    plan: AdapterPlan
    asked: list[int]
    copies: HostCopies
    bytes: float
    loads: int = 0
    _held: OrderedDict[int, None] = field(init=False, repr=False, default_factory=OrderedDict)
    _passed: list[Request] = field(init=False, repr=False, default_factory=list)

    def forget(self) -> None:
        """The memory is lost: no slot holds anything."""
        self._held.clear()

    def pass_over(self, policy: Policy) -> None:
        """Take those out of the queue whose adapters find no slot, until :meth:`put_back`."""
        used = {self.asked[request.row] for request in policy.running}
        seen = []
        for request in policy.waiting:
            adapter = self.asked[request.row]
            if adapter in used or len(used) < self.plan.slots:
                used.add(adapter)
                seen.append(request)
            else:
                self._passed.append(request)
        if self._passed:
            policy.waiting.clear()
            policy.waiting.extend(seen)

    def put_back(self, policy: Policy) -> None:
        """Let those wait again that were passed over, each before the later ones."""
        if not self._passed:
            return
        merged, passed = [], list(reversed(self._passed))
        for request in policy.waiting:
            while passed and passed[-1].number < request.number:
                merged.append(passed.pop())
            merged.append(request)
        policy.waiting.clear()
        policy.waiting.extend(merged + passed[::-1])
        self._passed = []

    def load(self, batch: Batch, running: Sequence[Request]) -> int:
        """Picoseconds for which a step waits until its adapters are there; those of other running requests stay."""
        needed = dict.fromkeys(self.asked[request.row] for request, _ in batch)
        ticks = 0
        for adapter in (*dict.fromkeys(self.asked[request.row] for request in running), *needed):
            if adapter in self._held:
                self._held.move_to_end(adapter)
        for adapter in needed:
            if adapter not in self._held:
                if len(self._held) >= self.plan.slots:
                    self._held.popitem(last=False)
                self._held[adapter] = None
                self.loads += 1
                ticks += self.copies.ticks(self.bytes)
        return ticks

    def count(self, batch: Batch) -> int:
        """Different adapters of a step."""
        return len({self.asked[request.row] for request, _ in batch})


@dataclass
class AdaptedTimes(StepTimes):
    """Steps whose products have adapters.

    Attributes:
        base: of the steps without.
        kernels: of one device.
        plan: of the adapters.
    """

    base: StepTimes
    kernels: ServingKernels
    plan: AdapterPlan
    _seen: dict[tuple[int, int], int] = field(init=False, repr=False, default_factory=dict)

    def computed(self, step: StepShape) -> int:
        """As of the steps without."""
        return self.base.computed(step)

    def padded(self, tokens: int) -> int:
        """As the base."""
        return self.base.padded(tokens)

    def ticks(self, step: StepShape, stage: int) -> int:
        """Of the base, and of the adapters' kernels."""
        return self.base.ticks(step, stage) + self._adapters(step.tokens, step.adapters)

    def _adapters(self, tokens: int, adapters: int) -> int:
        key = tokens, adapters
        found = self._seen.get(key)
        if found is None:
            seconds = self.kernels.adapted(tokens, adapters, self.plan.rank) * self.kernels.model.layers
            found = self._seen[key] = picoseconds(seconds, "the adapters of a step")
        return found


def check_adapters(stages: int, role: str) -> None:
    """Whether replicas can have adapters.

    Raises:
        InputError: they cannot.
    """
    if stages > 1 or role != "both":
        raise InputError(
            "adapters are of replicas on one pipeline stage that both prefill and decode: leave --lora out, or --pp "
            "and the other roles"
        )
