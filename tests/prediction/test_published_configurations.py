"""Llama 3 405B on 16,384 H100 and DeepSeek-V3 on 2,048 H800 as they were trained: what is sent, in which groups.

Every expected figure is worked out from the published sizes: Grattafiori et al., arXiv:2407.21783, table 4 and section
3.3.2; DeepSeek-AI, arXiv:2412.19437, sections 3.2 and 4.2.
"""

from __future__ import annotations

from collections import Counter

import pytest

import triosim
from triosim import Plan

BF16 = 2


def _sent(result: triosim.Result) -> dict[tuple[str, str, int], Counter]:
    """Axis, kind and ranks of a group -> bytes of a call -> how often."""
    found: dict[tuple[str, str, int], Counter] = {}
    for row in result.collectives:
        found.setdefault((row.axis, row.kind, row.group_size), Counter())[row.bytes] += row.count
    return found


WIDTH, LAYERS, KEYS, INNER, VOCABULARY = 16384, 126, 1024, 53248, 128256
TP, PP, RANKS, MICRO_BATCHES, CHUNKS = 8, 16, 16384, 16, 2


@pytest.mark.parametrize(("cp", "length"), [(1, 8192), (16, 131072)])
def test_llama_3_405b(cp: int, length: int) -> None:
    """16 samples a replica, one at a time; sequences, states and gradients are divided as in the paper."""
    replicas = RANKS // TP // PP // cp
    plan = Plan(
        tp=TP, pp=PP, cp=cp, zero=1, parallelism=("sequence",), schedule="interleaved-1f1b",
        schedule_options={"chunks": CHUNKS}, global_batch_size=replicas * MICRO_BATCHES, micro_batches=MICRO_BATCHES,
    )  # fmt: skip
    trace = triosim.model("llama-3.1-405b", sequence_length=length)
    sent = _sent(triosim.simulate(trace, triosim.system("dgx-h100", nodes=RANKS // 8), plan))
    tokens = length // cp
    stream = tokens * WIDTH * BF16
    # a block: two gathers and two scatters forward; backward as many, and its products' inputs gathered again.
    # embedding: a scatter, gathered back; output layer: a gather, again for its weight, and a scatter
    assert sent["tp", "all_gather", TP] == {stream: MICRO_BATCHES * (6 * LAYERS + 3)}
    assert sent["tp", "reduce_scatter", TP] == {stream: MICRO_BATCHES * (4 * LAYERS + 2)}
    boundaries = PP * CHUNKS - 1
    assert sent["pp", "send", 2] == {stream // TP: 2 * boundaries * MICRO_BATCHES}
    norms = (2 * LAYERS + 1) * WIDTH
    divided = LAYERS * WIDTH * (2 * WIDTH + 2 * KEYS + 3 * INNER) + 2 * VOCABULARY * WIDTH
    of_a_rank = BF16 * (divided // TP + norms)
    shards = "dp" if cp == 1 else "dp_cp"
    for kind in ("reduce_scatter", "all_gather"):
        calls = sent[shards, kind, replicas * cp]
        assert sum(size * count for size, count in calls.items()) == of_a_rank
    kinds = {key[:2] for key in sent} - {("tp", "all_reduce")}  # of norms' gradients, and of the loss
    expected = {("pp", "send")}
    expected |= {(axis, kind) for axis in ("tp", shards) for kind in ("all_gather", "reduce_scatter")}
    if cp > 1:
        keys = length * KEYS // TP * BF16  # of all ranks of the sequence together; values are as many
        for kind in ("all_gather", "reduce_scatter"):
            assert sent["cp", kind, cp] == {keys: 2 * LAYERS * MICRO_BATCHES}
            expected.add(("cp", kind))
    assert kinds == expected


def test_deepseek_v3() -> None:
    """Of the 120 micro-batches of a replica as many as fill the pipeline twice: what travels is the same in each."""
    width, experts, per_token, dense, blocks, length, m = 7168, 256, 8, 3, 61, 4096, 32
    ep, replicas = 64, 2048 // PP
    plan = Plan(
        pp=PP, ep=ep, zero=1, schedule="dualpipe", quantize="fp8-block", global_batch_size=replicas * m,
        micro_batches=m,
    )  # fmt: skip
    trace = triosim.model("deepseek-v3-mtp", sequence_length=length)
    sent = _sent(triosim.simulate(trace, triosim.system("hgx-h800", nodes=256), plan))
    layers = blocks - dense + 1  # one more predicts the token after the next
    rows = length * per_token * width * BF16  # out and back, forward and backward
    assert sent["ep", "all_to_all", ep] == {rows: 4 * layers * m}
    weights = trace.weights()
    elements, names = trace.values.elements(), trace.values.name
    of_experts = {value for value in weights.tolist() if ".experts." in names[value]}
    assert sum(int(elements[value]) for value in of_experts) == layers * experts * 3 * width * 2048
    rest = sum(int(elements[value]) for value in weights.tolist()) - sum(int(elements[v]) for v in of_experts)
    for kind in ("reduce_scatter", "all_gather"):
        # DualPipe has each stage twice
        own = sum(size * count for size, count in sent["edp", kind, replicas // ep].items())
        assert own == 2 * BF16 * layers * experts // ep * 3 * width * 2048
        shared = sum(size * count for size, count in sent["dp", kind, replicas].items())
        assert shared == pytest.approx(2 * BF16 * rest, rel=1e-3)  # rows that do not divide are padded
    assert {key[:2] for key in sent} == {
        ("ep", "all_to_all"), ("pp", "send"), ("edp", "reduce_scatter"), ("edp", "all_gather"),
        ("dp", "reduce_scatter"), ("dp", "all_gather"),
    }  # fmt: skip
