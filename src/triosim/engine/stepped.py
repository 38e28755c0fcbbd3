"""How a collective moves through its steps: one small state machine, whatever the algorithm.

The state grows with the number of members, not with the number of transfers: for each position the step that it is in
and how many transfers of that step it still waits for.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from triosim.engine.graph import Send, Steps

Transfer = tuple[int, int]
"""``(position, step)`` of the sender."""


def arrivals(rule: Steps, position: int, step: int) -> int:
    """How many transfers ``position`` receives in ``step``."""
    n = rule.members
    if rule.send == Send.SHIFT:
        return int((rule.shift + step * rule.stride) % n != 0)
    if rule.send == Send.CHAIN:
        return int(position >= 1 and position - 1 <= step < position - 1 + rule.active)
    if rule.send == Send.TO_FIRST:
        return n - 1 if position == 0 and step == 0 else 0
    return int(position == step + 1)


def same_peer(rule: Steps) -> bool:
    """Whether each position sends to the same peer in all steps, so that one row of routes is enough."""
    if rule.send == Send.SHIFT:
        return rule.steps < 2 or rule.stride % rule.members == 0
    return rule.send != Send.FROM_FIRST or rule.steps < 2


def sent(rule: Steps) -> NDArray[np.int64]:
    """How many transfers each position sends in each step, shape ``(steps, members)``; with :func:`same_peer`
    in all steps together, shape ``(1, members)``."""
    n, rows = rule.members, 1 if same_peer(rule) else rule.steps
    position = np.arange(n)
    if n < 2 or rule.steps < 1:
        return np.zeros((rows, n), np.int64)
    if rule.send == Send.SHIFT:
        away = (rule.shift + np.arange(rows) * rule.stride) % n != 0
        return np.repeat(away[:, None], n, axis=1) * np.int64(rule.steps // rows)
    if rule.send == Send.CHAIN:
        each = np.clip(rule.steps - position, 0, rule.active)
        return np.where(position < n - 1, each, 0)[None, :]
    if rule.send == Send.TO_FIRST:
        return (position > 0).astype(np.int64)[None, :]
    return ((position == 0) & (np.arange(rows)[:, None] + 1 < n)).astype(np.int64)


class Stepping:
    """Where each position of one running collective is in its steps.

    Every method returns what follows at the same instant: the transfers that start, and the positions that have
    finished.

    Attributes:
        at: the step that each position is in; ``steps`` when it has finished.
        open: transfers of that step, sent and received, that are not delivered yet.
        early: transfers that arrived before their receiver was in their step: (receiver, step) -> how many.
    """

    def __init__(self, rule: Steps) -> None:
        self.rule = rule
        self.at = [-1] * rule.members
        self.open = [0] * rule.members
        self.early: Counter[Transfer] = Counter()

    def begin(self) -> tuple[list[Transfer], list[int]]:
        """All members are there: the first steps start (without ``wait`` all steps)."""
        rule = self.rule
        if rule.wait:
            return self._advance(range(rule.members))
        starting = [(p, s) for s in range(rule.steps) for p in range(rule.members) if rule.peer(p, s) >= 0]
        for position, step in starting:
            self.open[position] += 1
            self.open[rule.peer(position, step)] += 1
        self.at = [rule.steps - 1] * rule.members
        return starting, self._advance(range(rule.members))[1]

    def delivered(self, position: int, step: int) -> tuple[list[Transfer], list[int]]:
        """The last byte of what ``position`` sent in ``step`` has been served."""
        peer = self.rule.peer(position, step)
        self.open[position] -= 1
        if self.at[peer] >= step:
            self.open[peer] -= 1
        else:
            self.early[peer, step] += 1
        return self._advance((position, peer))

    def _advance(self, positions: range | tuple[int, ...]) -> tuple[list[Transfer], list[int]]:
        """Move positions that wait for nothing to their next steps."""
        rule, starting, finished = self.rule, [], []
        for position in positions:
            while not self.open[position]:
                self.at[position] += 1
                step = self.at[position]
                if step >= rule.steps:
                    finished.append(position)
                    break
                sends = rule.peer(position, step) >= 0
                if sends:
                    starting.append((position, step))
                self.open[position] = sends + arrivals(rule, position, step) - self.early.pop((position, step), 0)
        return starting, finished
