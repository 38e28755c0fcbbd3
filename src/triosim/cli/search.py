"""``triosim search``: the best ways to train a model on a machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from triosim.cli import completion
from triosim.cli.arguments import MACHINE, POST, Options, TrainOptions
from triosim.cli.command import command, progress_bar
from triosim.cli.completion import choices, parts
from triosim.cli.energy_options import ENERGY
from triosim.cli.fields import argument, check_axes, given, option, with_options_of
from triosim.cli.fields import command as function_of
from triosim.cli.outputs import OUTPUT, present
from triosim.cli.resuming import KnownOutcomes
from triosim.core.dataclass import dataclass
from triosim.core.errors import InputError, quoted, unknown
from triosim.fidelity import NETWORK, PREDICTION
from triosim.plan import DIVISION, MEMORY, WORKLOAD

if TYPE_CHECKING:
    from triosim.hardware.system import System
    from triosim.posttraining.workload import PostTrainingWorkload
    from triosim.search.space import PlanSpace
    from triosim.trace.tables import Trace

WANTED, RUN = "What is looked for", "How it is looked for"
GROUPS = (WANTED, WORKLOAD, POST, MACHINE, DIVISION, MEMORY, NETWORK, PREDICTION, ENERGY, RUN, OUTPUT)
UNDER = ("batch", "memory")
SHARED = (
    "seq_len", "precision", "quantize", "quantize_attention", "optimizer", "attention", "lora", "packing", "post",
    "rollout",
    "system", "device", "topology", "topology_option", "link", "latency", "routing", "routing_option",
    "parallelism", "parallelism_option", "offload", "overlap", "interference", "algorithm", "protocol", "stack",
    "operator_times", "operator_option", "host", "power_cap", "clock",
)  # fmt: skip
"""Options of ``train`` that all plans have in common."""


def _option(group: str, name: str, metavar: str | None, help: str, default: Any = None, complete: Any = None) -> Any:
    return option(name, help=help, default=default, group=group, metavar=metavar, complete=complete)


@dataclass(frozen=True)
@with_options_of(TrainOptions, SHARED, GROUPS)
class SearchOptions:
    """What ``search`` takes: of ``train`` what all plans have in common, and what is looked for."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """What ``train`` takes too."""

    workload: str = argument(
        "WORKLOAD", "A trace, a model's name (triosim models) or a model's configuration file.",
        complete=completion.workloads,
    )  # fmt: skip
    under: list[str] | None = _option(
        WANTED, "--under", "batch=N,memory=SIZE",
        "Samples (prompts, with --post) per iteration, of all replicas; and what a plan may need of each device "
        "(default: what it has).",
    )  # fmt: skip
    objective: str = _option(
        WANTED, "--objective", "WHAT", "time, tokens-per-dollar or memory (default time).", default="time",
        complete=choices("time", "tokens-per-dollar", "memory"),
    )  # fmt: skip
    price: str | None = _option(
        WANTED, "--price", "USD/h", "Of a device hour, as 2/h (default: its list price in the catalog)."
    )
    best: int = _option(WANTED, "--best", "N", "Plans to find (default 10).", default=10)
    front: bool = _option(
        WANTED, "--front", None, "Also the Pareto front of time, memory and dollars: all plans that no other beats.",
        default=False,
    )  # fmt: skip
    among: list[str] | None = _option(
        WANTED, "--among", "NAME=A,B,...",
        "Only such values, as tp=1,2,4 or micro-batch-size=1,2; of tp, pp, cp, ep, micro-batch-size, schedule, "
        "schedule.chunks, recompute, zero, sequence-parallel; repeatable.",
    )  # fmt: skip
    nodes: str | None = _option(
        MACHINE, "--nodes", "N,...", "Servers of that system, several are compared (default as many as its file says)."
    )
    devices: str | None = _option(
        MACHINE, "--devices", "N,...", "How many devices to use, whole servers of a system; several are compared."
    )
    workers: int = _option(RUN, "--workers", "N", "Processes that predict plans (default 1).", default=1)
    executor: str = _option(
        RUN, "--executor", "NAME",
        "Who runs them: local, processes of this machine, or ray, a Ray cluster (default local).", default="local",
        complete=parts("triosim.search.executor:EXECUTORS"),
    )  # fmt: skip
    export: str | None = _option(
        OUTPUT, "--export", "NAME[=FILE]",
        "The best plan as the configuration of torchtitan (TOML) or megatron (arguments); with --json, of each plan.",
        complete=choices("torchtitan", "megatron"),
    )  # fmt: skip
    json: str | None = _option(
        OUTPUT, "--json", "FILE",
        "Write the plans as JSON; - writes them, and nothing else, to the terminal.  A search that was killed goes on "
        "from what is kept beside the file.",
        complete=completion.files,
    )  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the command."""
    about = "Find the best way to train a model on a machine: exactly, among all plans that its sizes allow."
    command(app, "search")(function_of(SearchOptions, search, about))


