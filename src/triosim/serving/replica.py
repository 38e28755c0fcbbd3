"""One replica of a model: asks its policy for steps, times them and takes note of what they bring about.

What a policy answers is checked before anything is done: :class:`PolicyError` names the rule that it broke.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import index
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from triosim.core.errors import InputError
from triosim.serving.kv_cache import KVCache
from triosim.serving.policy import Batch, Policy
from triosim.serving.quantiles import Samples
from triosim.serving.requests import Request
from triosim.serving.step_times import StepShape, StepTimes

if TYPE_CHECKING:
    from triosim.serving.adapters import AdapterSlots
    from triosim.serving.recording import RunRecorder
    from triosim.serving.speculation import Speculation
    from triosim.serving.tiers import TierTraffic

Steps = Callable[[Batch, int, int], None]
"""Told of a step that begins: its batch before it is computed, and when it begins and ends."""


_shape = partial(tuple.__new__, StepShape)
"""A step's shape of all its fields; the class itself takes three times as long, and there is one for every step."""


class PolicyError(InputError):
    """A scheduling policy broke a rule; the message says which."""


class TooLong(InputError):
    """A run cannot be counted in picoseconds any more."""

    def __init__(self) -> None:
        super().__init__("the run is longer than the 106 days that can be counted in picoseconds: serve less")


