"""A forward and the backward of another micro-batch, run in turn so that one computes while the other exchanges tokens.

Each of the two is cut where it waits for an all-to-all; the parts then come in turn, that of the pass which has gone
less far first.  Order within a pass is kept, and with it that of every queue of the device.  So DeepSeek's DualPipe
exchanges the rows of experts behind computation (arXiv:2412.19437, section 3.2.1), and Megatron-LM with
``--overlap-moe-expert-parallel-comm``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.columns import Ragged
from triosim.memory.liveness import NEVER, BlockUses
from triosim.partition.transfers import ALL_TO_ALL
from triosim.schedule.actions import Action, Pass
from triosim.schedule.program import Op, Program


def pairs(actions: Sequence[Action]) -> list[int]:
    """Places of forwards in an order that are run in turn with the backward of another micro-batch right after them."""
    return [
        at for at, (first, second) in enumerate(pairwise(actions))
        if first.what is Pass.FORWARD and second.what is Pass.BACKWARD and first.micro_batch != second.micro_batch
    ]  # fmt: skip


def places(one: Program, other: Program) -> NDArray[np.int64]:
    """Where the instructions of two passes go, shape ``(len(one) + len(other),)``, those of ``one`` first.

    Args:
        one, other: what they run; the rows of their own that they wait for count from their first.
    """
    gone = np.concatenate([_gone(one), _gone(other)])
    found = np.empty(len(gone), np.int64)
    found[np.argsort(gone, kind="stable")] = np.arange(len(gone))
    return found


def _gone(program: Program) -> NDArray[np.float64]:
    """The share of its all-to-alls that a pass has waited for, at each instruction."""
    sends = (program.op == Op.COLLECTIVE) & (program.what == ALL_TO_ALL)
    before = program.before
    own = before.values >= 0
    waits = np.zeros(len(program), bool)
    waits[before.rows()[own][sends[before.values[own]]]] = True
    part = np.cumsum(waits & (program.op == Op.COMPUTE))
    gone: NDArray[np.float64] = part / (part.max(initial=0) + 1)
    return gone


def in_place(uses: BlockUses, place: NDArray[np.int64], first: int) -> BlockUses:
    """What a pass uses of memory when it is run in turn with another.

    Args:
        uses: when it runs by itself.
        place: where the instructions of both go.
        first: its first among them.
    """
    begins = uses.first != NEVER
    moved = uses.first.copy()
    moved[begins] = place[first + uses.first[begins]]
    return replace(uses, first=moved, last=place[first + uses.last])


def reordered(program: Program, place: NDArray[np.int64]) -> Program:
    """A program with its instructions elsewhere: ``place`` is the new row of each, shape ``(rows,)``."""
    order = np.argsort(place)
    columns = {f.name: getattr(program, f.name) for f in fields(program) if f.name != "ranks"}
    moved: dict[str, Any] = {name: column[order] for name, column in columns.items() if isinstance(column, np.ndarray)}
    before = program.before.take(order)
    return replace(program, **moved, before=Ragged(place[before.values].astype(np.int32), before.offsets))
