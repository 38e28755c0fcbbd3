"""A collective that shares no link with anything: when everything happens, without playing it.

Each transfer then lasts as long as it would on its own, and the steps are a recurrence of sums and maxima in whole
numbers, which has a closed form.  Let ``d[p]`` be what the transfers of position p last, and ``done(p, s)`` the ticks
from the begin until what p sends in step s has been delivered.

* SHIFT, each position always to the same peer:  with q the position that sends to p,
  ``done(p, s) = d[p] + max(done(p, s - 1), done(q, s - 1))``.  Unrolled, this is the heaviest walk of s moves that ends
  at p, where each move stays or comes from the sender.  A walk stays, if anywhere, at the slowest position it visits:
  ``done(p, s) = max over i <= s of (sum of d of p and of i senders upwards) + (s - i) (the largest of these d)``.
* SHIFT to another peer in each step, all transfers of a step lasting equally long: steps simply follow each other.
* CHAIN, the k-th transfer of p being that of step p + k: the classic pipeline,
  ``done(p, p + k) = d[0] + ... + d[p] + k max(d[0], ..., d[p])``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from triosim.engine.graph import Send, Steps
from triosim.engine.stepped import Stepping, Transfer, arrivals, same_peer

Done = Callable[[int, int], int]


def _done(rule: Steps, lasts: Sequence[Sequence[int]]) -> Done | None:
    """``done(p, s)`` for transfers that last ``lasts[step][p]``, or None where there is no closed form."""
    if rule.send == Send.CHAIN:
        upto = list(accumulate(lasts[0][:-1]))
        slowest = list(accumulate(lasts[0][:-1], max))
        return lambda p, s: upto[p] + (s - p) * slowest[p]
    if rule.send != Send.SHIFT:
        return None
    if same_peer(rule):
        walks = _walks(lasts[0], rule.shift)
        return lambda p, s: max([ticks + (s - i) * slowest for i, ticks, slowest in walks[p] if i <= s])
    if any(len(set(step)) > 1 for step in lasts):
        return None
    after = list(accumulate(step[0] for step in lasts))
    return lambda p, s: after[s]


def _walks(lasts: Sequence[int], shift: int) -> list[list[tuple[int, int, int]]]:
    """For each position the walks that can be heaviest: (senders upwards, their summed ticks, the slowest of them).

    Going further upwards pays only when it reaches a slower position than all before it.
    """
    n, top = len(lasts), max(lasts)
    walks = []
    for position in range(n):
        ticks = slowest = lasts[position]
        found = [(0, ticks, slowest)]
        for i in range(1, n):
            if slowest == top:
                break
            there = lasts[(position - i * shift) % n]
            ticks += there
            if there > slowest:
                slowest = there
                found.append((i, ticks, slowest))
        walks.append(found)
    return walks


@dataclass(frozen=True)
class Alone:
    """One collective that shares no link.

    Attributes:
        rule: SHIFT or CHAIN with ``wait``.
        done: ticks from the begin until what a position sends in a step has been delivered.
    """

    rule: Steps
    done: Done

    @staticmethod
    def of(rule: Steps, lasts: Sequence[Sequence[int]]) -> Alone | None:
        """The closed form for transfers that last this long, or None where there is none.

        Args:
            rule: the steps.
            lasts: ticks from start to delivery of each transfer, in the shape of :attr:`Collective.routes`; 0 where
                nothing is sent.
        """
        done = _done(rule, lasts) if rule.wait and rule.members > 1 and rule.steps else None
        return done and Alone(rule, done)

    def finish(self) -> list[int]:
        """Ticks from the begin until each position has finished."""
        return [self._entered(position, self.rule.steps) for position in range(self.rule.members)]

    def state(self, ticks: int) -> tuple[Stepping, list[tuple[Transfer, int]]]:
        """Where the collective is ``ticks`` after its begin.

        Returns:
            the state machine, with everything delivered that is due by then, and the transfers in flight, each with
            the ticks from the begin to its start.
        """
        rule = self.rule
        state = Stepping(rule)
        undelivered = [self._undelivered(position, ticks) for position in range(rule.members)]
        flying = []
        for position, own in enumerate(undelivered):
            sender = self._sender(position)
            incoming = undelivered[sender] if sender >= 0 else rule.steps
            step = state.at[position] = min(own, incoming)
            if step == rule.steps:
                continue
            state.open[position] = (own == step) + (incoming == step)
            for ahead in range(step + 1, incoming):
                if arrivals(rule, position, ahead):
                    state.early[position, ahead] = 1
            if own == step:
                flying.append(((position, step), self._entered(position, step)))
        return state, flying

    def _undelivered(self, position: int, ticks: int) -> int:
        """First step in which what ``position`` sends is not delivered after ``ticks``; ``steps`` if all is."""
        steps = self._sends(position)
        delivered = bisect_right(steps, ticks, key=lambda step: self.done(position, step))
        return steps[delivered] if delivered < len(steps) else self.rule.steps

    def _entered(self, position: int, step: int) -> int:
        """Ticks from the begin until ``position`` is in ``step``, a step in which it takes part or ``steps``."""
        entered = 0
        for p in (position, self._sender(position)):
            steps = self._sends(p)
            last = min(step, steps.stop) - 1
            if last >= steps.start:
                entered = max(entered, self.done(p, last))
        return entered

    def _sends(self, position: int) -> range:
        """The steps in which ``position`` takes part as a sender."""
        rule = self.rule
        if rule.send == Send.SHIFT:
            return range(rule.steps)
        if not 0 <= position < rule.members - 1:
            return range(0)
        return range(position, min(position + rule.active, rule.steps))

    def _sender(self, position: int) -> int:
        """Who sends to ``position``, -1 for nobody (where steps follow each other, anyone)."""
        return (position - self.rule.shift) % self.rule.members if self.rule.send == Send.SHIFT else position - 1
