"""torchtitan's job configuration: a TOML file of its releases up to 0.2, for ``CONFIG_FILE=... ./run_train.sh``.

Names and meanings are those of ``torchtitan/config/job_config.py``.  Tensor parallelism there is always with sequence
parallelism; parameters are divided by FSDP2 (``fsdp_reshard_after_forward`` ``never`` and ``always`` are ZeRO 2 and 3),
or kept whole by DDP where nothing else is divided.
"""

from __future__ import annotations

import json
from typing import Any

from triosim.interop.frameworks.job import ASYNC_TP, HYBRID, ConfiguredJob, cannot

NAME = "torchtitan"
SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved-1f1b": "Interleaved1F1B", "looped-bfs": "LoopedBFS"}
"""Names of ``torch.distributed.pipelining``."""
RECOMPUTE = {
    "none": {"mode": "none"},
    "full": {"mode": "full"},
    "operators": {"mode": "selective", "selective_ac_option": "op"},
}
"""Activation checkpointing; every n-th block is ``full/n`` here and option ``n`` there."""
PRECISION = ("bfloat16", "float32")
RESHARD = {2: "never", 3: "always"}
ROTATE = {"gather": "allgather", "ring": "alltoall"}
"""How context parallelism exchanges keys and values, by ``cp-style``."""
MODELS = {
    "llama-3-8b": ("llama3", "8B"), "llama-3.1-8b": ("llama3", "8B"), "llama-3-70b": ("llama3", "70B"),
    "llama-3.1-70b": ("llama3", "70B"), "llama-3.3-70b": ("llama3", "70B"), "llama-3.1-405b": ("llama3", "405B"),
    "deepseek-v3": ("deepseek_v3", "671B"),
    **{f"qwen3-{size}": ("qwen3", size.upper()) for size in ("0.6b", "1.7b", "4b", "8b", "14b", "32b")},
}  # fmt: skip
"""Model and flavor of models by name."""


def write(job: ConfiguredJob) -> str:
    """The file's text.

    Raises:
        InputError: torchtitan cannot say the plan.
    """
    job.check(NAME, ("sequence", "context", "experts", ASYNC_TP, HYBRID))
    tables: dict[str, dict[str, Any]] = {}
    if job.workload in MODELS:
        name, flavor = MODELS[job.workload]
        tables["model"] = {"name": name, "flavor": flavor}
    tables |= {
        "training": _training(job), "parallelism": _parallelism(job), "activation_checkpoint": _recompute(job)
    }  # fmt: skip
    if job.overlaps_tp(NAME, "torch"):  # which is a pass of the compiler
        tables["parallelism"]["enable_async_tensor_parallel"] = True
        tables["compile"] = {"enable": True, "components": ["model"]}
    text = "\n\n".join(
        "\n".join([f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())])
        for name, table in tables.items()
    )
    if job.workload not in MODELS:
        text = f"# [model]: name and flavor of {json.dumps(job.workload)} are yours\n\n{text}"
    return text + "\n"


def _training(job: ConfiguredJob) -> dict[str, Any]:
    if job.precision not in PRECISION:
        raise cannot(NAME, f"precision {job.precision}", f"search with --precision {' or '.join(PRECISION)}")
    table: dict[str, Any] = {
        # a pipeline cuts what a rank is given; without one it is given pieces
        "local_batch_size": job.micro_batch * (job.pieces if job.plan.pp > 1 else 1),
        "global_batch_size": job.global_batch,
    }
    if job.sequence:
        table["seq_len"] = job.sequence
    return {**table, "mixed_precision_param": job.precision}


def _parallelism(job: ConfiguredJob) -> dict[str, Any]:
    plan, cp, ep = job.plan, job.degree("cp"), job.degree("ep")
    if (plan.tp > 1) != ("sequence" in plan.parallelism):
        raise cannot(
            NAME, f"tp {plan.tp} without sequence parallelism", "search with --among sequence-parallel=on"
        )  # fmt: skip
    table: dict[str, Any] = {}
    if plan.zero in RESHARD:
        table |= {
            "data_parallel_replicate_degree": job.groups, "data_parallel_shard_degree": job.replicas // job.groups,
            "fsdp_reshard_after_forward": RESHARD[plan.zero],
        }  # fmt: skip
    elif plan.zero and job.dp > 1:
        raise cannot(NAME, f"zero {plan.zero}, optimizer states alone", "search with --among zero=2,3")
    elif job.dp > 1 and (plan.tp > 1 or plan.pp > 1 or cp > 1 or ep > 1):
        raise cannot(NAME, "zero 0 beside other parallelism, as it has DDP alone", "search with --among zero=2,3")
    else:
        table |= {"data_parallel_replicate_degree": job.dp, "data_parallel_shard_degree": 1}
    table |= {"tensor_parallel_degree": plan.tp, "pipeline_parallel_degree": plan.pp}
    if plan.pp > 1:
        if plan.schedule not in SCHEDULES:
            known = ", ".join(SCHEDULES)
            raise cannot(NAME, f"schedule {plan.schedule}", f"search with --among schedule= one of {known}")
        table |= {
            "pipeline_parallel_schedule": SCHEDULES[plan.schedule],
            "pipeline_parallel_microbatch_size": job.micro_batch,
            "pipeline_parallel_layers_per_stage": job.layers_of_part,
            "pipeline_parallel_first_stage_less_layers": 0, "pipeline_parallel_last_stage_less_layers": 0,
        }  # fmt: skip
    table["context_parallel_degree"] = cp
    if cp > 1:
        if job.cp_style not in ROTATE:
            raise cannot(NAME, f"cp-style {job.cp_style}", f"use {' or '.join(ROTATE)}")
        table["context_parallel_rotate_method"] = ROTATE[job.cp_style]
    table["expert_parallel_degree"] = ep
    if ep > 1 and plan.tp > 1:
        table["expert_tensor_parallel_degree"] = job.experts_tp
    return table


def _recompute(job: ConfiguredJob) -> dict[str, Any]:
    which, _, every = job.plan.recompute.partition("/")
    if which == "full" and every:
        return {"mode": "selective", "selective_ac_option": every}
    if which not in RECOMPUTE:
        raise cannot(NAME, f"recompute {job.plan.recompute}", "search with --among recompute=none,operators,full")
    return dict(RECOMPUTE[which])
