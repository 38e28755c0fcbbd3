"""Memory whose banks compute: what it does beside a processor, from a file or ready.

A product with a vector reads a matrix once and does two operations for each of its elements; a processor gets it
through the pins of the memory, a unit at each bank reads it where it lies.  So many figures say what that takes::

    name = "attacc"
    banks = 5120                        # of all stacks of one device
    bank_bandwidth = "5.9 GB/s"         # that one bank's unit reads
    bank_flops = "5.9 GFLOP/s"          # that it computes
    vectors = 1                         # that one reading of a row serves
    command = "1 us"                    # from the processor's call to the first command of a bank
    broadcast_bandwidth = "300 GB/s"    # vectors on their way to the banks, all together
    gather_bandwidth = "300 GB/s"       # results on their way back
    exchange_bandwidth = "3352 GB/s"    # scores between the banks and where their softmax is taken
    bank_pj_per_byte = 4.4              # read from a bank's own rows
    pj_per_flop = 0.16
    transfer_pj_per_byte = 10.4         # to and from the processor
    sub_batches = 1                     # 2: while the banks attend for one half, the processor multiplies for the other
    source = "..."
"""

from __future__ import annotations

import os
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted, unknown
from triosim.core.units import parse_bandwidth, parse_flops, parse_time

_PICO = 1e-12
_MOST = 1e18


@dataclass(frozen=True)
class PimMemory:
    """Computing memory of one device; SI units.

    Attributes:
        name: of the file, or as it says.
        banks: that compute.
        bank_bandwidth, bank_flops: bytes and operations per second of one.
        vectors: that one reading of a matrix serves.
        command_s: before the first bank begins.
        broadcast_bandwidth, gather_bandwidth: bytes per second to all banks, and from them, over what joins them with
            the processor.
        exchange_bandwidth: bytes per second between banks and where a softmax is taken.
        bank_j_per_byte, j_per_flop, transfer_j_per_byte: joules.
        sub_batches: 2 where banks and processor work at the same time, each for one half of the batch.
        source: of the figures.
    """

    name: str
    banks: int
    bank_bandwidth: float
    bank_flops: float
    vectors: int
    command_s: float
    broadcast_bandwidth: float
    gather_bandwidth: float
    exchange_bandwidth: float
    bank_j_per_byte: float
    j_per_flop: float
    transfer_j_per_byte: float
    sub_batches: int = 1
    source: str = ""

    @property
    def bandwidth(self) -> float:
        """Of all banks, bytes per second."""
        return self.banks * self.bank_bandwidth

    @property
    def flops(self) -> float:
        """Of all banks, operations per second."""
        return self.banks * self.bank_flops


_QUANTITIES = {
    "bank_bandwidth": parse_bandwidth, "bank_flops": parse_flops, "broadcast_bandwidth": parse_bandwidth,
    "gather_bandwidth": parse_bandwidth, "exchange_bandwidth": parse_bandwidth,
}  # fmt: skip
_JOULES = {
    "bank_pj_per_byte": "bank_j_per_byte", "pj_per_flop": "j_per_flop", "transfer_pj_per_byte": "transfer_j_per_byte",
}  # fmt: skip
_COUNTS = ("banks", "vectors", "sub_batches")


def names() -> tuple[str, ...]:
    """Of the ready ones."""
    folder = Path(__file__).parent / "pim_memories"
    return tuple(sorted(Path(one.name).stem for one in folder.iterdir() if one.name.endswith(".toml")))


@lru_cache(maxsize=32)
def pim_memory(name: str) -> PimMemory:
    """A ready one by name, or the one that a TOML file describes.

    Raises:
        InputError: there is none, or the file makes no sense.
    """
    from triosim.core import guarded

    if name in names():
        source = (Path(__file__).parent / "pim_memories" / f"{name}.toml").read_text(encoding="utf-8")
        return _parsed(guarded.parse_toml(source, name), name, name)
    if Path(name).suffix.lower() not in (".toml", ".json", ".yaml", ".yml"):
        raise unknown("computing memory", name, names(), "(nor is it a file that ends in .toml)")
    return _parsed(guarded.document(Path(name)), name, Path(name).stem)


def split(name: str) -> tuple[str, str]:
    """Processor and computing memory of ``"A100+attacc"``, ``"A100+memory.toml"``; no memory where the whole is a name
    of a file, or what stands before the plus no device of the catalog and what stands behind it no ready memory."""
    from triosim.hardware import catalog  # whose devices may have such memory

    processor, plus, memory = name.rpartition("+")
    if not (plus and processor and memory) or os.path.exists(name):
        return name, ""
    return (processor, memory) if memory in names() or catalog.has_accelerator(processor) else (name, "")


def _parsed(table: dict[str, Any], where: str, stem: str) -> PimMemory:
    known = {*_QUANTITIES, *_JOULES, *_COUNTS, "name", "command", "source"}
    for key in table:
        if key not in known:
            raise InputError(f"{where}: {unknown('key', key, sorted(known))}")
    for key in sorted(known - {"name", "source", "sub_batches"}):
        if key not in table:
            raise InputError(f"{where}: {key} is missing: say it, as in docs/pim.md")
    found: dict[str, Any] = {"name": str(table.get("name", stem)), "source": str(table.get("source", "of the user"))}
    for key, parse in _QUANTITIES.items():
        found[key] = parse(_scalar(table[key], key, where), f"{where}: {key}")
        if not 0 < found[key] <= _MOST:
            raise InputError(f"{where}: {key} must be above 0 and at most {_MOST:g}, got {quoted(table[key])}")
    found["command_s"] = parse_time(_scalar(table["command"], "command", where), f"{where}: command")
    for key, own in _JOULES.items():
        value = table[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e9:
            raise InputError(f"{where}: {key} must be a number of picojoules from 0 to 1e9, got {quoted(value)}")
        found[own] = value * _PICO
    for key in _COUNTS:
        value, most = table.get(key, 1), {"sub_batches": 2, "vectors": 4096}.get(key, 10**8)
        if type(value) is not int or not 1 <= value <= most:
            raise InputError(f"{where}: {key} must be a whole number from 1 to {most:,}, got {quoted(value)}")
        found[key] = value
    assert found.keys() == {one.name for one in fields(PimMemory)}
    return PimMemory(**found)


def _scalar(value: Any, key: str, where: str) -> str | float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(f"{where}: {key} must be a text with a unit or a number, got {quoted(value)}")
    return value
