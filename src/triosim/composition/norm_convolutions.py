"""Convolutions that take part of the batch norms around them (``batch_norms = "in-convolutions"`` of a stack).

They sum up what the norm needs as they write, and norm and activate what they read: nothing runs between two of them.
What remains is one pass: of the sum with a shortcut in the forward, of the input's gradient in the backward, whose sums
the convolution made that gave the gradient (``NormConvolution`` and ``ScaleBiasAddRelu`` in NVIDIA's ResNet-50 for
MXNet, mlcommons/training_results_v2.1, symbols/resnet-v1b-mainloop-fl.py; the backward's kernels in Paddle's
``FusedDgradDreluBnBwdWeight``: "DgradDreluBnBwdWeight", "DbnApply", "ConvBnWgrad").  Bytes of such a pass are those of
the chain of operators that it stands for: what the convolution reads more to make the sums, the pass does not read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from triosim.operators import canonical, kind
from triosim.trace.tables import NONE, Phase, Trace

BATCH_NORMS = frozenset(("native_batch_norm", "batch_norm", "cudnn_batch_norm"))


class NormConvolutions:
    """Which convolutions of a step take part of the batch norms around them."""

    def __init__(self, trace: Trace) -> None:
        operators, storage = trace.operators, trace.values.storage
        self._names, self._phases = operators.name, operators.phase.tolist()
        self._inputs, self._outputs = (
            [[int(storage[value]) for value in row] for row in column.lists()]
            for column in (operators.inputs, operators.outputs)
        )
        self._makers: dict[int, list[int]] = {}  # of each storage
        self._readers: dict[int, list[int]] = {}
        for row in np.flatnonzero(~operators.view).tolist():
            for at in self._outputs[row]:
                self._makers.setdefault(at, []).append(row)
            for at in self._inputs[row]:
                self._readers.setdefault(at, []).append(row)

    def sums(self, row: int) -> bool:
        """Whether a convolution makes the sums of a batch norm, or of its backward."""
        short, backward = canonical(self._names[row])
        if short not in BATCH_NORMS:
            return False
        if not backward:
            return "pooling" not in {kind(self._names[reader]) for reader in self._forward(self._outputs[row][0])}
        maker = self._maker(self._inputs[row][:1], row)
        while maker != NONE and kind(self._names[maker]) == "elementwise":
            maker = self._maker(self._inputs[maker], maker)
        return maker != NONE and kind(self._names[maker]) == "convolution"

    def norms(self, chain: Sequence[int]) -> int | None:
        """The convolution that norms and activates what it reads instead of a chain; None where that is a kernel."""
        names = {canonical(self._names[row])[0] for row in chain}
        if self._phases[chain[-1]] != Phase.FORWARD or not names & BATCH_NORMS or "add" in names:
            return None
        own = set(chain)
        readers = [row for row in self._forward(self._outputs[chain[-1]][0]) if row not in own]
        alone = bool(readers) and all(kind(self._names[row]) == "convolution" for row in readers)
        return readers[0] if alone else None

    def _maker(self, storages: Sequence[int], before: int) -> int:
        """The last operator before a row that made, or changed, one of these."""
        return max((row for at in storages for row in self._makers.get(at, ()) if row < before), default=NONE)

    def _forward(self, at: int) -> list[int]:
        """What reads a storage in the forward."""
        return [row for row in self._readers.get(at, ()) if self._phases[row] == Phase.FORWARD]
