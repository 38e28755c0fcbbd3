"""What ``triosim train`` and ``infer`` take: one field for each option, in groups as help lists them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triosim.cli import completion
from triosim.cli.completion import Complete, choices, parts
from triosim.cli.energy_options import PowerFields
from triosim.cli.fields import argument, option

WORKLOAD, MACHINE, DIVISION, BATCH, MEMORY, PREDICTION, NETWORK, SEARCH, OUTPUT, REQUEST = (
    "Workload", "Machine", "How it is divided", "Batch", "Memory", "How it is predicted", "Communication",
    "Many plans", "Output", "One request with its cache",
)  # fmt: skip


def _option(
    group: str, name: str, metavar: str | None, help: str, default: Any = None, complete: Complete | None = None
) -> Any:
    return option(name, help=help, default=default, group=group, metavar=metavar, complete=complete)


@dataclass(frozen=True)
class StepOptions:
    """What ``train`` and ``infer`` take but of power and energy, in the order in which help lists it."""

    workload: str = argument(
        "WORKLOAD",
        "A trace (.triosim, a TrioSim CSV folder, Kineto JSON with or without its execution trace), a model's name "
        "(triosim models) or a model's configuration file.",
        complete=completion.workloads,
    )
    seq_len: int | None = _option(WORKLOAD, "--seq-len", "N", "Tokens per sample (default: the workload's).")
    precision: str | None = _option(
        WORKLOAD, "--precision", "TYPE", "Of a model by name: float32, bfloat16 or float16.",
        complete=choices("float32", "bfloat16", "float16"),
    )  # fmt: skip
    attention: str | None = _option(
        WORKLOAD, "--attention", "KERNELS",
        "Of a model by name: unfused, flash1, flash2, flash3, cudnn, or auto, what PyTorch runs (default: the "
        "stack's, else auto).",
        complete=choices("auto", "unfused", "flash1", "flash2", "flash3", "cudnn"),
    )  # fmt: skip
    step: str | None = _option(
        WORKLOAD, "--step", "STEP", "Step of a foreign trace with several: its number, median or all (default median).",
        complete=choices("median", "all"),
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
    routing: str | None = _option(
        MACHINE, "--routing", "NAME", "shortest, ecmp or static (default: the system's, else shortest).",
        complete=parts("triosim.network.routing:ROUTINGS"),
    )  # fmt: skip
    routing_option: list[str] | None = _option(
        MACHINE, "--routing-option", "NAME=VALUE", "Of the routing, as seed=7 of ecmp; repeatable."
    )
    dp: int | None = _option(DIVISION, "--dp", "N", "Data-parallel replicas (default: fills the devices).")
    tp: int = _option(DIVISION, "--tp", "N", "Tensor-parallel ranks (default 1).", default=1)
    pp: int = _option(DIVISION, "--pp", "N", "Pipeline stages (default 1).", default=1)
    idle_ok: bool = _option(
        DIVISION, "--idle-ok", None, "Leave devices without a rank if the plan needs fewer.", default=False
    )
    axis_order: str | None = _option(
        DIVISION, "--axis-order", "LIST",
        "Axes of the mesh, outermost first; the last has neighbours in the machine (default pp,dp,tp).",
    )  # fmt: skip
    placement: str | None = _option(
        DIVISION, "--placement", "LIST",
        "Devices of the ranks in order, as 0,2,1,3; or grid-cycle: along a ring through the --shape of a mesh.",
    )  # fmt: skip
    zero: int = _option(
        DIVISION, "--zero", "0..3",
        "What data-parallel ranks divide: 1 optimizer states, 2 gradients too, 3 parameters too, as FSDP "
        "(default 0, nothing).",
        default=0,
    )  # fmt: skip
    dp_style: str = _option(
        DIVISION, "--dp-style", "STYLE", "ddp, or dataparallel for torch's DataParallel.", default="ddp",
        complete=choices("ddp", "dataparallel"),
    )  # fmt: skip
    bucket_size: str | None = _option(
        DIVISION, "--bucket-size", "SIZE", "Capacity of DDP's gradient buckets (default 25MiB)."
    )
    tp_style: str = _option(
        DIVISION, "--tp-style", "STYLE", "megatron (column, then row) or gather (every layer) (default megatron).",
        default="megatron", complete=choices("megatron", "gather"),
    )  # fmt: skip
    tp_plan: str | None = _option(
        DIVISION, "--tp-plan", "FILE",
        "TOML, YAML or JSON: module pattern -> colwise, rowwise, gather, vocab or replicate.",
        complete=completion.files,
    )  # fmt: skip
    sequence_parallel: bool = _option(
        DIVISION, "--sequence-parallel", None,
        "Also divide what is between the layers that --tp divides, along the sequence.", default=False,
    )  # fmt: skip
    cp: int = _option(
        DIVISION, "--cp", "N", "Ranks of the data axis that share each sequence (context parallelism).", default=1
    )
    cp_style: str = _option(
        DIVISION, "--cp-style", "STYLE",
        "How attention gets what other ranks have: gather, ring or ulysses (default gather).",
        default="gather", complete=choices("gather", "ring", "ulysses"),
    )  # fmt: skip
    ep: int = _option(
        DIVISION, "--ep", "N", "Ranks of the data axis that have the experts of each layer among them.", default=1
    )
    parallelism: list[str] | None = _option(
        DIVISION, "--parallelism", "NAME|FILE.py", "Another rule of parallelism, also one of yours; repeatable.",
        complete=completion.files,
    )  # fmt: skip
    parallelism_option: list[str] | None = _option(
        DIVISION, "--parallelism-option", "NAME=VALUE", "Of such a rule, as regather=off of sequence; repeatable."
    )
    schedule: str = _option(
        DIVISION, "--schedule", "NAME|FILE.py",
        "Of a pipeline: 1f1b, gpipe, interleaved-1f1b, zb-h1 or one of yours (default 1f1b).",
        default="1f1b", complete=parts("triosim.schedule.actions:SCHEDULES", own=True),
    )  # fmt: skip
    schedule_option: list[str] | None = _option(
        DIVISION, "--schedule-option", "NAME=VALUE", "Of the schedule, as chunks=4 of interleaved-1f1b; repeatable."
    )
    stages: str | None = _option(
        DIVISION, "--stages", "LIST",
        "Modules at which stages after the first begin, comma separated (default: balanced by time).",
    )  # fmt: skip
    batch_size: int | None = _option(
        BATCH, "--batch-size", "N",
        "Samples per replica and iteration (default: the trace's; of a model, its micro-batches).",
    )  # fmt: skip
    global_batch_size: int | None = _option(
        BATCH, "--global-batch-size", "N", "Samples over all replicas, instead of --batch-size."
    )
    micro_batches: int | None = _option(
        BATCH, "--micro-batches", "N", "Parts of a replica's batch (default: those of the recorded step, else 1)."
    )
    iterations: int = _option(BATCH, "--iterations", "N", "Iterations to play (default 1).", default=1)
    recompute: str = _option(
        MEMORY, "--recompute", "WHAT",
        "Run again instead of keeping activations: full (repeated blocks), selective (attention) or none.",
        default="none", complete=choices("full", "selective", "none"),
    )  # fmt: skip
    offload: list[str] | None = _option(
        MEMORY, "--offload", "WHAT",
        "Keep in host memory: optimizer, activations or parameters (of the blocks); repeatable.",
        complete=choices("optimizer", "activations", "parameters"),
    )  # fmt: skip
    place: list[str] | None = _option(
        MEMORY, "--place", "WHAT=WHERE",
        "Where values start: CATEGORY=host|pool|device:N, as weight=host; repeatable.",
    )  # fmt: skip
    fit: bool = _option(MEMORY, "--fit", None, "Also find the largest batch that fits in memory.", default=False)
    overlap: str = _option(
        NETWORK, "--overlap", "on|off",
        "on: communicate while computing; off: every transfer blocks (default on).", default="on",
        complete=choices("on", "off"),
    )  # fmt: skip
    algorithm: str = _option(
        NETWORK, "--algorithm", "NAME", "Of collectives: ring, tree, nvls, ... (default: as NCCL chooses).",
        default="auto", complete=parts("triosim.collectives.algorithm:ALGORITHMS", more=("auto",)),
    )  # fmt: skip
    protocol: str = _option(
        NETWORK, "--protocol", "NAME", "Of collectives: LL, LL128 or Simple (default: as NCCL chooses).",
        default="auto", complete=choices("auto", "LL", "LL128", "Simple"),
    )  # fmt: skip
    solver: str = _option(
        NETWORK, "--solver", "NAME|FILE.py",
        "Network model: max-min, equal-split, circuit, ... or one of yours (default max-min).",
        default="max-min", complete=parts("triosim.engine.solver:SOLVERS", own=True),
    )  # fmt: skip
    solver_option: list[str] | None = _option(
        NETWORK, "--solver-option", "NAME=VALUE", "Of the network model, as setup=80us of circuit; repeatable."
    )
    interference: str = _option(
        NETWORK, "--interference", "X",
        "What computes beside a collective takes so many times as long: auto (as the device), off, or a number "
        "(default auto).",
        default="auto", complete=choices("auto", "off"),
    )  # fmt: skip
    fold: str = _option(
        NETWORK, "--fold", "on|off", "on: play ranks that nothing tells apart once; off: all, to the same result.",
        default="on", complete=choices("on", "off"),
    )  # fmt: skip
    operator_times: str = _option(
        PREDICTION, "--operator-times", "NAME|FILE",
        "auto, recorded, proportional, physical, roofline, li, habitat, a PACK.json (triosim calibrate), a table "
        "of kernels (JSON), a file of external times, or FILE.py with a model of yours (default auto).",
        default="auto", complete=parts("triosim.kernels.model:MODELS", own=True),
    )  # fmt: skip
    operator_option: list[str] | None = _option(
        PREDICTION, "--operator-option", "NAME=VALUE", "Of the operator model; repeatable."
    )
    stack: str | None = _option(
        PREDICTION, "--stack", "NAME|FILE.toml",
        "What the framework does around a model by name: megatron-core, llm-foundry, ... (docs/stacks.md; default: "
        "plain PyTorch).",
        complete=completion.stacks,
    )  # fmt: skip
    host: str | None = _option(
        PREDICTION, "--host", "MODE",
        "Cost of launching: recorded, eager, large-model, compiled, graph or none (default: as the devices).",
        complete=choices("recorded", "eager", "large-model", "compiled", "graph", "none"),
    )  # fmt: skip
    composition: str | None = _option(
        PREDICTION, "--composition", "FILE",
        "What measured iterations taught of composition (a residual, JSON); replaces --host.",
        complete=completion.files,
    )  # fmt: skip
    seed: int = _option(PREDICTION, "--seed", "N", "Of the draws that the interval comes from (default 0).", default=0)
    sweep: list[str] | None = _option(
        SEARCH, "--sweep", "NAME=A,B,...",
        "Predict every combination of such values and rank them: tp=1,2,4,8 zero=0,1 micro-batch-size=1,2 ...; any "
        "field of a plan, and options of parts as schedule.chunks=2,4.",
    )  # fmt: skip
    workers: int = _option(SEARCH, "--workers", "N", "Processes that share a sweep (default 1).", default=1)
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
class InferOptions(Options):
    """What ``infer`` takes besides: one request with its cache."""

    prompt: int | None = _option(REQUEST, "--prompt", "N", "Tokens of the prompt: TTFT, TPOT, memory.")
    output: int | None = _option(REQUEST, "--output", "N", "Tokens of the output.")
    context: int = _option(REQUEST, "--context", "N", "Tokens in the cache before the prompt (default 0).", default=0)
    weights: str = _option(
        REQUEST, "--weights", "TYPE", "bf16, fp16, fp8, int8, w4a16 or mxfp4 (default bf16).", default="bf16",
        complete=choices("bf16", "fp16", "fp8", "int8", "w4a16", "mxfp4"),
    )  # fmt: skip
    kv_cache: str = _option(
        REQUEST, "--kv-cache", "TYPE", "Of the cache: bf16, fp16, fp8 or int8 (default bf16).", default="bf16",
        complete=choices("bf16", "fp16", "fp8", "int8"),
    )  # fmt: skip
