"""Memory: lifetimes to peak, and what a caching allocator reserves."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import triosim
from tests.traces import chain
from triosim import Plan
from triosim.memory.footprint import LARGE_ROUND, MEDIUM_SEGMENT, ROUND_BYTES, SMALL_SEGMENT, footprint
from triosim.memory.lifetimes import Lifetimes

MIB = 1 << 20


def _of(*rows: tuple[int, int, int, int]):
    size, category, start, end = zip(*rows, strict=True)
    return footprint(
        Lifetimes(np.array(size), np.array(category, np.int8), np.array(start, np.int32), np.array(end, np.int32)), 8
    )


def test_what_lives_at_once_is_added_up() -> None:
    foot = _of((4 * MIB, 0, -1, 9), (2 * MIB, 4, 1, 3), (MIB, 7, 3, 4), (8 * MIB, 4, 4, 5))
    assert foot.peak_bytes == 13 * MIB
    assert foot.peak_row == 4
    assert foot.at_peak.tolist() == [4 * MIB, 0, 0, 0, 8 * MIB, 0, 0, MIB]


def test_sizes_are_rounded_to_512_bytes() -> None:
    assert _of((1, 0, 0, 1), (513, 0, 0, 1)).peak_bytes == 3 * ROUND_BYTES


def test_segments_are_those_of_the_caching_allocator() -> None:
    """2 MiB for small blocks, 20 MiB up to 10 MiB, else rounded up to 2 MiB."""
    assert _of((1000, 0, 0, 1)).reserved_bytes == SMALL_SEGMENT
    assert _of((2 * MIB, 0, 0, 1)).reserved_bytes == MEDIUM_SEGMENT
    assert _of((11 * MIB + 1, 0, 0, 1)).reserved_bytes == 12 * MIB
    assert _of((11 * MIB + 1, 0, 0, 1)).reserved_bytes % LARGE_ROUND == 0


def test_freed_blocks_are_used_again_and_neighbours_merge() -> None:
    assert _of((30 * MIB, 4, 0, 0), (30 * MIB, 4, 1, 1), (20 * MIB, 4, 2, 2)).reserved_bytes == 30 * MIB
    halves = [(10 * MIB, 4, 0, 0), (10 * MIB, 4, 0, 0), (20 * MIB, 4, 1, 1)]
    assert _of((20 * MIB, 4, -1, -1), *halves).reserved_bytes == 20 * MIB


@given(
    st.lists(
        st.tuples(st.integers(1, 40 * MIB), st.integers(0, 7), st.integers(0, 20), st.integers(0, 20)),
        min_size=1,
        max_size=30,
    )
)
def test_reserved_is_at_least_the_peak_and_the_track_ends_where_it_should(rows) -> None:
    rows = [(size, category, start, start + length) for size, category, start, length in rows]
    foot = _of(*rows)
    assert foot.reserved_bytes >= foot.peak_bytes >= max(size for size, *_ in rows)
    assert foot.held.sum(axis=1).max() == foot.peak_bytes
    assert foot.at_peak.sum() == foot.peak_bytes
    order = foot.rows.astype(np.int64) * 2 + foot.ended
    assert np.all(np.diff(order) > 0)


def test_activations_are_held_from_forward_to_backward() -> None:
    """Layer by layer: the outputs of all layers, weights, the input and one gradient at the turn."""
    trace = chain(layers=6, batch=1024, width=128)
    result = triosim.simulate(trace, triosim.system(devices=1), Plan())
    activation = 1024 * 128 * 4
    held = result.memory.categories
    assert held["weight"] == 6 * 128 * 128 * 4
    assert held["input"] == activation
    assert held["activation"] == 5 * activation  # the last layer's output is not read by any backward


def test_an_impossible_job_is_reported_and_keeps_its_time() -> None:
    trace = triosim.model("llama-3-8b", sequence_length=2048)
    small, large = (triosim.simulate(trace, triosim.system(device=d, devices=1)) for d in ("A100-SXM4-40GB", "B200"))
    assert small.memory.fits is False
    assert any("does not fit" in w for w in small.warnings)
    assert small.iteration_time_s > large.iteration_time_s
    assert large.memory.fits is True


def test_inference_keeps_nothing_for_a_backward() -> None:
    trace = chain(layers=8, batch=1024)
    system = triosim.system(devices=1)
    train, infer = (triosim.simulate(trace, system, Plan(training=t)).memory for t in (True, False))
    assert infer.allocated_bytes < train.allocated_bytes / 2
