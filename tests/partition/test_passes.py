"""The passes: what is launched earlier, and what waits for the boundary of its group."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from triosim.partition.gradients import Gradient
from triosim.partition.passes.fuse import by_bytes
from triosim.partition.passes.hoist import hoist
from triosim.partition.passes.sink import sink


@given(st.lists(st.integers(), unique=True, max_size=9), st.integers(0, 12))
def test_a_unit_is_launched_so_many_before(units: list[int], ahead: int) -> None:
    launched = hoist(units, ahead)
    assert [units.index(unit) - units.index(at) for unit, at in zip(units, launched, strict=True)] == [
        min(place, ahead) for place in range(len(units))
    ]


@given(st.permutations(range(12)), st.integers(1, 40), st.integers(1, 40))
def test_a_bucket_goes_when_its_last_gradient_is_there(ready: list[int], first: int, cap: int) -> None:
    grads = [Gradient(at, at, row, 7) for at, row in enumerate(ready)]
    groups = by_bytes(grads, first, cap)
    ends = sink(groups)
    for group, end in zip(groups, ends, strict=True):
        assert end in {gradient.ready for gradient in group}
        assert all(gradient.ready <= end for gradient in group)
    assert max(ends) == 11
