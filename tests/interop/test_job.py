"""Traces of several ranks, played together: slots, sends, groups, and what cannot be played."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from validation.data.astra_cases import collective, dimension, job, system

from tests.exploring import examples
from triosim.core.errors import InputError
from triosim.interop.astra import memory
from triosim.interop.astra.job import Job
from triosim.interop.astra.network import AstraNetwork
from triosim.interop.astra.play import play
from triosim.interop.astra.stages import chunks, phases, visits
from triosim.interop.chakra.trace import ChakraNodeType, ChakraTrace, ChakraTraceBuilder, Comm

PAIR = AstraNetwork("pair", (dimension("FullyConnected", 2, 1000 / 2**30 * 1e6, 1000),))  # a byte per nanosecond
QUAD = AstraNetwork("quad", (dimension("Switch", 2, 50, 100), dimension("Ring", 2, 50, 100)))


def traces(*build) -> list[ChakraTrace]:
    made = []
    for fill in build:
        builder = ChakraTraceBuilder("t")
        fill(builder)
        made.append(builder.build())
    return made


def play_pair(*build, solver: str = "store-and-forward", **options):
    layer = options.pop("layer", system("ring"))
    return play(Job(traces(*build), PAIR, layer, options.pop("groups", {}), **options), solver).ranks


def nothing(builder: ChakraTraceBuilder) -> None:
    builder.add(ChakraNodeType.METADATA)


def test_one_computation_at_a_time_and_the_host_beside_it() -> None:
    def fill(b: ChakraTraceBuilder) -> None:
        b.add(ChakraNodeType.COMP, micros=3)
        b.add(ChakraNodeType.COMP, micros=4)
        b.add(ChakraNodeType.COMP, micros=5, cpu=True)
        b.add(ChakraNodeType.COMP)  # no duration: a nanosecond, as in ASTRA-sim

    a, b = play_pair(fill, nothing)
    assert (a.cycles, a.compute_cycles, a.host_cycles, a.exposed_cycles) == (7001, 7001, 5000, 0)
    assert (b.cycles, b.nodes) == (0, 1)


def test_recorded_streams_run_beside_each_other() -> None:
    def fill(b: ChakraTraceBuilder) -> None:
        b.add(ChakraNodeType.COMP, micros=3, stream=1)
        b.add(ChakraNodeType.COMP, micros=4, stream=2)

    assert play_pair(fill, nothing)[0].cycles == 7000
    assert play_pair(fill, nothing, slots="recorded")[0].cycles == 4000


def test_a_send_and_its_receive() -> None:
    def sender(b: ChakraTraceBuilder) -> None:
        before = b.add(ChakraNodeType.COMP, micros=2)
        b.add(ChakraNodeType.COMM_SEND, before=[before], size=5000, target=1, tag=3)

    def receiver(b: ChakraTraceBuilder) -> None:
        got = b.add(ChakraNodeType.COMM_RECV, size=5000, source=0, tag=3)
        b.add(ChakraNodeType.COMP, micros=1, before=[got])

    a, b = play_pair(sender, receiver)
    assert a.cycles == 2000 + 1000 + 5000
    assert a.communication_cycles == 6000
    assert (b.cycles, b.exposed_cycles) == (9000, 8000)


def test_sends_wait_for_each_other_receives_do_not() -> None:
    def sender(b: ChakraTraceBuilder) -> None:
        b.add(ChakraNodeType.COMM_SEND, size=1000, target=1, tag=0)
        b.add(ChakraNodeType.COMM_SEND, size=1000, target=1, tag=1)

    def receiver(b: ChakraTraceBuilder) -> None:
        b.add(ChakraNodeType.COMM_RECV, size=1000, source=0, tag=1)
        b.add(ChakraNodeType.COMM_RECV, size=1000, source=0, tag=0)

    a, b = play_pair(sender, receiver)
    assert a.cycles == b.cycles == 4000


def test_a_computation_by_the_roofline() -> None:
    layer = replace(system("ring", memory=1000.0), roofline=True, peak_flops=1e12)

    def fill(b: ChakraTraceBuilder) -> None:
        b.add(ChakraNodeType.COMP, micros=1, num_ops=4_000_000, tensor_size=1000)  # bound by compute: 4 us
        b.add(ChakraNodeType.COMP, micros=1, num_ops=1000, tensor_size=8_000_000)  # bound by memory: 8 us
        b.add(ChakraNodeType.COMP, micros=1, num_ops=1000, tensor_size=0)  # skipped

    assert play_pair(fill, nothing, layer=layer)[0].cycles == pytest.approx(12000, abs=1)
    with pytest.raises(InputError, match="num_ops and tensor_size"):
        play_pair(lambda b: b.add(ChakraNodeType.COMP, micros=1), nothing, layer=layer)


def test_replay_takes_recorded_times() -> None:
    def fill(b: ChakraTraceBuilder) -> None:
        b.add(ChakraNodeType.COMM_COLL, micros=7, comm=int(Comm.BARRIER))

    assert play_pair(fill, nothing, layer=replace(system("ring"), replay=True))[0].cycles == 7000


def test_a_broadcast_takes_its_recorded_time() -> None:
    def fill(b: ChakraTraceBuilder) -> None:
        b.add(ChakraNodeType.COMM_COLL, micros=7, comm=int(Comm.BROADCAST), size=10)

    assert play_pair(fill, fill)[1].cycles == 7000


@pytest.mark.parametrize(
    ("kind", "more", "first", "second"),
    [
        ("PER_NPU_MEMORY_EXPANSION", {}, 1100, 1200),
        ("MEMORY_POOL", {}, 1100, 2300),
        ("PER_NODE_MEMORY_EXPANSION", {"num-nodes": 1, "num-npus-per-node": 2}, 1100, 2300),
        ("PER_NODE_MEMORY_EXPANSION", {"num-nodes": 2, "num-npus-per-node": 1}, 1100, 1200),
    ],
)
def test_remote_memory(tmp_path: Path, kind: str, more: dict, first: int, second: int) -> None:
    """1000 ns and a byte per nanosecond: who shares a memory waits."""
    table = {"memory-type": kind, "remote-mem-latency": 1000, "remote-mem-bw": 1, **more}
    (tmp_path / "memory.json").write_text(json.dumps(table))
    found = memory.read(tmp_path / "memory.json", 2)
    a, b = play_pair(
        lambda b: b.add(ChakraNodeType.MEM_LOAD, tensor_size=100),
        lambda b: b.add(ChakraNodeType.MEM_STORE, tensor_size=200),
        memory=found,
    )
    assert (a.cycles, b.cycles) == (first, second)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, "must hold a memory-type"),
        ({"memory-type": "ATTIC"}, "unknown memory-type"),
        ({"memory-type": "MEMORY_POOL"}, "remote-mem-bw must be a number"),
        ({"memory-type": "MEMORY_POOL", "remote-mem-bw": 0}, "above zero"),
        ({"memory-type": "MEMORY_POOL", "bw": 3}, "unknown key"),
        (
            {"memory-type": "PER_NODE_MEMORY_EXPANSION", "remote-mem-bw": 1, "num-nodes": 3, "num-npus-per-node": 2},
            "must be the 2 NPUs",
        ),
    ],
)
def test_remote_memory_that_makes_no_sense(tmp_path: Path, table: dict, words: str) -> None:
    (tmp_path / "memory.json").write_text(json.dumps(table))
    with pytest.raises(InputError, match=words):
        memory.read(tmp_path / "memory.json", 2)


def test_no_remote_memory(tmp_path: Path) -> None:
    (tmp_path / "memory.json").write_text('{"memory-type": "NO_MEMORY_EXPANSION"}')
    assert memory.read(tmp_path / "memory.json", 2) is None


def test_members_of_a_collective_wait_for_the_last() -> None:
    def fill(late: int):
        def build(b: ChakraTraceBuilder) -> None:
            before = b.add(ChakraNodeType.COMP, micros=late)
            b.add(ChakraNodeType.COMM_COLL, before=[before], comm=int(Comm.ALL_REDUCE), size=4000)

        return build

    alone = play_pair(fill(1), fill(1))[0].cycles - 1000
    a, b = play_pair(fill(1), fill(50))
    assert a.cycles == b.cycles == 50_000 + alone
    assert a.communication_cycles == 49_000 + alone


def test_a_group_of_its_own_and_dimensions() -> None:
    """Both ways of naming the pairs that share a switch give the same time, and less than all four."""
    layer = system("ring", "ring")

    def time(**how) -> float:
        def build(rank: int) -> ChakraTrace:
            b = ChakraTraceBuilder("t")
            options = {key: value(rank) if callable(value) else value for key, value in how.items()}
            b.add(ChakraNodeType.COMM_COLL, comm=int(Comm.ALL_REDUCE), size=1 << 20, **options)
            return b.build()

        made = replace(job(QUAD, layer, build), groups={"1": (0, 1), "2": (2, 3), "3": (0, 1, 2, 3)})
        return play(made, "uncontended").seconds

    by_group = time(group=lambda rank: "1" if rank < 2 else "2")
    by_dims = time(dims=[True, False])
    assert by_group == by_dims < time()
    assert time(group="3") == time() == time(dims=[True, True, True, True])


@pytest.mark.parametrize(
    ("left", "right", "words"),
    [
        (lambda b: b.add(ChakraNodeType.COMM_SEND, size=1, target=1, tag=0), nothing, "1 sends but 0 receives"),
        (lambda b: b.add(ChakraNodeType.COMM_RECV, size=1, source=1, tag=0), nothing, "0 sends but 1 receives"),
        (lambda b: b.add(ChakraNodeType.COMM_SEND, size=1, target=7, tag=0), nothing, "names rank 7"),
        (lambda b: b.add(ChakraNodeType.COMM_SEND, size=1, target=1), nothing, "no comm_tag"),
        (lambda b: b.add(ChakraNodeType.COMM_SEND, target=1, tag=0), nothing, "no comm_size"),
        (lambda b: b.add(ChakraNodeType.COMM_RECV, size=1, tag=0), nothing, "no comm_src"),
        (
            lambda b: b.add(ChakraNodeType.COMM_SEND, size=1, source=1, target=1, tag=0),
            nothing,
            "is in the trace of rank 0",
        ),
        (
            lambda b: b.add(ChakraNodeType.COMM_SEND, size=1, target=1, tag=0),
            lambda b: b.add(ChakraNodeType.COMM_RECV, size=2, source=0, tag=0),
            "receives 2 bytes",
        ),
        (lambda b: b.add(ChakraNodeType.COMM_COLL, comm=0, size=1), nothing, "rank 1 of its group never takes part"),
        (
            lambda b: b.add(ChakraNodeType.COMM_COLL, comm=0, size=1),
            lambda b: b.add(ChakraNodeType.COMM_COLL, comm=0, size=2),
            "differ in comm_type or comm_size",
        ),
        (lambda b: b.add(ChakraNodeType.COMM_COLL, comm=0, size=1, group="9"), nothing, "--comm-group"),
        (lambda b: b.add(ChakraNodeType.COMM_COLL, comm=int(Comm.BROADCAST), size=1, cpu=True), nothing, "on the host"),
        (lambda b: b.add(ChakraNodeType.MEM_LOAD, tensor_size=1), nothing, "remote memory"),
    ],
)
def test_what_cannot_be_played(left, right, words: str) -> None:
    with pytest.raises(InputError, match=words):
        play_pair(left, right)


@pytest.mark.parametrize("code", [int(Comm.BARRIER), 42])
def test_a_collective_that_astra_sim_does_not_do(code: int) -> None:
    def fill(b: ChakraTraceBuilder) -> None:
        b.add(ChakraNodeType.COMM_COLL, comm=code, size=1)

    with pytest.raises(InputError, match="does not simulate"):
        play_pair(fill, fill)


def test_ranks_that_wait_for_each_other_for_ever() -> None:
    """Each holds its only communication slot until the other's has ended."""
    groups = {"1": (0, 1), "2": (1, 0)}

    def fill(first: str, second: str):
        def build(b: ChakraTraceBuilder) -> None:
            one = b.add(ChakraNodeType.COMM_COLL, comm=0, size=100, group=first)
            b.add(ChakraNodeType.COMM_COLL, comm=0, size=100, group=second, before=[one])

        return build

    with pytest.raises(InputError, match="wait for each other for ever"):
        play(
            Job(traces(fill("1", "2"), fill("2", "1")), PAIR, system("ring"), {"1": (0, 1), "2": (1, 0)}),
            "store-and-forward",
        )
    assert play_pair(fill("1", "2"), fill("1", "2"), groups=groups)[0].cycles > 0


