"""The data files of collective constants, and the formulas that use them."""

from __future__ import annotations

import json
import math
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triosim.collectives import constants, cost
from triosim.collectives.constants import TransferTimeCurve

MIB = 2**20


@pytest.mark.parametrize("name", constants.names())
def test_every_file_states_its_source_and_goes_round(name: str) -> None:
    found = constants.load(name)
    assert found.source
    assert found.bandwidth > 1e9
    for costs in (*found.ring.values(), found.exchange, *filter(None, [found.multicast])):
        assert 0 < costs.efficiency <= 1
        assert 0 <= costs.base_s < 1e-3
        assert all(0 <= s < 1e-3 for s in costs.overhead.seconds)
        assert list(costs.overhead.bytes) == sorted(set(costs.overhead.bytes))
    text = (resources.files("triosim.collectives") / "data" / f"{name}.json").read_text(encoding="utf-8")
    assert constants.unparse(found) == json.loads(text)


def test_another_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="schema is 'other/1'"):
        constants.parse({"schema": "other/1"})


def test_a_curve_goes_through_its_points_and_is_flat_outside() -> None:
    curve = TransferTimeCurve((4.0, 16.0, 64.0), (1.0, 3.0, 2.0))
    assert [curve(x) for x in (1, 4, 8, 16, 32, 64, 1000)] == [1, 1, 2, 3, 2.5, 2, 2]


@given(st.sampled_from(constants.names()), st.integers(2, 64), st.integers(10, 30))
def test_more_members_and_more_bytes_never_take_less_time(name: str, members: int, log_size: int) -> None:
    found = constants.load(name)
    part = 2**log_size
    for protocol in found.ring:
        here = cost.ring(found, "all_reduce", members, part * members, protocol, found.bandwidth)
        assert cost.ring(found, "all_reduce", members + 1, part * (members + 1), protocol, found.bandwidth) > here
        assert cost.ring(found, "all_gather", members, part * members, protocol, found.bandwidth) < here
        assert cost.ring(found, "all_reduce", members, part * members, protocol, 2 * found.bandwidth) < here


def test_a_large_all_reduce_is_bound_by_its_bytes() -> None:
    found = constants.load("nvlink4")
    seconds = cost.ring(found, "all_reduce", 8, 2**40, "Simple", found.bandwidth)
    least = 2 * 7 / 8 * 2**40 / (found.ring["Simple"].efficiency * found.bandwidth)
    assert least < seconds < 1.2 * least
    assert math.isclose(cost.exchange(found, 2, 0, 1e9), found.exchange.base_s + found.peer_s
                        + found.exchange.overhead.seconds[0], rel_tol=1e-12)  # fmt: skip
