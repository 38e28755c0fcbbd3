from numpy import int64
from numpy.typing import NDArray

from triosim.engine.graph import Graph, Wires
from triosim.engine.solver import NetworkModel

_Ticks = NDArray[int64]

def play(
    graph: Graph, wires: Wires, model: NetworkModel | str, alone: bool
) -> tuple[_Ticks, _Ticks, _Ticks, NDArray[int64], int, int, bool, bool] | None:
    """Start, begin, finish, bytes of each link, flows, events, whether all tasks ended, and whether ticks could be counted.

    ``alone``: whether collectives that share no link may be worked out instead of played flow by flow.  None if the
    columns make no sense.
    """
