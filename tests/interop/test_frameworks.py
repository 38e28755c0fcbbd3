"""Plans as the configuration of a framework, read back as the framework reads it."""

from __future__ import annotations

import argparse
import itertools
import re
import shlex
from dataclasses import replace
from typing import Any

import pytest

from triosim import Plan
from triosim.core.errors import InputError
from triosim.core.guarded import parse_toml
from triosim.interop.frameworks.job import FRAMEWORKS, ConfiguredJob, configuration
from triosim.sources.modelling import configured

SYMBOLS = {"1F1B": "1f1b", "GPipe": "gpipe", "Interleaved1F1B": "interleaved-1f1b", "LoopedBFS": "looped-bfs"}


def _job(workload: str = "llama-3-8b", blocks: int = 32, servers: int = 8, **plan: Any) -> ConfiguredJob:
    sizes = configured(workload)
    return ConfiguredJob(
        plan=Plan(**plan), workload=workload, devices=8 * servers, servers=servers, blocks=blocks, sequence=8192,
        precision="bfloat16", sizes=vars(sizes), family=type(sizes).__module__.rpartition(".")[2],
    )  # fmt: skip


def _plan(tp: int, pp: int, cp: int, ep: int, zero: int, **more: Any) -> dict[str, Any]:
    rules = [name for name, wanted in (("sequence", tp > 1), ("context", cp > 1), ("experts", ep > 1)) if wanted]
    options = {name: str(size) for name, size in (("cp", cp), ("ep", ep)) if size > 1}
    return {
        "tp": tp, "pp": pp, "dp": 64 // (tp * pp), "zero": zero, "global_batch_size": 512, "micro_batches": 4,
        "parallelism": tuple(rules), "parallelism_options": options, **more,
    }  # fmt: skip


PLANS = [
    _plan(tp, pp, cp, ep, zero, recompute=recompute, **schedule)
    for tp, (pp, schedule), cp, ep, zero, recompute in itertools.product(
        (1, 4), ((1, {}), (4, {}), (4, {"schedule": "interleaved-1f1b", "schedule_options": {"chunks": 4}})),
        (1, 2), (1, 2), (1, 2, 3), ("none", "full"),
    )
]  # fmt: skip


def _of_torchtitan(text: str, devices: int) -> dict[str, Any]:
    """A plan from what torchtitan reads; its ranks are pp x replicate x shard x cp x tp, and ep is among them."""
    read = parse_toml(text, "job.toml")
    parallel, training = read["parallelism"], read["training"]
    tp, pp, cp = (parallel[f"{name}_parallel_degree"] for name in ("tensor", "pipeline", "context"))
    shard, whole = parallel["data_parallel_shard_degree"], parallel["data_parallel_replicate_degree"]
    assert tp * pp * cp * shard * whole == devices
    replicas = shard * whole
    local = training["local_batch_size"]
    size = parallel["pipeline_parallel_microbatch_size"] if pp > 1 else local
    if pp > 1:
        assert local * replicas == training["global_batch_size"]  # no accumulation beside the pipeline's own
    schedule: dict[str, Any] = {}
    if pp > 1:
        parts = 32 // parallel["pipeline_parallel_layers_per_stage"]
        schedule = {"schedule": SYMBOLS[parallel["pipeline_parallel_schedule"]]}
        schedule |= {"schedule_options": {"chunks": parts // pp}} if parts > pp else {}
        schedule = {} if schedule == {"schedule": "1f1b"} else schedule
    zero = {"never": 2, "always": 3}[parallel["fsdp_reshard_after_forward"]]
    return _plan(
        tp, pp, cp, parallel["expert_parallel_degree"], zero, recompute=read["activation_checkpoint"]["mode"],
        micro_batches=training["global_batch_size"] // (replicas * size),
        global_batch_size=training["global_batch_size"], **schedule,
    )  # fmt: skip


def _of_megatron(text: str, layers: int) -> dict[str, Any]:
    """A plan from a command line, read by the arguments that Megatron-LM has."""
    words = shlex.split(text.replace("\\\n", " "))
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size",
                 "expert-model-parallel-size", "micro-batch-size", "global-batch-size", "num-layers", "seq-length",
                 "hidden-size", "ffn-hidden-size", "num-attention-heads", "num-query-groups", "recompute-num-layers",
                 "max-position-embeddings", "num-layers-per-virtual-pipeline-stage"):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=1)
    for name in ("sequence-parallel", "use-distributed-optimizer", "overlap-grad-reduce", "use-megatron-fsdp", "bf16",
                 "no-gradient-accumulation-fusion", "group-query-attention", "swiglu", "disable-bias-linear",
                 "untie-embeddings-and-output-weights"):  # fmt: skip
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--recompute-granularity", choices=["full", "selective"], default="none")
    parser.add_argument("--recompute-method", choices=["uniform", "block"])
    parser.add_argument("--recompute-modules", nargs="*")
    parser.add_argument("--cp-comm-type", nargs="+", default=["p2p"])
    parser.add_argument("--data-parallel-sharding-strategy", default="no_shard",
                        choices=["no_shard", "optim", "optim_grads", "optim_grads_params"])  # fmt: skip
    parser.add_argument("--ckpt-format", default="torch_dist", choices=["torch", "torch_dist", "zarr", "fsdp_dtensor"])
    parser.add_argument("--position-embedding-type", choices=["learned_absolute", "rope", "none"])
    parser.add_argument("--normalization", choices=["LayerNorm", "RMSNorm"])
    assert words[0] == "torchrun"
    found = parser.parse_args(words[words.index("pretrain_gpt.py") + 1 :])
    assert found.num_layers == layers
    tp, pp, cp = found.tensor_model_parallel_size, found.pipeline_model_parallel_size, found.context_parallel_size
    assert found.sequence_parallel == (tp > 1)
    replicas = 64 // (tp * pp * cp)
    zero = 3 if found.use_megatron_fsdp else int(found.use_distributed_optimizer)
    schedule: dict[str, Any] = {}
    if found.num_layers_per_virtual_pipeline_stage > 1:
        chunks = layers // pp // found.num_layers_per_virtual_pipeline_stage
        schedule = {"schedule": "interleaved-1f1b", "schedule_options": {"chunks": chunks}}
    assert cp == 1 or found.cp_comm_type == ["all_gather"]
    return _plan(
        tp, pp, cp, found.expert_model_parallel_size, zero, recompute=found.recompute_granularity,
        micro_batches=found.global_batch_size // (replicas * found.micro_batch_size),
        global_batch_size=found.global_batch_size, **schedule,
    )  # fmt: skip


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_configuration_read_back_is_the_plan(framework: str) -> None:
    said = 0
    for plan in PLANS:
        job = _job(**plan)
        if plan["zero"] == {"torchtitan": 1, "megatron": 2}[framework]:
            with pytest.raises(InputError, match=f"{framework} cannot say zero {plan['zero']}"):
                configuration(framework, job)
            continue
        text = configuration(framework, job)
        said += 1
        read = _of_torchtitan(text, 64) if framework == "torchtitan" else _of_megatron(text, 32)
        assert read == plan
    assert said == len(PLANS) * 2 // 3


