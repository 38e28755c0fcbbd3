"""The allocator in C++ reserves what the one in Python does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exploring import examples
from triosim.memory.footprint import LARGE_ROUND, MEDIUM_SEGMENT, ROUND_BYTES, SMALL_SEGMENT, played, segment

SIZES = st.sampled_from([512, 1024, 4096, 1 << 19, 1 << 20, (1 << 20) + 512, 3 << 20, 10 << 20, 30 << 20, 33 << 20])


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Sizes, and events: allocations in order, each freed once at some time after."""
    sizes = draw(st.lists(SIZES, min_size=1, max_size=60))
    events, held = [], []
    for number in range(len(sizes)):
        events.append(number)
        held.append(number)
        while held and draw(st.booleans()):
            events.append(len(sizes) + held.pop(draw(st.integers(0, len(held) - 1))))
    return sizes, events


@settings(max_examples=examples(200))
@given(histories())
def test_both_reserve_the_same(history: tuple[list[int], list[int]]) -> None:
    native = pytest.importorskip("triosim.memory._allocator")
    sizes, events = (np.array(column, np.int64) for column in history)
    assert native.reserved(sizes, events) == played(sizes, events)


@settings(max_examples=examples(100))
@given(histories())
def test_it_holds_what_is_alive_and_no_more_than_a_segment_for_each(history: tuple[list[int], list[int]]) -> None:
    sizes, events = history
    alive = peak = 0
    for event in events:
        alive += sizes[event] if event < len(sizes) else -sizes[event - len(sizes)]
        peak = max(peak, alive)
    reserved = played(np.array(sizes, np.int64), np.array(events, np.int64))
    assert peak <= reserved <= sum(segment(size) for size in sizes)


def test_segments_as_in_pytorch() -> None:
    assert segment(ROUND_BYTES) == segment(1 << 20) == SMALL_SEGMENT
    assert segment((1 << 20) + ROUND_BYTES) == MEDIUM_SEGMENT
    assert segment(10 << 20) == 10 << 20
    assert segment((10 << 20) + ROUND_BYTES) == (10 << 20) + LARGE_ROUND


def test_a_freed_block_is_used_again_and_neighbours_merge() -> None:
    mib = 1 << 20
    sizes = np.array([4 * mib, 4 * mib, 8 * mib], np.int64)  # two in one segment of 20 MiB, then one where both were
    assert played(sizes, np.array([0, 1, 3, 4, 2])) == MEDIUM_SEGMENT
