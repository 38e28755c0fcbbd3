"""Physical model of Mamba's selective scan: one kernel whose blocks go through a channel's sequence, state by state.

A block of ``csrc/selective_scan/selective_scan_fwd_kernel.cuh`` has one channel of one sequence.  For each element of
the state its threads make decays (an exponential each) and what is added, scan them (CUB's block scan: each thread goes
over its elements twice), and add up results; the backward scans again, scans gradients from the end, and adds gradients
of B and C, which all channels share, to memory with atomics.  Each element of a state takes::

    issue   = max(INSTRUCTIONS / (LANES clock SMs), OPERATIONS / (vector peak / 2))
    exp     = 1 / (EXPONENTIALS clock SMs)
    shared  = WORDS / (BANKS clock SMs)
    atomic  = 2 ATOMIC_BYTES / (CACHE_RATE clock SMs)        in the backward
    seconds = launch + ((issue + exp + shared + atomic)^2 + memory^2)^(1/2)

Threads wait for each other after every element of the state, so that the units take turns.  No number was fitted:
counts are of the kernel's source, rates of NVIDIA's documents.  Instructions that are no arithmetic and the accesses of
shared memory came in when a published training step of a Mamba of 1.3B (fla-org/flash-linear-attention, issue 32)
had turned out longer than predicted, by 9 to 26 % on an A100-SXM4-40GB; with them it is predicted within 1 % in one
sequence of 16,384 tokens and 17 % too fast in two of half as many.  On an H100 whose form is not said it is 15 to 32 %
too fast if that is one of PCIe.  No time of the kernel alone is published, hence an interval of a factor of two.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.core.dtypes import DTYPE_CODE
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import arithmetic
from triosim.kernels.estimate import Limit
from triosim.kernels.physical import stream
from triosim.kernels.physical._tables import device_of
from triosim.kernels.physical.predicted import KernelPredictions
from triosim.kernels.work.scan import WIDE, ScanCalls
from triosim.operators.selective_scan import CHUNK, KERNELS

OPERATIONS = (7.0, 24.0)
"""Vector operations of an element of the state, forward and backward (``selective_scan_fwd_kernel.cuh``,
``selective_scan_bwd_kernel.cuh``).  Forward: delta A, B times delta u, a product and a multiply-add when a thread sums
up and again when it gives results, a multiply-add with C.  Backward: delta A, two for delta u B, C times the gradient,
four for each of two scans, and twelve for gradients of u, delta, A, B and C."""
INSTRUCTIONS = (14.0, 41.0)
"""All of them: with the exponential, B and C widened, four accesses of shared memory that put B and C in each thread's
order; in the backward four more that put their gradients back, and addresses, bounds and atomics of these."""
WORDS = (2.0, 6.0)
"""Words of 32 bits of shared memory in those accesses; B and C have 16 bits, their gradients 32."""
LANES, BANKS = 128.0, 32.0
"""Lanes for which a multiprocessor's four schedulers issue in a clock, and words that its shared memory moves (CUDA C++
Programming Guide, "Compute Capabilities")."""
EXPONENTIALS = 16.0
"""Exponentials in a clock of a multiprocessor (CUDA C++ Programming Guide, "Throughput of Native Arithmetic
Instructions"); CDNA's compute units do a quarter of their 64 lanes too."""
CACHE_RATE = 5120 / 108
"""Bytes in a clock and multiprocessor between the last-level cache and the multiprocessors (NVIDIA A100 whitepaper,
"A100 L2 Cache": 5,120 bytes per clock)."""
ATOMIC_BYTES = 8.0
"""Bytes of the last-level cache that an atomic sum of float32 reads and writes."""


def predict(work: ScanCalls, device: Accelerator, launch_s: float) -> KernelPredictions:
    """Seconds of every call on ``device``, with the small kernels that make A of its logarithm and cast parameters.

    Args:
        work: selective scans.
        device: with its compute peak and memory bandwidth.
        launch_s: seconds of a launch.

    Raises:
        InputError: the device has no compute peak or no memory bandwidth.
    """
    d, back = device_of(device), work.backward
    lanes = arithmetic(device).flops[DTYPE_CODE["float32"]] / 2
    cycles = d.clock * d.units
    elements = work.tokens() * work.heads * work.state
    instructions, operations, words = (np.where(back, b, a) for a, b in (INSTRUCTIONS, OPERATIONS, WORDS))
    issue = np.maximum(instructions / (LANES * cycles), operations / lanes)
    atomic = np.where(back, 2 * ATOMIC_BYTES / (CACHE_RATE * cycles), 0.0)
    full = np.minimum(work.sequences * work.heads / d.units, 1.0)  # a block each
    each = issue + 1 / (EXPONENTIALS * cycles) + words / (BANKS * cycles) + atomic
    busy = elements * each / np.maximum(full, 1 / d.units)
    memory = moved(work) / (stream.load()["elementwise"].memory * stream.delivered(device) * d.bandwidth)
    launch = np.where(back, KERNELS[True], KERNELS[False]) * launch_s
    body = np.hypot(busy, memory)
    limit = np.where(busy >= memory, Limit.COMPUTE, Limit.MEMORY)
    limit[launch > body] = Limit.LAUNCH
    return KernelPredictions(launch + body, limit.astype(np.int8))


def moved(work: ScanCalls) -> NDArray[np.float64]:
    """Bytes from and to the memory: u, delta, z and the result before and after the gate, in the backward gradients of
    all but one of these too; B and C twice, for they are put in order, and their gradients in float32; the states that
    are kept of every chunk."""
    kept = 2 * WIDE * work.sequences * np.ceil(work.length / CHUNK) * work.heads * work.state
    shared = np.where(work.backward, 6 + 4 * WIDE / work.item, 6) * work.keys()
    return np.asarray(np.where(work.backward, 9, 5) * work.values() + shared + kept)
