"""The optimizer on the host's processor (``--offload optimizer``): what a byte that it touches costs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triosim.core.errors import PlanError
from triosim.core.units import format_bandwidth, format_bytes
from triosim.hardware.system import System

EFFICIENCY = 0.45
"""Part of the memory bandwidth of the host's processors that a fused, vectorised Adam reaches.  Ren et al.,
arXiv:2101.06840, table 4: 10 billion parameters in 2.57 s on two Xeon Platinum 8168 (256 GB/s).  An update reads the
gradient, the master weight and two moments and writes the last three, 28 bytes a parameter in float32: 0.43 of the
bandwidth, and 0.50 at 1 billion.  The table was quoted from memory and could not be looked up."""


SPREAD = 0.3
"""Natural logarithm of the 90 % interval's factor: the five sizes of that table lie between 0.36 and 0.50 on one
machine (90 % within a factor 1.2), and other processors were not measured."""


def update_s_per_byte(system: System, devices: NDArray[np.int32]) -> float:
    """Seconds that the host needs for a byte which one rank's update reads or writes.

    The ranks of a server update at the same time and share the bandwidth of its processors.

    Args:
        system: the machine.
        devices: device of each rank.

    Raises:
        PlanError: the system does not say which processor its hosts have.
    """
    processor = system.server_cpu
    if processor is None or processor.memory_bandwidth is None:
        raise PlanError(
            f"offload optimizer: the host's processor updates, and system {system.name!r} does not say which it is: "
            "take a ready --system that does, or describe one with host.cpu"
        )
    sockets = max(round((system.server_cores or 0) / processor.compute_units), 1) if processor.compute_units else 1
    ranks = int(np.bincount(system.device_server[devices]).max(initial=1))
    return ranks / (processor.memory_bandwidth * sockets * EFFICIENCY)


def nvme_s_per_byte(system: System, devices: NDArray[np.int32]) -> tuple[float, float]:
    """Seconds that the drives of a server need for a byte which one rank reads from them, and for one that it writes.

    The ranks of a server share its drives, and a drive that reads does not write at the same time: its flash is busy.

    Args:
        system: the machine.
        devices: device of each rank.

    Raises:
        PlanError: the servers have no drives.
    """
    drives = system.server_nvme[system.server_nvme >= 0]
    if not len(drives):
        raise PlanError(
            f"offload to NVMe: the servers of system {system.name!r} have no drives: take a --system that has some, or "
            "describe them in its file ([nvme])"
        )
    ranks = int(np.bincount(system.device_server[devices]).max(initial=1))
    reads = float(system.bandwidth[system.edge_source == drives[0]].min())
    writes = float(system.bandwidth[system.edge_target == drives[0]].min())
    return ranks / reads, ranks / writes


def nvme_source(system: System) -> str:
    """Where :func:`nvme_s_per_byte` is from, for people."""
    row = int((system.edge_source == system.server_nvme.max()).argmax())
    back = int((system.edge_target == system.server_nvme.max()).argmax())
    rates = [format_bandwidth(float(system.bandwidth[one])) for one in (row, back)]
    about = f" ({system.nvme_source})" if system.nvme_source else ""
    return f"NVMe: the drives of a server read {rates[0]} and write {rates[1]} at most, shared by its ranks{about}"


def too_much_on_nvme(system: System, devices: NDArray[np.int32], each: int) -> str:
    """What to say where the drives of a server do not hold what its ranks keep on them; empty where they do.

    Args:
        system: the machine.
        devices: device of each rank.
        each: bytes of a rank, of the one with most.
    """
    whole = int(np.bincount(system.device_server[devices]).max(initial=1)) * each
    if system.nvme_bytes is None or whole <= system.nvme_bytes:
        return ""
    return (
        f"the {format_bytes(system.nvme_bytes)} of a server's NVMe drives do not hold the {format_bytes(whole)} of its "
        "ranks: times are as if they did"
    )


def source(system: System) -> str:
    """Where :func:`update_s_per_byte` is from, for people."""
    name = system.server_cpu.name if system.server_cpu is not None else "processor"
    part = f"{100 * EFFICIENCY:.0f} % of its memory bandwidth"
    return f"offload: the optimizer runs on the host's {name} at {part} (DeepSpeed's CPU-Adam)"
