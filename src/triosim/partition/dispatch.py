"""How the rows of tokens reach the ranks that have their experts: by which collectives, and how much of each.

Of ``T`` tokens of ``h`` elements that take ``k`` experts each, a rank sends, its own part included:

* ``alltoall``: each row to its expert, ``T k h`` (GShard, arXiv:2006.16668; Megatron-LM's
  ``MoEAlltoAllTokenDispatcher``);
* ``allgather``: all tokens go to all ranks of the group, whose results are reduce-scattered, ``n T h`` in the full
  buffer (Megatron-LM's ``MoEAllGatherTokenDispatcher``);
* ``2dh``: within a server first, then between ranks of the same place on their servers, ``T k h`` twice, in messages
  that are larger by as many as a server has (DeepSpeed-MoE, arXiv:2201.05596, section 5.2; Tutel, arXiv:2206.03382,
  section 3.3);
* ``deepep``: once to each *server* that a token needs, to the rank of the same place, and on from there once to each
  rank, both at the same time in chunks: ``T s h`` between servers and ``T r h`` within (DeepSeek-V3, arXiv:2412.19437,
  section 3.2.2; DeepEP's normal kernels).

With ``fp8`` rows go to the experts, and gradients in the backward, in 8 bits with a float32 for every 128 elements, and
come back as they are computed (the same paper, section 3.3.3).  The cast is left out: products in FP8 need it anyway.

``s`` servers and ``r`` ranks are what ``k`` different experts are expected to lie on, all alike: of ``P`` places of
``m`` experts each, ``P (1 - C(E - m, k) / C(E, k))``; with a limit of ``M`` servers a token takes its experts among
those of ``M`` (node-limited routing, the same section 2.1.2).
"""

from __future__ import annotations

from math import comb
from typing import Literal, NamedTuple

from triosim.core.dataclass import dataclass
from triosim.core.errors import PlanError
from triosim.partition.transfers import ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER

Style = Literal["alltoall", "allgather", "2dh", "deepep"]
ElementType = Literal["same", "fp8"]
FP8_BITS = 8 + 32 / 128
"""Of an element and its part of a scale (DeepSeek-V3, section 3.3.2: tiles of 1 x 128)."""


class DispatchHop(NamedTuple):
    """One collective on the way to the experts, which comes back the other way round.

    Attributes:
        axis: row of the mesh's axes.
        there, back: kinds of collective.
        times: what is sent, over one row for each token.
        beside: whether it runs beside the hop before it.
        fills: whether it carries what came to a rank, more to the fullest.
    """

    axis: int
    there: int
    back: int
    times: float
    beside: bool = False
    fills: bool = False


@dataclass(frozen=True)
class Dispatch:
    """The collectives that bring rows of tokens to experts and back, within one group of ranks.

    Attributes:
        style: see the module.
        ranks: of the group.
        axis: row of the mesh's axes of the whole group.
        within, between: rows of the axes of its ranks on one server, and of those of the same place on all its servers.
        near: ranks on one server; 0 where that does not matter.
        limit: servers whose experts a token may take; 0 for any.
        element_type: in what rows travel to the experts.
    """

    style: Style
    ranks: int
    axis: int
    within: int = -1
    between: int = -1
    near: int = 0
    limit: int = 0
    element_type: ElementType = "same"

    def there(self, width: float) -> float:
        """Bytes of an element on its way to the experts; ``width`` are those in which it is computed."""
        return width if self.element_type == "same" else FP8_BITS / 8

    def hops(self, experts: int, chosen: float) -> list[DispatchHop]:
        """The collectives on the way to the experts, in order.

        Args:
            experts: how many there are.
            chosen: experts that a token takes.

        Raises:
            PlanError: the servers that a token may take have fewer experts than it takes.
        """
        if self.style == "allgather":
            return [DispatchHop(self.axis, ALL_GATHER, REDUCE_SCATTER, self.ranks)]
        if self.style == "alltoall" or (self.style == "2dh" and self.near in (1, self.ranks)):
            return [DispatchHop(self.axis, ALL_TO_ALL, ALL_TO_ALL, chosen)]
        if self.style == "2dh":
            return [DispatchHop(axis, ALL_TO_ALL, ALL_TO_ALL, chosen) for axis in (self.within, self.between)]
        servers = self.ranks // self.near
        nodes = min(self.limit or servers, servers)
        among = experts // servers * nodes
        if among < chosen:
            raise PlanError(
                f"experts: node-limit {nodes} leaves a token {among} experts, and it takes {chosen:g}: give more"
            )
        each = DispatchHop(self.within, ALL_TO_ALL, ALL_TO_ALL, met(nodes * self.near, among, chosen), servers > 1)
        over = DispatchHop(self.between, ALL_TO_ALL, ALL_TO_ALL, met(nodes, among, chosen))
        return [hop for hop, some in ((over, servers > 1), (each, self.near > 1)) if some]


def met(places: int, experts: int, chosen: float) -> float:
    """Places on which the different experts of a token are expected to lie, the experts divided evenly among them."""
    k, others = round(chosen), experts - experts // places
    return places * (1 - comb(others, k) / comb(experts, k))
