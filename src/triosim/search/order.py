"""What a stage runs in which order, and how many micro-batches are under way at once."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from triosim.core.caching import kept
from triosim.schedule.actions import Action, Pass, Schedule


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
