"""``triosim train`` and ``triosim infer``: one prediction."""

from __future__ import annotations

from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import typer

from triosim.cli.arguments import InferOptions, Options, TrainOptions
from triosim.cli.command import command, import_numpy, note, progress_bar, say, wants_summary
from triosim.cli.energy_options import best_of, energy_options, held_back, tell_unused
from triosim.cli.fields import answers, given, named
from triosim.cli.fields import command as function_of
from triosim.cli.sweep import SweepCommand, check_alone, sweep
from triosim.core.errors import InputError, quoted

if TYPE_CHECKING:
    from triosim.energy.options import EnergyOptions
    from triosim.engine.stats import Stats
    from triosim.fidelity import Fidelity
    from triosim.hardware.accelerator import Accelerator
    from triosim.hardware.system import System
    from triosim.plan import Plan
    from triosim.prediction.result import Result
    from triosim.prediction.variation import Variation
    from triosim.search.clock_search import BestClock
    from triosim.stacks import Stack
    from triosim.trace.tables import Trace


def register_train(app: typer.Typer) -> None:
    """Add ``train``."""
    about = "Predict a training step: time, memory, where the time goes."
    command(app, "train", cls=SweepCommand)(function_of(TrainOptions, _train, about))


def register_infer(app: typer.Typer) -> None:
    """Add ``infer``."""
    about = "Predict an inference step (a forward pass), or with --prompt and --output one request with its cache."
    command(app, "infer", cls=SweepCommand)(function_of(InferOptions, _infer, about))


def _train(options: TrainOptions) -> None:
    if options.post is None:
        if options.rollout is not None:
            from triosim.cli.posttraining import ROLLOUT_ALONE

            raise InputError(ROLLOUT_ALONE)
        return _predict(options, True)
    from triosim.cli.posttraining import post_training

    return post_training(options)


OF_REQUESTS = frozenset({
    "pim", "context", "weights", "kv_cache", "state_cache", "engine", "engine_option", "front_time",
})  # fmt: skip
"""Fields of the options that say something of a request with its cache alone."""


def _infer(options: InferOptions) -> None:
    if (options.prompt, options.output) == (None, None):
        for name, option in given(options):
            if name in OF_REQUESTS:
                raise InputError(f"{option} is of one request with its cache: give --prompt and --output as well")
        return _predict(options, False)
    from triosim.cli.request import request

    _check_outputs(options)
    return request(options)


def _predict(options: Options, training: bool) -> None:
    import_numpy()
    _check_outputs(options)
    if options.compare:
        from triosim.cli.compared_plans import compare_plans

        return compare_plans(options, training)
    if options.sweep:
        return sweep(options, training)
    check_alone(options)
    with progress_bar() as progress:
        progress("reading the workload")
        trace, system, plan, fidelity = job(options, training)
        from triosim.cli.workloads import load_workload
        from triosim.prediction.simulate import simulate

        traces: list[str] = []
        keep = None
        if options.chakra is not None:
            from triosim.cli.astra import chakra_writer

            keep = chakra_writer(options.chakra, traces)
        also = [load_workload(name, step=options.step) for name in options.also or ()]
        energy = _energy_of(options, system)
        varies = variation_of(options)

        def predict(machine: System) -> Result:
            return simulate(
                trace, machine, plan, fidelity, progress=progress, on_finished=keep, fit=options.fit or None,
                other_recordings=also, energy=energy, at_once=True, variation=varies,
            )  # fmt: skip

        found = best_of(options, predict, system)
        result = found.result if found is not None else predict(system)
        unpriced = _asks_for_cost(options) and result.cost is None  # what makes no sense of it is said before the rest
        progress("writing")
        lines = _write(result, options) + traces
    outputs = (options.json, options.timeline, options.report, options.stats)
    if wants_summary(*outputs, options.chakra):
        _show(result, found, options)
    say(lines, *outputs)
    if unpriced:
        note("warning   what the job costs is not known, for nobody says what these devices draw: give tdp_w in a file")
    if options.constant:
        rests = (*(result.energy.sources if result.energy else ()), *(result.cost.sources if result.cost else ()))
        tell_unused(options.constant, rests, options.pue)
    if options.stats is None:
        note(took(result.stats, asdict(result.simulation)))


