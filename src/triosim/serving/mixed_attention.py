"""Attention of a step that holds prompts, in one call with its decodes, as FlashAttention-2 over a paged cache does it.

A thread block takes a tile of ``TILE`` queries of one head along their keys, ``STEP`` at a time.  In a call that holds
a prompt, decodes are treated alike: a block for each query head (heads that share keys are not packed), and keys are
not split over blocks, so that they cost more than alone.  Every sequence has as many blocks as the longest chunk has
tiles; those without work end at once::

    step     = 4 TILE STEP head / (peak / SMs)
    work     = (prefill * steps of prompts + decode * steps of decodes) * step + idle * idle blocks
    longest  = max(prefill_chain * steps of the longest tile, decode_chain * steps of the longest decode) * step
    memory   = bytes of all keys and values / (bandwidth_fraction * bandwidth)
    seconds  = launch + max(work / SMs + longest, memory)

``bandwidth_fraction`` is low because each query head reads the keys that it shares.  Constants are those of
``data/mixed_attention.json`` (validation/fit/serving_attention.py); devices differ by their datasheets alone.

Source: Dao, FlashAttention-2, arXiv:2307.08691, section 3 (blocks over batch, heads and tiles of queries).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import lru_cache
from typing import Any, NamedTuple

from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_CODE
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import arithmetic
from triosim.kernels.physical._constants import bandwidth
from triosim.serving.fitted import document

SCHEMA = "triosim/mixed-attention/1"
TILE = 64
STEP = 128


@dataclass(frozen=True)
class MixedConstants:
    """See the module's docstring.

    Attributes:
        launch_s: seconds.
        prefill, decode, prefill_chain, decode_chain: in units of a step at peak.
        idle_s: seconds of a multiprocessor for a block without work.
        bandwidth_fraction: of the datasheet's.
    """

    launch_s: float
    prefill: float
    decode: float
    prefill_chain: float
    decode_chain: float
    idle_s: float
    bandwidth_fraction: float


class MixedWork(NamedTuple):
    """What one call does, of one query head (numbers, or arrays of equal shape).

    Attributes:
        prefill_steps, decode_steps: of all blocks.
        longest_prefill, longest_decode: steps of the longest block.
        idle_blocks: that have no work.
        keys: in the cache, of all sequences.
    """

    prefill_steps: Any
    decode_steps: Any
    longest_prefill: Any
    longest_decode: Any
    idle_blocks: Any
    keys: Any


@lru_cache(maxsize=1)
def constants() -> MixedConstants:
    """Those that come with the program."""
    found = document("mixed_attention", SCHEMA)
    return MixedConstants(**{own.name: float(found["constants"][own.name]) for own in fields(MixedConstants)})


def work_of(chunks: Iterable[tuple[int, int]], decodes: int, context: float) -> MixedWork:
    """What a step does.

    Args:
        chunks: tokens of each prompt's chunk, and tokens in the cache before it.
        decodes: sequences that decode.
        context: keys of each, the mean.
    """
    steps = longest = most = tiles_all = sequences = keys = 0
    for tokens, cached in chunks:
        tiles = -(-tokens // TILE)
        seen = cached + min(TILE * (tiles + 1) / 2, tokens)  # of a tile, the mean
        steps += tiles * -(-int(seen) // STEP)
        longest = max(longest, -(-(cached + tokens) // STEP))
        most = max(most, tiles)
        tiles_all += tiles
        sequences += 1
        keys += cached + tokens
    each = -(-int(context) // STEP) if decodes else 0
    idle = most * (sequences + decodes) - tiles_all - decodes
    return MixedWork(steps, decodes * each, longest, each, idle, keys + decodes * context)


@dataclass(frozen=True)
class MixedDevice:
    """Rates of a device for attention of a model's heads.

    Attributes:
        units: multiprocessors.
        step_s: seconds of a step at peak.
        heads: query heads of the device.
        bytes_s: seconds to read a key and its value of all heads at the datasheet's bandwidth.
    """

    units: float
    step_s: float
    heads: float
    bytes_s: float

    @staticmethod
    def of(
        device: Accelerator, heads: float, kv_heads: float, head: int, kv_bytes: float, dtype: str = "bfloat16"
    ) -> MixedDevice:
        """For heads of a length, with elements of the cache of so many bytes and queries of a type.

        Raises:
            InputError: the device has no compute peak or no memory bandwidth.
        """
        units = float(device.compute_units or 100)
        peak = float(arithmetic(device).flops[DTYPE_CODE[dtype]])
        step = 4.0 * TILE * STEP * head / (peak / units)
        return MixedDevice(units, step, heads, 2 * kv_heads * head * kv_bytes / bandwidth(device))


def seconds(work: MixedWork, on: MixedDevice, c: MixedConstants, largest: Callable[..., Any] = max) -> Any:
    """Of one call; ``largest`` of two numbers, or of two arrays.

    See the module's docstring.
    """
    blocks = (c.prefill * work.prefill_steps + c.decode * work.decode_steps) * on.step_s + c.idle_s * work.idle_blocks
    longest = largest(c.prefill_chain * work.longest_prefill, c.decode_chain * work.longest_decode) * on.step_s
    memory = work.keys * on.bytes_s / c.bandwidth_fraction
    return c.launch_s + largest(on.heads * blocks / on.units + longest, memory)
