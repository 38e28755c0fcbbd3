"""The Program: what each rank class runs, in order, as columns.

All ranks that do the same work form one *rank class* with one program; only the member ranks differ.  A
16,384-GPU job is a handful of programs.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.partition.transfers import COLLECTIVES as COLLECTIVES

if TYPE_CHECKING:
    from triosim.memory.lifetimes import Lifetimes

STREAMS = ("compute", "tp", "dp", "send", "copy", "host", "replicas", "beside", "engines")
"""In-order queues of one rank.  ``tp`` and ``dp`` are the communicators of the axis that divides a step and of that on
which the replicas divide what they keep; ``replicas`` is that between groups of replicas which have all of it;
``beside`` is that of what is exchanged within a step beside something else
(:attr:`triosim.partition.transfers.Transfers.beside`); ``engines`` is what copy engines exchange within a step."""

COMPUTE, TP, DP, SEND, COPY, HOST, REPLICAS, BESIDE, ENGINES = range(len(STREAMS))


class Op(IntEnum):
    """Kinds of instruction."""

    COMPUTE = 0
    """Run operator ``operator`` for ``seconds``, or copy for it what a collective ``what`` moves."""
    COLLECTIVE = 1
    """Collective ``what`` (row of :data:`COLLECTIVES`) over mesh axis ``axis``; ranks of a group meet by ``tag``."""
    SEND = 2
    """Send ``bytes`` to the rank of class ``peer`` with the same place on the other axes, under ``tag``."""
    RECEIVE = 3
    """Done when the transfer sent by class ``peer`` under ``tag`` has arrived."""
    FETCH = 4
    """Bring ``bytes`` from where a value starts (``peer`` is a row of ``places``) to this device."""
    ISSUE = 5
    """The host spends ``seconds`` to launch something, or (``peer`` is its place) to do the optimizer's work."""
    STORE = 6
    """Send ``bytes`` from this device to a place (``peer`` is a row of ``places``)."""


@dataclass(frozen=True)
class Program:
    """Ordered instructions of one rank class, ``n`` rows.

    Attributes:
        stage: pipeline stage.
        ranks: the ranks of this class, int32.
        op: :class:`Op` codes, int8.
        stream: row of :data:`STREAMS`, or -1 for none (RECEIVE), int8.
        operator: operator row of the trace that it runs or belongs to, -1 for none, int32.
        micro_batch, iteration: which one it works on, int32.
        seconds: device time of COMPUTE, host time of ISSUE, 0 otherwise.
        bytes: of COLLECTIVE (full buffer), SEND, RECEIVE, FETCH and STORE, int64.
        what: of COLLECTIVE, row of :data:`COLLECTIVES`; of COMPUTE that copies what a collective of such a kind
            receives or sends, the same; -1 for all else, int8.
        axis: of COLLECTIVE, row of :attr:`triosim.partition.mesh.Mesh.names`; of SEND and RECEIVE the axis
            along which the peer is, int8.
        peer: see :class:`Op`, int32.
        root: of rooted collectives, position of the root in the group, int32.
        tag: what makes the two ends of a transfer, or the members of a collective, find each other, int64.
        before: rows of this program that must have finished first.
        places: names of the places that FETCH refers to (``"host"``, ``"pool"``, ``"device:3"``).
        lifetimes: what occupies memory, from which row to which; None until memory has been laid out.
        host_bytes, nvme_bytes: what each rank keeps in host memory, and on the drives of its server.
        gap_s: seconds between the end of a COMPUTE and the start of the next on its stream, where that one waits for
            nothing else; not part of ``seconds``.
    """

    stage: int
    ranks: NDArray[np.int32]
    op: NDArray[np.int8]
    stream: NDArray[np.int8]
    operator: NDArray[np.int32]
    micro_batch: NDArray[np.int32]
    iteration: NDArray[np.int32]
    seconds: NDArray[np.float64]
    bytes: NDArray[np.int64]
    what: NDArray[np.int8]
    axis: NDArray[np.int8]
    peer: NDArray[np.int32]
    root: NDArray[np.int32]
    tag: NDArray[np.int64]
    before: Ragged
    places: tuple[str, ...] = ()
    lifetimes: Lifetimes | None = None
    host_bytes: int = 0
    nvme_bytes: int = 0
    gap_s: float = 0.0

    def __len__(self) -> int:
        return len(self.op)

    def rows(self, *ops: Op) -> NDArray[np.int64]:
        """The rows of instructions of these kinds, ascending; not to be changed."""
        found = [self._rows[op] for op in ops]
        return found[0] if len(found) == 1 else np.sort(np.concatenate(found))

    @cached_property
    def _rows(self) -> list[NDArray[np.int64]]:
        order = np.argsort(self.op, kind="stable")
        return np.split(order, np.cumsum(np.bincount(self.op, minlength=len(Op)))[:-1])

    @cached_property
    def holding(self) -> NDArray[np.bool_]:
        """Which instructions are collectives that hold multiprocessors while they run."""
        return (self.op == Op.COLLECTIVE) & (self.stream != ENGINES)


