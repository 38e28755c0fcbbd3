"""A processor without a datasheet, described by what it was seen to do.

Recorded steps of a CPU run on one thread, whose share of the chip's peak no catalog has.  So its figures are measured:
the peak is the best rate of any product or convolution in each element type, the bandwidth the best of any copy or
elementwise operator that moves more than the caches hold.  How far kernels stay below that is for the calibration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from triosim.core.dtypes import DTYPES
from triosim.core.errors import InputError
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.classes import classify
from triosim.operators import kind
from triosim.trace.tables import Trace

MEASURED = "measured"
"""``confidence`` of a device that was described so."""
_FEW = 5
"""As many operators count for the bandwidth, those that move most, where none moves more than the caches hold."""


def described(trace: Trace, machine: Mapping[str, float] | None = None) -> Accelerator:
    """The processor that a trace was recorded on.

    Args:
        trace: with operator times.
        machine: ``clock_hz``, ``cache_bytes``, and ``threads`` that shared a kernel, where they are known.

    Raises:
        InputError: the trace has no product or convolution, or nothing that moves bytes, to take a rate from.
    """
    operators, machine = trace.operators, machine or {}
    name, threads = trace.meta.device or "cpu", int(machine.get("threads", 1))
    device = Accelerator(name, kind="cpu", peak_flops={"float32": 1.0}, memory_bandwidth=1.0)
    classified = classify(trace, device)
    seconds = operators.device_s
    rate = np.divide(operators.flop, seconds, out=np.zeros(len(trace)), where=(seconds > 0) & (operators.flop > 0))
    peaks = {
        DTYPES[code]: float(rate[classified.dtype == code].max())
        for code in np.unique(classified.dtype[rate > 0]).tolist()
        if code >= 0
    }
    copies = np.array([kind(name) in ("copy", "elementwise") for name in operators.name], bool)
    streams = copies & ~operators.view & (seconds > 0) & (operators.bytes > 0)
    if not peaks or not streams.any():
        raise InputError(
            f"trace {trace.meta.workload!r} has too little to describe {name!r} by: name its device with --device"
        )
    moved = operators.bytes[streams]
    enough = min(2 * machine.get("cache_bytes", np.inf), float(np.sort(moved)[-_FEW:][0]))
    bandwidth = float((moved / seconds[streams])[moved >= enough].max())
    return Accelerator(
        name, kind="cpu", compute_units=threads, clock_hz=machine.get("clock_hz"), peak_flops=peaks,
        memory_bandwidth=bandwidth, cache_bytes=int(machine["cache_bytes"]) if "cache_bytes" in machine else None,
        confidence=MEASURED,
        notes=f"{'one thread' if threads == 1 else f'{threads} threads'}; figures are the best that was measured",
    )  # fmt: skip


def machine() -> dict[str, float]:
    """Clock and last-level cache of the processor that this program runs on, where the system tells."""
    found: dict[str, float] = {}
    rates = [float(x) * 1e3 for x in _read("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").split()]
    rates += [float(x) * 1e6 for x in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", _read("/proc/cpuinfo"), re.MULTILINE)]
    if rates:
        found["clock_hz"] = max(rates)
    sizes = [_read(path) for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    bytes_ = [float(m[1]) * {"K": 2**10, "M": 2**20}[m[2]] for s in sizes if (m := re.match(r"(\d+)([KM])", s))]
    if bytes_:
        found["cache_bytes"] = max(bytes_)
    return found


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
