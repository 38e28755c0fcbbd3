"""Devices that take longer than others of their kind: a hot one, one with a worn power supply, one that is shared."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from triosim.core.errors import InputError, quoted
from triosim.hardware.system import System

SLOWEST = 1e6
"""Times as long as others: a device that is slower has failed."""


def parse_stragglers(texts: Iterable[str]) -> dict[int, float]:
    """Factor of each device that a user named: ``5=1.25``, ``8-15=1.1``.

    Raises:
        InputError: a text says something else, or a device is named twice.
    """
    found: dict[int, float] = {}
    for text in texts:
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?=(\d+(?:\.\d+)?)", text.replace(" ", ""))
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if match is None or last < first or not 1 <= float(match[3]) <= SLOWEST:
            raise InputError(
                f"--straggler {quoted(text)} is not understood: give a device, or the first and the last of some, and "
                "how many times as long they take (1 or more), as 5=1.25 or 8-15=1.1"
            )
        for device in range(first, last + 1):
            if device in found:
                raise InputError(f"--straggler {quoted(text)}: device {device} is named twice")
            found[device] = float(match[3])
    return found


def slowed(system: System, factors: Mapping[int, float]) -> System:
    """The system with some devices slower: each factor makes another kind of device, equal but for its times.

    Args:
        system: the machine.
        factors: by device, that it takes as long to compute; 1 changes nothing.

    Raises:
        InputError: there is no such device.
    """
    models, rows = list(system.models), system.device_model.copy()
    known: dict[tuple[int, float], int] = {}
    for device, factor in factors.items():
        if device >= system.devices:
            raise InputError(f"--straggler {device}={factor:g}: the system has devices 0 to {system.devices - 1}")
        if not (math.isfinite(factor) and factor >= 1):
            raise InputError(f"a device cannot take {factor:g} times as long: give 1 or more")
        if factor == 1:
            continue
        base = int(rows[device])
        row = known.setdefault((base, factor), len(models))
        if row == len(models):
            models.append(replace(models[base], slowdown=models[base].slowdown * factor))
        rows[device] = row
    return replace(system, models=tuple(models), device_model=rows)
