"""Attention with sinks in vLLM's Triton kernel, in one call for all prompts and decodes of a step.

FlashAttention-2 knows no sinks, so that on devices older than Hopper vLLM takes ``kernel_unified_attention_2d`` of its
``vllm/attention/ops/triton_unified_attention.py`` for such models.  A program has ``ROWS`` rows, the queries of heads
that share keys, and goes along their keys ``KEYS`` at a time; programs share no keys, and the keys of a sequence are
not split where the step holds a prompt::

    queries  = ROWS / heads that share keys, of a program
    steps    = sum over programs of seen keys / KEYS
    seconds  = launch + key heads * steps * cost * (4 ROWS KEYS head / peak)

``launch`` is that of FlashAttention-2's call (``mixed_attention.json``).  So few rows keep the matrix units waiting for
keys and for each row's maximum: ``cost`` is in units of a step at peak, the one constant of
``data/triton_attention.json`` (validation/fit/triton_attention.py).  Tiles that a window hides are not gone through.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

from triosim.core.dtypes import DTYPE_CODE
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import arithmetic
from triosim.kernels.physical.attention import family_of
from triosim.serving.fitted import document
from triosim.serving.mixed_attention import constants

SCHEMA = "triosim/triton-attention/1"
ROWS, KEYS = 16, 32
"""Of a program's tile where prompts are in the call (``BLOCK_M``, ``TILE_SIZE_PREFILL`` of ``unified_attention``)."""


def runs_on(device: Accelerator) -> bool:
    """Whether vLLM takes it for sinks there: NVIDIA's devices that run FlashAttention-2."""
    return device.vendor == "NVIDIA" and family_of(device) == "flash2"


@lru_cache(maxsize=1)
def cost() -> float:
    """Of a step, in units of one at peak: the constant that comes with the program."""
    return float(document("triton_attention", SCHEMA)["cost"])


def steps(chunks: Iterable[tuple[int, int]], decodes: int, context: float, shared: float, window: int = 0) -> float:
    """Tiles of keys that the programs of one key head go through.

    Args:
        chunks: tokens of each prompt's chunk, and tokens in the cache before it.
        decodes: sequences that decode, a program each.
        context: keys of each, the mean.
        shared: query heads that share keys.
        window: keys that a query sees at most; 0 for all.
    """
    queries = max(ROWS // shared, 1.0)
    larger = max(2.0 ** math.ceil(math.log2(shared)) / ROWS, 1.0)  # tiles of more heads than rows
    seen_most = window + queries - 1 if window else float("inf")
    total = 0.0
    for tokens, cached in chunks:
        full = max(min(seen_most - cached, tokens), 0.0)  # of its tokens those that see all before them
        seen = full * (cached + (full + queries) / 2) + (tokens - full) * min(seen_most, cached + tokens)
        total += seen / queries / KEYS + tokens / queries / 2  # the last tile is half empty in the mean
    return larger * (total + decodes * (min(seen_most, context) / KEYS + 0.5))


def seconds(device: Accelerator, dtype: str, kv_heads: float, head: int, found: float) -> float:
    """Of a call on a device whose key heads go through so many tiles each."""
    peak = float(arithmetic(device).flops[DTYPE_CODE[dtype]])
    return constants().launch_s + kv_heads * found * cost() * 4.0 * ROWS * KEYS * head / peak
