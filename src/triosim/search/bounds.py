"""Lower bounds of a plan: seconds and bytes that its prediction cannot be below.

All plans that divide one micro-batch alike (``tp``, ``cp``, ``ep``, its samples, recomputation, sequence parallelism)
share the operators of one rank: a *shape*.  It is divided and priced once, on one stage.

**Time.**  A rank's compute stream runs operators in order, and an operator that needs what a collective brings waits
for it.  With ``t`` the end of the stream and ``d_n`` that of collective ``n`` on the stream of its kind, reading the
operators in order gives ``t = max(t, d_n of all that are needed) + seconds`` and ``d_n = max(d of the last, t at its
issue) + alone_n``, with ``alone_n`` what the collective takes where nothing else moves.  Launches, slowed computation,
sends, contention and reductions of gradients only add to such a recurrence (it is made of sums and maxima), so its end
``P`` is what one micro-batch takes at least on one stage.  Cut into pieces that each begin with nothing under way, the
pieces together take no longer than the whole: what is under way at a cut is left out, and nothing else changes.  So
``P`` is added up over the blocks of the model, of which those that are alike are read once
(:mod:`triosim.search.pass_bound`).  A stage may end within a block: each of the ``2 parts`` cuts (forward and backward)
takes at most ``h`` off, the longest that the collectives are ever behind the computation, and the parts' passes
together take ``W >= P - 2 parts h``.

With ``m`` micro-batches on ``p`` stages of ``w_s`` each (``sum w_s = W``) the iteration takes at least
``max_s m w_s >= m W / p``.  Where stages have one part and a backward is not split, stage ``s`` begins after one
forward and ends before one backward of every stage before it: ``T >= m w_s + sum_{j < s} w_j``.  The division of ``W``
that makes the largest of these smallest makes all equal: ``w_1 = T / m`` and ``w_{s+1} = w_s (1 - 1 / m)``, which sum
to ``T (1 - (1 - 1/m)^p)``.  So ``T >= W / (1 - (1 - 1/m)^p)`` for whatever division.

What the first micro-batch leaves out (it adds its gradients to nothing) counts ``m - 1`` times.  After its last
operator a stage gathers what replicas have updated in parts (:mod:`triosim.search.exchange_bound`), ``G`` seconds on
all stages together, while it computes nothing: ``T >= (m W + G) / p``.

The hosts of the stages issue operators one after another as well, though ahead of what arrives: with ``H`` seconds for
a micro-batch ``T >= m H / p``, but for what adds gradients in the first, or in all where none are added.

**Memory.**  The stages together hold all parameters, gradients and optimizer states, each at least a ``dp``-th where
ZeRO divides it; the fullest holds at least the mean.  When a stage ends the forward of a micro-batch, what its backward
will read is there too, and on one of them what the loss makes beside that before a block's backward begins:
``reserved >= (states + max(gradients, kept + loss)) / p``.  On one stage the second micro-batch finds the gradients of
the first there: ``states + gradients + kept + loss``.  Stage ``s`` has ``n_s = min(m, p - s)`` micro-batches under way
before its first backward, in each of its chunks.  With ``k_s`` of what is kept and ``w_s`` of the states the fullest
holds ``max_s (w_s + n_s k_s)``, and the mean of these, weighted by ``1 / n_s``, is at least
``(kept + states / n_0) / sum_s 1 / n_s`` for whatever division.

**With the stages.**  Both are much sharper once a pipeline is cut (:mod:`triosim.search.stages_bound`).  The cuts of a
plan are found as for its prediction, from the same times, but of a model of few blocks
(:mod:`triosim.search.pipeline_blocks`).  They are not known before where devices differ, or lower their clocks by what
a whole iteration draws; then only the shape tells.

**Without pricing the shape.**  No product is faster than the models of products say of the best tile
(:func:`triosim.kernels.sustained.most`), and no rank has less of the products than their part of ``tp cp``: ranks that
divide experts get the rows of one another.  Elementwise operators and attention take at least what they move and
multiply, where nothing is read twice and no unit is idle (:func:`triosim.kernels.physical.kinds.least`): convex in the
samples of a micro-batch, so the line through one and two lies below it for all others.  What collectives carry grows
with the samples of a micro-batch, by as much for each as from one to two; that divided by what their links carry at
most (:mod:`triosim.search.exchange_bound`) they take at least, on one stream for each stage.  Where no operator runs
between the one that gives a collective its bytes and the one that reads what it brings, it hides behind nothing and
adds to the products.  A cut between the two may put another pass there: each takes at most the longest of such
collectives off.  What is run again may come between as well, and of a backward that is split the gradients of weights:
there those of the forward count only.

``tp`` divides parameters, and with ``cp`` what the forward keeps; no value is divided by more than their product.  So
the step of one rank with its part of the experts gives a least memory for every shape: its parameters divided by
``tp``, and what a sample more makes it keep, for the samples of a micro-batch, divided by ``tp cp``.
Recomputation only adds operators and collectives to the recurrence, so the shape without it gives a least time for
those with it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPES
from triosim.core.errors import InputError
from triosim.core.tiling import NotRepeating
from triosim.fidelity import Fidelity
from triosim.hardware.accelerator import Accelerator
from triosim.hardware.system import System
from triosim.kernels.physical.attention import STEP
from triosim.kernels.sustained import most
from triosim.partition.resolve import without_replica_rules
from triosim.plan import Plan
from triosim.prediction.priced_job import price_job, seconds_per_byte
from triosim.prediction.staged_job import StagedJob, stage_job
from triosim.search.exchange_bound import CollectivesBound, ExchangeBound, exchange_bound
from triosim.search.grid import with_fields
from triosim.search.pass_bound import PassBound, isolated_transfer_s, pass_bound
from triosim.search.pipeline_blocks import PipelineBlocks
from triosim.search.recurrence import PassRecurrence
from triosim.search.space import Candidate, schedule_of
from triosim.search.stages_bound import StagesBound, stages_bound
from triosim.trace.repeated import RepeatedTrace, repeated
from triosim.trace.tables import Trace

GATHERS_AGAIN = 3
"""The first stage of ZeRO whose ranks do not hold all parameters when a forward ends."""
MANY = 2**20
"""Micro-batches of the shape that is priced: what is done once an iteration counts for nothing."""
UNSPLIT = ("1f1b", "gpipe", "interleaved-1f1b")
"""Schedules known to run a backward in one piece, and one model's copy through the stages in their order."""
DEEP = ("1f1b", "gpipe", "interleaved-1f1b", "looped-bfs", "zb-h1", "zb-h2")
"""Schedules known to have ``min(m, p - s)`` micro-batches or more under way on stage ``s``, in each of its chunks."""
ROOM = 100_000
"""Operators of the shapes that are kept for their pipelines; what is forgotten is divided and priced again."""
SHAPE = ("tp", "cp", "ep", "recompute", "sequence-parallel")
"""Fields of which, with the samples of a micro-batch, a shape depends."""
WIDE = frozenset(("float16", "bfloat16", "tfloat32", "float32", "float64"))
"""Types in which products of a type of a step may be run."""
BY_FLOP = ("auto", "physical", "roofline")
"""Operator models by which no product is faster than the device's peak."""
UNDIVIDED = {"tp": 1, "cp": 1, "sequence-parallel": False}
"""A shape whose ranks divide nothing but experts."""


