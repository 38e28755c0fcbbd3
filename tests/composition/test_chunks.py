"""Small pipeline chunks: the host binds."""

from __future__ import annotations

from validation.judge.chunks import BOUNDS, times


def test_more_chunks_take_longer_where_the_host_binds_and_only_there() -> None:
    two, four = times("eager", micro_batches=(2, 4))
    assert BOUNDS[0] <= four / two <= BOUNDS[1]
    two, four = times("none", micro_batches=(2, 4))
    assert four < two
