"""``triosim calibrate --power``: what a device draws, from phases and a log of its power."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

from triosim.cli.command import note, say, wants_summary
from triosim.core.errors import InputError, no_such_file, printable
from triosim.energy.calibration import EnergyPack, PowerLog, PowerPhase, calibrated, document, read_log, read_phases
from triosim.hardware.accelerator import Accelerator

SENSORS = ("nvidia-smi", "rapl")
PHASE_S = 4.0
"""Seconds of a phase where no budget is given."""
_PHASES = 6


def write(power: str, phases: Path | None, device: str | None, budget: str | None, output: Path | None) -> None:
    """Measure or read, fit, write the pack, and tell what was found.

    Raises:
        InputError: a file or a sensor is not there, or the log does not cover the phases.
    """
    from triosim.cli.streams import written
    from triosim.core.outputs import text_output

    if phases is not None:
        if power in SENSORS or device is None or budget is not None:
            raise InputError("--phases were run elsewhere: give --power FILE and --device NAME, and no --budget")
        from triosim.hardware.build import accelerator

        found = calibrated(accelerator(device), read_phases(phases), read_log(Path(power)))
    else:
        found = _measured(power, device, budget)
    path = output or Path(f"{found.device}-energy.json")
    with text_output(path) as file:
        file.write(json.dumps(document(found), indent=1) + "\n")
    if wants_summary(path):
        for line in overview(found):
            print(printable(line))
    say(written("pack", path, f"  (triosim train WORKLOAD --energy {path})"), path)


def _measured(power: str, device: str | None, budget: str | None) -> EnergyPack:
    from contextlib import nullcontext

    from triosim.core.units import parse_budget
    from triosim.hardware.build import accelerator
    from triosim.hardware.catalog import identify
    from triosim.sources.record import device_name, devices_here
    from triosim.sources.record.power import phases, sampled

    kind = "cpu" if power == "rapl" else "cuda" if power == "nvidia-smi" else devices_here()[0]
    if device in ("cpu", "cuda"):
        kind, device = str(device), None
    if kind not in devices_here():
        raise InputError(f"this PyTorch has no device {kind!r}: measure it where there is one")
    name = device or identify(device_name(kind))
    if name is None:
        raise InputError(
            f"the catalog does not know {device_name(kind)!r}: name it or describe it in a file (--device)"
        )
    known: Accelerator = accelerator(name)
    seconds = PHASE_S if budget is None else parse_budget(budget) / _PHASES
    if seconds < 1:
        raise InputError(f"--budget {budget}: too short for {_PHASES} phases, give at least {_PHASES}s")
    if power not in SENSORS and not os.path.exists(power):
        raise no_such_file(power)
    samples: list[tuple[float, float]] = []
    with sampled(power, samples) if power in SENSORS else nullcontext():
        rows = phases(kind, seconds, lambda what: note(f"measures  {what}"))
    log = read_log(Path(power)) if power not in SENSORS else PowerLog(*np.array(samples, np.float64).reshape(-1, 2).T)
    return calibrated(known, [PowerPhase(*row) for row in rows], log)


def overview(pack: EnergyPack) -> list[str]:
    """Lines for the terminal."""
    energy = pack.energy
    lines = [f"{pack.device}: {len(pack.phases)} phases"]
    for phase, watts in zip(pack.phases, pack.watts, strict=True):
        rate = phase.flop or phase.bytes
        unit = "FLOP/s" if phase.flop else "B/s"
        per = f"  {rate / (phase.end - phase.start):.3g} {unit}" if rate else ""
        lines.append(f"  {phase.what:8} {phase.dtype:10} {watts:7.1f} W{per}")
    lines.append(f"  static {energy.static_w:.1f} W, idle {energy.idle_w:.1f} W")
    lines.append(
        f"  memory {energy.memory_j_per_byte * 1e12:.3g} pJ/B, caches {energy.cache_j_per_byte * 1e12:.3g} pJ/B"
    )
    return lines
