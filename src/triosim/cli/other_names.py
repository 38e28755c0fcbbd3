"""Names that other tools have for our options: who types one is told ours."""

from __future__ import annotations

OTHER_NAMES = {
    "--sp": "--sequence-parallel",
    "--tensor-parallel": "--tp", "--tensor-parallel-size": "--tp", "--tensor-model-parallel-size": "--tp",
    "--pipeline-parallel": "--pp", "--pipeline-parallel-size": "--pp", "--pipeline-model-parallel-size": "--pp",
    "--data-parallel": "--dp", "--data-parallel-size": "--dp", "--context-parallel-size": "--cp",
    "--expert-parallel": "--ep", "--expert-parallel-size": "--ep", "--expert-model-parallel-size": "--ep",
    "--expert-tensor-parallel-size": "--etp", "--fsdp": "--zero 3", "--fsdp2": "--zero 3", "--ddp": "--dp",
    "--use-distributed-optimizer": "--zero 1", "--zero-stage": "--zero", "--hsdp": "--zero 3 --parallelism hsdp",
    "--chunks": "--schedule interleaved-1f1b --schedule-option chunks=N",
    "--vpp": "--schedule interleaved-1f1b --schedule-option chunks=N",
    "--virtual-pipeline-model-parallel-size": "--schedule interleaved-1f1b --schedule-option chunks=N",
    "--interleaved": "--schedule interleaved-1f1b", "--pipeline-schedule": "--schedule",
    "--gpu": "--device", "--gpus": "--devices", "--num-gpus": "--devices", "--n-gpus": "--devices",
    "--accelerator": "--device", "--num-nodes": "--nodes", "--servers": "--nodes", "--cluster": "--system",
    "--bandwidth": "--link",
    "--global-batch": "--global-batch-size", "--gbs": "--global-batch-size", "--mbs": "--micro-batch-size",
    "--micro-batch": "--micro-batch-size", "--microbatch-size": "--micro-batch-size", "--bs": "--batch-size",
    "--train-micro-batch-size-per-gpu": "--micro-batch-size", "--gradient-accumulation-steps": "--micro-batches",
    "--grad-accum": "--micro-batches", "--num-microbatches": "--micro-batches",
    "--seq-length": "--seq-len", "--seqlen": "--seq-len", "--sequence-length": "--seq-len",
    "--context-length": "--seq-len", "--dtype": "--precision", "--bf16": "--precision bfloat16",
    "--fp16": "--precision float16", "--fp8": "--quantize fp8-delayed",
    "--fp8-dot-product-attention": "--quantize-attention", "--fp8-dpa": "--quantize-attention",
    "--activation-checkpointing": "--recompute", "--gradient-checkpointing": "--recompute",
    "--recompute-granularity": "--recompute", "--cpu-offload": "--offload optimizer",
    "--cpu-offloading-num-layers": "--offload activations:N", "--framework": "--stack",
    "--output": "--json", "--out": "--json", "--trace": "--timeline", "--html": "--report",
    "--rate": "--arrivals poisson:N", "--qps": "--arrivals poisson:N", "--request-rate": "--arrivals poisson:N",
    "--num-requests": "--requests", "--num-prompts": "--requests", "--scheduler": "--engine",
    "--input-len": "--prompt", "--output-len": "--output", "--max-tokens": "--output",
}  # fmt: skip
"""What Megatron-LM, DeepSpeed, torchtitan, vLLM and people call an option -> what it is called here."""


def our_name(name: str, known: frozenset[str]) -> str | None:
    """What an option that does not exist is called here; None where that is not known, or none of the command's.

    Args:
        name: as typed, ``_`` or ``-``.
        known: options of the command.
    """
    ours = OTHER_NAMES.get(name.replace("_", "-"))
    return ours if ours is not None and ours.split()[0] in known else None
