from numpy import int64
from numpy.typing import NDArray

from triosim.engine.graph import Graph, Wires
from triosim.engine.solver import NetworkModel

_Ticks = NDArray[int64]

def play(
    graph: Graph, wires: Wires, model: NetworkModel | str, alone: bool, formulas: bool
) -> tuple[_Ticks, _Ticks, _Ticks, NDArray[int64], int, int, bool, bool] | None:
    """Play; None if the columns make no sense.

    Args:
        graph, wires: with columns that are contiguous and of the widths that :mod:`triosim.engine.graph` gives.
        model: a network model, or the name of one that is built in.
        alone: whether collectives that share no link may be advanced without asking the model.
        formulas: and without playing their transfers, where there is a closed form.

    Returns:
        start, begin, finish, bytes of each link, flows, events, whether all tasks ended, and whether all ticks could be
        counted.
    """