def of_iteration(row: int) -> int:
    """A row of an iteration as a fragment names it among what must have finished before.

    Rows of the fragment itself are named by their number in it; this makes a negative number of others.
    """
    return -1 - row


class ProgramBuilder:
    """Collects the instructions of one rank class.

    Args:
        stage, ranks: as of :class:`Program`.
        places: names that FETCH can refer to and their rows.
    """

    _COLUMNS = (
        ("op", np.int8), ("stream", np.int8), ("operator", np.int32), ("micro_batch", np.int32),
        ("iteration", np.int32), ("seconds", np.float64), ("bytes", np.int64), ("what", np.int8), ("axis", np.int8),
        ("peer", np.int32), ("root", np.int32), ("tag", np.int64),
    )  # fmt: skip

    def __init__(self, stage: int, ranks: NDArray[np.int32], places: dict[str, int] | None = None) -> None:
        self.stage = stage
        self.ranks = ranks
        self.micro_batch = 0
        self.iteration = 0
        self._rows: list[tuple] = []
        self._at: list[int] = []  # where each of those stands
        self._runs: list[tuple[int, int, int, NDArray[Any], NDArray[Any]]] = []  # of operators, with their beginnings
        self._before: dict[int, list[int]] = {}
        self._count = 0
        self._places = places or {}

    def __len__(self) -> int:
        return self._count

    def add(
        self,
        op: Op,
        stream: int,
        *,
        operator: int = -1,
        seconds: float = 0.0,
        size: int = 0,
        what: int = -1,
        axis: int = -1,
        peer: int = -1,
        root: int = 0,
        tag: int = 0,
        before: list[int] | None = None,
    ) -> int:
        """Append one instruction and return its row."""
        row = (int(op), stream, operator, self.micro_batch, self.iteration, seconds, size, what, axis, peer, root, tag)
        self._rows.append(row)
        self._at.append(self._count)
        if before:
            self._before[self._count] = before
        self._count += 1
        return self._count - 1

    def compute(
        self, operators: NDArray[np.int64], seconds: NDArray[np.float64], before: list[int] | None = None
    ) -> None:
        """Append operators, one after another; the first of them waits for ``before``."""
        if not len(operators):
            return
        self._runs.append((self._count, self.micro_batch, self.iteration, operators, seconds))
        if before:
            self._before[self._count] = before
        self._count += len(operators)

    def row(self, number: int) -> tuple[Any, ...]:
        """Columns of an instruction, in the order of :class:`Program` from ``op`` to ``tag``."""
        return self._rows[number]

    def before(self, number: int) -> list[int]:
        """Rows that an instruction waits for."""
        return self._before.get(number, [])

    def build(self) -> Program:
        """The program's columns."""
        columns = list(zip(*self._rows, strict=True)) if self._rows else [()] * len(self._COLUMNS)
        arrays: dict[str, Any] = {}
        for (name, dtype), column in zip(self._COLUMNS, columns, strict=True):
            arrays[name] = np.full(self._count, _OF_OPERATOR.get(name, 0), dtype)
            arrays[name][self._at] = column
        for first, micro_batch, iteration, operators, seconds in self._runs:
            own = slice(first, first + len(operators))
            arrays["operator"][own], arrays["seconds"][own] = operators, seconds
            arrays["micro_batch"][own], arrays["iteration"][own] = micro_batch, iteration
        lengths = np.zeros(self._count + 1, np.int64)
        lengths[[row + 1 for row in self._before]] = [len(before) for before in self._before.values()]
        waits = [row for before in self._before.values() for row in before]
        return Program(
            stage=self.stage, ranks=np.asarray(self.ranks, np.int32),
            before=Ragged(np.array(waits, np.int32), np.cumsum(lengths)), places=tuple(self._places), **arrays,
        )  # fmt: skip


_OF_OPERATOR = {"op": int(Op.COMPUTE), "stream": COMPUTE, "what": -1, "axis": -1, "peer": -1}
"""What columns hold of an instruction that runs an operator, where that is not 0."""
