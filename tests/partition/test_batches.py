"""What is divided once for all micro-batches of several samples is what partitioning each of them gives.

The samples are so many that no dimension is taken for another in the step itself.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest

import triosim
from tests.exploring import EXPLORES
from triosim import Plan
from triosim.cli.workloads import load_workload
from triosim.core.columns import Ragged
from triosim.fidelity import Fidelity
from triosim.partition.batches import SAMPLES, grows_alike, of_batch
from triosim.partition.partition import partition
from triosim.partition.resolve import replication, resolve, rules_of
from triosim.partition.step import Step
from triosim.prediction import partitioning
from triosim.search.grid import with_fields
from triosim.stacks import ASSUMED
from triosim.transform.optimizing import optimized
from triosim.transform.recompute import recomputed
from triosim.transform.rescale import rescale

DEVICES = 16
JOBS: dict[str, list[dict[str, Any]]] = {
    "llama-3.2-1b": [
        {"tp": 4}, {"tp": 2, "cp": 2}, {"tp": 4, "cp": 2, "sequence-parallel": True, "recompute": "selective"},
        {"cp": 4}, {"tp": 8},
    ],
    "gpt2": [{"tp": 2, "recompute": "full"}, {"tp": 4, "sequence-parallel": True}],
    "mixtral-8x7b": [{"tp": 2, "cp": 2, "ep": 2, "sequence-parallel": True}, {"tp": 4}],
    "deepseek-v2-lite": [{"tp": 2, "ep": 4}],
    "gpt-oss-20b": [{"tp": 2}],
    "gemma-2-9b": [{"tp": 2}],
    "qwen3-8b": [{"tp": 8, "sequence-parallel": True}],
    "bert-large": [{"tp": 2}],
    "t5-large": [{"tp": 8, "sequence-parallel": True}],
}  # fmt: skip


def same(one: Any, other: Any, name: str) -> None:
    """Fails where two differ in anything."""
    if is_dataclass(one) and not isinstance(one, (type, Ragged)):
        for field in fields(one):
            same(getattr(one, field.name), getattr(other, field.name), f"{name}.{field.name}")
    elif isinstance(one, Ragged):
        assert np.array_equal(one.values, other.values), name
        assert np.array_equal(one.offsets, other.offsets), name
    elif isinstance(one, np.ndarray):
        assert np.array_equal(one, other, equal_nan=one.dtype.kind == "f"), name
    else:
        assert one == other, name


@pytest.mark.parametrize(
    ("model", "asked"), [(model, asked) for model, own in JOBS.items() for asked in own], ids=lambda value: str(value)
)
@pytest.mark.parametrize("samples", [7, 11] if EXPLORES else [7])
def test_the_share_of_more_samples_is_that_of_few_scaled(
    monkeypatch: pytest.MonkeyPatch, model: str, asked: dict[str, Any], samples: int
) -> None:
    seen: list[bool] = []

    def both(whole: triosim.Trace, mesh: Any, rules: Any, of: Any = None) -> Step:
        step = partition(whole, mesh, rules, of)
        if grows_alike(whole, 1):
            several = rescale(whole, batch=SAMPLES)
            same(of_batch(partition(several, mesh, rules, of), several, whole), step, "step")
            seen.append(True)
        return step

    monkeypatch.setattr(partitioning, "partition", both)
    monkeypatch.setattr(partitioning, "grows_alike", lambda whole, ranks: False)
    plan, _ = with_fields(Plan(global_batch_size=DEVICES * samples), Fidelity(), {**asked, "micro-batch-size": samples})
    rules = rules_of(plan, True)
    workload = recomputed(optimized(load_workload(model, training=True), plan.optimizer), plan.recompute)
    mesh = resolve(plan, DEVICES, None, workload.meta.micro_batches, rules)
    partitioning.divided(workload, rules, mesh, plan, replication(rules, mesh), ASSUMED)
    assert seen
