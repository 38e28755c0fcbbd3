"""The native engine gives what the reference engine gives, to the last bit."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests.engine.compare import Model, agree, any_circuits, chains, compare, crowd, defective, exchanges, outcome
from tests.engine.graphs import (
    GB_PER_S,
    US,
    Builder,
    any_direct,
    any_graph,
    any_interruption,
    edges,
    from_random,
    graphs,
    interrupted,
    wires,
)
from tests.exploring import examples
from triosim.collectives.pattern import ring
from triosim.core.columns import Ragged
from triosim.core.errors import InputError
from triosim.engine import reference
from triosim.engine.graph import EngineNetwork, Graph
from triosim.engine.play import ENGINES
from triosim.engine.solver import Flow, NetworkModel
from triosim.engine.solvers.circuit import Circuit
from triosim.engine.solvers.max_min import MaxMin

native = pytest.importorskip("triosim.engine.native", reason="no compiler was there at installation")

RELAXED = settings(suppress_health_check=[HealthCheck.too_slow])


@RELAXED
@given(graphs())
def test_any_graph_is_played_alike(case: tuple[Graph, EngineNetwork]) -> None:
    agree(reference.play, native.play, *case)


@RELAXED
@given(interrupted())
def test_collectives_that_are_broken_into_are_played_alike(case: tuple[Graph, EngineNetwork]) -> None:
    agree(reference.play, native.play, *case)


@RELAXED
@given(from_random(crowd))
def test_flows_whose_rates_differ_by_rounding_are_served_alike(case: tuple[Graph, EngineNetwork]) -> None:
    agree(reference.play, native.play, *case)


@RELAXED
@given(from_random(chains))
def test_links_that_others_hold_for_are_left_out_and_no_others(case: tuple[Graph, EngineNetwork]) -> None:
    agree(reference.play, native.play, *case, ways=("", *native.WAYS))


@settings(RELAXED, max_examples=examples(40))
@given(from_random(exchanges))
def test_exchanges_are_played_alike_in_every_way(case: tuple[Graph, EngineNetwork]) -> None:
    agree(reference.play, native.play, *case, ways=("", *native.WAYS))


@RELAXED
@given(from_random(defective))
def test_what_is_no_graph_is_refused_in_the_same_words(case: tuple[Graph, EngineNetwork]) -> None:
    agree(reference.play, native.play, *case)


def circuits(draw: Random) -> tuple[Graph, EngineNetwork, Model]:
    return *draw.choice([any_graph, any_interruption])(draw, on=any_direct), any_circuits(draw)


@RELAXED
@given(from_random(circuits))
def test_circuits_that_are_set_up_often_are_played_alike(case: tuple[Graph, EngineNetwork, Model]) -> None:
    _, network, model = case
    assert native.built_in(model(), network) is not None
    assert outcome(native.play, *case, True) == outcome(reference.play, *case, True)


def test_circuits_are_asked_in_python_where_they_may_refuse() -> None:
    b = Builder()
    b.transfer(0, 100)
    ends = np.array([[0, 1], [1, 2]], np.int32)
    for routes, joined, why in (([[0, 1]], ends, "--topology full"), ([[0], [1]], None, "which two devices")):
        network = replace(wires([GB_PER_S] * 2, routes), ends=joined)
        assert native.built_in(Circuit(), network) is None
        with pytest.raises(InputError, match=why):
            native.play(b.graph(), network, Circuit())


@pytest.mark.parametrize("model", [Circuit(ports=2**63), Circuit(receive_buffer=2**63), type("Own", (Circuit,), {})()])
def test_circuits_that_the_engine_cannot_count_or_does_not_know_are_asked_in_python(model: Circuit) -> None:
    network = replace(wires([GB_PER_S], [[0]]), ends=np.array([[0, 1]], np.int32))
    assert native.built_in(Circuit(), network) is not None
    assert native.built_in(model, network) is None


def test_many_cases_under_all_models() -> None:
    compare(reference.play, native.play, 400, first=2600, ways=("", *native.WAYS))


class Asked(MaxMin):
    """Max-min fair sharing that is not built in, because it is another class."""


@settings(RELAXED, max_examples=examples(50))
@given(graphs())
def test_a_model_written_in_python_is_asked_the_same_questions(case: tuple[Graph, EngineNetwork]) -> None:
    assert outcome(native.play, *case, Asked, True) == outcome(reference.play, *case, MaxMin, True)


class Wrong(NetworkModel):
    """A model that answers with what cannot be."""

    def start(self, wires: EngineNetwork) -> None:
        """Nothing to keep."""

    def change(self, now: int, joined: list[Flow], left: list[int]) -> list[tuple[int, object]]:
        """The end is not after the present."""
        return [(flow.number, now) for flow in joined]


class Half(Wrong):
    def change(self, now: int, joined: list[Flow], left: list[int]) -> list[tuple[int, object]]:
        """An end between two ticks."""
        return [(flow.number, now + 0.5) for flow in joined]


class Odd(Wrong):
    def change(self, now: int, joined: list[Flow], left: list[int]) -> list[tuple[int, object]]:
        """A flow that is not there."""
        return [(7, 2**64)]


class Breaking(Wrong):
    def change(self, now: int, joined: list[Flow], left: list[int]) -> list[tuple[int, object]]:
        """A defect of the model."""
        raise ZeroDivisionError("a defect")


def one_transfer(size: int = 1000) -> tuple[Graph, EngineNetwork]:
    b = Builder()
    b.transfer(0, size)
    return b.graph(), wires([GB_PER_S], [[0]])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (Wrong, InputError, "network model Wrong let flow 0 end at 0, asked at 0"),
        (Half, TypeError, "integer"),
        (Odd, InputError, "network model Odd let flow 7 end at 18446744073709551616, asked at 0"),
        (Breaking, ZeroDivisionError, "a defect"),
    ],
)
def test_what_is_wrong_in_a_model_comes_to_light(
    engine: str, model: type[NetworkModel], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ENGINES[engine](*one_transfer(), model())


def test_work_is_told_to_models_without_rounding() -> None:
    told: list[Flow] = []

    class Noting(Asked):
        def change(self, now: int, joined: list[Flow], left: list[int]) -> object:
            told.extend(joined)
            return super().change(now, joined, left)

    native.play(*one_transfer(2**33 + 1), Noting())
    assert told == [Flow(0, (0,), (1,), (2**33 + 1) * 1024 * 10**12, 0)]


def test_columns_of_other_widths_and_strides_are_read() -> None:
    b = Builder()
    b.collective(ring(3, 1000, 4), [0, 1, 2])
    graph, network = b.graph(), wires([GB_PER_S] * 3, [[0], [1], [2]])
    wide = replace(
        graph,
        kind=graph.kind.astype(np.int64),
        member=np.repeat(graph.member, 2)[::2],
        amount=graph.amount.astype(np.int16),
        before=Ragged(graph.before.values.astype(np.uint8), graph.before.offsets),
    )
    assert native.play(wide, network).finish.tolist() == [4 * US] * 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"amount": np.array([0.5])}, "amount must hold whole numbers"),
        ({"amount": np.array([2**63], np.uint64)}, "amount must hold whole numbers that fit int64"),
        ({"what": np.array([2**32])}, "what must hold whole numbers that fit int32"),
        ({"what": np.array([1], np.int32)}, "task 0: route does not exist"),
        ({"before": Ragged(np.zeros(0, np.int32), np.array([0, 1]))}, "graph.before: offsets must go up"),
        ({"before": Ragged(np.zeros(0, np.int32), np.array([0, -1]))}, "graph.before: offsets must go up"),
        ({"before": Ragged(np.zeros(0, np.int32), np.zeros(0, np.int64))}, "graph.before: offsets must go up"),
    ],
)
def test_columns_that_make_no_sense_are_refused(change: dict[str, object], message: str) -> None:
    graph, network = one_transfer()
    with pytest.raises(ValueError, match=message):
        native.play(replace(graph, **change), network)


def test_a_route_that_does_not_follow_its_offsets_is_refused() -> None:
    graph, network = one_transfer()
    broken = EngineNetwork(network.capacity, Ragged(network.routes.values, np.array([0, 2])), network.latency)
    with pytest.raises(ValueError, match=r"wires\.routes: offsets must go up from 0"):
        native.play(graph, broken)


@RELAXED
@given(interrupted())
def test_what_a_formula_says_is_what_playing_the_transfers_gives(case: tuple[Graph, EngineNetwork]) -> None:
    played, known = native.play(*case, _formulas=False), native.play(*case)
    assert played.finish.tolist() == known.finish.tolist()
    assert played.events == known.events


def test_a_ring_as_large_as_a_machine_is_known_at_once() -> None:
    members = 20_000
    b = Builder()
    b.collective(ring(members, 1000, 2 * (members - 1)), range(members))
    slow = [GB_PER_S // 2 if hop == 7 else GB_PER_S for hop in range(members)]
    played = native.play(b.graph(), wires(slow, [[hop] for hop in range(members)]))
    assert played.flows == 2 * members * (members - 1)
    # The slow hop sends without a pause; its last transfer is that of the members at both ends of it.
    assert played.finish[7] == played.finish[8] == 2 * (members - 1) * 2 * US
    # An edge i hops on does i of its moves at the pace of the others, so it ends before.
    assert played.finish.max() == played.finish[7]


def test_a_folded_ring_as_large_as_a_machine_is_known_at_once() -> None:
    """Links within servers, of which each but one follows another like it, and links between them."""
    count = 2**31 - 1
    b = Builder()
    b.collective(edges(1, [(0, 0), (0, 0)], 1000, count, [[(0, 1), (1, 1)], [(0, 1)]]), [0, 1])
    played = native.play(b.graph(), wires([GB_PER_S, GB_PER_S // 2], [[0], [1]]))
    assert played.finish.tolist() == [count * 2 * US]
