"""``triosim train`` and ``triosim infer``: one prediction."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from triosim.errors import InputError

if TYPE_CHECKING:
    from triosim.hardware.accelerator import Accelerator
    from triosim.hardware.system import System
    from triosim.plan import Plan
    from triosim.result import Result
    from triosim.workload.trace import Trace


def _option(*names: str, help: str, default: Any = None) -> Any:
    """A field of :class:`Options`: its option on the command line and what help says of it."""
    return field(default=default, metadata={"names": names, "help": help})


@dataclass(frozen=True)
class Options:
    """What ``train`` and ``infer`` take, in the order in which help lists it."""

    workload: str = field(
        metadata={
            "help": "A trace (.triosim, a TrioSim CSV folder, Kineto JSON with or without its execution trace), a "
            "model's name (triosim models) or a model's configuration file."
        }
    )
    system: str | None = _option("--system", help="Ready system (triosim systems) or a file that describes one.")
    nodes: int | None = _option("--nodes", help="Servers of that system (default: as many as the plan needs).")
    device: str | None = _option("--device", help="Device (triosim devices) or a file that describes one.")
    devices: int | None = _option("--devices", help="How many (default: as many as the plan needs).")
    topology: str | None = _option(
        "--topology", help="switch, full, ring, mesh, torus, tree, fat-tree, ... (default switch; docs/systems.md)."
    )
    shape: str | None = _option("--shape", help="Shape of a mesh, torus or tree, for example 4x2.")
    topology_option: list[str] | None = _option(
        "--topology-option", help="NAME=VALUE, as oversubscription=2 of a fat-tree; repeatable."
    )
    routing: str | None = _option("--routing", help="shortest, ecmp or static (default: the system's, else shortest).")
    routing_option: list[str] | None = _option("--routing-option", help="NAME=VALUE, as seed=7 of ecmp; repeatable.")
    link: str | None = _option("--link", help="Bandwidth of a link, one direction, as 450GB/s; or a link's name.")
    latency: str | None = _option("--latency", help="One way over one logical hop, as 5us (default 0).")
    host_link: str | None = _option("--host-link", help="Bandwidth between each device and host memory.")
    pool_link: str | None = _option("--pool-link", help="Bandwidth between each device and a shared memory pool.")
    dp: int | None = _option("--dp", help="Data-parallel replicas (default: fills the devices).")
    tp: int = _option("--tp", help="Tensor-parallel ranks (default 1).", default=1)
    pp: int = _option("--pp", help="Pipeline stages (default 1).", default=1)
    batch_size: int | None = _option(
        "--batch-size", help="Samples per replica and iteration (default: the trace's; of a model, its micro-batches)."
    )
    global_batch_size: int | None = _option(
        "--global-batch-size", help="Samples over all replicas, instead of --batch-size."
    )
    micro_batches: int = _option("--micro-batches", help="Parts of a replica's batch (default 1).", default=1)
    seq_len: int | None = _option("--seq-len", help="Tokens per sample (default: the workload's).")
    recompute: str = _option(
        "--recompute",
        help="Run again instead of keeping activations: full (repeated blocks), selective (attention) or none.",
        default="none",
    )
    offload: list[str] | None = _option(
        "--offload", help="Keep in host memory: optimizer, activations or parameters (of the blocks); repeatable."
    )
    iterations: int = _option("--iterations", help="Iterations to play (default 1).", default=1)
    schedule: str = _option("--schedule", help="Pipeline schedule: 1f1b or gpipe (default 1f1b).", default="1f1b")
    stages: str | None = _option(
        "--stages", help="Modules at which stages after the first begin, comma separated (default: balanced by time)."
    )
    overlap: str = _option(
        "--overlap", help="on: communicate while computing; off: every transfer blocks (default on).", default="on"
    )
    dp_style: str = _option("--dp-style", help="ddp, or dataparallel for torch's DataParallel.", default="ddp")
    zero: int = _option(
        "--zero",
        help="What data-parallel ranks divide: 1 optimizer states, 2 gradients too, 3 parameters too, as FSDP "
        "(default 0, nothing).",
        default=0,
    )
    bucket_size: str | None = _option("--bucket-size", help="Capacity of DDP's gradient buckets (default 25MiB).")
    tp_style: str = _option(
        "--tp-style", help="megatron (column, then row) or gather (every layer) (default megatron).", default="megatron"
    )
    tp_plan: str | None = _option(
        "--tp-plan", help="TOML, YAML or JSON file: module pattern -> colwise, rowwise, gather, vocab or replicate."
    )
    algorithm: str = _option("--algorithm", help="Algorithm of collectives (default: by kind).", default="auto")
    protocol: str = _option(
        "--protocol", help="Protocol of collectives: LL, LL128 or Simple (default: as NCCL chooses).", default="auto"
    )
    solver: str = _option(
        "--solver",
        help="Network model: max-min, equal-split, circuit or FILE.py with one of yours (default max-min).",
        default="max-min",
    )
    solver_option: list[str] | None = _option(
        "--solver-option", help="Option of the network model: NAME=VALUE, as setup=80us; repeatable."
    )
    fold: str = _option(
        "--fold", help="on: play ranks that nothing tells apart once; off: all, to the same result.", default="on"
    )
    placement: str | None = _option(
        "--placement",
        help="Devices of the ranks in order, as 0,2,1,3; or grid-cycle: along a ring through the --shape of a mesh.",
    )
    place: list[str] | None = _option(
        "--place", help="Where values start: CATEGORY=host|pool|device:N, as weight=host; repeatable."
    )
    host: str | None = _option(
        "--host", help="Cost of launching: recorded, eager, large-model, compiled, graph or none."
    )
    interference: str = _option(
        "--interference",
        help="What computes beside a collective takes so many times as long: auto (as the device), off, or a number "
        "(default auto).",
        default="auto",
    )
    composition: str | None = _option(
        "--composition", help="What measured iterations taught of composition (a residual, JSON); replaces --host."
    )
    operator_times: str = _option(
        "--operator-times",
        help="auto, recorded, proportional, physical, roofline, li, habitat, a PACK.json (triosim calibrate), a table "
        "of kernels (JSON), or a file of external times (default auto).",
        default="auto",
    )
    precision: str | None = _option("--precision", help="Of a model by name: float32, bfloat16 or float16.")
    step: str | None = _option(
        "--step", help="Step of a foreign trace with several: its number, median or all (default median)."
    )
    trace_batch_size: int | None = _option("--trace-batch-size", help="Batch size of the trace, where it does not say.")
    also: list[str] | None = _option(
        "--also", help="The same step recorded on another device, to carry operator times over from both; repeatable."
    )
    batch_trace: str | None = _option(
        "--batch-trace", help="The same step traced at another batch size, to see what grows with it."
    )
    fit: bool = _option("--fit", help="Also find the largest batch that fits in memory.", default=False)
    json: str | None = _option(
        "--json", help="Write the result as JSON; - writes it, and nothing else, to the terminal."
    )
    timeline: Path | None = _option("--timeline", help="Write the timeline for Perfetto or Chrome (.json, .json.gz).")
    report: Path | None = _option("--report", help="Write a self-contained HTML page.")
    chakra: Path | None = _option("--chakra", help="Write Chakra execution traces of all ranks into this folder.")


def register(app: typer.Typer) -> None:
    """Add the two commands."""
    app.command("train")(_command(training=True, summary="Predict a training step: time, memory, where the time goes."))
    app.command("infer")(_command(training=False, summary="Predict an inference step (a forward pass)."))


def _command(training: bool, summary: str) -> Callable[..., None]:
    """A function with the options as its parameters, which is what typer reads."""

    def run(**given: Any) -> None:
        _predict(Options(**given), training)

    types = get_type_hints(Options)
    parameters = []
    for own in fields(Options):
        how: Any = typer.Argument(metavar="WORKLOAD", help=own.metadata["help"], show_default=False)
        if "names" in own.metadata:
            how = typer.Option(*own.metadata["names"], help=own.metadata["help"], show_default=False)
        default = inspect.Parameter.empty if own.default is MISSING else own.default
        parameters.append(
            inspect.Parameter(
                own.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[types[own.name], how]
            )
        )
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    run.__doc__ = summary
    return run


def _predict(options: Options, training: bool) -> None:
    with _progress() as tell:
        tell("reading the workload")
        trace, system, plan = job(options, training)
        from triosim.cli.workloads import load_workload
        from triosim.simulate import simulate

        traces: list[str] = []
        keep = None
        if options.chakra is not None:
            from triosim.cli.astra import chakra_writer

            keep = chakra_writer(options.chakra, traces)
        also = [load_workload(name, step=options.step) for name in options.also or ()]
        result = simulate(trace, system, plan, progress=tell, keep=keep, fit=options.fit or None, also=also)
        tell("writing")
        written = _write(result, options) + traces
    if options.json == "-":
        sys.stdout.write(result.to_json())
        for line in written:
            print(line, file=sys.stderr)
        return
    from rich.console import Console

    from triosim.report.terminal import summary

    summary(result, Console())
    for line in written:
        print(line)


def job(options: Options, training: bool) -> tuple[Trace, System, Plan]:
    """What the options ask to be predicted: the workload, the machine and how the work is divided.

    Raises:
        InputError: an option makes no sense, or something that it names does not exist.
    """
    trace = _workload(options, training)
    plan = _plan(options, training)
    return trace, _system(options, trace, plan), plan


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Says on standard error what is being done, where a person is watching."""
    if not sys.stderr.isatty():
        yield lambda words: None
        return
    from rich.console import Console

    console = Console(stderr=True)
    with console.status("starting") as status:
        yield lambda words: status.update(words)


