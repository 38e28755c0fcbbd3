"""GPipe: all micro-batches forward, then all backward (Huang et al. 2019)."""

from __future__ import annotations

from triosim.parallelism.schedule import Schedule, Turn
from triosim.registry import registered


@registered
class GPipe(Schedule):
    """All forward turns first; the pipeline drains once between forward and backward."""

    def turns(self, stage: int, stages: int, micro_batches: int) -> list[Turn]:
        """Forward 0..m-1, then backward 0..m-1."""
        return [Turn(backward, m) for backward in (False, True) for m in range(micro_batches)]
