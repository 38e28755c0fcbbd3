"""What ``triosim serve`` was asked for: the deployment and its traffic, from the options."""

from __future__ import annotations

import os
import re
from collections.abc import Container
from dataclasses import Field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triosim.cli.command import typed_fields
from triosim.cli.fields import named
from triosim.cli.serve_options import ENGINE, MACHINE, MODEL, ServeOptions
from triosim.core.errors import InputError, no_such_file, quoted

if TYPE_CHECKING:
    from triosim.hardware.system import System
    from triosim.serving.deployment import Deployment
    from triosim.serving.pool import Pool
    from triosim.serving.pool_options import PoolOptions
    from triosim.serving.requests import RequestTable


def deployment_of(options: ServeOptions) -> Deployment:
    """What serves: pools as a file says, or as the options say.

    Raises:
        InputError: options do not go together, or something that they name does not exist.
    """
    from triosim.serving.deployment import Deployment
    from triosim.serving.fleet_file import fleet_file, is_fleet
    from triosim.serving.pool_options import pool_of

    if is_fleet(options.model):
        fleet = fleet_file(options.model)
        typed = typed_fields()
        given = [one.metadata["names"][0] for one in fields(options) if _said_of_fleet(options, one, typed)]
        if given:
            raise InputError(f"{options.model} says what serves: leave out {', '.join(given)}")
        return fleet
    _check(options)
    roles = _roles(options)
    size, count = (
        options.tp * options.cp * options.cfg_parallel * options.pp * options.dp,
        sum(max(replicas, 1) for _, replicas in roles),
    )
    system = _system(options, count * size, apart=size == 1 and len(roles) == 1)
    said = _pool_options(options)
    pools: list[Pool] = []
    for role, replicas in roles:
        first, name = sum(one.devices for one in pools), role if len(roles) > 1 else ""
        own = replace(said, replicas=replicas)
        pools.append(
            pool_of(own, options.model, system, first, name, role, "", lambda key: f"--{key.replace('_', '-')}")
        )
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


def _check(options: ServeOptions) -> None:
    """Refuse what no pool can be: other words than on and off, numbers below 1, options that need another."""
    for name, text in (("--prefix-caching", options.prefix_caching), ("--interval", options.interval)):
        if text not in (None, "on", "off"):
            raise InputError(f"{name} must be on or off, got {quoted(text)}")
    whole = {
        "--tp": options.tp,
        "--cp": options.cp,
        "--cp-ulysses": options.cp_ulysses,
        "--cfg-parallel": options.cfg_parallel,
        "--pp": options.pp,
        "--dp": options.dp,
        "--kv-blocks": options.kv_blocks,
        "--max-length": options.max_length,
        "--image-size": options.image_size,
        "--prefill-replicas": options.prefill_replicas,
        "--decode-replicas": options.decode_replicas,
        "--local-prefill": options.local_prefill,
    }
    for name, value in whole.items():
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    if options.cp_style is not None and options.cp == 1:
        raise InputError("--cp-style says how devices share the tokens of an image: give --cp too, or leave it out")
    if options.cp_ulysses is not None and options.cp_style != "usp":
        raise InputError("--cp-ulysses says which devices exchange heads: give --cp-style usp too, or leave it out")
    if options.repair is not None and options.mtbf == "none":
        raise InputError("--repair is of replicas that fail: give --mtbf too, or leave it out")
    if options.cold_start is not None and options.mtbf == "none" and options.autoscale is None:
        raise InputError(
            "--cold-start is of replicas that come and go: give --autoscale or --mtbf too, or leave it out"
        )


def _pool_options(options: ServeOptions) -> PoolOptions:
    """What was said of the pools, but for how many replicas they have."""
    from triosim.serving.pool_options import PoolOptions

    if options.swap_space is not None and options.preemption != "swap":
        raise InputError("--swap-space is of --preemption swap: give that too, or leave it out")
    said = {one.name: getattr(options, one.name) for one in fields(PoolOptions)}
    said["engine_option"] = named(options.engine_option, "--engine-option", "max-tokens=2048")
    said["prefix_caching"] = None if options.prefix_caching is None else options.prefix_caching == "on"
    return PoolOptions(**{name: value for name, value in said.items() if value is not None})


OF_FLEET = {MODEL, MACHINE, ENGINE}
"""Groups of options that a file of a fleet answers."""


