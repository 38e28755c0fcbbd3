"""Energies that nobody stated, from published figures of other memories and multipliers.

A memory on the chip is interpolated in its capacity, and between the processes of 45 and 7 nm, in logarithms; an
access costs in proportion to its bits.  A register file costs as much as the multiplication of a word of its size, as
measured for Eyeriss (Chen et al., ISCA 2016: 0.5 KB, one access is one multiply-accumulate).  Writes and updates cost
what a read costs.  Leakage that nobody stated is not counted.

How far this may be off is seen where two published tables are of the same memory: the buffer of the eyeriss-like
exercise design costs 74.1 pJ in the tables of 2022 and 18.2 in those of 2024.  An assumed energy is therefore given a
factor of two either way; a DRAM's is the range that its source states.
"""

from __future__ import annotations

import csv
import math
import re
from dataclasses import replace
from functools import lru_cache
from importlib import resources

from triosim.accelerator.architecture import (
    DRAMS,
    Architecture,
    AssumedEnergies,
    Compute,
    Energies,
    FanOut,
    Store,
    merged,
)
from triosim.core.units import format_bytes

FACTOR = 2.02
"""Of an assumed energy, up and down: the square root of 74.144 / 18.183829 (see above)."""

DEFAULT_NM = 45.0

PROCESSES_NM = (1.0, 10_000.0)
"""Nanometres of a process: the Intel 4004 of 1971 had ten thousand."""

_PICO = 1e-12


