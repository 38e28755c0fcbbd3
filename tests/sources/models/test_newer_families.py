"""Families of 2025 and 2026: published counts of parameters, what files say otherwise, and what is refused."""

from __future__ import annotations

import json

import pytest

from triosim.core.errors import InputError
from triosim.sources.modelling import configured
from triosim.sources.models.kimi_linear import KimiLinear

SMALL = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 120,
}  # fmt: skip
INDEXED = {
    **SMALL, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
}  # fmt: skip
PUBLISHED = {
    "lfm2_moe": (
        8.3e9,
        {"hidden_size": 2048, "intermediate_size": 7168, "num_hidden_layers": 24, "num_attention_heads": 32,
         "num_key_value_heads": 8, "vocab_size": 65536,
         "layer_types": ["full_attention" if at in (2, 6, 10, 14, 18, 21) else "conv" for at in range(24)]},
    ),
    "minimax": (
        456e9,
        {"hidden_size": 6144, "intermediate_size": 9216, "num_hidden_layers": 80, "num_attention_heads": 64,
         "num_key_value_heads": 8, "head_dim": 128, "num_local_experts": 32, "vocab_size": 200064,
         "attn_type_list": [int(at % 8 == 7) for at in range(80)]},
    ),
    "deepseek_v32": (
        671e9,
        {"hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61, "num_attention_heads": 128,
         "vocab_size": 129280},
    ),
    "glm_moe_dsa": (
        744e9,
        {"hidden_size": 6144, "intermediate_size": 12288, "num_hidden_layers": 78, "num_attention_heads": 64,
         "vocab_size": 154880, "n_group": 1, "topk_group": 1},
    ),
    "cwm": (
        32e9,
        {"hidden_size": 6144, "intermediate_size": 21504, "num_hidden_layers": 64, "num_attention_heads": 48,
         "num_key_value_heads": 8, "vocab_size": 128256},
    ),
    "longcat_flash": (
        560e9,
        {"hidden_size": 6144, "ffn_hidden_size": 12288, "num_layers": 28, "num_hidden_layers": 56,
         "num_attention_heads": 64, "vocab_size": 131072},
    ),
    "modernbert": (
        149e6,
        {"hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22, "num_attention_heads": 12,
         "vocab_size": 50368},
    ),
    "youtu": (
        1.96e9,
        {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 32, "num_attention_heads": 16,
         "vocab_size": 128256},
    ),
}  # fmt: skip


def of_hub(folder, model_type, **table):
    file = folder / "config.json"
    file.write_text(json.dumps({"model_type": model_type, **table}))
    return file


@pytest.mark.parametrize("model_type", PUBLISHED)
def test_published_counts(model_type, tmp_path):
    count, configuration = PUBLISHED[model_type]
    found = configured(of_hub(tmp_path, model_type, **configuration)).weights().count()
    assert found == pytest.approx(count, rel=0.02)


def test_blocks_of_kimi_are_counted_from_one(tmp_path):
    own = {"full_attn_layers": [4], "kda_layers": [1, 2, 3], "head_dim": 16, "num_heads": 2}
    family = configured(of_hub(tmp_path, "kimi_linear", **SMALL, num_experts=8, linear_attn_config=own))
    assert isinstance(family, KimiLinear)
    assert [family.sees_all(layer) for layer in range(4)] == [False] * 3 + [True]
    assert (family.linear_head_dim, family.linear_num_heads) == (16, 2)


@pytest.mark.parametrize(
    ("more", "shared"),
    [
        ({}, ()),
        ({"index_topk_freq": 2}, (2,)),
        ({"index_topk_pattern": "FSSF"}, (1, 2)),
        ({"indexer_types": ["full", "shared", "full", "shared"]}, (1, 3)),
    ],
)
def test_blocks_of_glm_share_a_choice(more, shared, tmp_path):
    assert configured(of_hub(tmp_path, "glm_moe_dsa", **INDEXED, **more)).sharing == shared


@pytest.mark.parametrize(
    ("model_type", "table", "words"),
    [
        ("minimax", {**SMALL, "layer_types": ["conv"] * 4}, "layer_types has conv, which none of its blocks is"),
        (
            "kimi_linear",
            {**SMALL, "linear_attn_config": {"full_attn_layers": [9]}},
            "full_attn_layers has block 8 of 4",
        ),
        ("glm_moe_dsa", {**INDEXED, "index_topk_pattern": "SFFF"}, "the first block has no choice to share"),
        ("deepseek_v32", {**INDEXED, "index_head_dim": 4}, "qk_rope_head_dim 8 is more than the 4 of index_head_dim"),
        ("apertus", {**SMALL, "hidden_act": "silu"}, 'hidden_act "silu" is not supported, only "xielu"'),
        (
            "gemma4_text",
            {**SMALL, "num_kv_shared_layers": 3, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]},
            "num_kv_shared_layers 3 leaves no block that makes keys for 3",
        ),
        ("gemma4_text", {**SMALL, "enable_moe_block": True}, "enable_moe_block also needs num_experts"),
        ("gemma3n_text", {**SMALL, "altup_active_idx": 4}, "altup_active_idx 4 is not one of 4 streams"),
        ("zamba2", {**SMALL, "layers_block_type": ["hybrid"]}, "must be a list of the 4 blocks"),
        ("cohere2_moe", {**SMALL, "expert_selection_fn": "best"}, "expert_selection_fn is softmax or sigmoid"),
        ("lfm2_moe", {**SMALL, "num_experts_per_tok": 64}, "a token takes 64 of 32 experts"),
    ],
)
def test_what_is_not_built_is_refused(model_type, table, words, tmp_path):
    with pytest.raises(InputError, match=words):
        configured(of_hub(tmp_path, model_type, **table))


def test_scores_of_an_indexer_grow_with_the_square_of_the_sequence(tmp_path):
    from triosim.sources.modelling import from_file

    file = of_hub(tmp_path, "deepseek_v32", **INDEXED, index_topk=8, index_head_dim=16, index_n_heads=2)
    flop = []
    for length in (64, 128):
        operators = from_file(file, sequence_length=length).operators
        flop.append(sum(float(f) for name, f in zip(operators.name, operators.flop, strict=True) if "mqa" in name))
    assert flop[1] / flop[0] == pytest.approx(4, rel=0.02)


def test_every_token_sees_a_window_to_either_side(tmp_path):
    """Of n tokens, w before and w after: n (2 w + 1) pairs less w (w + 1) that the ends lack."""
    from triosim.sources.modelling import from_file

    length, window = 64, 8
    file = of_hub(tmp_path, "modernbert", **SMALL, local_attention=2 * window)
    operators = from_file(file, sequence_length=length, training=False).operators
    flop = [float(f) for name, f in zip(operators.name, operators.flop, strict=True) if "attention" in name]
    pairs = length * (2 * window + 1) - window * (window + 1)
    assert flop == pytest.approx([64 * 4 * n for n in (length**2, pairs, pairs, length**2)])
