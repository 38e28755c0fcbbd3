"""Predictions of a validation from made-up measurements: every part can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.validate import example
from triosim.validate.measured import MeasuredNetwork, MeasuredSeries
from triosim.validate.prediction import Predictor, SoftwareOverhead, plan_of

SECONDS = st.floats(0, 1)


@given(fixed=SECONDS, block=SECONDS, byte=st.floats(0, 1e-6))
def test_software_is_read_off_three_networks(fixed: float, block: float, byte: float) -> None:
    planted = SoftwareOverhead(fixed, block, byte)
    points = [(x, held, planted(x, held)) for x, held in ((2, 0), (6, 0), (2, 1e6))]
    found = SoftwareOverhead.through(*points)
    for blocks, held in ((1, 0), (12, 5e6)):
        assert found(blocks, held) == pytest.approx(planted(blocks, held), rel=1e-6, abs=1e-6)


@given(st.tuples(st.floats(-1, 1), st.floats(-1, 1), st.floats(-1, 1)))
def test_software_never_gives_time_back(left: tuple[float, float, float]) -> None:
    points = [(x, held, seconds) for (x, held), seconds in zip(((2, 0), (6, 0), (2, 1e6)), left, strict=True)]
    found = SoftwareOverhead.through(*points)
    assert min(found.fixed_s, found.block_s, found.byte_s) >= 0


@pytest.mark.parametrize("quantity", ["cpu_s", "wall_s"])
def test_data_parallel_is_the_step_its_collectives_copies_and_software(quantity: str) -> None:
    machine = example.machine()
    predictor = Predictor(machine, example.nulls("ddp", 1e-3, 2e-3, 1e-9, machine), quantity)
    software = predictor.software["ddp"][0]
    held = example.weight_bytes(4, 600)
    network = example.network("four", 4, 600, {"ddp": 1.0})
    parts = predictor("ddp", network)
    assert len(parts) == 2
    moved = 2e-4 + held / 1e9  # two buckets: the first is closed by the gradient with which it reaches 1 MiB
    assert parts[0].communication == pytest.approx(moved, rel=1e-6)
    assert parts[0].software == pytest.approx(2 * moved + software(4, held), rel=1e-6)
    assert parts[0].compute == pytest.approx(network.whole.device_time())
    if quantity == "cpu_s":
        assert software.fixed_s == pytest.approx(1e-3)
        assert software.block_s == pytest.approx(2e-3 + 256e-9)  # a block of the smallest networks has 256 bytes
        assert parts[0].total == pytest.approx(sum((parts[0].compute, parts[0].communication, parts[0].software)))
    else:  # eight cores for two processes: communication overlaps the backward pass
        assert parts[0].compute < parts[0].total < parts[0].compute + parts[0].communication + parts[0].software


def test_recorded_times_are_brought_to_those_of_the_rounds() -> None:
    machine = example.machine()
    predictor = Predictor(machine, example.nulls("ddp", 0, 0, 0, machine), "cpu_s")
    network = example.network("four", 4, 64, {"ddp": 1.0})
    slower = {**network.series, "alone": example.series(2 * network.whole.device_time())}
    doubled = predictor("ddp", type(network)(network.name, 4, network.whole, network.part, slower))
    assert doubled[0].compute == pytest.approx(2 * network.whole.device_time())


def test_the_interval_grows_with_what_the_rounds_differ_by() -> None:
    machine = example.machine()
    predictor = Predictor(machine, example.nulls("ddp", 0, 0, 0, machine), "cpu_s")
    steady = example.network("four", 4, 64, {"ddp": 1.0})
    alone = steady.whole.device_time() * np.array([[0.8, 0.9, 1.0, 1.1, 1.2]] * 2)
    noisy = {**steady.series, "alone": MeasuredSeries(alone, alone)}
    wide = predictor("ddp", type(steady)(steady.name, 4, steady.whole, steady.part, noisy))[0]
    narrow = predictor("ddp", steady)[0]
    assert wide.total == pytest.approx(narrow.total)
    assert wide.spread > narrow.spread > 0


@pytest.mark.parametrize(
    ("mode", "sizes"),
    [
        ("ddp", (2, 1, 1, 0)),
        ("fsdp2", (2, 1, 1, 3)),
        ("tp", (None, 2, 1, 0)),
        ("gpipe", (1, 1, 2, 0)),
        ("1f1b", (1, 1, 2, 0)),
    ],
)
def test_a_mode_is_a_plan(mode: str, sizes: tuple) -> None:
    plan = plan_of(mode, example.machine(), example.network("four", 4, 64, {}), overlap=True)
    assert (plan.dp, plan.tp, plan.pp, plan.zero) == sizes
    if plan.pp > 1:
        assert plan.stages == ("blocks.2",)
        assert plan.schedule == mode
        assert plan.micro_batches == 4


def test_medians_and_spreads() -> None:
    rows = MeasuredSeries.of([{"cpu_s": [1, 2, 3, 4, 100], "wall_s": [1, 1, 1, 1, 1]}])
    assert rows.median("cpu_s").tolist() == [3]
    assert rows.spread("wall_s") == 0
    assert rows.spread("cpu_s") == pytest.approx(1.6449 * 2 / (1.349 * 3), rel=1e-3)
    assert rows.median_spread("cpu_s") < rows.spread("cpu_s")


def test_pipelines_start_from_a_step_in_micro_batches() -> None:
    machine = example.machine()
    held = example.weight_bytes(4, 64)
    trace = example.step(4, 64)
    trace = replace(trace, meta=replace(trace.meta, batch_size=16))
    sums = 3 * (1e-4 + held / 1e9)
    alone = {"alone": example.series(1.0), "parts": example.series(0.1 + sums)}
    network = MeasuredNetwork("four", 4, replace(trace, meta=replace(trace.meta, batch_size=64)), trace, alone)
    predictor = Predictor(machine, example.nulls("ddp", 0, 0, 0, machine), "cpu_s")
    assert float(np.nansum(predictor._trace("gpipe", network).operators.device_s)) * 4 == pytest.approx(0.1)
    assert float(np.nansum(predictor._trace("ddp", network).operators.device_s)) == pytest.approx(1.0)
