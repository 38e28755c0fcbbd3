"""What a plan takes at least, without predicting it: two numbers that its prediction cannot be below.

All plans that divide one micro-batch alike (``tp``, ``cp``, ``ep``, its samples, recomputation, sequence parallelism)
share the operators of one rank: a *shape*.  It is divided and priced once, on one stage.

**Time.**  A rank's compute stream runs operators in order, and an operator that needs what a collective brings waits
for it.  With ``t`` the end of the stream and ``d_n`` that of collective ``n`` on the stream of its kind, reading the
operators in order gives ``t = max(t, d_n of all that are needed) + seconds`` and ``d_n = max(d of the last, t at its
issue) + alone_n``, with ``alone_n`` what the collective takes where nothing else moves.  Launches, slowed computation,
sends, contention and reductions of gradients only add to such a recurrence (it is made of sums and maxima), so its end
``P`` is what one micro-batch takes at least on one stage.  Cut into parts, what is under way at a cut may be hidden
behind other work: each of the ``2 parts`` cuts (forward and backward) takes at most ``h`` off, the longest that the
collectives are ever behind the computation, and the parts' passes together take ``W >= P - 2 parts h``.

With ``m`` micro-batches on ``p`` stages of ``w_s`` each (``sum w_s = W``) the iteration takes at least
``max_s m w_s >= m W / p``.  Where stages have one part and a backward is not split, stage ``s`` begins after one
forward and ends before one backward of every stage before it: ``T >= m w_s + sum_{j < s} w_j``.  The division of ``W``
that makes the largest of these smallest makes all equal: ``w_1 = T / m`` and ``w_{s+1} = w_s (1 - 1 / m)``, which sum
to ``T (1 - (1 - 1/m)^p)``.  So ``T >= W / (1 - (1 - 1/m)^p)`` for whatever division.

The hosts of the stages issue operators one after another as well, though ahead of what arrives: with ``H`` seconds for
a micro-batch ``T >= m H / p``.

**Memory.**  The stages together hold all parameters, gradients and optimizer states, each at least a ``dp``-th where
ZeRO divides it; the fullest holds at least the mean.  When a stage ends the forward of a micro-batch, what its backward
will read is there too: ``reserved >= (states + max(gradients, kept)) / p``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from triosim.composition.host import issue_shares
from triosim.core.errors import InputError
from triosim.core.units import PICOSECONDS_PER_SECOND
from triosim.fidelity import Fidelity
from triosim.hardware.system import System
from triosim.memory.blocks import StepStorages
from triosim.partition.gradients import gradients
from triosim.partition.mesh import Mesh
from triosim.plan import Plan
from triosim.prediction.prepare import Arranged, arrange
from triosim.schedule._stage import JobFacts
from triosim.schedule.costs import ScheduleCosts
from triosim.search.evaluate import means_of
from triosim.search.grid import asked_of
from triosim.search.space import Candidate
from triosim.search.undisturbed import Uneven, undisturbed
from triosim.trace.tables import Category, Phase, Trace

MANY = 2**20
"""Micro-batches of the shape that is priced: what is done once an iteration counts for nothing."""
UNSPLIT = ("1f1b", "gpipe", "interleaved-1f1b")
"""Schedules known to run a backward in one piece, and one model's copy through the stages in their order."""
SHAPE = ("tp", "cp", "ep", "recompute", "sequence-parallel")
"""Fields of which, with the samples of a micro-batch, a shape depends."""


@dataclass(frozen=True)
class Bound:
    """What a plan takes at least: seconds of an iteration, bytes that its fullest device reserves."""

    seconds: float
    bytes: int


@dataclass(frozen=True)
class LeastPass:
    """One micro-batch on one rank, all stages together.

    Attributes:
        forward_alone_s, backward_alone_s: seconds of the operators of either, recomputation with the backward.
        forward_s: seconds of its forward, collectives that are waited for included.
        pass_s: seconds of forward and backward, likewise.
        host_s: seconds in which the host issues forward and backward.
        hidden_s: longest that collectives are behind the computation.
        weights, gradients, states, kept: bytes of parameters, gradients, optimizer states, and of what the forward
            keeps for the backward.
    """

    forward_alone_s: float
    backward_alone_s: float
    forward_s: float
    pass_s: float
    host_s: float
    hidden_s: float
    weights: int
    gradients: int
    states: int
    kept: int


