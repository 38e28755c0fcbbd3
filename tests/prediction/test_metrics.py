"""Exposed communication of modules: no instant of a device counts twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import triosim
from tests.asked import asked
from triosim.prediction.metrics import _exposed

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=8)


@given(SPANS, SPANS)
def test_exposed_ticks_are_those_in_which_only_transfers_were_in_flight(
    transfers: list[tuple[int, int]], computations: list[tuple[int, int]]
) -> None:
    begin, length = np.array(transfers, np.int64).reshape(-1, 2).T
    busy, busy_for = np.array(computations, np.int64).reshape(-1, 2).T
    found = _exposed(begin, begin + length, busy, busy + busy_for)
    computes = {tick for at, ticks in computations for tick in range(at, at + ticks)}
    flies = {tick for at, ticks in transfers for tick in range(at, at + ticks)}
    assert found.sum() == len(flies - computes)
    assert (found >= 0).all()
    assert all(part <= ticks for part, ticks in zip(found.tolist(), length.tolist(), strict=True))


@pytest.mark.parametrize(
    "plan",
    [
        {}, {"tp": 2}, {"tp": 2, "pp": 2, "micro_batches": 4}, {"zero": 3}, {"zero": 2, "iterations": 2},
        {"overlap": False}, {"offload": ("optimizer", "activations")}, {"dp_style": "dataparallel"},
        {"pp": 4, "micro_batches": 8, "schedule": "gpipe", "zero": 1},
    ],
    ids=str,
)  # fmt: skip
def test_the_modules_of_a_stage_take_at_most_its_time(plan: dict[str, Any]) -> None:
    job = triosim.model("gpt2", sequence_length=128)
    system = triosim.system("dgx-a100") if "offload" in plan else triosim.system(device="A100", devices=4, link="5GB/s")
    result = triosim.simulate(job, system, *asked(global_batch_size=64, **plan))
    total = sum(row.compute_s + row.exposed_communication_s for row in result.layers)
    assert total <= result.iteration_time_s * len(result.stages) * (1 + 1e-9)
    assert all(0 <= row.exposed_communication_s <= row.communication_s * (1 + 1e-9) for row in result.layers)
    if len(result.devices) == 1 and not plan.get("offload"):
        exposed = sum(row.exposed_communication_s for row in result.layers)
        assert exposed == pytest.approx(result.breakdown_s.exposed_communication, rel=1e-6)