@dataclass(frozen=True)
class PlanBound:
    """Least seconds of an iteration and least bytes that the fullest device reserves."""

    seconds: float
    bytes: int


class _Shape:
    """A shape that was divided and priced.

    Args:
        made: the job, on one stage.
        of: what its workload is a short one of, None where it is whole.
    """

    def __init__(self, made: StagedJob, of: RepeatedTrace | None) -> None:
        self.made, self._of, self._recurrence = made, of, PassRecurrence(made, isolated_transfer_s(made))
        self.least = pass_bound(made, self._recurrence, of)

    @cached_property
    def pipelines(self) -> PipelineBlocks:
        """What its pipelines are cut from.

        Raises:
            NotRepeating: blocks are not alike.
        """
        return PipelineBlocks(self.made, self._recurrence, self._of)


class PlanBounds:
    """Lower bounds of the times and memory of plans for one workload on one machine.

    Args:
        workload: one step on one device.
        system: the machine.
        base: fields that no plan changes.
        fidelity: which models predict them.

    Attributes:
        repeats: the workload as a short one of few blocks, None where its blocks do not repeat.
    """

    def __init__(self, workload: Trace, system: System, base: Plan, fidelity: Fidelity) -> None:
        self.workload, self.system, self.fidelity = workload, system, fidelity
        self._base = base
        self._of_replica = without_replica_rules(base)
        self._shapes: dict[tuple[Any, ...], PassBound | str] = {}
        self._experts: dict[tuple[Any, ...], set[int]] = {}
        self._recent: OrderedDict[tuple[Any, ...], _Shape] = OrderedDict()
        self._stages: dict[tuple[Any, ...], StagesBound | str] = {}
        self._per_byte: dict[tuple[int, ...], NDArray[np.float64]] = {}
        self._exchanges: dict[tuple[int, ...], ExchangeBound] = {}
        self._volumes: dict[tuple[Any, ...], tuple[CollectivesBound, float, float]] = {}
        self._peak = _peak(workload, system, base, fidelity)
        held_back = any(d.power_cap_w is not None or d.clock_limit_hz is not None for d in system.models)
        self._cuts_known = len(system.models) == 1 and not held_back and isinstance(base.cuts, str)
        self.repeats = None if self._of_replica.parallelism else repeated(workload)

    def expect(self, candidate: Candidate) -> None:
        """Be ready to be asked for a plan: shapes that differ in how they divide experts are priced together, for up
        to these the step is divided once."""
        asked = candidate.asked
        for size in {1, 2, self._size(asked)}:
            self._experts.setdefault(_but_experts(asked, size), set()).add(int(asked["ep"]))

    def of(self, candidate: Candidate) -> PlanBound | str:
        """What a plan takes at least, or the sentence why it cannot be formed."""
        asked = candidate.asked
        shape = self.shape(asked)
        if isinstance(shape, str):
            return shape
        return PlanBound(self._seconds(shape, candidate), self._bytes(shape, asked))

    def at_once(self, candidate: Candidate) -> PlanBound:
        """What a plan takes at least, as far as that is said without its shape: its memory and its operators."""
        asked = candidate.asked
        one, two = (self._of({**asked, **UNDIVIDED}, size) for size in (1, 2))
        if isinstance(one, str) or isinstance(two, str):
            return PlanBound(0.0, 0)
        ranks, size = int(asked["tp"]), self._size(asked)
        kept = max(two.kept - one.kept, 0) * size // (ranks * int(asked["cp"]))
        least = replace(
            one, weights=one.weights // ranks, gradients=one.gradients // ranks, states=one.states // ranks, kept=kept,
            loss=0,
        )  # fmt: skip
        return PlanBound(self._at_least(self._operators(asked), candidate), self._bytes(least, asked))

    def by_volume(self, candidate: Candidate) -> PlanBound:
        """What the collectives of a plan take at least, told from those of one sample and of two, and its operators."""
        asked = candidate.asked
        m, pp, size = int(asked["micro_batches"]), int(asked["pp"]), self._size(asked)
        plain = {**asked, "recompute": "none"}
        calls, first, more = self._volume(plain)
        alone = m * size * calls.all_s / pp
        schedule = asked.get("schedule", "1f1b")
        if schedule_of(asked).combines:  # beside another pass
            return PlanBound(alone, 0)
        split = pp > 1 and schedule not in UNSPLIT
        waits = calls.forward_s + (0.0 if split or asked["recompute"] != "none" else calls.backward_s)
        cuts = 2 * (candidate.parts - 1)
        again = max(self._operators(asked) - self._operators(plain), 0.0)
        operators = max(self._operators(asked), first + (size - 1) * more + again)
        whole = operators + size * max(waits - cuts * calls.longest_s, 0.0)
        return PlanBound(max(alone, self._at_least(whole, candidate)), 0)

    def _volume(self, asked: Mapping[str, Any]) -> tuple[CollectivesBound, float, float]:
        """What the collectives of a shape take at least for each sample, of the longest no less than it takes; and what
        its operators take at least of one sample, and of each that is added to it."""
        key = tuple(asked[name] for name in SHAPE)
        if key not in self._volumes:
            one, two = (self._of(asked, size) for size in (1, 2))
            found, first, more = CollectivesBound(), 0.0, 0.0
            if not isinstance(one, str) and not isinstance(two, str):
                grows = {
                    name: max(getattr(two.calls, name) - getattr(one.calls, name), 0.0)
                    for name in ("all_s", "forward_s", "backward_s")
                }
                found = CollectivesBound(**grows, longest_s=one.calls.longest_s)
                first = self._least(one)
                more = max(self._least(two) - first, 0.0)
            self._volumes[key] = found, first, more
        return self._volumes[key]

    def _least(self, shape: PassBound) -> float:
        """Seconds that the operators of a shape take at least, convex in its samples."""
        return shape.flop / self._peak + shape.others_s

    def without_recomputation(self, candidate: Candidate) -> PlanBound:
        """What a plan takes at least, told from the shape that runs nothing again: its seconds, and no memory.

        What is run again may hide collectives, so its operators add to those of that shape only.
        """
        plain = {**candidate.asked, "recompute": "none"}
        shape = self.shape(plain)
        again = self._operators(candidate.asked) - self._operators(plain)
        return PlanBound(0.0 if isinstance(shape, str) else self._seconds(shape, candidate, max(again, 0.0)), 0)

    def _operators(self, asked: Mapping[str, Any]) -> float:
        """Seconds that the operators of a micro-batch take on one rank at least, told from those of all ranks."""
        one, two = (self._of({**asked, **UNDIVIDED}, size) for size in (1, 2))
        if isinstance(one, str) or isinstance(two, str):
            return 0.0
        ranks, parts = int(asked["tp"]) * int(asked["cp"]), 2 * int(asked["cp"])
        # attention of few queries has other kernels
        few = parts > 2 and (self.workload.meta.sequence_length or 0) <= parts * STEP
        more = (two.flop - one.flop) / self._peak if few else self._least(two) - self._least(one)
        return max(more, 0.0) * self._size(asked) / ranks

    def of_stages(self, candidate: Candidate) -> PlanBound | str:
        """What a plan takes at least, told from its stages as they are cut; nothing new where they are not in turn.

        Plans that differ in replicas, in what these divide and in micro-batches have the same stages.
        """
        asked, pp = candidate.asked, int(candidate.asked["pp"])
        shape = self.shape(asked)
        if isinstance(shape, str):
            return shape
        if pp == 1:
            return PlanBound(0.0, 0)
        schedule = schedule_of(asked)
        if schedule.times_matter or schedule.combines or not schedule.looped(pp):
            return PlanBound(0.0, 0)
        m, zero = int(asked["micro_batches"]), int(asked["zero"])
        if not self._cuts_known:
            return PlanBound(0.0, 0)
        key = (
            *self._key(asked, self._size(asked)),
            pp,
            candidate.parts,
            schedule.splits_backward,
            m == 1,
            _scatters(asked),
        )
        if key not in self._stages:
            self._stages[key] = self._cut(candidate, schedule.splits_backward)
        stages = self._stages[key]
        if isinstance(stages, str):
            return stages
        size = stages.bytes(schedule, m, int(asked["dp"]), zero, not self._elsewhere)
        if any(one.startswith("activations") for one in self._base.offload):
            size = 0
        return PlanBound(stages.seconds(m, asked.get("schedule", "1f1b") in UNSPLIT, self._exchange(asked)), size)

    def _cut(self, candidate: Candidate, splits_backward: bool) -> StagesBound | str:
        """What the stages of a plan take at least, cut as they are for its prediction."""
        asked = candidate.asked
        try:
            m = int(asked["micro_batches"])
            found = self._pipelines(asked, MANY if m > 1 else 1)
            seconds = found.made.mean_seconds(m)
            sends = self._seconds_per_byte(asked)
            cuts = found.cuts(seconds, candidate.parts, float(sends[0]), str(self._base.cuts))
            parts = found.parts(cuts, seconds, splits_backward)
            parts_of_a_send = int(asked["tp"]) if self._base.stack and self._base.stack.scattered_transfers else 1
            return stages_bound(
                parts, int(asked["pp"]), found.held.storages.size, found.lone_states, sends / parts_of_a_send
            )
        except InputError as error:
            return str(error)

    def _pipelines(self, asked: Mapping[str, Any], micro_batches: int) -> PipelineBlocks:
        size, scatters = self._size(asked), _scatters(asked)
        try:
            return self._arranged(asked, size, micro_batches, scatters).pipelines
        except NotRepeating:
            return self._arranged(asked, size, micro_batches, scatters, short=False).pipelines

    def _exchange(self, asked: Mapping[str, Any]) -> ExchangeBound:
        """What replicas exchange at the end of an iteration, as far as it is known."""
        key = tuple(int(asked[name]) for name in ("tp", "cp", "ep", "pp", "zero"))
        if key not in self._exchanges:
            plan, fidelity = with_fields(self._base, self.fidelity, asked)
            self._exchanges[key] = exchange_bound(self.workload, self.system, plan, fidelity)
        return self._exchanges[key]

    def _seconds_per_byte(self, asked: Mapping[str, Any]) -> NDArray[np.float64]:
        """What a byte costs from each stage of a plan to the next, shape ``(stages - 1,)``."""
        key = tuple(int(asked[name]) for name in ("tp", "cp", "ep", "pp"))
        if key not in self._per_byte:
            plan, _ = with_fields(self._base, self.fidelity, asked)
            self._per_byte[key] = seconds_per_byte(self.workload, self.system, plan)
        return self._per_byte[key]

    def shape(self, asked: Mapping[str, Any]) -> PassBound | str:
        """The shape of a plan, or why there is none."""
        return self._of(asked, self._size(asked))

    def _size(self, asked: Mapping[str, Any]) -> int:
        """Samples of a micro-batch."""
        replicas = asked["dp"] // asked["cp"]
        return int(self._base.global_batch_size or 1) // replicas // int(asked["micro_batches"])

    def _of(self, asked: Mapping[str, Any], size: int) -> PassBound | str:
        key = self._key(asked, size)
        if key not in self._shapes:
            self._shapes[key] = self._priced(asked, size)
            others = self._experts.get(_but_experts(asked, size), ()) if asked["recompute"] == "none" else ()
            for ep in sorted(others):
                other = {**asked, "ep": ep}
                if self._key(other, size) not in self._shapes:
                    self._shapes[self._key(other, size)] = self._priced(other, size)
        return self._shapes[key]

    def _key(self, asked: Mapping[str, Any], size: int) -> tuple[Any, ...]:
        scatters = _scatters(asked) and self._base.stack is not None
        return (*(asked[name] for name in SHAPE), size, scatters, scatters and _waits(asked))

    def _adds_nothing(self, asked: Mapping[str, Any]) -> bool:
        """Whether a plan scatters gradients in each micro-batch, and its shape adds them up."""
        return _scatters(asked) and not _waits(asked) and self._base.stack is None

    # --- one shape ----------------------------------------------------------------------------------------------------

    def _priced(self, asked: Mapping[str, Any], size: int) -> PassBound | str:
        try:
            return self._arranged(asked, size).least
        except InputError as error:
            return str(error)

    def _arranged(
        self, asked: Mapping[str, Any], size: int, micro_batches: int = MANY, scatters: bool = False, short: bool = True
    ) -> _Shape:
        """A shape on one stage, kept for what is asked of it next.

        Args:
            asked: fields of a plan.
            size: samples of a micro-batch.
            micro_batches: of a replica; gradients of a single one are added to nothing.
            scatters: whether gradients are scattered, in each of them or in the last.
            short: whether it is of few blocks, where they repeat.

        Raises:
            InputError: there is none.
        """
        scatters |= self._key(asked, size)[-2]
        waits = scatters and _waits(asked)
        key = (*self._key(asked, size), micro_batches, scatters, waits, short)
        if key in self._recent:
            self._recent.move_to_end(key)
            return self._recent[key]
        axis = int(np.lcm(asked["cp"], asked["ep"]))
        axis = 2 if scatters and axis == 1 else axis
        replicas = axis // asked["cp"]
        fields = {name: asked[name] for name in SHAPE}
        whole = {"dp": axis, "pp": 1, "zero": asked["zero"] if scatters else 0, "idle_ok": True,
                 "micro_batches": micro_batches, "global_batch_size": size * micro_batches * replicas}  # fmt: skip
        plan, fidelity = with_fields(self._of_replica, self.fidelity, {**fields, **whole})
        priced = partial(price_job, system=self.system, plan=plan, fidelity=fidelity, waits=waits)
        found = None
        if self.repeats is not None and short:
            with suppress(NotRepeating):
                found = _Shape(stage_job(priced(self.repeats.short)), self.repeats)
        self._recent[key] = found or _Shape(stage_job(priced(self.workload)), None)
        while len(self._recent) > 1 and sum(len(one.made.step.trace) for one in self._recent.values()) > 4 * ROOM:
            self._recent.popitem(last=False)
        return self._recent[key]

    # --- what it makes of a plan --------------------------------------------------------------------------------------

    def _seconds(self, shape: PassBound, candidate: Candidate, again: float = 0.0) -> float:
        """Seconds of an iteration; ``again`` those of what a micro-batch runs besides."""
        asked, parts = candidate.asked, candidate.parts
        m, p = int(asked["micro_batches"]), int(asked["pp"])
        unsplit = p == 1 or asked.get("schedule", "1f1b") in UNSPLIT
        whole = shape.pass_s if unsplit else shape.forward_s + shape.backward_alone_s
        alone = shape.forward_alone_s + shape.backward_alone_s
        adds = 1 if self._adds_nothing(asked) else 1 / m
        hides = schedule_of(asked).combines  # what collectives take, beside another pass
        alone += again
        whole = (alone if hides else max(whole - 2 * parts * shape.hidden_s, alone)) - shape.later_s * adds
        host = shape.host_s - shape.host_later_s * adds
        exchange = self._exchange(asked)
        gathered, reduced = (np.dot(each, shape.updated) for each in (exchange.gathered, exchange.reduced))
        if exchange.each:
            again = float(np.dot(exchange.gathered, shape.repeated)) if exchange.again else 0.0
            return m * max(whole, host, float(gathered + reduced) + again)
        steady = (m * max(whole, host) + float(gathered)) / p
        return steady if parts > p or not unsplit else max(steady, whole / (1 - (1 - 1 / m) ** p))

    @staticmethod
    def _at_least(whole: float, candidate: Candidate) -> float:
        """Seconds of an iteration whose stages together compute a micro-batch for so many (see the module)."""
        asked = candidate.asked
        m, p = int(asked["micro_batches"]), int(asked["pp"])
        unsplit = p == 1 or asked.get("schedule", "1f1b") in UNSPLIT
        return (
            m * whole / p if candidate.parts > p or not unsplit else max(m * whole / p, whole / (1 - (1 - 1 / m) ** p))
        )

    def held(self, asked: Mapping[str, Any]) -> float:
        """Bytes of parameters and optimizer states that a rank of each stage holds at least, added up over stages."""
        shape = self.shape(asked)
        return 0.0 if isinstance(shape, str) else self._held(shape, asked)

    def _held(self, shape: PassBound, asked: Mapping[str, Any]) -> float:
        if self._elsewhere:
            return 0.0
        dp, zero = int(asked["dp"]), int(asked["zero"])
        return shape.weights / (dp if zero >= GATHERS_AGAIN else 1) + shape.states / (dp if zero >= 1 else 1)

    @property
    def _elsewhere(self) -> bool:
        """Whether something of what is held may lie elsewhere than on its device."""
        return bool(self._base.places or self._base.offload)

    def _bytes(self, shape: PassBound, asked: Mapping[str, Any]) -> int:
        kept, loss = (0, 0) if self._base.offload else (shape.kept, shape.loss)
        fixed = self._held(shape, asked)
        p, deepest = int(asked["pp"]), min(int(asked["pp"]), int(asked["micro_batches"]))
        grads = 0.0 if self._elsewhere else shape.gradients / (int(asked["dp"]) if int(asked["zero"]) >= 2 else 1)
        added = p == 1 and int(asked["micro_batches"]) > 1  # to gradients that the first micro-batch has left
        mean = (fixed + (grads + kept + loss if added else max(grads, kept + loss))) / p
        if asked.get("schedule", "1f1b") not in DEEP:
            return int(mean)
        return int(max(mean, (kept + fixed / deepest) / _harmonic(p, deepest)))


