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
"""

from __future__ import annotations

import re
from collections.abc import Mapping

ADAPTERS = "16,targets=q_proj+k_proj+v_proj"
"""Of the rows of LoRA: ``target_modules = ["linear_qkv"]``; the rank is that of the recipe for 405B."""
FUSED_SINCE = 26.06
"""Release from which on DeepSeek-V3 and Kimi-K2 in MXFP8 keep all on GB300."""


GRADIENTS = "parameter-fused"
"""Where micro-batches add up."""


def overlaps_tensor(line: Mapping[str, str]) -> bool:
    """Whether transfers of the tensor axis are made in pieces beside the products that they belong to."""
    return line["model"].lower().startswith("llama") and "fp4" not in line["precision"].lower()


def optimizer(line: Mapping[str, str]) -> str:
    """The optimizer where it is not Adam, else ``""``."""
    return "muon" if line["model"].lower().startswith("kimi") else ""


def recompute(line: Mapping[str, str]) -> str:
    """Parts of a block that a row runs again, joined by ``+``; ``"none"`` for none, ``""`` where no recipe says so.

    Args:
        line: of ``measured.csv``.
    """
    model, gpu, words = line["model"].lower(), line["gpu"].partition("-")[0], line["precision"].lower()
    if line["shard"].startswith("zero3"):
        return ""  # whose recipes move activations to the host, a number of layers by GPU
    if model.startswith(("llama", "qwen3")):
        return "full/6" if model == "llama3_8b" and gpu == "H100" and "fp8" in words else "none"  # 5 of its 32 layers
    if model.startswith("gpt oss"):
        fused = re.search("mx", words) and gpu == "GB200"
        return "none" if fused or gpu in ("GB300", "B300") else "layernorm+moe_act"
    if model.startswith(("deepseekv3", "kimi")):
        return _latent(model, gpu, words, _release(line))
    return ""


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
