"""Plans of a training step on a machine, by time of an iteration and memory of the fullest device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from triosim.core.errors import InputError, unknown
from triosim.explore.exploration import Costs, Exploration
from triosim.explore.space import ChoiceSpace, Value, VariedValue
from triosim.fidelity import Fidelity
from triosim.hardware.system import System
from triosim.plan import Plan, divisors
from triosim.search.space import RECOMPUTE, ZERO
from triosim.search.sweep import sweep
from triosim.trace.tables import Trace


class PlanExploration(Exploration):
    """Ways to divide a training step.

    Args:
        workload: one step on one device.
        system: the machine.
        batch: samples per iteration, of all replicas.
        among: values of ``tp``, ``pp``, ``micro-batch-size``, ``recompute`` and ``zero``; what divides the devices or
            the batch where it is left out.
        base, fidelity: of all plans.

    Raises:
        InputError: the batch is below 1, or ``among`` is no table of those axes.
    """

    objectives = ("seconds", "bytes")

    def __init__(
        self, workload: Trace, system: System, batch: int, among: Mapping[str, Sequence[Any]] | None = None,
        base: Plan | None = None, fidelity: Fidelity | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if batch < 1:
            raise InputError(f"a batch of {batch} samples: the least is 1")
        self.workload, self.system, self.batch = workload, system, batch
        self.base = (base or Plan()).replaced(global_batch_size=batch, training=True)
        self.fidelity = fidelity or Fidelity()
        every: dict[str, Sequence[Any]] = {
            "tp": divisors(system.devices), "pp": divisors(system.devices), "micro-batch-size": divisors(batch),
            "recompute": RECOMPUTE, "zero": ZERO,
        }  # fmt: skip
        among = {} if among is None else among
        if not isinstance(among, Mapping):
            raise InputError(f"among is {among!r}: give values by the name of an axis, such as {{'tp': (1, 2)}}")
        for name in among:
            if name not in every:
                raise unknown("axis", name, every)
        self.space = ChoiceSpace(tuple(VariedValue(name, tuple(among.get(name, of))) for name, of in every.items()))

    def evaluated(self, values: dict[str, Value]) -> Costs:
        """See :class:`Exploration`."""
        for name in ("tp", "pp", "micro-batch-size"):
            size = values[name]
            if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
                raise InputError(f"{name} is {size!r}: give a whole number, 1 or more")
        ranks = int(values["tp"]) * int(values["pp"])
        if self.system.devices % ranks:
            raise InputError(f"tp x pp = {ranks} does not divide {self.system.devices} devices")
        dp = self.system.devices // ranks
        each = self.batch // dp
        if self.batch % dp or each % int(values["micro-batch-size"]):
            raise InputError(f"a batch of {self.batch} does not divide among {dp} replicas and their micro-batches")
        asked = {"dp": dp, "micro_batches": each // int(values["micro-batch-size"]), **values}
        del asked["micro-batch-size"]
        (outcome,) = sweep(self.workload, self.system, [asked], base=self.base, fidelity=self.fidelity)
        if outcome.figures is None:
            raise InputError(outcome.why)
        if outcome.figures.fits is False:
            raise InputError("does not fit in memory")
        return outcome.figures.iteration_time_s, float(outcome.figures.reserved_bytes)