def test_torchtitan_knows_the_model() -> None:
    plan = _plan(4, 1, 1, 1, 3)
    read = parse_toml(configuration("torchtitan", _job(**plan)), "job.toml")
    assert read["model"] == {"name": "llama3", "flavor": "8B"}
    assert read["training"] == {
        "local_batch_size": 8, "global_batch_size": 512, "seq_len": 8192, "mixed_precision_param": "bfloat16"
    }  # fmt: skip
    text = configuration("torchtitan", _job("gpt3-13b", 40, **plan))
    assert text.startswith('# [model]: name and flavor of "gpt3-13b" are yours\n')
    assert "model" not in parse_toml(text, "job.toml")


def test_ddp_alone_is_replication() -> None:
    plan = {**_plan(1, 1, 1, 1, 0), "recompute": "full/2"}
    read = parse_toml(configuration("torchtitan", _job(**plan)), "job.toml")
    assert read["parallelism"]["data_parallel_replicate_degree"] == 64
    assert read["parallelism"]["data_parallel_shard_degree"] == 1
    assert read["activation_checkpoint"] == {"mode": "selective", "selective_ac_option": "2"}


@pytest.mark.parametrize(
    ("quantize", "recipe"),
    [("fp8-delayed", "delayed"), ("fp8-current", "tensorwise"), ("fp8-block", "blockwise"), ("mxfp8", "mxfp8")],
)
def test_megatron_multiplies_in_8_bits(quantize: str, recipe: str) -> None:
    words = shlex.split(configuration("megatron", _job(**_plan(4, 1, 1, 1, 1), quantize=quantize)).replace("\\\n", ""))
    assert words[words.index("--fp8-recipe") + 1] == recipe
    assert "--fp8-recipe" not in configuration("megatron", _job(**_plan(4, 1, 1, 1, 1)))
    with pytest.raises(InputError, match="megatron cannot say quantize fp8-row"):
        configuration("megatron", _job(**_plan(4, 1, 1, 1, 1), quantize="fp8-row"))