def _workload(options: Options, training: bool) -> Trace:
    from dataclasses import replace

    from triosim.cli.workloads import load_workload
    from triosim.workload.rescale import symbols_from

    trace = load_workload(
        options.workload, step=options.step, seq_len=options.seq_len, precision=options.precision, training=training
    )
    if options.trace_batch_size is not None:
        if options.trace_batch_size < 1:
            raise InputError(f"--trace-batch-size must be at least 1, got {options.trace_batch_size}")
        trace = replace(trace, meta=replace(trace.meta, batch_size=options.trace_batch_size))
    if options.batch_trace is not None:
        trace = symbols_from(trace, load_workload(options.batch_trace, step=options.step))
    return trace


def _plan(options: Options, training: bool) -> Plan:
    from triosim.plan import Plan
    from triosim.units import parse_bytes

    if options.overlap not in ("on", "off"):
        raise InputError(f"--overlap must be on or off, got {options.overlap!r}")
    if options.fold not in ("on", "off"):
        raise InputError(f"--fold must be on or off, got {options.fold!r}")
    fields: dict[str, Any] = {
        name: getattr(options, name)
        for name in (
            "dp", "tp", "pp", "batch_size", "global_batch_size", "micro_batches", "iterations", "schedule", "dp_style",
            "zero", "tp_style", "recompute", "host", "composition", "operator_times",
        )
    }  # fmt: skip
    if options.bucket_size is not None:
        fields["bucket_bytes"] = parse_bytes(options.bucket_size, "--bucket-size")
    if options.stages is not None:
        fields["stages"] = tuple(s.strip() for s in options.stages.split(",") if s.strip())
    if options.tp_plan is not None:
        from triosim.hardware.description import read_table

        fields["tp_plan"] = read_table(Path(options.tp_plan))
    return Plan(
        **fields,
        sequence_length=options.seq_len,
        overlap=options.overlap == "on",
        interference=_slowdown(options.interference),
        collective_algorithm=options.algorithm,
        collective_protocol=options.protocol,
        solver=options.solver,
        fold=options.fold == "on",
        solver_options=_named(options.solver_option, "--solver-option", "setup=80us"),
        placement=_placement(options),
        places=dict(_placed(p) for p in options.place or ()),
        offload=tuple(dict.fromkeys(options.offload or ())),
        training=training,
    )


