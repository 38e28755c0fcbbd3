"""AdamW (Loshchilov and Hutter, arXiv:1711.05101): Adam with weight decay of its own."""

from __future__ import annotations

from triosim.core.registry import registered
from triosim.transform.optimizers.adam import Adam
from triosim.transform.optimizing import ParameterGroup, StepBuilder, in_place


@registered
class AdamW(Adam):
    """As ``torch.optim.AdamW``: 8 bytes a parameter; the moments as of :class:`Adam`."""

    kernel = "_fused_adamw_"

    def update(self, step: StepBuilder, group: ParameterGroup) -> None:
        group.masters = in_place(step, "_foreach_mul_", group.masters)  # weight decay
        super().update(step, group)
