"""More ranks on the tensor axis than heads of keys and values: each head on several of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import triosim
from tests.asked import asked
from triosim.partition.transfers import COLLECTIVES
from triosim.prediction.prepare import CompiledJob, prepare
from triosim.trace.calls import calls_of
from triosim.trace.tables import Phase
from triosim.transform.rescale import attention_heads, key_head_copies, with_copied_key_heads

LAYERS, LENGTH, WIDTH, HEAD, BF16 = 2, 256, 2048, 64, 2  # of Llama 3.2 1B, with 32 heads, 8 of keys
SMALL = {"num_hidden_layers": LAYERS}
SYSTEM = triosim.system("dgx-h100", nodes=2)


def _trace(**options):
    return triosim.model("llama-3.2-1b", sequence_length=LENGTH, configuration=SMALL, **options)


def _job(trace, tp: int, **plan) -> CompiledJob:
    return prepare(trace, SYSTEM, *asked(tp=tp, dp=16 // tp, host="none", **plan))


@pytest.mark.parametrize("name", ["llama-3.2-1b", "qwen3-0.6b", "gemma-2-9b"])
@pytest.mark.parametrize(
    "options", [{}, {"joined_products": True}, {"repeated_heads": True}, {"attention": "unfused"}, {"fused": True}]
)
def test_copies_make_the_model_that_has_as_many(name: str, options: dict) -> None:
    """Row for row what the model with so many heads is."""
    few = triosim.model(name, sequence_length=LENGTH, configuration=SMALL, **options)
    queries, keys = attention_heads(few) or (0, 0)
    assert queries > keys > 0
    many = triosim.model(
        name, sequence_length=LENGTH, configuration={**SMALL, "num_key_value_heads": queries}, **options
    )
    if len(many) != len(few):  # heads that are as many need no repetition
        queries //= 2
        many = triosim.model(
            name, sequence_length=LENGTH, configuration={**SMALL, "num_key_value_heads": queries}, **options
        )
    made = with_copied_key_heads(few, queries)
    assert key_head_copies(few, queries) == queries // keys
    assert made.values.shape.lists() == many.values.shape.lists()
    assert np.array_equal(made.operators.flop, many.operators.flop, equal_nan=True)
    assert np.array_equal(made.operators.bytes, many.operators.bytes)


@pytest.mark.parametrize(("ranks", "copies"), [(4, 1), (8, 1), (12, 1), (16, 2), (32, 4), (64, 1)])
def test_where_heads_are_copied(ranks: int, copies: int) -> None:
    assert key_head_copies(_trace(), ranks) == copies


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("plan", [{}, {"parallelism": ("sequence",)}, {"recompute": "full"}])
def test_gradients_are_summed_among_copies_and_nothing_more_is_sent(joined: bool, plan: dict) -> None:
    job, fewer = (_job(_trace(joined_products=joined), tp, **plan) for tp in (16, 8))

    def sent(job: CompiledJob, axis: str) -> Counter:
        rows = zip(job.step.transfers.axis, job.step.transfers.what, job.step.transfers.bytes.tolist(), strict=True)
        return Counter((COLLECTIVES[what], n) for at, what, n in rows if job.mesh.names[at] == axis)

    head = WIDTH * HEAD * BF16
    assert sent(job, "tp_copies") == (
        {("all_reduce", 2 * head): LAYERS} if joined else {("all_reduce", head): 2 * LAYERS}
    )
    assert sent(job, "tp") == sent(fewer, "tp")  # as with 8 ranks
    assert job.mesh.groups("tp_copies")[0] == [0, 1]


def test_a_rank_has_a_head_of_its_own() -> None:
    job = _job(_trace(), 16)
    calls, shapes = calls_of(job.step.trace), job.step.trace.values.shape.lists()
    rows = [row for row in range(len(job.step.trace)) if calls[row].kind == "attention"]
    assert {(calls[row].shape("query")[1], calls[row].shape("key")[1]) for row in rows} == {(2, 1)}
    names = job.step.trace.values.name
    assert {tuple(shapes[v]) for v, name in enumerate(names) if name.endswith("k_proj.weight")} == {(HEAD, WIDTH)}


@pytest.mark.parametrize("plan", [{"zero": 1}, {"pp": 2, "micro_batches": 4}, {"zero": 3}])
def test_with_other_ways(plan: dict) -> None:
    found = triosim.simulate(
        _trace(batch_size=4), triosim.system("dgx-h100", nodes=4), *asked(tp=16, host="none", **plan)
    )
    sums = [row for row in found.collectives if row.axis == "tp_copies"]
    assert sum(row.count for row in sums) == 2 * LAYERS // plan.get("pp", 1) * plan.get("pp", 1)
    assert found.iteration_time_s > 0


def test_one_step_of_inference_sends_nothing_for_copies() -> None:
    job = _job(_trace(training=False), 16, training=False)
    assert "tp_copies" not in {job.mesh.names[at] for at in job.step.transfers.axis}
    assert Phase.BACKWARD not in set(job.step.trace.operators.phase.tolist())