def test_what_is_too_large() -> None:
    """One sentence at once, not hours or a traceback."""
    wide = AstraNetwork("wide", (dimension("Switch", 4096, 50, 100),))
    with pytest.raises(InputError, match="messages at once, and"):
        play(job(wide, system("direct"), lambda rank: collective("all_to_all", 1 << 20)))
    with pytest.raises(InputError, match="messages, and"):
        play(job(wide, system("ring"), lambda rank: collective("all_to_all", 1 << 20)))
    with pytest.raises(InputError, match="more than can be counted"):
        play(job(PAIR, system("ring"), lambda rank: collective("all_gather", 2**62)))
    layer = replace(system("ring"), roofline=True, peak_flops=1.0)
    with pytest.raises(InputError, match="53 days"):
        play_pair(lambda b: b.add(ChakraNodeType.COMP, num_ops=2**60, tensor_size=1), nothing, layer=layer)
    chain = [lambda b: [b.add(ChakraNodeType.COMP, micros=9 * 10**12) for _ in range(3)], nothing]
    with pytest.raises(InputError, match="53 days"):
        play_pair(*chain)


def test_implementations_must_fit() -> None:
    three = AstraNetwork("three", (dimension("Switch", 3, 50, 100),))
    with pytest.raises(InputError, match="power of two"):
        play(job(three, system("halving-doubling"), lambda rank: collective("all_reduce", 300)))
    with pytest.raises(InputError, match="does not do all-to-all"):
        play(job(PAIR, system("halving-doubling"), lambda rank: collective("all_to_all", 300)))
    with pytest.raises(InputError, match="name one for each"):
        play(job(QUAD, system("ring"), lambda rank: collective("all_reduce", 300)))


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_a_window_of_direct(kind: str) -> None:
    """A window of all others is no window; a smaller one takes longer where links are not shared."""
    net = AstraNetwork("n", (dimension("FullyConnected", 5, 50, 500),))
    layer = system("direct")
    times = {}
    for window in (1, 2, 4, 0):
        choices = {key: (replace(value[0], window=window),) for key, value in layer.choices.items()}
        made = replace(layer, choices=choices)
        times[window] = play(job(net, made, lambda rank: collective(kind, 1 << 20)), "uncontended").seconds
    assert times[4] == times[0]
    assert times[1] > times[2] > times[0]