def search(options: SearchOptions) -> None:
    """Find the best plans and show or write them.

    Raises:
        InputError: an option makes no sense, or no plan is legal or fits.
    """
    from triosim.cli.energy_options import price_of
    from triosim.cli.exporting import asked_for, configured, write
    from triosim.cli.posttraining import ROLLOUT_ALONE
    from triosim.cli.predict import fidelity_of, plan_of, step
    from triosim.core.outputs import check_distinct
    from triosim.report.search import Report, show, to_dict
    from triosim.search.branch_and_bound import OBJECTIVES, best_plans
    from triosim.search.outcome import PlanOutcome

    if options.objective not in OBJECTIVES:
        raise unknown("objective", options.objective, OBJECTIVES)
    if options.rollout is not None and options.post is None:
        raise InputError(ROLLOUT_ALONE)
    if options.workers < 1:
        raise InputError(f"--workers must be at least 1, got {options.workers}")
    price, under = price_of(options.price), _under(options.under or ())
    files = [
        ("WORKLOAD", options.workload), ("--system", options.system), ("--device", options.device),
        ("--rollout", options.rollout),
    ]  # fmt: skip
    framework, path = asked_for(options.export)
    check_distinct({"--json": options.json, "--export": path}, files)
    with progress_bar() as progress:
        progress("reading the workload")
        each = _each(options)
        base, fidelity = plan_of(each[0], True), fidelity_of(each[0])
        work: Trace | PostTrainingWorkload
        if options.post is None:
            trace, answers = step(each[0], True), 1
            work, batch = trace, under["batch"]
        else:
            work = _post_training(options, each[0], under["batch"])
            trace, answers = work.policy, work.recipe.answers
            batch, base = work.samples_of_an_update(under["batch"]), base.replaced(global_batch_size=under["batch"])
        systems = _systems(each, trace, under)
        space = _space(options, trace, list(systems), batch)
        if price is None:
            price = next(iter(systems.values())).models[0].price_per_hour
        _check_price(price, options.objective)
        asked = (work, systems, base, fidelity, options.objective, options.best, options.front, space.among)
        names = [text for _, text in files if text]
        with KnownOutcomes([options.json], (*asked, space.batch), names, "a search", PlanOutcome.from_dict) as kept:
            found = best_plans(
                work, systems, space, base, fidelity, options.objective, options.best, options.front,
                options.workers, progress, kept, executor=options.executor,
            )  # fmt: skip
            report = Report(
                found, trace.meta.workload, {n: one.name for n, one in systems.items()}, options.objective,
                under["batch"], trace.meta.sequence_length, price,
                "as given" if options.price else "list price of the catalog",
                {count: _words(one) for count, one in zip(systems, each, strict=True)},
                answers=answers, post=options.post,
            )  # fmt: skip
            if framework:
                plans = (*found.best, *(found.front or ()))
                made = configured(framework, options.workload, trace, systems, base, fidelity, space, plans)
                report = replace(report, configured=made, shows_configuration=path is None)
            present(report, "search", options.json, to_dict, show)
            kept.done()
    if framework:
        write(report, path, options.json)


def _check_price(price: float | None, objective: str) -> None:
    """Refuse to look for most tokens per dollar where devices cost nothing that is known.

    Raises:
        InputError: so it is.
    """
    if objective != "tokens-per-dollar" or price:
        return
    if price is None:
        raise InputError("what a device hour costs is not known: give --price, for example 2/h")
    raise InputError("--price 0: where devices cost nothing no plan gives most tokens per dollar: give a price")


