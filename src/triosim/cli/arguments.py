"""What ``triosim train`` and ``infer`` take: the fields of a plan, of rules and of a fidelity, and other options.

What help says of the former, and how they are typed, stands beside them in :mod:`triosim.plan` and
:mod:`triosim.fidelity`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from triosim.cli import completion
from triosim.cli.completion import Complete, choices, parts
from triosim.cli.energy_options import PowerFields
from triosim.cli.fields import argument, option, with_fields_of
from triosim.cli.outputs import OUTPUT
from triosim.core.dataclass import dataclass
from triosim.fidelity import NETWORK, PREDICTION, Fidelity
from triosim.plan import BATCH, DIVISION, MEMORY, WORKLOAD, NamedRules, Plan

MACHINE, SEARCH, REQUEST, POST = "Machine", "Many plans", "One request with its cache", "Post-training"
GROUPS = (WORKLOAD, MACHINE, DIVISION, BATCH, MEMORY, NETWORK, PREDICTION, SEARCH, OUTPUT)


def _option(
    group: str, name: str, metavar: str | None, help: str, default: Any = None, complete: Complete | None = None
) -> Any:
    return option(name, help=help, default=default, group=group, metavar=metavar, complete=complete)


@dataclass(frozen=True)
@with_fields_of(Plan, NamedRules, Fidelity, groups=GROUPS)
class StepOptions:
    """What ``train`` and ``infer`` take but of power and energy."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Fields of a plan or a fidelity."""

    workload: str = argument(
        "WORKLOAD",
        "A trace (.triosim, a TrioSim CSV folder, Kineto JSON with or without its execution trace), a model's name "
        "(triosim models), a model's configuration file, or a network (ONNX, nn-Meter's JSON).",
        complete=completion.workloads,
    )
    precision: str | None = _option(
        WORKLOAD, "--precision", "TYPE",
        "Of a model by name: float32, tfloat32 (products in TF32), bfloat16, float16, or of float32 parameters under "
        "PyTorch's autocast: autocast-bfloat16, autocast-float16.",
        complete=choices("float32", "tfloat32", "bfloat16", "float16", "autocast-bfloat16", "autocast-float16"),
    )  # fmt: skip
    attention: str | None = _option(
        WORKLOAD, "--attention", "KERNELS",
        "Of a model by name: unfused, flash1, flash2, flash3, cudnn, or auto, what PyTorch runs (default: the "
        "stack's, else auto).",
        complete=choices("auto", "unfused", "flash1", "flash2", "flash3", "cudnn"),
    )  # fmt: skip
    lora: str | None = _option(
        WORKLOAD, "--lora", "RANK",
        "Of a model by name: adapters of that rank beside frozen weights, with options as "
        "16,targets=q_proj+v_proj,base=nf4,dora=on (targets all, attention or names; base same, nf4 or quantized).",
    )  # fmt: skip
    packing: str | None = _option(
        WORKLOAD, "--packing", "LENGTH|FILE",
        "Sequences hold documents of that many tokens, or of the lengths in a file, which attention does not look "
        "beyond.",
        complete=completion.files,
    )  # fmt: skip
    step: str | None = _option(
        WORKLOAD, "--step", "STEP", "Step of a foreign trace with several: its number, median or all (default median).",
        complete=choices("median", "all"),
    )  # fmt: skip
    input_shape: list[str] | None = _option(
        WORKLOAD, "--input-shape", "NAME=SIDES",
        "Of an input that an ONNX model leaves open, as x=1,3,224,224; repeatable.",
    )  # fmt: skip
    trace_batch_size: int | None = _option(
        WORKLOAD, "--trace-batch-size", "N",
        "Samples of the recorded step, where the trace does not say or guesses.",
    )  # fmt: skip
    batch_trace: str | None = _option(
        WORKLOAD, "--batch-trace", "FILE",
        "The same step traced at another batch size, to see what grows with it.", complete=completion.files,
    )  # fmt: skip
    also: list[str] | None = _option(
        WORKLOAD, "--also", "FILE",
        "The same step recorded on another device, to carry operator times over from both; repeatable.",
        complete=completion.files,
    )  # fmt: skip
    variation: str | None = _option(
        PREDICTION, "--variation", "WHAT=SPREAD,...",
        "What varies from iteration to iteration: devices, operators, transfers with a standard deviation, stragglers "
        "with share and factor, as devices=0.02,transfers=0.1,stragglers=0.01x1.5.",
    )  # fmt: skip
    system: str | None = _option(
        MACHINE, "--system", "NAME|FILE", "Ready system (triosim systems) or a file that describes one.",
        complete=completion.systems,
    )  # fmt: skip
    nodes: int | None = _option(MACHINE, "--nodes", "N", "Servers of that system (default: as many as the plan needs).")
    device: str | None = _option(
        MACHINE, "--device", "NAME|FILE", "Device (triosim devices) or a file that describes one.",
        complete=completion.devices,
    )  # fmt: skip
    devices: int | None = _option(MACHINE, "--devices", "N", "How many (default: as many as the plan needs).")
    topology: str | None = _option(
        MACHINE, "--topology", "NAME",
        "switch, full, ring, mesh, torus, tree, fat-tree, ... (default switch; docs/systems.md).",
        complete=parts("triosim.hardware.topology:TOPOLOGIES"),
    )  # fmt: skip
    topology_option: list[str] | None = _option(
        MACHINE, "--topology-option", "NAME=VALUE", "Of the topology, as oversubscription=2 of a fat-tree; repeatable."
    )
    shape: str | None = _option(MACHINE, "--shape", "AxB", "Shape of a mesh, torus or tree, for example 4x2.")
    link: str | None = _option(
        MACHINE, "--link", "BANDWIDTH", "Of a link, one direction, as 450GB/s; or a link's name.",
        complete=completion.links,
    )  # fmt: skip
    latency: str | None = _option(MACHINE, "--latency", "TIME", "One way over one logical hop, as 5us (default 0).")
    host_link: str | None = _option(
        MACHINE, "--host-link", "BANDWIDTH", "Between each device and host memory.", complete=completion.links
    )
    pool_link: str | None = _option(
        MACHINE, "--pool-link", "BANDWIDTH", "Between each device and a shared memory pool.", complete=completion.links
    )
    straggler: list[str] | None = _option(
        MACHINE, "--straggler", "DEVICES=FACTOR",
        "Devices that take so many times as long to compute, as 5=1.25 or 8-15=1.1; repeatable.",
    )  # fmt: skip
    routing: str | None = _option(
        MACHINE, "--routing", "NAME", "shortest, ecmp or static (default: the system's, else shortest).",
        complete=parts("triosim.network.routing:ROUTINGS"),
    )  # fmt: skip
    routing_option: list[str] | None = _option(
        MACHINE, "--routing-option", "NAME=VALUE", "Of the routing, as seed=7 of ecmp; repeatable."
    )
    fit: bool = _option(MEMORY, "--fit", None, "Also find the largest batch that fits in memory.", default=False)
    sweep: list[str] | None = _option(
        SEARCH, "--sweep", "NAME=A,B,...",
        "Predict every combination of such values and rank them: tp=1,2,4,8 zero=0,1 micro-batch-size=1,2 ...; any "
        "field of a plan, and options of parts as schedule.chunks=2,4.",
    )  # fmt: skip
    workers: int = _option(SEARCH, "--workers", "N", "Processes that share a sweep (default 1).", default=1)
    executor: str = _option(
        SEARCH, "--executor", "NAME",
        "Who runs them: local, processes of this machine, or ray, a Ray cluster (default local).", default="local",
        complete=parts("triosim.search.executor:EXECUTORS"),
    )  # fmt: skip
    compare: list[str] | None = _option(
        SEARCH, "--compare", "NAME=VALUE,...",
        "Also predict the plan with such values instead, as tp=4,pp=2, and show what makes the difference; repeatable.",
    )  # fmt: skip
    csv: str | None = _option(
        SEARCH, "--csv", "FILE", "Write the plans of a sweep as a table; --json writes them too.",
        complete=completion.files,
    )  # fmt: skip
    json: str | None = _option(
        OUTPUT, "--json", "FILE", "Write the result as JSON; - writes it, and nothing else, to the terminal.",
        complete=completion.files,
    )  # fmt: skip
    timeline: str | None = _option(
        OUTPUT, "--timeline", "FILE",
        "Write the timeline for Perfetto (.pftrace), or for Chrome and tools of PyTorch (.json, .json.gz); FOLDER/ for "
        "one file per rank.",
        complete=completion.files,
    )  # fmt: skip
    report: Path | None = _option(
        OUTPUT, "--report", "FILE", "Write a self-contained HTML page.", complete=completion.files
    )
    chakra: Path | None = _option(
        OUTPUT, "--chakra", "FOLDER", "Write Chakra execution traces of all ranks.", complete=completion.files
    )
    stats: str | None = _option(
        OUTPUT, "--stats", "FILE", "Write what the prediction took as JSON, instead of a line on standard error.",
        complete=completion.files,
    )  # fmt: skip


