"""Ranks on devices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triosim.errors import InputError
from triosim.network.placement import place
from triosim.parallelism.program import AXES

SIZE = st.integers(1, 4)


def test_tp_is_innermost_then_dp_then_pp() -> None:
    p = place(tp=2, dp=3, pp=2, devices=12)
    assert p.groups("tp") == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]
    assert p.groups("dp") == [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]
    assert p.groups("pp") == [[0, 6], [1, 7], [2, 8], [3, 9], [4, 10], [5, 11]]
    assert p.devices.tolist() == list(range(12))


@given(tp=SIZE, dp=SIZE, pp=SIZE)
def test_groups_of_an_axis_divide_the_ranks_and_differ_only_along_it(tp: int, dp: int, pp: int) -> None:
    p = place(tp, dp, pp, tp * dp * pp)
    for axis in AXES:
        groups = p.groups(axis)
        assert sorted(rank for group in groups for rank in group) == list(range(p.ranks))
        for group in groups:
            assert [p.position(rank, axis) for rank in group] == list(range(len(group)))
            for other in set(AXES) - {axis}:
                assert len({p.position(rank, other) for rank in group}) == 1


def test_the_user_may_say_which_device_a_rank_runs_on() -> None:
    assert place(2, 1, 1, devices=4, order=[3, 1]).devices.tolist() == [3, 1]


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([0, 1, 2], "names 3 devices for 4 ranks"),
        ([0, 1, 2, 4], "names device 4, but devices are numbered 0 to 3"),
        ([0, 1, 2, -1], "names device -1"),
        ([0, 1, 1, 2], "puts two ranks on device 1"),
    ],
)
def test_a_placement_that_is_none_is_refused(order: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        place(2, 2, 1, devices=4, order=order)


def test_too_few_devices_are_refused() -> None:
    with pytest.raises(InputError, match="tp 2 x dp 2 x pp 2 makes 8 ranks, but the system has 4 devices"):
        place(2, 2, 2, devices=4)
