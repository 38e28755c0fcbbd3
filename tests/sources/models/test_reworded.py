"""Configurations of Hugging Face that say in tables and lists of their own what other files say by plain keys."""

from __future__ import annotations

import json

import pytest

from triosim.core.errors import InputError
from triosim.sources.modelling import configured, from_file

MPT = {"model_type": "mpt", "d_model": 64, "n_layers": 2, "n_heads": 4, "no_bias": True}
NEO = {"model_type": "gpt_neo", "hidden_size": 64, "num_layers": 2, "num_heads": 4}
EXAONE = {
    "model_type": "exaone4", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "vocab_size": 50,
}  # fmt: skip


@pytest.fixture
def written(tmp_path):
    def write(table):
        file = tmp_path / "config.json"
        file.write_text(json.dumps(table))
        return str(file)

    return write


def test_of_attention(written):
    inner = {"attn_type": "multihead_attention", "clip_qkv": 6, "alibi": True, "softmax_scale": None}
    found = configured(written({**MPT, "attn_config": inner}))
    assert found.clamped
    assert not configured(written({**MPT, "attn_config": {"clip_qkv": None}})).clamped
    with pytest.raises(InputError, match="alibi false is not supported"):
        configured(written({**MPT, "attn_config": {"alibi": False}}))


def test_of_experts(written):
    own = {"d_model": 64, "n_layers": 2, "n_heads": 4}
    experts = {"model_type": "", "ffn_hidden_size": 48, "moe_num_experts": 8, "moe_top_k": 2, "moe_jitter_eps": 0.01}
    attention = {"model_type": "", "kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 5e5}
    file = written({"model_type": "dbrx", **own, "attn_config": attention, "ffn_config": experts})
    found = configured(file)
    assert (found.kv_n_heads, found.clamped, found.moe_num_experts, found.ffn_hidden_size) == (2, True, 8, 48)
    assert from_file(file).meta.notes == (f"{file}: passed over rope_theta, moe_jitter_eps",)


@pytest.mark.parametrize("key", ["attention_types", "attention_layers"])
def test_which_layers_see_the_last_tokens_alone(written, key):
    usual = {"attention_types": [[["global", "local"], 1]], "attention_layers": ["global", "local"]}
    assert configured(written({**NEO, key: usual[key]})).attention(1).window == 256
    other = {"attention_types": [[["global"], 2]], "attention_layers": ["global", "global"]}
    with pytest.raises(InputError, match=r"layer_types.1. is 'full_attention', but in this family that layer sees a w"):
        configured(written({**NEO, key: other[key]}))
    with pytest.raises(InputError, match=r"layer_types.1. 'near' is not supported"):
        configured(written({**NEO, "attention_layers": ["global", "near"]}))


def test_a_pattern_of_letters(written):
    found = configured(written({**EXAONE, "sliding_window": 8, "sliding_window_pattern": "LLLG"}))
    assert [found.attention(layer).window for layer in range(4)] == [8, 8, 8, 0]
    assert [found.attention(layer).rotated for layer in range(4)] == [True, True, True, False]
    whole = configured(written({**EXAONE, "sliding_window": None, "sliding_window_pattern": None}))
    assert {(whole.attention(layer).window, whole.attention(layer).rotated) for layer in range(4)} == {(0, True)}
    assert configured(written(EXAONE)).attention(0).window == 4096
    with pytest.raises(InputError, match="sliding_window_pattern must be a whole number"):
        configured(written({**EXAONE, "sliding_window_pattern": "LG" * 2}))
