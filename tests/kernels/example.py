"""Small traces and devices that the tests of operator times share."""

from __future__ import annotations

from dataclasses import replace

from triosim.hardware.accelerator import Accelerator
from triosim.kernels.model import PricingJob
from triosim.trace.builder import TraceBuilder
from triosim.trace.tables import BATCH, Category, Meta, Phase, Trace
from triosim.transform.rescale import rescale

DEVICE = Accelerator(
    name="Example",
    vendor="NVIDIA",
    architecture="Ampere",
    process="7 nm",
    compute_units=100,
    clock_hz=1.5e9,
    cache_bytes=40_000_000,
    tdp_w=400.0,
    peak_flops={"float32": 1e13, "tfloat32": 8e13, "bfloat16": 2e14},
    memory_bandwidth=1e12,
)
OTHER = replace(
    DEVICE, name="Faster", peak_flops={k: 2 * v for k, v in DEVICE.peak_flops.items()}, memory_bandwidth=2e12
)
UNKNOWN = Accelerator(name="")


def step(batch: int = 8, dtype: str = "float32", measured: bool = True) -> Trace:
    """A linear layer, its activation, a view of it, and an optimizer step on the weight."""
    b = TraceBuilder()
    x = b.value((batch, 1024), dtype, Category.INPUT, symbols=(BATCH, 0))
    w = b.value((4096, 1024), dtype, Category.WEIGHT)
    y = b.value((batch, 4096), dtype, Category.ACTIVATION, symbols=(BATCH, 0))
    z = b.value((batch, 4096), dtype, Category.ACTIVATION, symbols=(BATCH, 0))
    v = b.value((batch, 64, 64), dtype, Category.ACTIVATION, storage=3, symbols=(BATCH, 0, 0))
    g = b.value((4096, 1024), dtype, Category.GRADIENT, of=w)
    times = iter((40e-6, 5e-6, float("nan"), 30e-6) if measured else [float("nan")] * 4)
    b.operator("aten::linear", [x, w], [y], roles=["input", "weight"], phase=Phase.FORWARD, device_s=next(times))
    b.operator("aten::relu", [y], [z], roles=["self"], phase=Phase.FORWARD, device_s=next(times))
    b.operator("aten::view", [z], [v], roles=["self"], phase=Phase.FORWARD, view=True, device_s=next(times))
    b.operator(
        "aten::_foreach_add_", [w, g], [b.next_version(w)], roles=["self", "other"], phase=Phase.OPTIMIZER,
        device_s=next(times),
    )  # fmt: skip
    return b.build(Meta("test", workload="step", batch_size=batch, clock="gpu", symbols="model"))


def job(
    batch: int = 8, device: Accelerator = DEVICE, recorded_on: Accelerator | None = DEVICE, measured: bool = True
) -> PricingJob:
    """The step recorded at batch 8, to be priced at another."""
    recorded = step(8, measured=measured)
    return PricingJob(rescale(recorded, batch) if batch != 8 else recorded, device, recorded, recorded_on)


def one(
    name: str,
    inputs: list[tuple],
    output: tuple,
    dtype: str | list[str] = "bfloat16",
    roles: list[str] | None = None,
    device_s: float = float("nan"),
    out_dtype: str | None = None,
) -> Trace:
    """A trace of one operator."""
    b = TraceBuilder()
    types = dtype if isinstance(dtype, list) else [dtype] * len(inputs)
    reads = [b.value(shape, t, Category.ACTIVATION) for shape, t in zip(inputs, types, strict=True)]
    out = b.value(output, out_dtype or types[0], Category.ACTIVATION)
    b.operator(name, reads, [out], roles=roles or [""] * len(reads), phase=Phase.FORWARD, device_s=device_s)
    return b.build(Meta("test", workload="one", clock="gpu"))