@given(st.integers(0, 1000), st.integers(1, 9))
def test_chunks_hold_all_bytes(size: int, splits: int) -> None:
    found = chunks(size, splits)
    assert sum(found) == size
    assert len(found) == min(size, splits)
    assert all(found)


def test_phases() -> None:
    up = [(0, "reduce_scatter"), (2, "all_reduce"), (0, "all_gather")]
    assert phases("all_reduce", (2, 1, 3), True) == up
    assert phases("all_reduce", (2, 1, 3), False) == [(0, "all_reduce"), (2, "all_reduce")]
    assert phases("all_gather", (2, 1, 3), True) == [(2, "all_gather"), (0, "all_gather")]
    assert phases("all_to_all", (1, 1), True) == []


@settings(max_examples=examples(60))
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(1, 4), st.integers(1, 6),
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]), st.booleans(), st.integers(1, 500),
)  # fmt: skip
def test_visits_keep_to_the_slots(
    shape: list[int], active: int, splits: int, kind: str, aware: bool, size: int
) -> None:
    layer = system(*["ring"] * len(shape), splits=splits, active=active, aware=aware)
    found = visits(kind, size, shape, layer, lambda dim, what, part: (dim + 1) * part)
    assert len(found) == len(phases(kind, shape, aware)) * min(size, splits)
    for at, visit in enumerate(found):
        assert visit.previous < at
        assert visit.slot < at
    for dim in range(len(shape)):
        line = [at for at, visit in enumerate(found) if visit.dimension == dim]
        assert [found[at].slot for at in line] == [-1] * min(active, len(line)) + line[:-active]


def test_more_chunks_under_way_never_take_longer_where_nothing_contends() -> None:
    times = [
        play(job(QUAD, system("ring", "ring", active=active, splits=8), lambda rank: collective("all_reduce", 1 << 20)),
             "uncontended").seconds
        for active in (1, 2, 4, 8)
    ]  # fmt: skip
    assert times == sorted(times, reverse=True)
