"""Ranks on devices."""

from __future__ import annotations

import pytest

from tests.partition.divided import mesh_of
from triosim.core.errors import InputError
from triosim.network.device_assignment import assign_devices


def test_the_user_may_say_which_device_a_rank_runs_on() -> None:
    assert assign_devices(mesh_of(tp=2), devices=4, order=[3, 1]).devices.tolist() == [3, 1]


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
        assign_devices(mesh_of(2, 2), devices=4, order=order)


def test_too_few_devices_are_refused() -> None:
    with pytest.raises(InputError, match="tp 2 x dp 2 x pp 2 makes 8 ranks, but the system has 4 devices"):
        assign_devices(mesh_of(2, 2, 2), devices=4)