def test_groups_of_hybrid_sharding_are_replicas_of_shards() -> None:
    """torchtitan counts shards without the ranks that share their samples."""
    plan = _plan(4, 1, 2, 1, 3)
    options = {**plan["parallelism_options"], "dp_replicate": 2}
    rules = (*plan["parallelism"][:-1], "hsdp", *plan["parallelism"][-1:])
    job = _job(**{**plan, "parallelism": rules, "parallelism_options": options})
    table = parse_toml(configuration("torchtitan", job), "job.toml")["parallelism"]
    assert table["data_parallel_replicate_degree"] == 2
    assert table["data_parallel_shard_degree"] == 64 // 4 // 2 // 2
    assert table["context_parallel_degree"] == 2


@pytest.mark.parametrize("zero", [1, 3])
def test_megatron_has_copies_of_its_distributed_optimizer(zero: int) -> None:
    plan = {**_plan(4, 1, 1, 1, zero), "parallelism": ("sequence", "hsdp"), "parallelism_options": {"dp-replicate": 4}}
    words = shlex.split(configuration("megatron", _job(**plan)).replace("\\\n", ""))
    assert words[words.index("--num-distributed-optimizer-instances") + 1] == "4"
    assert ("--outer-dp-sharding-strategy" in words) == (zero == 3)


@pytest.mark.parametrize(("framework", "name"), [
    ("megatron", "expert-tensor-parallel-size"), ("torchtitan", "expert_tensor_parallel_degree"),
])  # fmt: skip
def test_whole_experts_are_said(framework: str, name: str) -> None:
    plan = _plan(4, 1, 1, 8, {"megatron": 1, "torchtitan": 3}[framework])
    whole = {**plan, "parallelism_options": {**plan["parallelism_options"], "etp": 1}}
    texts = [configuration(framework, _job("mixtral-8x22b", 56, **one)) for one in (plan, whole)]
    said = [re.search(rf"{name}[ =]+(\d+)", text) for text in texts]
    assert said[1] is not None
    assert said[1][1] == "1"
    assert said[0] is None or said[0][1] == "4"


def _sized(family: str, **more: Any) -> ConfiguredJob:
    sizes = {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 100,
        **more,
    }  # fmt: skip
    job = _job(servers=1, blocks=4, dp=8, global_batch_size=8, micro_batches=1)
    return replace(job, workload="own", sizes=vars(configured(family, sizes)), family=family)


def test_megatron_knows_biases_and_windows() -> None:
    both = configuration("megatron", _sized("llama", attention_bias=True, mlp_bias=True))
    assert "disable-bias-linear" not in both
    assert "disable-bias-linear" in configuration("megatron", _sized("llama"))
    assert "--window-size 4095,0" in configuration("megatron", _sized("mistral", sliding_window=4096))
    assert "window-size" not in configuration("megatron", _sized("mistral", sliding_window=8192))
    windows = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 2}
    for job, said in (
        (_sized("llama", mlp_bias=True), "biases in one part of a block alone"),
        (_sized("qwen3", **windows), "windows of 64 tokens in some blocks"),
    ):
        with pytest.raises(InputError, match=f"megatron cannot say {said}"):
            configuration("megatron", job)


def test_megatron_knows_the_sizes_of_experts_and_of_groups() -> None:
    text = configuration("megatron", _job("mixtral-8x22b", 56, **_plan(4, 1, 1, 8, 1)))
    words = shlex.split(text.replace("\\\n", " "))
    for name, value in (("num-experts", 8), ("moe-router-topk", 2), ("num-query-groups", 8), ("hidden-size", 6144),
                        ("ffn-hidden-size", 16384), ("expert-model-parallel-size", 8)):  # fmt: skip
        assert words[words.index(f"--{name}") + 1] == str(value)
    assert "--untie-embeddings-and-output-weights" in words
    parts = configuration("megatron", _job(**{**_plan(4, 1, 1, 1, 1), "recompute": "layernorm+moe_act"}))
    assert "--recompute-granularity selective \\\n  --recompute-modules layernorm moe_act \\\n" in parts
    gpt = configuration("megatron", _job("gpt3-175b", 96, **_plan(4, 8, 1, 1, 0)))
    assert "--swiglu" not in gpt
    assert "--overlap-grad-reduce" in gpt
    assert "--max-position-embeddings 8192" in gpt  # as long as what is trained


