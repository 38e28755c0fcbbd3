"""Communication takes from computation: while a collective runs, its thread blocks hold multiprocessors.

Collectives of NCCL and RCCL are kernels.  Each of their thread blocks holds a multiprocessor for itself from its launch
to its end, waiting for peers included, so with ``b`` blocks on ``u`` multiprocessors what computes takes
``u / (u - b)`` times as long meanwhile.  ``interference.json`` has the blocks by link, with their sources.

What that leaves out: waves that no longer fit (a matrix product of exactly ``u`` tiles takes twice as long), and shared
memory bandwidth.  Transfers to and from the host use copy engines and hold nothing; sends between stages hold one block
or a few and count as nothing; devices that are no GPUs have engines of their own for collectives.

How long each operator computes beside a collective is known only when the job has been played, and depends on how long
it computes.  :func:`settle` plays until both agree.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from triosim.core.spans import covered, merged
from triosim.core.units import whole_ticks
from triosim.hardware.accelerator import Accelerator

TOLERANCE = 1e-4
"""Times have settled when no rank's computation changes by more than this part of the run."""

MOST_PLAYS = 8
"""What is covered wholly is right after one play; of the rest each play leaves ``1 - 1 / slowdown`` of the error."""


@dataclass(frozen=True)
class Interference:
    """What a collective costs what computes beside it on one kind of device.

    Attributes:
        slowdown: what computes takes so many times as long, at least 1.
        source: where the figure is from.
    """

    slowdown: float
    source: str


@functools.cache
def _table() -> dict:
    return json.loads(resources.files("triosim.composition").joinpath("interference.json").read_text())


def interference(device: Accelerator, asked: float | None = None) -> Interference:
    """The slowdown on a device.

    Args:
        device: what computes.
        asked: a slowdown to take instead; None takes that of the kind of device.
    """
    if asked is not None:
        return Interference(asked, "as given")
    if not device.name or device.kind != "gpu":
        return Interference(1.0, "no multiprocessors of a known number that collectives would hold")
    table, units = _table(), device.compute_units
    link = "PCIe" if device.link.startswith("PCIe") or not device.link else device.link
    row = table["blocks"].get(link)
    if row is None or not units or units <= 2 * row["blocks"]:
        return Interference(float(table["other"]["factor"]), table["other"]["source"])
    blocks = row["blocks"]
    return Interference(units / (units - blocks), f"{blocks} of {units} multiprocessors: {row['source']}")


class Times(Protocol):
    """When each task started and finished, ticks."""

    @property
    def start(self) -> NDArray[np.int64]:
        """Starts, waiting for peers included."""

    @property
    def finish(self) -> NDArray[np.int64]:
        """Ends."""


Played = TypeVar("Played", bound=Times)


@dataclass(frozen=True)
class Tasks:
    """The tasks of a job as interference sees them; those of one device are contiguous.

    Attributes:
        first: first task of each device, shape ``(devices + 1,)``.
        slowdown: of each device, shape ``(devices,)``.
        computes, moves: which tasks compute, and which are collectives.
        amount: ticks of what computes when nothing interferes, ``after`` included.
        after: ticks at the end of a task in which nothing is computed any more.
    """

    first: NDArray[np.int64]
    slowdown: NDArray[np.float64]
    computes: NDArray[np.bool_]
    moves: NDArray[np.bool_]
    amount: NDArray[np.int64]
    after: NDArray[np.int64]


def settle(tasks: Tasks, play: Callable[[NDArray[np.int64]], Played]) -> Played:
    """Play a job so that everything takes as long as what runs beside it lets it.

    In the result each task that computes is longer than alone by ``1 - 1 / slowdown`` of the time that collectives of
    its device run beside it.  With a slowdown of 1, or where nothing is beside a collective, it is played once.

    Args:
        tasks: what is played.
        play: plays the tasks with other amounts.
    """
    played = play(tasks.amount)
    if not np.any(tasks.slowdown > 1):
        return played
    amount = tasks.amount
    for _ in range(MOST_PLAYS - 1):
        wanted = _stretched(tasks, played)
        off = np.add.reduceat(np.append(np.abs(wanted - amount), 0), tasks.first[:-1])
        if off.max() <= TOLERANCE * int(played.finish.max()):
            break
        amount = wanted
        played = play(amount)
    return played


def _stretched(tasks: Tasks, played: Times) -> NDArray[np.int64]:
    """What each task takes beside the collectives of its device, as they ran.

    What a collective covers wholly it will cover when it is stretched too, unless that is too long: the next play says.
    """
    amount, bounds = tasks.amount.copy(), tasks.first.tolist()
    for device in np.flatnonzero(tasks.slowdown > 1).tolist():
        own, slowdown = slice(bounds[device], bounds[device + 1]), tasks.slowdown[device]
        moves, computes = tasks.moves[own], np.flatnonzero(tasks.computes[own]) + own.start
        start, end = merged(played.start[own][moves], played.finish[own][moves])
        after = tasks.after[computes]
        begin, worked = played.start[computes], played.finish[computes] - after
        beside = covered(begin, worked, start, end)
        alone = tasks.amount[computes] - after
        longer = np.where(beside == worked - begin, alone * (slowdown - 1), beside * (1 - 1 / slowdown))
        amount[computes] += whole_ticks(longer, "what a collective adds to an operator beside it")
    return amount