def _energy_of(options: Options, system: System) -> EnergyOptions:
    """How energy is worked out.

    Raises:
        InputError: what was calibrated is of devices that the system has not.
    """
    energy = energy_options(options)
    names = [model.name for model in system.models]
    for name, _ in energy.calibrated:
        if name not in names:
            there = ", ".join(dict.fromkeys(names))
            raise InputError(
                f"--energy {options.energy} is of {quoted(name)}, and the devices are {there}: leave it out"
            )
    return energy


def _asks_for_cost(options: Options) -> bool:
    return any((options.tokens, options.at, options.grid, options.price, options.pay))


def _show(result: Result, found: BestClock | None, options: Options) -> None:
    """Print the summary: with what was asked for, the cost and the clocks that were tried."""
    from triosim.cli.streams import rich_console
    from triosim.report.terminal import clocks, summary

    summary(result, rich_console())
    if result.cost is not None and _asks_for_cost(options):
        from triosim.report.cost import show

        print()
        show(result.cost, rich_console(), sources=False)
    if found is not None:
        clocks(found, rich_console())


def took(stats: Stats, sizes: dict[str, Any]) -> str:
    """The line that says what a prediction took."""
    counts = ", ".join(f"{count:,} {what}" for what, count in sizes.items() if what != "drawn")
    drawn = f" ({sizes['drawn']})" if "drawn" in sizes else ""
    return f"took      {stats.wall_s:.2f} s ({stats.cpu_s:.2f} CPU s, {stats.engine} engine): {counts}{drawn}"


def job(options: Options, training: bool) -> tuple[Trace, System, Plan, Fidelity]:
    """What the options ask for: the workload, the machine, how the work is divided, and how that is predicted.

    Raises:
        InputError: an option makes no sense, or something that it names does not exist.
    """
    trace = step(options, training)
    plan = plan_of(options, training)
    return trace, machine(options, trace, (plan.dp or 1) * plan.replica_ranks), plan, fidelity_of(options)


def variation_of(options: Options) -> Variation | None:
    """What the options say that varies from iteration to iteration."""
    if options.variation is None:
        return None
    from triosim.prediction.variation import parse_variation

    return parse_variation(options.variation)


def step(options: Options, training: bool) -> Trace:
    """The workload that the options name."""
    from triosim.cli.workloads import load_workload
    from triosim.transform.rescale import of_batch, symbols_from

    trace = load_workload(
        options.workload,
        step=options.step,
        seq_len=options.seq_len,
        precision=options.precision,
        training=training,
        attention=options.attention,
        lora=options.lora,
        stack=stack_of(options),
        ranks=options.tp,
        input_shapes=_shapes(options.input_shape),
        unused=_runs_unused(options.operator_times),
    )
    if training and trace.meta.made_by in ("onnx", "nn-meter"):
        raise InputError(f"{options.workload} holds a network without its training: give triosim infer")
    if options.trace_batch_size is not None:
        if options.trace_batch_size < 1:
            raise InputError(f"--trace-batch-size must be at least 1, got {options.trace_batch_size}")
        if trace.meta.made_by == "triosim.model":
            raise InputError(f"--trace-batch-size says it of a trace; {options.workload} is a model: use --batch-size")
        trace = of_batch(trace, options.trace_batch_size)
    if options.batch_trace is not None:
        trace = symbols_from(trace, load_workload(options.batch_trace, step=options.step))
    return packed_as(options, trace)


def packed_as(options: Options, trace: Trace) -> Trace:
    """The workload with the documents that the options pack into its sequences.

    Raises:
        InputError: it has no sequences, or attention is several operators.
    """
    if options.packing is None:
        return trace
    from triosim.transform.packing import document_lengths, pack, packed

    length = options.seq_len or trace.meta.sequence_length
    if not length:
        raise InputError(f"--packing is of sequences of tokens, and {options.workload} says none: leave it out")
    return packed(trace, pack(document_lengths(options.packing, length), length))


def _runs_unused(operator_times: str | None) -> bool:
    """Whether these operator times are of a runtime that runs operators of which nobody reads the result."""
    if not str(operator_times).lower().endswith(".json"):
        return False
    from triosim.kernels.pack import is_calibration_file

    if not is_calibration_file(str(operator_times)):
        return False
    from triosim.kernels.calibration.pack import load

    rules = load(str(operator_times)).rules
    return rules is not None and rules.unused


