"""Decoding with memory that computes: attention over the cache, and products, on the cheaper side.

An operator on the banks takes::

    command + vectors in / broadcast + max(bytes * passes / (banks * bank_bandwidth), FLOP / (banks * bank_flops))
            + results out / gather

where ``passes = ceil(vectors that read the same matrix / vectors that one reading serves)``; matrices lie evenly over
all banks.  Attention is two of them, over the keys and over the values, with the scores exchanged twice between: out to
where the softmax is taken, and back.  The heads of a group read the same keys.

With two sub-batches the banks attend for one half while the processor multiplies for the other, so that a layer takes
``2 max(products of a half, attention of a half)``; that is done where it is shorter.  An operator goes to the banks
where that takes less time than on the processor; prompts stay on the processor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_BYTES, DTYPE_CODE
from triosim.hardware.pim import PimMemory
from triosim.serving.kernel_times import Seconds, ServingKernels

ATTENTION, ALL, OFF = "attention", "all", "off"
MODES = (ATTENTION, ALL, OFF)
"""What may go to the banks."""
_VECTOR = 2.0
"""Bytes of an element of queries, scores and results: 16 bits."""


@dataclass(frozen=True)
class PimWork:
    """What an operator asks of the banks, arrays of equal shape.

    Attributes:
        bytes: of the matrices, read ``passes`` times.
        passes: over them.
        flop: operations.
        sent, gathered: bytes of vectors and results.
        exchanged: bytes of scores, both ways together.
    """

    bytes: NDArray[np.float64]
    passes: float | NDArray[np.float64]
    flop: NDArray[np.float64]
    sent: NDArray[np.float64]
    gathered: NDArray[np.float64]
    exchanged: NDArray[np.float64]

    def parts(self, pim: PimMemory) -> dict[str, Seconds]:
        """Seconds of each part; their sum is the operator's."""
        reading, computing = self.bytes * self.passes / pim.bandwidth, self.flop / pim.flops
        return {
            "command": np.full(self.bytes.shape, pim.command_s),
            "broadcast": self.sent / pim.broadcast_bandwidth,
            "banks": np.where(reading >= computing, reading, 0.0),
            "units": np.where(reading >= computing, 0.0, computing),
            "exchange": self.exchanged / pim.exchange_bandwidth,
            "gather": self.gathered / pim.gather_bandwidth,
        }

    def seconds(self, pim: PimMemory) -> Seconds:
        """Of the operator."""
        return np.asarray(sum(self.parts(pim).values()), np.float64)

    def joules(self, pim: PimMemory) -> NDArray[np.float64]:
        """Of the banks and of what goes to and fro; what scores take on their way counts as transfers."""
        read, moved = self.bytes * self.passes, self.sent + self.gathered + self.exchanged
        found = read * pim.bank_j_per_byte + self.flop * pim.j_per_flop + moved * pim.transfer_j_per_byte
        return np.asarray(found, np.float64)


@dataclass(frozen=True)
class PimReport:
    """Attention of one layer of a decode step on both sides.

    Attributes:
        memory: that computes.
        mode: one of :data:`MODES`.
        processor_s, banks_s: what it takes on either side alone.
        exposed_s: what it adds to the step: of the cheaper side, less what is hidden behind products.
        parts_s: of ``banks_s``.
        processor_j, banks_j: joules of the bytes and operations on either side; None where the processor's datasheet
            does not say what it draws.
    """

    memory: str
    mode: str
    processor_s: float
    banks_s: float
    exposed_s: float
    parts_s: Mapping[str, float]
    processor_j: float | None
    banks_j: float

    @property
    def runs(self) -> str:
        """Where it runs, in words."""
        if self.exposed_s < min(self.processor_s, self.banks_s):
            return f"in {self.memory}, while the processor multiplies for the other half of the batch"
        return f"in {self.memory}" if self.banks_s < self.processor_s else "on the processor"

    @property
    def binds(self) -> str:
        """The part that takes longest on the banks."""
        return max(self.parts_s, key=lambda name: self.parts_s[name])


