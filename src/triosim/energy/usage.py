"""What a job, a run of a fleet or a request uses, from the JSON of a prediction: no simulation is run again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from triosim.core import guarded
from triosim.core.errors import InputError
from triosim.core.result_file import check_result, undamaged
from triosim.core.units import format_time
from triosim.energy.cost import SECONDS_PER_HOUR, Usage
from triosim.hardware.accelerator import Accelerator
from triosim.hardware.describe import COSTED


def read(path: Path) -> Usage:
    """The usage of a prediction that ``--json`` wrote.

    Raises:
        InputError: the file cannot be read, is no such result, or has no energy.
    """
    found = guarded.document(path, "a result that --json wrote")
    kind = SERVED.get(str(found.get("schema")))
    if kind is None:
        check_result(found, str(path), "train, infer or serve")
    with undamaged(str(path)):
        return (kind or _usage)(found, str(path))


def _usage(found: Mapping[str, Any], where: str) -> Usage:
    energy = _energy(found, where)
    seconds, ranks = float(found["iteration_time_s"]), int(found["plan"]["ranks"])
    models, devices = found["system"]["accelerators"], int(found["system"]["devices"])
    speed = found["throughput"]
    samples, tokens = speed.get("samples_per_s"), speed.get("tokens_per_s")
    node_j, pue = float(energy["node_j"]), float(energy["pue"])
    timed = float(energy.get("timed_j", node_j))
    if not (seconds > 0 and ranks > 0 and devices > 0 and 0 <= node_j < float("inf") and 1 <= pue < float("inf")):
        raise InputError(f"{where} is a damaged result: times, devices and energy must be above 0")
    alone = Usage(
        devices=tuple((str(one["name"]), float(one["count"]) * ranks / devices) for one in models),
        hours=seconds / SECONDS_PER_HOUR,
        it_j=node_j,
        pue=pue,
        samples=float(samples) * seconds if samples else None,
        tokens=float(tokens) * seconds if tokens else None,
        sample=sample_name(bool(found["workload"]["training"]), found["workload"].get("sequence_length")),
        hours_spread=half_width(*found["interval_s"]), it_spread=half_width(*energy["interval_j"]),
        timed=timed / node_j if node_j else 1.0, known=_known(models),
    )  # fmt: skip
    return varied(alone, found.get("variation"), seconds, where)


def _known(rows: Sequence[Mapping[str, Any]]) -> tuple[Accelerator, ...]:
    """Devices as a result describes them; none of a result that says only their names, as earlier ones did."""
    return tuple(
        Accelerator(str(one["name"]), **{name: one[name] for name in COSTED}) for one in rows if "price_per_hour" in one
    )


def _energy(found: Mapping[str, Any], where: str) -> Any:
    """What a result says of energy.

    Raises:
        InputError: nothing.
    """
    energy = found.get("energy")
    if energy is None:
        raise InputError(
            f"{where} has no energy: predict it on a device of the catalog, or give --device, --hours and --power"
        )
    return energy


def _run(found: Mapping[str, Any], where: str) -> Usage:
    """Of a fleet under traffic."""
    energy, seconds = _energy(found, where), float(found["duration_s"])
    devices = tuple((str(name), float(count)) for name, count in found["paid_devices"].items())
    counts = float(found["requests"]), float(found["output_tokens"])
    node = float(energy["node_j"])
    of_fleet = _served(where, devices, seconds, node, float(energy["pue"]), "run", *counts)
    return replace(
        of_fleet,
        hours_spread=half_width(*found.get("interval", {}).get("duration", (0.0, 0.0))),
        it_spread=half_width(*energy["interval_j"]),
        timed=(float(energy["idle_j"]) + float(energy["host_j"])) / node if node else 1.0,
        known=_known(found.get("accelerators", ())),
    )


def _request(found: Mapping[str, Any], where: str) -> Usage:
    """Of requests that run alone; what hosts take is not in their energy."""
    energy, plan, batch = _energy(found, where), found["plan"], float(found["batch_size"])
    devices = ((str(found["device"]), float(plan["tp"]) * float(plan["pp"])),)
    counts = batch, batch * float(found["output"])
    alone = _served(where, devices, float(found["e2e_s"]), float(energy["request_j"]), None, "batch", *counts)
    return replace(
        alone,
        hours_spread=half_width(*found.get("interval", {}).get("e2e_s", (0.0, 0.0))),
        it_spread=half_width(*energy["interval_j"]),
        timed=float(energy["parts_j"]["static"]) / float(energy["request_j"]) if energy["request_j"] else 1.0,
        known=_known(found.get("accelerators", ())),
        remarks=("energy: of the devices alone, hosts are not in it (triosim serve counts them)",),
    )


def _served(
    where: str, devices: tuple[tuple[str, float], ...], seconds: float, node_j: float, pue: float | None, unit: str,
    requests: float, tokens: float,
) -> Usage:  # fmt: skip
    if not (seconds > 0 and 0 <= node_j < float("inf") and requests > 0 and tokens > 0):
        raise InputError(f"{where} is a damaged result: times, requests and energy must be above 0")
    hours = seconds / SECONDS_PER_HOUR
    return Usage(devices, hours, node_j, pue, unit, requests, tokens, "request", "million output tokens")


SERVED: Mapping[str, Callable[[Mapping[str, Any], str], Usage]] = {
    "triosim/serving/1": _run,
    "triosim/request/1": _request,
}
"""Readers of what ``serve`` and ``infer --prompt`` write, by its schema."""


def mean_over_predicted(variation: Mapping[str, Any] | None, seconds: float, where: str) -> tuple[float, str]:
    """By how much the mean of iterations that vary is longer than one that does not, and that in words.

    A job has many of them, so that it takes their mean, however a single one comes out.

    Args:
        variation: of a result; None where nothing varies.
        seconds: of an iteration that does not vary.
        where: the result, for errors.

    Raises:
        InputError: the mean is no time.
    """
    if variation is None:
        return 1.0, ""
    longer = float(variation["mean_s"]) / seconds
    if not 0 < longer < math.inf:
        raise InputError(f"{where} is a damaged result: times must be above 0")
    asked = ", ".join(f"{name}={spread}" for name, spread in variation["asked"].items())
    return longer, (
        f"iterations that vary ({asked}): their mean, {longer - 1:+.1%} beside one that does not, which takes "
        f"{format_time(seconds)}"
    )


def varied(used: Usage, variation: Mapping[str, Any] | None, seconds: float, where: str) -> Usage:
    """What the mean iteration uses where iterations vary: what is drawn for as long as it takes is drawn for longer.

    Args:
        used: by an iteration that does not vary.
        variation, seconds, where: as of :func:`mean_over_predicted`.

    Raises:
        InputError: the mean is no time.
    """
    longer, words = mean_over_predicted(variation, seconds, where)
    if not words:
        return used
    joules = used.it_j * (1 + used.timed * (longer - 1))
    share = used.timed * longer * used.it_j / joules if joules else 1.0
    return replace(used, hours=used.hours * longer, it_j=joules, timed=share, remarks=(*used.remarks, words))


def half_width(low: float, high: float) -> float:
    """Natural logarithm of the factor of an interval; 0 where it has no width or reaches zero."""
    return math.log(high / low) / 2 if 0 < low < high < math.inf else 0.0


def sample_name(training: bool, sequence_length: int | None) -> str:
    """What a sample is called: a request where nothing is trained, an image where there are no tokens."""
    if sequence_length is None:
        return "image"
    return "sample" if training else "request"


def nominal(device: str, hours: float, watts: float, known: tuple[Accelerator, ...] = ()) -> Usage:
    """A whole job of so many device hours at a nominal power, as published jobs are counted.

    Args:
        device: its name.
        hours: of a device.
        watts: that a device draws.
        known: the device where the user describes it.
    """
    joules = hours * SECONDS_PER_HOUR * watts
    return Usage(devices=((device, 1.0),), hours=hours, it_j=joules, unit="job", known=known)


def hourly(path: Path) -> tuple[float, ...]:
    """Intensities of a grid, g/kWh, from a CSV with a line for each hour.

    The column is called ``g_co2e_per_kwh``.

    Raises:
        InputError: the file cannot be read, has no such column, or a value is below 0.
    """
    lines = list(guarded.rows(guarded.text(guarded.content(path), str(path)), str(path)))
    if not lines:
        raise InputError(f"{path} has no lines: give a line for each hour, with a column g_co2e_per_kwh")
    name = next((column for column in lines[0] if column and "g_co2e_per_kwh" in column.strip().lower()), None)
    if name is None:
        raise InputError(f"{path} has no column g_co2e_per_kwh: name the column with the intensity so")
    found = []
    for number, line in enumerate(lines, start=2):
        try:
            value = float(line[name] or "")
        except ValueError:
            raise InputError(f"{path}, line {number}: g_co2e_per_kwh is no number") from None
        if not 0 <= value < float("inf"):
            raise InputError(f"{path}, line {number}: the intensity of a grid must be at least 0 g/kWh, got {value:g}")
        found.append(value)
    return tuple(found)
