"""Sharded data parallelism: what is sent, what is kept, and what waits for what."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import triosim
from tests.asked import asked
from tests.traces import chain
from triosim import Plan, PlanError
from triosim.partition.passes.fuse import UnitsByModule
from triosim.prediction.prepare import prepare
from triosim.schedule.gathering import UngatheredUnits, missing
from triosim.schedule.program import COLLECTIVES, Op
from triosim.stacks import Stack
from triosim.trace.builder import TraceBuilder
from triosim.trace.tables import Category, Meta, Phase, Trace

FORWARD_S, BACKWARD_S, OPTIMIZER_S = 1e-3, 2e-3, 3e-3
WIDTH = 64
WEIGHT = WIDTH * WIDTH * 4
PER_BLOCK = 3


def blocks(count: int, rest: bool = False) -> Trace:
    """``count`` blocks of three linear layers, updated by one operator with one state for each weight.

    ``rest`` adds a layer before the blocks that is in none.
    """
    b = TraceBuilder()
    names = ["embed"] * rest + [f"blocks.{i}.{layer}" for i in range(count) for layer in range(PER_BLOCK)]
    weights = [b.value((WIDTH, WIDTH), "float32", Category.WEIGHT, name=f"{name}.weight") for name in names]
    x = b.value((8, WIDTH), "float32", Category.INPUT)
    rows = []
    for name, weight in zip(names, weights, strict=True):
        y = b.value((8, WIDTH), "float32", Category.ACTIVATION)
        row = b.operator(
            "aten::linear", [x, weight], [y], roles=["input", "weight"], phase=Phase.FORWARD,
            module=b.module(name, "Linear"), device_s=FORWARD_S,
        )  # fmt: skip
        rows.append((row, x))
        x = y
    grad = b.value((8, WIDTH), "float32", Category.GRADIENT)
    grads = []
    for (row, source), weight, name in reversed(list(zip(rows, weights, names, strict=True))):
        gx = b.value((8, WIDTH), "float32", Category.GRADIENT)
        grads.append(b.value((WIDTH, WIDTH), "float32", Category.GRADIENT, of=weight))
        b.operator(
            "autograd::LinearBackward0", [grad, source, weight], [gx, grads[-1]],
            roles=["grad_output", "input", "weight"], phase=Phase.BACKWARD, module=b.module(name), forward=row,
            device_s=BACKWARD_S,
        )  # fmt: skip
        grad = gx
    states = [b.value((WIDTH, WIDTH), "float32", Category.OPTIMIZER_STATE, of=w) for w in weights]
    new = [b.next_version(value) for value in (*weights, *states)]
    b.operator(
        "aten::_foreach_add_", [*weights, *states, *grads[::-1]], new,
        roles=["self"] * len(new) + ["other"] * len(weights), phase=Phase.OPTIMIZER, device_s=OPTIMIZER_S,
    )  # fmt: skip
    return b.build(Meta("test", "blocks", batch_size=8, clock="gpu"))


def _system(devices: int, link: str = "100GB/s"):
    return triosim.system(devices=devices, topology="ring", link=link)


def _run(trace: Trace, devices: int, link: str = "100GB/s", **plan):
    return triosim.simulate(trace, _system(devices, link), *asked(host="none", operator_times="proportional", **plan))


def _sent(result) -> int:
    """Bytes that a rank sends in the all-gathers and reduce-scatters of the data axis, times the number of ranks."""
    return sum(c.bytes * c.count * (c.group_size - 1) for c in result.collectives if c.axis == "dp")


# --- what is sent ---------------------------------------------------------------------------------------------------


@settings(max_examples=12)
@given(st.integers(2, 4), st.sampled_from([2, 4, 8]), st.sampled_from([1, 2, 4]))
def test_volumes_are_those_of_the_paper(count: int, ways: int, parts: int) -> None:
    """Rajbhandari et al. 2020, section 7: 2 and 3 (n - 1) / n times the parameters, from level 2 for each part."""
    trace, parameters = blocks(count), count * PER_BLOCK * WEIGHT
    for level, passes in ((1, 2), (2, 2 * parts), (3, 3 * parts)):
        result = _run(trace, ways, zero=level, micro_batches=parts)
        assert _sent(result) == passes * (ways - 1) * parameters


DEEPSPEED = Stack(host="none", whole_parameters=True)


@settings(max_examples=8)
@given(st.integers(2, 4), st.sampled_from([2, 4, 8]), st.sampled_from([1, 2, 4]))
def test_zero_2_with_whole_parameters_scatters_for_each_part_and_gathers_once(
    count: int, ways: int, parts: int
) -> None:
    """DeepSpeed's stage 2: m reduce-scatters and one all-gather of all parameters, after the update."""
    trace, parameters = blocks(count), count * PER_BLOCK * WEIGHT
    result = _run(trace, ways, zero=2, micro_batches=parts, stack=DEEPSPEED)
    assert _sent(result) == (parts + 1) * (ways - 1) * parameters
    slices = result.timeline.slices
    named = np.array([result.timeline.names[n] for n in slices.name])
    mine = slices.rank == 0
    update = slices.end[mine & (named == "aten::_foreach_add_")].max()
    assert slices.begin[mine & (named == "all_gather")].min() == pytest.approx(float(update))


