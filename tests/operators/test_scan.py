"""Scans that keep a state, their convolutions and gated norms: work by hand, and what may be divided."""

from __future__ import annotations

import pytest

import triosim
from triosim.operators import Call, canonical, dims, flop, kind, problem, repeated, results, work
from triosim.trace.calls import calls_of

SMALL = {
    "mamba2": {
        "hidden_size": 64, "num_hidden_layers": 1, "num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2,
        "vocab_size": 120, "chunk_size": 8,
    },
    "qwen3_next": {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 32,
        "num_key_value_heads": 2, "vocab_size": 120, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 16, "linear_value_head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 48, "shared_expert_intermediate_size": 32,
    },
}  # fmt: skip
KINDS = ("scan", "causal-convolution", "gated-norm")


def calls(family: str, **options: object) -> list[Call]:
    configuration = {**SMALL[family], **options.pop("configuration", {})}
    trace = triosim.model(family, batch_size=2, sequence_length=64, configuration=configuration, **options)
    return [call for call in calls_of(trace).unique if call.kind in KINDS]


@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize("fused", [False, True])
def test_results_follow_from_what_is_read(family, fused):
    found = calls(family, fused=fused)
    assert {"scan"} < {call.kind for call in found} or not fused
    for call in found:
        made = results(call)
        assert [(tuple(one.shape), one.dtype) for one in made] == list(
            zip(call.outputs, call.output_dtypes, strict=True)
        )
        assert dims(call).known
        assert problem(call) == ""


def test_work_of_mamba_by_hand():
    (forward,) = [call for call in calls("mamba2") if not call.backward]
    tokens, pairs = 2 * 64, 4.5  # of eight tokens a token sees 1, 2, ... 8
    window = 4 * (8 * 16 + 2 * 2 * 16)
    once = 2 * tokens * (2 * 16 * pairs + 8 * 16 * pairs + 2 * 8 * 16 * 16 + window)
    assert flop(forward) == once
    assert work(forward)[:8] == (2, 64, 8, 2, 16, 16, 8, 4)
    (backward,) = [call for call in calls("mamba2") if call.backward]
    again = once - 2 * tokens * 8 * 16 * 16  # all but the results from states
    assert (flop(backward), repeated(backward)) == (2 * once + again, again)


def test_work_of_the_delta_rule_by_hand():
    (forward,) = [call for call in calls("qwen3_next") if call.kind == "scan" and not call.backward]
    tokens, pairs = 2 * 64, 32.5
    assert flop(forward) == 2 * tokens * 4 * (3 * 16 * 32 + pairs * (3 * 16 + 2 * 32) + 64**2 / 6)
    assert work(forward)[:8] == (2, 64, 4, 2, 16, 32, 64, 0)


def test_a_head_of_which_all_others_need_the_key_is_not_divided():
    for groups, whole in ((2, False), (1, True)):
        for call in calls("mamba2", configuration={"n_groups": groups}):
            found = dims(call)
            assert (found.label("h") in found.whole) == whole
            assert found.label("l") in found.whole


def test_what_is_missing_is_a_sentence():
    def call(roles, shapes, **args):
        name = "mamba_ssm::split_conv1d_scan_combined"
        return Call(canonical(name)[0], False, kind(name), roles, shapes, (), args, name)

    roles, shapes = ("zxbcdt", "conv1d_weight", "A_log"), ((2, 64, 328), (192, 1, 4), (8,))
    good = {"chunk_size": 8, "head_size": 16, "state_size": 16}
    assert problem(call(roles, shapes, **good)) == ""
    assert "how long its chunks are" in problem(call(roles, shapes))
    assert "no channels of heads of 16 and groups of 24" in problem(call(roles, shapes, **{**good, "state_size": 24}))
    assert "A_log" in problem(call(roles[:2], shapes[:2], **good))


def test_convolution_and_norm_by_hand():
    convolution = next(call for call in calls("qwen3_next") if call.kind == "causal-convolution" and not call.backward)
    channels = 2 * 2 * 16 + 4 * 32
    assert flop(convolution) == 2 * 2 * 64 * channels * 4
    norm = next(call for call in calls("mamba2", fused=True) if call.kind == "gated-norm" and not call.backward)
    assert norm.outputs == ((2, 64, 128), (2, 64, 2))
