"""The end of an iteration as programs: the last backwards, the reductions beside them, the optimizer.

Here gradients are reduced while others still run backwards, on links that both use, so it is played by the engine.
Each rank begins with its streams as its earlier turns have left them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.core.units import PICOSECONDS_PER_SECOND
from triosim.engine.contention_free import NOT_SENT
from triosim.schedule.actions import Action, Pass
from triosim.schedule.program import Op, Program, ProgramBuilder
from triosim.search.stage_classes import MessagePort, StageClass, WrittenFragment

_COLUMNS = ("op", "stream", "operator", "seconds", "bytes", "what", "axis", "peer", "root", "tag")


class EpilogueWriter:
    """Writes the epilogue of a stage.

    Args:
        kind: what the stage runs.
        actions: those of its epilogue, in order.
        ports: messages of each pass of each chunk.
        tags: tag of each port of a micro-batch.
        peers: by port, the stage at its other end.
        arrived: when what earlier turns sent has arrived, by tag; -1 where it is sent in the epilogue.
    """

    def __init__(
        self,
        kind: StageClass,
        actions: Sequence[tuple[Action, bool, bool]],
        ports: Mapping[tuple[Pass, int], Sequence[MessagePort]],
        tags: Mapping[tuple[int, bool], int],
        peers: Mapping[MessagePort, int],
        arrived: NDArray[np.int64],
    ) -> None:
        self.kind, self.ports, self.tags, self.peers, self.arrived = kind, ports, tags, peers, arrived
        self.rows: list[Program] = []
        self.offset: list[int] = []
        self.micro_batch: list[int] = []
        self.length = 0
        self.place = np.full(kind.length, -1, np.int64)  # of each row that was written
        for action, final, last in actions:
            written = kind.passes[action.what, action.chunk, final]
            self._append(self._addressed(written, action), action.micro_batch, written if final else None)
            if last:
                reductions = kind.reductions[action.chunk]
                self._append(reductions.rows, action.micro_batch, reductions)
        self._append(self._apart(kind.update.rows), 0, kind.update)

    def _append(self, rows: Program, micro_batch: int, named: WrittenFragment | None) -> None:
        if named is not None:
            self.place[named.start : named.start + len(rows)] = self.length + np.arange(len(rows))
        self.rows.append(rows)
        self.offset.append(self.length)
        self.micro_batch.append(micro_batch)
        self.length += len(rows)

    def _addressed(self, written: WrittenFragment, action: Action) -> Program:
        """A pass of a micro-batch with the tags and peers of this stage."""
        rows, ports = written.rows, self.ports[action.what, action.chunk]
        if not ports:
            return rows
        at = np.flatnonzero((rows.op == Op.SEND) | (rows.op == Op.RECEIVE))
        op, tag, peer, seconds = rows.op.copy(), rows.tag.copy(), rows.peer.copy(), rows.seconds.copy()
        for row, port in zip(at.tolist(), ports, strict=True):
            tag[row] = self.tags[port.boundary, port.back] + action.micro_batch
            peer[row] = self.peers[port]
            came = int(self.arrived[tag[row]])
            if not port.sends and came != NOT_SENT:
                op[row], seconds[row] = Op.ISSUE, came / PICOSECONDS_PER_SECOND
        return replace(rows, op=op, tag=tag, peer=peer, seconds=seconds)

    def _apart(self, rows: Program) -> Program:
        """What ends the iteration with tags that no pass has."""
        ends = (rows.op == Op.SEND) | (rows.op == Op.RECEIVE)
        return replace(rows, tag=np.where(ends, rows.tag + len(self.arrived), rows.tag)) if ends.any() else rows

    def program(self, stage: int, ranks: NDArray[np.int32], free: NDArray[np.int64]) -> Program:
        """All of it.

        Args:
            stage: the stage.
            ranks: of it.
            free: when each of its streams is free, ticks.
        """
        busy = np.flatnonzero(free).tolist()
        builder = ProgramBuilder(stage, ranks)
        for stream in busy:
            builder.add(Op.ISSUE, stream, seconds=int(free[stream]) / PICOSECONDS_PER_SECOND)
        begin = builder.build()
        shift = np.repeat(np.array(self.offset, np.int64), [len(rows.before.values) for rows in self.rows])
        before = Ragged.stacked([rows.before for rows in self.rows])
        named = before.values < 0
        values = before.values + shift
        values[named] = self.place[-1 - before.values[named]]
        if (values < 0).any():
            raise ValueError("the epilogue waits for a row that is not in it")
        all_ = Ragged.stacked([begin.before, Ragged((values + len(begin)).astype(np.int32), before.offsets)])
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(begin, name), *(getattr(rows, name) for rows in self.rows)])
            for name in _COLUMNS
        }
        own = np.repeat(np.array([0, *self.micro_batch], np.int32), [len(begin), *map(len, self.rows)])
        return replace(
            begin, **columns, micro_batch=own, iteration=np.zeros(len(own), np.int32),
            before=Ragged(all_.values.astype(np.int32), all_.offsets),
        )  # fmt: skip


def epilogue_starts(
    actions: Sequence[Sequence[Action]],
    first: Sequence[int],
    receives: Mapping[tuple[int, Pass, int], Sequence[tuple[int, bool]]],
    sends: Mapping[tuple[int, Pass, int], Sequence[tuple[int, bool]]],
) -> list[int]:
    """The first action of each stage's epilogue, so that nothing before a epilogue waits for one.

    Args:
        actions: of each stage.
        first: where epilogues begin at the latest.
        receives, sends: by stage, pass and chunk the ports (boundary, back) that are received and sent.
    """
    first = list(first)
    awaits = [
        {
            (*port, action.micro_batch): number
            for number, action in enumerate(own)
            for port in receives[stage, action.what, action.chunk]
        }
        for stage, own in enumerate(actions)
    ]
    todo = [(stage, number) for stage, own in enumerate(actions) for number in range(first[stage], len(own))]
    while todo:
        stage, number = todo.pop()
        action = actions[stage][number]
        for port in sends[stage, action.what, action.chunk]:
            for other, table in enumerate(awaits):
                waits = table.get((*port, action.micro_batch), len(actions[other]))
                if waits < first[other]:
                    todo += [(other, more) for more in range(waits, first[other])]
                    first[other] = waits
    return first
