"""Products and convolutions on a core of a processor.

::

    seconds = launch + flop / (reach * peak) + bytes / (memory * bandwidth)

A core has no tiles to hand out and no waves of them: well-shaped products and convolutions of every size run at one
rate, and what a matrix of weights, read once for a few rows, takes from memory comes on top, since the same core copies
it into the order that its units want (Goto, van de Geijn: "Anatomy of High-Performance Matrix Multiplication", ACM TOMS
34(3), 2008).  The constants are those of a class of kernels, which a calibration brings to the processor at hand.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from triosim.core.dtypes import DTYPES
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import Multiplication, multiplication
from triosim.kernels.estimate import Limit
from triosim.kernels.physical import _constants
from triosim.kernels.physical.convolution import ConvolutionConstants
from triosim.kernels.physical.gemm import TUNED, GemmConstants
from triosim.kernels.physical.predicted import KernelPredictions
from triosim.kernels.work.convolution import ConvolutionCalls
from triosim.kernels.work.gemm import Gemm


def products(work: Gemm, device: Accelerator, constants: Mapping[str, GemmConstants]) -> KernelPredictions:
    """Seconds of each product, and what binds it; arguments as of :func:`triosim.kernels.physical.gemm.predict`."""
    seconds, limit = np.empty(len(work)), np.empty(len(work), np.int8)
    for code, tuned in sorted({*zip(work.dtype.tolist(), work.tuned.tolist(), strict=True)}):
        how = multiplication(device, DTYPES[code])
        own = constants[TUNED if tuned and how.unit == "narrow" else how.unit]
        rows = np.flatnonzero((work.dtype == code) & (work.tuned == tuned))
        seconds[rows], limit[rows] = _predicted(work.take(rows), device, how, own, np.full(len(rows), own.launch_s))
    return KernelPredictions(seconds, limit)


def convolutions(
    work: ConvolutionCalls, device: Accelerator, constants: Mapping[str, ConvolutionConstants]
) -> KernelPredictions:
    """Seconds of each convolution, all its passes together, and what binds it; arguments as of
    :func:`triosim.kernels.physical.convolution.predict`."""
    seconds, limit = np.empty(len(work)), np.empty(len(work), np.int8)
    for code in np.unique(work.dtype).tolist():
        how = multiplication(device, DTYPES[code])
        own = constants["simt" if how.unit == "simt" else "tensor"]
        rows = np.flatnonzero(work.dtype == code)
        part = work.take(rows)
        seconds[rows], limit[rows] = _predicted(part, device, how, own, own.launch_s * part.passes())
    return KernelPredictions(seconds, limit)


def _predicted(
    work: Gemm | ConvolutionCalls, device: Accelerator, how: Multiplication, own: GemmConstants | ConvolutionConstants,
    launch_s: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.int8]]:  # fmt: skip
    """Of kernels of one element type, whose launches take ``launch_s``."""
    compute = work.flop() / (own.reach * device.peak(how.dtype) * how.rate)
    memory = work.bytes() / (own.memory * _constants.bandwidth(device))
    limit = np.where(compute >= memory, Limit.COMPUTE, Limit.MEMORY)
    limit[launch_s > compute + memory] = Limit.LAUNCH
    return launch_s + compute + memory, limit.astype(np.int8)
