"""Layers that keep a state of fixed size of each sequence: Mamba-2 and gated delta networks, as servers see them.

A head has a state of ``size`` x ``state`` elements that every token decays and adds to, and the short convolution
before it keeps the inputs of ``window - 1`` tokens (Dao & Gu, arXiv:2405.21060; Yang et al., arXiv:2412.06464).
Neither grows with the sequence.  Engines store the former in a type of its own, the latter in 16 bits.
"""

from __future__ import annotations

from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_BYTES
from triosim.core.errors import unknown

STATE_TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""Types of states by name."""

CONVOLVED_BYTES = 2
"""Of an element that the convolution keeps: of the type of the model."""


def state_type_of(name: str) -> str:
    """Element type of states by name.

    Raises:
        InputError: there is none.
    """
    if name not in STATE_TYPES:
        raise unknown("type of states", name, STATE_TYPES)
    return STATE_TYPES[name]


@dataclass(frozen=True)
class ServedState:
    """What a layer keeps of a sequence in place of keys and values, or beside them.

    Attributes:
        heads, size: of values, and elements of one.
        groups, state: heads of queries and keys (C and B of Mamba-2), and elements of one.
        window: places of the convolution of values, queries and keys.
        chunk: tokens that the scan of a prompt multiplies with each other.
        delta: whether the state is corrected before it is added to (gated delta rule), not gated afterwards (Mamba-2).
        normed: whether the result is normed as it is gated.
        regrouped: whether what is made group by group has to be sorted before the convolution.
        scaled: whether what is made is multiplied by a number for each channel.
    """

    heads: int
    size: int
    groups: int
    state: int
    window: int
    chunk: int
    delta: bool = False
    normed: bool = True
    regrouped: bool = False
    scaled: bool = False

    def shares(self, tensor_parallel: int) -> tuple[float, float]:
        """Heads of values and of keys on one device: each has the keys that its values need, a group at least."""
        return self.heads / tensor_parallel, max(self.groups / tensor_parallel, 1.0)

    def values(self, tensor_parallel: int = 1) -> float:
        """Elements of a token's values on one device; its gates and results are as many."""
        return self.heads / tensor_parallel * self.size

    def convolved(self, tensor_parallel: int = 1) -> float:
        """Channels of the convolution on one device: values, queries and keys."""
        _, groups = self.shares(tensor_parallel)
        return self.values(tensor_parallel) + 2 * groups * self.state

    def made(self, tensor_parallel: int = 1) -> float:
        """Elements that the products before the convolution make of a token on one device: what is convolved, gates,
        and steps for each head, of the delta rule rates too."""
        steps = (2 if self.delta else 1) * self.heads / tensor_parallel
        return self.convolved(tensor_parallel) + self.values(tensor_parallel) + steps

    def parameters(self, width: int) -> int:
        """Of its products, on a residual stream of so many elements."""
        return round(width * (self.made() + self.values()))

    @property
    def between(self) -> int:
        """Elements of a token between its products."""
        return round(self.made() + self.values())

    def elements(self, tensor_parallel: int = 1) -> float:
        """Of a sequence's state on one device, the inputs of the convolution left out."""
        return self.values(tensor_parallel) * self.state

    def kept(self, tensor_parallel: int = 1) -> float:
        """Inputs of the convolution that are kept of a sequence on one device."""
        return self.convolved(tensor_parallel) * (self.window - 1)

    def bytes(self, state_type: str, tensor_parallel: int = 1) -> float:
        """Of a sequence in one layer on one device."""
        return self.elements(tensor_parallel) * DTYPE_BYTES[state_type] + self.kept(tensor_parallel) * CONVOLVED_BYTES

    @property
    def update_flop(self) -> float:
        """Of one token: products with the state as a scan counts them (:func:`triosim.operators.scan.forward_flop`),
        which the value is added to and the query reads; of the delta rule the key reads it before."""
        return 2.0 * ((3 if self.delta else 2) * self.elements() + self.window * self.convolved())
