"""What ``triosim serve`` takes."""

from __future__ import annotations

from triosim.cli import completion
from triosim.cli.energy_options import CLOCK, CONSTANT, POWER_CAP
from triosim.cli.fields import argument, option
from triosim.cli.outputs import OUTPUT
from triosim.core.dataclass import dataclass

MACHINE, MODEL, ENGINE, TRAFFIC = "Machine", "Model", "Engine and fleet", "Traffic"
SEARCH = "Many fleets"


@dataclass(frozen=True)
class ServeOptions:
    """What ``serve`` takes, in the order in which help lists it."""

    model: str = argument(
        "MODEL",
        "Name of a model (triosim models), a configuration file, or a fleet of pools (TOML).",
        complete=completion.workloads,
    )
    weights: str | None = option(
        "--weights",
        help="bf16, fp16, fp8, int8, w4a16, mxfp4 or nvfp4 (default bf16; fp16 where only that has units).",
        group=MODEL,
        metavar="TYPE", complete=completion.choices("bf16", "fp16", "fp8", "int8", "w4a16", "mxfp4", "nvfp4"),
    )  # fmt: skip
    kv_cache: str = option(
        "--kv-cache", help="Type of the KV cache: bf16, fp16, fp8 or int8 (default bf16).", default="bf16",
        group=MODEL, metavar="TYPE", complete=completion.choices("bf16", "fp16", "fp8", "int8"),
    )  # fmt: skip
    state_cache: str | None = option(
        "--state-cache",
        help="Type of states of fixed size (Mamba-2, ...): bf16, fp16 or fp32 (default: as the configuration says, or "
        "the engine keeps them).",
        group=MODEL, metavar="TYPE", complete=completion.choices("bf16", "fp16", "fp32"),
    )  # fmt: skip
    image_size: int | None = option(
        "--image-size", help="Pixels along each side of an image (diffusion models; default: the model's).",
        group=MODEL, metavar="N",
    )  # fmt: skip
    step_cache: str | None = option(
        "--step-cache",
        help="Denoising steps that use what an earlier one left, as 3,share=0.3: two of three take that of a whole "
        "one.",
        group=MODEL, metavar="HOW",
    )  # fmt: skip
    stack: str | None = option(
        "--stack", help="What runs a diffusion model: torch-compile, ... (docs/stacks.md; default: plain PyTorch).",
        group=MODEL, metavar="NAME|FILE.toml",
    )  # fmt: skip
    max_length: int | None = option(
        "--max-length", help="Longest prompt and output together (default: the model's).", group=MODEL, metavar="N"
    )
    system: str | None = option(
        "--system", help="Ready system (triosim systems) or a file that describes one.", group=MACHINE,
        metavar="NAME|FILE", complete=completion.systems,
    )  # fmt: skip
    nodes: int | None = option("--nodes", help="Servers of that system.", group=MACHINE, metavar="N")
    device: str | None = option(
        "--device", help="Device (triosim devices), instead of a system.", group=MACHINE, metavar="NAME|FILE",
        complete=completion.devices,
    )  # fmt: skip
    devices: int | None = option(
        "--devices", help="How many (default: as many as the replicas need).", group=MACHINE, metavar="N"
    )
    topology: str | None = option(
        "--topology", help="How they are joined (default switch).", group=MACHINE, metavar="NAME",
        complete=completion.parts("triosim.hardware.topology:TOPOLOGIES"),
    )  # fmt: skip
    link: str | None = option(
        "--link", help="Bandwidth of a link, one direction; or a link's name.", group=MACHINE, metavar="BANDWIDTH",
        complete=completion.links,
    )  # fmt: skip
    latency: str | None = option("--latency", help="Of a link.", group=MACHINE, metavar="TIME")
    power_cap: str | None = option("--power-cap", help=POWER_CAP, group=MACHINE, metavar="WATTS")
    clock: str | None = option("--clock", help=CLOCK, group=MACHINE, metavar="MHZ")
    engine: str | None = option(
        "--engine",
        help="vllm, sglang, trtllm, sarathi, orca, vllm-v0, vllm-2023, lightllm, faster-transformer, or yours "
        "(default vllm); of diffusion models diffusers or continuous (default diffusers).",
        group=ENGINE, metavar="NAME|FILE.py",
        complete=completion.parts("triosim.serving.policy:ENGINES", own=True),
    )  # fmt: skip
    engine_option: list[str] | None = option(
        "--engine-option", help="Of the engine, as max-tokens=2048; repeatable.", group=ENGINE, metavar="NAME=VALUE"
    )
    tp: int = option("--tp", help="Devices that share each layer (default 1).", default=1, group=ENGINE, metavar="N")
    cp: int = option(
        "--cp", help="Devices that share the tokens of an image, beside --tp (diffusion transformers; default 1).",
        default=1, group=ENGINE, metavar="N",
    )  # fmt: skip
    cp_style: str | None = option(
        "--cp-style",
        help="How these get what attention needs: ulysses, ring, usp (both) or gather (default ulysses).",
        group=ENGINE, metavar="STYLE", complete=completion.choices("ulysses", "ring", "usp", "gather"),
    )  # fmt: skip
    cp_ulysses: int | None = option(
        "--cp-ulysses", help="Of usp, neighbours that exchange heads; the keys of these go round.",
        group=ENGINE, metavar="N",
    )  # fmt: skip
    cfg_parallel: int = option(
        "--cfg-parallel",
        help="Groups of such devices that share the two samples of a guided step: 1 or 2 (default 1).",
        default=1, group=ENGINE, metavar="N",
    )  # fmt: skip
    pp: int = option("--pp", help="Pipeline stages (default 1).", default=1, group=ENGINE, metavar="N")
    dp: int = option(
        "--dp",
        help="Ranks of data-parallel attention in each replica, whose experts all its devices share (default 1).",
        default=1, group=ENGINE, metavar="N",
    )  # fmt: skip
    ep: int = option(
        "--ep",
        help="Ranks of the --tp devices that have whole experts of their own (default 1: all divide each expert).",
        default=1, group=ENGINE, metavar="N",
    )  # fmt: skip
    expert_skew: float | None = option(
        "--expert-skew",
        help="How many times the mean the fullest device's experts are chosen then, but for chance.",
        group=ENGINE, metavar="FACTOR",
    )  # fmt: skip
    replicas: int = option("--replicas", help="Copies of the model (default 1).", default=1, group=ENGINE, metavar="N")
    prefill_replicas: int | None = option(
        "--prefill-replicas", help="Copies that only compute prompts.", group=ENGINE, metavar="N"
    )
    decode_replicas: int | None = option(
        "--decode-replicas", help="Copies that only decode, to which their KV caches are sent.", group=ENGINE,
        metavar="N",
    )  # fmt: skip
    transfer: str | None = option(
        "--transfer", help="How these are sent: whole, layers (as they are computed), none (default whole).",
        group=ENGINE, metavar="HOW", complete=completion.choices("whole", "layers", "none"),
    )  # fmt: skip
    order: str | None = option(
        "--order", help="Who is chosen first: prefill-first or decode-first (default prefill-first).", group=ENGINE,
        metavar="ORDER", complete=completion.choices("prefill-first", "decode-first"),
    )  # fmt: skip
    local_prefill: int | None = option(
        "--local-prefill", help="Prompt tokens, not found in its cache, that a decoding copy computes itself at most.",
        group=ENGINE, metavar="N",
    )  # fmt: skip
    autoscale: str | None = option(
        "--autoscale",
        help="As many of the --replicas as the requests ask for: outstanding ones a replica, as "
        "target=32,least=1,every=15s,down=5min.",
        group=ENGINE, metavar="HOW",
    )  # fmt: skip
    cold_start: str | None = option(
        "--cold-start",
        help="Where a replica's weights come from when it starts: host, network, or a storage, by its bandwidth, as "
        "5GB/s; or how long that takes; with start=30s beside (default host).",
        group=ENGINE, metavar="HOW",
    )  # fmt: skip
    mtbf: str = option(
        "--mtbf", help="Of one device: mean time between failures, or none (default none).", default="none",
        group=ENGINE, metavar="TIME",
    )  # fmt: skip
    repair: str | None = option(
        "--repair", help="From a failure until another replica begins to start in its place (default 0).",
        group=ENGINE, metavar="TIME",
    )  # fmt: skip
    idle_ok: bool = option(
        "--idle-ok", help="Leave devices without a replica if the fleet needs fewer.", default=False, group=ENGINE
    )
    router: str = option(
        "--router",
        help="round-robin, random, least-outstanding, two-choices, session, prefix-aware, or one of yours (default "
        "round-robin).",
        default="round-robin", group=ENGINE, metavar="NAME|FILE.py",
        complete=completion.parts("triosim.serving.router:ROUTERS", own=True),
    )  # fmt: skip
    router_option: list[str] | None = option(
        "--router-option", help="Of the router; repeatable.", group=ENGINE, metavar="NAME=VALUE"
    )
    prefix_caching: str | None = option(
        "--prefix-caching",
        help="on: find what a prompt begins with in the cache; off (default: on under vllm, sglang and trtllm).",
        group=ENGINE, metavar="on|off", complete=completion.choices("on", "off"),
    )  # fmt: skip
    eviction: str = option(
        "--eviction", help="What prefix caching gives up first: lru or lfu (default lru).", default="lru",
        group=ENGINE, metavar="RULE", complete=completion.choices("lru", "lfu"),
    )  # fmt: skip
    preemption: str = option(
        "--preemption",
        help="What becomes of requests that give way: recompute, or swap, to host memory (vllm, vllm-2023, sarathi; "
        "default recompute).",
        default="recompute", group=ENGINE, metavar="HOW", complete=completion.choices("recompute", "swap"),
    )  # fmt: skip
    swap_space: str | None = option(
        "--swap-space", help="Host memory for that, for each device (default 4 GiB).", group=ENGINE, metavar="SIZE"
    )
    speculate: str | None = option(
        "--speculate",
        help="Draft tokens: ngram|eagle|medusa, or draft,model=NAME; with tokens=4,acceptance=0.8 or, by position, "
        "0.8/0.7/0.6/0.5.",
        group=ENGINE, metavar="HOW",
    )  # fmt: skip
    lora: str | None = option(
        "--lora", help="Adapters that requests ask for, as 64,rank=16,slots=8,zipf=1.", group=ENGINE, metavar="HOW"
    )
    kv_tier: list[str] | None = option(
        "--kv-tier",
        help="More KV cache, whose reloads are transfers: host:200GB, peer:40GB,device=7, "
        "nvme:2TB,bandwidth=7GB/s[,latency=80us], remote:...; repeatable.",
        group=ENGINE, metavar="TIER",
    )  # fmt: skip
    kv_blocks: int | None = option(
        "--kv-blocks", help="Blocks of each replica's cache (default: what memory leaves).", group=ENGINE, metavar="N"
    )
    memory_utilisation: float | None = option(
        "--memory-utilisation",
        help="Share of the memory that is the engine's (default 0.9; sglang: of weights and cache alone, by default as "
        "its server sets it).",
        group=ENGINE, metavar="X",
    )  # fmt: skip
    host_time: str = option(
        "--host-time", help="That the host needs for a step while the device runs one (default 0).", default="0",
        group=ENGINE, metavar="TIME",
    )  # fmt: skip
    front_time: str | None = option(
        "--front-time",
        help="From when a client asks until the engine knows of it, and back (default 5 ms of vllm, sglang and trtllm, "
        "0 of others).",
        group=ENGINE, metavar="TIME",
    )  # fmt: skip
    step_times: str | None = option(
        "--step-times",
        help="Folder of measured layers that price steps instead: a profiler's of vLLM (dense.csv, attention.csv, "
        "per_sequence.csv), or Vidur's (mlp.csv, attention.csv, all_reduce.csv, send_recv.csv).",
        group=ENGINE, metavar="FOLDER", complete=completion.files,
    )  # fmt: skip
    requests: str | None = option(
        "--requests", help="File of requests, or how many to make up (default 1000).", group=TRAFFIC,
        metavar="FILE|N", complete=completion.files,
    )  # fmt: skip
    arrivals: str | None = option(
        "--arrivals", help="poisson:8, gamma:8,cv=2, constant:8, burst:N[,every=5s] or users:64[,think=5s].",
        group=TRAFFIC, metavar="HOW",
    )  # fmt: skip
    lengths: str | None = option(
        "--lengths",
        help="Of prompt and output together uniform:128-512, zipf:1,max=4096, lognormal:300,sigma=1 or fixed:512; of "
        "each \"prompt=lognormal:1000;output=fixed:128\"; or a file of requests.",
        group=TRAFFIC, metavar="HOW|FILE",
    )  # fmt: skip
    steps: str | None = option(
        "--steps", help="Denoising steps of an image instead, as 30 or uniform:20-50.", group=TRAFFIC, metavar="HOW"
    )
    shared_prefix: str | None = option(
        "--shared-prefix", help="Tokens that prompts begin with in common, as 2048,share=0.9,texts=4.", group=TRAFFIC,
        metavar="HOW",
    )  # fmt: skip
    turns: str | None = option(
        "--turns", help="Conversations of so many requests arrive, as 5,think=30s.", group=TRAFFIC, metavar="HOW"
    )
    sort: bool = option(
        "--sort", help="Put the requests of the file in order of arrival.", default=False, group=TRAFFIC
    )
    seed: int = option("--seed", help="Of what is drawn (default 0).", default=0, group=TRAFFIC, metavar="N")
    slo: str | None = option("--slo", help="Goals, as ttft=p99:2s,tpot=p99:50ms.", group=OUTPUT, metavar="GOALS")
    tpot: str = option(
        "--tpot", help="standard: over output - 1 tokens; vidur: over all of them (default standard).",
        default="standard", group=OUTPUT, metavar="RULE", complete=completion.choices("standard", "vidur"),
    )  # fmt: skip
    find: str | None = option(
        "--find",
        help="rate: the highest rate of requests that keeps the goals of --slo, from the given one on. fleet: the "
        "cheapest fleet that keeps them, of the kinds of --device H100,A100. clock: that of least energy which does.",
        group=SEARCH, metavar="WHAT", complete=completion.choices("rate", "fleet", "clock"),
    )  # fmt: skip
    sweep: list[str] | None = option(
        "--sweep",
        help="Serve with every combination of such values and rank them: tp=1,2,4 engine=vllm,sglang ...; any option "
        "of the groups above, without its dashes.",
        group=SEARCH, metavar="NAME=A,B,...",
    )  # fmt: skip
    workers: int = option(
        "--workers", help="Processes that share a sweep (default 1).", default=1, group=SEARCH, metavar="N"
    )
    interval: str | None = option(
        "--interval", help="on: the 90 % interval of each figure, four more runs; off (default: up to 2000 requests).",
        group=OUTPUT, metavar="on|off", complete=completion.choices("on", "off"),
    )  # fmt: skip
    constant: list[str] | None = option("--constant", help=CONSTANT, group=OUTPUT, metavar="NAME=VALUE")
    json: str | None = option(
        "--json", help="Write the result as JSON; - writes it, and nothing else, to the terminal.", group=OUTPUT,
        metavar="FILE", complete=completion.files,
    )  # fmt: skip
    timeline: str | None = option(
        "--timeline",
        help="Write every step and the life of every request for Perfetto (.pftrace), or as a Chrome trace (.json, "
        ".json.gz); slower: steps are played one by one.",
        group=OUTPUT, metavar="FILE", complete=completion.files,
    )  # fmt: skip
    report: str | None = option(
        "--report", help="Write a page that opens offline: latencies, requests, replicas and KV caches over time.",
        group=OUTPUT, metavar="FILE", complete=completion.files,
    )  # fmt: skip
