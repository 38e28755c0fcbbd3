"""The Step: what one rank computes for one micro-batch, and the transfers inside it."""

from __future__ import annotations

from dataclasses import field

from triosim.core.dataclass import dataclass
from triosim.partition.replication import Replication
from triosim.partition.transfers import Transfers
from triosim.trace.tables import Trace


@dataclass(frozen=True)
class SharedUpdate:
    """The update of a parameter of which each of several ranks has a part.

    Attributes:
        parameter: value id.
        rows: operators before the first exchange, between those that follow each other, and after the last.
        exchanges: between them, each a kind of collective (row of :data:`triosim.partition.transfers.COLLECTIVES`) and
            its bytes.  An all-to-all is of as many parameters of one shape as there are ranks: each rank is sent all of
            one and goes on with that, until the next gives it its parts of all.
        ranks: that have parts of it.
        alike: the same for parameters of which one all-to-all can bring together a whole one on each rank.
    """

    parameter: int
    rows: tuple[tuple[int, ...], ...]
    exchanges: tuple[tuple[int, int], ...]
    ranks: int
    alike: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """One rank's share of one micro-batch.

    Attributes:
        trace: the operators with the shapes that this rank has; row for row those of the whole trace.  What was
            gathered or is a summand is a value with a storage of its own.
        transfers: collectives between them.
        homes: the same operators on the values of the whole step, each with the shape of its home placement: who makes
            what another operator reads, however often it is sent in between.
        replication: what the replicas of the step divide among them.
        root_only: operators that only the first replica runs, on the samples of all.
        origin: for values that ``trace`` has more than ``homes``, copies and summands, the value that each is of.
        apart: parameters of which replicas have different ones (experts); their gradients are reduced along an axis of
            their own, ``replication.apart``.
        updates: of parameters of which a rank has a part, those that are updated one by one.
        notes: what the user should know about how the step was divided.
    """

    trace: Trace
    transfers: Transfers
    homes: Trace
    replication: Replication = field(default_factory=Replication)
    root_only: frozenset[int] = frozenset()
    origin: tuple[int, ...] = ()
    apart: frozenset[int] = frozenset()
    updates: tuple[SharedUpdate, ...] = ()
    notes: tuple[str, ...] = ()

    @staticmethod
    def whole(trace: Trace) -> Step:
        """The step of a rank that shares it with nobody."""
        return Step(trace, Transfers.of([]), trace)
