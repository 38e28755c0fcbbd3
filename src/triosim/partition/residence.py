"""Where parameters, activations and optimizer states rest, and when they are brought to where they are used.

A rule says so as data; :mod:`triosim.schedule` places the transfers that follow around the operators of a stage, and
knows no rule.
"""

from __future__ import annotations

from triosim.core.dataclass import dataclass
from triosim.trace.tables import Category

HOST, NVME = "host", "nvme"
"""Names of the places: host memory, and the NVMe drives behind it."""


@dataclass(frozen=True)
class GatheredModules:
    """How parameters that are Shard among replicas are brought together around their use.

    The parameters of a module are gathered before its first operator and their gradients reduced after its last one in
    the backward.  What is in none of the modules stays gathered from its first use to the end of the stage's forward
    and backward.  The defaults are those of PyTorch's ``fully_shard``.

    Attributes:
        modules: module paths, in which ``*`` stands for any one name (``transformer.h.*.mlp``); the innermost that
            fits has a parameter.  Empty for the repeated blocks of a model.
        forward_ahead, backward_ahead: modules whose gathering is launched ahead of their use.
    """

    modules: tuple[str, ...] = ()
    forward_ahead: int = 0
    backward_ahead: int = 1


@dataclass(frozen=True)
class HostStay:
    """What is in host memory, or on the server's NVMe drives, until it is needed.

    Attributes:
        category: activations kept for the backward and parameters travel block by block; optimizer states stay, and
            gradients and parameters travel instead.
        name: what users call it, for messages (``offload activations``).
        ahead: blocks by which its way back is launched before its use.
        waiting: so many blocks, or groups of gradients, wait to leave before computing waits for the first of them;
            the last so many blocks of a stage keep their activations, for they are needed at once.
        place: where it is, :data:`HOST` or :data:`NVME`.
        blocks: so many blocks of a stage, from its first on, send their activations; None for all that can.
    """

    category: Category
    name: str
    ahead: int = 1
    waiting: int = 2
    place: str = HOST
    blocks: int | None = None
