"""What a device draws, from measured power: phases that each do one thing, and a log of watts beside them.

Phases are ``idle``, ``busy`` (kernels so small that only the device's being awake counts), ``cache`` and ``memory``
(bytes that stay in a cache, and bytes that do not), and one of products for each element type.  From their mean watts::

    static = P(busy)                                    idle = P(idle)
    cache  = (P(cache) - static) seconds / bytes        memory = (P(memory) - static) seconds / bytes - cache
    flop   = ((P(product) - static) seconds - bytes (memory + cache)) / FLOP

The first part of each phase is left out: clocks settle, and sensors average over time.  Types that were not measured
take their datasheet's joules times the mean ratio of those that were.  Packs are JSON with the phases as measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core import guarded
from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_CODE
from triosim.core.errors import InputError, quoted, unknown
from triosim.energy.constants import EnergyConstants
from triosim.energy.device import DeviceEnergy, device_energy
from triosim.hardware.accelerator import Accelerator

SCHEMA = "triosim/energy-calibration/1"
WHATS = ("idle", "busy", "cache", "memory", "product")
SETTLE = 0.4
"""Part of each phase that is left out at its beginning."""
FEWEST = 3
"""Samples that a phase needs."""
SPREAD = math.log(1.1)
"""Natural logarithm of the factor of the 90 % interval of what was measured; chosen: sensors of GPUs are stated to
5 %."""


@dataclass(frozen=True)
class PowerPhase:
    """What a device did for a while.

    Attributes:
        what: of :data:`WHATS`.
        start, end: when, seconds since 1970.
        dtype: element type of a product, ``""`` for all else.
        flop, bytes: that it did, and that it moved.
    """

    what: str
    start: float
    end: float
    dtype: str = ""
    flop: float = 0.0
    bytes: float = 0.0


@dataclass(frozen=True)
class PowerLog:
    """Samples of a device's power: seconds since 1970, ascending, and watts."""

    time: NDArray[np.float64]
    watts: NDArray[np.float64]


@dataclass(frozen=True)
class EnergyPack:
    """A calibrated device.

    Attributes:
        device: its name in the catalog.
        phases: what was measured.
        watts: mean power of each phase.
        energy: what the device draws.
    """

    device: str
    phases: tuple[PowerPhase, ...]
    watts: tuple[float, ...]
    energy: DeviceEnergy


def mean_watts(phase: PowerPhase, log: PowerLog) -> float:
    """Mean power of a phase once it has settled.

    Raises:
        InputError: the log has too few samples of it.
    """
    start = phase.start + SETTLE * (phase.end - phase.start)
    inside = (log.time >= start) & (log.time <= phase.end)
    if np.count_nonzero(inside) < FEWEST:
        if not len(log.time) or log.time[0] > phase.end or log.time[-1] < phase.start:
            covers = f"it is of {_clock(log.time[0])} to {_clock(log.time[-1])}" if len(log.time) else "it is empty"
            raise InputError(
                f"the power log does not overlap the run: {covers}, and the phase {phase.what} of "
                f"{_clock(phase.start)} to {_clock(phase.end)}: log while it runs, in the same time zone"
            )
        raise InputError(
            f"the power log has {np.count_nonzero(inside)} samples of the phase {phase.what} "
            f"({phase.end - phase.start:.1f} s), at least {FEWEST} are needed: log more often"
        )
    return float(np.mean(log.watts[inside]))


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).isoformat(" ", "seconds")


def calibrated(device: Accelerator, phases: Sequence[PowerPhase], log: PowerLog) -> EnergyPack:
    """A device's constants from phases and the power beside them.

    Args:
        device: of the catalog.
        phases: what it did; one each of ``idle``, ``busy``, ``cache`` and ``memory``, and at least one product.
        log: its power meanwhile.

    Raises:
        InputError: a phase is missing, or the log does not cover them.
    """
    return _pack(device, phases, [mean_watts(phase, log) for phase in phases])


def _pack(device: Accelerator, phases: Sequence[PowerPhase], watts: Sequence[float]) -> EnergyPack:
    base = device_energy(device, EnergyConstants())
    if base is None:
        raise InputError(
            f"what {device.name or 'the device'} can do is not known: give tdp_w, peaks and bandwidth in a device file"
        )
    at = {phase.what: (phase, mean) for phase, mean in zip(phases, watts, strict=True)}
    missing = [what for what in WHATS if what not in at]
    if missing:
        raise InputError(f"a phase {missing[0]} is missing: a calibration needs {', '.join(WHATS)}")
    static = at["busy"][1]
    cache = _per(*at["cache"], static, at["cache"][0].bytes)
    memory = max(_per(*at["memory"], static, at["memory"][0].bytes) - cache, 0.0)
    flop_j, ratios = base.flop_j.copy(), []
    measured: dict[int, float] = {}
    for phase, mean in zip(phases, watts, strict=True):
        if phase.what == "product":
            code = DTYPE_CODE[phase.dtype]
            seconds = phase.end - phase.start
            joules = max((mean - static) * seconds - phase.bytes * (memory + cache), 0.0)
            measured[code] = joules / phase.flop
            ratios.append(measured[code] / base.flop_j[code])
    flop_j *= float(np.mean(ratios))
    for code, value in measured.items():
        flop_j[code] = value
    spreads = dict.fromkeys(base.spreads, SPREAD)
    energy = replace(
        base, static_w=static, idle_w=min(at["idle"][1], static), flop_j=flop_j, memory_j_per_byte=memory,
        cache_j_per_byte=cache, tdp_w=max(base.tdp_w, *watts), spreads=spreads,
        source=f"{device.name}: measured power of {len(phases)} phases (triosim calibrate --power)",
    )  # fmt: skip
    return EnergyPack(device.name, tuple(phases), tuple(watts), energy)


