"""All-reduces by an engine's own kernels, which read the memory of peers, in place of a library's.

Devices of vLLM, SGLang (``custom_all_reduce.cuh``) and TensorRT-LLM (``customAllReduceKernels.cu``) know each other's
buffers, and a captured graph launches one kernel.  In one shot each reads the whole message of all others; in two it
adds up its part and reads the parts of the others, with a second barrier between::

    one shot   = base + (n - 1) S / (reading * bandwidth)
    two shots  = base + second + 2 (n - 1) / n S / (reading * bandwidth)

The quicker one is taken.  ``bandwidth`` is what a device can get from all of its peers together.  Messages of
``largest`` bytes and more, members in several servers, and PCIe are left to the library.

Constants are those of ``data/peer_all_reduce.json`` (validation/fit/peer_all_reduce.py).
"""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from triosim.collectives.group import Group
from triosim.core.dataclass import dataclass
from triosim.serving.fitted import document

SCHEMA = "triosim/peer-all-reduce/1"
DIRECT = ("NVLink", "xGMI")
"""Families of links through which devices read each other's memory."""
MOST_MEMBERS = 8


@dataclass(frozen=True)
class PeerConstants:
    """See the module's docstring.

    Attributes:
        base_s, second_s: seconds.
        reading: part of the bandwidth.
        largest: bytes.
    """

    base_s: float
    second_s: float
    reading: float
    largest: float


@lru_cache(maxsize=1)
def constants() -> dict[str, PeerConstants]:
    """Those that come with the program, by the kernels' name."""
    found = document("peer_all_reduce", SCHEMA)
    return {
        name: PeerConstants(**{own.name: float(row[own.name]) for own in fields(PeerConstants)})
        for name, row in found["constants"].items()
    }


def seconds(c: PeerConstants, members: NDArray, sizes: NDArray, bandwidth: NDArray | float) -> NDArray[np.float64]:
    """Of all-reduces of so many bytes each."""
    reading = sizes / (c.reading * bandwidth)
    one = (members - 1) * reading
    two = c.second_s + 2 * (members - 1) / members * reading
    return np.asarray(c.base_s + np.minimum(one, two), np.float64)


def quicker(name: str, group: Group, sizes: NDArray, library: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds of all-reduces, by an engine's kernels where it takes these.

    Args:
        name: of the kernels.
        group: who takes part.
        sizes: bytes of each.
        library: seconds of a library.
    """
    intra = group.intra
    if intra is None or group.inter is not None or intra.family not in DIRECT or group.members > MOST_MEMBERS:
        return library
    own = constants()[name]
    found = seconds(own, np.full(len(sizes), float(group.members)), sizes, intra.bandwidth)
    return np.where(sizes < own.largest, found, library)
