"""``triosim serve``: a fleet of model replicas under traffic."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from triosim.cli import completion
from triosim.cli.command import command, progress, say, wants_summary
from triosim.cli.fields import argument, named, option
from triosim.cli.fields import command as function_of
from triosim.cli.outputs import OUTPUT, present, write_json
from triosim.core.errors import InputError, no_such_file, quoted

if TYPE_CHECKING:
    from triosim.hardware.system import System
    from triosim.serving.deployment import Deployment
    from triosim.serving.metrics import Slo
    from triosim.serving.requests import RequestTable


def register(app: typer.Typer) -> None:
    """Add the command."""
    about = "Predict what a fleet of model replicas does under traffic."
    command(app, "serve")(function_of(ServeOptions, _serve, about))


MACHINE, MODEL, ENGINE, TRAFFIC = "Machine", "Model", "Engine and fleet", "Traffic"


@dataclass(frozen=True)
class ServeOptions:
    """What ``serve`` takes, in the order in which help lists it."""

    model: str = argument(
        "MODEL",
        "Name of a model (triosim models), a configuration file, or a fleet of pools (TOML).",
        complete=completion.workloads,
    )
    weights: str = option(
        "--weights", help="bf16, fp16, fp8, int8, w4a16 or mxfp4 (default bf16).", default="bf16", group=MODEL,
        metavar="TYPE", complete=completion.choices("bf16", "fp16", "fp8", "int8", "w4a16", "mxfp4"),
    )  # fmt: skip
    kv_cache: str = option(
        "--kv-cache", help="Type of the KV cache: bf16, fp16, fp8 or int8 (default bf16).", default="bf16",
        group=MODEL, metavar="TYPE", complete=completion.choices("bf16", "fp16", "fp8", "int8"),
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
    engine: str = option(
        "--engine",
        help="vllm, sglang, trtllm, sarathi, orca, vllm-2023, lightllm, faster-transformer, or one of yours "
        "(default vllm).",
        default="vllm", group=ENGINE, metavar="NAME|FILE.py",
        complete=completion.parts("triosim.serving.policy:ENGINES", own=True),
    )  # fmt: skip
    engine_option: list[str] | None = option(
        "--engine-option", help="Of the engine, as max-tokens=2048; repeatable.", group=ENGINE, metavar="NAME=VALUE"
    )
    tp: int = option("--tp", help="Devices that share each layer (default 1).", default=1, group=ENGINE, metavar="N")
    pp: int = option("--pp", help="Pipeline stages (default 1).", default=1, group=ENGINE, metavar="N")
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
    memory_utilisation: float = option(
        "--memory-utilisation", help="Share of the memory that is the engine's (default 0.9).", default=0.9,
        group=ENGINE, metavar="X",
    )  # fmt: skip
    host_time: str = option(
        "--host-time", help="That the host needs for a step while the device runs one (default 0).", default="0",
        group=ENGINE, metavar="TIME",
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
        help="uniform:128-512, zipf:1,max=4096, lognormal:300,sigma=1, fixed:512, prompt=...;output=..., or a file of "
        "requests.",
        group=TRAFFIC, metavar="HOW|FILE",
    )  # fmt: skip
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
        "--find", help="rate: the highest rate of requests that keeps the goals of --slo, from the given one on.",
        group=OUTPUT, metavar="WHAT", complete=completion.choices("rate"),
    )  # fmt: skip
    interval: str | None = option(
        "--interval", help="on: the 90 % interval of each figure, four more runs; off (default: up to 2000 requests).",
        group=OUTPUT, metavar="on|off", complete=completion.choices("on", "off"),
    )  # fmt: skip
    json: str | None = option(
        "--json", help="Write the result as JSON; - writes it, and nothing else, to the terminal.", group=OUTPUT,
        metavar="FILE", complete=completion.files,
    )  # fmt: skip


def _serve(options: ServeOptions) -> None:
    from triosim.core.outputs import check_distinct
    from triosim.report.serving import summary
    from triosim.serving.deployment import serve
    from triosim.serving.metrics import parse_slo

    read = [("--requests", options.requests), ("--lengths", options.lengths), ("--engine", options.engine)]
    check_distinct({"--json": options.json}, read)
    goals = parse_slo(options.slo) if options.slo else ()
    deployment = _deployment(options)
    table = _requests(options)
    if options.find is not None:
        return _find(options, deployment, table, goals)
    with progress() as tell:
        result = serve(
            deployment, table, goals, options.tpot,
            lambda done, total: tell(f"serving: {done:,} of {total:,} requests"),
            None if options.interval is None else options.interval == "on",
        )  # fmt: skip
    present(result, "result", options.json, lambda result: result.table(), summary)


def _find(options: ServeOptions, deployment: Deployment, table: RequestTable, goals: Sequence[Slo]) -> None:
    from triosim.cli.streams import rich_console, written
    from triosim.report.serving import summary
    from triosim.serving.find import highest_rate

    if options.find != "rate":
        raise InputError(f"--find {quoted(options.find)} is not known: give rate")
    with progress() as tell:
        found = highest_rate(deployment, table, goals, options.tpot, tell)
    if options.json is not None:
        tried = [{"requests_per_s": rate, "kept": kept} for rate, kept in found.tried]
        write_json({"rate": found.rate, "tried": tried, **found.result.table()}, options.json)
    if wants_summary(options.json):
        words = (
            f"{found.rate:.4g} requests/s is the highest rate that keeps them" if found.rate else "no rate keeps them"
        )
        print(f"goals           {', '.join(map(str, goals))}: {words}\n")
        summary(found.result, rich_console())
    say(written("result", options.json), options.json)


def _deployment(options: ServeOptions) -> Deployment:
    from triosim.core.units import parse_time
    from triosim.serving.deployment import Deployment
    from triosim.serving.fleet_file import fleet_file, is_fleet
    from triosim.serving.pool import Pool

    if is_fleet(options.model):
        given = [one.metadata["names"][0] for one in fields(options) if _said_of_fleet(options, one)]
        if given:
            raise InputError(f"{options.model} says what serves: leave out {', '.join(given)}")
        return fleet_file(Path(options.model))
    for name, text in (("--prefix-caching", options.prefix_caching), ("--interval", options.interval)):
        if text not in (None, "on", "off"):
            raise InputError(f"{name} must be on or off, got {quoted(text)}")
    whole = {
        "--tp": options.tp,
        "--pp": options.pp,
        "--kv-blocks": options.kv_blocks,
        "--max-length": options.max_length,
        "--prefill-replicas": options.prefill_replicas,
        "--decode-replicas": options.decode_replicas,
    }
    for name, value in whole.items():
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    roles = _roles(options)
    size, count = options.tp * options.pp, sum(max(replicas, 1) for _, replicas in roles)
    system = _system(options, count * size)
    pools: list[Pool] = []
    for role, replicas in roles:
        pool = Pool(
            model=options.model,
            system=system,
            first=sum(one.devices for one in pools),
            name=role if len(roles) > 1 else "",
            role=role,
            engine=options.engine,
            engine_options=named(options.engine_option, "--engine-option", "max-tokens=2048"),
            tensor_parallel=options.tp,
            stages=options.pp,
            replicas=replicas,
            weights=options.weights,
            kv_cache=options.kv_cache,
            prefix_caching=None if options.prefix_caching is None else options.prefix_caching == "on",
            eviction=options.eviction,
            preemption=options.preemption,
            swap_bytes=_swap_bytes(options),
            speculation=options.speculate,
            adapters=options.lora,
            tiers=tuple(options.kv_tier or ()),
            longest=options.max_length,
            blocks=options.kv_blocks,
            utilisation=options.memory_utilisation,
            host_s=parse_time(options.host_time, "--host-time"),
        )
        pools.append(pool)
    return Deployment(
        pools=tuple(pools),
        router=options.router,
        router_options=named(options.router_option, "--router-option", "slack=4"),
        seed=options.seed,
        transfer=options.transfer or "whole",
        order=options.order or "prefill-first",
        local=options.local_prefill or 0,
        idle_ok=options.idle_ok,
    )


def _swap_bytes(options: ServeOptions) -> float:
    from triosim.core.units import parse_bytes
    from triosim.serving.swap import SWAP_BYTES

    if options.swap_space is None:
        return SWAP_BYTES
    if options.preemption != "swap":
        raise InputError("--swap-space is of --preemption swap: give that too, or leave it out")
    return parse_bytes(options.swap_space, "--swap-space")


_OF_FLEET = {MODEL, MACHINE, ENGINE}


def _said_of_fleet(options: ServeOptions, one: Field[Any]) -> bool:
    """Whether an option is given that a file of a fleet answers."""
    return one.metadata.get("group") in _OF_FLEET and getattr(options, one.name) != one.default


def _roles(options: ServeOptions) -> list[tuple[str, int]]:
    """Pools by what they do, with their replicas."""
    split = {"--prefill-replicas": options.prefill_replicas, "--decode-replicas": options.decode_replicas}
    given = [name for name, value in split.items() if value is not None]
    if not given:
        beside = {"--transfer": options.transfer, "--order": options.order, "--local-prefill": options.local_prefill}
        for name, value in beside.items():
            if value is not None:
                raise InputError(
                    f"{name} is of prefill and decode apart: give --prefill-replicas and --decode-replicas"
                )
        return [("both", options.replicas)]
    if len(given) == 1 or options.replicas != 1:
        raise InputError("--prefill-replicas and --decode-replicas go together, and without --replicas: give these two")
    assert options.prefill_replicas is not None
    assert options.decode_replicas is not None
    return [("prefill", options.prefill_replicas), ("decode", options.decode_replicas)]


def _requests(options: ServeOptions) -> RequestTable:
    """What arrives: a file as it is, or made up."""
    from triosim.serving.request_files import read
    from triosim.serving.traffic import traffic

    asked, arrivals, lengths = options.requests, options.arrivals, options.lengths
    if asked is not None and not asked.isdigit():
        if not os.path.exists(asked):
            raise InputError(f"--requests {no_such_file(asked)} (give a file of requests, or their number)")
        if arrivals is not None or lengths is not None:
            raise InputError(
                "--requests FILE says when requests arrive and how long they are: leave out --arrivals and --lengths, "
                "or take only the lengths from it (--lengths FILE)"
            )
        return read(Path(asked), options.sort)
    if arrivals is None or lengths is None:
        raise InputError(
            "there is no traffic: give --requests FILE, or --arrivals and --lengths, as --arrivals poisson:8 --lengths "
            "uniform:128-512"
        )
    return traffic(arrivals, lengths, int(asked or 1000), options.seed)


def _system(options: ServeOptions, at_least: int) -> System:
    from triosim.hardware import machine

    if options.system is None and options.device is None:
        raise InputError("name a --system or a --device to serve on, as --device H100-SXM5-80GB")
    return machine.system(
        options.system,
        options.nodes,
        device=options.device,
        devices=options.devices,
        topology=options.topology,
        link=options.link,
        latency=options.latency,
        at_least=at_least,
    )