@pytest.mark.parametrize("parts", [1, 4])
def test_zero_2_with_whole_parameters_keeps_no_shards_beside_them(parts: int) -> None:
    """A rank has all parameters, and its part of gradients and states; gathered ones lie beside its shards."""
    trace, ways = blocks(4), 4
    whole, gathered = (
        _run(trace, ways, zero=2, micro_batches=parts, stack=one).memory for one in (DEEPSPEED, Stack(host="none"))
    )
    parameters = 4 * PER_BLOCK * WEIGHT
    assert whole.categories["weight"] == parameters
    assert gathered.categories["weight"] >= parameters * (1 + 1 / ways)
    assert whole.categories["optimizer_state"] == gathered.categories["optimizer_state"] == parameters // ways


def test_what_is_in_no_block_is_gathered_once_however_often_blocks_are() -> None:
    trace = blocks(3, rest=True)
    two, three = (_run(trace, 4, zero=level) for level in (2, 3))
    assert _sent(two) == 2 * 3 * (1 + 3 * PER_BLOCK) * WEIGHT
    assert _sent(three) - _sent(two) == 3 * 3 * PER_BLOCK * WEIGHT


def test_rows_are_padded_to_a_multiple_of_the_ranks() -> None:
    """64 rows on 3 ranks are 22 each: 66."""
    result = _run(blocks(2), 3, zero=3)
    assert {c.bytes for c in result.collectives} == {PER_BLOCK * WEIGHT * 66 // 64}


def test_one_rank_divides_nothing() -> None:
    trace = blocks(2)
    whole = _run(trace, 1)
    for level in (1, 2, 3):
        same = _run(trace, 1, zero=level)
        assert same.iteration_time_s == whole.iteration_time_s
        assert same.memory == whole.memory
        assert not same.collectives


# --- what waits for what --------------------------------------------------------------------------------------------


def test_transfers_hide_behind_blocks_but_for_the_first_gathers_and_the_last_scatter() -> None:
    """By hand: the first unit of the forward and of the backward is waited for, and so is the last reduce-scatter."""
    count, ways, rate = 4, 4, 1e9
    trace = blocks(count)
    one = (ways - 1) / ways * PER_BLOCK * WEIGHT / rate  # ring, one way
    compute = count * PER_BLOCK * (FORWARD_S + BACKWARD_S) + OPTIMIZER_S / ways
    result = _run(trace, ways, link="1GB/s", zero=3)
    assert result.iteration_time_s == pytest.approx(compute + 3 * one, rel=1e-6)
    blocking = _run(trace, ways, link="1GB/s", zero=3, overlap=False)
    assert blocking.iteration_time_s == pytest.approx(compute + 3 * count * one, rel=1e-6)
    two = _run(trace, ways, link="1GB/s", zero=2)
    assert two.iteration_time_s == pytest.approx(compute + 2 * one, rel=1e-6)


def test_a_slow_network_is_kept_busy_from_the_first_gather_to_the_last_scatter() -> None:
    """By hand: forward, all gathers in a row; then the last block, the backward's gathers and the scatters."""
    count, ways, rate = 4, 2, 1e6
    one = (ways - 1) / ways * PER_BLOCK * WEIGHT / rate
    forward, backward = PER_BLOCK * FORWARD_S, PER_BLOCK * BACKWARD_S
    assert one > 3 * backward
    result = _run(blocks(count), ways, link="1MB/s", zero=3)
    # Forward: gathers in a row, then the last block.  Backward: two gathers, then a scatter and a gather in turn; the
    # two last scatters follow each other, as the first block has long computed.
    expected = (count + 2 * count) * one + forward + OPTIMIZER_S / ways
    assert result.iteration_time_s == pytest.approx(expected, rel=1e-6)


def test_gathers_run_at_most_two_units_ahead() -> None:
    trace = blocks(6)
    result = _run(trace, 2, zero=3)
    slices = result.timeline.slices
    mine = (slices.rank == 0) & (slices.phase == Phase.FORWARD)
    gathers = slices.begin[mine & (slices.op == Op.COLLECTIVE)]
    computes = mine & (slices.op == Op.COMPUTE)
    named = np.array([result.timeline.names[n] for n in slices.name])
    starts = slices.start[computes & (named == "aten::linear")][::PER_BLOCK]
    assert len(gathers) == len(starts) == 6
    assert np.all(gathers[2:] >= starts[:-2] - 1e-12)
    assert gathers[3] == pytest.approx(starts[1])


def test_zero_1_reduces_in_buckets_beside_the_backward_and_gathers_after_the_optimizer() -> None:
    trace = blocks(2)
    result = _run(trace, 4, zero=1, bucket_bytes=WEIGHT, first_bucket_bytes=WEIGHT)
    slices = result.timeline.slices
    mine = slices.rank == 0
    named = np.array([result.timeline.names[n] for n in slices.name])
    scatters, gathers = (mine & (named == kind) for kind in ("reduce_scatter", "all_gather"))
    assert scatters.sum() == gathers.sum() == 2 * PER_BLOCK
    optimizer = mine & (named == "aten::_foreach_add_")
    backward = mine & (slices.phase == Phase.BACKWARD) & (slices.op == Op.COMPUTE)
    assert slices.begin[scatters].min() == pytest.approx(slices.end[backward].min())
    assert slices.start[optimizer] == pytest.approx(slices.end[scatters].max())
    assert slices.begin[gathers].min() == pytest.approx(float(slices.end[optimizer][0]))


@pytest.mark.parametrize("plan", [{"zero": 1}, {"zero": 2}, {"zero": 3}, {"zero": 3, "pp": 2}, {"zero": 3, "tp": 2}])
def test_folded_unfolded_and_repeated_iterations_agree(plan: dict) -> None:
    trace = blocks(4)
    one = _run(trace, 8, micro_batches=4, **plan)
    assert one.iteration_time_s == _run(trace, 8, micro_batches=4, fold=False, **plan).iteration_time_s
    three = _run(trace, 8, micro_batches=4, iterations=3, **plan)
    assert three.iteration_time_s == pytest.approx(one.iteration_time_s, rel=0.1)
    assert {(c.kind, c.bytes, c.count) for c in one.collectives} == {
        (c.kind, c.bytes, c.count) for c in three.collectives
    }


# --- what is kept ---------------------------------------------------------------------------------------------------


def _stays(trace: Trace, ways: int, category: Category, **plan) -> int:
    """Bytes of a category that are still there when the iteration has ended."""
    job = prepare(trace, _system(ways), *asked(dp=ways, host="none", **plan))
    (program,) = job.programs
    lives = program.lifetimes
    assert lives is not None
    return int(lives.bytes[(lives.end >= len(program)) & (lives.category == category)].sum())


def test_each_level_divides_one_thing_more() -> None:
    trace, ways, parameters = blocks(4), 4, 4 * PER_BLOCK * WEIGHT
    divided = {Category.OPTIMIZER_STATE: 1, Category.GRADIENT: 2, Category.WEIGHT: 3}
    for level in range(4):
        for category, since in divided.items():
            shards = level >= since or (level == 2 and category == Category.WEIGHT)  # gathered for the step, see above
            assert _stays(trace, ways, category, zero=level) == parameters // (ways if shards else 1)


def test_under_zero_3_few_units_are_whole_at_a_time() -> None:
    """At most two of them in a forward, four units' worth of parameters, gradients and buffers in a backward."""
    trace, ways = blocks(12), 4
    unit = PER_BLOCK * WEIGHT
    kept = 12 * unit // ways  # of parameters, and as much of states and of gradients
    whole = _run(trace, ways).memory.allocated_bytes
    two, three = (_run(trace, ways, zero=level).memory.allocated_bytes for level in (2, 3))
    activations = 8 * WIDTH * 4 * (12 * PER_BLOCK + 3)
    assert 3 * kept < three <= 3 * kept + 4.5 * unit + activations
    assert three + 7 * unit < two < whole


def test_more_ranks_never_need_more_memory() -> None:
    trace = blocks(6, rest=True)
    for level in (1, 2, 3):
        sizes = [_run(trace, ways, zero=level).memory.allocated_bytes for ways in (2, 4, 8)]
        assert sizes == sorted(sizes, reverse=True)


def test_the_optimizer_works_on_its_part() -> None:
    trace = blocks(2)
    whole = _run(trace, 4)
    for level in (1, 2, 3):
        part = _run(trace, 4, zero=level)
        spent = [sum(r.compute_s for r in result.layers if r.phase == "optimizer") for result in (whole, part)]
        assert spent[1] == pytest.approx(spent[0] / 4)


# --- with a pipeline ------------------------------------------------------------------------------------------------


def test_what_is_missing_when_a_turn_begins() -> None:
    """Without a pipeline everything is sharded again after each backward, with one when all is done."""
    alone = [False, True, False, True]
    assert [missing(alone, n, True, False) for n in range(4)] == [(True, True), (False, True)] * 2
    assert [missing(alone, n, False, False) for n in range(4)] == [(True, True), (False, False)] * 2
    staged = [False, False, True, False, True, True]
    assert [missing(staged, n, True, True) for n in range(6)] == [
        (True, True), (False, True), (False, True), (False, False), (False, True), (False, False),
    ]  # fmt: skip
    assert [missing(staged, n, False, True) for n in range(6)] == [(True, True)] + [(False, False)] * 5
    assert not any(UngatheredUnits())


def test_stages_scatter_when_all_micro_batches_are_done() -> None:
    trace = blocks(4)
    result = _run(trace, 4, pp=2, zero=3, micro_batches=4)
    scattered = [c for c in result.collectives if c.kind == "reduce_scatter"]
    assert sum(c.bytes * c.count for c in scattered) == 4 * PER_BLOCK * WEIGHT
    slices = result.timeline.slices
    for rank in range(4):
        mine = slices.rank == rank
        named = np.array([result.timeline.names[n] for n in slices.name])
        backward = mine & (named == "autograd::LinearBackward0")
        assert slices.begin[mine & (named == "reduce_scatter")].min() >= slices.end[backward].max() - 1e-12


def test_units_of_a_stage_are_what_it_has_of_the_blocks() -> None:
    trace = blocks(3, rest=True)
    sharding = UnitsByModule(trace, 2)
    forward = np.flatnonzero(trace.operators.phase == Phase.FORWARD).tolist()
    backward = np.flatnonzero(trace.operators.phase == Phase.BACKWARD).tolist()
    units = sharding.units(trace.weights().tolist(), [], forward, backward)
    assert [unit.path for unit in units] == ["", "blocks.0", "blocks.1", "blocks.2"]
    assert [unit.gather_bytes for unit in units] == [WEIGHT] + [PER_BLOCK * WEIGHT] * 3
    half = sharding.units(trace.weights().tolist()[5:], [], forward[5:], backward[:5])
    assert [unit.path for unit in half] == ["blocks.1", "blocks.2"]
    assert [unit.gather_bytes for unit in half] == [2 * WEIGHT, 3 * WEIGHT]
    assert half[0].forward == (forward[5], forward[6])


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [1, 2])
def test_inference_has_nothing_to_divide_but_parameters(stage: int) -> None:
    with pytest.raises(PlanError, match=rf"zero {stage} divides .* leave it out"):
        triosim.simulate(blocks(2), _system(2), Plan(zero=stage, training=False))
    result = triosim.simulate(blocks(2), _system(2), Plan(zero=3, training=False))
    assert {one.kind for one in result.collectives} == {"all_gather"}


def test_a_model_without_blocks_is_gathered_at_once_and_says_so() -> None:
    result = _run(chain(layers=4), 2, zero=3)
    assert any("no repeated blocks" in note for note in result.warnings)
    assert {c.count for c in result.collectives} == {1}
    assert {c.kind for c in result.collectives} == {"all_gather", "reduce_scatter"} <= set(COLLECTIVES)
