"""What the passes of each stage take and hold, for schedules whose order depends on it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.memory.blocks import StepStorages
from triosim.partition.step import Step
from triosim.schedule.actions import PassTimes
from triosim.schedule.backward import split_backward
from triosim.schedule.stages import Stages
from triosim.trace.tables import Phase


class RetainedBytes:
    """Bytes that passes keep for later ones.

    Args:
        step: one rank's share of a micro-batch.
    """

    def __init__(self, step: Step) -> None:
        self._step, self.storages = step, StepStorages(step.trace, step.transfers)
        fixed = self.storages.persistent | self.storages.given | self.storages.gradient
        self.passing = np.where(fixed, 0, self.storages.size)

    def kept(
        self, forward: NDArray[np.int64], backward: NDArray[np.int64], halves: bool,
        often: NDArray[np.float64] | float = 1.0,
    ) -> tuple[float, float, float]:  # fmt: skip
        """What the forward of a part keeps for its backward, and what of it the first half frees and makes.

        Args:
            forward, backward: operators of the part.
            halves: whether the backward is split.
            often: how many storages each stands for.
        """
        passing = self.passing * often
        split = split_backward(self._step.homes, backward.tolist()) if halves else None
        first, last = self._touched(np.concatenate([forward, backward]))
        phase = self._step.trace.operators.phase
        held = (first >= 0) & (phase[first] == Phase.FORWARD) & (phase[last] != Phase.FORWARD)
        kept = float(passing[held].sum())
        if split is None or not split.weight_gradient:
            return kept, kept, 0.0
        later = self._touched(np.array(split.weight_gradient))[1] >= 0
        inside = self._touched(np.array(split.input_gradient))[0] >= 0
        made = later & inside & ((first < 0) | (phase[first] != Phase.FORWARD))
        return kept, float(passing[held & ~later].sum()), float(passing[made].sum())

    def _touched(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First and last of some operators that touch each storage, -1 for none."""
        where, begin, end = self.storages.touched(rows.tolist())
        first, last = np.full(len(self.storages), -1, np.int64), np.full(len(self.storages), -1, np.int64)
        first[where], last[where] = begin, end
        return first, last


def pass_times(step: Step, stages: Stages, seconds: NDArray[np.float64], seconds_per_byte: float) -> PassTimes:
    """What the passes of a pipeline take whose stages have one part each.

    Args:
        step: one rank's share of a micro-batch.
        stages: its parts.
        seconds: of each operator on the device of each stage, shape ``(stages, operators)``.
        seconds_per_byte: of a send between stages.
    """
    phase, held = step.trace.operators.phase, RetainedBytes(step)
    took: list[tuple[float, float, float]] = []
    left = whole = 0.0
    for stage in range(stages.count):
        own = stages.of == stage
        forward = np.flatnonzero(own & (phase == Phase.FORWARD))
        backward = np.flatnonzero(own & np.isin(phase, (Phase.BACKWARD, Phase.RECOMPUTE)))
        halves = split_backward(step.homes, backward.tolist())
        rows = (forward, np.array(halves.input_gradient, np.int64), np.array(halves.weight_gradient, np.int64))
        first, second, third = (float(seconds[stage, part].sum()) for part in rows)
        took.append((first, second, third))
        if stage:  # the first has no gradient of its inputs, and so no halves
            kept, freed, made = held.kept(forward, backward, halves=True)
            whole, left = whole + kept, left + kept - freed + made
    sent = max((boundary.bytes for boundary in stages.boundaries), default=0) * seconds_per_byte
    forwards, inputs, weights = zip(*took, strict=True)
    return PassTimes(forwards, inputs, weights, sent, min(left / whole, 1.0) if whole else 1.0)
