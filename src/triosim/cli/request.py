"""``triosim infer --prompt N --output N``: one request with its cache."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from triosim.core.errors import InputError

if TYPE_CHECKING:
    from triosim.cli.arguments import InferOptions
    from triosim.hardware.system import System
    from triosim.serving.one_request import OneRequest, RequestClock
    from triosim.serving.pool import Pool

TAKEN = frozenset({
    "workload", "prompt", "output", "context", "weights", "kv_cache", "state_cache", "engine", "engine_option",
    "front_time", "pim", "batch_size", "tp", "pp", "ep", "host", "idle_ok", "system", "nodes", "device", "devices",
    "topology", "topology_option", "shape", "link", "latency", "host_link", "pool_link", "routing", "routing_option",
    "power_cap", "clock", "find", "slowdown", "json",
})  # fmt: skip
"""Fields of the options that a request reads; the others say something of a step."""


def request(options: InferOptions) -> None:
    """Predict it, print it, write it.

    Raises:
        InputError: an option makes no sense here, or something that it names does not exist.
    """
    from triosim.cli.command import say, wants_summary
    from triosim.cli.energy_options import slowdown_of
    from triosim.cli.streams import rich_console, written
    from triosim.core.outputs import text_output
    from triosim.report.table import paragraph
    from triosim.serving.one_request import infer, least_energy_request
    from triosim.serving.request_words import summary

    prompt, output = _tokens(options)
    pool = _pool(options)

    def predict(clock: float | None, bounded: bool) -> OneRequest:
        own = pool if clock is None else replace(pool, clock_hz=clock)
        return infer(own, prompt, output, options.batch_size or 1, options.context, options.idle_ok, bounded)

    found, tried = predict(None, True), None
    if (slowdown := slowdown_of(options)) is not None:
        tried = least_energy_request(found, predict, slowdown)
        found = tried.result
    if options.json is not None:
        with text_output(options.json) as file:
            json.dump(found.to_dict(), file, indent=1, allow_nan=False)
            file.write("\n")
    if wants_summary(options.json):
        console = rich_console()
        for line in summary(found):
            paragraph(console, line, indent=9)
        if tried is not None:
            _show_clocks(tried)
    say(written("result", options.json), options.json)


def _tokens(options: InferOptions) -> tuple[int, int]:
    """Those of prompt and output, where nothing is asked for beside them that makes no sense.

    Raises:
        InputError: something is.
    """
    from triosim.cli.fields import given

    if options.prompt is None or options.output is None:
        raise InputError("a request needs both its prompt and its output: give --prompt and --output")
    for name, option in given(options):
        if name not in TAKEN:
            raise InputError(
                f"{option} has no meaning for one request with its cache: leave it out, or --prompt and --output"
            )
    if options.system is None and options.device is None:
        raise InputError(f"{options.workload!r} is a model, without recorded times: name a --system or a --device")
    for option, count in (("--tp", options.tp), ("--pp", options.pp), ("--batch-size", options.batch_size)):
        if count is not None and count < 1:
            raise InputError(f"{option} must be at least 1, got {count}")
    return options.prompt, options.output


def _pool(options: InferOptions) -> Pool:
    """The replica that answers.

    Raises:
        InputError: something that an option names does not exist.
    """
    from triosim.cli.energy_options import limits
    from triosim.cli.fields import named
    from triosim.cli.predict import named_system
    from triosim.core.units import parse_latency
    from triosim.serving.model import default_weights
    from triosim.serving.pim import ATTENTION
    from triosim.serving.pool import Pool

    tensor_parallel, stages = options.tp or 1, options.pp or 1
    system = named_system(options, options.device, tensor_parallel * stages)
    if options.pim is not None:
        check_pim(options.pim, system)
    cap_w, clock_hz = limits(options)
    return Pool(
        options.workload,
        system,
        engine=options.engine or "vllm",
        engine_options=named(options.engine_option, "--engine-option", "model-runner=2"),
        tensor_parallel=tensor_parallel,
        stages=stages,
        expert_ranks=options.ep,
        weights=options.weights or default_weights(system.model(0)),
        kv_cache=options.kv_cache,
        state_cache=options.state_cache or "",
        host=options.host or "graph",
        pim=options.pim or ATTENTION,
        power_cap_w=cap_w,
        clock_hz=clock_hz,
        front_s=None if options.front_time is None else parse_latency(options.front_time, "--front-time"),
    )


def _show_clocks(found: RequestClock) -> None:
    from triosim.cli.streams import rich_console
    from triosim.core.units import format_time
    from triosim.prediction.result.words import share
    from triosim.report.terminal import clock_table

    rows = [(clock / 1e6, format_time(one.e2e_s), one.joules, allowed) for clock, one, allowed in found.tried]
    slower = share(found.result.e2e_s / found.tried[0][1].e2e_s - 1)
    clock_table(rows, found.clock_hz / 1e6, ("in all", "too slow"), f", and {slower} slower", rich_console())


def check_pim(pim: str, system: System) -> None:
    """Refuse what is not known, or what the devices cannot do.

    Raises:
        InputError: so it is.
    """
    from triosim.core.errors import unknown
    from triosim.hardware.pim import names
    from triosim.serving.pim import MODES

    if pim not in MODES:
        raise unknown("--pim", pim, MODES)
    if all(system.model(device).pim is None for device in range(system.devices)):
        name = system.model(0).name
        raise InputError(
            f"--pim {pim}: no memory of {name} computes: give --device {name.partition('+')[0]}+NAME of "
            f"{', '.join(names())}, or a file with pim (docs/pim.md)"
        )