def _shapes(texts: list[str] | None) -> dict[str, tuple[int, ...]]:
    """Sides of inputs by name, of ``x=1,3,224,224``."""
    found = {}
    for name, sides in named(texts, "--input-shape", "x=1,3,224,224").items():
        words = [side.strip() for side in str(sides).split(",")]
        if not all(word.isdecimal() and int(word) > 0 for word in words):
            raise InputError(f"--input-shape {name}={sides}: give whole numbers of at least 1, as x=1,3,224,224")
        found[name] = tuple(map(int, words))
    return found


def stack_of(options: Options) -> Stack | None:
    """The stack that the options name, None for none."""
    if getattr(options, "stack", None) is None:
        return None
    from triosim.stacks import load

    return load(options.stack)


def _tp_plan(path: Path) -> dict[str, Any]:
    """How the modules of a file are divided.

    Raises:
        InputError: the file cannot be read, or gives a module no style that is known.
    """
    from triosim.core import guarded
    from triosim.plan import ModuleStyle

    found = guarded.document(path, "a table of modules and styles")
    for module, style in found.items():
        if style not in get_args(ModuleStyle):
            known = ", ".join(get_args(ModuleStyle))
            raise InputError(f"{path}: {quoted(module)} cannot be {quoted(style)}: give one of {known}")
    return found


def plan_of(options: Options, training: bool) -> Plan:
    """The plan that the options ask for."""
    from triosim.core.units import parse_bytes
    from triosim.plan import NamedRules, Plan

    fields = answers(Plan, options, {
        "bucket_bytes": lambda: parse_bytes(options.bucket_size, "--bucket-size"),
        "tp_plan": lambda: _tp_plan(Path(options.tp_plan)),
        "placement": lambda: _placement(options),
        "places": lambda: dict(_placed(place) for place in options.place),
        "stack": lambda: stack_of(options),
    })  # fmt: skip
    return Plan(**{**fields, **answers(NamedRules, options, {}), "training": training})


def fidelity_of(options: Options) -> Fidelity:
    """How the options ask for it to be predicted."""
    from triosim.fidelity import Fidelity

    found = answers(Fidelity, options, {"interference": lambda: _slowdown(options.interference)})
    if getattr(options, "extrapolate", False):
        from triosim.kernels.pack import is_calibration_file

        if not is_calibration_file(options.operator_times):
            raise InputError(
                f"--extrapolate is of a pack of measured kernels (triosim calibrate), and --operator-times is "
                f"{options.operator_times}: leave it out"
            )
        found["operator_options"] = {**found.get("operator_options", {}), "extrapolate": True}
    return Fidelity(**found)


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


MOST_PLACED = 10_000_000
"""Devices after ``--placement`` beyond which a number is a slip."""