@pytest.mark.parametrize(
    ("framework", "changed", "said"),
    [
        ("torchtitan", {"tp": 4, "parallelism": ()}, "tp 4 without sequence parallelism"),
        ("torchtitan", {"zero": 0}, "zero 0 beside other parallelism"),
        ("torchtitan", {"schedule": "zb-h1"}, "schedule zb-h1"),
        ("torchtitan", {"recompute": "selective"}, "recompute selective"),
        ("torchtitan", {"quantize": "fp8-delayed"}, "quantize fp8-delayed"),
        ("torchtitan", {"parallelism": ("sequence", "vocabulary")}, "the rule of parallelism vocabulary"),
        ("torchtitan", {"parallelism_options": {"cp": "2", "cp-style": "ulysses"}}, "cp-style ulysses"),
        ("megatron", {"schedule": "gpipe"}, "schedule gpipe"),
        ("megatron", {"recompute": "full/2"}, "recompute full/2"),
        ("megatron", {"offload": ("optimizer",)}, "offload"),
        ("megatron", {"axis_order": ("dp", "pp", "tp")}, "axis-order"),
        ("megatron", {"optimizer": "lion"}, "optimizer lion"),
        ("megatron", {"optimizer": "muon"}, "optimizer muon with zero 3"),
        ("megatron", {"optimizer": "muon", "zero": 1, "parallelism": ("hsdp",)}, "optimizer muon in groups"),
        ("megatron", {"optimizer": "adamw,moments=float16", "zero": 0}, "moments in float16 without"),
        ("megatron", {"optimizer": "sgd,momentum=off"}, "optimizer sgd,momentum=off"),
        ("torchtitan", {"optimizer": "muon"}, "optimizer muon"),
    ],
)
def test_what_a_framework_cannot_say_is_a_sentence(framework: str, changed: dict[str, Any], said: str) -> None:
    plan = _plan(4, 1, 2, 1, 3) if "parallelism_options" in changed else _plan(4, 4, 1, 1, 3)
    configuration(framework, _job(**plan))
    with pytest.raises(InputError, match=f"^{framework} cannot say {said}"):
        configuration(framework, _job(**{**plan, **changed}))


@pytest.mark.parametrize(
    ("framework", "style", "words"),
    [
        ("torchtitan", "torch", ("enable_async_tensor_parallel = true", "[compile]\nenable = true")),
        ("megatron", "megatron", ("--tp-comm-overlap",)),
    ],
)
def test_collectives_beside_products_are_said(framework: str, style: str, words: tuple[str, ...]) -> None:
    plain = _plan(4, 1, 1, 1, 3)
    without = configuration(framework, _job(**plain))
    rules = (*plain["parallelism"], "async-tp")
    text = configuration(
        framework, _job(**{**plain, "parallelism": rules, "parallelism_options": {"overlap-style": style}})
    )
    assert all(word in text and word not in without for word in words)
    other = {"torch": "megatron", "megatron": "torch"}[style]
    with pytest.raises(InputError, match=f"cannot say async-tp as {other} has it.*overlap-style={style}"):
        configuration(
            framework, _job(**{**plain, "parallelism": rules, "parallelism_options": {"overlap-style": other}})
        )


def test_optimizers_are_said_in_megatrons_words() -> None:
    """Muon with neither overlap nor distributed optimizer (arguments.py refuses them); moments by their types."""
    for zero, name in ((0, "muon"), (1, "dist_muon")):
        words = shlex.split(configuration("megatron", _job(**_plan(4, 1, 1, 1, zero, optimizer="muon,steps=6"))))
        said = {word: after for word, after in itertools.pairwise(words) if word.startswith("--")}
        assert (said["--optimizer"], said["--muon-num-ns-steps"], said["--muon-tp-mode"]) == (name, "6", "blockwise")
        assert "--muon-use-nesterov" in said
        assert not {"--overlap-grad-reduce", "--use-distributed-optimizer"} & said.keys()
    plain = configuration("megatron", _job(**_plan(4, 1, 1, 1, 1, optimizer="muon,nesterov=off")))
    assert "--muon-use-nesterov" not in plain
    moments = configuration("megatron", _job(**_plan(4, 1, 1, 1, 1, optimizer="adamw,moments=bfloat16")))
    assert "--use-precision-aware-optimizer \\\n  --exp-avg-dtype bf16 \\\n  --exp-avg-sq-dtype bf16" in moments
    assert "--use-distributed-optimizer" in moments
    assert "--optimizer sgd" in configuration("megatron", _job(**_plan(4, 1, 1, 1, 1, optimizer="sgd")))
    assert configuration("megatron", _job(**_plan(4, 1, 1, 1, 1, optimizer="adamw"))) == configuration(
        "megatron", _job(**_plan(4, 1, 1, 1, 1))
    )


def test_blocks_that_stages_do_not_share_equally_are_a_sentence() -> None:
    with pytest.raises(InputError, match="31 blocks are not divided equally among 4 parts"):
        configuration("megatron", _job(blocks=31, **_plan(4, 4, 1, 1, 1)))
    with pytest.raises(InputError, match="unknown framework"):
        configuration("deepspeed", _job(**_plan(4, 4, 1, 1, 1)))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_precision_without_words_is_a_sentence(framework: str) -> None:
    job = _job(**_plan(4, 1, 1, 1, 3))
    precision = {"torchtitan": "float16", "megatron": "float64"}[framework]
    with pytest.raises(InputError, match=f"precision {precision}: search with --precision"):
        configuration(framework, ConfiguredJob(**{**vars(job), "precision": precision}))
