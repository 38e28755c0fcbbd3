"""Attention: what one call attends to, as columns; prefill, decoding, grouped and latent heads, windows, gradients."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_CODE
from triosim.operators import ATTENTION_KERNELS, AttentionWork
from triosim.trace.calls import calls_of
from triosim.trace.tables import ITEM_BYTES, Trace

FAMILIES = ("auto", "flash2", "flash3", "trtllm", "triton", "torch", "cudnn", "flash1", "paged")
"""Kernel families.  ``auto``: the one that the device's architecture would run (see
:func:`triosim.kernels.physical.attention.family_of`).  ``flash2``: FlashAttention-2 and FlashInfer with the matrix
instructions of Ampere and Ada; ``flash3``: FlashAttention-3 (Hopper); ``trtllm``: TensorRT-LLM's kernels (Blackwell);
``triton``: SGLang's and vLLM's kernels in Triton; ``torch``: PyTorch's own FlashAttention, which on Hopper is the
second version and elsewhere what ``auto`` is; ``cudnn``: the best that the vendor has for the device; ``flash1``: the
first version of FlashAttention; ``paged``: those of serving engines, which on NVIDIA's GPUs before Hopper decode from a
paged cache by FlashInfer's or their own, and elsewhere are what ``auto`` is."""


_FAMILY_OF_KERNEL = np.array([FAMILIES.index(name) for name in ATTENTION_KERNELS], np.int8)


@dataclass(frozen=True)
class AttentionCalls:
    """Attention of ``queries`` new positions over ``keys`` positions, one row per call.

    Attributes:
        batch: sequences.
        queries: query positions of each sequence; 1 in decoding.
        keys: positions attended to, the new ones included.
        heads: query heads.
        kv_heads: key and value heads: equal to ``heads``, fewer (grouped-query), one (multi-query, latent).
        head: length of a query's and key's head.
        head_v: length of a value's head.
        window: positions that one query sees at most (sliding window); 0 where there is no window.
        causal: whether a query sees no later position.
        latent: whether values are part of the keys (multi-head latent attention), so that they are not read again.
        stores: whether the call also writes the new keys and values into a paged cache, as serving does.
        backward: the gradients of query, key and value instead of the output.
        warm: whether keys and values may lie in the last-level cache, as when a benchmark repeats one call.
        dtype: index into :data:`~triosim.trace.tables.DTYPES` of the type that is multiplied.
        q_bytes, kv_bytes: bytes of an element of queries (and outputs), and of keys and values.
        family: index into :data:`FAMILIES`.
    """

    batch: NDArray[np.float64]
    queries: NDArray[np.float64]
    keys: NDArray[np.float64]
    heads: NDArray[np.float64]
    kv_heads: NDArray[np.float64]
    head: NDArray[np.float64]
    head_v: NDArray[np.float64]
    window: NDArray[np.float64]
    causal: NDArray[np.bool_]
    latent: NDArray[np.bool_]
    stores: NDArray[np.bool_]
    backward: NDArray[np.bool_]
    warm: NDArray[np.bool_]
    dtype: NDArray[np.int8]
    q_bytes: NDArray[np.float64]
    kv_bytes: NDArray[np.float64]
    family: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.batch)

    def take(self, rows: NDArray) -> AttentionCalls:
        """These rows only."""
        return AttentionCalls(*(getattr(self, field.name)[rows] for field in fields(self)))

    def unlimited(self) -> AttentionCalls:
        """The same calls without their windows."""
        return replace(self, window=np.zeros(len(self)))

    def decodes(self) -> NDArray[np.bool_]:
        """Whether a call continues sequences by a few positions, which is bound by reading their keys and values."""
        return (self.queries <= 16) & (self.keys > self.queries) & ~self.backward

    def seen(self) -> NDArray[np.float64]:
        """Positions that one query sees, on average over the queries of a sequence."""
        last = self.keys
        first = np.where(self.causal, np.maximum(last - self.queries + 1, 1), last)
        window = np.where(self.window > 0, self.window, np.inf)
        growing = np.clip(np.minimum(last, window) - first + 1, 0, None)  # rows before the window is full
        full = np.maximum(last - np.maximum(first - 1, window), 0)  # rows that see a whole window
        count = np.where(first < last, last - first + 1, 1)
        with np.errstate(invalid="ignore"):
            summed = growing * (first + np.minimum(last, window)) / 2 + np.where(full > 0, full * window, 0)
        return np.where(first < last, summed / count, np.minimum(last, window))

    def pairs(self) -> NDArray[np.float64]:
        """Pairs of a query and a key that are multiplied, over all heads and sequences."""
        return self.batch * self.heads * self.queries * self.seen()

    def flop(self) -> NDArray[np.float64]:
        """Floating-point operations: two products forward, five backward, of 2 x pairs x head size each."""
        forward = 2.0 * (self.head + self.head_v)
        backward = 2.0 * (3 * self.head + 2 * self.head_v)  # QK' again, dV, dP, dQ, dK
        return self.pairs() * np.where(self.backward, backward, forward)

    def key_bytes(self) -> NDArray[np.float64]:
        """Bytes of the keys and values that are attended to, each once; a window hides the oldest."""
        window = np.where(self.window > 0, self.window + self.queries - 1, np.inf)
        width = self.head + np.where(self.latent, 0.0, self.head_v)
        return self.batch * self.kv_heads * np.minimum(self.keys, window) * width * self.kv_bytes

    def query_bytes(self) -> NDArray[np.float64]:
        """Bytes of queries and outputs, each once."""
        return self.batch * self.heads * self.queries * (self.head + self.head_v) * self.q_bytes

    def stored_bytes(self) -> NDArray[np.float64]:
        """Bytes of the new keys and values, read and written; 0 where the call does not store them."""
        width = self.head + np.where(self.latent, 0.0, self.head_v)
        new = self.batch * self.kv_heads * self.queries * width * (self.q_bytes + self.kv_bytes)
        return np.where(self.stores, new, 0.0)

    def gradient_bytes(self) -> NDArray[np.float64]:
        """Bytes of the kernels around that of the gradients.

        One reads the output and its gradient and makes their sums, one clears what the query's gradient adds up in, in
        float32, and one reads that and casts it (``flash_bwd_preprocess_kernel.h`` and
        ``flash_bwd_launch_template.h`` of FlashAttention).
        """
        query = self.batch * self.heads * self.queries
        return np.where(self.backward, query * (2 * self.head_v * self.q_bytes + 8 * self.head), 0.0)

    def bytes(self) -> NDArray[np.float64]:
        """Bytes read and written, each tensor once; the backward reads the gradient and writes three."""
        return self.stored_bytes() + (self.key_bytes() + self.query_bytes()) * np.where(self.backward, 2.0, 1.0)


