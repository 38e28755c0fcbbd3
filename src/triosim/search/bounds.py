"""What a plan takes at least, without predicting it: two numbers that its prediction cannot be below.

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
(:mod:`triosim.search.least_pass`).  A stage may end within a block: each of the ``2 parts`` cuts (forward and backward)
takes at most ``h`` off, the longest that the collectives are ever behind the computation, and the parts' passes
together take ``W >= P - 2 parts h``.

With ``m`` micro-batches on ``p`` stages of ``w_s`` each (``sum w_s = W``) the iteration takes at least
``max_s m w_s >= m W / p``.  Where stages have one part and a backward is not split, stage ``s`` begins after one
forward and ends before one backward of every stage before it: ``T >= m w_s + sum_{j < s} w_j``.  The division of ``W``
that makes the largest of these smallest makes all equal: ``w_1 = T / m`` and ``w_{s+1} = w_s (1 - 1 / m)``, which sum
to ``T (1 - (1 - 1/m)^p)``.  So ``T >= W / (1 - (1 - 1/m)^p)`` for whatever division.

The hosts of the stages issue operators one after another as well, though ahead of what arrives: with ``H`` seconds for
a micro-batch ``T >= m H / p``.

**Memory.**  The stages together hold all parameters, gradients and optimizer states, each at least a ``dp``-th where
ZeRO divides it; the fullest holds at least the mean.  When a stage ends the forward of a micro-batch, what its backward
will read is there too: ``reserved >= (states + max(gradients, kept)) / p``.  Stage ``s`` has ``n_s = min(m, p - s)``
micro-batches under way before its first backward, in each of its chunks.  With ``k_s`` of what is kept and ``w_s`` of
the states the fullest holds ``max_s (w_s + n_s k_s)``, and the mean of these, weighted by ``1 / n_s``, is at least
``(kept + states / n_0) / sum_s 1 / n_s`` for whatever division.

**With the stages.**  Both are much sharper once a pipeline is cut (:mod:`triosim.search.least_stages`), which costs as
much as a shape for each number of stages and chunks, and is done last.

**Without pricing the shape.**  ``tp`` and ``ep`` divide parameters, and with ``cp`` what the forward keeps; no value is
divided by more than their product.  So the undivided step gives a least memory for every shape: its parameters divided
by ``tp ep``, and what a sample more makes it keep, for the samples of a micro-batch, divided by ``tp ep cp``.
Recomputation only adds operators and collectives to the recurrence, so the shape without it gives a least time for
those with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.tiling import NotRepeating
from triosim.fidelity import Fidelity
from triosim.hardware.system import System
from triosim.plan import Plan
from triosim.prediction.prepare import arrange
from triosim.search.grid import asked_of
from triosim.search.least_pass import LeastPass, shape_of
from triosim.search.least_stages import LeastStages, stages_of
from triosim.search.space import Candidate, schedule_of
from triosim.trace.repeated import repeated
from triosim.trace.tables import Trace

MANY = 2**20
"""Micro-batches of the shape that is priced: what is done once an iteration counts for nothing."""
UNSPLIT = ("1f1b", "gpipe", "interleaved-1f1b")
"""Schedules known to run a backward in one piece, and one model's copy through the stages in their order."""
DEEP = ("1f1b", "gpipe", "interleaved-1f1b", "looped-bfs", "zb-h1", "zb-h2")
"""Schedules known to have ``min(m, p - s)`` micro-batches or more under way on stage ``s``, in each of its chunks."""
SHAPE = ("tp", "cp", "ep", "recompute", "sequence-parallel")
"""Fields of which, with the samples of a micro-batch, a shape depends."""
UNDIVIDED = {"tp": 1, "cp": 1, "ep": 1, "sequence-parallel": False}
"""A shape that one rank runs alone."""


@dataclass(frozen=True)
class Bound:
    """What a plan takes at least: seconds of an iteration, bytes that its fullest device reserves."""

    seconds: float
    bytes: int


