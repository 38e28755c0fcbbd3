"""Data parallelism: what is reduced, when, and who waits for it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import triosim
from tests.data import shared
from tests.traces import chain
from triosim import Plan, PlanError
from triosim.partition.gradients import Gradient, gradients
from triosim.partition.passes.fuse import by_bytes
from triosim.schedule.program import STREAMS, Op
from triosim.trace.tables import Category, Phase

WEIGHT = 128 * 128 * 4


@given(st.lists(st.integers(1, 10**6), max_size=40), st.integers(1, 10**6), st.integers(1, 3 * 10**6))
def test_buckets_hold_every_gradient_once_in_reverse_order(sizes: list[int], first: int, other: int) -> None:
    grads = [Gradient(i, i, i, size) for i, size in enumerate(sizes)]
    made = by_bytes(grads, first, other)
    assert [g for bucket in made for g in bucket] == grads[::-1]
    for number, bucket in enumerate(made):
        cap = other if number else first
        assert sum(g.bytes for g in bucket[:-1]) < cap
        if number < len(made) - 1:
            assert sum(g.bytes for g in bucket) >= cap


def test_the_buckets_of_resnet50_are_those_that_ddp_made_on_real_gpus() -> None:
    """Sizes of the all-reduces in a recorded DDP run of ResNet-50 on two A100 (nccl_parser_config-nccl_data)."""
    trace = triosim.load(shared("triosim-h100", "resnet50"))
    found = [sum(g.bytes for g in b) for b in by_bytes(gradients(trace), 1 << 20, 25 << 20)]
    assert found == [8196000, 31502336, 26255360, 26550272, 9724160]


def test_gradients_are_in_registration_order_and_ready_after_their_backward() -> None:
    trace = chain(layers=5)
    grads = gradients(trace)
    assert [g.parameter for g in grads] == trace.weights().tolist()
    assert [g.bytes for g in grads] == [WEIGHT] * 5
    assert [g.ready for g in grads] == [9, 8, 7, 6, 5]


def test_a_trace_without_gradients_is_refused() -> None:
    trace = chain(layers=3)
    category = trace.values.category.copy()
    category[category == Category.GRADIENT] = Category.TEMPORARY
    from dataclasses import replace

    blind = replace(trace, values=replace(trace.values, category=category))
    with pytest.raises(PlanError, match="no gradient of a parameter was found"):
        triosim.simulate(blind, triosim.system(devices=2, link="1GB/s"), Plan(dp=2))


def _slices(result, op: Op):
    slices = result.timeline.slices
    return np.flatnonzero((slices.op == op) & (slices.rank == 0)), slices


def test_a_bucket_starts_when_its_last_gradient_exists_and_the_optimizer_waits() -> None:
    trace = chain(layers=4, optimizer_s=1e-3)
    plan = Plan(dp=2, bucket_bytes=WEIGHT, first_bucket_bytes=WEIGHT)
    result = triosim.simulate(trace, triosim.system(devices=2, link="1MB/s"), plan)
    rows, slices = _slices(result, Op.COLLECTIVE)
    assert [int(b) for b in slices.bytes[rows]] == [WEIGHT] * 4
    computes, _ = _slices(result, Op.COMPUTE)
    backward_ends = slices.end[computes][4:8]
    assert slices.begin[rows][0] == pytest.approx(backward_ends[0])
    optimizer = computes[-1]
    assert slices.start[optimizer] == pytest.approx(slices.end[rows].max())


def test_standard_data_parallel_reduces_once_between_backward_and_optimizer() -> None:
    trace = chain(layers=4, optimizer_s=1e-3)
    system = triosim.system(devices=4, topology="ring", link="1MB/s")
    result = triosim.simulate(trace, system, Plan(dp=4, overlap=False))
    rows, slices = _slices(result, Op.COLLECTIVE)
    assert len(rows) == 1
    assert STREAMS[slices.stream[rows[0]]] == "compute"
    assert slices.end[rows[0]] - slices.start[rows[0]] == pytest.approx(2 * 3 / 4 * 4 * WEIGHT / 1e6)
    assert result.iteration_time_s == pytest.approx(trace.device_time() + 2 * 3 * WEIGHT / 1e6)


def test_gradients_are_reduced_once_however_many_micro_batches() -> None:
    trace = chain(layers=4)
    system = triosim.system(devices=2, link="1GB/s")
    for parts in (1, 4):
        result = triosim.simulate(trace, system, Plan(dp=2, micro_batches=parts))
        assert sum(c.bytes * c.count for c in result.collectives) == 4 * WEIGHT


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_dataparallel_moves_everything_through_device_0(devices: int) -> None:
    trace = triosim.load(shared("triosim-h100", "vgg13"))
    system = triosim.system(devices=devices, topology="switch", link="10GB/s")
    result = triosim.simulate(trace, system, Plan(dp=devices, dp_style="dataparallel"))
    kinds = {c.kind: c.bytes for c in result.collectives}
    if devices == 1:
        assert not kinds
        assert result.iteration_time_s == pytest.approx(94.038e-3)
        return
    assert kinds["broadcast"] == kinds["reduce"] == 532191392
    assert kinds["gather"] == devices * 128 * 1000 * 4
    optimizer = [r for r in result.layers if r.phase == "optimizer"]
    assert sum(r.compute_s for r in optimizer) == pytest.approx(3.568e-3)
    first, others = result.devices
    assert (first.rank, first.count, others.count) == (0, 1, devices - 1)
    assert others.busy_s < first.busy_s


@pytest.mark.parametrize("rules", [[], ["sequence"]])
def test_gradients_are_reduced_beside_the_backward_where_norms_are_divided_along_the_sequence(rules: list[str]) -> None:
    """The weights of norms are exchanged among tensor-parallel ranks then, which only their own buckets wait for."""
    trace = triosim.model("gpt2", sequence_length=1024)
    system = triosim.system("hgx-h100", at_least=16)
    plan = Plan(dp=4, tp=4, batch_size=64, parallelism=rules)
    timeline = triosim.simulate(trace, system, plan, fit=False).timeline
    found = timeline.slices
    mine = found.rank == 0
    backward = mine & (found.phase == Phase.BACKWARD) & (found.stream == STREAMS.index("compute"))
    reduced = mine & (found.stream == STREAMS.index("dp"))
    began, ended = found.begin[backward].min(), found.end[backward].max()
    assert found.begin[reduced].min() < (began + ended) / 2
