"""Hybrid decoders: what stays for the backward, patterns of blocks, and what is refused."""

from __future__ import annotations

import json

import pytest

import triosim
from tests.operators.test_scan import SMALL
from tests.sources.models.test_against_torch import bytes_of
from triosim.core.errors import InputError
from triosim.serving.model import served_model
from triosim.sources.modelling import configured, from_file
from triosim.trace.tables import Category, Phase

TOKENS, WIDTH, INNER, CHANNELS, HEADS, GROUPS = 2 * 64, 64, 128, 328, 8, 2
NEMOTRON = {
    "model_type": "nemotron_h", "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16,
    "num_key_value_heads": 2, "vocab_size": 120, "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16,
    "n_groups": 2, "chunk_size": 8,
}  # fmt: skip
FALCON = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 120,
    "mamba_n_heads": 4,
}  # fmt: skip


def kept(layers: int, **options: object) -> int:
    configuration = {**SMALL["mamba2"], "num_hidden_layers": layers}
    return bytes_of(
        triosim.model("mamba2", batch_size=2, sequence_length=64, configuration=configuration, **options),
        Category.ACTIVATION,
    )


@pytest.mark.parametrize("fused", [False, True])
def test_what_a_block_of_mamba_keeps(fused):
    """``MambaSplitConv1dScanCombinedFn.save_for_backward``: what it read, the scan's result, deviations; what the last
    product read is made again.  Megatron-Core's calls keep what is gated, and what the last product reads, too."""
    stream = TOKENS * WIDTH * (4 + 2 + 2) + TOKENS * 4  # residual, what is normed and normed, deviation
    norm = TOKENS * GROUPS * 4
    inside = TOKENS * (CHANNELS + (3 if fused else 1) * INNER) * 2 + norm
    cast = TOKENS * WIDTH * 2 if fused else 0
    assert kept(3, fused=fused) - kept(2, fused=fused) == pytest.approx(stream + inside, abs=cast + TOKENS * WIDTH * 4)


def test_the_last_weight_has_its_gradient_after_the_scan():
    trace = triosim.model("mamba2", batch_size=2, sequence_length=64, configuration=SMALL["mamba2"])
    names, outputs, of = trace.operators.name, trace.operators.outputs.lists(), trace.values.of
    weights = {trace.values.name[weight]: weight for weight in trace.weights().tolist()}
    made = {
        name: row
        for name, weight in weights.items()
        for row, values in enumerate(outputs)
        if trace.operators.phase[row] == Phase.BACKWARD and any(of[value] == weight for value in values)
    }
    scan = names.index("mamba_ssm::split_conv1d_scan_combined_backward")
    assert made["backbone.layers.0.mixer.out_proj.weight"] > scan
    assert made["backbone.layers.0.mixer.in_proj.weight"] > scan


def of_hub(folder, **table):
    file = folder / "config.json"
    file.write_text(json.dumps({**NEMOTRON, **table}))
    return file


def test_lists_of_blocks_are_patterns(tmp_path):
    newer = of_hub(tmp_path, layers_block_type=["linear_attention", "moe", "full_attention", "mlp"])
    assert configured(newer).hybrid_override_pattern == "ME*-"
    older = of_hub(tmp_path, layers_block_type=["mamba", "moe", "attention", "mlp"], num_hidden_layers=4)
    assert configured(older).hybrid_override_pattern == "ME*-"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"hybrid_override_pattern": "MX"}, "a block 'X', which is none of M"),
        ({"hybrid_override_pattern": "M-", "num_hidden_layers": 3}, "has 2 blocks, not num_hidden_layers 3"),
        ({"hybrid_override_pattern": "M-", "n_groups": 3}, "3 groups of the state do not divide 8 heads"),
        ({"hybrid_override_pattern": "M-", "moe_latent_size": 32}, "moe_latent_size 32 is not supported"),
        ({"hybrid_override_pattern": "M-", "num_nextn_predict_layers": 1}, "num_nextn_predict_layers 1 is not supp"),
        ({}, "also needs num_hidden_layers"),
    ],
)
def test_what_is_not_built_is_refused(tmp_path, table, words):
    with pytest.raises(InputError, match=words):
        configured(of_hub(tmp_path, **table))


def test_layers_are_linear_where_the_file_says_so(tmp_path):
    file, usual = tmp_path / "config.json", ["linear_attention"] * 3 + ["full_attention"]
    own = {"model_type": "qwen3_next", **SMALL["qwen3_next"]}
    file.write_text(json.dumps({**own, "layer_types": usual}))
    assert from_file(file, sequence_length=64).meta.sequence_length == 64
    file.write_text(json.dumps({**own, "layer_types": usual[::-1]}))
    turned = configured(file)
    assert [turned.attention_name(layer) for layer in range(4)] == ["self_attn", *["linear_attn"] * 3]
    file.write_text(json.dumps({**own, "layer_types": [*usual[:3], "sliding_attention"]}))
    with pytest.raises(InputError, match=r"layer_types.3. is 'sliding_attention', but in this family that layer"):
        from_file(file)


@pytest.mark.parametrize(
    ("name", "states", "caches", "both"),
    [("mamba2-130m", 24, 0, 0), ("nemotron-h-8b", 24, 4, 0), ("qwen3-next-80b-a3b", 36, 12, 0),
     ("granite-4.0-h-micro", 36, 4, 0), ("falcon-h1-0.5b", 36, 36, 36)],
)  # fmt: skip
def test_servers_see_states_in_place_of_caches_or_beside_them(name, states, caches, both):
    model = served_model(name)
    assert (model.state_layers, model.attention_layers) == (states, caches)
    assert sum(kind.count for kind in model.kinds if kind.state and kind.attention) == both


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ({}, 1024),
        ({"mamba_d_ssm": None, "mamba_d_head": "auto"}, 128),
        ({"mamba_d_ssm": 256, "mamba_d_head": 64}, 256),
        ({"mamba_d_ssm": 256, "mamba_d_head": 32}, "4 heads of 32 do not make 256 channels of Mamba-2"),
        ({"mamba_d_ssm": 254}, "4 heads do not make 254 channels of Mamba-2"),
    ],
)
def test_channels_of_falcon_h1(tmp_path, table, found):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "falcon_h1", **FALCON, **table}))
    if isinstance(found, int):
        assert configured(file).inner == found
        return
    with pytest.raises(InputError, match=found):
        configured(file)
