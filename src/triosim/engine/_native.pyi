from typing import Any

from numpy import float64, int32, int64
from numpy.typing import NDArray

from triosim.engine.graph import EngineNetwork, Graph
from triosim.engine.solver import NetworkModel
from triosim.engine.solvers.circuit import CircuitRules

_Ticks = NDArray[int64]

class Refused(ValueError):
    """Columns that make no sense; :mod:`triosim.engine.check` says which."""

def play(
    graph: Graph,
    wires: EngineNetwork,
    model: NetworkModel | str,
    alone: bool,
    formulas: bool,
    rules: CircuitRules | None = None,
) -> tuple[_Ticks, _Ticks, _Ticks, NDArray[int64], int, int, bool, bool, int]:
    """Play.

    Args:
        graph, wires: with columns that are contiguous and of the widths that :mod:`triosim.engine.graph` gives.
        model: a network model, or the name of one that is built in.
        alone: whether collectives that share no link may be advanced without asking the model.
        formulas: and without playing their transfers, where there is a closed form.
        rules: of the model ``circuit``, which is built in where there are some and no route crosses two links.

    Returns:
        start, begin, finish, bytes of each link, flows, events, whether all tasks ended, whether all ticks could be
        counted, and the first link with more bytes than can be counted (-1 if there is none).

    Raises:
        Refused: the columns make no sense.
    """

def play_many(
    graph: Graph,
    wires: EngineNetwork,
    model: str,
    kind: NDArray[int32],
    factors: NDArray[float64],
    links: NDArray[float64],
    rules: CircuitRules | None = None,
) -> NDArray[int64]:
    """Play many times.  See :func:`triosim.engine.monte_carlo.play_many`.

    Args:
        model: name of a network model that is built in.
        rules: as of :func:`play`.

    Returns:
        The tick at which the last task ends in each draw, or -1 where not all end.

    Raises:
        Refused: the columns make no sense.
    """

def replay(
    graph: Graph,
    kind: NDArray[int32],
    fixed: NDArray[float64],
    shared: NDArray[float64],
    factors: NDArray[float64],
    links: NDArray[float64],
    at: NDArray[int64],
) -> tuple[NDArray[float64], NDArray[float64], bool]:
    """The longest way.  See :func:`triosim.engine.native.replay`.

    Raises:
        Refused: the columns make no sense together.
    """

def turns(
    pieces: tuple[NDArray[Any], ...], played: tuple[NDArray[Any], ...], streams: int, messages: int
) -> tuple[_Ticks, _Ticks, _Ticks, NDArray[int64], _Ticks, _Ticks, bool]: ...
def meeting(
    pieces: tuple[NDArray[Any], ...],
    played: tuple[NDArray[Any], ...],
    ways: tuple[Any, ...],
    streams: int,
    messages: int,
    labels: int,
) -> tuple[int, _Ticks, _Ticks, _Ticks, _Ticks, bool, int]: ...
def chained(
    step: tuple[Any, ...], rows: NDArray[int32], calls: NDArray[Any], under_way: NDArray[int64], hosted: bool
) -> tuple[_Ticks, _Ticks, _Ticks, _Ticks, _Ticks, int, int]: ...

class PassChain:
    """What the operators of a step, and collectives between them, take in passes."""

    def __init__(self, step: tuple[Any, ...], more: tuple[Any, ...]) -> None:
        """See :func:`triosim.engine.operator_chain.pass_chain`.

        Raises:
            Refused: the columns make no sense together.
        """

    def contracted(
        self, script: tuple[Any, ...], times: NDArray[int64], leads: bool
    ) -> tuple[NDArray[int64], _Ticks, NDArray[int64], NDArray[int32], int, int, float]:
        """Run a script.

        Args:
            script: columns of :class:`triosim.search.pass_script.PassScript`.
            times: ticks and number of each of its transfers, one after another.
            leads: whether collectives of the next pass follow upon this one.

        Returns:
            facts, host delay, rows that are waited for, ports, ticks of the host, the first row that reduces and the
            part of the time in which work waits for its host that collectives take, as
            :class:`triosim.search.contracted_passes.WrittenPass` has them.

        Raises:
            Refused: the columns make no sense together.
        """

def steady(pieces: tuple[NDArray[Any], ...], streams: int) -> tuple[_Ticks, _Ticks]: ...
def refine(traffic: object) -> tuple[NDArray[int64], NDArray[int64], NDArray[int64], NDArray[int64]]:
    """Cells of parties, ways, links and groups.  See :func:`triosim.network.rank_classes.refined`.

    Args:
        traffic: a :class:`triosim.network.rank_classes.Traffic` with columns that are contiguous, of 64 bits (routes of
            32).

    Raises:
        Refused: the columns make no sense together.
    """
