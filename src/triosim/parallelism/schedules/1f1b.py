"""1F1B: after a warm-up each stage alternates one forward and one backward (PipeDream-Flush, Narayanan et al. 2021)."""

from __future__ import annotations

from triosim.parallelism.schedule import Schedule, Turn
from triosim.registry import registered


@registered
class OneForwardOneBackward(Schedule):
    """As long as GPipe, with at most ``stages - stage`` micro-batches' activations held at a time."""

    def turns(self, stage: int, stages: int, micro_batches: int) -> list[Turn]:
        """``stages - stage - 1`` forwards, then one forward and one backward in turn, then the rest backward."""
        warm_up = min(stages - stage - 1, micro_batches)
        order = [Turn(False, m) for m in range(warm_up)]
        for m in range(warm_up, micro_batches):
            order += [Turn(False, m), Turn(True, m - warm_up)]
        return order + [Turn(True, m) for m in range(micro_batches - warm_up, micro_batches)]
