"""How many requests and tokens a step may have under ``trtllm-bench throughput``, where nobody says.

After its sources: ``calc_engine_setting`` and ``finetune_setting`` in ``tensorrt_llm/bench/build/tuning.py``, and
``get_settings`` in ``bench/benchmark/utils/general.py``, alike in all versions that were seen.  The commands of the
performance overviews of TensorRT-LLM give neither limit and no chunked context, which is off then.
"""

from __future__ import annotations

import math

from triosim.core.dtypes import DTYPE_BYTES
from triosim.serving.model import PRECISIONS, ServedLatent, ServedModel, kv_type_of

MOST_REQUESTS, MOST_TOKENS = 4096, 32768
"""Beyond which it does not go."""
LEAST_REQUESTS, LEAST_TOKENS = 64, 2048
"""Below which it does not go."""
GRAPH_SIZES = "1/2/4/8/16/32/64/128/256/384/512/1024/2048/4096/8192"
"""Of decodes, filled up, in the options of version 1.2's overview (``cuda_graph_config`` in ``llm_options.yml``)."""
BYTES = {"fp8": 1.0, "nvfp4": 0.5}
"""Of a weight, by what a checkpoint is quantised to; it takes 2 for what it does not know, as MXFP4."""


def limits(
    model: ServedModel, weights: str, kv_cache: str, memory_bytes: float, devices: int, prompt: int, output: int,
    share: float,
) -> tuple[int, int]:  # fmt: skip
    """Requests and tokens of a step at most.

    Args:
        model, weights, kv_cache: what is served.
        memory_bytes: of one device.
        devices: of ``--tp``, ranks of attention included.
        prompt, output: mean tokens of a request.
        share: of the memory that weights leave (``--kv_cache_free_gpu_mem_fraction``).
    """
    left = memory_bytes * devices - elements(model, weights) * BYTES.get(weights, 2.0)
    heads, size = _cached(model)
    token = 2 * model.attention_layers * max(devices, heads) * size * DTYPE_BYTES[kv_type_of(kv_cache)]
    fitting = min(left * share / (token * (prompt + output)), MOST_REQUESTS)
    wanted = min(fitting * (1 + prompt / output), MOST_TOKENS)
    step = 32 if fitting < 256 else 128 if fitting < 1024 else 256
    requests = max(step * math.ceil(fitting / step), LEAST_REQUESTS)
    step = 256 if wanted < 4096 else 512 if wanted < 8192 else 1024
    tokens = max(step * math.ceil(wanted / step), LEAST_TOKENS)
    return requests, max(tokens, prompt + requests)


def elements(model: ServedModel, weights: str) -> float:
    """Elements in a checkpoint's files, where those of 4 bits are stored as bytes of two, and their scales beside."""
    stored = PRECISIONS[weights]
    if not stored.of_experts:
        return float(model.parameters)
    return model.parameters - model.expert_parameters + model.expert_parameters * stored.weight_bytes


def _cached(model: ServedModel) -> tuple[int, int]:
    """Key heads and their length as it reads them from a configuration: latent attention has as many as queries, of
    the model's width together."""
    attention = next(kind.attention for kind in model.kinds if kind.attention)
    if isinstance(attention, ServedLatent):
        return attention.heads, model.width // attention.heads
    return attention.kv_heads, attention.head
