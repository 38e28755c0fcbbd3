"""Circuit switching: set-up, ports, eviction, buffers, worked out by hand; and its laws."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exploring import examples
from triosim.core.columns import Ragged
from triosim.core.errors import InputError
from triosim.engine.graph import EngineNetwork
from triosim.engine.solver import NEVER, SOLVERS, WORK_PER_BYTE, Flow
from triosim.engine.solvers.circuit import Circuit

MS = 10**9  # ticks
BYTES_PER_MS = 10**6  # at 1 GB/s
Transfer = tuple[int, int, int, int]
"""(tick, source, target, bytes)"""


def full(devices: int) -> EngineNetwork:
    """A link of 1 GB/s from each device to each other."""
    ends = list(permutations(range(devices), 2))
    count = len(ends)
    routes = Ragged.of([[link] for link in range(count)], np.int32)
    capacity = np.full(count, 1024 * 10**9, np.int64)
    return EngineNetwork(capacity, routes, np.zeros(count, np.int64), ends=np.array(ends, np.int32))


def carry(model: Circuit, devices: int, transfers: Sequence[Transfer]) -> list[int]:
    """The tick at which each transfer ends."""
    wires = full(devices)
    assert wires.ends is not None
    link = {tuple(pair): number for number, pair in enumerate(wires.ends.tolist())}
    model.start(wires)
    due: dict[int, int] = {}
    ended: dict[int, int] = {}
    waiting = sorted(range(len(transfers)), key=lambda number: transfers[number][0])
    while waiting or due:
        nexts = [tick for tick in due.values() if tick != NEVER]
        nexts += [transfers[waiting[0]][0]] if waiting else []
        nexts += [model.wake] if model.wake is not None else []
        now = min(nexts)
        left = [number for number, tick in due.items() if tick == now]
        for number in left:
            ended[number] = due.pop(number)
        joined = []
        while waiting and transfers[waiting[0]][0] == now:
            number = waiting.pop(0)
            _, source, target, size = transfers[number]
            joined.append(Flow(number, (link[source, target],), (1,), size * WORK_PER_BYTE, 0))
        due.update(model.change(now, joined, left))
    return [ended[number] for number in range(len(transfers))]


def lasting(model: Circuit, devices: int, transfers: Sequence[Transfer]) -> list[float]:
    """Milliseconds that each transfer takes."""
    ends = carry(model, devices, transfers)
    return [(end - transfer[0]) / MS for end, transfer in zip(ends, transfers, strict=True)]


def one_ms(tick_ms: float, source: int, target: int) -> Transfer:
    return int(tick_ms * MS), source, target, BYTES_PER_MS


def test_it_is_found_by_its_name() -> None:
    assert SOLVERS.get("circuit") is Circuit


def test_set_up_is_paid_once_per_pair_and_for_both_ways() -> None:
    took = lasting(Circuit("20ms"), 2, [one_ms(0, 0, 1), one_ms(100, 0, 1), one_ms(200, 1, 0)])
    assert took == [21, 1, 1]


def test_the_ninth_peer_evicts_the_circuit_that_has_been_idle_longest() -> None:
    model = Circuit("20ms", ports=8)
    first = [one_ms(100 * peer, 0, peer) for peer in range(1, 9)]
    again = one_ms(1000, 0, 1)  # now the circuit to 2 has been idle longest
    ninth = one_ms(1100, 0, 9)
    after = [one_ms(1200, 0, 1), one_ms(1300, 0, 3), one_ms(1400, 0, 2)]
    assert lasting(model, 10, [*first, again, ninth, *after]) == [21] * 8 + [1, 21, 1, 1, 21]
    assert model.circuits_made == 10


def test_set_up_is_paid_once_per_pair_while_ports_suffice() -> None:
    model = Circuit("20ms", ports=8)
    rounds = [one_ms(100 * peer + 1000 * turn, 0, peer) for turn in range(3) for peer in range(1, 9)]
    assert lasting(model, 9, rounds) == [21] * 8 + [1] * 16
    assert model.circuits_made == 8


def test_a_circuit_in_use_is_never_torn_down() -> None:
    # One port: the second waits until the first has gone (20 + 50 ms), then for its own circuit.
    took = lasting(Circuit("20ms", ports=1), 3, [(0, 0, 1, 50 * BYTES_PER_MS), one_ms(10, 0, 2)])
    assert took == [70, 81]


def test_both_devices_need_a_port() -> None:
    # 2's only port is taken by 3, for 70 ms; 0 has ports enough.
    took = lasting(Circuit("20ms", ports=1), 4, [(0, 2, 3, 50 * BYTES_PER_MS), one_ms(10, 0, 2)])
    assert took == [70, 81]


def test_who_waits_for_a_port_is_not_overtaken() -> None:
    # The second waits for 0's port; the third could use the circuit that is there but came later.
    took = lasting(Circuit("20ms", ports=1), 3, [(0, 0, 1, 10 * BYTES_PER_MS), one_ms(21, 0, 2), one_ms(22, 0, 1)])
    assert took == [30, 30 - 21 + 21, 51 - 22 + 21]


def test_transfers_share_a_direction_equally_and_the_other_direction_is_free() -> None:
    took = lasting(Circuit("1ms"), 2, [one_ms(0, 0, 1), one_ms(0, 0, 1), one_ms(0, 1, 0)])
    assert took == [3, 3, 2]


def test_circuits_of_different_pairs_do_not_disturb_each_other() -> None:
    assert lasting(Circuit("1ms"), 4, [one_ms(0, 0, 1), one_ms(0, 0, 2), one_ms(0, 3, 2)]) == [2, 2, 2]


def test_no_set_up_time_is_a_link() -> None:
    assert lasting(Circuit(0), 2, [one_ms(0, 0, 1), one_ms(0.5, 0, 1)]) == [1.5, 1.5]


def test_the_receive_buffer_is_reserved() -> None:
    # Room for one and a half: the second waits for the first, also on a circuit of its own.
    model = Circuit("1ms", receive_buffer=3 * BYTES_PER_MS // 2)
    assert lasting(model, 3, [one_ms(0, 0, 2), one_ms(0, 1, 2)]) == [2, 4]
    assert lasting(Circuit("1ms", receive_buffer=2 * BYTES_PER_MS), 3, [one_ms(0, 0, 2), one_ms(0, 1, 2)]) == [2, 2]


def test_what_is_larger_than_the_buffer_streams_through_it() -> None:
    model = Circuit("1ms", receive_buffer=10)
    assert lasting(model, 3, [one_ms(0, 0, 2), one_ms(0.25, 1, 2)]) == [2, 2 - 0.25 + 2]


@pytest.mark.parametrize(
    ("given_", "why"),
    [
        ({"setup": "-1ms"}, "negative"),
        ({"setup": "20 parsec"}, "unknown unit"),
        ({"ports": 0}, "ports must be a whole number"),
        ({"ports": "many"}, "ports must be a whole number"),
        ({"receive_buffer": "0B"}, "receive buffer of 0 bytes"),
    ],
)
def test_values_that_cannot_be_are_refused(given_: dict, why: str) -> None:
    with pytest.raises(InputError, match=why):
        Circuit(**given_)


def test_a_network_without_nodes_or_without_direct_links_is_refused() -> None:
    wires = full(3)
    model = Circuit()
    with pytest.raises(InputError, match="which two devices"):
        model.start(EngineNetwork(wires.capacity, wires.routes, wires.latency))
    model.start(wires)
    with pytest.raises(InputError, match="--topology full"):
        model.change(0, [Flow(0, (0, 3), (1, 1), WORK_PER_BYTE, 0)], [])


transfers = st.lists(
    st.tuples(
        st.integers(0, 20).map(lambda ms: ms * MS),
        st.integers(0, 4),
        st.integers(1, 4),
        st.sampled_from([1, BYTES_PER_MS, 3 * BYTES_PER_MS]),
    ).map(lambda t: (t[0], t[1], (t[1] + t[2]) % 5, t[3])),
    min_size=1,
    max_size=14,
)
models = st.builds(
    Circuit,
    setup=st.sampled_from([0, "1ms", "5ms"]),
    ports=st.integers(1, 3),
    receive_buffer=st.sampled_from([None, 10, 2 * BYTES_PER_MS]),
)


@settings(max_examples=examples(150))
@given(models, transfers)
def test_every_transfer_arrives_and_none_is_faster_than_its_link(model: Circuit, sent: list[Transfer]) -> None:
    for took, (_, _, _, size) in zip(lasting(model, 5, sent), sent, strict=True):
        assert took >= size / BYTES_PER_MS
    pairs = {frozenset(t[1:3]) for t in sent}
    assert len(pairs) <= model.circuits_made <= len(sent)


@settings(max_examples=examples(100))
@given(models, transfers, st.randoms(use_true_random=False))
def test_numbers_of_transfers_do_not_matter(model: Circuit, sent: list[Transfer], random: object) -> None:
    order = list(range(len(sent)))
    random.shuffle(order)  # type: ignore[attr-defined]
    straight = carry(model, 5, sent)
    assert carry(model, 5, [sent[i] for i in order]) == [straight[i] for i in order]


@settings(max_examples=examples(60))
@given(transfers, st.sampled_from([0, "1ms", "5ms"]))
def test_with_ports_for_all_a_circuit_is_made_once_per_pair(sent: list[Transfer], setup: object) -> None:
    model = Circuit(setup, ports=4)  # type: ignore[arg-type]
    carry(model, 5, sent)
    assert model.circuits_made == len({frozenset(t[1:3]) for t in sent})