class Bounds:
    """Bounds of plans for one workload on one machine.

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
        self._shapes: dict[tuple[Any, ...], LeastPass | str] = {}
        self._stages: dict[tuple[Any, ...], LeastStages | str] = {}
        self.repeats = None if base.parallelism else repeated(workload)

    def of(self, candidate: Candidate) -> Bound | str:
        """What a plan takes at least, or the sentence why it cannot be formed."""
        asked = candidate.asked
        shape = self.shape(asked)
        if isinstance(shape, str):
            return shape
        return Bound(self._seconds(shape, candidate), self._bytes(shape, asked))

    def at_once(self, candidate: Candidate) -> Bound:
        """What a plan takes at least, as far as that is said without its shape: its memory alone."""
        asked = candidate.asked
        one, two = (self._of({**asked, **UNDIVIDED}, size) for size in (1, 2))
        if isinstance(one, str) or isinstance(two, str):
            return Bound(0.0, 0)
        ranks = int(asked["tp"]) * int(asked["ep"])
        kept = max(two.kept - one.kept, 0) * self._size(asked) // (ranks * int(asked["cp"]))
        least = replace(
            one, weights=one.weights // ranks, gradients=one.gradients // ranks, states=one.states // ranks, kept=kept
        )
        return Bound(0.0, self._bytes(least, asked))

    def without_recomputation(self, candidate: Candidate) -> Bound:
        """What a plan takes at least, told from the shape that runs nothing again: its seconds, and no memory."""
        shape = self.shape({**candidate.asked, "recompute": "none"})
        return Bound(0.0 if isinstance(shape, str) else self._seconds(shape, candidate), 0)

    def of_stages(self, candidate: Candidate) -> Bound | str:
        """What a plan takes at least, told from its stages as they are cut; nothing new where they are not in turn.

        Plans that differ in replicas, in what these divide and in micro-batches have the same stages.
        """
        asked, pp = candidate.asked, int(candidate.asked["pp"])
        shape = self.shape(asked)
        if isinstance(shape, str):
            return shape
        if pp == 1:
            return Bound(0.0, 0)
        schedule = schedule_of(asked)
        if schedule.times_matter or not schedule.looped(pp):
            return Bound(0.0, 0)
        key = (*self._key(asked, self._size(asked)), pp, candidate.parts, schedule.splits_backward)
        if key not in self._stages:
            self._stages[key] = self._cut(asked, shape)
        stages = self._stages[key]
        if isinstance(stages, str):
            return stages
        m, zero = int(asked["micro_batches"]), int(asked["zero"])
        elsewhere = set(self._base.places) | set(self._base.offload)
        size = stages.bytes(schedule, m, int(asked["dp"]), zero, not elsewhere)
        if "activations" in self._base.offload:
            size = 0
        return Bound(stages.seconds(m, asked.get("schedule", "1f1b") in UNSPLIT), size)

    def _cut(self, asked: Mapping[str, Any], shape: LeastPass) -> LeastStages | str:
        try:
            plan, fidelity = asked_of(self._base, self.fidelity, {**asked, "zero": 0}, self.system.devices)
            return stages_of(arrange(self.workload, self.system, plan, fidelity), shape.alone_s)
        except InputError as error:
            return str(error)

    def shape(self, asked: Mapping[str, Any]) -> LeastPass | str:
        """The shape of a plan, or why there is none."""
        return self._of(asked, self._size(asked))

    def _size(self, asked: Mapping[str, Any]) -> int:
        """Samples of a micro-batch."""
        replicas = asked["dp"] // asked["cp"]
        return int(self._base.global_batch_size or 1) // replicas // int(asked["micro_batches"])

    def _of(self, asked: Mapping[str, Any], size: int) -> LeastPass | str:
        key = self._key(asked, size)
        if key not in self._shapes:
            self._shapes[key] = self._priced(asked, size)
        return self._shapes[key]

    @staticmethod
    def _key(asked: Mapping[str, Any], size: int) -> tuple[Any, ...]:
        return (*(asked[name] for name in SHAPE), size)

    # --- one shape ----------------------------------------------------------------------------------------------------

    def _priced(self, asked: Mapping[str, Any], size: int) -> LeastPass | str:
        axis = int(np.lcm(asked["cp"], asked["ep"]))
        replicas = axis // asked["cp"]
        fields = {name: asked[name] for name in SHAPE}
        whole = {"dp": axis, "pp": 1, "zero": 0, "micro_batches": MANY, "idle_ok": True,
                 "global_batch_size": size * MANY * replicas}  # fmt: skip
        try:
            plan, fidelity = asked_of(self._base, self.fidelity, {**fields, **whole}, self.system.devices)
            if self.repeats is not None:
                try:
                    made = arrange(self.repeats.short, self.system, plan, fidelity)
                    return shape_of(made, self.repeats)
                except NotRepeating:
                    pass
            return shape_of(arrange(self.workload, self.system, plan, fidelity))
        except InputError as error:
            return str(error)

    # --- what it makes of a plan --------------------------------------------------------------------------------------

    def _seconds(self, shape: LeastPass, candidate: Candidate) -> float:
        asked, parts = candidate.asked, candidate.parts
        m, p = int(asked["micro_batches"]), int(asked["pp"])
        unsplit = p == 1 or asked.get("schedule", "1f1b") in UNSPLIT
        whole = shape.pass_s if unsplit else shape.forward_s + shape.backward_alone_s
        alone = shape.forward_alone_s + shape.backward_alone_s
        whole = max(whole - 2 * parts * shape.hidden_s, alone)
        steady = m * max(whole, shape.host_s) / p
        return steady if parts > p or not unsplit else max(steady, whole / (1 - (1 - 1 / m) ** p))

    def _bytes(self, shape: LeastPass, asked: Mapping[str, Any]) -> int:
        dp, zero = int(asked["dp"]), int(asked["zero"])
        weights, grads, states = (
            part / (dp if zero >= level else 1)
            for part, level in ((shape.weights, 2), (shape.gradients, 2), (shape.states, 1))
        )
        kept = 0 if self._base.offload else shape.kept
        elsewhere = set(self._base.places) | set(self._base.offload)
        fixed = 0.0 if elsewhere else weights + states
        p, deepest = int(asked["pp"]), min(int(asked["pp"]), int(asked["micro_batches"]))
        mean = (fixed + max(0.0 if elsewhere else grads, kept)) / p
        if asked.get("schedule", "1f1b") not in DEEP:
            return int(mean)
        return int(max(mean, (kept + fixed / deepest) / _harmonic(p, deepest)))


def _harmonic(stages: int, micro_batches: int) -> float:
    """Sum over stages of one over the micro-batches that are under way on each (see the module)."""
    return sum(1 / min(micro_batches, stages - stage) for stage in range(stages))
