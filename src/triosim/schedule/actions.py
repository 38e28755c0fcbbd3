"""The interface of pipeline schedules: in which order a stage runs its micro-batches.

A model is cut into ``stages x chunks`` *parts* in the order of its forward; part ``p`` is chunk ``p // stages`` of
stage ``p % stages`` (a looped placement, Narayanan et al. 2021, section 2.2; with one chunk, parts are stages).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import IntEnum
from typing import ClassVar, NamedTuple

from triosim.core.errors import PlanError, quoted
from triosim.core.registry import Registry


class Pass(IntEnum):
    """What an action runs of a micro-batch."""

    FORWARD = 0
    BACKWARD = 1
    """The whole backward."""
    INPUT_GRADIENT = 2
    """The half of a backward that the stage before waits for."""
    WEIGHT_GRADIENT = 3
    """The half that nothing waits for but the optimizer."""


class Action(NamedTuple):
    """One pass of one micro-batch through one chunk of a stage."""

    what: Pass
    micro_batch: int
    chunk: int = 0


class Schedule(ABC):
    """Orders the work of one pipeline stage.

    One subclass a file in ``schedule/schedules``, a frozen dataclass whose fields are its options.  Every micro-batch
    runs through every chunk once forward, and once backward: whole, or if :attr:`splits_backward` as both halves, the
    input gradient first.
    """

    splits_backward: ClassVar[bool] = False

    @property
    def chunks_per_stage(self) -> int:
        """Parts of the model that each stage has (virtual stages)."""
        return 1

    @abstractmethod
    def actions(self, stage: int, stages: int, micro_batches: int) -> list[Action]:
        """What ``stage`` of ``stages`` runs, in order.

        Raises:
            PlanError: the schedule cannot run so many micro-batches on so many stages.
        """


SCHEDULES = Registry("triosim.schedule.schedules", "triosim.schedule", "pipeline schedule", Schedule)
"""Pipeline schedules by name (``--schedule``)."""


def check(schedule: Schedule, name: str, stages: int, micro_batches: int) -> None:
    """Refuse a schedule whose stages do not run every micro-batch as they must; for those of other people.

    Args:
        schedule: what is checked.
        name: of it, for the message.
        stages, micro_batches: what it is to be used for.

    Raises:
        PlanError: a stage leaves a pass out, runs it twice or too early, or answers with anything but actions.
    """
    halves = (Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT) if schedule.splits_backward else (Pass.BACKWARD,)
    passes = (Pass.FORWARD, *halves)
    for stage in range(stages):
        where = f"schedule {name}: stage {stage} of {stages}"
        done: dict[tuple[int, int], int] = {}  # micro-batch and chunk -> passes that were run
        answer = schedule.actions(stage, stages, micro_batches)
        for action in answer if isinstance(answer, list | tuple) else [answer]:
            if not isinstance(action, Action):
                raise PlanError(f"{where} answers with {quoted(action)}, which is no Action: give a list of them")
            key = (action.micro_batch, action.chunk)
            place = f"micro-batch {quoted(key[0])}" + (f" of chunk {quoted(key[1])}" if key[1] else "")
            if key[0] not in range(micro_batches) or key[1] not in range(schedule.chunks_per_stage):
                raise PlanError(f"{where} runs {place}, which does not exist")
            number = done.get(key, 0)
            if number == len(passes) or action.what != passes[number]:
                wanted = passes[number].name.lower() if number < len(passes) else "nothing"
                raise PlanError(
                    f"{where} runs {getattr(action.what, 'name', str(action.what)).lower()} of {place} where "
                    f"{wanted} is its next pass: each pass is run once, in the order "
                    f"{', '.join(one.name.lower() for one in passes)}"
                )
            done[key] = number + 1
        finished = sum(number == len(passes) for number in done.values())
        all_ = micro_batches * schedule.chunks_per_stage
        if finished < all_:
            raise PlanError(
                f"{where} runs {finished} of {all_} micro-batches to the end: each needs "
                f"{', '.join(one.name.lower() for one in passes)}"
            )


def forward_only(stage: int, stages: int, chunks: int, micro_batches: int) -> list[Action]:
    """What a stage runs where there is no backward: ``stages`` micro-batches through each chunk in turn."""
    return [
        Action(Pass.FORWARD, m, chunk)
        for first in range(0, micro_batches, stages)
        for chunk in range(chunks)
        for m in range(first, min(first + stages, micro_batches))
    ]
