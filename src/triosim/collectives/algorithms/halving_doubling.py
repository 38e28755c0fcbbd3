"""Recursive halving and doubling: partners at distances that halve, then double.

Rabenseifner's all-reduce (Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH", Int. J. High Perform. Comput. Appl. 19(1), 2005, section 4.5): 2 log2(n) steps in which half, a quarter, ... of
the buffer is exchanged, the bytes of a ring in logarithmically many steps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.collectives.algorithm import Algorithm, CollectiveSchedule, part
from triosim.collectives.group import Group
from triosim.core.columns import Ragged
from triosim.core.errors import InputError
from triosim.core.registry import registered
from triosim.engine.graph import Pattern


@registered
class HalvingDoubling(Algorithm):
    """Reduce-scatter by halving, all-gather by doubling, all-reduce by both.

    All-reduce of a number of members that is no power of two: those beyond the power below give their buffer to a
    partner first and get the result from it at the end.
    """

    kinds = ("all_reduce", "reduce_scatter", "all_gather")

    def schedule(
        self, kind: str, members: int, size: int, root: int = 0, group: Group | None = None
    ) -> CollectiveSchedule:
        """See :meth:`Algorithm.schedule`.

        Raises:
            InputError: reduce-scatter or all-gather of a number of members that is no power of two.
        """
        power = 1 << (members.bit_length() - 1)
        if kind != "all_reduce" and power != members:
            raise InputError(
                f"collective algorithm 'halving-doubling' does {kind} for 2, 4, 8, ... members, not for {members}: "
                "use auto or ring"
            )
        core = np.arange(power, dtype=np.int64)
        rest = np.arange(power, members, dtype=np.int64)
        halves = [power >> (k + 1) for k in range(power.bit_length() - 1)]
        rounds = [(core, core ^ d, part(size, power // d)) for d in halves]
        steps = {
            "reduce_scatter": rounds,
            "all_gather": rounds[::-1],
            "all_reduce": [(rest, rest - power, size), *rounds, *rounds[::-1], (rest - power, rest, size)],
        }[kind]
        return CollectiveSchedule(_in_turn(members, [s for s in steps if len(s[0])]), tuple(range(members)))


def _in_turn(members: int, steps: list[tuple[NDArray, NDArray, int]]) -> Pattern:
    """One transfer for each sender of each step, when it has sent and got all of the steps before."""
    last: list[NDArray[np.int64]] = [np.full(members, -1, np.int64), np.full(members, -1, np.int64)]
    needs, lengths, first = [], [], 0
    for source, target, _ in steps:
        wanted = np.stack([last[0][source], last[1][source]], axis=1)
        needs.append(wanted[wanted >= 0])
        lengths.append((wanted >= 0).sum(axis=1))
        own = first + np.arange(len(source))
        last[0][source], last[1][target] = own, own
        first += len(source)
    sizes = [np.full(len(source), size, np.int64) for source, _, size in steps]
    empty = [np.zeros(0, np.int64)]
    values = np.concatenate(needs or empty).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths or empty))]).astype(np.int64)
    return Pattern(
        members, np.concatenate([s for s, _, _ in steps] or empty).astype(np.int32),
        np.concatenate([t for _, t, _ in steps] or empty).astype(np.int32), np.concatenate(sizes or empty),
        np.ones(first, np.int32), Ragged(values, offsets), np.zeros(len(values), np.int32), np.zeros(first, np.int64),
    )  # fmt: skip
