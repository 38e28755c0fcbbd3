"""Megatron-LM's command line: the arguments of ``pretrain_gpt.py`` that say a plan, and the model's sizes.

Names and meanings are those of ``megatron/training/arguments.py`` (core 0.13 and later).  ZeRO 1 is its distributed
optimizer, ZeRO 3 Megatron-FSDP with ``optim_grads_params``; it has no ZeRO 2 that gathers parameters for each
micro-batch.  Both may be in groups of replicas (``hsdp``), copies of the distributed optimizer there.  Muon (core 0.15
and later) goes with neither of its overlaps nor the distributed optimizer: ``dist_muon`` deals matrices to replicas.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from triosim.interop.frameworks.job import ASYNC_TP, HYBRID, ConfiguredJob, cannot
from triosim.sources.models._llama_like import FULL
from triosim.transform.optimizers.adamw import AdamW
from triosim.transform.optimizers.muon import Muon
from triosim.transform.optimizers.sgd import Sgd
from triosim.transform.optimizing import optimizer

NAME = "megatron"
SCHEDULES = ("1f1b", "interleaved-1f1b")
RECOMPUTE: dict[str, dict[str, Any]] = {
    "none": {},
    "selective": {"recompute-granularity": "selective", "recompute-modules": ["core_attn"]},
    "full": {"recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": 1},
}
MODULES = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")
"""Parts of a block that ``--recompute-modules`` names."""
ZERO: dict[int, dict[str, Any]] = {
    0: {"overlap-grad-reduce": True},
    1: {"use-distributed-optimizer": True, "overlap-grad-reduce": True},
    3: {
        "use-distributed-optimizer": True, "use-megatron-fsdp": True,
        "data-parallel-sharding-strategy": "optim_grads_params", "no-gradient-accumulation-fusion": True,
        "ckpt-format": "fsdp_dtensor",
    },
}  # fmt: skip
QUANTIZE: dict[str, dict[str, Any]] = {
    "none": {},
    "fp8-delayed": {"fp8-format": "hybrid", "fp8-recipe": "delayed"},
    "fp8-current": {"fp8-format": "hybrid", "fp8-recipe": "tensorwise"},
    "fp8-block": {"fp8-format": "e4m3", "fp8-recipe": "blockwise"},
    "mxfp8": {"fp8-format": "e4m3", "fp8-recipe": "mxfp8"},
}
"""Recipes of products in 8 bits, by the names of Transformer Engine's."""
DTYPES = {"bfloat16": "bf16", "float16": "fp16"}
"""Names of the element types of a precision-aware optimizer's moments."""
MUON = {0: "muon", 1: "dist_muon"}
"""Muon by what replicas divide: nothing, or its matrices among them."""
EXCHANGE = {"gather": "all_gather", "ring": "p2p", "ulysses": "a2a", "usp": "a2a+p2p"}
"""How context parallelism exchanges keys and values, by ``cp-style``."""
PRECISION: dict[str, dict[str, Any]] = {"bfloat16": {"bf16": True}, "float16": {"fp16": True}, "float32": {}}
DECODER = {
    "hidden_size": "hidden-size", "intermediate_size": "ffn-hidden-size", "num_attention_heads": "num-attention-heads",
    "head_dim": "kv-channels", "max_position_embeddings": "max-position-embeddings",
    "num_local_experts": "num-experts", "num_experts_per_tok": "moe-router-topk",
}  # fmt: skip
SIZES = {
    "gpt": {
        "n_embd": "hidden-size", "n_head": "num-attention-heads", "n_inner": "ffn-hidden-size",
        "n_positions": "max-position-embeddings",
    },
    **dict.fromkeys(("llama", "mistral", "mixtral", "qwen2", "qwen3"), DECODER),
}  # fmt: skip
"""Names of a family's sizes; a size of 0 is left to Megatron, which takes the same."""
LLAMA_LIKE = {
    "position-embedding-type": "rope", "normalization": "RMSNorm", "swiglu": True
}  # fmt: skip
OWN = {"qwen2": {"add-qkv-bias": True}, "qwen3": {"qk-layernorm": True}}


def write(job: ConfiguredJob) -> str:
    """The command's text, an argument to a line.

    Raises:
        InputError: Megatron-LM cannot say the plan.
    """
    job.check(NAME, ("sequence", "context", "experts", ASYNC_TP, HYBRID), ("quantize", "optimizer"))
    start = f"torchrun --nnodes {job.servers} --nproc-per-node {job.devices // job.servers} pretrain_gpt.py"
    said = {**_parallelism(job), **_optimizer(job), **_batch(job), **_model(job)}
    words = [shlex.join([f"--{name}", *_words(value)]) for name, value in said.items() if value is not False]
    text = " \\\n  ".join([start, *words])
    if job.family not in SIZES:
        text = f"# the sizes of {shlex.quote(job.workload)} are yours\n{text}"
    return text + "\n"


def _words(value: Any) -> list[str]:
    """What follows an argument's name: nothing after a switch."""
    return [] if value is True else [str(one) for one in (value if isinstance(value, list) else [value])]


