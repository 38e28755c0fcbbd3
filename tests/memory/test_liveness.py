"""Liveness: the fold over a schedule, against a simple one that follows every block by itself, and against formulas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import triosim
from tests.traces import chain
from triosim import Fidelity, Plan
from triosim.memory.lifetimes import Lifetimes, MemoryLocation
from triosim.memory.liveness import (
    NEVER,
    BlockLifetime,
    BlockUseRecorder,
    BlockUses,
    MemoryBlocks,
    ScheduledFragment,
    liveness,
)
from triosim.prediction.prepare import prepare
from triosim.schedule.actions import SCHEDULES, Pass
from triosim.trace.tables import Category

BLOCKS = 6
LENGTH = 8


def _blocks(scopes: list[BlockLifetime]) -> MemoryBlocks:
    count = len(scopes)
    return MemoryBlocks(
        np.arange(1, count + 1) * 100, np.zeros(count, np.int8), np.arange(count, dtype=np.int32),
        np.array([int(scope) for scope in scopes], np.int8), np.zeros(count, bool),
    )  # fmt: skip


@st.composite
def _fragments(draw: st.DrawFn) -> list[tuple[int, int, bool]]:
    """Uses and frees of a fragment: block, instruction, whether it is freed."""
    events = st.tuples(st.integers(0, BLOCKS - 1), st.integers(0, LENGTH - 1), st.booleans())
    return sorted(draw(st.lists(events, max_size=12)), key=lambda event: event[1])


def _recorded(events: list[tuple[int, int, bool]]) -> BlockUses:
    recorder = BlockUseRecorder()
    for block, row, frees in events:
        (recorder.free if frees else recorder.use)(block, row)
    return recorder.build()


def _followed(
    scopes: list[BlockLifetime], order: list[tuple[int, int]], written: list, end: int
) -> set[tuple[int, ...]]:
    """Block, first and last instruction of each stretch, event by event."""
    found = {(block, -1, end) for block, scope in enumerate(scopes) if scope == BlockLifetime.RESIDENT}
    held: dict[tuple[int, int], list[int]] = {}
    for number, (fragment, micro_batch) in enumerate(order):
        for block, row, frees in written[fragment]:
            if scopes[block] not in (BlockLifetime.ITERATION, BlockLifetime.MICRO_BATCH):
                continue
            key = (block, micro_batch if scopes[block] == BlockLifetime.MICRO_BATCH else -1)
            at = number * LENGTH + row
            if not frees:
                held.setdefault(key, [at, at])[1] = at
            elif key in held:
                found.add((block, held.pop(key)[0], at))
    for (block, micro_batch), (first, last) in held.items():
        found.add((block, first, last if micro_batch >= 0 else end))
    return found


@given(
    st.lists(st.sampled_from(list(BlockLifetime)), min_size=BLOCKS, max_size=BLOCKS),
    st.lists(_fragments(), min_size=2, max_size=4),
    st.integers(1, 4),
)
def test_the_fold_follows_every_block(scopes: list[BlockLifetime], written: list, micro_batches: int) -> None:
    """Every micro-batch runs all fragments in order, one micro-batch after another or in turn."""
    uses = [_recorded(events) for events in written]
    for order in (
        [(f, m) for m in range(micro_batches) for f in range(len(written))],
        [(f, m) for f in range(len(written)) for m in range(micro_batches)],
    ):
        end = len(order) * LENGTH
        placed = [ScheduledFragment(uses[f], n * LENGTH, m) for n, (f, m) in enumerate(order)]
        found = liveness(_blocks(scopes), placed, micro_batches, end)
        rows = list(zip(found.storages().tolist(), found.start.tolist(), found.end.tolist(), strict=True))
        assert len(set(rows)) == len(rows) or micro_batches > 1
        assert set(rows) == _followed(scopes, order, written, end)
        assert found.bytes.tolist() == [(row[0] + 1) * 100 for row in rows]


def test_what_is_only_freed_is_not_held() -> None:
    uses = _recorded([(0, 3, True)])
    assert uses.first.tolist() == [NEVER]
    assert not len(liveness(_blocks([BlockLifetime.MICRO_BATCH]), [ScheduledFragment(uses, 0, 0)], 1, 8))


def test_host_memory_is_apart() -> None:
    blocks = _blocks([BlockLifetime.RESIDENT, BlockLifetime.ITERATION])
    blocks.home[1] = MemoryLocation.HOST
    found = liveness(blocks, [ScheduledFragment(_recorded([(1, 0, False)]), 0, 0)], 1, 4)
    assert found.at(MemoryLocation.DEVICE).bytes.tolist() == [100]
    assert found.at(MemoryLocation.HOST).peak_bytes() == 200


def _most_layers(schedule: str, stage: int, stages: int, micro_batches: int, layers: int) -> int:
    """Most activations of layers that a stage holds at once, counted from the actions alone.

    A forward keeps the input of each layer for the last pass of its micro-batch, but for the input of the model; the
    output of its last layer is there until it has been sent.
    """
    part = SCHEDULES.get(schedule)()
    last = Pass.WEIGHT_GRADIENT if part.splits_backward else Pass.BACKWARD
    held = most = 0
    for action in part.actions(stage, stages, micro_batches):
        kept = layers - (stage == 0 and action.chunk == 0)
        if action.what is Pass.FORWARD:
            most, held = max(most, held + kept + 1), held + kept
        held -= kept * (action.what is last)
    return most


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved-1f1b", "zb-h1"])
@pytest.mark.parametrize("micro_batches", [4, 8])
def test_activations_in_flight_are_those_of_the_schedule(schedule: str, micro_batches: int) -> None:
    stages, layers, rows = 4, 16, 8
    split = SCHEDULES.get(schedule)().splits_backward
    trace = chain(layers=layers, batch=micro_batches * rows, width=128, weight_s=2e-3 if split else None)
    system = triosim.system(devices=stages, topology="ring", link="100GB/s")
    plan = Plan(pp=stages, micro_batches=micro_batches, schedule=schedule)
    models = Fidelity(host="none", operator_times="proportional")
    each = layers // stages // SCHEDULES.get(schedule)().chunks_per_stage
    for program in prepare(trace, system, plan, models).programs:
        lives = program.lifetimes
        assert lives is not None
        own = lives.category == Category.ACTIVATION
        most = Lifetimes(lives.bytes[own], lives.category[own], lives.start[own], lives.end[own]).peak_bytes()
        assert most == _most_layers(schedule, program.stage, stages, micro_batches, each) * rows * 128 * 4


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_a_tied_weight_has_a_gradient_on_each_stage(schedule: str) -> None:
    """The first stage adds up; the last keeps what it has made to the end, once for all micro-batches."""
    trace = triosim.model("gpt2", sequence_length=32)
    plan = Plan(pp=2, dp=1, micro_batches=4, schedule=schedule, idle_ok=True)
    table = 50257 * 768 * 2
    for program in prepare(trace, triosim.system("dgx-a100"), plan, Fidelity(host="none")).programs:
        lives = program.lifetimes
        assert lives is not None
        whole = (lives.category == Category.GRADIENT) & (lives.bytes == table) & (lives.end == len(program))
        assert int(whole.sum()) == 1


def test_a_stage_that_only_views_what_arrives_holds_it_while_it_arrives() -> None:
    """Cut within a feed-forward part, a stage receives a shard of which it reads views only."""
    sizes = {
        "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 8,
        "head_dim": 32, "num_hidden_layers": 8, "vocab_size": 4096,
    }  # fmt: skip
    trace = triosim.model("llama-3.2-1b", sequence_length=2048, configuration=sizes)
    plan = triosim.Plan(
        tp=2, pp=4, micro_batches=4, schedule="interleaved-1f1b", parallelism=("sequence",), global_batch_size=32
    )
    assert triosim.simulate(trace, triosim.system("dgx-a100", 1), plan).memory.fits
