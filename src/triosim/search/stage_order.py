"""The order of the actions of a stage, and the number of micro-batches in flight."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.core.caching import kept
from triosim.core.columns import Ragged
from triosim.schedule.actions import Action, Pass, Schedule

KEPT_ACTIONS = 4_000_000
"""Actions of the pipelines of which what all stages run is kept."""


class ActionKind(NamedTuple):
    """Kind of an action of a stage: what tells it from others.

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


class StageOrder:
    """The actions of a stage, in order.

    Attributes:
        actions: in order.
        final: which are the last of their kind, forwards left out.
        last: which are the last of their chunk.
        micro_batch: of each.
    """

    def __init__(self, actions: list[Action]) -> None:
        columns = np.fromiter(chain.from_iterable(actions), np.int32, 3 * len(actions)).reshape(-1, 3)
        self._what, self.micro_batch, self._chunk = (np.ascontiguousarray(column) for column in columns.T)
        self._base = max(len(Pass), int(self._chunk.max(initial=0)) + 1)
        what = self._what.astype(np.int64)
        self._final = _last(what * self._base + self._chunk) & (what != Pass.FORWARD)
        self._ends = _last(self._chunk)

    # Columns, and lists for who asks for them: a deep pipeline has a hundred thousand actions.

    @cached_property
    def actions(self) -> list[Action]:
        """See the class."""
        rows = zip(self._what.tolist(), self.micro_batch.tolist(), self._chunk.tolist(), strict=True)
        return [Action(Pass(what), number, chunk) for what, number, chunk in rows]

    @property
    def final(self) -> list[bool]:
        """See the class."""
        found: list[bool] = self._final.tolist()
        return found

    @property
    def last(self) -> list[bool]:
        """See the class."""
        found: list[bool] = self._ends.tolist()
        return found

    @cached_property
    def _classified(self) -> tuple[tuple[ActionKind, ...], NDArray[np.int32]]:
        """Distinct kinds of actions, and which of them each action is."""
        backward = self._what != Pass.FORWARD
        first, after = np.zeros(len(backward), bool), np.zeros(len(backward), bool)
        for chunk in np.unique(self._chunk).tolist():
            own = np.flatnonzero(self._chunk == chunk)
            first[own[0]] = True
            after[own[1:]] = backward[own[:-1]]
        facts = (self._what, self._chunk, self._final, first, after)
        code = np.zeros(len(backward), np.int64)
        for column in facts:
            code = code * self._base + column
        _, place, number = np.unique(code, return_index=True, return_inverse=True)
        order = np.argsort(place, kind="stable")
        rank = np.empty(len(order), np.int32)
        rank[order] = np.arange(len(order))
        rows = zip(*(column[place[order]].tolist() for column in facts), strict=True)
        action_kinds = tuple(ActionKind(Pass(what), chunk, *flags) for what, chunk, *flags in rows)
        return action_kinds, rank[number.reshape(-1)]

    @property
    def action_kinds(self) -> tuple[ActionKind, ...]:
        """Distinct kinds of actions."""
        return self._classified[0]

    @property
    def kind_of_action(self) -> NDArray[np.int32]:
        """Row of :attr:`action_kinds` of each action."""
        return self._classified[1]

    @cached_property
    def successions(self) -> frozenset[int]:
        """Which kinds of passes of which chunks come right after which, a number for each."""
        chunks = int(self._chunk.max(initial=0)) + 1
        one = self._what.astype(np.int64) * chunks + self._chunk
        return frozenset((one[:-1] * (len(Pass) * chunks) + one[1:]).tolist())

    @cached_property
    def depth(self) -> int:
        """Most passes whose backward has not ended, of all chunks together."""
        ends = (self._what == Pass.BACKWARD) | (self._what == Pass.WEIGHT_GRADIENT)
        under_way = np.cumsum((self._what == Pass.FORWARD).astype(np.int64) - ends)
        return int(under_way.max(initial=0))


def _last(kind: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which are the last of their kind."""
    _, place = np.unique(kind[::-1], return_index=True)
    found = np.zeros(len(kind), bool)
    found[len(kind) - 1 - place] = True
    return found


def stage_order(schedule: Schedule, stage: int, stages: int, micro_batches: int) -> StageOrder:
    """What a stage runs.

    Raises:
        PlanError: the schedule cannot run so many micro-batches on so many stages.
    """
    return _order(schedule, stage, stages, micro_batches)


@kept(1024)
def _order(schedule: Any, stage: int, stages: int, micro_batches: int) -> StageOrder:
    return StageOrder(schedule.actions(stage, stages, micro_batches))


class PipelineOrder:
    """The actions of all stages in order, what ends the iteration of a stage being the last of its own.

    A *cast* is an action of a stage but for its micro-batch.

    Args:
        orders: of the stages.
        gathers: whether it matters to an action which was before it: casts that differ in that only are one otherwise.

    Attributes:
        casts: stage and kind of each, None for what ends an iteration; those of a stage one after another.
        first: the first cast of each stage, shape ``(stages,)``, int64.
        often: how many actions are of each cast, int64.
        cast: of each action, a row for each stage, int32.
        micro_batch: of each action, of what ends an iteration the last, int32.
    """

    def __init__(self, orders: Sequence[StageOrder], gathers: bool) -> None:
        self.casts: list[tuple[int, ActionKind | None]] = []
        first, cast, micro_batch = list[int](), list[NDArray[np.int32]](), list[NDArray[np.int32]]()
        for stage, order in enumerate(orders):
            first.append(len(self.casts))
            known: dict[ActionKind, int] = {}
            for kind in order.action_kinds:
                known.setdefault(_told_apart(kind, gathers), first[-1] + len(known))
            rows = np.array([known[_told_apart(kind, gathers)] for kind in order.action_kinds], np.int32)
            self.casts += [*((stage, kind) for kind in known), (stage, None)]
            cast += [rows[order.kind_of_action], np.array([len(self.casts) - 1], np.int32)]
            micro_batch += [order.micro_batch, order.micro_batch.max(initial=0, keepdims=True)]
        self.first = np.array(first, np.int64)
        ends = np.cumsum([0, *(len(order.micro_batch) + 1 for order in orders)], dtype=np.int64)
        self.cast, self.micro_batch = (Ragged(np.concatenate(column), ends) for column in (cast, micro_batch))
        self.often = np.bincount(self.cast.values, minlength=len(self.casts))


def _told_apart(kind: ActionKind, gathers: bool) -> ActionKind:
    return kind if gathers else kind._replace(first=False, after_backward=False)


def pipeline_order(schedule: Schedule, stages: int, micro_batches: int, gathers: bool) -> PipelineOrder:
    """What all stages run; ``gathers`` and errors as of :class:`PipelineOrder` and :func:`stage_order`."""
    return _pipeline_order(schedule, stages, micro_batches, gathers)


@kept(64, room=KEPT_ACTIONS, size=lambda order: len(order.cast.values))
def _pipeline_order(schedule: Any, stages: int, micro_batches: int, gathers: bool) -> PipelineOrder:
    return PipelineOrder([stage_order(schedule, stage, stages, micro_batches) for stage in range(stages)], gathers)