@dataclass(frozen=True)
class PimKernels(ServingKernels):
    """Kernels of a device with memory that computes.

    Attributes:
        mode: one of :data:`MODES`.
    """

    mode: str = ATTENTION

    @property
    def memory(self) -> PimMemory:
        """That computes."""
        assert self.device.pim is not None
        return self.device.pim

    def attention_work(self, sequences: ArrayLike, keys: ArrayLike) -> PimWork:
        """What attention of one layer asks of the banks, for sequences with so many keys each."""
        _, own = self.model.alike("--pim")
        heads, kv_heads = self._heads(own)
        count, length = np.broadcast_arrays(np.asarray(sequences, np.float64), np.asarray(keys, np.float64))
        cached = 2 * count * length * kv_heads * own.head * DTYPE_BYTES[self.kv_type]
        vectors = count * heads * own.head * _VECTOR
        return PimWork(
            bytes=cached, passes=float(np.ceil(heads / kv_heads / self.memory.vectors)),
            flop=4 * count * length * heads * own.head, sent=vectors, gathered=vectors,
            exchanged=2 * count * heads * length * _VECTOR,
        )  # fmt: skip

    def product_work(self, rows: NDArray[np.float64], columns: float, inner: float) -> PimWork:
        """What a product with a matrix of weights asks of the banks."""
        weights = columns * inner * self.precision.weight_bytes
        return PimWork(
            bytes=np.full(rows.shape, weights), passes=np.ceil(rows / self.memory.vectors),
            flop=2 * rows * columns * inner, sent=rows * inner * _VECTOR, gathered=rows * columns * _VECTOR,
            exchanged=np.zeros(rows.shape),
        )  # fmt: skip

    def report(self, sequences: int, keys: float) -> PimReport:
        """Both sides of attention of one layer of a decode step, and where it runs."""
        from triosim.energy.constants import EnergyConstants
        from triosim.energy.device import device_energy

        work = self.attention_work([sequences], [keys])
        here = float(ServingKernels.decode(self, [sequences], [keys])[0])
        there = float(work.seconds(self.memory)[0])
        shown = float(self.decode([sequences], [keys])[0])
        energy = device_energy(self.device, EnergyConstants())
        joules = None
        if energy is not None:
            flop_j = float(energy.flop_j[DTYPE_CODE["bfloat16"]])
            joules = float(work.bytes[0]) * energy.memory_j_per_byte + float(work.flop[0]) * flop_j
        return PimReport(
            memory=self.memory.name, mode=self.mode, processor_s=here, banks_s=there, exposed_s=shown,
            parts_s={name: float(seconds[0]) for name, seconds in work.parts(self.memory).items()}, processor_j=joules,
            banks_j=float(work.joules(self.memory)[0]),
        )  # fmt: skip

    def decode(self, sequences: ArrayLike, keys: ArrayLike) -> Seconds:
        """See :meth:`ServingKernels.decode`; the part of it that nothing hides, on the cheaper side."""
        own = super().decode(sequences, keys)
        return own if self.mode == OFF else np.minimum(own, self._in_banks(sequences, keys))

    def _in_banks(self, sequences: ArrayLike, keys: ArrayLike) -> Seconds:
        """What nothing hides of a layer's attention in the banks."""
        found = self.attention_work(sequences, keys).seconds(self.memory)
        if self.memory.sub_batches > 1 and self.mode == ATTENTION:  # else the banks multiply, too
            found = np.minimum(found, self._exposed(np.asarray(sequences, np.float64), np.asarray(keys, np.float64)))
        return found

    def _exposed(self, sequences: NDArray[np.float64], keys: NDArray[np.float64]) -> Seconds:
        """What a layer takes beyond its products where two halves of the batch take turns; never for one sequence."""
        count, length = np.broadcast_arrays(sequences, keys)
        half = np.ceil(count / 2)
        sizes, row = np.unique(np.concatenate([half.ravel(), count.ravel()]), return_inverse=True)
        layers = self.layer(sizes)[row]
        of_half, of_all = (part.reshape(count.shape) for part in (layers[: half.size], layers[half.size :]))
        both = 2 * np.maximum(of_half, self.attention_work(half, length).seconds(self.memory))
        return np.where(count > 1, np.maximum(both - of_all, 0.0), np.inf)

    def together(self, chunks: Any, decodes: int, context: float) -> float:
        """See :meth:`ServingKernels.together`: decodes leave the one call for the banks where that is shorter."""
        found = super().together(chunks, decodes, context)
        if self.mode == OFF or not decodes:
            return found
        prompts = super().together(chunks, 0, 0.0) if chunks else 0.0
        return min(found, prompts + float(self._in_banks([decodes], [context])[0]))

    def _product(self, rows: NDArray, columns: float, inner: float, apart: bool = True) -> Seconds:
        own = super()._product(rows, columns, inner, apart)
        if self.mode != ALL:
            return own
        return np.minimum(own, self.product_work(np.asarray(rows, np.float64), columns, inner).seconds(self.memory))
