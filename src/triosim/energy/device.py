"""What a device draws: watts that it always takes, joules of each operation and of each byte.

From a datasheet, by three assumptions, each a row of ``constants.csv`` with its interval:

* a working device draws :func:`triosim.hardware.power.static_w` whatever its clock, an idle one ``idle_w``;
* a product that reaches ``device.attained`` of the dense peak of its type draws the TDP, so that a FLOP takes
  ``(TDP - static) / (attained x peak)``;
* a kernel that moves bytes at the full bandwidth draws ``idle + device.memory_share (TDP - idle)``.  Of what that
  leaves above ``static`` the memory takes its energy per bit (by its type); caches and wires on the chip take the rest.

A calibration (``triosim calibrate --power``) replaces what it measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPES
from triosim.energy.constants import EnergyConstants
from triosim.hardware import power
from triosim.hardware.accelerator import Accelerator
from triosim.kernels.arithmetic import arithmetic

_BITS = 8.0
_PICO = 1e-12
MEMORIES = ("HBM", "GDDR", "LPDDR", "DDR", "MRDIMM", "SRAM")
"""Kinds of memory as names begin or contain them, the longer first where one is part of another."""
STATIC_SPREAD = math.log(1.3)
"""Natural logarithm of the factor of the 90 % interval of static watts; chosen."""
DATASHEET = "its datasheet, and the static share of devices under power caps (hardware/power.json)"


@dataclass(frozen=True)
class DeviceEnergy:
    """What a device draws at its full clock.

    Attributes:
        static_w: while it works, whatever its clock.
        idle_w: while nothing runs.
        tdp_w: what it draws at most.
        flop_j: joules of a FLOP by element type (row of :data:`~triosim.core.dtypes.DTYPES`), shape ``(types,)``.
        memory_j_per_byte: read from or written to its memory.
        cache_j_per_byte: moved through its caches.
        spreads: natural logarithm of the factor of the 90 % interval of ``static``, ``idle``, ``flop``, ``memory``,
            ``cache``.
        source: where they are from.
    """

    static_w: float
    idle_w: float
    tdp_w: float
    flop_j: NDArray[np.float64]
    memory_j_per_byte: float
    cache_j_per_byte: float
    spreads: Mapping[str, float]
    source: str


def memory_kind(device: Accelerator) -> str:
    """The row of the table that holds for the memory of a device: ``"HBM"``, ``"GDDR"``, ..., or ``"other"``."""
    return next((kind for kind in MEMORIES if kind in device.memory_type.upper()), "other")


def device_energy(device: Accelerator, constants: EnergyConstants) -> DeviceEnergy | None:
    """What a device draws, from its datasheet; None where its TDP, a peak or its memory bandwidth is not known.

    Args:
        device: with the figures of its datasheet.
        constants: the table; what is read of it is noted there.
    """
    if device.design is not None:
        return _of_design(device)
    tdp, static = device.tdp_w, power.static_w(device)
    if tdp is None or static is None or not device.priced:
        return None
    assert device.memory_bandwidth is not None
    attained, part = constants.get("device.attained"), constants.get("device.memory_share")
    idle, idle_spread = device.idle_w, math.log(1.3)
    if idle is None:
        share = constants.get("device.idle_share")
        idle, idle_spread = share.value * tdp, share.spread
    idle = min(idle, static)
    flop_j = (tdp - static) / (attained.value * arithmetic(device).flops)
    memory = constants.get(_memory_row(device))
    memory_j = memory.value * _BITS * _PICO
    moving = (idle + part.value * (tdp - idle) - static) / device.memory_bandwidth
    spreads = {
        "static": STATIC_SPREAD, "idle": idle_spread, "flop": attained.spread, "memory": memory.spread,
        "cache": math.hypot(part.spread, STATIC_SPREAD),
    }  # fmt: skip
    return DeviceEnergy(
        static, idle, tdp, flop_j, memory_j, max(moving - memory_j, 0.0), spreads,
        f"{device.name or 'the device'}: {DATASHEET}",
    )  # fmt: skip


def _of_design(device: Accelerator) -> DeviceEnergy | None:
    """What a design draws: leakage while nothing runs, at most all units and its memory at once.

    What runs pays its own leakage (:class:`~triosim.kernels.estimate.OperatorJoules`), so that there is no static power
    beside it.
    """
    if device.clock_hz is None or device.memory_bandwidth is None or not device.compute_units:
        return None
    from triosim.accelerator import designs  # takes long to load, and few devices are designs

    takes = designs.joules(designs.contents(device), device.clock_hz)
    memory_j = takes.word_j / takes.word_bytes
    most = device.compute_units * takes.compute_j * device.clock_hz + memory_j * device.memory_bandwidth
    memory, compute, chip = (math.log(factor) for factor in takes.factors)
    spreads = {"static": 0.0, "idle": 0.0, "flop": compute, "memory": memory, "cache": chip}
    return DeviceEnergy(
        0.0, takes.leak_w, device.tdp_w or takes.leak_w + most, np.full(len(DTYPES), takes.compute_j / 2), memory_j,
        0.0, spreads, f"{device.name}: its design, level by level, and leakage where it is stated",
    )  # fmt: skip


def _memory_row(device: Accelerator) -> str:
    if "HBM2E" in device.memory_type.upper():
        return "memory.HBM2e"
    return f"memory.{memory_kind(device)}"
