"""What one call asks of the device: the contract between operators and the models of kernels.

A call is one of a few kinds of arithmetic (:class:`Product`, :class:`Convolution`, ...), or it moves bytes
(:class:`MovedBytes`).  :mod:`triosim.kernels.work` puts these into columns.
"""

from __future__ import annotations

import math
from typing import NamedTuple

STREAMS = (
    "elementwise", "reduction", "copy", "softmax", "layer_norm", "batch_norm", "embedding", "pooling", "optimizer",
    "loss", "index", "create", "other", "register_norm", "nhwc_norm",
    "half_batch_norm",
)  # fmt: skip
"""Classes of kernels that move bytes."""

INDEX = 8.0
"""Bytes of an index (PyTorch's are of 64 bits)."""
SECTOR = 32.0
"""Bytes of memory that reading or writing one element alone takes."""


class ProductWork(NamedTuple):
    """``times`` times ``batch`` matrix products of (m, k) and (k, n)."""

    m: float
    n: float
    k: float
    batch: float
    times: float

    @staticmethod
    def cube(flop: float) -> ProductWork:
        """One product of equal sides with so many FLOP, where shapes do not tell the sizes."""
        side = _side(flop)
        return ProductWork(side, side, side, 1.0, 1.0)


class ConvolutionWork(NamedTuple):
    """One convolution as :class:`triosim.kernels.work.convolution.ConvolutionCalls` has it in columns."""

    images: float
    in_channels: float
    out_channels: float
    groups: float
    in_rows: float
    in_columns: float
    out_rows: float
    out_columns: float
    kernel_rows: float
    kernel_columns: float
    stride: float
    forward: bool
    data_gradient: bool
    weight_gradient: bool
    bias_gradient: bool
    accumulates: bool
    channels_last: bool = False

    @staticmethod
    def cube(flop: float) -> ConvolutionWork:
        """A window of one position and as many images as channels, where shapes do not tell the sizes."""
        side = _side(flop)
        ones = (1.0,) * 8
        return ConvolutionWork(side, side, side, *ones, True, False, False, False, False)


SCALES, ROWS = "scales", "rows"
"""Argument of a product of 8 bits whose operands have a scale for each row (a token, a channel), and its value."""
TURNED = "turned"
"""Argument of a cast that writes its result the other way round."""
HALF = 2.0
"""Bytes of an element of 16 bits."""
LAYOUT, CHANNELS_LAST = "memory_format", "channels_last"
"""Argument of a convolution or batch norm that says how its images lie, and the value where the channels of a pixel lie
side by side; without it they lie channel by channel."""


ATTENTION_KERNELS = ("auto", "torch", "cudnn", "flash1", "flash2", "flash3")
"""What an attention says of its kernel: nothing; the FlashAttention that PyTorch has built in or that the package
``flash_attn`` brings, which are its second version; cuDNN's; or a version of FlashAttention that was asked for."""


SPREAD = "spread"
"""Argument that a rule adds where it has dealt out the positions of a sequence so that all ranks see equally many."""
BLOCKS = "blocks"
"""Argument that a rule adds where an attention is some of several blocks of keys, ``[2, 4]`` for 2 of 4.  Its queries
and keys are those of one block, whose positions are dealt out as with :data:`SPREAD`."""
DOCUMENTS = "documents"
"""Argument of an attention over packed documents, ``[0.98, 512.0]``: part of the positions that hold some, and their
length."""
SHARE = "share"
"""Argument that a rule adds where an attention does a part of the work of one over all its keys."""


class AttentionWork(NamedTuple):
    """One attention as :class:`triosim.kernels.work.attention.AttentionCalls` has it in columns.

    ``kernel`` is an index into :data:`ATTENTION_KERNELS`.
    """

    batch: float
    queries: float
    keys: float
    heads: float
    kv_heads: float
    head: float
    head_v: float
    window: float
    causal: bool
    backward: bool
    kernel: int = 0

    @staticmethod
    def cube(flop: float) -> AttentionWork:
        """One head of as many positions as so many FLOP need, where shapes do not tell the sizes."""
        side = max(math.sqrt(flop / (4.0 * 128)), 1.0) if flop > 0 else 1.0
        return AttentionWork(1.0, side, side, 1.0, 1.0, 128.0, 128.0, 0.0, False, False)


