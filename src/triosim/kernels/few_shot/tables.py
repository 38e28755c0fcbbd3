"""Tables (CSV) of what networks took: on one device, on a pool of them, and networks alone.

The first column with one of the names in :data:`NETWORKS` says which network a line is about.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from triosim.core import guarded
from triosim.core.errors import InputError, quoted
from triosim.kernels.few_shot.device import NetworkSample
from triosim.kernels.few_shot.networks import parse
from triosim.kernels.few_shot.pool import DevicePool, learn

NETWORKS = ("arch", "network", "model")
"""Names of the column of networks."""
UNITS = {"seconds": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
"""Names of the column of times, and what one is in seconds."""

_MOST = 1e15
"""Largest number that is taken for a time, and one over the smallest."""


def samples(path: Path) -> tuple[NetworkSample, ...]:
    """Runs of networks on one device: a column of networks, and one called ``ms``, ``us`` or ``seconds``.

    Raises:
        InputError: the file cannot be read, has no such columns, or a line makes no sense.
    """
    head, lines = _lines(path)
    at, unit = _time_column(head, path)
    network = _network_column(head, path)
    return tuple(
        NetworkSample(cells[network], unit * _time(cells[at], f"{path}, line {number}")) for number, cells in lines
    )


def kernel_times(path: Path) -> dict[str, float]:
    """Median seconds of kernels: a column ``kernel``, and one called ``ms``, ``us`` or ``seconds``.

    Raises:
        InputError: the file cannot be read, has no such columns, or a line makes no sense.
    """
    head, lines = _lines(path, "kernels in a column 'kernel'")
    at, unit = _time_column(head, path)
    if "kernel" not in head:
        raise InputError(f"{path} has no column 'kernel': name the kernels as their files are named")
    name = head.index("kernel")
    found: dict[str, list[float]] = {}
    for number, cells in lines:
        found.setdefault(cells[name], []).append(unit * _time(cells[at], f"{path}, line {number}"))
    return {kernel: float(np.median(times)) for kernel, times in found.items()}


def pool(path: Path) -> DevicePool:
    """Devices that networks were timed on: a column of networks, all others devices, in any unit.

    Raises:
        InputError: the file cannot be read, names no device, or a line makes no sense.
    """
    head, lines = _lines(path)
    network = _network_column(head, path)
    devices = tuple(name for at, name in enumerate(head) if at != network)
    if not devices:
        raise InputError(f"{path} names no device: give a column of times for each, under its name")
    if len(set(devices)) < len(devices) or "" in devices:
        raise InputError(f"{path}: two devices have one name, or one has none: name each column")
    names = [cells[network] for _, cells in lines]
    if len(set(names)) < len(names):
        twice = next(name for row, name in enumerate(names) if name in names[:row])
        raise InputError(f"{path} has {quoted(twice)} twice: give each network once, with the median")
    times = np.array([
        [_time(cell, f"{path}, line {number}") for at, cell in enumerate(cells) if at != network]
        for number, cells in lines
    ])  # fmt: skip
    return learn(devices, parse(names, str(path)), times, str(path))


def networks(path: Path) -> tuple[str, ...]:
    """Names in the column of networks.

    Raises:
        InputError: the file cannot be read or has no such column.
    """
    head, lines = _lines(path)
    at = _network_column(head, path)
    return tuple(cells[at] for _, cells in lines)


def _time_column(head: list[str], path: Path) -> tuple[int, float]:
    """Its place, and what one of it is in seconds."""
    units = [name for name in head if name in UNITS]
    if len(units) != 1:
        raise InputError(
            f"{path} has {len(units) or 'no'} columns of times: give one, named {', '.join(UNITS)} by its unit"
        )
    return head.index(units[0]), UNITS[units[0]]


def _lines(
    path: Path, what: str = f"networks in a column {NETWORKS[0]!r}"
) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The names of the columns, and the other lines with their numbers."""
    lines = [
        (number, cells) for number, cells in guarded.cells(guarded.text(guarded.content(path), str(path)), str(path))
        if any(cells)
    ]  # fmt: skip
    if len(lines) < 2:
        raise InputError(f"{path} has no lines: give a table with {what}")
    head = lines[0][1]
    for number, cells in lines[1:]:
        if len(cells) != len(head):
            raise InputError(f"{path}, line {number}: {len(cells)} fields, but {len(head)} columns: complete it")
    return head, lines[1:]


def _network_column(head: list[str], path: Path) -> int:
    found = [at for at, name in enumerate(head) if name in NETWORKS]
    if not found:
        raise InputError(f"{path} has no column of networks: call it {' or '.join(NETWORKS)}")
    return found[0]


def _time(cell: str, where: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not 1 / _MOST <= value <= _MOST:
        raise InputError(f"{where}: {quoted(cell)} is no time above 0 that anybody could measure: correct it")
    return value
