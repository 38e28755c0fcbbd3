"""Rows of any number of blocks, from those of few."""

from __future__ import annotations

import pytest

from triosim.search.block_rows import BlockRows, RowsOfBlocks
from triosim.search.block_step import NoBlocks


def rows(blocks: int, moves: int = 2) -> BlockRows:
    """Three rows, then two of each block, the second of which waits for the first of the third block before its own, or
    for the first row of all, and at the end one that waits for the last block."""
    waits = [3 + moves * (block - 3) if block > 2 else 0 for block in range(blocks)]
    ticks = [9, 8, 8, *[5, 7] * blocks, 6]
    counts = [0, 0, 0, *[0, 1] * blocks, 1]
    zeros = [0] * len(ticks)
    return BlockRows.of(zeros, zeros, zeros, ticks, 1.0, 0, counts, [0] * (blocks + 1), [*waits, 2 + 2 * blocks])


@pytest.mark.parametrize("blocks", [5, 6, 11])
def test_what_blocks_wait_for_moves_on_as_the_later_ones_do(blocks: int) -> None:
    """The fourth block is the first that waits for a block, which is one row further than the next ones move on."""
    found = RowsOfBlocks([rows(few) for few in (3, 4, 5)], [2]).rows(blocks)
    assert found.before.tolist() == rows(blocks).before.tolist()
    assert found.ticks.tolist() == rows(blocks).ticks.tolist()


def test_blocks_that_wait_for_others_in_each_are_refused() -> None:
    with pytest.raises(NoBlocks, match="wait for others"):
        RowsOfBlocks([rows(few, moves=1) for few in (3, 4, 5)], [2])
