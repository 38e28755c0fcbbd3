"""The interface of pipeline schedules: in which order a stage runs its micro-batches.

A model is cut into ``stages x chunks`` *parts* in the order of its forward.  :meth:`Schedule.stage_of` says which stage
has a part, by default stage ``p % stages`` (a looped placement, Narayanan et al. 2021, section 2.2; with one chunk,
parts are stages).  The parts of a stage are its chunks, in that order.

A schedule of two :attr:`~Schedule.directions` has the model twice: half of its parts are those of one copy, the other
half those of the other, and each micro-batch goes through one of the copies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from enum import IntEnum
from typing import ClassVar, NamedTuple

from triosim.core.errors import PlanError, quoted
from triosim.core.registry import Registry


class Pass(IntEnum):
    """What an action runs of a micro-batch."""

    FORWARD = 0
    """The forward."""
    BACKWARD = 1
    """The whole backward."""
    INPUT_GRADIENT = 2
    """The half of a backward that the stage before waits for."""
    WEIGHT_GRADIENT = 3
    """The half that nothing waits for but the optimizer."""


class Action(NamedTuple):
    """One pass of one micro-batch through one chunk of a stage.

    Attributes:
        what: forward, backward, or a half of a backward.
        micro_batch: its number, from 0.
        chunk: the part of the model among those of the stage, in the order of the forward.
    """

    what: Pass
    micro_batch: int
    chunk: int = 0


class PassTimes(NamedTuple):
    """What passes take, by stage, and what they hold.

    Attributes:
        forward, input_gradient, weight_gradient: seconds of each stage.
        send: seconds from a stage to the next.
        kept: of what a forward keeps for its backward, the share that the weight gradient still reads.
    """

    forward: tuple[float, ...]
    input_gradient: tuple[float, ...]
    weight_gradient: tuple[float, ...]
    send: float
    kept: float


class Schedule(ABC):
    """Orders the work of one pipeline stage.

    One subclass a file in ``schedule/schedules``, a frozen dataclass whose fields are its options.  Every micro-batch
    runs through every chunk once forward, and once backward: whole, or if :attr:`splits_backward` also as both halves,
    the input gradient first.
    """

    splits_backward: ClassVar[bool] = False
    times_matter: ClassVar[bool] = False
    """Whether the order depends on what passes take (:meth:`timed`)."""

    @property
    def chunks_per_stage(self) -> int:
        """Parts of the model that each stage has (virtual stages)."""
        return 1

    @property
    def directions(self) -> int:
        """Copies of the model on the stages, each with micro-batches of its own (:meth:`micro_batches_of`)."""
        return 1

    @property
    def model_parts(self) -> int:
        """Parts into which the model is cut for each stage."""
        return self.chunks_per_stage // self.directions

    def micro_batches_of(self, part: int, stages: int, micro_batches: int) -> range:
        """The micro-batches that go through a part, as many for each copy of the model."""
        each = micro_batches // self.directions
        copy = part // (stages * self.model_parts)
        return range(copy * each, (copy + 1) * each)

    @property
    def combines(self) -> bool:
        """Whether a forward and the backward of another micro-batch right after it are run in turn.

        Each then computes while the other exchanges tokens (:mod:`triosim.schedule.interleaving`).
        """
        return False

    def stage_of(self, part: int, stages: int) -> int:
        """The stage that has a part of the model, parts counted in the order of the forward."""
        return part % stages

    def timed(self, times: PassTimes) -> Schedule:
        """The schedule for passes that take so long; asked for where :attr:`times_matter`."""
        return self

    def looped(self, stages: int) -> bool:
        """Whether parts are on the stages in turn."""
        return all(self.stage_of(p, stages) == p % stages for p in range(stages * self.chunks_per_stage))

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
    whole, halves = (Pass.FORWARD, Pass.BACKWARD), (Pass.FORWARD, Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT)
    ways = (halves, whole) if schedule.splits_backward else (whole,)
    allowed = " or ".join(", ".join(one.name.lower() for one in way) for way in ways)
    chunks = schedule.chunks_per_stage
    _check_placement(schedule, name, stages)
    if stages * chunks % schedule.directions or micro_batches % schedule.directions:
        raise PlanError(
            f"schedule {name} has {schedule.directions} copies of the model for {stages} x {chunks} parts and "
            f"{micro_batches} micro-batches: give numbers that divide by it"
        )
    placed = [schedule.stage_of(part, stages) for part in range(stages * chunks)]
    for stage in range(stages):
        where = f"schedule {name}: stage {stage} of {stages}"
        parts = [part for part, own in enumerate(placed) if own == stage]
        own = [schedule.micro_batches_of(part, stages, micro_batches) for part in parts]
        done: dict[tuple[int, int], tuple[Pass, ...]] = {}  # micro-batch and chunk -> passes that were run
        halved = Counter[int]()  # chunk -> micro-batches whose weight gradient is due
        answer = schedule.actions(stage, stages, micro_batches)
        for action in answer if isinstance(answer, list | tuple) else [answer]:
            if not isinstance(action, Action):
                raise PlanError(f"{where} answers with {quoted(action)}, which is no Action: give a list of them")
            key = (action.micro_batch, action.chunk)
            place = f"micro-batch {quoted(key[0])}" + (f" of chunk {quoted(key[1])}" if key[1] else "")
            if key[1] not in range(chunks) or key[0] not in own[key[1]]:
                raise PlanError(f"{where} runs {place}, which does not exist")
            before = done.get(key, ())
            after = (*before, action.what)
            if not any(after == way[: len(after)] for way in ways):
                following = [way[len(before)] for way in ways if before == way[: len(before)] and way != before]
                wanted = " or ".join(dict.fromkeys(one.name.lower() for one in following)) or "nothing"
                raise PlanError(
                    f"{where} runs {getattr(action.what, 'name', str(action.what)).lower()} of {place} where "
                    f"{wanted} is its next pass: each pass is run once, in the order {allowed}"
                )
            done[key] = after
            halved[key[1]] += (action.what is Pass.INPUT_GRADIENT) - (action.what is Pass.WEIGHT_GRADIENT)
            if action.what is Pass.BACKWARD and halved[key[1]]:
                due = f"{halved[key[1]]} other(s)"
                raise PlanError(
                    f"{where} runs backward of {place} whole while weight gradients of {due} are due: run these first, "
                    "or the backward in halves"
                )
        finished = sum(passes in ways for passes in done.values())
        if finished < (due_in_all := sum(map(len, own))):
            raise PlanError(f"{where} runs {finished} of {due_in_all} micro-batches to the end: each needs {allowed}")


def _check_placement(schedule: Schedule, name: str, stages: int) -> None:
    placed = [schedule.stage_of(part, stages) for part in range(stages * schedule.chunks_per_stage)]
    if Counter(placed) != dict.fromkeys(range(stages), schedule.chunks_per_stage):
        raise PlanError(
            f"schedule {name}: stage_of puts parts on stages {', '.join(map(str, placed))}: each of {stages} needs "
            f"{schedule.chunks_per_stage}"
        )


def numbered(passes: Iterable[tuple[Pass, int]]) -> list[Action]:
    """Passes of chunks as actions: each kind of pass of a chunk takes the micro-batches in turn.

    Args:
        passes: kind and chunk of each; a whole backward is both halves.
    """
    count, found = Counter[tuple[Pass, int]](), []
    for what, chunk in passes:
        same = (Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT) if what is Pass.BACKWARD else (what,)
        found.append(Action(what, count[same[0], chunk], chunk))
        for one in same:
            count[one, chunk] += 1
    return found


def forward_only(schedule: Schedule, stage: int, stages: int, micro_batches: int) -> list[Action]:
    """What a stage runs where there is no backward: ``stages`` micro-batches through each chunk in turn, of several
    copies of the model first those that have come through fewer stages."""
    parts = [p for p in range(stages * schedule.chunks_per_stage) if schedule.stage_of(p, stages) == stage]
    own = [schedule.micro_batches_of(part, stages, micro_batches) for part in parts]
    chunks = sorted(range(len(parts)), key=lambda chunk: parts[chunk] % (stages * schedule.model_parts))
    return [
        Action(Pass.FORWARD, m, chunk)
        for first in range(0, micro_batches // schedule.directions, stages)
        for chunk in chunks
        for m in own[chunk][first : first + stages]
    ]
