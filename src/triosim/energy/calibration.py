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
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triosim.core import guarded
from triosim.core.dataclass import dataclass
from triosim.core.dtypes import DTYPE_CODE, DTYPES
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
UNLIKELY = 100.0
"""Factor off the datasheet from which on a figure is taken for one in another unit; chosen: a datasheet's constants are
a factor of 2 off, and units differ by 1,000."""
_LATEST = 253402300800.0
"""Seconds from 1970 to the year 10000, the first that no clock shows."""


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
        datasheet: what it would draw by its datasheet, of which types are taken that were not measured.
    """

    device: str
    phases: tuple[PowerPhase, ...]
    watts: tuple[float, ...]
    energy: DeviceEnergy
    datasheet: DeviceEnergy


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
    base = device_energy(device, EnergyConstants())
    if base is None:
        raise InputError(
            f"what {device.name or 'the device'} can do is not known: give tdp_w, peaks and bandwidth in a device file"
        )
    return _pack(device.name, base, phases, [mean_watts(phase, log) for phase in phases])


def _pack(device: str, base: DeviceEnergy, phases: Sequence[PowerPhase], watts: Sequence[float]) -> EnergyPack:
    at = {phase.what: (phase, mean) for phase, mean in zip(phases, watts, strict=True)}
    missing = [what for what in WHATS if what not in at]
    if missing:
        raise InputError(f"a phase {missing[0]} is missing: a calibration needs {', '.join(WHATS)}")
    kinds = [f"{phase.what} {phase.dtype}".strip() for phase in phases]
    twice = [kind for row, kind in enumerate(kinds) if kind in kinds[:row]]
    if twice:
        raise InputError(f"the phase {twice[0]} is there twice: give each once, a product for each element type")
    static = at["busy"][1]
    _check_watts(device, base, at["idle"][1], static)
    cache = _per(*at["cache"], static, at["cache"][0].bytes)
    memory = max(_per(*at["memory"], static, at["memory"][0].bytes) - cache, 0.0)
    both, likely = memory + cache, base.memory_j_per_byte + base.cache_j_per_byte
    if both > UNLIKELY * likely > 0:
        raise InputError(
            f"a byte of memory would take {both * 1e12:.3g} pJ, {both / likely:.3g} times what the datasheet of "
            f"{device} makes likely: give bytes and not GB, and watts"
        )
    flop_j, ratios = base.flop_j.copy(), []
    measured: dict[int, float] = {}
    for phase, mean in zip(phases, watts, strict=True):
        if phase.what == "product":
            code = DTYPE_CODE[phase.dtype]
            seconds = phase.end - phase.start
            joules = (mean - static) * seconds - phase.bytes * (memory + cache)
            if not joules > 0:
                raise InputError(
                    f"products of {phase.dtype} would take no energy: the device draws {mean:.4g} W during them and "
                    f"{static:.4g} W in the phase busy: look whether the log is of this device and of this time"
                )
            measured[code] = joules / phase.flop
            ratios.append(measured[code] / base.flop_j[code])
            if not 1 / UNLIKELY < ratios[-1] < UNLIKELY:
                raise InputError(
                    f"a FLOP of {phase.dtype} would take {measured[code] * 1e12:.3g} pJ, {ratios[-1]:.3g} times what "
                    f"the datasheet of {device} makes likely: give FLOP and not TFLOP, and watts"
                )
    flop_j *= float(np.mean(ratios))
    for code, value in measured.items():
        flop_j[code] = value
    spreads = dict.fromkeys(base.spreads, SPREAD)
    energy = replace(
        base, static_w=static, idle_w=min(at["idle"][1], static), flop_j=flop_j, memory_j_per_byte=memory,
        cache_j_per_byte=cache, tdp_w=max(base.tdp_w, *watts), spreads=spreads,
        source=f"{device}: measured power of {len(phases)} phases (triosim calibrate --power)",
    )  # fmt: skip
    return EnergyPack(device, tuple(phases), tuple(watts), energy, base)


def _check_watts(device: str, base: DeviceEnergy, idle: float, static: float) -> None:
    """Refuse watts that no device draws."""
    if not static > 0:
        raise InputError("the device draws nothing in the phase busy: look whether the log is of this device")
    if static > UNLIKELY * base.tdp_w:
        raise InputError(
            f"the device draws {static:.4g} W in the phase busy, and the TDP of {device} is {base.tdp_w:.4g} W: "
            "give watts, not milliwatts"
        )
    if idle > static * math.exp(SPREAD):
        raise InputError(
            f"the device draws {idle:.4g} W in the phase idle and {static:.4g} W in the phase busy: look whether "
            "something else used it, or whether the log is of another time"
        )


def _per(phase: PowerPhase, watts: float, static: float, amount: float) -> float:
    if not amount > 0:
        raise InputError(f"the phase {phase.what} moves no bytes: give them")
    return max((watts - static) * (phase.end - phase.start) / amount, 0.0)


# --- files ------------------------------------------------------------------------------------------------------------


def document(pack: EnergyPack) -> dict[str, Any]:
    """A pack as plain values: what was measured; its constants follow from that.

    Of a device that the catalog does not know the pack has what its datasheet says as well.
    """
    from triosim.hardware.catalog import identify

    rows = [{**asdict(phase), "watts": watts} for phase, watts in zip(pack.phases, pack.watts, strict=True)]
    made: dict[str, Any] = {"schema": SCHEMA, "device": pack.device, "phases": rows}
    if identify(pack.device) is None:
        joules = zip(DTYPES, pack.datasheet.flop_j.tolist(), strict=True)
        made["datasheet"] = {
            "tdp_w": pack.datasheet.tdp_w, "memory_j_per_byte": pack.datasheet.memory_j_per_byte,
            "cache_j_per_byte": pack.datasheet.cache_j_per_byte,
            "flop_j": {dtype: value for dtype, value in joules if value < math.inf},
        }  # fmt: skip
    return made


def read_pack(path: Path) -> EnergyPack:
    """A pack that :func:`document` made.

    Raises:
        InputError: the file cannot be read, or holds something else.
    """
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
    return _pack(device, _datasheet(path, device, found.get("datasheet")), phases, watts)


def _datasheet(path: Path, device: str, row: Any) -> DeviceEnergy:
    """What a device would draw by its datasheet: the pack's, else the catalog's."""
    from triosim.hardware.catalog import accelerator

    if row is None:
        known = device_energy(accelerator(device), EnergyConstants())
        if known is None:
            raise InputError(f"{path} is damaged: what {quoted(device)} can do is not known")
        return known
    table = row.get("flop_j") if isinstance(row, Mapping) else None
    if not isinstance(table, Mapping):
        raise InputError(f"{path} is damaged: its datasheet has no flop_j: make it with triosim calibrate --power")
    where = f"{path}, datasheet"
    flop_j = np.array([_number(table, dtype, where) or math.inf for dtype in DTYPES], np.float64)
    tdp_w, memory, cache = (_number(row, name, where) for name in ("tdp_w", "memory_j_per_byte", "cache_j_per_byte"))
    spreads = dict.fromkeys(("static", "idle", "flop", "memory", "cache"), SPREAD)
    return DeviceEnergy(0.0, 0.0, tdp_w, flop_j, memory, cache, spreads, where)


def read_phases(path: Path) -> tuple[PowerPhase, ...]:
    """Phases of a run on another machine: a CSV with the fields of :class:`PowerPhase` as columns.

    Raises:
        InputError: the file cannot be read, or a line makes no sense.
    """
    rows = list(guarded.rows(guarded.text(guarded.content(path), str(path)), str(path)))
    if not rows:
        raise InputError(f"{path} has no lines: give columns {', '.join(one.name for one in fields(PowerPhase))}")
    for name in ("what", "start", "end"):
        if name not in rows[0]:
            columns = ", ".join(one.name for one in fields(PowerPhase))
            raise InputError(f"{path} has no column {name!r}: give columns {columns}")
    return tuple(_phase(row, f"{path}, line {number}") for number, row in enumerate(rows, start=2))


def _phase(row: Mapping[str, Any], where: str) -> PowerPhase:
    if not isinstance(row, Mapping):
        raise InputError(f"{where}: is no phase")
    if None in row:
        raise InputError(f"{where}: more fields than columns: leave away what is too much")
    what, dtype = str(row.get("what")), str(row.get("dtype") or "")
    if what not in WHATS:
        raise unknown(f"phase in {where}:", what, WHATS)
    numbers = {name: _number(row, name, where) for name in ("start", "end", "flop", "bytes")}
    if not numbers["end"] > numbers["start"]:
        raise InputError(f"{where}: ends before it starts")
    if not 0 < numbers["start"] < numbers["end"] < _LATEST:
        raise InputError(f"{where}: start and end are no times: give seconds since 1970, not milliseconds")
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


_UNITS = {"w": 1.0, "watt": 1.0, "watts": 1.0, "": 1.0, "mw": 1e-3, "kw": 1e3, "milliwatts": 1e-3}
"""Units of power, and what one is in watts."""


def read_log(path: Path) -> PowerLog:
    """A log of power: what ``nvidia-smi --query-gpu=timestamp,power.draw --format=csv -lms 100`` writes, or any CSV.

    A column's name begins with ``time``: seconds since 1970, or a date and time of day; another has ``power`` or
    ``watt`` in it: watts, or W, mW or kW where the number or the column's name says so.  Lines without a number
    (``[N/A]``) are left out.

    Raises:
        InputError: the file cannot be read, has no such columns, or a line makes no sense.
    """
    rows = guarded.rows(guarded.text(guarded.content(path), str(path)), str(path))
    times, watts, names, scale = [], [], None, 1.0
    for number, row in enumerate(rows, start=2):
        where = f"{path}, line {number}"
        if names is None:
            names = _columns(row, path)
            scale = _UNITS[(re.findall(r"(?i)mw|kw|milliwatts", names[1]) or ["w"])[0].lower()]
        power = str(row[names[1]] or "").strip()
        if not power or power.startswith("[") or power.upper() in ("N/A", "NA"):
            continue
        found = re.fullmatch(r"(?i)(.*?)\s*(m?w|kw|watts?|milliwatts)?", power)
        assert found is not None
        try:
            value = float(found[1]) * (scale if found[2] is None else _UNITS[found[2].lower()])
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf:
            raise InputError(f"{where}: {quoted(power)} is no power: give watts, or [N/A] where there is no number")
        watts.append(value)
        times.append(_moment(str(row[names[0]] or "").strip(), where))
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
        seconds = float(text)
    except ValueError:
        seconds = _of_date(text, where)
    if not 0 <= seconds < _LATEST:
        raise InputError(f"{where}: {quoted(text)} is no time: give seconds since 1970, not milliseconds")
    return seconds


def _of_date(text: str, where: str) -> float:
    for form in _FORMATS:
        try:
            return datetime.strptime(text, form).timestamp()
        except ValueError:
            continue
    try:
        return datetime.fromisoformat(text.removesuffix("Z") + "+00:00" * text.endswith("Z")).timestamp()
    except (ValueError, OverflowError):
        raise InputError(
            f"{where}: {quoted(text)} is no time: give seconds since 1970 or 2026/01/31 12:00:00.000"
        ) from None
