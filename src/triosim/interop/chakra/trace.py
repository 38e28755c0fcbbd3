"""What a Chakra execution trace holds, as columns: the nodes of one rank and what waits for what.

The format is that of MLCommons Chakra (package ``ChakraProtoMsg``, schema 0.0.4 of October 2023, unchanged since):
Sridharan et al., "Chakra: Advancing Performance Benchmarking and Co-design using Standardized Execution Traces",
arXiv 2305.14516.
"""

from __future__ import annotations

from dataclasses import field
from enum import IntEnum
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError
from triosim.core.precedence import order_after

ABSENT = -1
"""In a column: the node does not have that attribute."""


class ChakraNodeType(IntEnum):
    """Types of node, with Chakra's numbers."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


class Comm(IntEnum):
    """Types of collective, with Chakra's numbers."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9
    INVALID = 99


@dataclass(frozen=True)
class ChakraTrace:
    """One rank's trace, ``n`` nodes in ascending order of id.

    Attributes:
        file: where it was read from, or ``""``.
        id: Chakra's number of each node, uint64.
        name: of each node.
        kind: :class:`ChakraNodeType` codes, int8.
        before: rows of the nodes that must have finished first, data and control dependencies alike.
        micros: recorded duration in whole microseconds, int64.
        ticks: duration in picoseconds where the writer gave it (attribute ``triosim_duration_ps``), else ABSENT, int64.
        cpu: whether it runs on the host, bool.
        comm: :class:`Comm` code of a collective, else ABSENT, int8.
        size: ``comm_size`` in bytes: what one rank contributes (for an all-gather its part, else its full buffer),
            int64.
        source, target, tag: of sends and receives, int64.
        group: ``pg_name``, ``""`` for all ranks.
        dims: ``involved_dim`` of each node, bool; an empty row where it is not given.
        num_ops: floating-point operations of a computation, int64.
        tensor_size: bytes that it or a memory node moves, int64.
        stream: recorded stream, int64.
        groups: communicator groups that METADATA nodes declare, name -> ranks (none: all ranks).
    """

    file: str
    id: NDArray[np.uint64]
    name: tuple[str, ...]
    kind: NDArray[np.int8]
    before: Ragged
    micros: NDArray[np.int64]
    ticks: NDArray[np.int64]
    cpu: NDArray[np.bool_]
    comm: NDArray[np.int8]
    size: NDArray[np.int64]
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    tag: NDArray[np.int64]
    group: tuple[str, ...]
    dims: Ragged
    num_ops: NDArray[np.int64]
    tensor_size: NDArray[np.int64]
    stream: NDArray[np.int64]
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.id)

    def where(self, row: int) -> str:
        """A node in words, for messages."""
        name = self.name[row] or ChakraNodeType(int(self.kind[row])).name
        return f"{self.file or 'trace'}: node {self.id[row]} ({name})"

    def order(self) -> list[int]:
        """Rows such that each comes after all that it waits for, the lowest id first where there is a choice.

        Raises:
            InputError: the dependencies go in circles.
        """
        order, circle = order_after(self.before.lists())
        if circle:
            raise InputError(f"{self.where(circle[0])} waits for itself through its dependencies: mend the trace")
        return order


class ChakraTraceBuilder:
    """Collects the nodes of one rank's trace."""

    _COLUMNS = (
        ("id", np.uint64), ("kind", np.int8), ("micros", np.int64), ("ticks", np.int64), ("cpu", np.bool_),
        ("comm", np.int8), ("size", np.int64), ("source", np.int64), ("target", np.int64), ("tag", np.int64),
        ("num_ops", np.int64), ("tensor_size", np.int64), ("stream", np.int64),
    )  # fmt: skip

    def __init__(self, file: str = "") -> None:
        self.file = file
        self.groups: dict[str, tuple[int, ...]] = {}
        self._rows: list[tuple] = []
        self._names: list[str] = []
        self._group: list[str] = []
        self._before: list[list[int]] = []
        self._dims: list[list[bool]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self,
        kind: ChakraNodeType,
        name: str = "",
        *,
        number: int | None = None,
        before: list[int] | None = None,
        micros: int = 0,
        ticks: int = ABSENT,
        cpu: bool = False,
        comm: int = ABSENT,
        size: int = ABSENT,
        source: int = ABSENT,
        target: int = ABSENT,
        tag: int = ABSENT,
        group: str = "",
        dims: list[bool] | None = None,
        num_ops: int = ABSENT,
        tensor_size: int = ABSENT,
        stream: int = ABSENT,
    ) -> int:
        """Append a node and return its number; ``before`` are numbers of nodes, and numbers count up from 1 unless
        given."""
        number = len(self._rows) + 1 if number is None else number
        self._rows.append(
            (number, int(kind), micros, ticks, cpu, comm, size, source, target, tag, num_ops, tensor_size, stream)
        )
        self._names.append(name)
        self._group.append(group)
        self._before.append(before or [])
        self._dims.append(dims or [])
        return number

    def build(self) -> ChakraTrace:
        """The trace's columns, nodes sorted by number.

        Raises:
            InputError: two nodes have one number, a node waits for one that does not exist, or a number is out of
                bounds.
        """
        order = sorted(range(len(self._rows)), key=lambda row: self._rows[row][0])
        rows = [self._rows[row] for row in order]
        place = {row[0]: at for at, row in enumerate(rows)}
        where = self.file or "trace"
        if len(place) < len(rows):
            twice = next(a[0] for a, b in pairwise(rows) if a[0] == b[0])
            raise InputError(f"{where}: two nodes have the id {twice}: ids must be unique within a file")
        before = []
        for row in order:
            missing = next((number for number in self._before[row] if number not in place), None)
            if missing is not None:
                raise InputError(
                    f"{where}: node {self._rows[row][0]} waits for node {missing}, which is not in the file: write "
                    "the trace again"
                )
            before.append(sorted({place[number] for number in self._before[row]}))
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(self._COLUMNS)
        try:
            arrays: dict[str, Any] = {
                name: np.array(column, dtype) for (name, dtype), column in zip(self._COLUMNS, columns, strict=True)
            }
        except OverflowError:
            raise InputError(f"{where}: a node holds a number that 64 bits cannot: write the trace again") from None
        return ChakraTrace(
            file=self.file,
            name=tuple(self._names[row] for row in order),
            group=tuple(self._group[row] for row in order),
            before=Ragged.of(before, np.int64),
            dims=Ragged.of([self._dims[row] for row in order], np.bool_),
            groups=self.groups,
            **arrays,
        )