@dataclass(frozen=True)
class Options(PowerFields, StepOptions):
    """What ``train`` and ``infer`` take, in the order in which help lists it."""


@dataclass(frozen=True)
class TrainOptions(Options):
    """What ``train`` takes besides: a step of post-training."""

    post: str | None = _option(
        POST, "--post", "RECIPE",
        "A step of several phases instead: dpo, grpo or ppo, with options as grpo,responses=8,minibatches=4,epochs=1; "
        "the batch counts prompts.",
        complete=parts("triosim.posttraining.recipe:RECIPES"),
    )  # fmt: skip
    rollout: str | None = _option(
        POST, "--rollout", "TIME|FILE", "What writing the answers takes, as 40s, or what serve --json wrote of it.",
        complete=completion.files,
    )  # fmt: skip


@dataclass(frozen=True)
class InferOptions(Options):
    """What ``infer`` takes besides: one request with its cache."""

    prompt: int | None = _option(REQUEST, "--prompt", "N", "Tokens of the prompt: TTFT, TPOT, memory.")
    output: int | None = _option(REQUEST, "--output", "N", "Tokens of the output.")
    context: int = _option(REQUEST, "--context", "N", "Tokens in the cache before the prompt (default 0).", default=0)
    weights: str | None = _option(
        REQUEST, "--weights", "TYPE",
        "bf16, fp16, fp8, int8, w4a16, mxfp4 or nvfp4 (default bf16; fp16 where only that has units).",
        complete=choices("bf16", "fp16", "fp8", "int8", "w4a16", "mxfp4", "nvfp4"),
    )  # fmt: skip
    kv_cache: str = _option(
        REQUEST, "--kv-cache", "TYPE", "Of the cache: bf16, fp16, fp8 or int8 (default bf16).", default="bf16",
        complete=choices("bf16", "fp16", "fp8", "int8"),
    )  # fmt: skip
    engine: str | None = _option(
        REQUEST, "--engine", "NAME|FILE.py",
        "Whose kernels, all-reduces and host serve it, as of triosim serve (default vllm).",
        complete=parts("triosim.serving.policy:ENGINES", own=True),
    )  # fmt: skip
    engine_option: list[str] | None = _option(
        REQUEST, "--engine-option", "NAME=VALUE", "Of the engine, as model-runner=2; repeatable."
    )
    front_time: str | None = _option(
        REQUEST, "--front-time", "TIME",
        "HTTP, tokenizer and messages around the engine, before the first token (default 5ms of vllm, sglang and "
        "trtllm, 0s of others).",
    )  # fmt: skip
    state_cache: str | None = _option(
        REQUEST, "--state-cache", "TYPE",
        "Of states of fixed size (Mamba-2, ...): bf16, fp16 or fp32 (default: as the configuration says, or bf16).",
        complete=choices("bf16", "fp16", "fp32"),
    )  # fmt: skip
    pim: str | None = _option(
        REQUEST, "--pim", "WHAT",
        "What goes to memory that computes, as of --device A100+attacc, where it is faster there: attention, all or "
        "off (default attention).",
        complete=choices("attention", "all", "off"),
    )  # fmt: skip
    extrapolate: bool = _option(
        PREDICTION, "--extrapolate", None,
        "A network from a file (ONNX, nn-Meter) may have kernels beyond those that its pack of operator times has.",
        default=False,
    )  # fmt: skip
