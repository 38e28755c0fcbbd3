"""What NVIDIA's Megatron-Bridge does in each row of its table, from the recipes that it publishes.

The summary says "see recipe".  The recipes are in ``scripts/performance/configs/{deepseek,gpt_oss,kimi,llama,qwen}/
*_workload_base_configs.py`` of https://github.com/NVIDIA-NeMo/Megatron-Bridge: ``recompute_modules`` by model, GPU and
precision.  They were read at commits 0426418 (DeepSeek), 07eea52 (GPT-OSS), 013180a (Kimi), 00919dc and 0013c9a (Llama)
and 01b2977 (Qwen); what an older one says (0132842 of DeepSeek) is told by release.

What all have in common is in ``src/megatron/bridge/perf_recipes`` there: ``_benchmark_common`` (``_common.py``, commit
007282e) sets ``grad_reduce_in_fp32`` to False, so that main gradients have 16 bits; recipes of Llama 70B and 405B
(``recipes/llama/llama3.py``, commit 0d5f555) set ``tp_comm_overlap``, which those in NVFP4 take back, for its gathered
parameters do not go with it (``llama/{gb200,gb300}/llama31.py``, commits 2db355b and 3564acf); Kimi K2 is trained by
Muon (``recipes/kimi/kimi_k2.py``, commit ab72e27).

How experts are launched and reached is told by release. 25.09: tokens are dropped, all-to-all, and Qwen3 is captured
whole (``configs/qwen3/qwen3_30b_a3b_llm_pretrain.py``, commit 4054233, ``qwen3_235b_a22b_llm_pretrain.py``, 27dfb3d;
``configs/deepseek/deepseek_v3_llm_pretrain.py``, 27dfb3d, captures nothing). 25.11: none is dropped, all-to-all
(``configs/qwen3/qwen3_llm_pretrain.py`` and ``workload_base_configs.py``, commit 0fa501a, whose graphs of whole
iterations cannot hold experts of which the host reads the counts, and are left out). From 26.02 on: parts of blocks
are captured, HybridEP or DeepEP (``configs/{deepseek,gpt_oss,qwen}/*_workload_base_configs.py``, commits f0e2c37,
1e7adfa, f29a269 and 01b2977, 07eea52; Qwen3-235B on B300 with micro-batches of two:
``perf_recipes/qwen/b300/qwen3_moe.py``, 04f0135). From 26.06 on MXFP8 on Blackwell is captured whole, rows of experts
travel behind another micro-batch, and one kernel multiplies for all experts (``perf_recipes/qwen/common.py``, commit
134e903, ``_enable_hybridep_full_iteration_mxfp8``; ``deepseek_``, ``gpt_oss_`` and ``kimi_workload_base_configs.py``
as above). All say ``expert_tensor_parallel_size=1``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

ADAPTERS = "16,targets=qkv_proj"
"""Of the rows of LoRA: ``target_modules = ["linear_qkv"]``; the rank is that of the recipe for 405B."""
FUSED_SINCE = 26.06
"""Release from which on DeepSeek-V3 and Kimi-K2 in MXFP8 keep all on GB300."""
ROUTING, ALL_BUT_EXPERTS = "moe_router+moe_preprocess", "attn+moe_router+moe_preprocess"
GRAPHS_SINCE = 26.02
"""Release from which on recipes capture parts of blocks."""
WHOLE_SINCE = 26.06
"""Release from which on recipes in MXFP8 on Blackwell capture iterations whole."""
EXPERT_TENSOR_RANKS = 1
"""Experts are whole, whatever the tensor axis."""


def overlaps_tensor(line: Mapping[str, str]) -> bool:
    """Whether transfers of the tensor axis are made in pieces beside the products that they belong to."""
    return line["model"].lower().startswith("llama") and "fp4" not in line["precision"].lower()


def optimizer(line: Mapping[str, str]) -> str:
    """The optimizer where it is not Adam, else ``""``."""
    return "muon" if line["model"].lower().startswith("kimi") else ""


def facts(line: Mapping[str, str]) -> dict[str, Any]:
    """What a row's software does otherwise than its stack.

    Micro-batches add up in 16 bits; wherever there are replicas ``training/comm_overlap.py`` sets ``bucket_size`` to
    128 Mi parameters and gathers parameters beside the next forward (``overlap_param_gather``), which Muon cannot
    have; HybridEP pads the rows that it brings to experts, other dispatchers leave that to copies; parts of blocks are
    launched as graphs, or all of an iteration; from the release on that captures iterations whole one kernel
    multiplies for all experts (``NVTE_CUTEDSL_FUSED_GROUPED_MLP``).
    """
    hybrid = dispatch(line) == "deepep" and (whole_graph(line) or not _of_deep_ep(line))
    found: dict[str, Any] = {
        "gradients": "parameter-fused", "graphs": graphs(line), "expert_padding": not hybrid,
        "overlap_parameters": not optimizer(line), "bucket_parameters": 128 << 20, "bucket_parameters_per_replica": 0,
        "loss": "fused",
    }  # fmt: skip
    if whole_graph(line):
        found["host"] = "graph"
        found["experts"] = "grouped" if _release(line) >= WHOLE_SINCE else "one-by-one"
    return found


def whole_graph(line: Mapping[str, str]) -> bool:
    """Whether all of an iteration is one CUDA graph (``full_iteration``)."""
    model, release = line["model"].lower(), _release(line)
    if "tokendrop" in model:
        return model.startswith("qwen3_30b") or (model.startswith("qwen3_235b") and line["gpu"] == "GB200")
    blackwell = line["gpu"].startswith("GB") or (line["gpu"] == "B300" and not model.startswith("qwen3_235b"))
    return blackwell and _of_experts(line) and release >= WHOLE_SINCE and "mx" in line["precision"].lower()


def graphs(line: Mapping[str, str]) -> str:
    """Parts of a block that a row launches as graphs (``cuda_graph_scope``); ``""`` for none."""
    if not _of_experts(line) or whole_graph(line):
        return ""
    model, gpu, words = line["model"].lower(), line["gpu"].partition("-")[0], line["precision"].lower()
    if _release(line) < GRAPHS_SINCE:
        return ""
    if model.startswith("qwen3_30b"):
        return "" if gpu == "H100" and "fp8" in words else ROUTING
    captured = {
        "gpt oss": gpu in ("GB300", "B300"),
        "qwen3_235b": gpu in ("GB200", "GB300"),
        "deepseek": gpu == "GB200"
        or (gpu == "GB300" and "bf16" in words)
        or (gpu == "B300" and line["pp"] == "8")
        or _spread(line),
    }
    return ALL_BUT_EXPERTS if any(model.startswith(name) and held for name, held in captured.items()) else ""


def dispatch(line: Mapping[str, str]) -> str:
    """How rows travel to experts (``moe_token_dispatcher_type``): DeepEP's and HybridEP's kernels, or all-to-all.

    DeepEP's do not run on GB200 and GB300, whose recipes without HybridEP fall back
    (``src/megatron/bridge/training/flex_dispatcher_backend.py``), nor where tokens are dropped.
    """
    model, gpu = line["model"].lower(), line["gpu"].partition("-")[0]
    if _dropless(line):
        return "deepep"
    if "tokendrop" in model or _release(line) < GRAPHS_SINCE:
        return "alltoall"
    if model.startswith("qwen3_235b") and gpu == "H100":
        return "alltoall"  # on B300 with micro-batches of one as well; those of two come with HybridEP
    if model.startswith("gpt oss") and gpu.startswith("GB") and not whole_graph(line):
        return "alltoall"
    return "alltoall" if model.startswith("qwen3_30b") and gpu == "H100" and int(line["pp"]) > 1 else "deepep"


def capacity(line: Mapping[str, str]) -> float:
    """Capacity factor of experts, padded, where tokens are dropped (``apply_moe_token_drop``); 0 where none is."""
    return 1.0 if "tokendrop" in line["model"].lower() else 0.0


def overlaps_experts(line: Mapping[str, str]) -> bool:
    """Whether the forward of a micro-batch runs beside the backward of another, to hide the rows of experts."""
    hopper = line["model"].lower().startswith("qwen3_235b") and line["gpu"].startswith("H100")
    fused = whole_graph(line) and _release(line) >= WHOLE_SINCE
    return fused or _dropless(line) or _spread(line) or (hopper and _release(line) >= GRAPHS_SINCE)


def _dropless(line: Mapping[str, str]) -> bool:
    """Whether a row is DeepSeek-V3's without dropped tokens of 25.09: ``enable_deepep`` and ``a2a_1f1b``
    (``deepseek_v3_h100_bf16_config`` of ``configs/deepseek/deepseek_v3_llm_pretrain.py``, commit 27dfb3d)."""
    return "(dropless)" in line["model"].lower()


def _spread(line: Mapping[str, str]) -> bool:
    """Whether a row is DeepSeek-V3's on B200 whose experts are on four servers: ``moe_a2a_overlap``, graphs and
    ``recompute_modules`` of ``DEEPSEEK_V3_PRETRAIN_CONFIG_B200_FP8_MX_V2`` (commit 0426418)."""
    return line["model"].lower().startswith("deepseek") and line["gpu"].startswith("B200") and line["ep"] == "32"


def _of_deep_ep(line: Mapping[str, str]) -> bool:
    """Whether a row has DeepEP's kernels, and not HybridEP's (``moe_flex_dispatcher_backend``)."""
    model = line["model"].lower()
    return model.startswith("gpt oss") or (model.startswith("qwen3_30b") and line["gpu"].startswith("B200"))


def _of_experts(line: Mapping[str, str]) -> bool:
    return int(line["moe_experts"] or 0) > 0


def recompute(line: Mapping[str, str]) -> str:
    """Parts of a block that a row runs again, joined by ``+``; ``"none"`` for none, ``""`` where no recipe says so.

    Args:
        line: of ``measured.csv``.
    """
    model, gpu, words = line["model"].lower(), line["gpu"].partition("-")[0], line["precision"].lower()
    if line["shard"].startswith("zero3") and model.startswith("llama3_70b") and gpu == "B200":
        return "full/16"  # 5 of its 80 layers
    if model.startswith(("llama", "qwen3")):
        return "full/6" if model == "llama3_8b" and gpu == "H100" and "fp8" in words else "none"  # 5 of its 32 layers
    if model.startswith("gpt oss"):
        fused = re.search("mx", words) and gpu == "GB200"
        return "none" if fused or gpu in ("GB300", "B300") else "layernorm+moe_act"
    if model.startswith(("deepseekv3", "kimi")):
        return "mla_up_proj+mlp" if _spread(line) else _latent(model, gpu, words, _release(line))
    return ""


def offloaded(line: Mapping[str, str]) -> int:
    """Layers whose activations go to the host (``cpu_offloading_num_layers``), where parameters are in shards."""
    model, gpu = line["model"].lower(), line["gpu"].partition("-")[0]
    if not line["shard"].startswith("zero3"):
        return 0
    layers = {("llama3_70b", "GB300"): 20, ("llama3_70b", "GB200"): 40, ("llama3.1_405b", "GB200"): 95}
    return layers.get((model, gpu), 0)


def _latent(model: str, gpu: str, words: str, release: float) -> str:
    if gpu == "H100":
        return "mla_up_proj+mlp"
    if gpu == "GB300" and "mx" in words and release >= FUSED_SINCE:
        return "none"
    if gpu == "GB300" and "bf16" in words and model.startswith("deepseek"):
        return "moe_act"
    return "mla_up_proj"


def _release(line: Mapping[str, str]) -> float:
    """Year and month of the container, as 26.04; 0 where a row does not say."""
    found = re.search(r"release (\d+\.\d+)", line["notes"])
    return float(found[1]) if found else 0.0
