"""One pass of a micro-batch through a part of the model: its operators, and what is due before and after each of them.

Before an operator its inputs arrive from other stages, are exchanged, gathered or called back from the host; after it
what it made is exchanged, sent on, or sent off.  Runs of operators next to which nothing of that happens are written at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.memory.liveness import BlockUseRecorder
from triosim.partition.transfers import ALL_GATHER, REDUCE_SCATTER
from triosim.schedule._stage import StageFacts
from triosim.schedule.actions import Pass
from triosim.schedule.crossing import Boundary
from triosim.schedule.fragments import Fragment
from triosim.schedule.gathering import UngatheredUnits
from triosim.schedule.host_copies import CopyWriter
from triosim.schedule.program import COMPUTE, COPY, SEND, TP, Op


class PassKind(NamedTuple):
    """What tells one pass of a micro-batch through a chunk from another.

    Attributes:
        what, chunk: of the action.
        final: whether it is the last such pass of the iteration.
        needs: what has to be gathered in it.
    """

    what: Pass
    chunk: int
    final: bool
    needs: UngatheredUnits


class MicroBatchPassWriter:
    """Writes one pass.

    Args:
        of: the stage.
        kind: of the pass.
        scattered: parts, one for each tensor-parallel rank, in which a value is sent to another stage.
        ahead: forward operator -> rows of the iteration that gather parameters which it is the first to read.
        fetched: rows of the iteration that fetch what an operator needs; None where nothing is fetched.

    Attributes:
        at: instruction that has each operator done, -1 where it does not run in the pass.
        done: exchange -> instruction.
        arrivals: storage -> the instruction with which it comes from another stage.
        previous: the compute instruction written last, -1 before the first.
        waits: instructions that the next operator that runs waits for.
        left: operator -> the part of its time that is still to be run, of products run in pieces.
    """

    def __init__(
        self,
        of: StageFacts,
        kind: PassKind,
        scattered: int,
        ahead: Mapping[int, Sequence[int]],
        fetched: Callable[[int], list[int]] | None,
    ) -> None:
        self.of, self.job, self.kind, self.part = of, of.job, kind, of.parts[kind.chunk]
        self.scattered, self.fetched = scattered, fetched
        self.backward = kind.what is not Pass.FORWARD
        self.ahead: Mapping[int, Sequence[int]] = {} if self.backward else ahead
        self.skips = np.array(of.skipped, bool)
        self.builder, self.recorder = of.new(), BlockUseRecorder()
        self.alone = self.job.stages.count == 1
        self.units = (
            of.gathering(
                self.part, self.builder, self.recorder, self.backward, kind.needs, self.backward and self.alone
            )
            if self.part.units
            else None
        )
        copies = self.part.host_copies[self.backward] + (of.sent if self.backward and kind.final else [])
        self.copies = CopyWriter(
            copies, self.backward, self.builder, self.recorder, of.blocks, of.places, of.stream(COPY)
        )
        self.at = np.full(len(self.job.phase), -1, np.int64)
        self.done: dict[int, int] = {}
        self.arrivals: dict[int, int] = {}
        self.previous, self.waits, self.left = -1, list[int](), dict[int, float]()

    def fragment(self) -> Fragment:
        """The pass, from what it waits for to what it sends on."""
        if self.kind.what in (Pass.BACKWARD, Pass.INPUT_GRADIENT):
            self.waits = self._receive_gradients()
        rows = np.array(self.part.rows[self.kind.what], np.int64)
        marked = self._marked()[rows] if self.fetched is None else np.ones(len(rows), bool)
        end = 0
        for place in np.flatnonzero(marked).tolist():
            self._run_plainly(rows[end:place])
            self._run(int(rows[place]))
            end = place + 1
        self._run_plainly(rows[end:])
        if self.units is not None:
            self.units.finish(self.at, self.alone if self.backward else self.job.replication.regathers)
        uses = self.recorder.build(self.job.storages.uses(self.part.rows[self.kind.what], self.at, self.arrivals))
        return Fragment(self.builder.build(), self.at, uses, self.done, self.copies.sent)

    def _marked(self) -> NDArray[np.bool_]:
        """Operators next to which something else than operators happens."""
        marked = self.job.around.copy()
        crossing = self.part.returning if self.backward else self.part.leaving
        products = [row for _, rows in self.part.in_pieces.values() for row in rows]
        gathers = self.units.rows() if self.units else ()
        for rows in (self.part.arriving, crossing, gathers, products, self.ahead, *self.copies.rows()):
            marked[list(rows)] = True
        return marked

    # --- operators ----------------------------------------------------------------------------------------------------

    def _run_plainly(self, rows: NDArray[np.int64]) -> None:
        """Run operators next to which nothing happens."""
        if not len(rows):
            return
        runs = ~self.skips[rows]
        ran = np.cumsum(runs)
        self.at[rows] = np.where(ran > 0, len(self.builder) - 1 + ran, self.previous)
        if ran[-1]:
            self.builder.compute(rows[runs], self.job.takes_s[rows[runs]], self.waits)
            self.previous, self.waits = len(self.builder) - 1, []

    def _run(self, row: int) -> None:
        """Run an operator with what is due before and after it."""
        before, share = self._due_before(row), 1.0
        if self.of.skipped[row]:
            self.waits = before
        else:
            share, self.waits = self.left.get(row, self._first_piece(row)), []
            seconds = self.job.seconds[row] * share
            self.previous = self.builder.add(Op.COMPUTE, COMPUTE, operator=row, seconds=seconds, before=before)
        self.at[row] = self.previous
        self.copies.after(row, self.previous)
        if self.units is not None:
            self.units.after(row)
        for number in self.job.issued_after.get(row, ()):
            if number not in self.job.once or self.kind.final:
                self._exchange(number, row, [self.previous])
                if share < 1 and row not in self.left:
                    self.at[row] = self.previous = self._end_pieces(number, row, 1 - share)
        self._send_on(row)

    def _due_before(self, row: int) -> list[int]:
        """Write what is due before an operator; returns the instructions that it waits for."""
        job, part, before = self.job, self.part, self.waits
        for boundary in part.arriving.get(row, ()):
            self.arrivals[boundary.storage] = self._receive(boundary, False)
            before = [*before, self.arrivals[boundary.storage]]
        for number in job.issued_before.get(row, ()):
            self._exchange(number, row, [*before, self.previous])
        if row in self.ahead:
            before = [*before, *self.ahead[row]]
        if row in part.in_pieces and part.in_pieces[row][0] in self.done:
            self.previous = self._begin_pieces(*part.in_pieces[row], before)
            before = []
        if row in job.needed_before:
            before = before + [self.done[n] for n in job.needed_before[row] if n in self.done]
        if self.fetched is not None:
            before = before + self.fetched(row)
        if self.units is not None:
            self.units.before(row, self.previous)
        return before + self.copies.before(row, self.previous)

    # --- products in pieces -------------------------------------------------------------------------------------------

    def _begin_pieces(self, number: int, rows: Sequence[int], before: list[int]) -> int:
        """Run the pieces of some products beside which others are gathered, but the last of each."""
        share, last = 1 / self.job.pieces[number], -1
        for row in rows:
            seconds = self.job.seconds[row] * (1 - share)
            last = self.builder.add(Op.COMPUTE, COMPUTE, operator=row, seconds=seconds, before=before)
            self.left[row], before = share, []
        return last

    def _first_piece(self, row: int) -> float:
        """The part of a product after which what it makes begins to be scattered, 1 for all of it."""
        numbers = [n for n in self.job.issued_after.get(row, ()) if self.job.exchanged[n][1] == REDUCE_SCATTER]
        return min((1 / self.job.pieces[n] for n in numbers if self.job.pieces[n] > 1), default=1.0)

    def _end_pieces(self, number: int, row: int, share: float) -> int:
        """Run the other pieces of a product beside their scattering; what copy engines bring is added up after it."""
        last = self.builder.add(Op.COMPUTE, COMPUTE, operator=row, seconds=self.job.seconds[row] * share)
        if self.job.copied[number]:
            size, what, _ = self.job.exchanged[number]
            touched = size * (1 + 1 / self.job.pieces[number])
            last = self.done[number] = self.builder.add(
                Op.COMPUTE, COMPUTE, operator=row, seconds=touched / 2 * self.job.copy_s_per_byte, what=what,
                before=[self.done[number]],
            )  # fmt: skip
        return last

    # --- what is exchanged and sent -----------------------------------------------------------------------------------

    def _exchange(self, number: int, row: int, after: list[int]) -> None:
        size, what, axis = self.job.exchanged[number]
        stream = self.of.stream(self.job.exchange_stream[number])
        before = [instruction for instruction in after if instruction >= 0]
        if self.job.copied[number] and what == ALL_GATHER:  # each rank puts its part where the others find it
            seconds = size / self.job.pieces[number] * self.job.copy_s_per_byte
            before = [self.builder.add(Op.COMPUTE, COMPUTE, operator=row, seconds=seconds, what=what, before=before)]
        self.done[number] = self.builder.add(
            Op.COLLECTIVE, stream, operator=row, size=size, what=what, axis=axis, before=before
        )

    def _send_on(self, row: int) -> None:
        """Send what an operator made to the stages that read it, once it and what follows it are done."""
        going = (self.part.returning if self.backward else self.part.leaving).get(row, ())
        if not going:
            return
        done = [self.done[n] for n in self.job.issued_after.get(row, ()) if n in self.done]
        done += [self.previous] if self.previous >= 0 else []
        for boundary in going:
            scattered = self.part.scattered(boundary) if self.backward else ()
            self._send(boundary, self.backward, done + [self.done[n] for n in scattered if n in self.done])

    def _send(self, b: Boundary, back: bool, before: list[int]) -> None:
        """Send a boundary value to the stage that reads it, or (``back``) its gradient to the stage that made it."""
        self.builder.add(
            Op.SEND,
            self.of.stream(SEND),
            operator=b.returned if back else b.made,
            size=-(-b.bytes // self.scattered),
            axis=self.job.mesh.pipeline_axis,
            peer=self.part.stage_of(b.source if back else b.target),
            tag=self.job.tags("boundary", back, b.storage, b.made, b.target),
            before=before,
        )

    def _receive(self, b: Boundary, back: bool) -> int:
        """The arrival of what :meth:`_send` sends, or the gathering of its parts."""
        operator = b.returned if back else b.made
        arrived = self.builder.add(
            Op.RECEIVE,
            -1 if self.job.plan.overlap else COMPUTE,
            operator=operator,
            size=-(-b.bytes // self.scattered),
            axis=self.job.mesh.pipeline_axis,
            peer=self.part.stage_of(b.target if back else b.source),
            tag=self.job.tags("boundary", back, b.storage, b.made, b.target),
        )
        if self.scattered == 1:
            return arrived
        return self.builder.add(
            Op.COLLECTIVE, self.of.stream(TP), operator=operator, size=b.bytes, what=ALL_GATHER,
            axis=self.job.mesh.row("tp"), before=[arrived],
        )  # fmt: skip

    def _receive_gradients(self) -> list[int]:
        """Gradients of what a part sent; its backward begins when they are there."""
        sent = [b for boundaries in self.part.leaving.values() for b in boundaries if b.returned >= 0]
        return [self._receive(b, True) for b in sent]
