"""What passes allocate, in order: the allocator reserves what lifetimes say, in C++ and in Python, however often they
are run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.exploring import examples
from triosim.core.errors import InputError
from triosim.memory import allocation_order as module
from triosim.memory.allocation_order import AllocationOrder, Undecided, allocation_order
from triosim.memory.footprint import reserved_bytes
from triosim.memory.lifetimes import MemoryLocation
from triosim.memory.liveness import (
    BlockLifetime,
    BlockUseRecorder,
    BlockUses,
    MemoryBlocks,
    ScheduledFragment,
    liveness,
)

BLOCKS, LENGTH = 8, 6
SIZES = st.sampled_from([0, 100, 512, 5000, 1 << 19, 1 << 20, (1 << 20) + 512, 3 << 20, 10 << 20, 30 << 20, 33 << 20])
KINDS = [False] if module.reserved_in_passes is None else [False, True]


def _blocks(size: list[int], scope: list[BlockLifetime]) -> MemoryBlocks:
    count = len(size)
    return MemoryBlocks(
        np.array(size, np.int64), np.zeros(count, np.int8), np.arange(count, dtype=np.int32),
        np.array([int(one) for one in scope], np.int8), np.zeros(count, np.int8),
    )  # fmt: skip


@st.composite
def _uses(draw: st.DrawFn) -> BlockUses:
    """What a fragment uses and frees."""
    events = st.tuples(st.integers(0, BLOCKS - 1), st.integers(0, LENGTH - 1), st.booleans())
    recorder = BlockUseRecorder()
    for block, row, frees in sorted(draw(st.lists(events, max_size=14)), key=lambda event: event[1]):
        (recorder.free if frees else recorder.use)(block, row)
    return recorder.build()


@st.composite
def _iterations(draw: st.DrawFn) -> tuple[MemoryBlocks, list[BlockUses], list[int], list[int]]:
    """Blocks, the two alternatives of each pass of a micro-batch and what ends the iteration, and what is run: passes
    of some micro-batches in any order in which each goes through its own, or one after another of many."""
    passes = draw(st.integers(1, 3))
    fragments = [draw(_uses()) for _ in range(2 * passes + 1)]
    if draw(st.booleans()):
        late = draw(st.integers(1, 3))  # turns after which a micro-batch goes on
        turns = [(turn - late * own, own) for turn in range(60) for own in range(passes)]
        turns = [(batch, own) for batch, own in turns if 0 <= batch < 50]
        order = [(2 * own + (own == passes - 1 and batch == 0), batch) for batch, own in turns]
    else:
        left = {batch: list(range(passes)) for batch in range(draw(st.integers(1, 5)))}
        other = {batch: [draw(st.booleans()) for _ in range(passes)] for batch in left}
        order = []
        while left:
            batch = draw(st.sampled_from(sorted(left)))
            own = left[batch].pop(0)
            order.append((2 * own + other[batch][own], batch))
            if not left[batch]:
                del left[batch]
    last = max(batch for _, batch in order)
    size = draw(st.lists(SIZES, min_size=BLOCKS, max_size=BLOCKS))
    scope = draw(st.lists(st.sampled_from(list(BlockLifetime)), min_size=BLOCKS, max_size=BLOCKS))
    update = fragments[-1].of(
        np.array([scope[block] != BlockLifetime.MICRO_BATCH for block in fragments[-1].block], bool)
    )
    return (
        _blocks(size, scope), [*fragments[:-1], update], [*(own for own, _ in order), 2 * passes],
        [*(batch for _, batch in order), last],
    )  # fmt: skip


def _by_lifetimes(blocks: MemoryBlocks, uses: list[BlockUses], order: list[int], micro_batch: list[int]) -> int:
    fragments = [
        ScheduledFragment(uses[own], number * LENGTH, batch)
        for number, (own, batch) in enumerate(zip(order, micro_batch, strict=True))
    ]
    held = liveness(blocks, fragments, max(micro_batch) + 1, LENGTH * len(order))
    return reserved_bytes(held.at(MemoryLocation.DEVICE))


@settings(max_examples=examples(400))
@given(_iterations())
def test_it_reserves_what_lifetimes_say(given: tuple[MemoryBlocks, list[BlockUses], list[int], list[int]]) -> None:
    blocks, uses, order, micro_batch = given
    try:
        found = allocation_order(blocks, uses, np.array(order), np.array(micro_batch))
    except Undecided:
        assume(False)
    for native in KINDS:
        assert found.reserved_bytes(native) == _by_lifetimes(*given)


def _turns(count: int) -> AllocationOrder:
    """A pass that allocates 3 MiB and one that frees them, and a second one of 21 MiB at the end."""
    mib = 1 << 20
    return AllocationOrder(
        np.array([5 * mib]), np.array([0, 1, 2, 3]), np.array([0, 1, 2], np.int8), np.zeros(3, np.int32),
        np.array([3 * mib, 3 * mib, 21 * mib]), np.array([0, 1] * count + [2], np.int32),
        np.array([*np.repeat(np.arange(count), 2), 0], np.int32),
    )  # fmt: skip


@pytest.mark.parametrize("native", KINDS)
@pytest.mark.parametrize("count", [1, 3, 50])
def test_turns_that_repeat_reserve_nothing_more(native: bool, count: int) -> None:
    assert _turns(count).reserved_bytes(native) == (20 + 22) << 20


def test_more_than_can_be_counted_is_told() -> None:
    many = _turns(1)
    many.size[2] = 1 << 59
    with pytest.raises(InputError, match=r"more than 5\.7e17 bytes"):
        many.reserved_bytes()


def test_which_of_two_is_first_depends_on_who_frees_them() -> None:
    recorder, frees = BlockUseRecorder(), BlockUseRecorder()
    for block in (0, 1):
        recorder.use(block, 0)
    frees.free(0, 0)
    blocks = _blocks([512, 512], [BlockLifetime.ITERATION] * 2)
    with pytest.raises(Undecided):
        allocation_order(blocks, [recorder.build(), frees.build()], np.array([0, 1]), np.array([0, 0]))