class ExpertsWork(NamedTuple):
    """What one call of a mixture of experts multiplies.

    Attributes:
        tokens: rows.
        topk: experts that each row is multiplied by, 1 where rows are sorted by expert.
        hidden: length of a row.
        inner: length inside an expert, of one of the two matrices in; columns of a single product.
        experts: experts whose weights are there.
        matrices: 3 for a gated layer, 2 for one that is not, 1 for a single product.
        packed: elements in one element of the stored weights.
        times: products of this size, 2 for a backward that yields both gradients.
        family: one of the kernel families of :mod:`triosim.kernels.work.moe`.
    """

    tokens: float
    topk: float
    hidden: float
    inner: float
    experts: float
    matrices: int
    packed: float
    times: float
    weight: int
    family: str = "triton"

    @staticmethod
    def cube(flop: float) -> ExpertsWork:
        """One expert of as many tokens as so many FLOP need, where shapes do not tell the sizes."""
        side = _side(flop)
        return ExpertsWork(side, 1.0, side, side, 1.0, 1, 1.0, 1.0, -1)

    def flop(self) -> float:
        """Floating-point operations, a multiply-add counts two."""
        return 2.0 * self.tokens * self.topk * self.hidden * self.inner * self.matrices * self.times


class ScanWork(NamedTuple):
    """One scan along sequences (:mod:`triosim.operators.scan`).

    Attributes:
        sequences, length: how many, and tokens of each.
        heads, groups: of values, and of keys and queries (B and C of Mamba-2).
        state, head: elements of a key and of a value; their product is the state's of a head.
        chunk: tokens that are multiplied with each other.
        window: places of the convolution before it, 0 for none.
        delta: whether the state is corrected before it is added to (delta rule), not gated afterwards (Mamba-2).
        backward: whether it is the gradient.
        normed: whether the result is normed as it is gated.
        selective: whether each of ``heads`` channels decays each element of its state by itself (Mamba; ``head`` is 1).
        by_element: whether each element of a key decays by itself (Kimi's delta rule).
    """

    sequences: float
    length: float
    heads: float
    groups: float
    state: float
    head: float
    chunk: float
    window: float = 0.0
    delta: bool = False
    backward: bool = False
    normed: bool = False
    selective: bool = False
    by_element: bool = False

    @staticmethod
    def cube(flop: float) -> ScanWork:
        """One head with a state of 64 x 64 and as many tokens as so many FLOP need, where shapes tell no sizes."""
        length = max(flop / (2.0 * 3 * 64 * 64), 1.0) if flop > 0 else 1.0
        return ScanWork(1.0, length, 1.0, 1.0, 64.0, 64.0, 64.0)


class MovedBytes(NamedTuple):
    """What one call moves.

    Attributes:
        stream: one of :data:`STREAMS`.
        read, written: bytes.
        rows: what costs a unit time one by one: rows that are summed over (positions of a softmax or layer norm,
            channels of a batch norm), and elements that a pooling finds the window of; 1 where there is nothing such.
        row_bytes: bytes of one row; 0 where there are none.
        kernels: how many kernels the call launches.
    """

    stream: str
    read: float
    written: float
    rows: float = 1.0
    row_bytes: float = 0.0
    kernels: float = 1.0

    def by_rows(self, size: float, length: float, item: float) -> MovedBytes:
        """The same, going over ``size`` elements in rows of ``length``."""
        if not length or not size:
            return self
        return self._replace(rows=size / length, row_bytes=length * item)


def _side(flop: float) -> float:
    return max((flop / 2.0) ** (1 / 3), 1.0) if flop > 0 else 1.0


Work = ProductWork | ConvolutionWork | AttentionWork | ExpertsWork | ScanWork
