"""Experts as Megatron-Core runs them: one kernel each for permuting, weighing with the activation and adding up."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
import pytest

import triosim
from triosim.composition.captured import offsets_of_gates
from triosim.composition.host import further_kernels
from triosim.hardware.cluster import device_of
from triosim.kernels.classes import classify
from triosim.stacks import load
from triosim.trace.tables import DTYPES, Phase, Trace

SMALL = {
    "mixtral": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                "num_key_value_heads": 2, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 128},
    "deepseek_v3": {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 3,
                    "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 16,
                    "qk_nope_head_dim": 16,
                    "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 2,
                    "n_group": 2, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1,
                    "vocab_size": 128},
    "gpt_oss": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 8, "num_experts_per_tok": 2,
                "vocab_size": 128},
}  # fmt: skip
LAYERS = {"mixtral": 2, "deepseek_v3": 2, "gpt_oss": 2}
ROWS, TOKENS = 4 * 32 * 2, 4 * 32


def made(family: str, fused: bool) -> Trace:
    return triosim.model(family, batch_size=4, sequence_length=32, configuration=SMALL[family], fused=fused)


@pytest.mark.parametrize("family", SMALL)
def test_a_kernel_each_for_what_is_done_to_rows(family: str) -> None:
    trace = made(family, True)
    o, shapes = trace.operators, trace.values.shape.lists()
    count = Counter(
        (o.name[row].removeprefix("transformer_engine::"), Phase(int(o.phase[row]))) for row in range(len(trace))
    )
    swiglu = "clamped_swiglu" if family == "gpt_oss" else "swiglu"
    for name in ("moe_permute", "moe_unpermute"):
        assert count[name, Phase.FORWARD] == LAYERS[family]
        assert count[f"{name}_backward", Phase.BACKWARD] == LAYERS[family]
    inputs, outputs = o.inputs.lists(), o.outputs.lists()
    weighed = 0
    for row, name in enumerate(o.name):
        if name.endswith("moe_permute"):
            assert [tuple(shapes[v]) for v in outputs[row]] == [(ROWS, 64), (ROWS,), (ROWS, 1)]
        if name.endswith("moe_permute_backward"):
            assert [tuple(shapes[v]) for v in outputs[row]] == [(TOKENS, 64), (TOKENS, 2)]
        if name.endswith("moe_unpermute"):
            assert [tuple(shapes[v]) for v in outputs[row]] == [(TOKENS, 64)]
        if name.endswith(f"::{swiglu}"):
            weighed += tuple(shapes[inputs[row][-1]]) == (ROWS, 1)
    assert weighed == LAYERS[family]
    assert not any(name in ("aten::sort", "aten::index_put_") for name in o.name)


@pytest.mark.parametrize("family", SMALL)
def test_weights_and_products_are_those_of_the_unfused_model(family: str) -> None:
    fused, plain = made(family, True), made(family, False)
    assert fused.weights().size == plain.weights().size

    def products(trace: Trace) -> float:
        o = trace.operators
        rows = [row for row, name in enumerate(o.name) if name.split("::")[1] in ("mm", "addmm", "_grouped_mm")]
        return float(np.nansum(o.flop[rows]))

    assert products(fused) == products(plain)
    moved = [
        float(sum(t.operators.bytes[row] for row in range(len(t)) if not t.operators.view[row])) for t in (fused, plain)
    ]
    assert moved[0] < moved[1]


@pytest.mark.parametrize("family", SMALL)
def test_as_many_bytes_travel_to_experts(family: str) -> None:
    sent = []
    for fused in (True, False):
        plan = triosim.Plan(parallelism=("experts",), parallelism_options={"ep": 4})
        result = triosim.simulate(made(family, fused), triosim.system("dgx-h100"), plan)
        sent.append({row.kind: row.bytes for row in result.collectives if row.kind == "all_to_all"})
    assert sent[0] == sent[1]
    assert sent[0]


def test_a_router_multiplies_16_bits_forward_and_tf32_backward() -> None:
    trace = made("deepseek_v3", True)
    known = classify(trace, device_of("H100-SXM5-80GB"))
    types = {
        (int(trace.operators.phase[row]), DTYPES[known.dtype[row]])
        for row, name in enumerate(trace.operators.name)
        if name == "transformer_engine::mm"
    }
    assert types == {(int(Phase.FORWARD), "bfloat16"), (int(Phase.BACKWARD), "tfloat32")}


def test_biases_of_experts_that_are_gone_through_one_by_one() -> None:
    """GPT-OSS in Megatron-Core: no kernel adds the first bias; the second is weighed in float32 and added, joined and
    cast; limits are two kernels, joined before the activation (``experts.py``, ``fused_bias_geglu.py``)."""
    made = partial(triosim.model, "gpt_oss", batch_size=4, sequence_length=32, configuration=SMALL["gpt_oss"])
    trace = made(fused=True, one_by_one=True)
    o, values = trace.operators, trace.values
    experts = [
        row for row, name in enumerate(o.name) if o.phase[row] == Phase.FORWARD and not o.view[row]
        and trace.modules.path[o.module[row]].endswith("layers.0.mlp.experts")
    ]  # fmt: skip
    names = [o.name[row].partition("::")[2] for row in experts]
    at = names.index("_grouped_mm")
    assert names[at:] == [
        "_grouped_mm", "clamp", "clamp", "cat", "clamped_swiglu", "_grouped_mm", "index", "add", "cat", "_to_copy",
        "moe_unpermute",
    ]  # fmt: skip
    wide = [DTYPES[values.dtype[o.outputs[row][0]]] for row in experts[at + 6 : at + 9]]
    assert wide == ["float32"] * 3
    assert made(fused=True).operators.name == made(fused=True, one_by_one=False).operators.name


def test_every_expert_launches_the_sum_of_its_bias() -> None:
    """Four of eight experts' kernels are beyond the first, and the host waits before the activation."""
    stack = load("megatron-core")
    trace = triosim.model("gpt_oss", batch_size=4, sequence_length=32, configuration=SMALL["gpt_oss"],
                          precision="bfloat16", **stack.model_options)  # fmt: skip
    more = further_kernels(trace)
    each = [row for row, name in enumerate(trace.operators.name) if name.startswith("each_expert::")]
    assert len(each) == LAYERS["gpt_oss"] * (2 + 5)
    assert more[each].tolist() == [7.0] * len(each)
    waits = offsets_of_gates(trace)
    assert [trace.operators.name[row + 1] for row in waits] == ["aten::split_with_sizes"] * LAYERS["gpt_oss"]