def _parallelism(job: ConfiguredJob) -> dict[str, Any]:
    plan, cp, ep = job.plan, job.degree("cp"), job.degree("ep")
    said: dict[str, Any] = {"tensor-model-parallel-size": plan.tp, "pipeline-model-parallel-size": plan.pp}
    if plan.pp > 1:
        if plan.schedule not in SCHEDULES:
            raise cannot(
                NAME, f"schedule {plan.schedule}", f"search with --among schedule={','.join(SCHEDULES)}"
            )  # fmt: skip
        layers = job.layers_of_part
        if job.chunks > 1:
            said["num-layers-per-virtual-pipeline-stage"] = layers
    if "sequence" in plan.parallelism:
        said["sequence-parallel"] = True
    if job.overlaps_tp(NAME, "megatron"):
        said["tp-comm-overlap"] = True
    if cp > 1:
        said |= {
            "context-parallel-size": cp,
            "cp-comm-type": EXCHANGE[job.cp_style],
        }  # fmt: skip
    if ep > 1:
        said["expert-model-parallel-size"] = ep
        if job.experts_tp != plan.tp:
            said["expert-tensor-parallel-size"] = job.experts_tp
    if job.dp > 1:
        if plan.zero not in ZERO:
            raise cannot(NAME, f"zero {plan.zero} with parameters gathered", "search with --among zero=0,1,3")
        said |= ZERO[plan.zero]
    if job.groups > 1:
        said["num-distributed-optimizer-instances"] = job.groups
        if plan.zero == 3:
            said["outer-dp-sharding-strategy"] = "no_shard"
    return {**said, **_recompute(plan.recompute)}


def _optimizer(job: ConfiguredJob) -> dict[str, Any]:
    plan = job.plan
    rule = optimizer(plan.optimizer or "adamw")
    if isinstance(rule, Muon):
        if job.dp > 1 and plan.zero not in MUON:
            raise cannot(NAME, f"optimizer {plan.optimizer} with zero {plan.zero}", "search with --among zero=0,1")
        if job.groups > 1:
            raise cannot(NAME, f"optimizer {plan.optimizer} in groups of replicas", f"leave {HYBRID} out")
        return {
            "optimizer": MUON[plan.zero if job.dp > 1 else 0], "muon-num-ns-steps": rule.steps,
            "muon-use-nesterov": rule.nesterov, "muon-tp-mode": "blockwise",
            "overlap-grad-reduce": False, "use-distributed-optimizer": False,
        }  # fmt: skip
    if rule == Sgd():
        return {"optimizer": "sgd"}
    if type(rule) is not AdamW:
        raise cannot(NAME, f"optimizer {plan.optimizer}", "use adamw, sgd or muon")
    if rule.moments not in DTYPES:
        return {}
    if not plan.zero or job.dp == 1:
        raise cannot(NAME, f"moments in {rule.moments} without its distributed optimizer", "use zero 1")
    return {
        "use-precision-aware-optimizer": True, "exp-avg-dtype": DTYPES[rule.moments],
        "exp-avg-sq-dtype": DTYPES[rule.moments],
    }  # fmt: skip


def _recompute(asked: str) -> dict[str, Any]:
    parts = asked.split("+")
    if asked not in RECOMPUTE and not set(parts) <= set(MODULES):
        raise cannot(NAME, f"recompute {asked}", f"search with --among recompute={','.join(RECOMPUTE)}")
    return RECOMPUTE.get(asked, {"recompute-granularity": "selective", "recompute-modules": parts})


def _batch(job: ConfiguredJob) -> dict[str, Any]:
    if job.precision not in PRECISION:
        raise cannot(NAME, f"precision {job.precision}", f"search with --precision {' or '.join(PRECISION)}")
    if job.plan.quantize not in QUANTIZE:
        raise cannot(NAME, f"quantize {job.plan.quantize}", f"search with --quantize {' or '.join([*QUANTIZE][1:])}")
    said: dict[str, Any] = {"micro-batch-size": job.micro_batch, "global-batch-size": job.global_batch}
    if job.sequence:
        said["seq-length"] = job.sequence
    return {**said, **PRECISION[job.precision], **QUANTIZE[job.plan.quantize]}


def _biases(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Those of attention and of the feed-forward part, which are all there or none.

    Raises:
        InputError: some are.
    """
    attention, inner = (bool(sizes.get(f"{part}_bias")) for part in ("attention", "mlp"))
    if attention != inner:
        raise cannot(NAME, "biases in one part of a block alone", "write the model's sizes yourself")
    return {"disable-bias-linear": not inner}


def _window(sizes: Mapping[str, Any], sequence: int) -> dict[str, Any]:
    """How far each token sees where that is less than the sequence, in all blocks alike.

    Raises:
        InputError: in some blocks alone.
    """
    window, kinds = int(sizes.get("sliding_window", 0)), set(sizes.get("layer_types", ()))
    if not 0 < window < sequence or not sizes.get("use_sliding_window", True) or kinds == {FULL}:
        return {}
    if len(kinds) > 1 or "use_sliding_window" in sizes:
        raise cannot(NAME, f"windows of {window} tokens in some blocks", "write the model's sizes yourself")
    return {"window-size": f"{window - 1},0"}


def _model(job: ConfiguredJob) -> dict[str, Any]:
    said: dict[str, Any] = {"num-layers": job.blocks} if job.blocks else {}
    sizes, family = job.sizes, job.family
    if family not in SIZES:
        return said
    said |= {name: sizes[field] for field, name in SIZES[family].items() if sizes.get(field)}
    if said["max-position-embeddings"] < (job.sequence or 0):
        said["max-position-embeddings"] = job.sequence
    if 0 < sizes.get("num_key_value_heads", 0) < sizes.get("num_attention_heads", 0):
        said |= {"group-query-attention": True, "num-query-groups": sizes["num_key_value_heads"]}
    if family != "gpt":
        said |= {**LLAMA_LIKE, **OWN.get(family, {})}
        said |= _biases(sizes) | _window(sizes, job.sequence or 0)
    if not sizes.get("tie_word_embeddings", True):
        said["untie-embeddings-and-output-weights"] = True
    return said