def _slowdown(text: str) -> Any:
    """The words as they are, a number as a number; the plan judges both."""
    try:
        return float(text)
    except ValueError:
        return text


def _placed(text: str) -> tuple[str, str]:
    category, equals, place = text.partition("=")
    if not equals:
        raise InputError(f"--place {text!r}: give a category and a place, for example weight=host")
    return category.strip().replace("-", "_"), place.strip()


def _named(texts: list[str] | None, option: str, example: str) -> dict[str, str]:
    named = {}
    for text in texts or ():
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            raise InputError(f"{option} {text!r}: give a name and a value, for example {example}")
        named[name] = value
    return named


def _placement(options: Options) -> tuple[int, ...] | None:
    text = options.placement
    if text is None:
        return None
    if text == "grid-cycle":
        from triosim.hardware.topology import parse_shape
        from triosim.network.hamiltonian import grid_cycle

        shape = parse_shape(options.shape or "")
        if len(shape) != 2:
            raise InputError(f"--placement grid-cycle goes through rows and columns, not --shape {options.shape}")
        return tuple(grid_cycle(*shape).tolist())
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise InputError(f"--placement {text!r}: give the devices in order, for example 0,2,1,3, or grid-cycle")
    return tuple(map(int, words))


def _system(options: Options, trace: Trace, plan: Plan) -> System:
    from triosim.hardware.machine import system

    device: str | Accelerator | None = options.device
    if options.system is None and device is None and trace.meta.clock == "none":
        device = _calibrated(options.operator_times)
        if device is None and trace.meta.made_by == "triosim.model":
            raise InputError(f"{options.workload!r} is a model, without recorded times: name a --system or a --device")
    return system(
        options.system,
        options.nodes,
        device=device,
        devices=options.devices,
        topology=options.topology,
        link=options.link,
        latency=options.latency,
        shape=options.shape,
        topology_options=_named(options.topology_option, "--topology-option", "oversubscription=2") or None,
        host_link=options.host_link,
        pool_link=options.pool_link,
        routing=options.routing,
        routing_options=_named(options.routing_option, "--routing-option", "seed=7"),
        at_least=(plan.dp or 1) * plan.tp * plan.pp,
    )


def _calibrated(operator_times: str) -> Accelerator | None:
    """The device of a calibration, None where operator times are something else."""
    from triosim.kernels.calibration.pack import is_calibration_file, load

    return load(operator_times).calibration.device if is_calibration_file(operator_times) else None


def _write(result: Result, options: Options) -> list[str]:
    """Write the files asked for; returns a line for each."""
    written = []
    if options.json is not None and options.json != "-":
        from triosim.report.files import whole

        with whole(options.json) as file:
            file.write(result.to_json())
        written.append(f"result    {options.json}")
    if options.timeline is not None:
        from triosim.report import chrome

        paths = chrome.write(result.timeline, options.timeline)
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        written.append(f"timeline  {paths[0]}{more}  (open in ui.perfetto.dev or chrome://tracing)")
    if options.report is not None:
        from triosim.report import html

        html.write(result, options.report)
        written.append(f"report    {options.report}")
    return written