def _placement(options: Options) -> tuple[int, ...] | None:
    text = options.placement
    if text is None:
        return None
    if text == "grid-cycle":
        from triosim.hardware.topology import parse_shape
        from triosim.network.device_assignment import grid_cycle

        shape = parse_shape(options.shape or "")
        if len(shape) != 2:
            raise InputError(f"--placement grid-cycle goes through rows and columns, not --shape {options.shape}")
        return tuple(grid_cycle(*shape).tolist())
    found: list[int] = []
    for word in text.split(","):
        first, dash, last = (part.strip() for part in word.partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InputError(
                f"--placement {text!r}: give the devices in order, for example 0,2,1,3 or 0-7,16-23, or grid-cycle"
            )
        ends = int(first), int(last or first)
        if len(found) + abs(ends[1] - ends[0]) >= MOST_PLACED:
            raise InputError(f"--placement {text!r}: names more than {MOST_PLACED:,} devices: look for a wrong number")
        step = 1 if ends[0] <= ends[1] else -1
        found += range(ends[0], ends[1] + step, step)
    return tuple(found)


def named_system(options: Options, device: str | Accelerator | None, at_least: int) -> System:
    """The system that the options of hardware name, of a device that may be another than they say."""
    from triosim.hardware.machine import system

    return system(
        options.system,
        options.nodes,
        device=device,
        devices=options.devices,
        topology=options.topology,
        link=options.link,
        latency=options.latency,
        shape=options.shape,
        topology_options=named(options.topology_option, "--topology-option", "oversubscription=2") or None,
        host_link=options.host_link,
        pool_link=options.pool_link,
        routing=options.routing,
        routing_options=named(options.routing_option, "--routing-option", "seed=7"),
        at_least=at_least,
    )


def machine(options: Options, trace: Trace, at_least: int) -> System:
    """The machine that the options name, of so many devices where they do not say how many."""
    device: str | Accelerator | None = options.device
    if options.system is None and device is None and trace.meta.clock == "none":
        device = _calibrated(options.operator_times)
        if device is None and trace.meta.made_by in ("triosim.model", "onnx", "nn-meter"):
            _check_file(options.operator_times)
            raise InputError(f"{options.workload!r} is a model, without recorded times: name a --system or a --device")
    made = named_system(options, device, at_least)
    if options.straggler:
        from triosim.hardware.stragglers import parse_stragglers, slowed

        made = slowed(made, parse_stragglers(options.straggler))
    return held_back(made, options)


def _check_file(operator_times: str) -> None:
    """Refuse a file of operator times that is not there, or that answers for whole networks alone.

    Raises:
        InputError: so it is.
    """
    if operator_times.lower().endswith(".json"):
        from triosim.core import guarded
        from triosim.kernels.pack import refuse_networks_only

        document = guarded.values(Path(operator_times), ".json")
        refuse_networks_only(document.get("schema") if isinstance(document, dict) else None, operator_times)


def _calibrated(operator_times: str) -> Accelerator | None:
    """The device of a calibration, None where operator times are something else."""
    from triosim.kernels.pack import is_calibration_file

    if not is_calibration_file(operator_times):
        return None
    from triosim.kernels.calibration.pack import load

    return load(operator_times).calibration.device


def _check_outputs(options: Options) -> None:
    """Refuse outputs that would overwrite what is read, each other, or what is not ours, before anything is done."""
    from triosim.core.outputs import check_distinct
    from triosim.sources.reading import recognised

    outputs = {
        "--json": options.json, "--csv": options.csv, "--timeline": options.timeline, "--report": options.report,
        "--stats": options.stats,
    }  # fmt: skip
    inputs = [
        ("WORKLOAD", options.workload), ("--system", options.system), ("--device", options.device),
        ("--tp-plan", options.tp_plan), ("--batch-trace", options.batch_trace), ("--solver", options.solver),
        ("--schedule", options.schedule),
        *(("--parallelism", path) for path in options.parallelism or ()),
        ("--energy", options.energy),
        ("--composition", options.composition), ("--operator-times", options.operator_times),
        *(("--also", path) for path in options.also or ()), ("--packing", options.packing),
    ]  # fmt: skip
    check_distinct({**outputs, "--chakra": options.chakra}, inputs, recognised, ("--chakra", "--timeline"))
    if options.timeline is not None:
        from triosim.report import pictures

        pictures.check_name(options.timeline)
    if options.chakra is not None:
        from triosim.core.outputs import check_folder
        from triosim.interop.chakra.export import belongs

        check_folder(options.chakra, belongs)


def _write(result: Result, options: Options) -> list[str]:
    """Write the files asked for; returns a line for each."""
    from triosim.cli.streams import written

    lines = []
    if options.json is not None:
        from triosim.core.outputs import text_output

        with text_output(options.json) as file:
            file.write(result.to_json())
        lines += written("result", options.json)
    if options.timeline is not None:
        from triosim.report import pictures

        paths = pictures.write(result.timeline, options.timeline)
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        viewers = (
            "ui.perfetto.dev" if options.timeline.endswith(pictures.BINARY) else "ui.perfetto.dev or chrome://tracing"
        )
        lines += written("timeline", paths[0], f"{more}  (open in {viewers})")
    if options.report is not None:
        from triosim.report import html

        html.write(result, options.report)
        lines += written("report", options.report)
    if options.stats is not None:
        from triosim.core.outputs import text_output

        with text_output(options.stats) as file:
            sizes = asdict(result.simulation)
            file.write(dumps({"schema": "triosim/stats/1", **asdict(result.stats), **sizes}, indent=1) + "\n")
        lines += written("stats", options.stats)
    return lines
