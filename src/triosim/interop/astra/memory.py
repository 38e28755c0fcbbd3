"""ASTRA-sim's remote-memory file (JSON): what memory nodes of a trace take, and which of them wait for each other.

An access takes a latency and bytes / bandwidth, in whole nanoseconds, rounded down; each memory serves one at a time.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triosim.errors import InputError, unknown

TYPES = ("NO_MEMORY_EXPANSION", "PER_NPU_MEMORY_EXPANSION", "PER_NODE_MEMORY_EXPANSION", "MEMORY_POOL")
_KEYS = ("memory-type", "remote-mem-latency", "remote-mem-bw", "num-nodes", "num-npus-per-node")


@dataclass(frozen=True)
class RemoteMemory:
    """A remote memory.

    Attributes:
        latency_ns: of an access.
        bandwidth: bytes per nanosecond (decimal GB/s).
        sharers: NPUs that share one memory, by number: 1 for each its own, 0 for all one.
    """

    latency_ns: float
    bandwidth: float
    sharers: int

    def place(self, npu: int) -> int:
        """Number of the memory that an NPU uses."""
        return npu // self.sharers if self.sharers else 0

    def nanoseconds(self, size: int) -> int:
        """What an access of ``size`` bytes takes."""
        return math.floor(self.latency_ns + size / self.bandwidth)


def read(path: str | Path, npus: int) -> RemoteMemory | None:
    """The memory that a file describes, None where there is none (``NO_MEMORY_EXPANSION``).

    Raises:
        InputError: the file cannot be read, or a key is missing, unknown or makes no sense.
    """
    path = Path(path)
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is not text'}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(table, dict) or "memory-type" not in table:
        raise InputError(f"{path} is no remote-memory file: it must hold a memory-type")
    for key in table:
        if key not in _KEYS:
            raise unknown(f"key in {path}", key, _KEYS)
    if table["memory-type"] not in TYPES:
        raise unknown(f"memory-type in {path}", str(table["memory-type"]), TYPES)
    kind = TYPES.index(table["memory-type"])
    if not kind:
        return None
    latency = _number(path, table, "remote-mem-latency", 0.0)
    bandwidth = _number(path, table, "remote-mem-bw", None)
    if not bandwidth > 0:
        raise InputError(f"{path}: remote-mem-bw must be above zero (GB/s)")
    sharers = (0, 1, 0, 0)[kind]
    if TYPES[kind] == "PER_NODE_MEMORY_EXPANSION":
        nodes, each = (_number(path, table, key, None) for key in ("num-nodes", "num-npus-per-node"))
        if nodes * each != npus or not each.is_integer():
            raise InputError(
                f"{path}: num-nodes {nodes:g} x num-npus-per-node {each:g} must be the {npus} NPUs of the network"
            )
        sharers = int(each)
    return RemoteMemory(latency, bandwidth, sharers)


def _number(path: Path, table: dict[str, Any], key: str, default: float | None) -> float:
    value = table.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InputError(f"{path}: {key} must be a number that is not negative, got {value!r}")
    return float(value)
