"""What all cuts of a step into stages read of its trace, found once for all of them."""

from __future__ import annotations

import numpy as np

from triosim.core.caching import kept
from triosim.memory.blocks import StepStorages
from triosim.partition.transfers import Transfers
from triosim.trace.tables import Phase, Trace


class UncutStep:
    """Columns of a step that is not cut yet; lists are those that are gone through row by row.

    Args:
        trace: one rank's step.
        transfers: inside it.
        root_only: operators that only the ranks of the first replica run.

    Attributes:
        phase: of each operator.
        skipped, skipped_elsewhere: operators that nothing runs: views; and what other replicas do not run either.
        at_once: operators before the optimizer that the first replica runs for all.
        storage: of each value.
        storages: what they are to memory.
        trains: whether there is a backward.
    """

    def __init__(self, trace: Trace, transfers: Transfers, root_only: frozenset[int]) -> None:
        operators = trace.operators
        root = np.zeros(len(operators), bool)
        root[list(root_only)] = True
        self.phase: list[int] = operators.phase.tolist()
        self.skipped: list[bool] = operators.view.tolist()
        self.skipped_elsewhere: list[bool] = (operators.view | root).tolist()
        self.at_once = root & (operators.phase != Phase.OPTIMIZER)
        self.storage: list[int] = trace.values.storage.tolist()
        self.storages = StepStorages(trace, transfers)
        self.trains = bool(np.any(operators.phase == Phase.BACKWARD))


@kept(8)
def uncut_step(trace: Trace, transfers: Transfers, root_only: frozenset[int]) -> UncutStep:
    """Those of a step."""
    return UncutStep(trace, transfers, root_only)
