"""Memory that the passes of a stage use, without their instructions.

Memory is allocated and freed in the order of a stage's instructions; which others stand between those that do so is
all the same.  So a pass is written here as :class:`triosim.schedule.pass_writer.MicroBatchPassWriter` writes it, with
its operators and what arrives, is gathered and scattered, but counted only; what is exchanged and sent is left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from triosim.core.dataclass import dataclass
from triosim.memory.liveness import NONE_USED, BlockUseRecorder, BlockUses
from triosim.schedule._stage import PartFacts, StageFacts
from triosim.schedule.actions import Pass
from triosim.schedule.gathering import UngatheredUnits
from triosim.schedule.program import COMPUTE, Op, ProgramBuilder


@dataclass(frozen=True)
class PassUses:
    """Blocks of memory that a run of instructions uses, and how many instructions they are."""

    uses: BlockUses
    length: int


class _CountingBuilder(ProgramBuilder):
    """Numbers instructions without keeping them."""

    def add(self, *row: Any, **columns: Any) -> int:
        self._count += 1
        return self._count - 1

    def skip(self, count: int) -> None:
        """So many instructions follow."""
        self._count += count


def pass_uses(
    of: StageFacts, part: PartFacts, what: Pass, final: bool, needs: UngatheredUnits, regathers: bool
) -> PassUses:
    """What a pass of a micro-batch uses.

    Args:
        of: the stage, which keeps nothing on a host.
        part: of it.
        what: the pass.
        final: whether it is the last such pass of the iteration.
        needs: what has to be gathered in it.
        regathers: whether a backward gathers again what the forward has.
    """
    job, alone = of.job, of.job.stages.count == 1
    backward = what is not Pass.FORWARD
    builder, recorder = _CountingBuilder(of.stage, of.ranks), BlockUseRecorder()
    units = of.gathering(part, builder, recorder, backward, needs, backward and alone) if part.units else None
    rows = np.array(part.rows[what], np.int64)
    runs = ~np.array(of.skipped, bool)[rows]
    leads = int(np.argmax(runs)) + 1 if runs.any() else len(rows)  # up to the first operator that runs
    marked = np.zeros(len(job.phase) + 1, bool)
    marked[list(part.arriving)] = True
    marked[units.rows() if units is not None else []] = True
    places = sorted({*range(leads), *np.flatnonzero(marked[rows]).tolist()})
    if what in (Pass.BACKWARD, Pass.INPUT_GRADIENT):
        builder.skip(sum(b.returned >= 0 for boundaries in part.leaving.values() for b in boundaries))
    going = part.returning if backward else part.leaving
    at, arrivals = np.full(len(job.phase), -1, np.int64), dict[int, int]()
    previous, end = -1, 0
    for place in [*places, len(rows)]:
        if end < place:  # nothing happens next to these
            ran = np.cumsum(runs[end:place])
            at[rows[end:place]] = np.where(ran > 0, len(builder) - 1 + ran, previous)
            if ran[-1]:
                builder.skip(int(ran[-1]))
                previous = len(builder) - 1
        end = place + 1
        if place == len(rows):
            break
        row = int(rows[place])
        for boundary in part.arriving.get(row, ()):
            arrivals[boundary.storage] = builder.add()
        if place < leads:
            builder.skip(len(job.issued_before.get(row, ())))
        if units is not None:
            units.before(row, previous)
        if runs[place]:
            previous = builder.add(Op.COMPUTE, COMPUTE)
        at[row] = previous
        if units is not None:
            units.after(row)
        if place < leads:
            builder.skip(sum(number not in job.once or final for number in job.issued_after.get(row, ())))
            builder.skip(len(going.get(row, ())))
    if units is not None:
        units.finish(at, alone if backward else regathers)
    return PassUses(recorder.build(job.storages.uses(part.rows[what], at, arrivals)), len(builder))


def reduction_uses(of: StageFacts, part: PartFacts) -> PassUses:
    """What reducing the gradients of a part uses: those of units, where all micro-batches are done."""
    if not part.units or of.job.stages.count == 1:
        return PassUses(NONE_USED, 0)
    builder, recorder = _CountingBuilder(of.stage, of.ranks), BlockUseRecorder()
    units = of.gathering(part, builder, recorder, True, UngatheredUnits(), False, 0)
    for number, unit in enumerate(part.units):
        if unit.scatter_bytes:
            units.reduce(number, max(unit.backward[1], -1))
    units.finish(None, False)
    return PassUses(recorder.build(), len(builder))


def update_uses(of: StageFacts) -> PassUses:
    """What the end of an iteration uses."""
    job, recorder = of.job, BlockUseRecorder()
    rows = [row for row in of.optimizer if not job.skipped[row]]
    at = np.full(len(job.phase), -1, np.int64)
    at[rows] = np.arange(len(rows))
    for part in of.parts:
        for block in part.blocks:  # an iteration ends with everything sharded
            recorder.free(block.copy, len(rows) - 1)
    return PassUses(recorder.build(of.blocks.once("update", at, of.share)), len(rows))