def _peak(workload: Trace, system: System, base: Plan, fidelity: Fidelity) -> float:
    """FLOP/s of which no matrix product has more on any device, infinite where they are not priced by their FLOP."""
    by_flop = workload.meta.clock == "none" and fidelity.operator_times in BY_FLOP and fidelity.composition is None
    types = {DTYPES[code] for code in np.unique(workload.values.dtype).tolist()} | WIDE
    rate = Accelerator.peak if fidelity.operator_times == "roofline" else most
    peaks = [rate(device, name) for device in system.models for name in device.peak_flops if name in types]
    return max(peaks) if by_flop and peaks and base.quantize == "none" else float("inf")


def _but_experts(asked: Mapping[str, Any], size: int) -> tuple[Any, ...]:
    """What a shape that runs nothing again depends on, but for how experts are divided."""
    return (*(asked[name] for name in SHAPE if name not in ("ep", "recompute")), size)


def _scatters(asked: Mapping[str, Any]) -> bool:
    """Whether replicas divide gradients among them."""
    return int(asked["zero"]) >= 2 and int(asked["dp"]) > 1


def _waits(asked: Mapping[str, Any]) -> bool:
    """Whether gradients that are divided are whole until the last micro-batch."""
    return int(asked["pp"]) > 1


def _harmonic(stages: int, micro_batches: int) -> float:
    """Sum over stages of one over the micro-batches that are under way on each (see the module)."""
    return sum(1 / min(micro_batches, stages - stage) for stage in range(stages))
