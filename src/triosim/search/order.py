"""What a stage runs in which order, and how many micro-batches are under way at once."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.schedule.actions import Action, Pass, Schedule


class Turn(NamedTuple):
    """What tells actions of a stage apart.

    Attributes:
        what, chunk: of the action.
        final: whether it is the last of its kind, which forwards never are.
        first: whether it is the first of its chunk.
        after_backward: whether the action of its chunk before it is a backward.
    """

    what: Pass
    chunk: int
    final: bool
    first: bool
    after_backward: bool


class Order:
    """The actions of a stage.

    Attributes:
        actions: in order.
        final: which are the last of their kind, forwards left out.
        last: which are the last of their chunk.
    """

    def __init__(self, actions: list[Action]) -> None:
        self.actions = actions
        last = {(action.what, action.chunk): number for number, action in enumerate(actions)}
        end = {action.chunk: number for number, action in enumerate(actions)}
        self.final = [
            action.what is not Pass.FORWARD and last[action.what, action.chunk] == number
            for number, action in enumerate(actions)
        ]
        self.last = [end[action.chunk] == number for number, action in enumerate(actions)]

    @cached_property
    def _turned(self) -> tuple[tuple[Turn, ...], NDArray[np.int32]]:
        """Distinct turns, and which of them each action is."""
        number: dict[Turn, int] = {}
        before: dict[int, bool] = {}
        found = np.zeros(len(self.actions), np.int32)
        for place, (action, final) in enumerate(zip(self.actions, self.final, strict=True)):
            chunk = action.chunk
            turn = Turn(action.what, chunk, final, chunk not in before, before.get(chunk, False))
            before[chunk] = action.what is not Pass.FORWARD
            found[place] = number.setdefault(turn, len(number))
        return tuple(number), found

    @property
    def turns(self) -> tuple[Turn, ...]:
        """What tells the actions apart, each once."""
        return self._turned[0]

    @property
    def turn(self) -> NDArray[np.int32]:
        """Row of :attr:`turns` of each action."""
        return self._turned[1]

    @cached_property
    def micro_batch(self) -> NDArray[np.int32]:
        """Of each action."""
        return np.array([action.micro_batch for action in self.actions], np.int32)

    @cached_property
    def depth(self) -> int:
        """Most passes whose backward has not ended, of all chunks together."""
        now = most = 0
        for action in self.actions:
            if action.what is Pass.FORWARD:
                now += 1
                most = max(most, now)
            elif action.what is not Pass.INPUT_GRADIENT:
                now -= 1
        return most


def order_of(schedule: Schedule, stage: int, stages: int, micro_batches: int) -> Order:
    """What a stage runs.

    Raises:
        PlanError: the schedule cannot run so many micro-batches on so many stages.
    """
    return _order(schedule, stage, stages, micro_batches)


@kept(1024)
def _order(schedule: Any, stage: int, stages: int, micro_batches: int) -> Order:
    return Order(schedule.actions(stage, stages, micro_batches))