@lru_cache(maxsize=1)
def _rows() -> tuple[dict[str, str], ...]:
    text = (resources.files("triosim.accelerator") / "energies.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def process_nm(technology: str) -> float | None:
    """Nanometres that the name of a process holds; None where it holds none, or none of :data:`PROCESSES_NM`."""
    match = re.search(r"(\d+(?:\.\d+)?)", technology)
    found = float(match[1]) if match else 0.0
    return found if PROCESSES_NM[0] <= found <= PROCESSES_NM[1] else None


def _line(x: float, points: list[tuple[float, float]]) -> float:
    """Interpolation in logarithms through points, along the nearest two outside of them."""
    points = sorted(points)
    if len(points) == 1:
        return points[0][1]
    i = next((i for i in range(1, len(points) - 1) if x <= points[i][0]), len(points) - 1)
    (x0, y0), (x1, y1) = points[i - 1], points[i]
    share = math.log(x / x0) / math.log(x1 / x0)
    return y0 * (y1 / y0) ** share


@lru_cache(maxsize=8)
def _measured(component: str, column: str) -> dict[float, list[tuple[float, float]]]:
    """What a column says of a component in each process, and pJ."""
    nodes: dict[float, list[tuple[float, float]]] = {}
    for row in _rows():
        if row["component"] == component:
            nodes.setdefault(float(row["technology_nm"]), []).append((float(row[column]), float(row["low_pj"])))
    return nodes


@lru_cache(maxsize=4096)
def _at(component: str, column: str, x: float, nanometres: float) -> float:
    """pJ of a component: along a column within each process, then between the processes."""
    nodes = _measured(component, column)
    return _line(nanometres, [(node, _line(x, points)) for node, points in nodes.items()])


def multiply_add_j(bits: int, nanometres: float) -> float:
    """Joules of an integer multiplication of ``bits`` and an addition of twice as many."""
    return (_at("multiply", "bits", bits, nanometres) + _at("add", "bits", 2 * bits, nanometres)) * _PICO


def sram_j(capacity_bytes: float, bits: int, nanometres: float) -> float:
    """Joules of an access of ``bits`` to a memory of ``capacity_bytes``."""
    return _at("SRAM", "bytes", max(capacity_bytes, 1.0), nanometres) * bits / 64 * _PICO


def _dram_j(kind: str, bits: int) -> tuple[float, float, str]:
    """Least and largest joules of an access, and the source."""
    row = next((row for row in _rows() if row["component"] == kind), None)
    row = row or next(row for row in _rows() if row["component"] == "DRAM")
    scale = bits / 64 * _PICO
    return float(row["low_pj"]) * scale, float(row["high_pj"]) * scale, row["source"]


def completed(architecture: Architecture) -> Architecture:
    """The same with energies for all actions; what was assumed stands in its ``assumed``."""
    stated = process_nm(architecture.technology)
    nanometres = stated or DEFAULT_NM
    node = f"{nanometres:g} nm" + ("" if stated else ", as nobody stated the process")
    assumed: list[AssumedEnergies] = []
    nodes: list[Store | FanOut] = []
    for item in architecture.nodes:
        if isinstance(item, Store):
            store, guess = _store(item, nanometres, node)
            nodes.append(store)
            assumed += [guess] if guess else []
        else:
            nodes.append(item)
    compute, guess = _compute(architecture.compute, nanometres, node)
    assumed += [guess] if guess else []
    return replace(architecture, nodes=tuple(nodes), compute=compute, assumed=tuple(assumed))


def _store(store: Store, nanometres: float, node: str) -> tuple[Store, AssumedEnergies | None]:
    own = store.energies
    if own.read is not None or own.write is not None or own.update is not None:
        one = next(x for x in (own.read, own.write, own.update) if x is not None)
        same = Energies(one, one if own.update is None else own.update, one if own.write is None else own.write)
        if None not in (own.read, own.write, own.update):
            return store, None
        guess = AssumedEnergies(
            store.name, 1 / FACTOR, FACTOR, "actions that are not stated cost as much as those that are"
        )
        return replace(store, energies=merged(same, own)), guess
    bits = store.word_bits * store.words_per_access
    if store.kind in DRAMS:
        low, high, source = _dram_j(store.kind, bits)
        value, text = math.sqrt(low * high), f"{source}, {bits} bits"
        guess = AssumedEnergies(store.name, low / value, high / value if high > low else 1.0, _said(value, text))
        if high == low:
            guess = replace(guess, low=1 / FACTOR, high=FACTOR)
    elif store.kind == "regfile":
        value = multiply_add_j(store.word_bits, nanometres) * store.words_per_access
        text = f"a multiplication of {store.word_bits} bits in {node} (Eyeriss, ISCA 2016; Horowitz, Jouppi)"
        guess = AssumedEnergies(store.name, 1 / FACTOR, FACTOR, _said(value, text))
    else:
        size = store.capacity_words * store.word_bits / 8 if store.capacity_words is not None else 2**20
        value = sram_j(size, bits, nanometres)
        text = f"SRAM of {format_bytes(size)}, {bits} bits in {node} (Horowitz, ISSCC 2014; Jouppi, ISCA 2021)"
        guess = AssumedEnergies(store.name, 1 / FACTOR, FACTOR, _said(value, text))
    return replace(store, energies=merged(Energies(value, value, value), own)), guess


def _compute(compute: Compute, nanometres: float, node: str) -> tuple[Compute, AssumedEnergies | None]:
    if compute.energies.compute is not None:
        return compute, None
    value = multiply_add_j(compute.word_bits, nanometres)
    text = f"integer multiply-add of {compute.word_bits} bits in {node} (Horowitz, ISSCC 2014; Jouppi, ISCA 2021)"
    made = replace(compute, energies=merged(compute.energies, Energies(compute=value)))
    return made, AssumedEnergies(compute.name, 1 / FACTOR, FACTOR, _said(value, text))


def _said(value: float, text: str) -> str:
    pico = value / _PICO
    return f"{pico:,.0f} pJ an access: {text}" if pico >= 100 else f"{pico:.3g} pJ an access: {text}"


def dram_j(bits: int) -> float:
    """Joules of ``bits`` read from or written to a DRAM: the middle, in logarithms, of the published range."""
    low, high, _ = _dram_j("DRAM", bits)
    return math.sqrt(low * high)
