"""Operators that no other kind lists: moved by their bytes, their dimensions taken for those of broadcasting."""

from __future__ import annotations

from dataclasses import replace

from triosim.core.registry import registered
from triosim.operators._call import Call
from triosim.operators._dims import Dims, aligned
from triosim.operators._kind import Kind


@registered
class Other(Kind):
    """Nothing is known but shapes.  Collectives are listed, for some of their names sound like indexing."""

    names = """
        c10d::* _c10d_functional::* _c10d_functional_autograd::* symm_mem::*
        """

    def dims(self, call: Call) -> Dims:
        found = aligned(call)
        if call.outputs and not any(o.labels for o in found.outputs) and any(call.inputs):
            return replace(found, known=False)
        return found
