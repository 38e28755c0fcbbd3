"""Attention whose scores and probabilities are tensors of their own."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import triosim
from tests.partition.divided import divided
from triosim.operators import canonical, kind
from triosim.trace.tables import Phase, check
from triosim.transform.rescale import rescale

SIZES = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128, "n_positions": 32, "attn_pdrop": 0.1}


def _gpt(**more):
    return triosim.model("gpt", batch_size=3, precision="float16", configuration={**SIZES, **more})


def _calls(trace, phase: Phase) -> Counter:
    operators = trace.operators
    rows = np.flatnonzero((operators.phase == phase) & ~operators.view).tolist()
    return Counter(canonical(operators.name[row])[0] for row in rows)


def test_two_products_and_a_softmax_forward_four_and_one_backward() -> None:
    trace = _gpt(unfused_attention=True)
    check(trace)
    forward, backward = _calls(trace, Phase.FORWARD), _calls(trace, Phase.BACKWARD)
    assert (forward["bmm"], forward["softmax"] + forward["_softmax"]) == (2 * 2, 2)
    assert backward["bmm"] == 2 * 4
    assert not any("attention" in name for name in trace.operators.name)


def test_the_products_have_the_work_of_full_attention() -> None:
    trace = _gpt(unfused_attention=True)
    products = [row for row, name in enumerate(trace.operators.name) if kind(name) == "matmul"]
    one = 2 * 3 * 4 * 32 * 32 * 16  # samples, heads, queries, keys, size of a head
    assert trace.operators.flop[products].tolist() == pytest.approx([one] * (2 * 2 + 2 * 4))


def test_scores_are_kept_for_the_backward() -> None:
    def largest(trace) -> int:
        return int(trace.values.bytes()[trace.values.category == 4].max())

    scores = 3 * 4 * 32 * 32 * 2
    assert largest(_gpt(unfused_attention=True, vocab_size=16)) == max(scores, 3 * 32 * 256 * 2)
    long = {"n_positions": 256, "vocab_size": 16}
    assert largest(_gpt(unfused_attention=True, **long)) == 3 * 4 * 256 * 256 * 2


def test_without_the_fused_softmax_scaling_and_masking_are_operators() -> None:
    fused, spelled = (_calls(_gpt(unfused_attention=True, fused_softmax=f), Phase.FORWARD) for f in (True, False))
    more = spelled - fused
    assert more["masked_fill"] == more["triu"] == more["mul"] == 2
    assert more["to_copy"] + more["_to_copy"] == 2 * 2
    check(_gpt(unfused_attention=True, fused_softmax=False))


@pytest.mark.parametrize("fused_softmax", [True, False])
def test_tensor_parallel_divides_the_heads(fused_softmax) -> None:
    trace = _gpt(unfused_attention=True, fused_softmax=fused_softmax)
    step = divided(trace, 2, "megatron", None, vocabulary=True)
    products = [row for row, name in enumerate(trace.operators.name) if kind(name) == "matmul"]
    assert step.trace.operators.flop[products].tolist() == (trace.operators.flop[products] / 2).tolist()
    plain = divided(_gpt(), 2, "megatron", None, vocabulary=True)
    assert len(step.transfers) == len(plain.transfers)
    assert sorted(step.transfers.bytes.tolist()) == sorted(plain.transfers.bytes.tolist())


BERT = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256, "vocab_size": 128,
    "max_position_embeddings": 32,
}  # fmt: skip


def _bert(batch: int = 3, **more):
    return triosim.model("bert", batch_size=batch, precision="float16", attention="unfused", configuration=BERT, **more)


def test_biases_are_added_and_heads_copied_where_a_stack_says_so() -> None:
    plain, eager = _bert(), _bert(added_biases=True, copied_heads=True, fused_softmax=False)
    check(eager)
    more, less = (
        {phase: _calls(a, phase) - _calls(b, phase) for phase in (Phase.FORWARD, Phase.BACKWARD)}
        for a, b in ((eager, plain), (plain, eager))
    )
    products = 2 * 6 + 2  # six linear layers a block, two that score
    assert less[Phase.FORWARD] == Counter(addmm=products)
    assert more[Phase.FORWARD] == Counter(mm=products, add=products + 2, clone=2 * 3, div=2)
    assert more[Phase.BACKWARD] == Counter(clone=2 * 4, div=2)
    assert not less[Phase.BACKWARD]
    assert eager.operators.bytes.sum() > 1.1 * plain.operators.bytes.sum()


def test_scores_follow_the_batch_where_the_mask_is_added() -> None:
    options = {"added_biases": True, "copied_heads": True, "fused_softmax": False}
    assert rescale(_bert(2, **options), 5).operators.bytes.tolist() == _bert(5, **options).operators.bytes.tolist()


def test_tensor_parallel_reduces_before_a_bias_is_added() -> None:
    plain, eager = (
        divided(_bert(**more), 2, "megatron", None, vocabulary=True)
        for more in ({}, {"added_biases": True, "copied_heads": True, "fused_softmax": False})
    )
    assert sorted(eager.transfers.bytes.tolist()) == sorted(plain.transfers.bytes.tolist())
