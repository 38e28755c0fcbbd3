"""Convolutions: what one call does, as columns; forward, and the gradients of the input and the weight."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.operators import ConvolutionWork
from triosim.trace.calls import calls_of
from triosim.trace.tables import ITEM_BYTES, Trace


@dataclass(frozen=True)
class ConvolutionCalls:
    """Convolutions of ``images`` images, one row per call.

    A transposed convolution is the gradient of the input of the convolution that has its output as input.  Of more
    than two dimensions all but the last are multiplied into one.

    Attributes:
        images: independent inputs, the batch.
        in_channels, out_channels: of one group.
        groups: independent convolutions of the channels.
        in_rows, in_columns, out_rows, out_columns: positions of input and output.
        kernel_rows, kernel_columns: of the weight.
        stride: input positions per output position, all dimensions together.
        forward: the output is computed.
        data_gradient, weight_gradient, bias_gradient: these gradients are computed, in one call.
        accumulates: the gradient of the input is added to an earlier one, by another kernel.
        channels_last: whether channels of a pixel lie side by side, rather than the pixels of a channel.
        dtype: index into :data:`~triosim.trace.tables.DTYPES` of the type that is multiplied.
        item: bytes of an element of input, weight and output.
    """

    images: NDArray[np.float64]
    in_channels: NDArray[np.float64]
    out_channels: NDArray[np.float64]
    groups: NDArray[np.float64]
    in_rows: NDArray[np.float64]
    in_columns: NDArray[np.float64]
    out_rows: NDArray[np.float64]
    out_columns: NDArray[np.float64]
    kernel_rows: NDArray[np.float64]
    kernel_columns: NDArray[np.float64]
    stride: NDArray[np.float64]
    forward: NDArray[np.bool_]
    data_gradient: NDArray[np.bool_]
    weight_gradient: NDArray[np.bool_]
    bias_gradient: NDArray[np.bool_]
    accumulates: NDArray[np.bool_]
    dtype: NDArray[np.int8]
    item: NDArray[np.float64]
    channels_last: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.images)

    def taps(self) -> NDArray[np.float64]:
        """Positions of the weight."""
        return self.kernel_rows * self.kernel_columns

    def passes(self) -> NDArray[np.float64]:
        """How many of output, input gradient and weight gradient are computed."""
        return self.forward.astype(float) + self.data_gradient + self.weight_gradient

    def flop(self) -> NDArray[np.float64]:
        """Floating-point operations of the direct algorithm; a multiply-add counts two."""
        out = self.images * self.groups * self.out_channels * self.out_rows * self.out_columns
        return 2.0 * out * self.in_channels * self.taps() * self.passes()

    def input_bytes(self) -> NDArray[np.float64]:
        """Bytes of the input, or of its gradient."""
        return self.item * self.images * self.groups * self.in_channels * self.in_rows * self.in_columns

    def output_bytes(self) -> NDArray[np.float64]:
        """Bytes of the output, or of its gradient."""
        return self.item * self.images * self.groups * self.out_channels * self.out_rows * self.out_columns

    def weight_bytes(self) -> NDArray[np.float64]:
        """Bytes of the weight, or of its gradient."""
        return self.item * self.groups * self.out_channels * self.in_channels * self.taps()

    def bytes(self) -> NDArray[np.float64]:
        """Bytes of input, weight and output (or their gradients), once for each pass."""
        return (self.input_bytes() + self.output_bytes() + self.weight_bytes()) * self.passes()

    def take(self, rows: NDArray) -> ConvolutionCalls:
        """These rows only."""
        return ConvolutionCalls(*(getattr(self, field.name)[rows] for field in fields(self)))


def of(trace: Trace, rows: NDArray[np.int64], dtype: NDArray[np.int8]) -> ConvolutionCalls:
    """The convolutions of a trace's operators of kind ``convolution``; all must have their FLOP counted.

    Args:
        trace: the operators.
        rows: operators to be taken.
        dtype: element type that each of ``rows`` multiplies (see :func:`triosim.kernels.classes.classify`).
    """
    columns = np.array(calls_of(trace).work(rows, ConvolutionWork), np.float64).reshape(len(rows), 17)
    images, deep, wide, groups, rows_in, columns_in, rows_out, columns_out, high, broad, stride = columns[:, :11].T
    forward, data, weight, bias, accumulates, channels_last = columns[:, 11:].T > 0
    return ConvolutionCalls(
        images, deep, wide, groups, rows_in, columns_in, rows_out, columns_out, high, broad, stride, forward, data,
        weight, bias, accumulates, dtype.astype(np.int8), ITEM_BYTES[dtype], channels_last,
    )  # fmt: skip


def convolution(
    images: NDArray, in_channels: NDArray, out_channels: NDArray, side: NDArray, kernel: int, dtype: int
) -> ConvolutionCalls:
    """Forward convolutions of square images with padding that keeps the size and no stride."""
    one = np.ones(len(images))
    yes = np.ones(len(images), bool)
    size = kernel * one
    return ConvolutionCalls(
        images, in_channels, out_channels, one, side, side, side, side, size, size, one, yes, ~yes, ~yes, ~yes, ~yes,
        np.full(len(images), dtype, np.int8), ITEM_BYTES[dtype] * one, ~yes,
    )  # fmt: skip
