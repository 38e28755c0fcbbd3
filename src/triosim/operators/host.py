"""Operators in which the host waits for a number or asks a question; they launch nothing that takes time."""

from __future__ import annotations

from triosim.core.registry import registered
from triosim.operators._kind import Kind


@registered
class HostRead(Kind):
    """``item`` and its relatives."""

    names = """
        item _local_scalar_dense is_nonzero equal allclose is_same_size
        """
    kernels = "nothing"
