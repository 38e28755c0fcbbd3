"""A machine and networks made up, for tests that run nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tests.traces import chain
from triosim.trace.tables import Trace
from triosim.validate.measured import MeasuredMachine, MeasuredNetwork, MeasuredSeries

RANKS, ROUNDS = 2, 5


def series(cpu_s: float, wall_s: float | None = None) -> MeasuredSeries:
    """The same in every rank and round."""
    shape = (RANKS, ROUNDS)
    return MeasuredSeries(np.full(shape, cpu_s), np.full(shape, cpu_s if wall_s is None else wall_s))


def step(layers: int, width: int) -> Trace:
    """A chain with a step time that is the sum of its operators."""
    trace = chain(layers=layers, width=width)
    meta = replace(trace.meta, step_time_s=trace.device_time(), batch_size=64)
    return replace(trace, meta=meta)


def network(name: str, layers: int, width: int, modes: Mapping[str, float], busy: float = 1.0) -> MeasuredNetwork:
    """A chain of layers that takes as long in the rounds as it did when it was recorded, times ``busy`` on the wall."""
    trace = step(layers, width)
    alone = trace.device_time()
    measured = {mode: series(seconds, seconds * busy) for mode, seconds in modes.items()}
    return MeasuredNetwork(name, layers, trace, trace, {"alone": series(alone, alone * busy), **measured})


def weight_bytes(layers: int, width: int) -> int:
    """Of a chain of square layers."""
    return layers * width * width * 4


def machine(rate: float = 1e9, start_s: float = 1e-4) -> MeasuredMachine:
    """Everything that moves bytes takes ``start_s`` and then ``rate`` bytes a second."""
    sizes = [1 << k for k in range(8, 30)]
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "send", "receive", "copy", "accumulate", "scale")
    tables = {kind: {size: series(start_s + size / rate) for size in sizes} for kind in kinds}
    return MeasuredMachine("cpu", "a processor", RANKS, 8, tables, {"torch": "2.13", "python": "3.12"}, (0.1, 0.2))


def nulls(
    mode: str, fixed: float, block: float, byte: float, found: MeasuredMachine
) -> tuple[MeasuredNetwork, MeasuredNetwork, MeasuredNetwork]:
    """Three chains in a mode that takes, beyond what the machine explains, what is planted here."""
    made = []
    for name, layers, width in (("few", 2, 8), ("many", 6, 8), ("wide", 2, 512)):
        held = weight_bytes(layers, width)
        trace = step(layers, width)
        moved = found.tables["all_reduce"]
        seconds = trace.device_time() + 3 * _at(moved, held) + fixed + block * layers + byte * held
        made.append(network(name, layers, width, {mode: seconds}))
    return made[0], made[1], made[2]


def _at(table: Mapping[int, MeasuredSeries], size: int) -> float:
    sizes = sorted(table)
    return float(np.interp(size, sizes, [table[s].cpu_s[0, 0] for s in sizes]))
