"""Parameters and operators of every family against Hugging Face's own model, called on fake tensors."""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sources.models.test_against_torch import BATCH, BOOKKEEPING, LENGTH, Log, our_rows, plain
from triosim.operators import kind
from triosim.sources.modelling import configured, model
from triosim.trace.tables import Phase, Trace

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
initialization = pytest.importorskip("transformers.initialization")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn import functional as F  # noqa: E402

CLASSES = 120
LLAMA = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": CLASSES,
}  # fmt: skip

FALCON = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": CLASSES, "alibi": False,
    "max_position_embeddings": 32,
}  # fmt: skip
CASES = {
    "llama": ("llama", LLAMA),
    "mistral": ("mistral", {**LLAMA, "sliding_window": 8}),
    "qwen2": ("qwen2", LLAMA),
    "qwen3": ("qwen3", {**LLAMA, "head_dim": 32}),
    "gemma": ("gemma", {**LLAMA, "head_dim": 16}),
    "gemma2": ("gemma2", {**LLAMA, "head_dim": 16, "sliding_window": 8, "attn_logit_softcapping": None}),
    "gemma3": ("gemma3_text", {**LLAMA, "head_dim": 16, "sliding_window": 8}),
    "llama, biases": ("llama", {**LLAMA, "attention_bias": True}),
    "olmo": ("olmo", {**LLAMA, "pad_token_id": 0}),
    "olmo2": ("olmo2", LLAMA),
    "phi": ("phi", {**LLAMA, "hidden_act": "gelu"}),
    "phi3": ("phi3", {**LLAMA, "pad_token_id": 0}),
    "gpt_neox": ("gpt_neox", {**LLAMA, "rotary_pct": 0.25}),
    "opt": (
        "opt",
        {"hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": CLASSES,
         "max_position_embeddings": 32, "dropout": 0.0, "word_embed_proj_dim": 64},
    ),
    "mixtral": ("mixtral", {**LLAMA, "num_local_experts": 8, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "qwen3_moe",
        {**LLAMA, "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
    ),
}  # fmt: skip

MLA = {
    **LLAMA, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 48, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1,
}  # fmt: skip
CASES |= {
    "qwen2_moe": (
        "qwen2_moe",
        {**LLAMA, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
         "shared_expert_intermediate_size": 32},
    ),
    "gpt_oss": ("gpt_oss", {**LLAMA, "head_dim": 16, "num_local_experts": 8, "num_experts_per_tok": 2}),
    "deepseek_v3": ("deepseek_v3", {**MLA, "q_lora_rank": 24, "n_shared_experts": 1}),
    "deepseek_v2, no rank of queries": (
        "deepseek_v2", {**MLA, "n_shared_experts": 2, "q_lora_rank": None, "topk_method": "greedy"}
    ),
    "llama4": (
        "llama4_text",
        {**LLAMA, "head_dim": 16, "num_local_experts": 4, "intermediate_size_mlp": 80, "interleave_moe_layer_step": 2,
         "no_rope_layer_interval": 2},
    ),
    "falcon": ("falcon", {**FALCON, "num_kv_heads": 1}),
    "falcon, newer": ("falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "bloom": ("bloom", {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": CLASSES}),
    "gptj": (
        "gptj",
        {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": CLASSES, "rotary_dim": 8, "n_positions": 32,
         **dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0.0)},
    ),
}  # fmt: skip
CASES |= {
    "seed_oss": ("seed_oss", {**LLAMA, "head_dim": 16, "attention_dropout": 0.0, "residual_dropout": 0.0}),
    "seed_oss, dropout": ("seed_oss", {**LLAMA, "head_dim": 32, "attention_dropout": 0.0, "residual_dropout": 0.1}),
    "smollm3": ("smollm3", {**LLAMA, "num_hidden_layers": 4, "pad_token_id": 0, "tie_word_embeddings": False}),
    "olmo3": ("olmo3", {**LLAMA, "num_hidden_layers": 4, "sliding_window": 8, "pad_token_id": 0}),
    "olmoe": ("olmoe", {**LLAMA, "num_experts": 8, "num_experts_per_tok": 2}),
    "starcoder2": ("starcoder2", {**LLAMA, "num_key_value_heads": 2, "sliding_window": 8}),
    "nemotron": ("nemotron", {**LLAMA, "head_dim": 16}),
    "granite": ("granite", {**LLAMA, "pad_token_id": 0}),
    "stablelm": ("stablelm", {**LLAMA, "use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    "glm4": ("glm4", {**LLAMA, "head_dim": 16, "num_key_value_heads": 2, "pad_token_id": 0}),
    "glm4_moe": (
        "glm4_moe",
        {**LLAMA, "head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
         "n_shared_experts": 1, "use_qk_norm": True, "attention_bias": True, "num_nextn_predict_layers": 0,
         "n_group": 4, "topk_group": 2},
    ),
    "minimax_m2": (
        "minimax_m2", {**LLAMA, "head_dim": 16, "num_local_experts": 8, "num_experts_per_tok": 2, "rotary_dim": 8}
    ),
    "cohere2": ("cohere2", {**LLAMA, "num_hidden_layers": 4, "sliding_window": 8}),
}  # fmt: skip
BIGCODE = {
    "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": CLASSES, "n_positions": 32, "n_inner": 96, "attn_pdrop": 0.0,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0,
}  # fmt: skip
MPT = {"d_model": 64, "n_layers": 2, "n_heads": 4, "vocab_size": CLASSES, "max_seq_len": LENGTH}
CASES |= {
    "gpt_bigcode": ("gpt_bigcode", BIGCODE),
    "gpt_bigcode, as many keys": ("gpt_bigcode", {**BIGCODE, "multi_query": False, "activation_function": "gelu"}),
    "mpt": ("mpt", MPT),
    "mpt, within limits": ("mpt", {**MPT, "attn_config": {"clip_qkv": 8.0, "attn_pdrop": 0}}),
    "gpt_neo": (
        "gpt_neo",
        {"hidden_size": 64, "num_layers": 2, "num_heads": 4, "vocab_size": CLASSES, "max_position_embeddings": 32,
         "attention_types": [[["global", "local"], 1]], "window_size": 8, "activation_function": "gelu_pytorch_tanh"},
    ),
    "dbrx": (
        "dbrx",
        {"d_model": 64, "n_layers": 2, "n_heads": 4, "vocab_size": CLASSES,
         "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 1e4},
         "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 8, "moe_top_k": 2}},
    ),
    "exaone4": ("exaone4", {**LLAMA, "num_key_value_heads": 2, "num_hidden_layers": 4, "sliding_window": 8}),
    "exaone4, all tokens": ("exaone4", {**LLAMA, "sliding_window": None, "layer_types": ["full_attention"] * 2}),
    "ernie4_5": ("ernie4_5", {**LLAMA, "num_key_value_heads": 2, "head_dim": 16, "use_bias": True}),
    "phimoe": (
        "phimoe",
        {**LLAMA, "num_key_value_heads": 2, "num_local_experts": 8, "attention_bias": True, "lm_head_bias": True},
    ),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", {**LLAMA, "num_key_value_heads": 2, "head_dim": 16}),
}  # fmt: skip
BIASES = {"attention_bias": True, "mlp_bias": True}
ALTERNATE = ["full_attention", "sliding_attention"]
WINDOWED = {**LLAMA, "num_hidden_layers": 4, "sliding_window": 8, "layer_types": [*ALTERNATE, *ALTERNATE[::-1]]}
SPARSE = {**LLAMA, "num_hidden_layers": 4, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
CASES |= {
    "llama, all biases": ("llama", {**LLAMA, **BIASES}),
    "granite, biases": ("granite", {**LLAMA, **BIASES, "pad_token_id": 0}),
    "smollm3, biases": (
        "smollm3", {**LLAMA, **BIASES, "pad_token_id": 0, "use_sliding_window": True, "sliding_window": 8,
                    "tie_word_embeddings": False, "no_rope_layers": [0, 1]}
    ),
    "arcee": ("arcee", LLAMA),
    "arcee, biases": ("arcee", {**LLAMA, **BIASES}),
    "qwen2, windows": (
        "qwen2", {**LLAMA, "num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": 8,
                  "max_window_layers": 3}
    ),
    "qwen3, listed windows": ("qwen3", {**WINDOWED, "head_dim": 32, "use_sliding_window": True, **BIASES}),
    "gemma2, listed windows": (
        "gemma2", {**WINDOWED, "head_dim": 16, "attn_logit_softcapping": None}
    ),
    "gemma3, listed windows": ("gemma3_text", {**WINDOWED, "head_dim": 16}),
    "gpt_oss, listed windows": (
        "gpt_oss", {**WINDOWED, "head_dim": 16, "num_local_experts": 8, "num_experts_per_tok": 2}
    ),
    "olmo3, listed windows": ("olmo3", {**WINDOWED, "pad_token_id": 0}),
    "cohere2, listed windows": ("cohere2", WINDOWED),
    "exaone4, listed windows": ("exaone4", {**WINDOWED, "num_key_value_heads": 2}),
    "ministral": ("ministral", {**WINDOWED, "num_key_value_heads": 2, "head_dim": 32}),
    "ministral3": ("ministral3", {**LLAMA, "num_key_value_heads": 2, "head_dim": 32}),
    "qwen2_moe, dense blocks": (
        "qwen2_moe",
        {**SPARSE, "shared_expert_intermediate_size": 32, "mlp_only_layers": [0], "decoder_sparse_step": 2,
         "qkv_bias": False, "use_sliding_window": True, "sliding_window": 8},
    ),
    "qwen3_moe, dense blocks": (
        "qwen3_moe", {**SPARSE, "head_dim": 16, "mlp_only_layers": [0, 3], "attention_bias": True}
    ),
    "llama4, listed experts": (
        "llama4_text",
        {**LLAMA, "num_hidden_layers": 4, "head_dim": 16, "num_local_experts": 4, "intermediate_size_mlp": 80,
         "moe_layers": [0, 3], "no_rope_layers": [1, 0, 1, 1]},
    ),
    "cohere": ("cohere", LLAMA),
    "cohere, normed": ("cohere", {**LLAMA, "num_key_value_heads": 2, "use_qk_norm": True}),
    "dots1": (
        "dots1",
        {**LLAMA, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "n_shared_experts": 1,
         "first_k_dense_replace": 0, "n_group": 4, "topk_group": 2},
    ),
    "glm4_moe_lite": (
        "glm4_moe_lite",
        {**{key: value for key, value in MLA.items() if key != "first_k_dense_replace"}, "q_lora_rank": 24,
         "n_shared_experts": 1},
    ),
    "granitemoe": ("granitemoe", {**LLAMA, "num_local_experts": 8, "num_experts_per_tok": 2, "pad_token_id": 0}),
    "ernie4_5_moe": (
        "ernie4_5_moe",
        {**LLAMA, "moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 48, "use_bias": True,
         "tie_word_embeddings": False},
    ),
    "glm": ("glm", {**LLAMA, "head_dim": 16, "num_key_value_heads": 2, "pad_token_id": 0}),
    "internlm3": ("internlm3", {**LLAMA, **BIASES, "head_dim": 16, "num_key_value_heads": 2}),
    "solar_open": (
        "solar_open",
        {**LLAMA, "head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
         "n_shared_experts": 1, "n_group": 4, "topk_group": 2},
    ),
    "exaone_moe, listed windows": (
        "exaone_moe",
        {**WINDOWED, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "num_shared_experts": 2,
         "n_group": 4, "topk_group": 2},
    ),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", {**LLAMA, "num_experts": 8, "moe_topk": 2, "head_dim": 16}),
}  # fmt: skip
MAMBA = {
    "num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "chunk_size": 8, "num_hidden_layers": 2,
    "hidden_size": 64, "vocab_size": CLASSES,
}  # fmt: skip
NEMOTRON = {
    **{key: value for key, value in LLAMA.items() if key != "num_hidden_layers"}, "num_key_value_heads": 2,
    "head_dim": 16, "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2, "chunk_size": 8,
    "hybrid_override_pattern": "ME*-ME", "n_routed_experts": 8, "moe_intermediate_size": 48,
    "moe_shared_expert_intermediate_size": 32, "n_group": 4, "topk_group": 2,
}  # fmt: skip
GRANITE = {
    **LLAMA, "num_key_value_heads": 2, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 16,
    "mamba_chunk_size": 8, "shared_intermediate_size": 32, "num_local_experts": 8, "pad_token_id": 0,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
FALCON = {
    **LLAMA, "num_key_value_heads": 2, "head_dim": 16, "mamba_d_ssm": 96, "mamba_n_heads": 6, "mamba_n_groups": 2,
    "mamba_d_state": 16, "mamba_chunk_size": 8,
}  # fmt: skip
SELECTIVE = {
    "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8, "time_step_rank": 6, "vocab_size": CLASSES,
}  # fmt: skip
JAMBA = {
    **LLAMA, "num_hidden_layers": 4, "num_key_value_heads": 2, "attn_layer_period": 2, "attn_layer_offset": 1,
    "num_experts": 8, "mamba_d_state": 8, "mamba_dt_rank": 6, "pad_token_id": 0,
}  # fmt: skip
CASES |= {
    "bamba": (
        "bamba",
        {**LLAMA, "num_key_value_heads": 2, "head_dim": 16, "mamba_n_heads": 8, "mamba_n_groups": 2,
         "mamba_d_state": 16, "mamba_chunk_size": 8, "attn_layer_indices": [1]},
    ),
    "lfm2": (
        "lfm2",
        {**LLAMA, "num_key_value_heads": 2, "full_attn_idxs": [1], "tie_word_embeddings": False,
         "block_multiple_of": 16},
    ),
    "lfm2, biases": (
        "lfm2",
        {**LLAMA, "num_key_value_heads": 2, "layer_types": ["conv", "full_attention"], "conv_bias": True,
         "block_auto_adjust_ff_dim": False},
    ),
    "mamba": ("mamba", SELECTIVE),
    "mamba, biases": ("mamba", {**SELECTIVE, "use_bias": True, "use_conv_bias": False, "tie_word_embeddings": False}),
    "falcon_mamba": ("falcon_mamba", SELECTIVE),
    "jamba": ("jamba", JAMBA),
    "jamba, dense": ("jamba", {**JAMBA, "num_experts": 1, "mamba_proj_bias": True}),
    "falcon_h1": ("falcon_h1", FALCON),
    "falcon_h1, normed": ("falcon_h1", {**FALCON, "mamba_rms_norm": True, "mamba_d_ssm": None, "mamba_n_heads": 8}),
    "granitemoehybrid": ("granitemoehybrid", GRANITE),
    "granitemoehybrid, dense": (
        "granitemoehybrid", {**GRANITE, "num_local_experts": 0, "position_embedding_type": "rope"}
    ),
    "mamba2": ("mamba2", MAMBA),
    "mamba2, biases": ("mamba2", {**MAMBA, "use_bias": True, "use_conv_bias": False, "tie_word_embeddings": True}),
    "nemotron_h": ("nemotron_h", NEMOTRON),
    "nemotron_h, biases": ("nemotron_h", {**NEMOTRON, "mlp_bias": True}),
    "qwen3_next": (
        "qwen3_next",
        {**LLAMA, "num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 32, "linear_num_key_heads": 2,
         "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "num_experts": 8,
         "num_experts_per_tok": 2, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 32},
    ),
}  # fmt: skip
CASES |= {
    "qwen3_5": ("qwen3_5_text", CASES["qwen3_next"][1]),
    "qwen3_5_moe": ("qwen3_5_moe_text", CASES["qwen3_next"][1]),
}
SMALL_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
CASES |= {
    "lfm2_moe": (
        "lfm2_moe",
        {**LLAMA, **SMALL_EXPERTS, "num_key_value_heads": 2, "num_dense_layers": 1,
         "layer_types": ["conv", "full_attention"]},
    ),
    "lfm2_moe, no correction": (
        "lfm2_moe",
        {**LLAMA, **SMALL_EXPERTS, "num_dense_layers": 0, "layer_types": ["conv", "full_attention"],
         "use_expert_bias": False},
    ),
    "cwm, listed windows": ("cwm", {**WINDOWED, "head_dim": 16, "pad_token_id": 0}),
    "iquestcoder": ("iquestcoder", {**LLAMA, "head_dim": 32}),
    "kimi_linear": (
        "kimi_linear",
        {**LLAMA, "kv_lora_rank": 16, "q_lora_rank": None, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
         "v_head_dim": 16, "num_experts": 8, "num_experts_per_token": 2, "num_shared_experts": 1,
         "first_k_dense_replace": 1, "pad_token_id": 0, "moe_intermediate_size": 48, "num_expert_group": 4,
         "topk_group": 2, "model_max_length": 64,
         "linear_attn_config": {"full_attn_layers": [2], "kda_layers": [1], "head_dim": 16, "num_heads": 4,
                                "short_conv_kernel_size": 4}},
    ),
    "deepseek_v32": (
        "deepseek_v32",
        {**MLA, "q_lora_rank": 24, "n_shared_experts": 1, "index_topk": 8, "index_head_dim": 16, "index_n_heads": 2},
    ),
    "glm_moe_dsa": (
        "glm_moe_dsa",
        {**MLA, "q_lora_rank": 24, "n_shared_experts": 1, "index_topk": 8, "index_head_dim": 16, "index_n_heads": 2,
         "num_hidden_layers": 4, "index_topk_freq": 2},
    ),
    "minimax": (
        "minimax",
        {**LLAMA, "num_key_value_heads": 2, "num_local_experts": 8, "num_experts_per_tok": 2,
         "layer_types": ["linear_attention", "full_attention"]},
    ),
    "apertus": ("apertus", {**LLAMA, "pad_token_id": 0}),
    "helium": ("helium", {**LLAMA, "head_dim": 16, "pad_token_id": 0}),
    "jais2": ("jais2", LLAMA),
    "flex_olmo": ("flex_olmo", {**LLAMA, "num_experts": 8, "num_experts_per_tok": 2, "pad_token_id": 0}),
    "youtu": (
        "youtu",
        {**LLAMA, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
         "v_head_dim": 16},
    ),
    "vaultgemma": ("vaultgemma", {**LLAMA, "head_dim": 16, "sliding_window": 8, "attn_logit_softcapping": None}),
    "nanochat": ("nanochat", LLAMA),
    "hyperclovax": ("hyperclovax", {**LLAMA, "pad_token_id": 0}),
    "granitemoeshared": (
        "granitemoeshared",
        {**LLAMA, "num_local_experts": 8, "num_experts_per_tok": 2, "pad_token_id": 0, "shared_intermediate_size": 32},
    ),
    "granitemoeshared, none shared": (
        "granitemoeshared", {**LLAMA, "num_local_experts": 8, "num_experts_per_tok": 2, "pad_token_id": 0}
    ),
    "afmoe, listed windows": (
        "afmoe",
        {**WINDOWED, **SMALL_EXPERTS, "num_shared_experts": 1, "head_dim": 16, "num_dense_layers": 1,
         "mup_enabled": True},
    ),
}  # fmt: skip
GEMMA4 = {
    **WINDOWED, "head_dim": 16, "global_head_dim": 32, "num_key_value_heads": 2, "hidden_size_per_layer_input": 0,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip
ZAMBA = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5, "num_attention_heads": 4, "n_mamba_heads": 8,
    "vocab_size": CLASSES, "mamba_ngroups": 2, "mamba_d_state": 16, "chunk_size": 8, "adapter_rank": 8,
    "num_mem_blocks": 2, "use_shared_attention_adapter": True, "use_mem_rope": True,
    "layers_block_type": ["linear_attention", *["hybrid"] * 3, "linear_attention"],
}  # fmt: skip
MODERN = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "vocab_size": CLASSES, "pad_token_id": 0, "local_attention": 8,
}  # fmt: skip
LATENT = {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8}
CASES |= {
    "bitnet": ("bitnet", {**LLAMA, "num_key_value_heads": 2, "pad_token_id": 0}),
    "minicpm3": ("minicpm3", {**LLAMA, **LATENT}),
    "minicpm3, no rank of queries": ("minicpm3", {**LLAMA, **LATENT, "q_lora_rank": None, "v_head_dim": 24}),
    "mellum, listed windows": (
        "mellum",
        {**WINDOWED, **SMALL_EXPERTS, "head_dim": 16, "num_key_value_heads": 2,
         "mlp_layer_types": ["dense", "sparse", "sparse", "dense"]},
    ),
    "hy_v3": (
        "hy_v3", {**LLAMA, **SMALL_EXPERTS, "head_dim": 16, "num_key_value_heads": 2, "num_shared_experts": 2}
    ),
    "hy_v3, added in their type": (
        "hy_v3", {**LLAMA, **SMALL_EXPERTS, "head_dim": 16, "enable_moe_fp32_combine": False}
    ),
    "gemma4": ("gemma4_text", GEMMA4),
    "gemma4, keys for values": (
        "gemma4_text", {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1}
    ),
    "mimo_v2_flash": (
        "mimo_v2_flash",
        {**LLAMA, "num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 24, "v_head_dim": 16,
         "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "sliding_window": 8,
         "n_group": 4, "topk_group": 2, "layer_types": ["full_attention", *["sliding_attention"] * 3]},
    ),
}  # fmt: skip
CASES |= {
    "olmo_hybrid": (
        "olmo_hybrid",
        {**LLAMA, "num_hidden_layers": 4, "num_key_value_heads": 2, "linear_key_head_dim": 16, "pad_token_id": 0,
         "linear_value_head_dim": 32, "linear_num_key_heads": 2},
    ),
    "olmo_hybrid, no positions": (
        "olmo_hybrid",
        {**LLAMA, "pad_token_id": 0, "rope_parameters": None, "linear_allow_neg_eigval": False},
    ),
    "cohere2_moe": (
        "cohere2_moe", {**LLAMA, "num_hidden_layers": 4, "sliding_window": 8, "num_experts": 8, "head_dim": 16}
    ),
    "cohere2_moe, dense first, listed windows": (
        "cohere2_moe",
        {**WINDOWED, "head_dim": 16, "num_key_value_heads": 2, "num_experts": 8, "num_shared_experts": 2,
         "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "prefix_dense_intermediate_size": 80,
         "expert_selection_fn": "sigmoid", "rms_norm_eps": 1e-5, "tie_word_embeddings": False},
    ),
    "longcat_flash": (
        "longcat_flash",
        {"hidden_size": 64, "ffn_hidden_size": 96, "num_attention_heads": 4, "vocab_size": CLASSES, "num_layers": 2,
         "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
         "head_dim": 8, "moe_topk": 3, "n_routed_experts": 8, "zero_expert_num": 4, "expert_ffn_hidden_size": 48},
    ),
    "gemma4, embeddings of each layer": (
        "gemma4_text",
        {**GEMMA4, "num_hidden_layers": 6, "layer_types": ["sliding_attention", "full_attention"] * 3,
         "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": CLASSES, "num_kv_shared_layers": 3,
         "use_double_wide_mlp": True, "final_logit_softcapping": 30.0},
    ),
    "gemma4, experts": (
        "gemma4_text",
        {**GEMMA4, "enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 48},
    ),
    "gemma3n": (
        "gemma3n_text",
        {**GEMMA4, "num_hidden_layers": 6, "layer_types": ["sliding_attention", "full_attention"] * 3,
         "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": CLASSES, "num_kv_shared_layers": 3,
         "laurel_rank": 8, "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0, 0.0, 0.0]},
    ),
    "modernbert": ("modernbert", MODERN),
    "modernbert, biases": (
        "modernbert",
        {**MODERN, "norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True,
         "tie_word_embeddings": False, "layer_types": ["sliding_attention", "full_attention"] * 2},
    ),
    "modernbert-decoder": ("modernbert-decoder", {**MODERN, "decoder_bias": False}),
    "zamba2": ("zamba2", ZAMBA),
    "zamba2, one transformer": (
        "zamba2",
        {**ZAMBA, "num_mem_blocks": 1, "use_shared_attention_adapter": False, "use_mem_rope": False,
         "add_bias_linear": True},
    ),
}  # fmt: skip
APART = {
    "zamba2",
    "zamba2, one transformer",
    "modernbert",
    "modernbert, biases",
    "modernbert-decoder",
    "gemma3n",
    "gemma4, embeddings of each layer",
    "gemma4, experts",
    "longcat_flash",
    "olmo_hybrid",
    "olmo_hybrid, no positions",
    "cohere2_moe",
    "cohere2_moe, dense first, listed windows",
    "afmoe, listed windows",
    "apertus",
    "cohere",
    "cohere, normed",
    "cohere2, listed windows",
    "dots1",
    "ernie4_5_moe",
    "exaone_moe, listed windows",
    "glm",
    "solar_open",
    "glm4_moe_lite",
    "gpt_oss, listed windows",
    "hunyuan_v1_moe",
    "llama4, listed experts",
    "ministral3",
    "falcon_h1",
    "falcon_h1, normed",
    "qwen3_5",
    "qwen3_5_moe",
    "granitemoehybrid",
    "granitemoehybrid, dense",
    "bamba",
    "helium",
    "lfm2",
    "lfm2, biases",
    "lfm2_moe",
    "lfm2_moe, no correction",
    "mamba",
    "mamba, biases",
    "falcon_mamba",
    "jamba",
    "jamba, dense",
    "kimi_linear",
    "mamba2",
    "mamba2, biases",
    "minimax",
    "nanochat",
    "nemotron_h",
    "nemotron_h, biases",
    "qwen3_next",
    "dbrx",
    "ernie4_5",
    "seed_oss, dropout",
    "nemotron",
    "glm4",
    "glm4_moe",
    "cohere2",
    "llama4",
    "gpt_oss",
    "deepseek_v3",
    "deepseek_v2, no rank of queries",
    "deepseek_v32",
    "glm_moe_dsa",
    "falcon",
    "falcon, newer",
    "bloom",
    "gptj",
    "youtu",
    "minicpm3",
    "minicpm3, no rank of queries",
    "mimo_v2_flash",
}
"""Those whose small operators are not Hugging Face's one by one, which turns pairs of neighbours, writes keys into
place, or runs attention or a scan in pieces."""
LAYOUT = {"clone"}
"""Copies that the layout of attention's result asks for on a CPU, where heads come before tokens."""
MASK = {"where", "ge", "logical_and", "scalar_tensor", "bitwise_and", "new_ones", "le", "eq", "expand"}


def theirs(model_type: str, configuration: dict, change: Callable[[Any], None] = lambda net: None):
    """Parameters in order, and the rows of the forward and of the backward; ``change`` gets the network first."""
    config = transformers.AutoConfig.for_model(model_type, **configuration)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), initialization.no_init_weights():
            models = transformers.AutoModelForCausalLM, transformers.AutoModelForMaskedLM
            cls = next(known[type(config)] for known in (m._model_mapping for m in models) if type(config) in known)
            for base in cls.__mro__:  # also where scores are capped, which the call leaves out
                if "_supports_sdpa" in vars(base):
                    base._supports_sdpa = True
            try:
                net = cls._from_config(config, attn_implementation="eager" if model_type == "mpt" else "sdpa")
            except KeyError:  # written before there was the call
                net = cls._from_config(config, attn_implementation="eager")
            net.tie_weights()
            for module in net.modules():
                if type(module).__name__.endswith(
                    ("RMSNorm", "Cohere2LayerNorm", "Cohere2MoeLayerNorm", "CohereLayerNorm")
                ):  # one kernel, as ours
                    weight = None if "Weightless" in type(module).__name__ else getattr(module, "weight", None)
                    module.forward = functools.partial(_normed, weight)
            change(net)
            for module in net.modules():
                if type(module).__name__ == "DbrxExperts":
                    module.forward = functools.partial(_grouped, module)
                if type(module).__name__ == "LongcatFlashExperts":
                    module.gate_up_proj = torch.nn.Parameter(module.gate_up_proj[: module.num_routed_experts])
                    module.forward = functools.partial(_grouped_and_idle, module)
            net.train()
            tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long)
            with Log() as log:
                scores = (net(tokens, use_cache=False) if hasattr(config, "use_cache") else net(tokens)).logits
                forward = len(log.rows)
                F.cross_entropy(scores.view(-1, scores.shape[-1]).float(), tokens.view(-1)).backward()
    finally:
        torch.set_default_dtype(before)
    parameters = [(name, tuple(p.shape)) for name, p in net.named_parameters() if p.requires_grad]
    return parameters, log.rows[:forward], log.rows[forward:]


def _normed(weight, x):
    """A norm as one kernel; weights of each head are multiplied apart."""
    if weight is not None and weight.dim() > 1:
        return weight * F.layer_norm(x, (x.shape[-1],))
    return F.layer_norm(x, (x.shape[-1],), weight)


def _grouped(experts, x, numbers, weights):
    """DBRX's experts, which a loop runs one by one on the tokens that took them, as grouped products."""
    rows, mlp, chosen = x.reshape(-1, x.shape[-1]), experts.mlp, numbers.shape[1]
    gate, up, down = (w.view(experts.num_experts, experts.ffn_hidden_size, -1) for w in (mlp.w1, mlp.v1, mlp.w2))
    numbers, order = numbers.view(-1).sort()
    y = rows[order // chosen]
    ends = torch.histc(numbers.float(), experts.num_experts, 0, experts.num_experts - 1).cumsum(0, dtype=torch.int32)
    y = F.silu(torch._grouped_mm(y, gate.transpose(1, 2), ends)) * torch._grouped_mm(y, up.transpose(1, 2), ends)
    y = torch._grouped_mm(y, down, ends) * weights.view(-1)[order][:, None]
    return y[order].view(*rows.shape[:1], chosen, -1).sum(1).view(x.shape)


def _grouped_and_idle(experts, x, numbers, weights):
    """LongCat-Flash's experts as grouped products of as many rows as an even choice brings to those that compute."""
    chosen, count = numbers.shape[1], experts.num_routed_experts
    numbers, order = numbers.view(-1).sort()
    taken = x.shape[0] * chosen * count // experts.total_experts
    y = x[order[:taken] // chosen]
    ends = torch.histc(numbers.float(), count, 0, count - 1).cumsum(0, dtype=torch.int32)
    gate, up = torch._grouped_mm(y, experts.gate_up_proj.transpose(1, 2), ends).chunk(2, dim=-1)
    y = torch._grouped_mm(F.silu(gate) * up, experts.down_proj.transpose(1, 2), ends)
    y = torch.cat((y, x[order[taken:] // chosen])) * weights.view(-1)[order][:, None]
    return y[order].view(x.shape[0], chosen, -1).sum(1).to(x.dtype)


SAME = {"_fused_rms_norm": "native_layer_norm", "_fused_rms_norm_backward": "native_layer_norm_backward"}


def computing(rows) -> list[tuple[str, tuple[int, ...]]]:
    """What computes, in order: name and shape of the first output; masks are left out, and the heads that are repeated
    on a CPU for lack of a kernel for grouped ones."""
    found = []
    for name, inputs, outputs in rows:
        name = SAME.get(name, plain(name))
        repeated = any(shapes and len(shapes[0]) == 5 for shapes in (inputs, outputs))
        is_view = kind("aten::" + name) == "view" and name != "slice_backward"
        if not (is_view or name in BOOKKEEPING or name in MASK or name in LAYOUT or repeated):
            shape = outputs[0] if outputs else ()
            found.append((name, (math.prod(shape[:-1]), *shape[-1:])))
    return found


def of_model(rows) -> list[tuple[str, tuple[int, ...]]]:
    """From the first norm or product to the scores, in either direction."""
    rows = computing(rows)
    loss = ("_log_softmax", "nll_loss_forward", "nll_loss_backward", "_log_softmax_backward_data", "ones_like")
    rows = [row for row in rows if row[0] not in loss and row != ("_to_copy", (BATCH * LENGTH, CLASSES))]
    return rows[next(at for at, (name, _) in enumerate(rows) if name in ("native_layer_norm", "mm", "addmm")) :]


def built(model_type: str, configuration: dict, folder: Path) -> Trace:
    """The step of a ``config.json``."""
    file = folder / "config.json"
    file.write_text(json.dumps({"model_type": model_type, **configuration}))
    return model(str(file), batch_size=BATCH, sequence_length=LENGTH)


@pytest.fixture(params=CASES, scope="module")
def both(request, tmp_path_factory):
    model_type, configuration = CASES[request.param]
    trace = built(model_type, configuration, tmp_path_factory.mktemp("model"))
    return theirs(model_type, configuration), trace


def test_same_parameters_in_the_same_order(both):
    (parameters, _, _), trace = both
    shape, names = trace.values.shape.lists(), trace.values.name
    found = [(names[v], tuple(shape[v])) for v in trace.weights()]
    flat = [(name, (size[0] * size[1], size[2]) if "experts.mlp" in name else size) for name, size in found]  # DBRX
    assert flat == parameters


def heavy(rows) -> Counter:
    """How often which product, norm or choice of experts."""
    kinds = ("linear", "experts", "normalization", "embedding")
    return Counter(row for row in rows if kind("aten::" + row[0]) in kinds or row[0] in ("topk", "sort"))


@pytest.mark.parametrize("case", [case for case in CASES if "windows" in case or case == "ministral"])
def test_same_windows(case: str, tmp_path: Path) -> None:
    """Attention of each block sees what Hugging Face's configuration says of it."""
    model_type, configuration = CASES[case]
    config = transformers.AutoConfig.for_model(model_type, **configuration)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": model_type, **configuration}))
    family = configured(file)
    seen = [config.sliding_window if kind == "sliding_attention" else 0 for kind in config.layer_types]
    assert 0 < sum(map(bool, seen)) < len(seen)
    assert [family.attention(layer).window for layer in range(len(seen))] == seen


ROUTED = ("_grouped_mm", "sort")


def is_norm_of(row, width: int) -> bool:
    return row[0].startswith("native_layer_norm") and row[1][-1] == width


def test_same_operators(both, request):
    (_, forward, backward), trace = both
    mine = of_model(our_rows(trace, Phase.FORWARD)), of_model(our_rows(trace, Phase.BACKWARD))
    others = of_model(forward), of_model(backward)
    case = request.node.callspec.params["both"]
    if case.startswith("llama4"):  # theirs runs every expert on every token, norms in pieces
        head = CASES["llama4"][1]["head_dim"]
        mine = tuple([row for row in rows if not (row[0] in ROUTED or is_norm_of(row, head))] for rows in mine)
    if case in APART:
        found = [heavy(rows) for rows in mine]
        if case.split(",")[0] in ("mamba", "falcon_mamba"):  # MambaInnerFn makes the steps of each block again
            steps = ("mm", (BATCH * LENGTH, 2 * SELECTIVE["hidden_size"]))
            found[1] = found[1] - Counter({steps: SELECTIVE["num_hidden_layers"]})
        if case in ("mamba, biases", "jamba, dense"):  # of a result whose channels come first a bias is added apart
            apart = ("addmm", (BATCH * LENGTH, 64))
            found[0] = Counter([("mm", row[1]) if row == apart else row for row in found[0].elements()])
        assert found == [heavy(rows) for rows in others]
    else:
        assert mine == others
