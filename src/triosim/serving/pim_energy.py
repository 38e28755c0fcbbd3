"""Joules of steps where memory computes: what the banks take over, and what they draw for it.

Decodes of a step are taken to be alike, as many and as long as they are in the mean over the steps.  Where their
attention, or a product, is quicker on the banks (:mod:`triosim.serving.pim`), its FLOP are not the processor's and its
bytes do not pass the pins; a bank reads them, and vectors and scores go to and fro.
"""

from __future__ import annotations

from dataclasses import field, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.serving.kernel_times import Seconds, ServingKernels
from triosim.serving.pim import ALL, OFF, PimKernels, PimWork
from triosim.serving.request_energy import StepLoad


class BankShare(NamedTuple):
    """What the banks of all devices of a replica take over.

    Attributes:
        flop: operations that the processor has no more.
        bytes: that no longer pass the memory's pins.
        joules: of the banks and of what goes to and fro.
    """

    flop: float
    bytes: float
    joules: float


@dataclass(frozen=True)
class BankedProducts(PimKernels):
    """Kernels that note each product that goes to the banks.

    Attributes:
        taken: what it asks of them, of one layer and device.
    """

    taken: list[PimWork] = field(default_factory=list)

    def _product(self, rows: NDArray, columns: float, inner: float, apart: bool = True) -> Seconds:
        own = ServingKernels._product(self, rows, columns, inner, apart)
        work = self.product_work(np.asarray(rows, np.float64), columns, inner)
        if (work.seconds(self.memory) < own).all():
            self.taken.append(work)
        return own


def bank_share(kernels: PimKernels, load: StepLoad) -> BankShare:
    """Of steps, one or many together."""
    if kernels.mode == OFF or not load.decoded:
        return BankShare(0.0, 0.0, 0.0)
    each = np.array([load.decoded / load.steps]), np.array([load.context / load.decoded])
    found: list[tuple[PimWork, float]] = []
    if kernels.decode(*each) < ServingKernels.decode(kernels, *each):
        found.append((kernels.attention_work(*each), load.steps))
    alone = load.steps - min(load.steps, load.share * len(load.chunks))  # beside prompts, products have many rows
    if kernels.mode == ALL and alone:
        products = BankedProducts(**{own.name: getattr(kernels, own.name) for own in fields(PimKernels)})
        products.operators(each[0])
        found += [(work, alone) for work in products.taken]
    copies = kernels.model.layers * kernels.tensor_parallel
    flop, moved, joules = (
        copies * sum(times * float(part(work)[0]) for work, times in found)
        for part in (lambda work: work.flop, lambda work: work.bytes, lambda work: work.joules(kernels.memory))
    )
    return BankShare(flop, moved, joules)