class Bounds:
    """Bounds of plans for one workload on one machine.

    Args:
        workload: one step on one device.
        system: the machine.
        base: fields that no plan changes.
        fidelity: which models predict them.
    """

    def __init__(self, workload: Trace, system: System, base: Plan, fidelity: Fidelity) -> None:
        self.workload, self.system, self.fidelity = workload, system, fidelity
        self._base = base
        self._shapes: dict[tuple[Any, ...], LeastPass | str] = {}

    def of(self, candidate: Candidate) -> Bound | str:
        """What a plan takes at least, or the sentence why it cannot be formed."""
        asked = candidate.asked
        shape = self.shape(asked)
        if isinstance(shape, str):
            return shape
        return Bound(self._seconds(shape, candidate), self._bytes(shape, asked))

    def shape(self, asked: Mapping[str, Any]) -> LeastPass | str:
        """The shape of a plan, or why there is none."""
        replicas = asked["dp"] // asked["cp"]
        size = int(self._base.global_batch_size or 1) // replicas // asked["micro_batches"]
        key = (*(asked[name] for name in SHAPE), size)
        if key not in self._shapes:
            self._shapes[key] = self._priced(asked, size)
        return self._shapes[key]

    # --- one shape ----------------------------------------------------------------------------------------------------

    def _priced(self, asked: Mapping[str, Any], size: int) -> LeastPass | str:
        axis = int(np.lcm(asked["cp"], asked["ep"]))
        replicas = axis // asked["cp"]
        fields = {name: asked[name] for name in SHAPE}
        whole = {"dp": axis, "pp": 1, "zero": 0, "micro_batches": MANY, "idle_ok": True,
                 "global_batch_size": size * MANY * replicas}  # fmt: skip
        try:
            plan, fidelity = asked_of(self._base, self.fidelity, {**fields, **whole}, self.system.devices)
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
        return int((fixed + max(0.0 if elsewhere else grads, kept)) / int(asked["pp"]))


def shape_of(made: Arranged) -> LeastPass:
    """The shape of a job on one stage."""
    trace = made.step.trace
    storages, phase = StepStorages(trace), trace.operators.phase
    where, first, last = storages.touched(range(len(trace)))
    size, category = storages.size, storages.category
    kept = (phase[first] == Phase.FORWARD) & np.isin(phase[last], (Phase.BACKWARD, Phase.RECOMPUTE))
    kept &= ~(storages.persistent | storages.given | storages.gradient)[where]
    sums = {
        name: int(size[which].sum()) for name, which in (
            ("weights", category == Category.WEIGHT), ("states", category == Category.OPTIMIZER_STATE),
            ("gradients", storages.gradient), ("kept", where[kept]),
        )
    }  # fmt: skip
    forward, whole, hidden = _passes(made)
    seconds = np.where(trace.operators.view, 0.0, made.times.seconds)
    alone = seconds[phase == Phase.FORWARD].sum(), seconds[_is_backward(trace)].sum()
    issues = issue_shares(trace, made.launching)[phase != Phase.OPTIMIZER].sum()
    return LeastPass(float(alone[0]), float(alone[1]), forward, whole, float(issues), hidden, **sums)


def _is_backward(trace: Trace) -> Any:
    return np.isin(trace.operators.phase, (Phase.BACKWARD, Phase.RECOMPUTE))


def _passes(made: Arranged) -> tuple[float, float, float]:
    """Seconds of a forward, of forward and backward, and the longest that collectives are behind (see the module)."""
    trace = made.step.trace
    seconds = np.where(trace.operators.view, 0.0, made.times.seconds).tolist()
    job = JobFacts(
        made.step, ScheduleCosts(made.times.seconds), made.stages, made.schedule, made.plan, made.mesh,
        gradients(trace),
    )  # fmt: skip
    calls = [(what, size, axis) for size, what, axis in job.exchanged]
    alone = _alone(made, calls)
    done = [0.0] * len(calls)
    clock = busy = hidden = 0.0
    forward = None
    rows = np.flatnonzero((trace.operators.phase == Phase.FORWARD) | _is_backward(trace))
    backward = rows[_is_backward(trace)[rows]]
    turn = int(backward[0]) if len(backward) else -1
    for row in rows.tolist():
        if row == turn:
            forward = clock
        for number in job.issued_before.get(row, ()):
            busy = done[number] = max(busy, clock) + alone[number]
        for number in job.needed_before.get(row, ()):
            if number not in job.once:
                clock = max(clock, done[number])
        clock += seconds[row]
        for number in job.issued_after.get(row, ()):
            if number not in job.once:
                busy = done[number] = max(busy, clock) + alone[number]
        hidden = max(hidden, busy - clock)
    return clock if forward is None else forward, clock, hidden


def _alone(made: Arranged, calls: list[tuple[int, int, int]]) -> list[float]:
    """Seconds of each collective where nothing else moves; 0 where that differs between ranks."""
    if not calls:
        return []
    how = (made.fidelity.collective_algorithm, made.fidelity.collective_protocol, made.system.ideal)
    mesh = Mesh(made.mesh.axes, derived=made.mesh.derived)
    kinds = tuple(dict.fromkeys(calls))
    try:
        found = undisturbed(made.system, mesh, made.plan.placement, kinds, (), how, means_of)
    except Uneven:
        return [0.0] * len(calls)
    return [found.calls.get(call, 0) / PICOSECONDS_PER_SECOND for call in calls]
