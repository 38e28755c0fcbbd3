"""Whether the stages of a schedule wait for each other in a circle, whatever passes take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from triosim.core.errors import PlanError
from triosim.schedule.actions import Action, Pass, Schedule


class _PassRun(NamedTuple):
    """A pass through a part of the model that has been run; both halves of a backward count as its first."""

    backward: bool
    micro_batch: int
    part: int


class _Stages:
    """What stages run, and how far they have come."""

    def __init__(self, schedule: Schedule, stages: int, micro_batches: int) -> None:
        self.orders = [schedule.actions(stage, stages, micro_batches) for stage in range(stages)]
        placed = [schedule.stage_of(part, stages) for part in range(stages * schedule.chunks_per_stage)]
        self.parts = [[part for part, own in enumerate(placed) if own == stage] for stage in range(stages)]
        self.placed, self.at, self.done = placed, [0] * stages, set[_PassRun]()
        self.last = stages * schedule.model_parts - 1  # of each copy of the model

    def makes(self, stage: int, action: Action) -> _PassRun:
        return _PassRun(action.what is not Pass.FORWARD, action.micro_batch, self.parts[stage][action.chunk])

    def needs(self, stage: int, action: Action) -> _PassRun | None:
        """What an action waits for of another stage, or of the forward of the last part; None for nothing."""
        backward, m, part = self.makes(stage, action)
        if action.what is Pass.WEIGHT_GRADIENT:
            return None
        of_copy = part % (self.last + 1)
        if not backward:
            return _PassRun(False, m, part - 1) if of_copy else None
        return _PassRun(True, m, part + 1) if of_copy < self.last else _PassRun(False, m, part)

    def run(self) -> None:
        """Run everything that does not wait."""
        moved = True
        while moved:
            moved = False
            for stage, order in enumerate(self.orders):
                while self.at[stage] < len(order):
                    action = order[self.at[stage]]
                    need = self.needs(stage, action)
                    if need is not None and need not in self.done:
                        break
                    self.done.add(self.makes(stage, action))
                    self.at[stage], moved = self.at[stage] + 1, True


def check_circles(schedule: Schedule, name: str, stages: int, micro_batches: int) -> None:
    """Refuse a schedule whose stages wait for each other.

    Args:
        schedule: whose stages run every micro-batch as they must (:func:`triosim.schedule.actions.check`).
        name: of it, for the message.
        stages, micro_batches: what it is to be used for.

    Raises:
        PlanError: they do; the circle is named.
    """
    of = _Stages(schedule, stages, micro_batches)
    of.run()
    waiting = [stage for stage, order in enumerate(of.orders) if of.at[stage] < len(order)]
    if not waiting:
        return
    stage, seen = waiting[0], list[int]()
    while stage not in seen:
        seen.append(stage)
        need = of.needs(stage, of.orders[stage][of.at[stage]])
        assert need is not None
        stage = of.placed[need.part]
    circle = seen[seen.index(stage) :]
    said = [f"stage {one} waits in {_said(of.orders[one][of.at[one]])} for {_wanted(of, one)}" for one in circle]
    raise PlanError(
        f"schedule {name} deadlocks on {stages} stages: {'; '.join(said)}: run what the other stage waits for before"
    )


def _said(action: Action) -> str:
    chunk = f" of chunk {action.chunk}" if action.chunk else ""
    return f"{action.what.name.lower().replace('_', ' ')} of micro-batch {action.micro_batch}{chunk}"


def _wanted(of: _Stages, stage: int) -> str:
    """What a stage waits for, and where that comes in the order of the stage that runs it."""
    need = of.needs(stage, of.orders[stage][of.at[stage]])
    assert need is not None
    other = of.placed[need.part]
    order: Sequence[Action] = of.orders[other]
    place = next(n for n, action in enumerate(order) if of.makes(other, action) == need)
    first = "" if place == of.at[other] else f", which it runs after {_said(order[of.at[other]])}"
    return f"{_said(order[place])} on stage {other}{first}"
