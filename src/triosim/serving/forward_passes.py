"""Forward passes of one network by the number of samples: seconds, joules and bytes, predicted on first use.

Powers of two are predicted as ``triosim infer`` predicts them; between them all is linear in the number of samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.energy.account import Energy
from triosim.hardware.system import System
from triosim.kernels.estimate import Z90
from triosim.plan import Plan
from triosim.prediction.result import Result
from triosim.prediction.simulate import simulate
from triosim.serving.kernel_times import NOTHING_MOVED, KernelErrors
from triosim.serving.request_energy import JOULES
from triosim.stacks import Stack
from triosim.trace.tables import Trace

CAUSES: Mapping[str, str] = {
    "matrix products": "products", "convolutions": "products", "attention": "attention", "the network": "network",
}  # fmt: skip
"""Causes of uncertainty of a prediction as classes of kernels that are off together; all others are ``others``."""


@dataclass(frozen=True)
class ForwardPass:
    """One pass.

    Attributes:
        seconds: that it takes.
        joules: of all its devices by :data:`triosim.serving.request_energy.JOULES`, shape (4,); None where nobody
            knows what they draw.
        reserved: bytes on the fullest device: weights and what the pass needs beside them.
    """

    seconds: float
    joules: NDArray[np.float64] | None
    reserved: float


@dataclass
class ForwardPasses:
    """Of one network.

    Attributes:
        trace: of one sample, without times.
        system: the machine.
        first: the device from which on others run it.
        tensor_parallel, context_parallel: how many share its layers, and its tokens.
        context_style: how the latter exchange what attention needs.
        ulysses: of these, under ``usp``, those that exchange heads.
        stack: what runs it, as of :mod:`triosim.stacks`; plain PyTorch if None.
        moved: how far off its kernels are.
    """

    trace: Trace
    system: System
    first: int = 0
    tensor_parallel: int = 1
    context_parallel: int = 1
    context_style: str = "ulysses"
    ulysses: int = 0
    stack: Stack | None = None
    moved: KernelErrors = NOTHING_MOVED
    _known: dict[int, ForwardPass] = field(init=False, repr=False, default_factory=dict)
    _deviations: KernelErrors | None = field(init=False, repr=False, default=None)
    _base: ForwardPasses | None = field(init=False, repr=False, default=None)

    def with_errors(self, moved: KernelErrors) -> ForwardPasses:
        """The same passes with kernels that are off by so much, which are not predicted again."""
        made = replace(self, moved=moved)
        made._base = self
        return made

    def of(self, samples: int) -> ForwardPass:
        """Of so many samples, at least 1.

        Raises:
            InputError: the network does not divide among the devices.
        """
        low = 1 << (samples.bit_length() - 1)
        below = self._predicted(low)
        if samples == low:
            return below
        above, share = self._predicted(2 * low), samples / low - 1
        joules = None
        if below.joules is not None and above.joules is not None:
            joules = below.joules + share * (above.joules - below.joules)
        return ForwardPass(
            below.seconds + share * (above.seconds - below.seconds), joules,
            below.reserved + share * (above.reserved - below.reserved),
        )  # fmt: skip

    def _predicted(self, samples: int) -> ForwardPass:
        found = self._unmoved(samples)
        return found if self.moved == NOTHING_MOVED else replace(found, seconds=found.seconds * self._off())

    def _unmoved(self, samples: int) -> ForwardPass:
        if self._base is not None:
            return self._base._unmoved(samples)
        found = self._known.get(samples)
        if found is None:
            result = self._result(samples)
            energy = result.energy
            joules = None if energy is None else _parts(energy)
            reserved = result.memory.reserved_bytes + result.memory.context_bytes
            found = self._known[samples] = ForwardPass(result.iteration_time_s, joules, reserved)
        return found

    def _result(self, samples: int) -> Result:
        sharing = self.context_parallel
        devices = tuple(range(self.first, self.first + self.tensor_parallel * sharing))
        by_tokens: dict[str, Any] = {"cp": sharing, "cp_style": self.context_style} if sharing > 1 else {}
        if sharing > 1 and self.ulysses:
            by_tokens["parallelism_options"] = {"cp-ulysses": str(self.ulysses)}
        plan = Plan(
            dp=sharing, tp=self.tensor_parallel, batch_size=samples, training=False, placement=devices,
            stack=self.stack, **by_tokens,
        )  # fmt: skip
        return simulate(self.trace, self.system, plan, fit=False)

    def _off(self) -> float:
        """By what factor times are off, from the causes of the uncertainty of a pass of one sample."""
        return math.exp(sum(z * deviation for z, deviation in zip(self.moved, self._each(), strict=True)))

    def _each(self) -> KernelErrors:
        """Logarithm of the factor of each class of kernels that is off by a standard deviation."""
        if self._base is not None:
            return self._base._each()
        if self._deviations is None:
            result = self._result(1)
            low, high = result.interval_s
            deviation = math.log(high / low) / 2 / Z90
            variance = dict.fromkeys(KernelErrors._fields, 0.0)
            for cause in result.uncertainty:
                variance[CAUSES.get(cause.name, "others")] += cause.share
            self._deviations = KernelErrors(*(deviation * math.sqrt(part) for part in variance.values()))
        return self._deviations


def _parts(energy: Energy) -> NDArray[np.float64]:
    """Joules by part; what devices draw between operators, and for their links, is static."""
    known = {name: energy.parts_j.get(name, 0.0) for name in ("memory", "cache")}
    known["flop"] = sum(energy.parts_j.values()) - sum(known.values()) - energy.parts_j.get("static", 0.0)
    known["static"] = sum(row.count * row.energy_j for row in energy.devices) - sum(known.values())
    return np.array([known[name] for name in JOULES])


def fitting(fixed: float, one: ForwardPass, two: ForwardPass, capacity: float) -> int:
    """Samples that fit into a device beside ``fixed`` bytes of other weights, by the memory of one and of two."""
    each = max(two.reserved - one.reserved, 1.0)
    return max(int((capacity - fixed - one.reserved) // each) + 1, 0)
