"""What is chosen and played for a collective, and that it takes what the cost model says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.collectives.patterns import NDR, NVLINK3, NVLINK4, NVLINK5, PCIE4, PLAIN, run, server, servers
from tests.exploring import examples
from triosim.collectives import constants, cost
from triosim.collectives.group import LinkClass
from triosim.collectives.scheduling import Collectives
from triosim.core.errors import InputError
from triosim.schedule.program import COLLECTIVES

MIB = 2**20
SIZES = st.integers(0, 2**29)
LINKS = st.sampled_from([NVLINK3, NVLINK4, NVLINK5, PCIE4])


def known(link: LinkClass) -> constants.CollectiveConstants:
    found = constants.of_link(link.name, link.family)
    assert found is not None
    return found


@settings(max_examples=examples(60))
@given(LINKS, st.integers(2, 9), SIZES, st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]))
def test_a_ring_takes_what_the_cost_model_says(link: LinkClass, members: int, size: int, kind: str) -> None:
    group = server(members, link)
    made = Collectives("ring").schedule(kind, group, size)
    whole = -(-size // members) * members
    expected = cost.ring(known(link), kind, members, whole, made.protocol, link.bandwidth)
    steps = (2 if kind == "all_reduce" else 1) * (members - 1)
    rounding = steps * (3e-12 + 3 / link.bandwidth) + 2e-12  # parts of whole bytes, ticks of whole picoseconds
    assert max(run(made, group).finish) / 1e12 == pytest.approx(expected, abs=rounding)


@settings(max_examples=examples(40))
@given(LINKS, st.integers(2, 9), SIZES, st.sampled_from(["direct", "pairwise"]))
def test_an_exchange_takes_what_the_cost_model_says(link: LinkClass, members: int, size: int, algorithm: str) -> None:
    group = server(members, link)
    made = Collectives(algorithm).schedule("all_to_all", group, size)
    expected = cost.exchange(known(link), members, size, link.bandwidth)
    rounding = members * (3e-12 + 1 / link.bandwidth)
    assert max(run(made, group).finish) / 1e12 == pytest.approx(expected, abs=rounding)


@settings(max_examples=examples(30))
@given(st.sampled_from([NVLINK4, NVLINK5]), st.integers(3, 9), st.integers(2**21, 2**30))
def test_the_switch_takes_what_the_cost_model_says(link: LinkClass, members: int, size: int) -> None:
    group = server(members, link, switch=members)
    made = Collectives("nvls").schedule("all_reduce", group, size)
    costs = known(link).multicast
    assert costs is not None
    assert (made.algorithm, made.protocol, made.nodes) == ("nvls", "Simple", (members,))
    expected = cost.multicast(costs, members, size, link.bandwidth)
    assert max(run(made, group).finish) / 1e12 == pytest.approx(expected, abs=1e-9)


@settings(max_examples=examples(30))
@given(st.integers(2, 9), SIZES, st.sampled_from(COLLECTIVES), st.data())
def test_links_given_by_hand_are_ideal(members: int, size: int, kind: str, data: st.DataObject) -> None:
    group = server(members, PLAIN)
    made = Collectives().schedule(kind, group, size, data.draw(st.integers(0, members - 1)))
    assert (made.delay_s, made.protocol, made.source, made.nodes) == (0.0, "", "", ())
    assert not made.pattern.pause.any()
    if kind == "all_reduce":
        step = -(-(-(-size // members) * 10**12) // 10**11) + 10**6
        assert set(run(made, group).finish.tolist()) == {2 * (members - 1) * step}
    again = Collectives(ideal=True).schedule(kind, server(members, replace(NVLINK4, overhead=0.0)), size)
    assert again.pattern.bytes.sum() == made.pattern.bytes.sum()


@settings(max_examples=examples(50))
@given(st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]), st.integers(2, 6), st.integers(1, 4), SIZES)
def test_protocols_put_their_flags_on_the_wire(kind: str, members: int, width: int, size: int) -> None:
    group = servers(members, width) if width > 1 else server(members)
    sent = {}
    for protocol in ("LL", "LL128", "Simple"):
        made = Collectives("ring", protocol).schedule(kind, group, size)
        sent[protocol] = int((made.pattern.bytes * made.pattern.count).sum())
        transfers = int(made.pattern.count.sum())
    assert sent["LL"] == 2 * sent["Simple"]
    assert sent["Simple"] * 16 <= sent["LL128"] * 15 <= sent["Simple"] * 16 + 15 * transfers


def test_the_choice_follows_size_members_and_switch() -> None:
    auto = Collectives()
    eight = server(8, NVLINK4, switch=8)
    names = [(auto.schedule("all_reduce", eight, s)) for s in (1024, MIB, 512 * MIB)]
    assert [(n.algorithm, n.protocol) for n in names] == [("ring", "LL"), ("ring", "LL"), ("nvls", "Simple")]
    assert auto.schedule("all_reduce", server(4, switch=4), 512 * MIB).algorithm == "ring"
    assert auto.schedule("all_gather", eight, 512 * MIB).algorithm == "ring"
    assert auto.schedule("all_to_all", eight, MIB).algorithm == "direct"
    many = servers(64, 8)
    assert auto.schedule("all_reduce", many, 1024).algorithm == "tree"
    assert "NVLink4: measured" in names[0].source
    assert "InfiniBand-NDR: latencies that NCCL assumes" in auto.schedule("all_reduce", many, 1024).source


def test_an_algorithm_is_used_for_the_kinds_that_it_does() -> None:
    asked = Collectives("pairwise")
    assert asked.schedule("all_to_all", server(4), MIB).algorithm == "pairwise"
    assert asked.schedule("all_reduce", server(4), MIB).algorithm == "ring"
    assert Collectives("halving_doubling").schedule("all_reduce", server(4), MIB).algorithm == "halving-doubling"


def test_one_member_does_nothing() -> None:
    made = Collectives().schedule("all_reduce", replace(server(1), intra=None), MIB)
    assert len(made.pattern) == 0
    assert made.delay_s == 0.0


@pytest.mark.parametrize(
    ("algorithm", "protocol", "group", "message"),
    [
        ("nvls", "auto", server(8), "needs one switch that joins all members of the group"),
        ("nvls", "auto", server(8, PCIE4, switch=8), "'nvls' has no costs on PCIe links: use auto, ring or tree"),
        ("ring", "LL128", server(4, PCIE4), "protocol LL128 has no costs on PCIe links: use auto or LL or Simple"),
    ],
)
def test_what_cannot_be_done_here_is_refused(algorithm: str, protocol: str, group: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Collectives(algorithm, protocol).schedule("all_reduce", group, MIB)  # type: ignore[arg-type]


def test_unknown_words_are_refused() -> None:
    with pytest.raises(InputError, match="unknown collective protocol 'LL129'"):
        Collectives(protocol="LL129")
    with pytest.raises(InputError, match="unknown collective algorithm 'tre'"):
        Collectives("tre")


def test_constants_are_found_by_name_then_by_generation() -> None:
    assert constants.describe("NVLink4", known(NVLINK4)) == "NVLink4: measured"
    for name, nearest in (("NVLink2", "NVLink3"), ("NVLink6", "NVLink5"), ("NVLink3-bridge", "NVLink3")):
        found = constants.of_link(name, "NVLink")
        assert found is not None
        assert found.name == nearest
        assert f"constants of {nearest}" in constants.describe(name, found)
    assert constants.of_link("xGMI-MI300", "xGMI") is None
    own = replace(known(NVLINK4), name="mine")
    assert constants.of_link("mine", "NVLink", (own,)) is own


@settings(max_examples=examples(25))
@given(st.integers(2, 5), st.integers(1, 4), st.integers(1, 2**26),
       st.sampled_from(["auto", "ring", "tree", "hierarchical", "halving-doubling"]))  # fmt: skip
def test_across_servers_no_link_is_faster_than_it_is(count: int, width: int, size: int, algorithm: str) -> None:
    group = servers(count, width)
    made = Collectives(algorithm, "Simple").schedule("all_reduce", group, size)
    played = run(made, group)
    seconds = int(played.finish.max()) / 1e12
    for link, column in ((group.intra, 0), (group.inter, 2)):
        if link is not None:
            assert seconds >= played.link_bytes[column::4].max() / link.bandwidth
    out = played.link_bytes[2::4].reshape(count, width).sum(axis=1)
    assert (out >= 2 * (count - 1) / count * size * 0.99 - 64).all() or algorithm not in ("ring", "hierarchical")


def test_a_send_costs_its_launch_and_what_the_protocol_loses() -> None:
    pair = server(2)
    small, large = Collectives().transfer(pair, 1024), Collectives().transfer(pair, 256 * MIB)
    assert 1e-6 < small < 20e-6
    assert large >= small
    assert Collectives().transfer(server(2, replace(PLAIN, overhead=3e-6)), MIB) == 3e-6
    assert NDR.bandwidth < NVLINK4.bandwidth