class Replica:
    """A policy, its KV cache, and pipeline stages that take steps in order.

    Args:
        number: of the replica, from 0.
        policy: fresh; it is attached here.
        cache: the replica's own.
        times: prices its steps.
        longest: tokens, prompt and output together, that a request may have.
        on_finished: called with each request that is done, after its last token.

    Attributes:
        on_step: told of each step, if anybody is.
        recorder: likewise, of its blocks too; every step is then played by itself.
        keeps: whether the blocks of a request that is done are kept until :meth:`let_go`, for somebody who reads them.
        coming: requests that arrived after the next step was scheduled, where the engine schedules ahead: the policy
            sees them when it has begun.
        receiving: requests for whose KV cache, which is on its way here, blocks are held.
        tiers: of KV cache behind the device's own, if there are any.
        speculation: drafts of requests that decode, if they are.
        slots: of adapters that requests ask for, if they do.
        loading: requests whose blocks are on their way from there.
        steady: whether steps of the same decodes are played at once.
        outstanding: requests that it has and are not done.
        steps: begun.
        busy: picoseconds that each stage computed.
        gaps: picoseconds between tokens of a request.
        tokens: computed, in all steps.
        padding: tokens that steps computed besides, to fill captured graphs.
        joules: that its devices drew while they computed, by :data:`triosim.serving.request_energy.JOULES`; None where
            nobody counts them.
    """

    joules: NDArray[np.float64] | None = None

    def __init__(
        self, number: int, policy: Policy, cache: KVCache, times: StepTimes, longest: int,
        on_finished: Callable[[Request], None] = lambda request: None,
    ) -> None:  # fmt: skip
        self.number = number
        self.policy = policy
        self.cache = cache
        self.times = times
        self.stages = times.stages
        self.on_finished = on_finished
        self.in_flight: list[Batch] = []
        self.free_at = [0] * self.stages
        self.on_step: Steps | None = None
        self.recorder: RunRecorder | None = None
        self.keeps = False
        self.receiving = self.loading = 0
        self.coming: list[Request] = []
        self.tiers: TierTraffic | None = None
        self.speculation: Speculation | None = None
        self.slots: AdapterSlots | None = None
        self._beside: bool | None = None  # of these, any; known at the first step
        self._drafts: list[int] = []
        self._decoded_for = 0  # picoseconds of the last step, if it held no prompt
        self._spans: list[list[tuple[int, int]]] = []  # of each step in flight: begin and end on each stage
        self._kept: dict[int, Request] = {}
        self._padding: dict[int, int] = {}  # of steps of so many tokens; below zero of those that all decode
        self.outstanding = self.steps = self.tokens = self.padding = 0
        self.busy = [0] * self.stages
        self.gaps = Samples()
        policy.attach(cache, longest, self.stages)
        self._ahead = policy.ahead
        self.steady = policy.steady and self.stages == 1 and not cache.windowed  # whose blocks come back meanwhile
        self._name = type(policy).__name__
        ours = type(policy).__module__.startswith("triosim.serving.")
        self._asked = policy.schedule if ours else self._asked_whole

    def arrive(self, request: Request) -> None:
        """A request is queued.

        Raises:
            InputError: it can never run here.
        """
        self.check(request)
        self.outstanding += 1
        if self._ahead:
            self.coming.append(request)
        else:
            self.policy.queue(request)

    def check(self, request: Request) -> None:
        """Whether a request can run here.

        Raises:
            InputError: it never can, or has a priority where the engine knows none.
        """
        if request.priority and not self.policy.by_priority:
            raise InputError(
                f"request {request.number} has priority {request.priority}, and the engine {self._name} takes requests "
                "as they come: use vllm with --engine-option priority=on, or leave priorities out"
            )
        if why := self.policy.room(request):
            raise InputError(
                f"request {request.number} ({request.prompt} prompt and {request.end - request.prompt} output tokens) "
                f"{why}: leave it out, or give the replica more"
            )

    def reserve(self, request: Request) -> int:
        """Hold blocks for a request whose prompt was computed elsewhere, if there is room and nobody else waits.

        Returns:
            Tokens that the cache holds already and that need not be sent; -1 where there is no room.
        """
        policy = self.policy
        if policy.waiting or self.coming or len(policy.running) + self.receiving >= policy.max_running:
            return -1
        found = self.cache.receive(request, policy.received_tokens(request))
        self.receiving += found >= 0
        return found

    def receive(self, request: Request, now: int) -> None:
        """The KV cache of a request for which blocks are held is here: it runs from the next step on."""
        self.receiving -= 1
        request.computed = request.prompt
        request.last_end = now
        self.policy.waiting.appendleft(request)
        self.policy.admit()

    def let_go(self, request: Request) -> None:
        """Nobody reads the blocks of a request any more that is done and was kept."""
        self.cache.release(self._kept.pop(request.row))

    def lose(self, now: int) -> list[Request]:
        """It fails: what it computes and all that it holds is lost, and nothing waits any more.

        Returns:
            The requests that it had, as they can begin again elsewhere.
        """
        for spans in self._spans:
            for stage, (begin, end) in enumerate(spans):
                self.busy[stage] -= max(end - max(begin, now), 0)
        in_flight = len(self._spans) * self.stages
        lost = [*self.policy.running, *self.policy.waiting, *self.coming]
        for request in lost:
            request.lost()
            if self.speculation is not None:
                self.speculation.forget(request)
        self.in_flight.clear()
        self.coming.clear()
        self._spans.clear()
        self.free_at = [now] * self.stages
        self.outstanding = 0
        self.policy.attach(self.cache, self.policy.longest, self.stages)
        self.forget()
        if self.recorder is not None:
            self.recorder.fails(self.number, now, in_flight, self.cache)
        return lost

    def forget(self) -> None:
        """Its memory is lost: the KV cache, and adapters."""
        self.cache.forget()
        if self.slots is not None:
            self.slots.forget()

    def loaded(self, request: Request) -> None:
        """Blocks of a request have come from another tier: it waits in its place again, and will find them."""
        self.loading -= 1
        request.computed = request.blocks * self.cache.block_tokens
        self.cache.store(request)
        self.cache.release(request)
        request.computed = 0
        waiting = self.policy.waiting
        if self.policy.by_priority:
            self.policy.queue(request)
        else:
            later = (place for place, other in enumerate(waiting) if other.number > request.number)
            waiting.insert(next(later, len(waiting)), request)

    def start(self, now: int, horizon: int = 0) -> int:
        """Begin a step, if a stage has room for one and the policy has one.

        Args:
            now: picoseconds.
            horizon: picoseconds before which nothing arrives.  Where decoding is steady until then, all steps but the
                last that begins before it are played at once.

        Returns:
            Picoseconds at which the step leaves the last stage, -1 if none begins.

        Raises:
            PolicyError: the policy's answer broke a rule.
        """
        if len(self.in_flight) >= self.stages:
            return -1
        if self._beside is None:
            self._beside = self.is_more
        batch = self._scheduled(now) if self._beside else self._asked()
        if not batch and self.coming:  # nothing was scheduled ahead
            self.sees()
            batch = self._scheduled(now) if self._beside else self._asked()
        if not batch:
            return -1
        if self._beside:
            now = self._after_copies(batch, now)
        shape = self._taken(batch, now)
        if self._beside:
            shape = self._with_more(batch, shape)
        elif self.steady and not self.coming and shape.decodes == len(batch) == len(self.policy.running):
            shape, now = self._decoded(batch, shape, now, horizon)
        if self.stages == 1:  # which is free
            if self._ahead and self._decoded_for and shape.chunks and self.free_at[0] == now:
                ticks = self.times.after(shape, self._decoded_for)  # its kernels were launched meanwhile
            else:
                ticks = self.times.ticks(shape, 0)
            self._decoded_for = 0 if shape.chunks else ticks
            end = self.free_at[0] = now + ticks
            self.busy[0] += ticks
            spans = [(now, end)]
        else:
            spans = self._through_stages(shape, now)
            now, end = spans[0][0], spans[-1][1]
        self.begins(batch, shape, spans)
        if self.coming:
            self.sees()
        return end

    def sees(self) -> None:
        """The policy sees who has come."""
        for request in self.coming:
            self.policy.queue(request)
        self.coming.clear()

    def begins(self, batch: Batch, shape: StepShape, spans: list[tuple[int, int]]) -> None:
        """Take note of a step that begins, with when each stage begins and ends it."""
        self._spans.append(spans)
        if self.on_step is not None:
            self.on_step(batch, spans[0][0], spans[-1][1])
        if self.recorder is not None:
            self.recorder.begins(self.number, batch, shape, spans, self.cache)
        self.in_flight.append(batch)
        self.steps += 1
        tokens = shape.tokens
        self.tokens += tokens
        filled = tokens if shape.chunks else -tokens
        if filled not in self._padding:
            self._padding[filled] = self.times.computed(shape) - tokens
        self.padding += self._padding[filled]

    @property
    def is_more(self) -> bool:
        """Whether steps of the same decodes may differ in more than their lengths, or somebody looks at each."""
        beside = (self.tiers, self.speculation, self.slots, self.recorder)
        return self.cache.waits or any(one is not None for one in beside)

    @property
    def peers(self) -> Sequence[Replica]:
        """Those whose steps end with its own, itself among them."""
        return (self,)

    def _through_stages(self, shape: StepShape, now: int) -> list[tuple[int, int]]:
        """When each stage begins and ends a step: after the stage before it, and after its own last one."""
        end, spans = now, []
        for stage in range(self.stages):
            ticks = self.times.ticks(shape, stage)
            end = max(end, self.free_at[stage]) + ticks
            spans.append((end - ticks, end))
            self.free_at[stage] = end
            self.busy[stage] += ticks
        return spans

    def _decoded(self, batch: Batch, shape: StepShape, now: int, horizon: int) -> tuple[StepShape, int]:
        """Play steps of the same decodes while each ends before the horizon, nobody is done and blocks suffice.

        Returns:
            The step that follows, and when it begins.
        """
        count = len(batch)
        free = self.cache.free - count  # policies may want a free block for each, whether or not it is taken
        most = free // count * self.cache.block_tokens
        if most < 1 or (self.cache.reuses and self.policy.waiting):
            return shape, now
        for request, _ in batch:
            if request.last_token != now:
                return shape, now
            if request.end - request.known - 1 < most:
                most = request.end - request.known - 1
        if most < 1 or horizon <= now:
            return shape, now
        took = self.times.decodes(count, shape.context, most, horizon - now)
        if not took:
            return shape, now
        self.gaps.add_each(took, count)
        steps, spent = len(took), sum(took)
        now += spent
        self.busy[0] += spent
        self.steps += steps
        self.tokens += steps * count
        self.padding += steps * (self.times.padded(count) - count)
        for request, _ in batch:
            request.known += steps
            request.computed += steps
            request.last_end = request.last_token = now
            held = self.cache.hold(request, request.known)
            assert held  # the blocks were counted before
            self.cache.store(request)
        shape = StepShape(count, (), count, shape.context + steps * count, count)
        return shape, now

    def _asked_whole(self) -> Batch:
        """The step of somebody else's policy, whose numbers may be numpy's, which overflow: in Python's own.

        Raises:
            PolicyError: they are not whole.
        """
        batch = self.policy.schedule()
        try:
            for _, count in batch:
                if type(count) is not int:
                    return [(request, index(count)) for request, count in batch]
            return list(batch)
        except TypeError:
            if all(hasattr(type(count), "__index__") for _, count in batch):
                raise
            raise self._no_pairs() from None

    def _scheduled(self, now: int) -> Batch:
        """The policy's step: with what tiers have, and of those whose adapters find slots."""
        if self.tiers is not None:
            self.tiers.fetch(self, now)
        if self.slots is None:
            return self._asked()
        self.slots.pass_over(self.policy)
        batch = self._asked()
        self.slots.put_back(self.policy)
        return batch

    def _after_copies(self, batch: Batch, now: int) -> int:
        """When a step can begin that waits for copies of blocks and adapters."""
        copying = self.cache.copying()
        if self.slots is not None:
            copying += self.slots.load(batch, self.policy.running)
        return max(now, self.free_at[0]) + copying if copying else now

    def _with_more(self, batch: Batch, shape: StepShape) -> StepShape:
        """A step with its drafts and its adapters."""
        if self.speculation is not None:
            shape = self._speculated(batch, shape, self.speculation)
        if self.slots is not None:
            shape = shape._replace(adapters=self.slots.count(batch))
        return shape

    def _speculated(self, batch: Batch, shape: StepShape, speculation: Speculation) -> StepShape:
        """Give those that decode drafts to verify: as many as there are blocks, and room in the step, for."""
        most, size = self.policy.max_tokens, self.cache.block_tokens
        left = None if most is None else most - shape.tokens
        drafts = []
        for request, _ in batch:
            count = 0
            if request.decoding and request.lacks == 1:
                count = speculation.most(request)
                count = count if left is None else min(count, left)
                if not self.cache.hold(request, request.known + count):
                    count = min(count, request.blocks * size - request.known)
                left = None if left is None else left - count
            drafts.append(count)
        self._drafts = drafts
        total = sum(drafts)
        by_place = tuple(sum(count > place for count in drafts) for place in range(max(drafts, default=0)))
        return shape._replace(tokens=shape.tokens + total, sampled=shape.sampled + total, drafted=by_place)

    def _taken(self, batch: Batch, now: int) -> StepShape:
        """Check a batch and mark its requests."""
        tokens = decodes = context = sampled = 0
        chunks: list[tuple[int, int]] = []
        size = self.cache.block_tokens
        for request, count in batch:
            before, known = request.computed, request.known
            computed = before + count
            if request.busy or count < 1 or computed > known or request.blocks * size < computed:
                raise self._broken(request, count, batch)
            if before == request.cached and request not in self.policy.running:
                raise self._broken(request, count, batch)
            request.busy = True
            tokens += count
            last = request.last_end
            if last >= 0:
                if last != now:
                    request.waited += now - last
            elif request.scheduled < 0:
                request.scheduled = now
            if computed == known:
                sampled += 1
            if before >= request.prefill:
                decodes += 1
                context += known
            else:
                chunks.append((count, before))
        most = self.policy.max_tokens
        if most is not None and tokens > most:
            raise PolicyError(
                f"the policy {self._name} gave a step {tokens} tokens, more than its budget of {most}: give no more "
                "than max_tokens"
            )
        return _shape((tokens, tuple(chunks), decodes, context, sampled, (), 0))

    def refuse(self, batch: Batch, now: int) -> None:
        """Say which rule a batch breaks.

        Raises:
            PolicyError: it breaks one.
        """
        self._taken(batch, now)
        raise self._no_pairs()

    def _no_pairs(self) -> PolicyError:
        return PolicyError(
            f"the policy {self._name} must return a list of pairs, each a request and a whole number of tokens"
        )

    def _broken(self, request: Request, count: int, batch: Batch) -> PolicyError:
        """Which rule a request of a batch breaks."""
        who = f"the policy {self._name}"
        if sum(other is request for other, _ in batch) > 1:
            return PolicyError(f"{who} put request {request.number} into a step twice: name each request once")
        if request.busy:
            return PolicyError(
                f"{who} scheduled request {request.number}, which is in a step that has not ended: leave busy ones out"
            )
        if request.finished >= 0:
            return PolicyError(f"{who} scheduled request {request.number}, which is done: schedule running ones only")
        if count < 1 or count > request.lacks:
            return PolicyError(
                f"{who} gave request {request.number} {count} tokens where it lacks {request.lacks}: give 1 to as many "
                "as it lacks"
            )
        if request not in self.policy.running:
            return PolicyError(f"{who} scheduled request {request.number}, which does not run: call admit first")
        return PolicyError(
            f"{who} scheduled {count} tokens of request {request.number} without the blocks to hold them: call "
            "cache.hold or cache.start first"
        )

    def end(self, now: int) -> None:
        """The oldest step in flight is over: its tokens are computed, and requests that lack nothing get one more."""
        batch = self.in_flight.pop(0)
        self._spans.pop(0)
        store = self.cache.store if self.cache.reuses else None
        gap = times = 0
        speculation = self.speculation
        drafts = iter(self._drafts if speculation is not None else ())
        for request, count in batch:
            request.busy = False
            request.last_end = now
            computed = request.computed = request.computed + count
            if speculation is not None and (drafted := next(drafts)) and request.first_token >= 0:
                held = speculation.verified(request, drafted)
                computed = request.computed = computed + held
                request.known += held
                self.gaps.add(0, held)
            if store is not None:
                store(request)
            if computed < request.known:
                continue
            known = request.known = computed + 1
            if request.first_token < 0:
                request.first_token = now
            elif now - request.last_token == gap:  # most of a batch had their last token together
                times += 1
            else:
                if times:
                    self.gaps.add(gap, times)
                gap, times = now - request.last_token, 1
            request.last_token = now
            if known == request.end:
                request.finished = now
                if speculation is not None:
                    speculation.forget(request)
                self.outstanding -= 1
                if self.keeps:
                    self._kept[request.row] = request.without_blocks()
                self.policy.finish(request)
                self.on_finished(request)
        if times:
            self.gaps.add(gap, times)
        if self.recorder is not None:
            self.recorder.holds(self.number, now, self.cache)
        if self.tiers is not None:
            self.tiers.write(self, now)

    def stuck(self) -> PolicyError | None:
        """An error if the policy leaves requests waiting for ever: nothing runs, and nobody else will come."""
        if self.in_flight or not self.outstanding:
            return None
        return PolicyError(
            f"the policy {self._name} schedules nobody although {self.outstanding} requests wait, nothing runs and no "
            "more will arrive: it must return a step whenever one of them could run"
        )