def _post_training(options: SearchOptions, first: TrainOptions, prompts: int) -> PostTrainingWorkload:
    """The step of post-training that is searched.

    Raises:
        InputError: an option makes no sense with one.
    """
    from triosim.cli.posttraining import check_given, post_training_workload

    check_given(first)
    if options.export is not None:
        raise InputError("--export writes configurations of pre-training: leave out it or --post")
    asked = post_training_workload(first)
    asked.check_served(prompts * asked.workload.recipe.answers)
    return asked.workload


def _under(texts: Sequence[str]) -> dict[str, int]:
    """Limits from ``batch=1536,memory=40GB``, together or each by itself.

    Raises:
        InputError: it is none, or the batch is missing.
    """
    from triosim.core.units import parse_bytes

    found: dict[str, int] = {}
    for word in filter(None, (part.strip() for text in texts for part in text.split(","))):
        name, equals, value = (part.strip() for part in word.partition("="))
        if name not in UNDER:
            raise unknown("name after --under", name, UNDER)
        if not equals or (name == "batch" and not value.isdecimal()):
            raise InputError(f"--under {quoted(word)}: give a value, for example batch=512,memory=40GB")
        if name == "batch" and not int(value):
            raise InputError("--under batch must be at least 1, got 0")
        if name in found:
            raise InputError(f"--under gives {name} twice: keep one")
        found[name] = int(value) if name == "batch" else parse_bytes(value, "--under memory")
    if not found.get("batch"):
        raise InputError(
            "how many samples an iteration takes is not known: give --under batch=N, for example batch=512"
        )
    return found


def _numbers(text: str | None, name: str) -> list[int | None]:
    """Numbers from ``"8,16"``; a single None where there are none."""
    if text is None:
        return [None]
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) for word in words):
        raise InputError(f"{name} must be whole numbers of at least 1, got {quoted(text)}")
    return list(dict.fromkeys(int(word) for word in words))


def _each(options: SearchOptions) -> list[TrainOptions]:
    """The options of ``train`` for each number of devices."""
    if options.system is None and options.devices is None and options.nodes is None:
        raise InputError("how many devices there are is not known: give --system, or --devices N")
    shared = {name: getattr(options, name) for name in ("workload", *SHARED)}
    pairs: list[tuple[int | None, int | None]]
    if options.system is not None and options.nodes is None and options.devices is not None:
        each = _per_server(options.system)
        pairs = [(_servers(devices, each), None) for devices in _numbers(options.devices, "--devices")]
    else:
        pairs = [(n, d) for n in _numbers(options.nodes, "--nodes") for d in _numbers(options.devices, "--devices")]
    return [TrainOptions(**shared, nodes=nodes, devices=devices) for nodes, devices in pairs]


def _per_server(system: str) -> int:
    """Devices of a server of a system."""
    from triosim.hardware.machine import system as made

    return made(system, 1).devices


def _servers(devices: int | None, each: int) -> int:
    """How many servers hold so many devices.

    Raises:
        InputError: some would be left over.
    """
    assert devices is not None
    if devices % each:
        lower = devices // each * each
        near = " or ".join(str(n) for n in (lower, lower + each) if n)
        raise InputError(f"--devices {devices} are no whole servers of {each}: nearest that are: {near}")
    return devices // each


def _systems(each: Sequence[Options], trace: Trace, under: Mapping[str, int]) -> dict[int, System]:
    """The machines by their number of devices, whose memory is what a plan may need."""
    from triosim.cli.predict import machine

    found = {}
    for options in each:
        made = machine(options, trace, options.devices or 1)
        if "memory" in under:
            made = made.with_memory(under["memory"])
        if made.devices in found:
            raise InputError(
                f"{made.devices} devices are asked for twice: give each number of --nodes or --devices once"
            )
        found[made.devices] = made
    return found


def _space(options: SearchOptions, trace: Trace, devices: list[int], batch: int) -> PlanSpace:
    from triosim.search.grid import parse_axes
    from triosim.search.space import AXES, PlanSpace

    check_axes(options, options.among or (), "--among", lambda name: name.replace("_", "-") in AXES)
    return PlanSpace.of(trace, devices, batch, parse_axes(options.among or (), "--among"))


def _words(options: Options) -> list[str]:
    """Words of a command line that all plans on a machine share."""
    words = ["triosim", "train", options.workload]
    for name, typed in given(options):
        value = getattr(options, name)
        for one in value if isinstance(value, list) else [value]:
            words += [typed, str(one)]
    return words
