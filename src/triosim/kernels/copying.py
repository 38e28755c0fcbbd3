"""What a copy within a device's memory takes."""

from __future__ import annotations

from triosim.hardware.accelerator import Accelerator
from triosim.kernels.model import PricingJob
from triosim.kernels.pricing import price
from triosim.trace.builder import TraceBuilder
from triosim.trace.tables import Category, Meta, Phase

SAMPLE_BYTES = 256 << 20
"""Size that is priced: parameters or gradients of a large layer, more than any cache."""


def copy_s_per_byte(device: Accelerator) -> float:
    """Seconds that a large copy takes per byte copied: each byte is read and written.

    Where the datasheet says too little to price operators it is two bytes at the memory's bandwidth, and 0 where that
    is not known either.
    """
    if not device.priced:
        return 2 / device.memory_bandwidth if device.memory_bandwidth else 0.0
    made = TraceBuilder()
    shape = (SAMPLE_BYTES // 4,)
    source, target = (made.value(shape, "float32", Category.TEMPORARY) for _ in range(2))
    made.operator("aten::clone", [source], [target], roles=["self"], phase=Phase.FORWARD)
    trace = made.build(Meta(made_by="triosim.kernels"))
    return float(price(PricingJob(trace, device, trace, None)).seconds[0]) / SAMPLE_BYTES
