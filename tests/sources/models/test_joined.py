"""One product for queries, keys and values, and one for gate and up, as Megatron and its kin have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import triosim
from triosim.stacks import load
from triosim.trace.tables import Phase, Trace, check


def _model(name: str, **more: Any) -> Trace:
    return triosim.model(name, sequence_length=256, configuration={"num_hidden_layers": 2}, **more)


def _products(trace: Trace, phase: Phase) -> int:
    rows = np.flatnonzero(trace.operators.phase == phase)
    return sum(trace.operators.name[row] in ("aten::mm", "aten::linear", "aten::addmm") for row in rows)


@pytest.mark.parametrize("name", ["llama-3-8b", "qwen3-8b", "gpt-oss-20b"])
@pytest.mark.parametrize("fused", [False, True])
def test_joined_products_do_the_same_work_in_fewer_products(name: str, fused: bool) -> None:
    apart, joined = (_model(name, fused=fused, joined_products=j) for j in (False, True))
    check(joined)
    gate = 0 if name == "gpt-oss-20b" else 1  # its experts are joined as they are
    assert _products(apart, Phase.FORWARD) - _products(joined, Phase.FORWARD) == 2 * (2 + gate)
    assert _products(apart, Phase.BACKWARD) - _products(joined, Phase.BACKWARD) == 2 * 2 * (2 + gate)
    assert np.nansum(joined.operators.flop) == np.nansum(apart.operators.flop)


def test_norms_of_heads_stay() -> None:
    apart, joined = (_model("qwen3-8b", joined_products=j).operators.name for j in (False, True))
    assert joined.count("aten::_fused_rms_norm") == apart.count("aten::_fused_rms_norm")


@pytest.mark.parametrize("name", ["gpt2", "phi-4", "olmo-2-7b"])
def test_what_is_joined_or_normed_as_a_whole_stays(name: str) -> None:
    """OLMo 2 norms all heads of queries at once, which is done to no part of a product."""
    field = {"n_layer": 2} if name == "gpt2" else {"num_hidden_layers": 2}
    apart, joined = (
        triosim.model(name, sequence_length=256, configuration=field, joined_products=j) for j in (False, True)
    )
    fewer = _products(apart, Phase.FORWARD) - _products(joined, Phase.FORWARD)
    assert fewer == (2 if name == "olmo-2-7b" else 0)  # gate and up of two blocks


@pytest.mark.parametrize("tp", [2, 4])
def test_ranks_divide_a_joined_product_as_they_divide_its_parts(tp: int) -> None:
    """Keys and values have a quarter of the heads of queries: the parts of the product are not equal."""
    results = [
        triosim.simulate(
            _model("llama-3-8b", fused=True, joined_products=joined), triosim.system("dgx-h100"),
            triosim.Plan(tp=tp, dp=1, idle_ok=True),
        )
        for joined in (False, True)
    ]  # fmt: skip
    sent = [[(row.kind, row.bytes, row.count) for row in result.collectives] for result in results]
    assert sent[0] == sent[1]
    apart, joined = (result.iteration_time_s for result in results)
    assert 0.9 * apart < joined < apart


def test_a_gate_that_is_joined_writes_its_gradient_in_one_piece() -> None:
    trace = _model("llama-3-8b", fused=True, joined_products=True)
    rows = [row for row, name in enumerate(trace.operators.name) if name == "aten::cat"]
    copies = [row for row in rows if not trace.operators.view[row]]
    assert len(rows) == 2 * 2 + 1  # gradients of both products in each block, and the angles of positions
    assert len(copies) == 2 + 1


def test_stacks_on_megatron_join() -> None:
    assert load("megatron-core").joined_products
    assert not load("torchtitan").joined_products
