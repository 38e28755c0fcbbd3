"""Who holds the peak, and when it is."""

from __future__ import annotations

import numpy as np
import pytest

import triosim
from tests.asked import asked
from tests.traces import chain
from triosim import Plan
from triosim.memory.lifetimes import Lifetimes
from triosim.memory.top_allocations import holders


def test_held_at_a_row_is_what_has_begun_and_not_ended() -> None:
    trace = chain(layers=2, batch=8, width=16)
    columns = [(100, 0, -1, 9, 0), (50, 4, 2, 4, -1), (30, 4, 5, 6, 3)]
    size, category, start, end, storage = (np.array(c) for c in zip(*columns, strict=True))
    lifetimes = Lifetimes(size, category.astype(np.int8), start, end, storage)
    assert [(h.category, h.module, h.bytes) for h in holders(lifetimes, 4, trace)] == [
        ("weight", "layer0", 100), ("activation", "", 50),
    ]  # fmt: skip
    assert [h.bytes for h in holders(lifetimes, 5, trace)] == [100, 30]
    assert [h.bytes for h in holders(lifetimes, -1, trace)] == [100]


@pytest.mark.parametrize("plan", [{}, {"zero": 3}, {"tp": 2}, {"pp": 2, "micro_batches": 2}, {"recompute": "full"}])
def test_holders_add_up_to_the_peak_by_category(plan: dict) -> None:
    system = triosim.system(device="H100-SXM5-80GB", devices=2, topology="switch", link="100GB/s")
    configuration = {"n_layer": 4}
    trace = triosim.model("gpt", configuration={**GPT, **configuration}, sequence_length=64)
    result = triosim.simulate(trace, system, *asked(**plan, iterations=1))
    memory = result.memory
    from triosim.prediction.prepare import prepare

    job = prepare(trace, system, *asked(**plan))
    at = [int(p.ranks.min()) for p in job.programs].index(memory.rank)
    found = holders(job.programs[at].lifetimes, job.footprints[at].peak_row, job.step.trace)
    for category, size in memory.categories.items():
        held = sum(h.bytes for h in found if h.category == category)
        count = int(np.sum(job.programs[at].lifetimes.bytes > 0))
        assert size - 512 * count <= held <= size  # the allocator rounds up to 512 bytes
    assert any(h.module == "transformer.h.*" for h in memory.holders)
    assert list(memory.holders) == sorted(memory.holders, key=lambda h: -h.bytes)


GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 128}


def test_the_peak_is_told_with_phase_module_and_time() -> None:
    trace = triosim.model("gpt2", precision="float32", batch_size=8)
    result = triosim.simulate(trace, triosim.system(device="H100-SXM5-80GB", devices=1), Plan(batch_size=8))
    peak = result.memory.peak
    assert (peak.phase, peak.operator) == ("backward", "aten::_log_softmax_backward_data")
    assert 0 < peak.time_s < result.iteration_time_s
    assert result.memory.holders[0].module == "transformer.h.*"
    curve = result.memory.curve
    assert len(curve.time_s) == len(curve.bytes) <= 200
    assert max(curve.bytes) == result.memory.allocated_bytes
    assert list(curve.time_s) == sorted(curve.time_s)
    at = int(np.argmax(curve.bytes))
    assert curve.time_s[at] <= peak.time_s <= curve.time_s[at + 1]


def test_buckets_of_gradients_are_communication() -> None:
    trace = triosim.model("gpt2", precision="float32", sequence_length=64)
    system = triosim.system(device="H100-SXM5-80GB", devices=2, topology="switch", link="100GB/s")
    one, two = (triosim.simulate(trace, system, Plan(dp=n, idle_ok=True)).memory.categories for n in (1, 2))
    assert "communication" not in one
    assert two["communication"] == two["weight"]
