"""ASTRA-sim's remote-memory file (JSON): what memory nodes of a trace take, and which of them wait for each other.

An access takes a latency and bytes / bandwidth, in whole nanoseconds, rounded down; each memory serves one at a time.
"""

from __future__ import annotations

import math
from pathlib import Path

from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, unknown
from triosim.interop.astra.tables import real, table

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
    found = table(path, "remote-memory file: it must hold a memory-type")
    if "memory-type" not in found:
        raise InputError(f"{path} is no remote-memory file: it must hold a memory-type")
    for key in found:
        if key not in _KEYS:
            raise unknown(f"key in {path}", key, _KEYS)
    if found["memory-type"] not in TYPES:
        raise unknown(f"memory-type in {path}", str(found["memory-type"]), TYPES)
    kind = TYPES.index(found["memory-type"])
    if not kind:
        return None
    latency = real(path, "remote-mem-latency", found.get("remote-mem-latency", 0))
    bandwidth = real(path, "remote-mem-bw", found.get("remote-mem-bw"))
    if not bandwidth > 0:
        raise InputError(f"{path}: remote-mem-bw must be above zero (GB/s)")
    sharers = (0, 1, 0, 0)[kind]
    if TYPES[kind] == "PER_NODE_MEMORY_EXPANSION":
        nodes, each = (real(path, key, found.get(key)) for key in ("num-nodes", "num-npus-per-node"))
        if nodes * each != npus or not each.is_integer():
            raise InputError(
                f"{path}: num-nodes {nodes:g} x num-npus-per-node {each:g} must be the {npus} NPUs of the network"
            )
        sharers = int(each)
    return RemoteMemory(latency, bandwidth, sharers)
