"""What only the reference engine offers, the closed form of lone collectives, and network models of one's own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.engine.graphs import GB_PER_S, US, Builder, graphs, interrupted, routes_of, switch, wires
from tests.exploring import examples
from triosim.collectives.pattern import chain, ring
from triosim.core.errors import InputError
from triosim.engine import reference
from triosim.engine.graph import EngineNetwork, Graph, GraphRun, Pattern, Stuck
from triosim.engine.reference import play
from triosim.engine.solver import NEVER, Flow, NetworkModel, Sharing
from triosim.engine.solvers.equal_split import EqualSplit


def same(one: GraphRun, other: GraphRun) -> bool:
    columns = ("start", "begin", "finish", "link_bytes")
    return one.flows == other.flows and all((getattr(one, c) == getattr(other, c)).all() for c in columns)


def chain_and_a_flow_that_comes_as_its_first_member_ends() -> tuple[Graph, EngineNetwork]:
    b = Builder()
    rule = chain(3, 1000, 2)
    later = b.compute(2 * US)
    b.collective(rule, routes_of(rule, range(3), 3))
    b.transfer(1, 1000, before=[later])
    return b.graph(), switch(3, GB_PER_S)


@settings(max_examples=examples(150))
@given(drawn=st.one_of(graphs(), interrupted()), order=st.permutations(range(9)))
@example(drawn=chain_and_a_flow_that_comes_as_its_first_member_ends(), order=[8, 7, 6, 5, 4, 3, 2, 1, 0])
def test_the_order_of_what_happens_at_one_tick_does_not_matter(
    drawn: tuple[Graph, EngineNetwork], order: list[int]
) -> None:
    played = play(*drawn)
    names = ("_DUE", "_END", "_COUNT", "_JOIN", "_STEP", "_BEGIN", "_WAKE", "_PUT", "_TAKE")
    with pytest.MonkeyPatch.context() as patch:
        for name, place in zip(names, order, strict=True):
            patch.setattr(reference, name, place)
        other = play(*drawn)
    assert same(played, other)


@pytest.mark.parametrize("rule", [ring(4, 1000, 6), chain(4, 1000, 5)])
def test_a_collective_alone_is_never_played(rule: Pattern) -> None:
    b = Builder()
    b.collective(rule, routes_of(rule, range(4), 4))
    assert play(b.graph(), switch(4, GB_PER_S, 9)).events == 0
    assert play(b.graph(), switch(4, GB_PER_S, 9), _closed_form=False).events > 0


def test_a_ring_is_played_only_after_a_flow_came_onto_its_links() -> None:
    b = Builder()
    rule = ring(4, 1000, 6)
    b.collective(rule, routes_of(rule, range(4), 5))
    b.transfer(1 * 5 + 4, 10, before=[b.compute(5 * US + 5)])
    # The flow joins in the last step and ends in it: one event for the join, one for its end, and one for the ends of
    # the transfers that it did not delay, one for that which it did.
    assert play(b.graph(), switch(5, GB_PER_S)).events == 4


# ----------------------------------------------------------------------------- a model of one's own


class SetUp(Sharing):
    """Every flow has its links to itself, but each new one takes 5 us to set up."""

    alone_at_capacity = False

    def start(self, wires: EngineNetwork) -> None:
        super().start(wires)
        self.waiting: dict[int, tuple[int, Sequence[int]]] = {}

    def rates(self, now: int, joined: Sequence[Flow], left: Collection[int]) -> Mapping[int, int]:
        self.waiting.update({flow.number: (now + 5 * US, flow.links) for flow in joined})
        up = {flow: links for flow, (tick, links) in self.waiting.items() if tick <= now}
        for flow in up:
            del self.waiting[flow]
        self.wake = min([tick for tick, _ in self.waiting.values()], default=None)
        rates = {flow: min(self.capacity[link] for link in links) for flow, links in up.items()}
        return {**dict.fromkeys([flow.number for flow in joined], 0), **rates}


class Takes(NetworkModel):
    """Every flow takes the latency of its route and 5 us, whatever it has to send."""

    pays_latency = True

    def start(self, wires: EngineNetwork) -> None:
        self.asked: list[int] = []

    def change(self, now: int, joined: Sequence[Flow], left: Sequence[int]) -> Iterable[tuple[int, int]]:
        self.asked.append(now)
        return [(flow.number, now + flow.latency + 5 * US) for flow in joined]


def test_a_model_may_hold_flows_back_and_ask_to_be_woken() -> None:
    b = Builder()
    later = b.compute(US)
    b.transfer(0, 1000)
    b.transfer(0, 1000, before=[later])
    assert play(b.graph(), wires([GB_PER_S], [[0]]), SetUp()).finish.tolist() == [US, 6 * US, 7 * US]


def test_a_model_that_does_not_give_lone_flows_their_links_is_asked_about_collectives() -> None:
    b = Builder()
    rule = ring(3, 1000, 4)
    b.collective(rule, routes_of(rule, range(3), 3))
    assert play(b.graph(), switch(3, GB_PER_S), SetUp()).finish.tolist() == [4 * 6 * US] * 3


def test_a_model_may_count_latency_itself_and_answer_with_ticks() -> None:
    b = Builder()
    b.transfer(0, 1000)
    b.transfer(0, 0)
    rule = ring(2, 1000, 2)
    b.collective(rule, [0, 0])
    model = Takes()
    played = play(b.graph(), wires([GB_PER_S], [[0]], 7), model)
    # What has no bytes never comes to the model, and takes its latency all the same.
    assert played.finish.tolist() == [5 * US + 7, 7, 10 * US + 14, 10 * US + 14]
    assert model.asked == [0, 5 * US + 7, 10 * US + 14]


class Wakes(Takes):
    """Asks to be woken at its second tick, and takes it back or not when it is asked before."""

    def __init__(self, takes_back: bool) -> None:
        self.takes_back = takes_back

    def change(self, now: int, joined: Sequence[Flow], left: Sequence[int]) -> Iterable[tuple[int, int]]:
        self.wake = 2 * US if now == 0 or (now < 2 * US and not self.takes_back) else None
        return super().change(now, joined, left)


@pytest.mark.parametrize("takes_back", [False, True])
def test_a_wish_to_be_woken_can_be_taken_back(takes_back: bool) -> None:
    b = Builder()
    b.transfer(0, 1000)
    b.transfer(0, 1000, before=[b.compute(US)])
    model = Wakes(takes_back)
    play(b.graph(), wires([GB_PER_S], [[0]]), model)
    assert model.asked == [0, US, *([] if takes_back else [2 * US]), 5 * US, 6 * US]


class Refuses(EqualSplit):
    def __init__(self, rate: object) -> None:
        self.rate = rate

    def rates(self, now: int, joined: Sequence[Flow], left: Collection[int]) -> Mapping[int, int]:
        return {flow.number: self.rate for flow in joined}  # type: ignore[misc]


def test_flows_that_are_never_served_are_stuck() -> None:
    b = Builder()
    b.transfer(0, 1000)
    with pytest.raises(Stuck, match=r"task 0 \(TRANSFER\) has begun and is never served"):
        play(b.graph(), wires([GB_PER_S], [[0]]), Refuses(0))


@pytest.mark.parametrize("rate", [-1, 0.5, None])
def test_rates_that_are_no_rates_are_refused(rate: object) -> None:
    b = Builder()
    b.transfer(0, 1000)
    with pytest.raises(InputError, match=f"network model Refuses gave a transfer the rate {rate}: rates are whole"):
        play(b.graph(), wires([GB_PER_S], [[0]]), Refuses(rate))


class Answers(NetworkModel):
    """Gives one answer to all questions."""

    def __init__(self, *answer: tuple[int, object]) -> None:
        self.answer = answer

    def start(self, wires: EngineNetwork) -> None:
        pass

    def change(self, now: int, joined: Sequence[Flow], left: Sequence[int]) -> Iterable[tuple[int, int]]:
        return self.answer  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        ((0, 0), InputError, "network model Answers let flow 0 end at 0, asked at 0"),
        ((1, 5), InputError, "network model Answers let flow 1 end at 5"),
        ((0, 2.5), TypeError, "float"),
        ((0, NEVER), Stuck, "task 0"),
    ],
)
def test_ends_that_cannot_be_are_refused(answer: tuple, error: type[Exception], message: str) -> None:
    b = Builder()
    b.transfer(0, 1000)
    with pytest.raises(error, match=message):
        play(b.graph(), wires([GB_PER_S], [[0]]), Answers(answer))


def test_a_model_that_knows_no_weights_is_not_given_a_folded_job() -> None:
    b = Builder()
    b.transfer(0, 1000)
    with pytest.raises(ValueError, match="SetUp does not understand weights"):
        play(b.graph(), wires([GB_PER_S], [[0]], 0, [[2]]), SetUp())
