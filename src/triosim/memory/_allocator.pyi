from numpy import int8, int32, int64
from numpy.typing import NDArray

def reserved(sizes: NDArray[int64], events: NDArray[int64]) -> int:
    """Bytes of all segments; see :func:`triosim.memory.footprint.played`, which does the same."""

def reserved_in_passes(
    resident: NDArray[int64],
    ends: NDArray[int64],
    what: NDArray[int8],
    which: NDArray[int32],
    size: NDArray[int64],
    order: NDArray[int32],
    micro_batch: NDArray[int32],
) -> int:
    """The same of passes; see :class:`triosim.memory.allocation_order.AllocationOrder`, which says it in Python too."""
