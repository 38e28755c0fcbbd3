"""Adam with both moments in 8 bits (Dettmers et al., arXiv:2110.02861), as ``bitsandbytes`` runs it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from triosim.core.registry import registered
from triosim.transform.optimizing import OptimizerRule, ParameterGroup, Shape, State, StepBuilder, fused_kernel

BLOCK = 256
"""Elements that share a scale (``blocksize`` in ``bitsandbytes/optim/optimizer.py``; the paper has 2,048)."""
SMALL = 4096
"""Parameters of fewer elements keep moments of 32 bits (``min_8bit_size`` there)."""


@registered
class Adam8bit(OptimizerRule):
    """As ``bitsandbytes.optim.Adam8bit``: 2 bytes and 2 x 4 / 256 for scales a parameter; a kernel for each tensor."""

    def states(self, name: str, shape: Shape) -> Mapping[str, State]:
        elements = math.prod(shape)
        if elements < SMALL:
            return {"exp_avg": (shape, "float32"), "exp_avg_sq": (shape, "float32")}
        scales = ((-(-elements // BLOCK),), "float32")
        return {"exp_avg": (shape, "uint8"), "exp_avg_sq": (shape, "uint8"), "absmax1": scales, "absmax2": scales}

    def update(self, step: StepBuilder, group: ParameterGroup) -> None:
        updated = []
        for at in range(len(group.weights)):
            one = group.only([at])
            scales = {"absmax1": "absmax1", "absmax2": "absmax2"} if "absmax1" in one.states else {}
            roles = {"exp_avg": "exp_avgs", "exp_avg_sq": "exp_avg_sqs", **scales}
            fused_kernel(step, "_fused_adam8bit_" if scales else "_fused_adam_", one, roles)
            updated += one.masters
        group.masters = updated
