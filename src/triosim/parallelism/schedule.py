"""The interface of pipeline schedules: in which order a stage runs its micro-batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from triosim.registry import Registry

SCHEDULES = Registry("triosim.parallelism.schedules", "triosim.parallelism", "pipeline schedule")
"""Pipeline schedules by name (``--schedule``)."""


class Turn(NamedTuple):
    """One micro-batch's forward or backward on a stage."""

    backward: bool
    micro_batch: int


class Schedule(ABC):
    """Orders the work of one pipeline stage.  One subclass a file in ``parallelism/schedules``."""

    @abstractmethod
    def turns(self, stage: int, stages: int, micro_batches: int) -> list[Turn]:
        """What ``stage`` of ``stages`` runs, in order; every micro-batch once forward and once backward."""
