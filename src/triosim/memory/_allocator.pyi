from numpy import int64
from numpy.typing import NDArray

def reserved(sizes: NDArray[int64], events: NDArray[int64]) -> int:
    """Bytes of all segments; see :func:`triosim.memory.footprint.played`, which does the same."""
