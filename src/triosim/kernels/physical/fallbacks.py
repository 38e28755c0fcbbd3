"""What PyTorch runs where the libraries have no kernel for bfloat16: GPUs that emulate it.

* **Attention.**  No fused kernel takes bfloat16 below compute capability 8.0 (``sdp_utils.cpp``: the memory-efficient
  kernels take float16 and float32 there, FlashAttention nothing), so ``_scaled_dot_product_attention_math`` spells it
  out: queries, keys and values become float32, two products per head, and between them the scores go through memory
  for the mask, the softmax and the rows that see nothing.
* **Convolutions.**  cuDNN takes bfloat16 from 8.0 on (``supportsBFloat16ConvolutionWithCuDNNv8``); below, PyTorch's own
  ``slow_conv2d`` lays the columns of one image out in memory (im2col), multiplies, and goes on to the next image.

Products are priced by the model of matrix products, the rest by the bytes that it moves.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.core.dtypes import DTYPES
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.estimate import Limit
from triosim.kernels.physical import gemm as products
from triosim.kernels.physical import stream
from triosim.kernels.physical.predicted import KernelPredictions
from triosim.kernels.work.attention import AttentionCalls
from triosim.kernels.work.convolution import ConvolutionCalls
from triosim.kernels.work.gemm import gemm
from triosim.kernels.work.stream import CODE, Stream

_FLOAT = 4.0
_SCORE_BYTES = 8.0 + 8.0 + 14.0
"""Bytes of a score forward: adding the mask, softmax, and zeros for rows that see nothing (a comparison, its
reduction, a choice)."""
_SCORE_GRADIENT_BYTES = 9.0 + 12.0
"""The same backward: the choice, and the softmax's gradient from it, its output and its input's gradient."""
_KERNELS, _GRADIENT_KERNELS = 12.0, 10.0
"""Kernels besides the products: casts and scales of queries, keys and values, those of the scores, the cast back."""


def attention(work: AttentionCalls, device: Accelerator) -> KernelPredictions:
    """Seconds of attention spelled out in float32.

    Raises:
        InputError: the device has no compute peak or no memory bandwidth.
    """
    heads = work.batch * work.heads
    scores = heads * work.queries * work.keys
    # forward QK' and PV; backward two products of each
    inner = _products(device, work.queries, work.keys, work.head, heads, "float32")
    outer = _products(device, work.queries, work.head_v, work.keys, heads, "float32")
    times = np.where(work.backward, 2.0, 1.0)
    operands = heads * (work.queries * (work.head + work.head_v) + work.keys * (work.head + work.head_v))
    moved = operands * (work.q_bytes + 3 * _FLOAT)  # cast, then scaled
    moved = moved + scores * np.where(work.backward, _SCORE_GRADIENT_BYTES, _SCORE_BYTES)
    rest = _moves(device, moved, np.where(work.backward, _GRADIENT_KERNELS, _KERNELS))
    multiplied = times * (inner + outer)
    return KernelPredictions(multiplied + rest, _limit(multiplied, rest))


def convolution(work: ConvolutionCalls, device: Accelerator) -> KernelPredictions:
    """Seconds of convolutions image by image.

    Raises:
        InputError: the device has no compute peak or no memory bandwidth.
    """
    seconds, multiplied = np.zeros(len(work)), np.zeros(len(work))
    calls = work.images * work.groups
    for code in np.unique(work.dtype).tolist():
        at = work.dtype == code
        w, dtype, each = work.take(at), DTYPES[code], calls[at]
        positions, column = w.out_rows * w.out_columns, w.in_channels * w.taps()
        plain = (w.taps() == 1) & (w.stride == 1)  # a product of the image as it lies
        columns = np.where(plain, 0.0, positions * column * w.item)
        image = w.in_channels * w.in_rows * w.in_columns * w.item
        layout = np.where(plain, 0.0, _moves(device, image + columns, np.ones(len(w))))
        gemms = {
            "forward": (w.out_channels, positions, column),
            "data_gradient": (column, positions, w.out_channels),
            "weight_gradient": (w.out_channels, column, positions),
        }
        for name, sizes in gemms.items():
            asked = getattr(w, name)
            one = _products(device, *sizes, np.ones(len(w)), dtype)
            multiplied[at] += np.where(asked, each * one, 0.0)
            seconds[at] += np.where(asked, each * (one + layout), 0.0)
    return KernelPredictions(seconds, _limit(multiplied, seconds - multiplied))


def _products(
    device: Accelerator, m: NDArray, n: NDArray, k: NDArray, batch: NDArray, dtype: str
) -> NDArray[np.float64]:
    return products.predict(gemm(m, n, k, dtype, batch), device, products.load().constants).seconds


def _moves(device: Accelerator, moved: NDArray, kernels: NDArray) -> NDArray[np.float64]:
    """Seconds of elementwise kernels that read and write so many bytes together."""
    half, zero = moved / 2, np.zeros(len(moved))
    rows = np.full(len(moved), CODE["elementwise"], np.int8)
    return stream.predict(Stream(rows, half, half, zero + 1, zero, kernels), device).seconds


def _limit(multiplied: NDArray, rest: NDArray) -> NDArray[np.int8]:
    return np.where(multiplied >= rest, Limit.COMPUTE, Limit.MEMORY).astype(np.int8)
