"""``triosim calibrate``: measured kernels of one device bring predictions closer to it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triosim.cli import completion
from triosim.cli.command import command, general, say, wants_summary
from triosim.core.errors import InputError, no_such_file

if TYPE_CHECKING:
    from triosim.hardware.accelerator import Accelerator
    from triosim.kernels.calibration.pack import CalibrationPack
    from triosim.sources.runtimes.bench import BenchmarkProgress, KernelBenchmark

MEASURED = "Instead of a trace"
"""The group of options that say what else to calibrate with."""

SHORTEST_S = 5.0
"""Budget below which nothing of use can be measured."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "calibrate")(calibrate)


def calibrate(
    trace: Annotated[
        str | None,
        typer.Argument(
            metavar="TRACE",
            help="A recorded or imported trace with operator times.",
            show_default=False,
            autocompletion=completion.files,
        ),
    ] = None,
    run: Annotated[
        bool,
        typer.Option("--run", help="Measure kernels on this machine.", rich_help_panel=MEASURED),
    ] = False,
    runtime: Annotated[
        str | None,
        typer.Option(
            "--runtime",
            metavar="NAME",
            help="What runs them: torch, onnxruntime or numpy (default torch); with --import what ran them.",
            show_default=False,
            autocompletion=completion.choices("torch", "onnxruntime", "numpy"),
            rich_help_panel=MEASURED,
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads",
            metavar="N",
            help="Threads of a processor that share a kernel (default 1; of numpy as many as it was started with).",
            show_default=False,
            rich_help_panel=MEASURED,
        ),
    ] = None,
    export_kernels: Annotated[
        Path | None,
        typer.Option(
            "--export-kernels",
            metavar="FOLDER",
            help="Write kernels as ONNX files, to be measured on a device where TrioSim does not run.",
            show_default=False,
            rich_help_panel=MEASURED,
        ),
    ] = None,
    import_: Annotated[
        Path | None,
        typer.Option(
            "--import",
            metavar="FILE",
            help="Table (CSV) of what was measured of those, in their folder: columns kernel and ms.",
            show_default=False,
            rich_help_panel=MEASURED,
        ),
    ] = None,
    iterations: Annotated[
        Path | None,
        typer.Option(
            "--iterations",
            metavar="FILE",
            help="Table (CSV) of measured iterations: options of train as columns, and seconds; fits what composition "
            "adds to operator times (train --composition).",
            show_default=False,
            rich_help_panel=MEASURED,
        ),
    ] = None,
    power: Annotated[
        str | None,
        typer.Option(
            "--power",
            metavar="FILE|nvidia-smi|rapl",
            help="What the device draws: runs phases on this machine with PyTorch beside a sensor, or beside a log "
            "that is written meanwhile (CSV: time, watts); fits joules of FLOP and bytes (train --energy).",
            show_default=False,
            rich_help_panel=MEASURED,
        ),
    ] = None,
    phases: Annotated[
        Path | None,
        typer.Option(
            "--phases",
            metavar="FILE",
            help="With --power FILE: phases that were run elsewhere (CSV: what, start, end, dtype, flop, bytes).",
            show_default=False,
            rich_help_panel=MEASURED,
        ),
    ] = None,
    few: Annotated[
        Path | None,
        typer.Option(
            "--few",
            metavar="FILE",
            help="Table (CSV) of 10 to 50 whole networks that were timed: columns arch (a cell, blocks or a name) and "
            "ms; learns what others take.",
            show_default=False,
            rich_help_panel=MEASURED,
        ),
    ] = None,
    pool: Annotated[
        Path | None,
        typer.Option(
            "--pool",
            metavar="FILE",
            help="With --few: table of what networks took on other devices, a column each.",
            show_default=False,
            rich_help_panel=MEASURED,
        ),
    ] = None,
    predict: Annotated[
        Path | None,
        typer.Option(
            "--predict",
            metavar="FILE",
            help="With --few PACK.json, what it has learned: table of networks (arch) whose times are asked for.",
            show_default=False,
            rich_help_panel=MEASURED,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="NAME|FILE",
            help="Device (triosim devices) or file that describes one, where the trace does not name it; with --run "
            "also cpu or cuda; with --few and --import what to call it.",
            show_default=False,
            autocompletion=completion.devices,
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option("--budget", metavar="TIME", help="Time that --run may take (default 4m).", show_default=False),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(
            "--step",
            metavar="STEP",
            help="Step of a foreign trace with several: its number or median.",
            show_default=False,
            autocompletion=completion.choices("median"),
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="File to write (default: DEVICE-calibration.json, composition.json, DEVICE-few-shot.json).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Fit operator times to measured kernels of one device, or composition to measured iterations.

    Kernels are those of a trace, or measured on this machine (--run) or elsewhere (--import); the pack that is written
    goes to --operator-times of train and infer.  What is fitted to --iterations goes to --composition.
    """
    from triosim.core.outputs import check_distinct

    if few is not None:
        others = (
            trace, run or None, iterations, power, phases, budget, step, runtime, threads, export_kernels, import_
        )  # fmt: skip
        if any(one is not None for one in others):
            raise InputError(
                "--few learns from whole networks alone: beside it only --pool, --device, --predict and -o"
            )
        from triosim.cli.few_shot import write as write_few

        check_distinct({"--output": output}, [("--few", few), ("--pool", pool), ("--predict", predict)])
        write_few(few, pool, predict, device, output)
        return
    if pool is not None or predict is not None:
        raise InputError("--pool and --predict go with networks that were timed: give --few FILE as well")
    if power is not None:
        if trace is not None or run or iterations is not None or step is not None:
            raise InputError("--power measures power alone: leave out the trace, --run, --iterations and --step")
        from triosim.cli.power import write as write_power

        check_distinct({"--output": output}, [("--power", power), ("--phases", phases), ("--device", device)])
        write_power(power, phases, device, budget, output)
        return
    if phases is not None:
        raise InputError("--phases says what a device did while its power was logged: give --power FILE as well")
    if not (run or import_) and (runtime is not None or threads is not None):
        raise InputError("--runtime and --threads say how kernels are measured: give --run or --import as well")
    if sum((trace is not None, run, iterations is not None, export_kernels is not None, import_ is not None)) != 1:
        raise InputError(
            "triosim calibrate takes a trace, --run, --iterations, --power, --few, --export-kernels or --import, one "
            "of them: triosim calibrate STEP.triosim"
        )
    if threads is not None and threads < 1:
        raise InputError(f"--threads {threads}: give 1 or more")
    check_distinct(
        {"--output": output},
        [("TRACE", trace), ("--device", device), ("--iterations", iterations), ("--import", import_)],
    )
    if export_kernels is not None or import_ is not None:
        if budget is not None or step is not None:
            raise InputError("--budget and --step say nothing of kernels that are measured elsewhere: leave them out")
        from triosim.cli import runtimes

        if export_kernels is not None:
            if device is not None or output is not None:
                raise InputError("--export-kernels writes the same kernels for any device: leave --device and -o out")
            runtimes.export(export_kernels)
        elif import_ is not None:
            made = runtimes.imported(import_, device, runtime or "a runtime", threads or 1)
            _write(made, output or Path(f"{_slug(made.calibration.device.name)}-calibration.json"))
        return
    if iterations is not None:
        if device is not None or budget is not None or step is not None:
            raise InputError(
                "--iterations names devices and steps in its columns: leave --device, --budget, --step out"
            )
        from triosim.cli.iterations import write

        write(iterations, output or Path("composition.json"))
        return
    if run:
        if runtime == "numpy" and threads is None:
            from triosim.sources.runtimes.numpy_runtime import started_threads

            threads = started_threads()
        made = _measured(device, _seconds(budget or "4m"), runtime or "torch", threads or 1)
    else:
        made = _of_trace(str(trace), device, step, budget)
    _write(made, output or Path(f"{_slug(made.calibration.device.name)}-calibration.json"))


def _of_trace(name: str, device: str | None, step: str | None, budget: str | None) -> CalibrationPack:
    from triosim.hardware.build import accelerator
    from triosim.kernels.calibration.making import calibrate as made_of
    from triosim.sources.reading import read

    if budget is not None:
        raise InputError("--budget bounds the measurements of --run; a trace has been measured already")
    if not os.path.exists(name):
        raise no_such_file(name)
    trace = read(Path(name), step=step or "median")
    return made_of(trace, accelerator(device) if device else None, name=Path(name).name)[0]


def _measured(device: str | None, budget_s: float, runtime: str = "torch", threads: int = 1) -> CalibrationPack:
    from triosim.kernels.calibration.figures import machine
    from triosim.kernels.calibration.making import calibrate as made_of

    described, kind = _described(device)
    if runtime != "torch":
        if kind == "cuda":
            raise InputError(f"--runtime {runtime} is measured on the processor: leave --device out, or give cpu")
        from triosim.sources.runtimes.bench import measure_runtime
        from triosim.sources.runtimes.runtime import inference_runtime

        ready = inference_runtime(runtime, threads)
        with _bar(runtime) as progress:
            bench = measure_runtime(ready, budget_s, progress)
    else:
        bench = _with_torch(kind, described is None, budget_s, threads)
    here = {**machine(), "threads": bench.threads} if bench.trace.meta.clock == "cpu" else None
    return made_of(bench.trace, described, drift=bench.drift, versions=bench.versions, machine=here, rules=bench.rules)[
        0
    ]


def _described(device: str | None) -> tuple[Accelerator | None, str | None]:
    """The device that the user describes, and of which kind it is; None where that is not said."""
    if device in (None, "cpu", "cuda"):
        return None, device
    from triosim.hardware.build import accelerator

    found = accelerator(str(device))
    return found, "cpu" if found.kind == "cpu" else "cuda"


def _with_torch(kind: str | None, unnamed: bool, budget_s: float, threads: int) -> KernelBenchmark:
    from triosim.hardware.catalog import identify
    from triosim.sources.record import device_name, devices_here, measure

    kind = kind or devices_here()[0]
    if kind == "cuda" and kind in devices_here() and unnamed and identify(device_name(kind)) is None:
        raise InputError(
            f"the catalog does not know {device_name(kind)!r}: describe it in a file (docs/systems.md) and give that "
            "as --device"
        )
    if kind == "cuda" and threads != 1:
        raise InputError(f"--threads {threads}: kernels of a GPU are not shared by threads, leave it out")
    with _bar("PyTorch") as progress:
        return measure(kind, budget_s, progress, threads)


@contextmanager
def _bar(runtime: str) -> Iterator[Callable[[BenchmarkProgress], None]]:
    """A progress bar on standard error; being interrupted is one sentence."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from triosim.cli.streams import rich_console

    if general().quiet:
        yield lambda now: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    try:
        with Progress(*columns, console=rich_console(stderr=True), transient=True) as bar:
            task = bar.add_task(f"starting {runtime}", total=1.0)
            yield lambda now: bar.update(
                task, description=f"measuring: {now.what}", completed=now.gone_s, total=now.budget_s
            )
    except KeyboardInterrupt:
        print(
            "triosim: interrupted, nothing was written: run it again, with a smaller --budget if it takes too long",
            file=sys.stderr,
        )
        raise typer.Exit(130) from None


def _write(pack: CalibrationPack, path: Path) -> None:
    from triosim.cli.streams import rich_console, written
    from triosim.core.outputs import text_output
    from triosim.kernels.calibration.pack import text
    from triosim.report.calibration import overview

    with text_output(path) as file:
        file.write(text(pack))
    if wants_summary(path):
        overview(pack, rich_console())
        print()
    say(written("pack", path, f"  (triosim train WORKLOAD --operator-times {path})"), path)


def _seconds(text: str) -> float:
    """Seconds of ``"4m"``, ``"90s"`` or ``"90"``."""
    from triosim.core.units import parse_time

    minutes = re.fullmatch(r"\s*([\d.]+)\s*(?:m|min)\s*", text)
    seconds = 60 * parse_time(minutes[1], "--budget") if minutes else parse_time(text, "--budget")
    if seconds < SHORTEST_S:
        raise InputError(f"--budget {text}: too short to measure anything, give at least {SHORTEST_S:g}s")
    return seconds


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-") or "device"