def _per(phase: PowerPhase, watts: float, static: float, amount: float) -> float:
    if not amount > 0:
        raise InputError(f"the phase {phase.what} moves no bytes: give them")
    return max((watts - static) * (phase.end - phase.start) / amount, 0.0)


# --- files ------------------------------------------------------------------------------------------------------------


def document(pack: EnergyPack) -> dict[str, Any]:
    """A pack as plain values: what was measured; its constants follow from that."""
    rows = [{**asdict(phase), "watts": watts} for phase, watts in zip(pack.phases, pack.watts, strict=True)]
    return {"schema": SCHEMA, "device": pack.device, "phases": rows}


def read_pack(path: Path) -> EnergyPack:
    """A pack that :func:`document` made.

    Raises:
        InputError: the file cannot be read, or holds something else.
    """
    from triosim.hardware.catalog import accelerator

    found = guarded.document(path, "an energy calibration")
    if found.get("schema") != SCHEMA:
        raise InputError(f"{path} is no energy calibration ({SCHEMA}): make one with triosim calibrate --power")
    rows, device = found.get("phases"), found.get("device")
    if not isinstance(rows, list) or not isinstance(device, str):
        raise InputError(f"{path} is damaged: device or phases are missing")
    phases, watts = [], []
    for number, row in enumerate(rows, start=1):
        phases.append(_phase(row, f"{path}, phase {number}"))
        watts.append(_number(row, "watts", f"{path}, phase {number}"))
    return _pack(accelerator(device), phases, watts)


def read_phases(path: Path) -> tuple[PowerPhase, ...]:
    """Phases of a run on another machine: a CSV with the fields of :class:`PowerPhase` as columns.

    Raises:
        InputError: the file cannot be read, or a line makes no sense.
    """
    rows = list(guarded.rows(guarded.text(guarded.content(path), str(path)), str(path)))
    if not rows:
        raise InputError(f"{path} has no lines: give columns {', '.join(one.name for one in fields(PowerPhase))}")
    return tuple(_phase(row, f"{path}, line {number}") for number, row in enumerate(rows, start=2))


def _phase(row: Mapping[str, Any], where: str) -> PowerPhase:
    if not isinstance(row, Mapping):
        raise InputError(f"{where}: is no phase")
    what, dtype = str(row.get("what")), str(row.get("dtype") or "")
    if what not in WHATS:
        raise unknown(f"phase in {where}:", what, WHATS)
    numbers = {name: _number(row, name, where) for name in ("start", "end", "flop", "bytes")}
    if not numbers["end"] > numbers["start"]:
        raise InputError(f"{where}: ends before it starts")
    if what == "product" and (dtype not in DTYPE_CODE or not numbers["flop"] > 0):
        raise InputError(f"{where}: a product needs its FLOP and an element type such as bfloat16")
    return PowerPhase(what, dtype=dtype, **numbers)


def _number(row: Mapping[str, Any], name: str, where: str) -> float:
    try:
        value = float(row.get(name) or 0.0)
    except (TypeError, ValueError):
        value = -1.0
    if not 0 <= value < math.inf:
        raise InputError(f"{where}: {name} {quoted(row.get(name))} is no number of at least 0")
    return value


_FORMATS = ("%Y/%m/%d %H:%M:%S.%f", "%Y-%m-%d %H:%M:%S.%f", "%Y/%m/%d %H:%M:%S", "%Y-%m-%d %H:%M:%S")


def read_log(path: Path) -> PowerLog:
    """A log of power: what ``nvidia-smi --query-gpu=timestamp,power.draw --format=csv -lms 100`` writes, or any CSV.

    A column's name begins with ``time``: seconds since 1970, or a date and time of day; another has ``power`` or
    ``watt`` in it: watts, with or without the unit.  Lines without a number (``[N/A]``) are left out.

    Raises:
        InputError: the file cannot be read, has no such columns, or a line makes no sense.
    """
    rows = guarded.rows(guarded.text(guarded.content(path), str(path)), str(path))
    times, watts, names = [], [], None
    for number, row in enumerate(rows, start=2):
        if names is None:
            names = _columns(row, path)
        text, power = str(row[names[0]] or "").strip(), str(row[names[1]] or "").strip().removesuffix("W").strip()
        try:
            watts.append(float(power))
        except ValueError:
            continue
        times.append(_moment(text, f"{path}, line {number}"))
        if not 0 <= watts[-1] < math.inf:
            raise InputError(f"{path}, line {number}: {power} is no power")
    order = np.argsort(times, kind="stable")
    return PowerLog(np.array(times, np.float64)[order], np.array(watts, np.float64)[order])


def _columns(row: Mapping[str, Any], path: Path) -> tuple[str, str]:
    names = [name for name in row if name]
    time = next((name for name in names if name.strip().lower().startswith("time")), None)
    power = next((name for name in names if any(word in name.lower() for word in ("power", "watt"))), None)
    if time is None or power is None:
        raise InputError(f"{path} is no power log: give a column time or timestamp, and one of power in watts")
    return time, power


def _moment(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    for form in _FORMATS:
        try:
            return datetime.strptime(text, form).timestamp()
        except ValueError:
            continue
    raise InputError(f"{where}: {quoted(text)} is no time: give seconds since 1970 or 2026/01/31 12:00:00.000")