def attention(
    batch: NDArray | float, queries: NDArray | float, keys: NDArray | float, heads: NDArray | float,
    kv_heads: NDArray | float, head: NDArray | float, dtype: str = "bfloat16", *, head_v: NDArray | float | None = None,
    window: NDArray | float = 0.0, causal: bool = True, latent: bool = False, stores: bool = False,
    backward: bool = False, warm: bool = False, kv_dtype: str | None = None, family: str = "auto",
) -> AttentionCalls:  # fmt: skip
    """Calls of one element type; numbers and arrays are broadcast against each other.

    Args:
        kv_dtype: type that keys and values are kept in; ``dtype`` where not given.

    Raises:
        KeyError: a type is not one of :data:`~triosim.trace.tables.DTYPES`.
        ValueError: ``family`` is not one of :data:`FAMILIES`.
    """
    sizes = (batch, queries, keys, heads, kv_heads, head, head if head_v is None else head_v, window)
    columns = [np.array(x, np.float64, ndmin=1) for x in np.broadcast_arrays(*sizes)]
    count = len(columns[0])
    flags = [np.full(count, flag) for flag in (causal, latent, stores, backward, warm)]
    code = DTYPE_CODE[dtype]
    item, kv_item = float(ITEM_BYTES[code]), float(ITEM_BYTES[DTYPE_CODE[kv_dtype or dtype]])
    types = (np.full(count, code, np.int8), np.full(count, max(item, 2.0)), np.full(count, kv_item))
    row: list[Any] = [*columns, *flags, *types, np.full(count, FAMILIES.index(family), np.int8)]
    return AttentionCalls(*row)


def of(trace: Trace, rows: NDArray[np.int64], dtype: NDArray[np.int8]) -> AttentionCalls:
    """The attention operators among a trace's operators.

    Shapes are (..., heads, positions, head size), or (batch, positions, heads, head size) for ``_flash_attention`` and
    ``_efficient_attention``, as PyTorch has them; ``window_size_left`` gives a window.  A call whose shapes are not
    known becomes one head of as many positions as its counted FLOP need.

    Args:
        trace: operators with FLOP counted.
        rows: operators to be taken.
        dtype: element type that each of ``rows`` multiplies (see :func:`triosim.kernels.classes.classify`).
    """
    sizes = np.array(calls_of(trace).work(rows, AttentionWork), np.float64).reshape(
        len(rows), len(AttentionWork._fields)
    )
    item = np.asarray(ITEM_BYTES[dtype], np.float64)
    no = np.zeros(len(rows), bool)
    batch, queries, keys, heads, kv_heads, head, head_v, window, causal, backward, kernel = sizes.T
    return AttentionCalls(
        batch, queries, keys, heads, kv_heads, head, head_v, window, causal > 0, no, no, backward > 0, no,
        dtype.astype(np.int8), np.maximum(item, 1.0), item, _FAMILY_OF_KERNEL[kernel.astype(np.int64)],
    )  # fmt: skip
