"""Lower bound of the stages of a plan, once they are known: their passes one by one, and what each holds.

The parts between the cuts of a pipeline are told by :mod:`triosim.search.pipeline_blocks`.  The pass of a part takes at
least the recurrence of :mod:`triosim.search.recurrence` over its own operators, beginning with nothing under way.

**Time.**  Stage ``s`` has nothing to compute of what another stage sends before the first forward of the first chunk
has come through the stages before it, each of which computes at least what lies between the operator that first reads
what arrives and the one that makes what goes on: ``fill_s``.  Where a backward is not split, what the stage does last
is a backward of its first chunk, whose gradient then goes back through all stages before it: ``drain_s``.  In between
it runs ``m`` passes of each of its parts: ``T >= fill_s + m w_s + drain_s``, less what of the first forward may run
before anything arrives and of the last backward after its gradient has left.

**Memory.**  When a stage has most micro-batches under way it holds its parameters, its optimizer states, and what each
of those forwards has kept; and its gradients, once one backward of each part has run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.schedule.actions import Pass, Schedule
from triosim.search.exchange_bound import ExchangeBound
from triosim.search.pipeline_blocks import PartBound
from triosim.search.stage_order import StageOrder, stage_order


@dataclass(frozen=True)
class StagesBound:
    """Least seconds and bytes of the stages of a plan; a part is a chunk of a stage, and parts follow one another.

    Attributes:
        forward_s, backward_s: passes of each part, seconds, shape ``(chunks, stages)``.
        host_s: in which the host of each stage issues them, shape ``(stages,)``.
        fill_s, drain_s: before a stage begins and after it has ended, shape ``(stages,)``.
        early_s, late_s: of a stage's first forward before it needs what arrives, and of its last backward after its
            gradient has left, shape ``(stages,)``.
        loose_s: of a stage's last backward that may be left to do, for its collectives, when its operators have run,
            shape ``(stages,)``.
        kept: bytes that the forward of each part keeps for its backward, shape ``(chunks, stages)``.
        freed, passed_on: bytes of them that the first half of a backward frees, and that it makes for the second,
            likewise; where backwards are split.
        weights, states: bytes of parameters and optimizer states of each stage, undivided, shape ``(stages,)``.
        gradients: bytes of those that each part makes, undivided, shape ``(chunks, stages)``.
        reduced: bytes of gradients that the first chunk of each stage completes, shape ``(2, stages)``: of parameters
            that all replicas have, and of those that only some have.
        gathered: bytes of the parameters that they are of, all chunks together, likewise.
    """

    forward_s: NDArray[np.float64]
    backward_s: NDArray[np.float64]
    host_s: NDArray[np.float64]
    fill_s: NDArray[np.float64]
    drain_s: NDArray[np.float64]
    early_s: NDArray[np.float64]
    late_s: NDArray[np.float64]
    loose_s: NDArray[np.float64]
    kept: NDArray[np.float64]
    freed: NDArray[np.float64]
    passed_on: NDArray[np.float64]
    weights: NDArray[np.float64]
    gradients: NDArray[np.float64]
    states: NDArray[np.float64]
    reduced: NDArray[np.float64]
    gathered: NDArray[np.float64]

    def seconds(self, micro_batches: int, unsplit: bool, exchange: ExchangeBound) -> float:
        """What an iteration takes at least.

        Args:
            micro_batches: of a replica.
            unsplit: whether backwards run in one piece, and those of the first chunk last.
            exchange: what replicas exchange at its end.
        """
        work = micro_batches * (self.forward_s + self.backward_s).sum(axis=0)
        whole = self.fill_s + work - self.early_s
        ended = whole - self.loose_s
        if unsplit:
            ended[0] = max(ended[0], float((ended - self.late_s + self.drain_s).max()))
            reduces = np.array(exchange.reduced) @ self.reduced
            ended = np.maximum(ended, ended - np.maximum(self.backward_s[0], self.drain_s[1]) + reduces)
        ended += np.array(exchange.gathered) @ self.gathered
        return float(max(ended.max(), whole.max(), work.max(), (micro_batches * self.host_s).max()))

    def bytes(self, schedule: Schedule, micro_batches: int, dp: int, zero: int, fixed: bool = True) -> int:
        """What the fuller of the first and the last stage holds at least.

        Args:
            schedule: in which order passes run.
            micro_batches: of a replica.
            dp: replicas.
            zero: what they divide among them, 0 to 3.
            fixed: whether parameters, gradients and optimizer states are on the device.
        """
        stages = len(self.fill_s)
        apart = dp if zero >= 2 else 1
        held = []
        for stage in {0, stages - 1}:
            grads = self.gradients[:, stage] / apart if fixed else 0 * self.gradients[:, stage]
            order = stage_order(schedule, stage, stages, micro_batches)
            most = self._most_held(order, stage, grads.tolist())
            states = self.weights[stage] / (dp if zero > 2 else 1) + self.states[stage] / (dp if zero else 1)
            held.append(most + (states if fixed else 0.0))
        return int(max(held))

    def _most_held(self, order: StageOrder, stage: int, grads: list[float]) -> float:
        """Most bytes that forwards of a stage have kept and backwards have left at one time.

        Args:
            order: what the stage runs.
            stage: its number.
            grads: by the first backward of each chunk, to the end of the iteration.
        """
        kept, freed, passed_on = (part[:, stage].tolist() for part in (self.kept, self.freed, self.passed_on))
        now = most = 0.0
        whole: set[int] = set()
        for action in order.actions:
            what, chunk = action.what, action.chunk
            if what is Pass.FORWARD:
                now += kept[chunk]
            elif what is Pass.BACKWARD:
                now -= kept[chunk]
            elif what is Pass.INPUT_GRADIENT:
                now += passed_on[chunk] - freed[chunk]
            else:
                now -= kept[chunk] - freed[chunk] + passed_on[chunk]
            if what not in (Pass.FORWARD, Pass.INPUT_GRADIENT) and chunk not in whole:
                whole.add(chunk)
                now += grads[chunk]
            most = max(most, now)
        return most


def stages_bound(
    parts: Sequence[PartBound], pipeline: int, size: NDArray[np.int64], states: NDArray[np.float64],
    seconds_per_byte: NDArray[np.float64],
) -> StagesBound:  # fmt: skip
    """The stages that run parts in turn.

    Args:
        parts: in the order of the model, ``pipeline`` for each chunk.
        pipeline: stages.
        size: bytes of each storage.
        states: bytes of the optimizer states of each storage that is a parameter.
        seconds_per_byte: of what each stage sends to the next, and gets back, shape ``(stages - 1,)``.
    """

    def column(name: str) -> NDArray[np.float64]:
        return np.array([getattr(part, name) for part in parts], np.float64).reshape(-1, pipeline)

    fill, drain = np.zeros(pipeline), np.zeros(pipeline)
    first = parts[:pipeline]
    for s in range(1, pipeline):
        if first[s].receives and first[s - 1].sends:
            sent = first[s - 1].sent * seconds_per_byte[s - 1]
            fill[s] = fill[s - 1] + first[s - 1].through_s + sent
            drain[s] = drain[s - 1] + first[s - 1].back_s + (sent if first[s].returns else 0.0)
    early = np.array([part.forward_s - part.reading_s if part.receives else 0.0 for part in first])
    late = np.array([part.backward_s - part.returning_s for part in first])
    shared = [sorted(set().union(*(part.shared for part in parts[s::pipeline]))) for s in range(pipeline)]
    users = Counter(storage for own in shared for storage in own)
    alone = [[storage for storage in own if users[storage] == 1] for own in shared]
    more = np.array([[size[own].sum(), states[one].sum()] for own, one in zip(shared, alone, strict=True)], np.float64)
    return StagesBound(
        forward_s=column("forward_s"), backward_s=column("backward_s"), host_s=column("host_s").sum(axis=0),
        fill_s=fill, drain_s=drain, early_s=np.maximum(early, 0.0), late_s=np.maximum(late, 0.0),
        loose_s=column("loose_s")[0], kept=column("kept"),
        freed=column("freed"), passed_on=column("passed_on"), weights=column("weights").sum(axis=0) + more[:, 0],
        gradients=column("gradients"), states=column("states").sum(axis=0) + more[:, 1],
        reduced=np.array([part.reduced for part in first], np.float64).T,
        gathered=np.array([part.gathered for part in parts]).reshape(-1, pipeline, 2).sum(axis=0).T,
    )  # fmt: skip