def _said_of_fleet(options: ServeOptions, one: Field[Any], typed: Container[str]) -> bool:
    """Whether an option is given that a file of a fleet answers, if only with its default."""
    if one.metadata.get("group") not in OF_FLEET or "names" not in one.metadata:
        return False
    return getattr(options, one.name) != one.default or one.name in typed


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


def requests_of(options: ServeOptions) -> RequestTable:
    """What arrives: a file as it is, or made up.

    Raises:
        InputError: there is none, or options do not go together.
    """
    from triosim.serving.denoiser import is_denoiser
    from triosim.serving.fleet_file import is_fleet
    from triosim.serving.request_files import load_requests
    from triosim.serving.traffic import traffic

    if options.seed < 0:
        raise InputError(f"--seed must be at least 0, got {options.seed}")
    asked, arrivals, lengths = options.requests, options.arrivals, options.lengths
    if asked is not None and not asked.isdigit():
        if not os.path.exists(asked):
            if re.fullmatch(r"[-+]?[\d.]+([eE][-+]?\d+)?", asked):
                raise InputError(f"--requests {asked}: give a whole number from 1 up, or a file of requests")
            raise InputError(f"--requests {no_such_file(asked)} (give a file of requests, or their number)")
        if arrivals is not None or lengths is not None:
            raise InputError(
                "--requests FILE says when requests arrive and how long they are: leave out --arrivals and --lengths, "
                "or take only the lengths from it (--lengths FILE)"
            )
        made_up = {"--shared-prefix": options.shared_prefix, "--turns": options.turns, "--steps": options.steps}
        for name, given in made_up.items():
            if given is not None:
                raise InputError(f"{name} is of requests that are made up, not of a file: leave it out")
        return load_requests(Path(asked), options.sort)
    fleet = is_fleet(options.model)
    images = not fleet and is_denoiser(options.model)
    if options.steps is not None:
        if lengths is not None:
            raise InputError("--steps is what --lengths is of tokens: give one of them")
        if not (images or fleet):
            raise InputError(
                f"--steps is of models that make images, and {options.model} writes tokens: give --lengths"
            )
        lengths = options.steps
    for name, given in (("--shared-prefix", options.shared_prefix), ("--turns", options.turns)):
        if given is not None and (images or options.steps is not None):
            raise InputError(f"{name} is of prompts, and images have none: leave it out")
    if arrivals is None and options.find == "rate":
        arrivals = "poisson:1"  # the rate is what is looked for
    if arrivals is None or lengths is None:
        raise InputError(_no_traffic(arrivals, lengths, images))
    return traffic(
        arrivals, lengths, int(asked or 1000), options.seed, prefix=options.shared_prefix, turns=options.turns,
        steps=options.steps is not None,
    )  # fmt: skip


def _no_traffic(arrivals: str | None, lengths: str | None, images: bool) -> str:
    """What is said where one of the two is missing, or both."""
    long, example = ("--steps", "--steps 30") if images else ("--lengths", "--lengths uniform:128-512")
    if arrivals is not None:
        return f"--arrivals does not say how long requests are: give {long} too, as {example}"
    if lengths is not None:
        return f"{long} does not say when requests arrive: give --arrivals too, as --arrivals poisson:8"
    return f"there is no traffic: give --requests FILE, or --arrivals and {long}, as --arrivals poisson:8 {example}"


def _system(options: ServeOptions, at_least: int, apart: bool) -> System:
    """The machine; devices ``apart``, each a replica that sends others nothing, need no link of their own."""
    from triosim.hardware import catalog, machine

    link = options.link
    if apart and link is None and options.device is not None and catalog.has_accelerator(options.device):
        model = catalog.accelerator(options.device)
        if catalog.device_link(model) is None:
            link = model.host_link or None  # CPUs and chips with memory of their own have none either

    if options.device is not None and "," in options.device and not os.path.exists(options.device):
        raise InputError(
            f"--device {quoted(options.device)}: kinds of devices to choose from are of --find fleet: give that too, "
            "or one device"
        )
    if options.system is None and options.device is None:
        raise InputError("name a --system or a --device to serve on, as --device H100-SXM5-80GB")
    return machine.system(
        options.system,
        options.nodes,
        device=options.device,
        devices=options.devices,
        topology=options.topology,
        link=link,
        latency=options.latency,
        at_least=at_least,
    )
